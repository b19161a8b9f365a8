"""Every value of every option of every method, and of a super-network, derives a model once, many of them together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import derive, make_supernet, write_checkpoint

import edgevit
from edgevit.derivation.methods import method_names
from edgevit.derivation.options import SUPERNET, MethodOption, describe

pytestmark = pytest.mark.usefixtures("own_cache")

# Fewer images and steps than anybody would take; what is not here is as by default.
QUICK: dict[str, dict[str, Any]] = {
    "corp": {"calibration_images": 32},
    "forge": {"calibration_images": 32, "sensitivity_images": 16},
    "heart": {"calibration_images": 8, "probes": 1},
    "mdp": {"calibration_images": 32},
    "nuwa": {"calibration_images": 32, "purification_steps": 2, "purification": "always"},
    "nvit": {"calibration_images": 32},
    "snapvit": {"calibration_images": 8, "generations": 1},
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
        "drop_heads", "drop_blocks", "cut_embedding", "cut_tokens", "sequential",
    ),
    "heart": ("as_published", "selection", "ratios", "gates"),
    "nuwa": ("as_published", "purification", "cut_embedding", "cut_ffn"),
    "vulcan": ("collapse", "rank", "as_published"),
}  # fmt: skip

# What a value needs beside it to decide anything.
BESIDE: dict[str, dict[str, Any]] = {
    "selection=percentile": {"token_ratio": 0.65},
}

# What reaches no half of the two blocks: heart cuts no widths, and attention is less than half of a block.
RATES = {"heart": 0.25, "nuwa cut_ffn=False": 0.15}


def others(option: MethodOption) -> tuple[str, ...]:
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.mark.slow
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
        asked = " ".join([owner, *(f"{name}={value}" for name, value in case.items())])
        rate = RATES.get(asked, RATES.get(owner, 0.5))
        made = derive(checkpoint, tmp_path / "m", training=two_steps, options=options, method=owner, rate=rate)
        config = made.record.config
        assert rate <= made.model.spec.rate < rate + 0.1
        assert edgevit.load(tmp_path / "m")(torch.randn(2, 3, 32, 32)).isfinite().all()
    assert {name: config[name] for name in case} == {n: known[n].convert(owner, v) for n, v in case.items()}


def test_vulcans_rule_says_how_many_steps_where_none_are_given(checkpoint: Path, tmp_path: Path) -> None:
    """At rate 0.01 it is 6250 * 0.0001 + 1250 * 0.01."""
    training = {"steps": None, "batch_size": 24, "evaluations": 1}
    options = {"calibration_images": 32}
    made = derive(checkpoint, tmp_path / "m", rate=0.01, classes="3,7", training=training, options=options)
    assert made.record.facts.steps == 13


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "rate", "shape", "beside", "goes"),
    [
        ("drop_heads", 0.85, "free", {"cut_embedding": False}, lambda spec: any(b.heads < 2 for b in spec.blocks)),
        ("drop_blocks", 0.92, "fused", {}, lambda spec: len(spec.blocks) < 2),
        ("cut_embedding", 0.8, "fused", {}, lambda spec: spec.timm_args["embed_dim"] < 64),
    ],
)
def test_what_forge_may_let_go_goes_where_most_is_to_go_and_else_stays(
    option: str, rate: float, shape: str, beside: dict[str, Any], goes: Any, checkpoint: Path, tmp_path: Path
) -> None:
    """At the sweep's rate it would stay either way."""
    for may in (True, False):
        options = {**QUICK["forge"], **beside, option: may}
        how: dict[str, Any] = {"method": "forge", "rate": rate, "shape": shape, "training": {"steps": 0}}
        made = derive(checkpoint, tmp_path / str(may), options=options, **how)
        assert goes(made.model.spec) == may
