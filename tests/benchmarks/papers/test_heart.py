"""HEART's benchmark: other scores take the place of the method's own, and its tables are of what was stored."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained

from benchmarks.papers import efficiency, heart, heart_tables
from benchmarks.sources import add_source, source_from
from edgevit.data.task import open_task
from edgevit.derivation.methods.heart.method import Config, derive
from edgevit.errors import OptionError
from edgevit.network.model import describe
from edgevit.progress import Silent


@pytest.mark.parametrize("variant", heart.VARIANTS)
def test_every_variant_takes_its_own_scores(variant: str, small_vit: Callable[..., Any], tmp_path: Path) -> None:
    base = describe(small_vit(depth=3), "vit_tiny_patch16_224", {"depth": 3})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.1, tmp_path, shape="free")
    few: dict[str, Any] = {"calibration_images": 8, "probes": 1, "selection": "percentile"}
    ratios = "uniform" if variant == "heart, alike" else "sensitivity"
    images = torch.randn(3, 3, 32, 32)
    with heart.scored(variant), torch.no_grad():
        made = derive(problem, Config(**few, token_ratio=0.5, head_ratio=0.5, ratios=ratios))
        once, again = made.network(images), made.network(images)
    facts: Any = made.facts
    assert facts["tokens"][-1] < 17 and sum(map(len, facts["kept_heads"])) < 6
    assert any(facts["spearman"]) == variant.startswith("heart")
    assert torch.equal(once, again) != (variant == "random")


def test_the_section_has_a_line_of_every_variant_and_bears_missing_parts() -> None:
    rows = [
        {"variant": variant, "tokens": 0.2, "heads": 0.4, "seed": seed, "base": 0.9, "before": 0.5, "after": 0.8,
         "macs_left": 0.75, "images": 900, "reaching": [26, 20], "spearman": [0.25]}
        for variant in heart.VARIANTS for seed in (42, 43)
    ]  # fmt: skip
    costs = {"probes": 8, "a training step": {"images": 32, "cpu_s_per_image": 2.0, "bytes": 100},
             "scores": {"images": 8, "cpu_s_per_image": 50.0, "bytes": 250}}  # fmt: skip
    text = heart_tables.section({"rows": rows, "training": heart.TRAINING, "cost": costs})
    assert "| 20/40, random | 75.0 (75.0 to 75.0) | 50.0 (50.0 to 50.0) | 80.0 (80.0 to 80.0) |" in text
    flat = " ".join(text.split())
    assert "25.0 times the processor time" in flat and "2.50 times the memory" in flat and "block: +0.25" in flat
    assert heart_tables.section(None) == ""
    beside = [
        {"variant": variant, "rate": 0.5, "seed": 42, "base": 0.9, "before": 0.7, "after": 0.8, "macs_left": 0.499,
         "embed": 96} for variant in heart.composed()
    ]  # fmt: skip
    text = heart_tables.section({"rows": rows, "composed": beside, "training": heart.TRAINING, "cost": None})
    older = [{**row, "base_sha256": "another", "before": 0.1} for row in beside]
    assert heart_tables.of_newest([*older, *beside]) == beside
    assert "| 0.5, heart | 49.9 | 70.0 | 80.0 | 90.0 | 96 |" in text
    assert "processor" not in heart_tables.section({"rows": rows, "training": heart.TRAINING, "cost": None})
    finer = heart_tables.section({"rows": rows, "training": heart.TRAINING, "cost": None, "base": "fine"})
    assert "on 24 of 48 finer classes" in finer
    assert set(heart_tables.BASES) == set(heart.BASES)
    assert "A block has" not in text
    alike = [
        {**rows[0], "variant": "heart, alike", "heads": share, "heads_left": [left] * 4}
        for share, left in ((0.2, 3), (0.6, 2), (0.4, 2), (0.8, 1))
    ]
    told = heart_tables.section({"rows": alike, "training": heart.TRAINING, "cost": None})
    assert "A block has 3 heads and loses whole heads: `alike` drops none at 20 %, 1 at 40 and 60 %, 2 at 80 %." in told


def test_rows_at_50_50_have_a_table_block_by_block() -> None:
    figures = {"cka": [0.9, 0.8], "cosine": [0.99, 0.98], "residual": [0.5, 0.4], "residual_base": [0.6, 0.3]}
    rows = [
        {"variant": "heart, alike", "tokens": tokens, "heads": tokens, "seed": seed, "base": 0.9, "before": 0.5,
         "after": 0.8, "macs_left": 0.75, "images": 900, "reaching": [26, 20], "spearman": [0.25]}
        for tokens in (0.6, 0.5) for seed in (42, 43)
    ]  # fmt: skip
    data = {"rows": rows, "training": heart.TRAINING, "cost": None}
    assert "Block by block" not in heart_tables.section(data)
    trained = {**figures, "cka": [1.0, 0.9]}
    for row in rows[2:]:
        row["layers"] = {"before": figures, "after": trained}
    text = heart_tables.section(data)
    assert "| heart, alike, cka | 0.900 -> 1.000 | 0.800 -> 0.900 |" in text
    assert "| heart, alike, residual | 0.600 -> 0.500 -> 0.500 | 0.300 -> 0.400 -> 0.400 |" in text
    assert text.index("| 50/50, heart") < text.index("| 60/60, heart"), "in the order of the paper"


def test_every_ratio_of_the_paper_is_there() -> None:
    assert set(heart.RATIOS) == set(efficiency.RATIOS) and len(heart.RATIOS) == len(efficiency.RATIOS)


def test_a_row_is_told_from_others_by_what_it_was_asked() -> None:
    for part, count in (("ratios", len(heart.RATIOS) * len(heart.VARIANTS)), ("composed", 3)):
        keys = [key for key, _ in heart.row_makers(part, (42, 43))]
        assert len({tuple(key.items()) for key in keys}) == len(keys) == 2 * count


def test_a_user_s_rows_are_of_one_sub_task(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    images = image_folder(tmp_path / "animals", dict.fromkeys(("ant", "bee", "cat", "dog"), 2))
    parser = argparse.ArgumentParser()
    add_source(parser, heart.BASES)

    def asked(*more: str) -> list[str] | None:
        given = parser.parse_args(["--data", str(images), "--base", "vit_tiny_patch16_224", *more])
        assert heart.file_of(given).name == "heart_animals.json"
        return heart.sub_task(source_from(given, Silent()), given)

    assert (
        asked("--classes", "dog,ant") == ["ant", "dog"]
        and len(asked() or ()) == 2
        and len(asked("--tasks", "3") or ()) == 3
    )
    with pytest.raises(OptionError, match="rows are of one sub-task, and 2 were asked for"):
        asked("--tasks", "2", "3")
    row = {"variant": "random", "tokens": 0.2, "heads": 0.4, "seed": 42, "base": 0.9, "before": 0.5, "after": 0.8,
           "macs_left": 0.75, "images": 90, "reaching": [26], "spearman": [0.25], "heads_left": [12] * 12,
           "classes": ["ant", "dog"], "base_sha256": "b"}  # fmt: skip
    other = {**row, "classes": ["bee", "cat"], "before": 0.1}
    data = {"rows": [other, row], "training": heart.TRAINING, "cost": None, "base": "animals"}
    text = heart_tables.section(data)
    assert "on 2 classes of `animals`" in text and "small base" not in text and "| 10.0 |" not in text
    demo = heart.file_of(parser.parse_args([])), heart.file_of(parser.parse_args(["--base", "fine"]))
    assert [file.name for file in demo] == ["heart.json", "heart_fine.json"]


def test_each_image_loses_the_heads_of_its_own_lowest_scores(small_vit: Callable[..., Any]) -> None:
    network, images = small_vit().eval(), torch.randn(4, 3, 32, 32)  # two blocks of two heads
    scores = torch.ones(4, 4) - torch.eye(4)  # image i loses head i of all
    with torch.no_grad():
        whole = network(images)
    logits = heart.without_heads(network, images, scores, 0.25)
    for image, (block, head) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        one = small_vit().eval()
        with torch.no_grad():
            one.read()[block].attention.wo[head] = 0  # a view of the weights
            torch.testing.assert_close(logits[image], one(images[image : image + 1])[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heart.without_heads(network, images, scores, 0.0), whole, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits, whole, atol=1e-3)
