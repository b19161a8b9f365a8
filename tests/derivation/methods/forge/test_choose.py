"""Which width is taken, and when tokens that leave are tried beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained
from small_base import derive, write_checkpoint

from edgevit.data.task import open_task
from edgevit.derivation.allocate.embedding import WidthCandidate
from edgevit.derivation.methods.forge import choose, solve
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.method import METHOD
from edgevit.network.model import describe

FEW: dict[str, Any] = {"calibration_images": 96, "sensitivity_images": 32}
MACS = 250_000  # of the small base's 1.8 M


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture
def made(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Derives where something is always worth a trial."""
    monkeypatch.setattr(choose, "LITTLE", 0.0)

    def make(name: str, **how: Any) -> Any:
        options = {**FEW, **how.pop("options", {})}
        given = {"rate": None, "macs": MACS, "shape": "fused", "training": {"steps": 0}, **how}
        return derive(checkpoint, tmp_path / name, method="forge", options=options, **given)

    return make


def test_a_width_that_was_measured_tells_by_how_much_the_sums_of_others_fall_short() -> None:
    shape = choose.ChosenShape([], 0.0)
    candidates = [
        WidthCandidate(64, shape, 0.03, 0.10),
        WidthCandidate(80, shape, 0.01, 0.16),
        WidthCandidate(48, shape, 0.17, 0.04),
    ]
    assert choose._seems_best(candidates, {}) == 0
    assert choose._seems_best(candidates, {0: 0.13}) == 0, "as predicted"
    assert choose._seems_best(candidates, {0: 0.65}) == 2, "6.2 times as much: 48 is expected to lose 0.42"
    assert (
        choose._seems_best(candidates, {0: 0.65, 2: 0.5}) == 2
        and choose._seems_best(candidates, {0: 0.65, 2: 0.9}) == 0
    )
    assert choose._seems_best(candidates, {0: 0.02}) == 1, "the sum was too high, and a wider one worth a measurement"


@pytest.mark.parametrize(("less", "clearly"), [([0.1, 0.2, 0.1, 0.2], True), ([0.4, -0.1, 0.4, -0.1], False)])
def test_losses_are_clearly_less_where_other_images_would_hardly_change_that(less: list[float], clearly: bool) -> None:
    others = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert choose._clearly_less(others - torch.tensor(less), others) == clearly
    assert not choose._clearly_less(others + 1, others) and not choose._clearly_less(others, others)


def test_the_whole_embedding_stays_where_other_neurons_make_up_for_those_removed(
    small_vit: Any, tmp_path: Path
) -> None:
    """Half of the neurons go without loss, a part of the embedding does not."""
    network = small_vit()
    with torch.no_grad():
        for block in network.module.blocks:
            for values in block.mlp.fc1.parameters():
                values[1::2] = values[::2]
        network.classifiers[0].weight.mul_(20)
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    facts: Any = METHOD.derive(untrained(base, task, 0.35, tmp_path), Config(**FEW)).facts
    whole, *narrower = facts["embed_widths"]
    assert facts["embed"] == whole["width"] == 64 and narrower
    assert whole["measured_nats"] < min(candidate["slice_nats"] for candidate in narrower)


@pytest.mark.slow
def test_the_whole_embedding_is_solved_beside_a_narrower_one(made: Any) -> None:
    more = made("m", options={"cut_tokens": "never"}).record.facts.more
    candidates = more.get("embed_widths", [{"width": 64, "measured_nats": 0.0}])
    first = min(candidates, key=lambda candidate: candidate["measured_nats"] or 1e9)["width"]
    others = [name for name in more["tried"] if name.startswith("embed ")]
    assert first == 64 or "embed 64" in others
    assert more["embed"] in {first, *(int(name.split()[1]) for name in others if more["tried"][name]["kept"])}


@pytest.mark.parametrize(("clearly", "leave"), [(100.0, True), (0.0, False)])
def test_tokens_leave_only_if_that_is_clearly_nearer_to_the_base(
    made: Any, monkeypatch: pytest.MonkeyPatch, clearly: float, leave: bool
) -> None:
    monkeypatch.setattr(solve, "CLEARLY", clearly)
    derivation = made("m")
    spec, more = derivation.model.spec, derivation.record.facts.more
    tried = more["tried"]["cut_tokens"]
    assert tried["kept"] == leave == any(block.tokens for block in spec.blocks) and ("tokens" in more) == leave
    assert tried["before"] > 0 and tried["after"] > 0 and spec.macs <= MACS
    assert more["tried"]["refit_head"]["before"] <= (tried["after"] if leave else tried["before"])


@pytest.mark.parametrize(
    "how",
    [
        {"options": {"cut_tokens": "never"}},
        {"macs": None, "params": "20k"},
    ],
)
def test_tokens_are_not_tried_where_they_are_to_stay_or_save_nothing_that_is_known(
    made: Any, how: dict[str, Any]
) -> None:
    assert "cut_tokens" not in made("m", **how).record.facts.more["tried"]


def test_where_little_is_lost_no_tokens_are_tried(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "LITTLE", float("inf"))
    assert made("m").record.facts.more["tried"] == {}
