"""The method forge: heads and blocks that go, budgets of every kind, and steps that can be taken away."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from problems import assert_stages_are_narrowed, untrained
from small_base import ARGS, derive, write_checkpoint, write_cost_table

import edgevit
from edgevit.cli.console import Console
from edgevit.data.task import open_task
from edgevit.derivation.measure.embedding import TokenStatistics
from edgevit.derivation.methods.forge import choose
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.methods.forge.curves import unpacked
from edgevit.derivation.methods.forge.method import METHOD, _make_curves
from edgevit.derivation.problem import Problem
from edgevit.derivation.solve.attention import keep_heads
from edgevit.errors import BudgetError
from edgevit.network.model import describe
from edgevit.records.model_folder import ModelFolder
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("few_digits")

UNTRAINED = {"steps": 0}
PASSES = open_passes(Training(device="cpu"))
FEW = {"calibration_images": 128, "sensitivity_images": 64}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


def test_blocks_and_heads_go_where_no_width_is_small_enough(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="reaches no less"):
        derive(checkpoint, tmp_path / "n", method="nuwa", rate=0.8, training=UNTRAINED)
    options = {**FEW, "cut_embedding": False}
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.8, options=options, training=UNTRAINED)
    kept = made.record.facts.kept_blocks
    assert kept == (0,) and len(made.model.spec.blocks) == 1 and made.model.spec.rate >= 0.8
    loaded = edgevit.load(tmp_path / "m")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), made.model(images))
    assert loaded.module.default_cfg is not None and len(loaded.blocks) == 1


@pytest.mark.slow
def test_a_swin_of_few_directions_is_narrowed_in_all_of_its_stages(small_vit: Any, tmp_path: Path) -> None:
    """Without that it loses several times as much."""

    def cut(problem: Problem, narrows: bool) -> Any:
        return METHOD.derive(problem, Config(**FEW, cut_embedding=narrows, refit_head=False))

    assert_stages_are_narrowed(cut, small_vit, 0.8, tmp_path)


def test_the_embedding_is_narrowed_where_that_loses_less(checkpoint: Path, tmp_path: Path) -> None:
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.8, options=FEW, training={"steps": 2})
    spec, more = made.model.spec, made.record.facts.more
    width = made.model.geometry.embed
    assert width == more["embed"] == spec.timm_args["embed_dim"] < 64 == spec.base.embed and width % 16 == 0
    assert spec.rate >= 0.8 and made.record.facts.kept_blocks == (0, 1), "no block has to go"
    candidates = {candidate["width"]: candidate for candidate in more["embed_widths"]}
    judged = {
        candidate["width"]: candidate["measured_nats"]
        for candidate in candidates.values()
        if candidate["measured_nats"] is not None
    }
    assert width == min(judged, key=judged.__getitem__, default=width), "the solved plan of least loss"
    (step,) = ModelFolder(tmp_path / "m").plan().steps
    assert step.embed == width
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(edgevit.load(tmp_path / "m")(images), made.model(images))
    again = edgevit.derive(
        tmp_path / "m", out=tmp_path / "n", data="digits", rate=0.3, options=FEW, accept_weak_base=True,
        training=Training(steps=0, device="cpu"),
    )  # fmt: skip
    assert again.model.spec.base.embed == width >= again.model.geometry.embed


@pytest.mark.quick("options0-*")
@pytest.mark.parametrize(
    ("options", "args", "said"),
    [
        ({"calibration_images": 2}, {}, "2 calibration images do not determine the directions of its tokens, 4 would"),
        ({}, {"pre_norm": True}, "a norm before the first block"),
        ({}, {"final_norm": False}, "no norm subtracts their mean before the head"),
    ],
)
def test_an_embedding_that_stays_says_why(
    options: dict[str, Any], args: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_checkpoint(tmp_path, **args)
    made = derive(
        base, tmp_path / "m", method="forge", model_args={**ARGS, **args}, options={**FEW, **options},
        training=UNTRAINED, progress=Console().progress,
    )  # fmt: skip
    assert f"the embedding stays as it is: {said}" in " ".join(capsys.readouterr().err.split())
    assert made.record.facts.more.get("embed", 64) == 64 == made.model.geometry.embed


def test_sites_go_alone_where_nothing_else_may(checkpoint: Path, tmp_path: Path) -> None:
    """Both blocks stay, and cost less than two whole ones at their smallest."""
    options = {**FEW, "drop_blocks": False, "drop_heads": False, "cut_embedding": False}
    with pytest.raises(BudgetError) as refused:
        derive(checkpoint, tmp_path / "n", method="forge", rate=0.85, options={**options, "drop_sites": False},
               training=UNTRAINED)  # fmt: skip
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.85, options=options, training=UNTRAINED)
    blocks = made.model.spec.blocks
    assert len(blocks) == 2 and any(not b.has("attention") or not b.has("ffn") for b in blocks)
    assert made.model.spec.macs <= 0.15 * made.model.spec.base.macs < refused.value.least
    loaded, images = edgevit.load(tmp_path / "m"), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), made.model(images))


def test_a_budget_below_everything_is_refused_with_what_can_be_reached(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"rate 0\.99 leaves .*, but forge in shape 'fused' reaches no less than"):
        derive(checkpoint, tmp_path / "m", method="forge", rate=0.99, options=FEW, training=UNTRAINED)
    assert list(tmp_path.iterdir()) == [], "nothing stands in the way of the same command with another budget"


def test_the_least_that_is_told_can_be_reached(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError) as refused:
        derive(checkpoint, tmp_path / "m", method="forge", rate=None, macs=1000, options=FEW, training=UNTRAINED)
    least = re.search(r"reaches no less than ([0-9.]+ k) MACs", str(refused.value))
    assert least is not None
    macs = 1.001 * float(least[1].split()[0]) * 1000  # as it is told, to four digits
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=None, macs=macs, options=FEW, training=UNTRAINED)
    assert made.model.spec.macs <= macs


@pytest.mark.quick("forge-missing0", "nuwa-missing3")
@pytest.mark.parametrize(
    ("method", "missing"),
    [
        ("forge", ["qkv_bias"]),
        ("forge", ["proj_bias"]),
        ("forge", ["qkv_bias", "proj_bias"]),
        ("nuwa", ["qkv_bias", "proj_bias"]),
    ],
)
def test_a_base_without_biases_keeps_its_budget_of_parameters(method: str, missing: list[str], tmp_path: Path) -> None:
    args = {**ARGS, **dict.fromkeys(missing, False)}
    base = write_checkpoint(tmp_path, **args)
    made = derive(
        base, tmp_path / "m", method=method, rate=None, params="60k", model_args=args, shape="free",
        options={"calibration_images": 128, **({"purification": "none"} if method == "nuwa" else {})},
        training=UNTRAINED,
    )  # fmt: skip
    assert sum(p.numel() for p in made.model.parameters()) == made.model.spec.params <= 60_000


@pytest.mark.slow
def test_the_classes_in_another_order_of_the_base_are_another_task(
    checkpoint: Path, tmp_path: Path, cache_home: Path
) -> None:
    """Nothing of the first, which read the base's outputs wrongly, may be taken for the second."""
    names = [str(i) for i in range(10)]
    given: dict[str, Any] = {"method": "forge", "options": FEW, "training": UNTRAINED}
    derive(checkpoint, tmp_path / "a", base_classes=names, **given)
    cached = derive(checkpoint, tmp_path / "b", base_classes=names[::-1], **given)
    fresh = derive(checkpoint, tmp_path / "c", base_classes=names[::-1], cache=False, **given)
    assert cached.record.facts.reused == ()
    assert cached.record.accuracy == fresh.record.accuracy
    for key, value in cached.model.state_dict().items():
        assert torch.equal(value, fresh.model.state_dict()[key])


