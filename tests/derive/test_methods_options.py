"""Every value of every option of every method, and of a super-network, derives a model once, many of them together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import derive, make_supernet, write_checkpoint

import edgevit
from edgevit.derive.methods import method_names
from edgevit.derive.options import SUPERNET, Option, describe

# Fewer images and steps than anybody would take; what is not here is as by default.
QUICK: dict[str, dict[str, Any]] = {
    "corp": {"calibration_images": 32},
    "forge": {"calibration_images": 32, "sensitivity_images": 16},
    "heart": {"calibration_images": 8, "probes": 1},
    "mdp": {"calibration_images": 32},
    "nuwa": {"calibration_images": 32, "purification_steps": 2, "purification": "always"},
    "nvit": {"calibration_images": 32},
    "taylor": {"calibration_images": 32},
    "torch_pruning": {"calibration_images": 32},
    "dcvit": {"calibration_images": 16},
    "xpruner": {"calibration_images": 16, "mask_passes": 1},
    "wanda": {"calibration_images": 32},
    "vulcan": {"calibration_images": 32},
    SUPERNET: {"epochs": 1},
}


# Options that make others count for nothing, or would meet no budget beside them: each of their values goes alone.
ALONE: dict[str, tuple[str, ...]] = {
    "forge": (
        "teacher", "sensitivity", "allocation",
        "drop_heads", "drop_blocks", "cut_embedding", "cut_tokens", "sequential",
    ),
    "heart": ("selection", "ratios", "gates"),
    "nuwa": ("purification", "cut_embedding"),
    "vulcan": ("collapse", "rank", "anchor", "anchor_update"),
}  # fmt: skip

# What a value needs beside it to decide anything.
BESIDE: dict[str, dict[str, Any]] = {
    "selection=percentile": {"token_ratio": 0.65},
    "token_weighting=felt": {"token_weight": 1.0},
}


def others(option: Option) -> tuple[str, ...]:
    """All that it may be beside its default; of a number nothing."""
    values = ("True", "False") if option.kind is bool else option.kind if isinstance(option.kind, tuple) else ()
    return tuple(value for value in values if value != option.default)


def cases(owner: str) -> Iterator[dict[str, str]]:
    """Settings in which every option takes each of its values once: the first of all of them together, and so on."""
    together = {option.name: others(option) for option in describe(owner).options}
    for name in ALONE.get(owner, ()):
        yield from ({name: value} for value in together.pop(name))
    for number in range(max(map(len, together.values()))):
        yield {name: values[number] for name, values in together.items() if number < len(values)}


CASES = [pytest.param(owner, case, id=f"{owner} {' '.join(f'{n}={v}' for n, v in case.items())}")
         for owner in (*method_names(), SUPERNET) for case in cases(owner)]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(("owner", "case"), CASES)
def test_every_value_of_every_option_derives_a_model(
    owner: str, case: dict[str, str], checkpoint: Path, tmp_path: Path
) -> None:
    options = {**QUICK.get(owner, {}), **case}
    for name, value in case.items():
        options |= BESIDE.get(f"{name}={value}", {})
    two_steps = {"steps": 2, "evaluations": 1}
    known = {option.name: option for option in describe(owner).options}
    if owner == SUPERNET:
        made = make_supernet(checkpoint, tmp_path / "m", training=two_steps, options=options)
        config = made.record.settings.more["options"]
    else:
        rate = 0.25 if owner == "heart" else 0.5  # it cuts no widths, and there are two blocks
        made = derive(checkpoint, tmp_path / "m", training=two_steps, options=options, method=owner, rate=rate)
        config = made.record.config
        assert rate <= made.model.spec.rate < rate + 0.1
        assert edgevit.load(tmp_path / "m")(torch.randn(2, 3, 32, 32)).isfinite().all()
    assert {name: config[name] for name in case} == {n: known[n].convert(owner, v) for n, v in case.items()}
