"""Every value of every option of every method, and of a super-network, derives a model once."""

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
    "wanda": {"calibration_images": 32},
    "vulcan": {"calibration_images": 32},
    SUPERNET: {"epochs": 1},
}


def values(option: Option) -> tuple[str, ...]:
    """All that it may be; of a number, its default."""
    if option.kind is bool:
        return ("True", "False")
    return option.kind if isinstance(option.kind, tuple) else (option.default,)


CASES = [
    (owner, option.name, value)
    for owner in (*method_names(), SUPERNET)
    for option in describe(owner).options
    for value in values(option)
    if value != option.default
]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(("owner", "name", "value"), CASES)
def test_every_value_of_every_option_derives_a_model(
    owner: str, name: str, value: str, checkpoint: Path, tmp_path: Path
) -> None:
    options = {**QUICK.get(owner, {}), name: value}
    two_steps = {"steps": 2, "evaluations": 1}
    (option,) = (o for o in describe(owner).options if o.name == name)
    if owner == SUPERNET:
        made = make_supernet(checkpoint, tmp_path / "m", training=two_steps, options=options)
        config = made.record.settings.more["options"]
    else:
        rate = 0.25 if owner == "heart" else 0.5  # it cuts no widths, and there are two blocks
        made = derive(checkpoint, tmp_path / "m", training=two_steps, options=options, method=owner, rate=rate)
        config = made.record.config
        assert rate <= made.model.spec.rate < rate + 0.1
        assert edgevit.load(tmp_path / "m")(torch.randn(2, 3, 32, 32)).isfinite().all()
    assert config[name] == option.convert(owner, value)
