"""What is NuWa's own: purification, the order in which neurons go, and the choice of widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from problems import assert_stages_are_narrowed
from small_base import ARGS, derive, write_checkpoint, write_cost_table

from edgevit.data.task import open_task
from edgevit.derivation.allocate.widths import Curve, energy_width, widths_by_error
from edgevit.derivation.cache import Cache
from edgevit.derivation.methods import load_method
from edgevit.derivation.methods.nuwa import purify as purify_module
from edgevit.derivation.methods.nuwa.purify import masks_applied, purify
from edgevit.derivation.problem import Problem, Stopwatch
from edgevit.derivation.solve.least_squares import refit, removal_in_order, removal_order
from edgevit.errors import BudgetError, DataError, OptionError
from edgevit.train.history import History
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

nuwa = load_method("nuwa")
UNTRAINED = {"steps": 0}
PASSES = open_passes(Training(device="cpu"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


# -- which neurons stay ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layer(small_vit: Any) -> Any:
    """An FFN and neurons of it that come in near copies, the most active ones above all."""
    block = small_vit().double().read()[0].ffn
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(3000, 64, generator=generator, dtype=torch.float64)
    h = torch.cat([source * scale for scale in (4.0, 3.0, 2.0, 1.0)], dim=1)
    h += 0.05 * torch.randn(3000, 256, generator=generator, dtype=torch.float64) + 0.3
    return block, h, h.mT @ h / len(h), h.mean(0)


def _error(block: Any, slim: Any, kept: torch.Tensor, h: torch.Tensor) -> float:
    before, after = h @ block.w2.mT + block.b2, h[:, kept] @ slim.w2.mT + slim.b2
    return float((before - after).square().sum(1).mean().detach())


def test_what_removal_is_said_to_cost_is_the_error_of_the_refit(layer: Any) -> None:
    block, h, second, mean = layer
    removal = removal_order(block.w2, second, mean, ridge=1e-9, share=256)
    for width in (40, 100, 200):
        kept = removal.remaining(width)
        slim = refit(block, kept, second, mean, "least_squares", ridge=1e-9)
        said = float(removal.cost[: 256 - width].sum())
        assert said == pytest.approx(_error(block, slim, kept, h), rel=1e-3)


def test_the_cost_of_a_given_order_agrees_with_that_of_the_order_found(layer: Any) -> None:
    block, _, second, mean = layer
    found = removal_order(block.w2, second, mean, share=256)
    given = removal_in_order(found.order, block.w2, second, mean)
    torch.testing.assert_close(found.cost, given.cost, rtol=1e-5, atol=1e-9)
    grouped = removal_order(block.w2, second, mean, share=4)  # members share the cost of their group
    given = removal_in_order(grouped.order, block.w2, second, mean)
    torch.testing.assert_close(grouped.cost[:64].sum(), given.cost[:64].sum(), rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(grouped.cost.sum(), given.cost.sum(), rtol=1e-5, atol=1e-9)


def test_of_near_copies_removal_keeps_one_each(layer: Any) -> None:
    block, h, second, mean = layer
    by_cost = removal_order(block.w2, second, mean).remaining(64)
    assert len(set((by_cost % 64).tolist())) == 64
    twice = torch.cat([torch.arange(0, 32), torch.arange(64, 96)])  # the larger two copies of half the sources
    errors = [_error(block, refit(block, kept, second, mean), kept, h) for kept in (by_cost, twice)]
    assert errors[0] < 0.1 * errors[1]


# -- widths ------------------------------------------------------------------------------------------------------------


def test_the_energy_rule_keeps_the_fewest_dimensions_that_hold_the_share() -> None:
    values = torch.tensor([[3.0, 2.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    # held by 1, 2, 3 dimensions: (9/14 + 1/4)/2, (13/14 + 1/2)/2, (1 + 3/4)/2
    assert [energy_width(values, share) for share in (0.4, 0.5, 0.72, 0.9, 1.0)] == [1, 2, 3, 4, 4]
    assert energy_width(torch.zeros(2, 4, dtype=torch.float64), 0.93) == 1


def test_widths_by_error_give_up_the_least_per_cost() -> None:
    flat, steep = torch.full((10,), 0.1), torch.tensor([0.9, 0.1, *[0.0] * 8])
    assert widths_by_error([Curve(flat, 1), Curve(steep, 1)])(0.45) == [9, 2]  # of equals the first goes
    assert widths_by_error([Curve(flat, 1), Curve(flat, 4)])(0.5) == [10, 4]  # 24 of 50: dear units first
    falling = [sum(widths_by_error([Curve(flat, 1), Curve(steep, 3)])(r / 20)) for r in range(21)]
    assert falling == sorted(falling, reverse=True) and (falling[0], falling[-1]) == (20, 0)


# -- purification ------------------------------------------------------------------------------------------------------


def test_purification_leaves_the_base_alone_and_is_no_worse_on_validation(
    small_vit: Any, digits_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, task = small_vit().with_columns(digits_task.base_columns), digits_task
    before = {name: value.clone() for name, value in network.state_dict().items()}
    training = Training(device="cpu", batch_size=16, steps=0)
    history = History(None, [{"stage": "purify", "step": 0, "accuracy_anchor": 2.0}])  # of an interrupted run
    problem = Problem(
        network, task, None, None, training, training, open_passes(training), Path(),
        history, Stopwatch(), Cache(None), {},
    )  # fmt: skip
    monkeypatch.setattr(purify_module, "WEIGHT_DECAY", 2.0)  # lets neurons go in so few steps
    monkeypatch.setattr(purify_module, "EVALUATIONS", 4)
    masks = purify(problem, 8, 8)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(p.requires_grad for p in network.parameters())
    assert all(set(m.unique().tolist()) <= {0.0, 1.0} for m in masks)
    seen = [line["accuracy_anchor"] for line in history.lines]
    assert len(seen) == 5 and history.lines[-1]["neurons_kept"] < 1
    best = max(seen)
    images, labels = next(task.validation.batches(len(task.validation)))
    with torch.no_grad(), masks_applied(network, masks):
        logits = network(images)[:, task.base_columns]
    assert float((logits.argmax(1) == labels).float().mean()) == pytest.approx(best)


@pytest.fixture(scope="module")
def digits_task() -> Any:
    preprocessing = {
        "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
        "mean": (0.5,) * 3, "std": (0.5,) * 3,
    }  # fmt: skip
    return open_task("digits", "1,4,7", preprocessing=preprocessing, base_outputs=10)


# -- the whole method --------------------------------------------------------------------------------------------------


def test_training_is_only_done_when_asked_for() -> None:
    assert nuwa.default_steps(nuwa.Config(), 0.6, 1000, 64) == 0
    assert nuwa.default_steps(nuwa.Config(finetune_epochs=3), 0.6, 1000, 64) == 48


@pytest.mark.quick("options0")
@pytest.mark.parametrize(
    "options", [{"as_published": True}, {"neurons": "random", "refit": False}, {"purification": "validated"}]
)
def test_every_choice_lands_on_the_budget(options: dict[str, Any], checkpoint: Path, tmp_path: Path) -> None:
    options = {"purification_steps": 4, **options}
    made = derive(checkpoint, tmp_path / "m", method="nuwa", training=UNTRAINED, options=options)
    assert 0.5 <= made.model.spec.rate < 0.52
    facts = made.record.facts
    assert facts.steps == 0 and isinstance(facts.more["purified"], bool)
    assert 0 <= facts.more["accuracy_validation"] <= 1 and facts.more["anchor_neurons"] <= 1
    if "as_published" in options:
        assert len({block.ffn for block in made.model.spec.blocks}) == 1, "FFNs are alike"


def test_as_published_replaces_the_options_that_are_not_given() -> None:
    published = nuwa.Config(as_published=True)
    assert (published.purification, published.purification_steps, published.purification_batch) == ("always", 10_000, 1)
    assert published.neurons == "activation" and nuwa.Config().purification_batch == 16
    ablated = nuwa.Config(as_published=True, purification="none", neurons="random")
    assert (ablated.purification, ablated.neurons, ablated.purification_steps) == ("none", "random", 10_000)


@pytest.mark.parametrize("as_published", [False, True])
def test_attention_alone_meets_a_budget_that_it_reaches(as_published: bool, checkpoint: Path, tmp_path: Path) -> None:
    options = {"purification": "none", "cut_ffn": False, "as_published": as_published}
    made = derive(checkpoint, tmp_path / "m", method="nuwa", rate=0.15, training=UNTRAINED, options=options)
    assert {block.ffn for block in made.model.spec.blocks} == {
        4 * ARGS["embed_dim"]
    } and 0.15 <= made.model.spec.rate < 0.17
    with pytest.raises(BudgetError, match=r"let more go \(nuwa.cut_ffn=true"):
        derive(checkpoint, tmp_path / "n", method="nuwa", rate=0.8, training=UNTRAINED, options=options)


def test_with_a_whole_head_other_classes_are_biased_away(checkpoint: Path, tmp_path: Path) -> None:
    made = derive(
        checkpoint, tmp_path / "m", method="nuwa", head="full", training=UNTRAINED, options={"purification": "none"}
    )
    logits = made.model(torch.randn(4, 3, 32, 32)).detach()
    assert logits.shape == (4, 10) and set(logits.argmax(1).tolist()) <= {3, 7, 9}
    assert float(logits[:, [0, 1, 2, 4, 5, 6, 8]].max()) < -50


def test_too_few_calibration_images_say_how_many_there_must_be(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"5 calibration images give 85 tokens.*needs 16 images.*calibration_images"):
        derive(checkpoint, tmp_path / "m", method="nuwa", options={"purification": "none", "calibration_images": 5})
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ridge": -1}, "nuwa.ridge -1 is not a finite number of at least 0"),
        ({"finetune_epochs": -1}, "nuwa.finetune_epochs -1 is not in"),
        ({"calibration_images": 0}, r"nuwa.calibration_images 0 is not in \[1, "),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        nuwa.Config(**options)


def test_a_base_without_biases_is_cut_too(tmp_path: Path) -> None:
    args = {**ARGS, "qkv_bias": False}
    made = derive(
        write_checkpoint(tmp_path, qkv_bias=False), tmp_path / "m", method="nuwa", model_args=args, training=UNTRAINED,
        options={"purification": "none"},
    )  # fmt: skip
    assert torch.isfinite(made.model(torch.randn(2, 3, 32, 32))).all()


@pytest.mark.parametrize(("as_published", "ms"), [(False, 1.6), (True, 0.8)])
def test_a_budget_in_milliseconds_is_met_by_the_table(
    checkpoint: Path, tmp_path: Path, as_published: bool, ms: float
) -> None:
    """As published, attention must become narrower than its energy asks for."""
    made = derive(
        checkpoint, tmp_path / "m", method="nuwa", rate=None, ms=ms, cost_table=write_cost_table(tmp_path),
        options={"purification": "none", "as_published": as_published}, training=UNTRAINED,
    )  # fmt: skip
    blocks = made.model.spec.blocks
    spent = 0.6 + sum(0.02 * b.heads * b.qk / 16 + b.ffn / 256 for b in blocks)
    assert made.record.budget.reached == pytest.approx(spent)
    assert ms - 8 / 256 < spent <= ms * (1 + 1e-9), "a step of the FFN is 0.03 ms"
    if as_published:
        assert max(b.qk for b in blocks) < 32


# -- the embedding -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_narrower_embedding_reaches_what_blocks_alone_do_not(checkpoint: Path, tmp_path: Path) -> None:
    options = {"calibration_images": 96, "purification": "none", "cut_embedding": True}
    given: dict[str, Any] = {"method": "nuwa", "rate": 0.8, "shape": "fused"}
    with pytest.raises(BudgetError, match="reaches no less"):
        derive(checkpoint, tmp_path / "n", training=UNTRAINED, **given)
    # The teacher's tokens are learnt through the change of basis.
    taught = {"steps": 2, "teacher": "restricted", "token_weight": 1.0}
    made = derive(checkpoint, tmp_path / "m", options=options, training=taught, **given)
    facts, width = made.record.facts.more, made.model.geometry.embed
    candidates = {candidate["width"]: candidate for candidate in facts["embed_widths"]}
    assert (
        64 not in candidates
        and width == facts["embed"] == min(candidates, key=lambda w: candidates[w]["measured_nats"]) < 64
    )
    assert 0.8 <= made.model.spec.rate < 0.82 and candidates[width]["slice_nats"] > 0


@pytest.mark.slow
def test_a_swin_of_few_directions_is_narrowed_in_all_of_its_stages(small_vit: Any, tmp_path: Path) -> None:
    """Its own widths lose several times as much; the embedding alone, to 48 channels, nothing."""

    def cut(problem: Problem, narrows: bool) -> Any:
        config = nuwa.Config(calibration_images=128, purification="none", cut_embedding=narrows)
        return nuwa.derive(problem, config)

    made = assert_stages_are_narrowed(cut, small_vit, 0.6, tmp_path)
    slices = {tried["width"]: tried["slice_nats"] for tried in made.facts["embed_widths"]}
    assert slices[made.network.geometry.embed] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("narrower", "ms"), [((), 2.0), ((32,), 0.6)])
def test_by_a_cost_table_the_embedding_is_as_narrow_as_that_lists(
    checkpoint: Path, tmp_path: Path, narrower: tuple[int, ...], ms: float
) -> None:
    """Blocks alone reach 0.74 ms."""
    made = derive(
        checkpoint, tmp_path / "m", method="nuwa", rate=None, ms=ms, cost_table=write_cost_table(tmp_path, narrower),
        options={"calibration_images": 32, "purification": "none", "cut_embedding": True}, training=UNTRAINED,
    )  # fmt: skip
    assert made.record.budget.reached <= ms * (1 + 1e-9)
    if narrower:
        assert made.model.geometry.embed == made.record.facts.more["embed"] in (32, 48)
    else:
        assert made.model.geometry.embed == 64 and "embed" not in made.record.facts.more
