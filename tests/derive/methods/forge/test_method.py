"""What is forge's own: menus, the sequential closed form, heads and blocks that go."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_base import ARGS, derive, write_checkpoint

import edgevit
from edgevit.cli.console import Console
from edgevit.data.task import open_task
from edgevit.derive import load_method
from edgevit.derive.algebra.attention import keep_heads
from edgevit.derive.allocate.menus import Heads, attention_menu, ffn_menu, tails
from edgevit.derive.allocate.policy import make_policy
from edgevit.derive.measure.sensitivity import Sensitivity
from edgevit.derive.methods.forge import sequential
from edgevit.derive.methods.forge.sequential import solve_in_sequence
from edgevit.errors import BudgetError, OptionError, OutputError
from edgevit.models.anatomy import Block, BlockDims
from edgevit.models.checkpoint import describe
from edgevit.models.families import vit
from edgevit.models.slim import bare_copy
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

UNTRAINED = {"steps": 0}
PASSES = open_passes(Training(device="cpu"))
FEW = {"calibration_images": 128, "sensitivity_images": 64}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def task(small_vit: Any) -> Any:
    preprocessing = describe(small_vit(), "vit_tiny_patch16_224", {}).preprocessing
    return open_task("digits", "3,7,9", preprocessing=preprocessing, base_outputs=10)


@pytest.fixture(scope="module")
def network(small_vit: Any) -> Any:
    """A small random ViT whose modules put out enough to be felt."""
    made = small_vit()
    with torch.no_grad():
        for block in made.blocks:
            block.attn.proj.weight.mul_(3)
            block.mlp.fc2.weight.mul_(3)
        made.head.weight.mul_(5)
    return made.eval()


def _images(task: Any, count: int = 128) -> torch.Tensor:
    return torch.cat([batch for batch, _ in task.train.subset(count).batches(32)])


# -- menus -------------------------------------------------------------------------------------------------------------


def _sensitivity(heads: list[float]) -> Sensitivity:
    generator = torch.Generator().manual_seed(0)
    falling = torch.rand(len(heads), 32, generator=generator, dtype=torch.float64).sort(-1, descending=True).values
    nothing = torch.zeros(1)
    return Sensitivity(falling / 100, falling / 50, torch.tensor(heads).double(), nothing, nothing, nothing)


def test_tails_are_what_is_lost_at_each_width() -> None:
    assert tails(torch.tensor([[3.0, 2.0, 1.0]])).tolist() == [[6.0, 3.0, 1.0, 0.0]]


def test_the_head_that_loses_least_goes_first_and_two_stay_where_attention_is_to_be_fused() -> None:
    felt = _sensitivity([5.0, 1.0, 9.0, 7.0])
    dims = BlockDims(4, 32, 32, 64)
    menu = attention_menu(dims, felt, make_policy("fused"), lambda h, q, v: 1000 * h + q + v, drop_heads=True)
    assert {len(c.value.heads) for c in menu} == {2, 3, 4}
    whole = next(c for c in menu if c.value == Heads((0, 1, 2, 3), 32, 32))
    assert whole.loss == 0
    (without_one,) = (c for c in menu if len(c.value.heads) == 3 and c.value.qk == 32)
    assert without_one.value.heads == (0, 2, 3) and without_one.loss == pytest.approx(1.0)
    (narrow,) = (c for c in menu if len(c.value.heads) == 4 and c.value.qk == 16)
    assert narrow.loss == pytest.approx(float(felt.qk[:, 16:].sum() + felt.vo[:, 16:].sum()))
    free = attention_menu(dims, felt, make_policy("free"), _sizes, drop_heads=True)
    assert {len(c.value.heads) for c in free} == {1, 2, 3, 4}
    assert {len(c.value.heads) for c in attention_menu(dims, felt, make_policy("paper"), _sizes, drop_heads=False)} == {
        4
    }


def _sizes(heads: int, qk: torch.Tensor, vo: torch.Tensor) -> torch.Tensor:
    return heads * (qk + vo)


def test_a_menu_has_all_that_nothing_beats_and_nothing_else() -> None:
    torch.manual_seed(0)
    felt, dims = _sensitivity([5.0, 1.0, 9.0, 7.0]), BlockDims(4, 32, 32, 64)
    felt = replace(felt, qk=torch.rand(4, 32).double(), vo=torch.rand(4, 32).double())
    menu = attention_menu(dims, felt, make_policy("free"), _sizes, drop_heads=True)
    assert [c.cost for c in menu] == sorted({c.cost for c in menu}) and 20 < len(menu) < 300
    assert [c.loss for c in menu] == sorted({c.loss for c in menu}, reverse=True)
    lost = {(q, v): felt.qk[:, q:].sum(1) + felt.vo[:, v:].sum(1) for q in range(1, 33) for v in range(1, 33)}
    for (q, v), narrower in lost.items():
        saved = (felt.heads - narrower).sort(descending=True).values
        for heads in range(1, 5):
            loss = max(float(felt.heads.sum() - saved[:heads].sum()), 0.0)
            assert any(c.cost <= heads * (q + v) and c.loss <= loss + 1e-12 for c in menu)


def test_an_ffn_loses_what_the_neurons_that_go_cost() -> None:
    menu = ffn_menu(torch.arange(1.0, 33.0), make_policy("fused"), lambda w: 10.0 * w)
    assert [(c.value, c.cost, c.loss) for c in menu] == [
        (8, 80.0, float(sum(range(1, 25)))), (16, 160.0, float(sum(range(1, 17)))),
        (24, 240.0, float(sum(range(1, 9)))), (32, 320.0, 0.0),
    ]  # fmt: skip


# -- sequential closed form --------------------------------------------------------------------------------------------


def _solve(base: Any, slim: Any, kept: list[int], task: Any, ridge: float = 1e-4) -> None:
    even = [(torch.ones(17).double(), torch.ones(17).double())] * len(base.blocks)
    solve_in_sequence(base, slim, kept, task.train.subset(128), even, PASSES, ridge=ridge)


def test_a_network_that_lost_nothing_is_left_as_it_is(network: Any, task: Any) -> None:
    same, images = bare_copy(network), _images(task, 32)
    _solve(network, same, [0, 1], task)
    torch.testing.assert_close(same(images), network(images), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_later_blocks_mend_what_earlier_ones_lost(network: Any, task: Any) -> None:
    damaged, images = bare_copy(network), _images(task, 64)
    generator = torch.Generator().manual_seed(0)
    ffn = vit.read(damaged)[0].ffn
    ffn.w1[::2] = 0.05 * torch.randn(ffn.w1[::2].shape, generator=generator)
    wanted = network.forward_features(images)
    before = float((damaged.forward_features(images) - wanted).square().mean())
    _solve(network, damaged, [0, 1], task)
    assert float((damaged.forward_features(images) - wanted).square().mean()) < 0.5 * before


@torch.no_grad()
def test_tokens_that_would_not_fit_into_memory_lie_in_files(
    network: Any, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, spilt = bare_copy(network), bare_copy(network)
    for slim in (held, spilt):
        vit.read(slim)[0].ffn.w1[::2] *= 0.1
    _solve(network, held, [0, 1], task)
    monkeypatch.setattr(sequential, "IN_MEMORY_BYTES", 40_000)  # of 17 * 64 values an image: some batches of both
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = []
    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *a: made.append(a[2]) or allocate(*a))
    _solve(network, spilt, [0, 1], task)
    assert 0 < len(made) <= 8 and sum(made) >= 2 * 128 * 17 * 64 * 4 - 40_000
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    for name, value in held.state_dict().items():
        assert torch.equal(value, spilt.state_dict()[name])

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left on device"):
        _solve(network, spilt, [0, 1], task)


@torch.no_grad()
def test_a_block_takes_over_what_it_can_of_those_dropped_after_it(network: Any, task: Any) -> None:
    shorter, images = bare_copy(network), _images(task, 64)
    vit.keep_blocks(shorter, [0])
    wanted = network.forward_features(images)
    before = float((shorter.forward_features(images) - wanted).square().mean())
    _solve(network, shorter, [0], task)
    assert float((shorter.forward_features(images) - wanted).square().mean()) < 0.7 * before


@torch.no_grad()
def test_what_dropped_heads_put_out_on_average_stays_in_the_bias(network: Any) -> None:
    first, second = vit.read(network)
    x = torch.ones(1, 5, 64) * torch.randn(64, generator=torch.Generator().manual_seed(0))  # all tokens alike
    token = torch.cat([x[0, 0], torch.ones(1)]).double()
    fewer = keep_heads(first.attention, [1], torch.outer(token, token))
    rest = vit.build(network, [Block(fewer, first.ffn), second])
    torch.testing.assert_close(rest.blocks[0].attn(x), network.blocks[0].attn(x), atol=1e-5, rtol=1e-5)


# -- the method --------------------------------------------------------------------------------------------------------


def test_blocks_and_heads_go_where_no_width_is_small_enough(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="reaches no less"):
        derive(checkpoint, tmp_path / "n", method="nuwa", rate=0.8, training=UNTRAINED)
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.8, options=FEW, training=UNTRAINED)
    kept = made.record.facts.kept_blocks
    assert kept == (0,) and len(made.model.spec.blocks) == 1 and made.model.spec.rate >= 0.8
    loaded = edgevit.load(tmp_path / "m")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(images), made.model(images))
    assert loaded.network.default_cfg is not None and len(loaded.network.blocks) == 1


def test_a_budget_below_everything_is_refused_with_what_can_be_reached(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"rate 0\.99 is less than forge reaches in shape 'fused': .* at the least"):
        derive(checkpoint, tmp_path / "m", method="forge", rate=0.99, options=FEW, training=UNTRAINED)
    assert list(tmp_path.iterdir()) == [], "nothing stands in the way of the same command with another budget"


def test_the_least_that_is_told_can_be_reached(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError) as refused:
        derive(checkpoint, tmp_path / "m", method="forge", rate=None, macs=1000, options=FEW, training=UNTRAINED)
    least = re.search(r": ([0-9.]+ k) MACs at the least", str(refused.value))
    assert least is not None
    macs = 1.001 * float(least[1].split()[0]) * 1000  # as it is told, to four digits
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=None, macs=macs, options=FEW, training=UNTRAINED)
    assert made.model.spec.macs <= macs


@pytest.mark.parametrize("method", ["forge", "nuwa"])
@pytest.mark.parametrize("missing", [["qkv_bias"], ["proj_bias"], ["qkv_bias", "proj_bias"]], ids="+".join)
def test_a_base_without_biases_keeps_its_budget_of_parameters(method: str, missing: list[str], tmp_path: Path) -> None:
    args = {**ARGS, **dict.fromkeys(missing, False)}
    base = write_checkpoint(tmp_path, **args)
    made = derive(
        base, tmp_path / "m", method=method, rate=None, params="60k", model_args=args, shape="free",
        options={"calibration_images": 128, **({"purification": "none"} if method == "nuwa" else {})},
        training=UNTRAINED,
    )  # fmt: skip
    assert sum(p.numel() for p in made.model.network.parameters()) == made.model.spec.params <= 60_000


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
    for key, value in cached.model.network.state_dict().items():
        assert torch.equal(value, fresh.model.network.state_dict()[key])


def test_a_second_budget_reuses_the_curves(checkpoint: Path, tmp_path: Path, cache_home: Path) -> None:
    options = {**FEW, "calibration_images": 96}
    first = derive(checkpoint, tmp_path / "a", method="forge", rate=0.5, options=options, training=UNTRAINED)
    second = derive(checkpoint, tmp_path / "b", method="forge", rate=0.4, options=options, training=UNTRAINED)
    assert "curves" not in first.record.facts.reused and "curves" in second.record.facts.reused
    assert "statistics" not in second.record.seconds
    again = derive(
        checkpoint, tmp_path / "c", method="forge", rate=0.4, options=options, training=UNTRAINED, cache=False
    )
    for key, value in second.model.network.state_dict().items():
        torch.testing.assert_close(value, again.model.network.state_dict()[key], msg=key)


def test_another_batch_of_the_optimiser_finds_the_curves_again(checkpoint: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "forge", "options": {**FEW, "calibration_images": 112}}
    for size in (24, 8, 3):
        made = derive(checkpoint, tmp_path / str(size), training={"steps": 0, "batch_size": size}, **given)
        assert ("curves" in made.record.facts.reused) == (size != 24)


@pytest.mark.parametrize(
    "options",
    [
        {"sensitivity": "none"},
        {"allocation": "uniform"},
        {"allocation": "vulcan"},
        {"sequential": "false"},
        {"drop_heads": "false"},
    ],
    ids=str,
)
def test_each_step_can_be_taken_away(options: dict[str, str], checkpoint: Path, tmp_path: Path) -> None:
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.45, options={**FEW, **options}, training=UNTRAINED)
    assert 0.45 <= made.model.spec.rate < 0.48
    if "sensitivity" in options:
        assert "sensitivity" not in made.record.seconds, "no gradient is taken"
    if "drop_heads" in options or "allocation" in options:
        assert all(b.heads == 2 for b in made.model.spec.blocks)


def test_vulcans_allocation_is_vulcans(checkpoint: Path, tmp_path: Path) -> None:
    """Where no token counts more than another, as without gradients."""
    options = {**FEW, "allocation": "vulcan", "sensitivity": "none"}
    made = derive(checkpoint, tmp_path / "m", method="forge", rate=0.45, options=options, training=UNTRAINED)
    options = {"calibration_images": FEW["calibration_images"]}
    theirs = derive(checkpoint, tmp_path / "v", method="vulcan", rate=0.45, options=options, training=UNTRAINED)
    assert made.model.spec.blocks == theirs.model.spec.blocks
    assert len({b.ffn for b in made.model.spec.blocks}) > 1


def test_distillation_keeps_the_best_state_of_the_validation_part(checkpoint: Path, tmp_path: Path) -> None:
    made = derive(checkpoint, tmp_path / "m", method="forge", options=FEW)
    lines = [json.loads(line) for line in (tmp_path / "m" / "history.jsonl").read_text().splitlines()]
    looked = {line["step"]: line["loss_validation"] for line in lines if "loss_validation" in line}
    facts = made.record.facts
    assert looked[facts.kept_step] == min(looked.values()) and 0 in looked
    assert facts.more["loss_validation_before"] == looked[0]
    assert any("loss_teacher" in line for line in lines)


def test_a_budget_in_milliseconds_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    attention = [{"heads": h, "width": w, "ms": 0.02 * h * w / 16} for h in (1, 2) for w in (16, 24, 32)]
    block = {"attention": attention, "ffn": [{"width": w, "ms": w / 256} for w in range(8, 257, 8)]}
    sizes = {"embed": 64, "tokens": 17, "depth": 2, "patch_values": 192}
    table = {
        "schema": 1, "measured_on": "made up for a test", "fixed_ms": 0.1,
        "base": {"family": "vit", **sizes}, "blocks": [{"base": {"heads": 2, "qk": 32, "vo": 32, "ffn": 256}, **block}],
    }  # fmt: skip
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    made = derive(
        checkpoint, tmp_path / "m", method="forge", rate=None, ms=1.2, cost_table=tmp_path / "table.yaml", options=FEW,
        training=UNTRAINED,
    )  # fmt: skip
    assert 1.0 < made.record.budget.reached <= 1.2 and made.record.budget.quantity == "ms"
    with pytest.raises(OptionError, match=r"forge\.allocation=uniform spends MACs or parameters, not ms 1\.2"):
        derive(
            checkpoint, tmp_path / "u", method="forge", rate=None, ms=1.2, cost_table=tmp_path / "table.yaml",
            options={**FEW, "allocation": "uniform"}, training=UNTRAINED,
        )  # fmt: skip
    assert not (tmp_path / "u.partial").exists()


def test_too_few_images_are_told_with_the_number_that_would_do(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**FEW, "calibration_images": 4}
    for name in ("made", "cached"):
        told = Console(quiet=True).progress
        derive(checkpoint, tmp_path / name, method="forge", options=options, training=UNTRAINED, progress=told)
        warning = "warning: 4 calibration images do not determine the widest layer, 16 would"
        assert warning in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("calibration_images", 0, r"forge\.calibration_images=0 is less than 1"),
        ("sequential_ridge", -1, r"forge\.sequential_ridge=-1 is not a number of at least 0"),
        ("temperature", 0, r"forge\.temperature=0"),
    ],
)
def test_values_that_cannot_be_are_refused(option: str, value: float, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_method("forge").Config(**{option: value})