@pytest.mark.slow
def test_a_second_budget_reuses_the_curves(checkpoint: Path, tmp_path: Path, cache_home: Path) -> None:
    """Also with another batch of the optimiser, and another number of images above that of all there are."""

    def made(name: str, rate: float, images: int, batch_size: int, **more: Any) -> Any:
        options = {**FEW, "calibration_images": images}
        training = {"steps": 0, "batch_size": batch_size}
        return derive(
            checkpoint, tmp_path / name, method="forge", rate=rate, options=options, training=training, **more
        )

    first, second = made("a", 0.5, 10_000, 24), made("b", 0.4, 20_000, 8)
    assert "curves" not in first.record.facts.reused
    assert {"curves", "streams"} <= set(second.record.facts.reused)
    assert "statistics" not in second.record.seconds
    again = made("c", 0.4, 20_000, 8, cache=False)
    for key, value in second.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"sequential": "false"},
        {"drop_heads": "false"},
        {"align": "false", "refit_head": "false"},
        {"drop_sites": "false"},
        {"cut_tokens": "never"},
    ],
    ids=str,
)
def test_each_step_can_be_taken_away(
    options: dict[str, str], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "LITTLE", 0.0)
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.45, options={**FEW, **options}, training=UNTRAINED)
    assert 0.45 <= made.model.spec.rate < 0.48
    if "drop_sites" in options:
        assert all(b.has("attention") and b.has("ffn") for b in made.model.spec.blocks)
    tried = {name for name in made.record.facts.more["tried"] if not name.startswith("embed ")}
    assert tried == {"refit_head", "cut_tokens"} - options.keys()
    if "drop_heads" in options:
        assert all(b.heads == 2 for b in made.model.spec.blocks)


