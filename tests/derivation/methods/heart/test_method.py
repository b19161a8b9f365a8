"""HEART before and after other methods, what it says of its choice, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import untrained
from small_base import ARGS, NAME, derive, write_checkpoint

import edgevit
from edgevit.data.task import open_task
from edgevit.derivation.methods.heart.method import Config, _candidates, default_steps
from edgevit.derivation.methods.heart.scores import HessianScores
from edgevit.errors import BudgetError, EdgeVitError, OptionError
from edgevit.network.model import describe
from edgevit.progress import Silent
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("few_digits")

FEW = {"calibration_images": 8, "probes": 1}
FORGE = {"calibration_images": 32, "sensitivity_images": 16}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"), depth=3, num_heads=4)


def made(checkpoint: Path, out: Path, rate: float, method: str = "heart", **given: Any) -> Any:
    options = {"training": {"steps": 2}, "cache": False, "options": FEW if method == "heart" else FORGE, **given}
    size = {**ARGS, "depth": 3, "num_heads": 4}
    return derive(checkpoint, out, method=method, rate=rate, model_args=size, **options)


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(made(checkpoint, tmp_path_factory.mktemp("m") / "m", 0.2).folder)


@pytest.mark.slow
def test_a_choice_is_told_with_what_it_is_predicted_to_lose(folder: Path) -> None:
    files = ModelFolder(folder)
    record, spec, plan = files.derivation(), files.spec(), files.plan()
    assert record is not None and plan is not None
    told = record.facts.more
    assert record.facts.kept_step is not None and told["accuracy_validation_cut"] >= 0
    assert told["tokens"][0] == 17 and told["tokens"][-1] < 17 and told["predicted_nats"] >= 0
    assert [len(heads) for heads in told["kept_heads"]] == [b.heads for b in spec.blocks]
    assert len(told["spearman"]) == 2 and all(-1 <= r <= 1 for r in told["spearman"])
    assert [b.tokens for b in plan.steps[0].blocks] == [b.tokens for b in spec.blocks]
    assert "Plain timm cannot express it: tokens leave after some blocks" in (folder / "README.md").read_text()
    report = edgevit.export(folder, fp16=False, accuracy=False)
    assert report.files["model.fp32.onnx"].nodes["TopK"] == sum(b.tokens > 0 for b in spec.blocks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "method", "options"),
    [
        ("forge", "heart", FEW),
        ("heart", "forge", {**FORGE, "sequential": False}),
        ("heart", "vulcan", {"calibration_images": 32}),
        ("heart", "nuwa", {"calibration_images": 32, "purification": "none"}),
    ],
)
def test_tokens_leave_before_or_after_another_method_cuts(
    first: str, method: str, options: dict[str, Any], folder: Path, checkpoint: Path, tmp_path: Path
) -> None:
    base = folder
    if first == "forge":
        base = made(checkpoint, tmp_path / "base", 0.2, first, options={**FORGE, "cut_tokens": "never"}).folder
    given: dict[str, Any] = {"classes": "3,7,9", "data": "digits", "accept_weak_base": True, "cache": False}
    derived = edgevit.derive(
        base, out=tmp_path / "m", method=method, rate=0.4, options=options, steps=2, device="cpu", **given
    )
    plan = ModelFolder(tmp_path / "m").plan()
    assert plan is not None and [step.method for step in plan.steps] == [first, method]
    spec, images = derived.model.spec, torch.randn(2, 3, 32, 32)
    assert any(b.tokens for b in spec.blocks) and spec.macs <= 0.6 * ModelFolder(base).spec().macs
    torch.testing.assert_close(edgevit.load(tmp_path / "m")(images), derived.model(images))


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("heart", FEW, "heart removes tokens, and this base has removed some already; derive from the model"),
        ("mdp", {}, r"mdp measures blocks that all tokens pass .*; cut with mdp first, then derive .* --method heart$"),
        ("dcvit", {}, r"dcvit measures blocks that all tokens pass .*; cut with dcvit first, .* --method heart$"),
        ("forge", FORGE, r"forge\.sequential=true compares .*derive .* --method heart, or use --set"),
    ],
)
def test_a_model_that_tokens_leave_is_refused_with_the_order_that_would_do(
    method: str, options: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    given = {"classes": "3,7,9", "data": "digits", "rate": 0.3, "accept_weak_base": True, "cache": False}
    with pytest.raises(OptionError, match=said) as refusal:
        edgevit.derive(folder, out=tmp_path / "m", method=method, options=options, **given)
    assert "\n" not in str(refusal.value)


def test_a_super_network_and_a_cost_table_are_of_all_tokens(folder: Path, tmp_path: Path) -> None:
    for ask in (
        lambda: edgevit.supernet(folder, out=tmp_path / "n", data="digits", rate=0.4, accept_weak_base=True),
        lambda: edgevit.cost(folder, output=tmp_path / "c.json"),
    ):
        with pytest.raises(EdgeVitError, match=r"tokens pass through all of its blocks, and block \d"):
            ask()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"selection": "percentile", "token_ratio": 1.0}, r"heart\.token_ratio 1 is not in \[0, 1\)"),
        ({"selection": "percentile", "head_ratio": -0.1}, r"heart\.head_ratio -0\.1 is not in \[0, 1\)"),
        ({"token_ratio": 0.2}, "not for selection=macs; add --set heart.selection=percentile"),
        ({"gamma_first": 0.0}, r"heart\.gamma_first 0 is not a finite number above 0"),
        ({"probes": 0}, r"heart\.probes 0 is not in \[1, "),
        ({"gamma_last": 0.5}, r"gamma_last=0\.5 is below gamma_first=1"),
        ({"finetune_epochs": -1}, "finetune_epochs -1 is not in"),
    ],
)
def test_impossible_options_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as refusal:
        Config(**options)
    assert "\n" not in str(refusal.value)


def test_ratios_that_leave_too_few_heads_or_too_many_macs_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    ratios = {"selection": "percentile", "ratios": "uniform", "head_ratio": 0.9}
    with pytest.raises(OptionError, match=r"leaves 1 of the 4 heads of block 0, and shape 'fused' needs 2"):
        made(checkpoint, tmp_path / "m", 0.2, options={**FEW, **ratios})
    ratios = {"selection": "percentile", "ratios": "uniform", "token_ratio": 0.1}
    with pytest.raises(BudgetError, match=r"heart\.token_ratio=0\.1 and head_ratio=0 leaves .*rate 0\.2 asks for"):
        made(checkpoint, tmp_path / "n", 0.2, options={**FEW, **ratios})


def test_a_share_of_heads_that_cannot_be_had_is_told_with_the_one_that_is(checkpoint: Path, tmp_path: Path) -> None:
    class Told(Silent):
        said = ""

        def warn(self, text: str) -> None:
            self.said += text * ("head_ratio" in text)

    ratios, told = {"selection": "percentile", "token_ratio": 0.1, "head_ratio": 0.9}, Told()
    derived = made(
        checkpoint, tmp_path / "m", 0.01, training={"steps": 0}, options={**FEW, **ratios}, shape="paper", progress=told
    )
    gone = 12 - sum(map(len, derived.record.facts.more["kept_heads"]))
    assert told.said.startswith(f"heart.head_ratio=0.9 asks to remove 10 of 12 heads; {gone} are removed, a share of")
    assert gone < 10


@pytest.mark.slow
def test_shut_gates_compare_the_tokens_that_the_cut_model_does(checkpoint: Path, tmp_path: Path) -> None:
    losses = {}
    for gates in ("soft", "hard"):
        shut = {**FEW, "gates": gates, "gamma_first": 1e7, "gamma_last": 1e7}
        training = {"steps": 2, "teacher": "restricted", "token_weight": 1.0}
        out = tmp_path / gates
        blocks = made(checkpoint, out, 0.2, options=shut, training=training).model.spec.blocks
        assert sum(b.tokens > 0 for b in blocks)
        lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
        losses[gates] = next(line["loss_tokens"] for line in lines if "loss_tokens" in line)
    assert losses["soft"] == pytest.approx(losses["hard"], rel=1e-3)


def test_tokens_are_not_compared_where_none_always_stays(tmp_path: Path) -> None:
    pooled = {**ARGS, "depth": 3, "class_token": False, "global_pool": "avg"}
    given = {"method": "heart", "rate": 0.2, "model_args": pooled, "cache": False, "options": FEW}
    taught = {"steps": 1, "teacher": "restricted"}
    checkpoint = write_checkpoint(tmp_path, **pooled)
    with pytest.raises(OptionError, match=r"it has no token that always remains to be compared; set --token-weight 0$"):
        derive(checkpoint, tmp_path / "m", training={**taught, "token_weight": 1.0}, **given)
    derive(checkpoint, tmp_path / "n", training=taught, **given)


@pytest.mark.parametrize(
    "pool", [{"global_pool": "max"}, {"global_pool": "avgmax"}, {"global_pool": "avg", "pool_include_prefix": True}]
)
def test_soft_gates_are_refused_where_the_head_takes_no_mean_of_patches(tmp_path: Path, pool: dict[str, Any]) -> None:
    given = {"method": "heart", "rate": 0.2, "model_args": {**ARGS, "depth": 3, **pool}, "cache": False}
    checkpoint = write_checkpoint(tmp_path, depth=3, **pool)
    with pytest.raises(OptionError, match=r"heart\.gates=soft is for a head that .*; add --set heart\.gates=hard$"):
        derive(checkpoint, tmp_path / "m", options=FEW, **given)
    if "pool_include_prefix" in pool:
        hard = derive(checkpoint, tmp_path / "n", options={**FEW, "gates": "hard"}, training={"steps": 1}, **given)
        assert any(b.tokens for b in hard.model.spec.blocks)


def test_as_published_tokens_are_scored_by_position_and_removed_by_ratios(small_vit: Any, tmp_path: Path) -> None:
    assert Config(as_published=True).selection == "percentile"
    base = describe(small_vit(depth=3), NAME, {"depth": 3})
    task = open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)
    problem, placed = untrained(base, task, 0.2, tmp_path), torch.rand(2, 16).double()
    scores = HessianScores(placed + 1, placed, (torch.rand(2).double(),) * 3, torch.zeros(2).double())
    assert _candidates(problem, Config(), scores).token_scores == (placed + 1).tolist()
    published = _candidates(problem, Config(as_published=True), scores)
    assert published.token_scores == placed.sort(dim=1).values.tolist()


def test_steps_are_passes_over_the_images() -> None:
    assert default_steps(Config(), 0.5, 1000, 64) == 1600 and default_steps(Config(finetune_epochs=0), 0.5, 9, 4) == 0
