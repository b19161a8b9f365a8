"""No method touches an axis that the model's family says is frozen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_base import derive, write_checkpoint

from edgevit.derivation.methods import baseline_names, own_method_names
from edgevit.derivation.options import describe
from edgevit.errors import BudgetError, OptionError
from edgevit.network.cost import Geometry

pytestmark = pytest.mark.usefixtures("few_digits")

FEW = {"calibration_images": 16, "sensitivity_images": 8, "probes": 1, "mask_passes": 1, "purification": "none"}
OF_ATTENTION, OF_FFN = ("heads", "qk", "vo", "site", "block"), ("ffn", "site", "block")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.mark.quick("forge-axes0", "nuwa-axes4", "mdp-axes11", "taylor-axes14")
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        *((name, axes) for name in own_method_names() if name != "skd" for axes in (OF_ATTENTION, OF_FFN)),
        *((name, OF_ATTENTION) for name in baseline_names()),
        *((name, OF_FFN) for name in ("mdp", "taylor", "xpruner")),
    ],
)  # skd cuts no base
def test_frozen_axes_stay_as_they_are(
    name: str, axes: tuple[str, ...], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Geometry, "frozen", lambda self, block: dict.fromkeys(axes, "this test holds it"))
    known = {option.name for option in describe(name).options}
    options: dict[str, Any] = {option: value for option, value in FEW.items() if option in known}
    if "cut_embedding" in known:
        options["cut_embedding"] = False
    try:
        made = derive(checkpoint, tmp_path / "m", method=name, rate=0.15, options=options, training={"steps": 0})
    except (BudgetError, OptionError):
        assert name == "dcvit" or (name, axes[0]) == ("xpruner", "ffn"), "it has another axis to cut"
        return
    whole = made.model.spec.base.blocks
    assert len(made.model.spec.blocks) == len(whole) and made.model.spec.rate >= 0.15
    for block, base in zip(made.model.spec.blocks, whole, strict=True):
        if axes == OF_ATTENTION:
            assert (block.heads, block.qk, block.vo) == (base.heads, base.qk, base.vo)
        else:
            assert block.ffn == base.ffn