def test_where_little_is_predicted_to_be_lost_nothing_is_mended(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str) -> dict[str, Any]:
        facts = derive(checkpoint, tmp_path / name, method="forge", rate=0.8, options=FEW, training=UNTRAINED)
        return facts.record.facts.more

    before = made("m")
    assert before["predicted_nats"] < choose.LITTLE and before["tried"] == {}
    monkeypatch.setattr(choose, "LITTLE", 0.0)
    assert set(made("n")["tried"]) >= {"refit_head", "cut_tokens"}


def test_a_head_that_puts_out_the_same_everywhere_is_priced_as_what_the_bias_cannot_make_up_for(
    small_vit: Any, tmp_path: Path
) -> None:
    """Its mean is worth much, and going it costs next to nothing: the output bias takes the mean over."""
    network = small_vit()
    with torch.no_grad():
        for block in network.module.blocks:
            block.norm1.weight.mul_(0.05)  # tokens differ little from
            block.norm1.bias.normal_()  # what they have in common
            block.attn.proj.weight.mul_(10)
    base = describe(network, "vit_tiny_patch16_224", {})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem = untrained(base, task, 0.5, tmp_path)
    made = _make_curves(problem, Config(calibration_images=64, sensitivity_images=64))
    tokens = TokenStatistics.pop_from(made)
    assert tokens is not None and tokens.directions[0].shape == (64, 63)
    curves = unpacked(made)
    images = torch.cat([batch for batch, _ in task.train.subset(64).batches(32)])
    whole = F.log_softmax(problem.network(images).double(), 1).detach()
    blocks = problem.network.read()
    for i, known in enumerate(curves):
        for head in range(2):
            fewer = keep_heads(blocks[i].attention, [1 - head], known.statistics.moment)
            changed = [replace(b, attention=fewer) if j == i else b for j, b in enumerate(blocks)]
            answers = F.log_softmax(problem.network.build(changed)(images).double(), 1).detach()
            measured = float(F.kl_div(answers, whole, log_target=True, reduction="batchmean"))
            assert measured / 3 < float(known.sensitivity.heads[head]) < measured * 3, (i, head)


