"""The benchmark of a large network: every method goes through, here from a small one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import large


@pytest.mark.slow
@pytest.mark.parametrize("method", large.METHODS)
def test_a_model_is_derived_and_exported_by_name(method: str, tmp_path: Path) -> None:
    large.write_base("test_vit", tmp_path)
    row = large.make(method, "test_vit", "cpu", tmp_path)
    assert row["peak_bytes"] <= row["export_peak_bytes"] and row["wall_s"] > 0 and row["fp16_bytes"] > 0
    of = {"model": "test_vit", "method": method, "steps": large.METHODS[method][1], "images": 10}
    text = large.section([{**of, **row}])
    assert f"| test_vit, {method}, {of['steps']} steps, 10 images | cpu |" in text


def test_the_section_names_what_is_fused() -> None:
    row = {
        "model": "vit", "method": "forge", "steps": 0, "images": 9, "wall_s": 12.3, "peak_bytes": 5e9, "export_s": 4.0,
        "fused": 24, "export_peak_bytes": 6e9, "fp16_bytes": 2e8, "attentions": 24, "fusable": 0, "device": "cuda",
        "gpu_peak_bytes": 7e9,
    }  # fmt: skip
    assert (
        "| vit, forge, 0 steps, 9 images | cuda | 12 |  | 5.0 | 7.0 | 4 | 6.0 | 200 | 2.1 | 24 of 24 |"
        in large.section([row])
    )
    assert large.section([]) == ""