def test_distillation_keeps_the_best_state_of_the_validation_part(checkpoint: Path, tmp_path: Path) -> None:
    made = derive(checkpoint, tmp_path / "m", method="forge", options=FEW)
    lines = [json.loads(line) for line in (tmp_path / "m" / "history.jsonl").read_text().splitlines()]
    looked = {line["step"]: line["loss_validation"] for line in lines if "loss_validation" in line}
    facts = made.record.facts
    assert looked[facts.kept_step] == min(looked.values()) and 0 in looked
    assert facts.more["loss_validation_before"] == looked[0]
    assert any("loss_teacher" in line for line in lines)


def test_a_budget_in_milliseconds_is_kept(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write_cost_table(tmp_path)
    made = derive(
        checkpoint, tmp_path / "m", method="forge", rate=None, ms=1.2, cost_table=table, options=FEW,
        training=UNTRAINED, progress=Console().progress,
    )  # fmt: skip
    reason = "the embedding stays as it is: the cost table lists no narrower one; `edgevit cost` measures them"
    assert reason in " ".join(capsys.readouterr().err.split())
    assert "embed" not in made.record.facts.more and made.model.geometry.embed == 64
    assert 1.0 < made.record.budget.reached <= 1.2 and made.record.budget.quantity == "ms"
    spent = 0.1 + sum(0.02 * b.heads * b.qk / 16 + b.ffn / 256 + 0.25 for b in made.model.spec.blocks)
    assert made.record.budget.reached == pytest.approx(spent), "a block that stays costs more than its sites"
    least = r"less than 0\.1313 ms \(rate 0\.\d+\): outside the blocks 0\.1 ms, FFN 0\.03125 ms; raise the budget"
    with pytest.raises(BudgetError, match=least):
        derive(checkpoint, tmp_path / "l", method="forge", rate=None, ms=0.11, cost_table=table, options=FEW)


@pytest.mark.slow
def test_a_budget_in_milliseconds_is_spent_on_the_embedding_as_far_as_the_table_lists_it(
    checkpoint: Path, tmp_path: Path
) -> None:
    table = write_cost_table(tmp_path, narrower=[32])
    given: dict[str, Any] = {"method": "forge", "rate": None, "cost_table": table, "training": UNTRAINED}
    made = derive(checkpoint, tmp_path / "m", ms=0.7, options={**FEW, "drop_blocks": False}, **given)
    candidates, width = made.record.facts.more["embed_widths"], made.model.geometry.embed
    assert {candidate["width"] for candidate in candidates} <= {32, 48, 64}, "16 is not listed"
    blocks = made.model.spec.blocks
    spent = 0.1 + sum(0.02 * b.heads * b.qk / 16 + b.ffn / 256 + 0.25 * bool(b.heads and b.ffn) for b in blocks)
    assert made.record.budget.reached == pytest.approx(spent * width / 64, rel=1e-6) and 0.6 < spent * width / 64 <= 0.7
    with pytest.raises(
        BudgetError, match=r"than 0\.06563 ms \(rate 0\.\d+\): outside the blocks 0\.05 ms, FFN 0\.01562 ms;"
    ):
        derive(checkpoint, tmp_path / "l", ms=0.06, options=FEW, **given)


def test_too_few_images_are_told_with_the_number_that_would_do(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**FEW, "calibration_images": 4}
    for name in ("made", "cached"):
        progress = Console(quiet=True).progress
        derive(checkpoint, tmp_path / name, method="forge", options=options, training=UNTRAINED, progress=progress)
        warning = "warning: 4 calibration images do not determine the widest layer, 16 would"
        told = capsys.readouterr().err
        assert f"{warning}: the ridge decides the rest; give --set forge.calibration_images=16" in told
        few = "those of 4 images; with 128 a narrower one loses less: give --set forge.calibration_images=128"
        assert few in " ".join(told.split())
