"""A budget met on this machine: a small random base, ONNX Runtime for the figures, a table that is a guess."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from dense_networks import write_depth, write_frames
from detectors import write_detectors
from recorded_progress import RecordedProgress
from safetensors.torch import save_file
from small_base import fewer_digits
from some_tables import rows, table

import edgevit
import edgevit.latency.cost  # before a fixture replaces what it measures with
from edgevit.derivation import problem
from edgevit.derivation.allocate.cost_table import CostTable, described, load_cost_table
from edgevit.errors import (
    BudgetError,
    ConnectionLostError,
    CostTableError,
    DataError,
    Interrupted,
    OptionError,
    OutputError,
)
from edgevit.exporting import current
from edgevit.exporting.request import FilesRequest
from edgevit.latency import grid, paired, rounds
from edgevit.latency.rounds import MeasuredFigure
from edgevit.latency.table import measured_table
from edgevit.latency.target import MeasurementTarget, probe
from edgevit.network.anatomy import BlockDims
from edgevit.network.opening import network_without_weights
from edgevit.progress import Silent
from edgevit.records.lock import alone_in
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("examined_once")

NAME, SWIN = "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"
ARGS = {"img_size": 32, "patch_size": 4, "embed_dim": 128, "depth": 2, "num_heads": 4}
BASE_MS = 10.0  # by the table, which is wrong about everything


def guessed(network: Any, target: MeasurementTarget, *, sizes: Sequence[BlockDims] = (), **_: Any) -> CostTable:
    """Half of the base is its attentions, in proportion to their widths, and half its FFNs."""
    return CostTable.model_validate(guess(network, sizes))


def guess(network: Any, sizes: Sequence[BlockDims] = (), **more: Any) -> dict[str, Any]:
    dims, costs = network.dims, list[dict[str, Any]]()
    each = BASE_MS / 2 / len(dims)
    for stage in sorted({d.stage for d in dims}):
        most = next(d for d in dims if d.stage == stage)
        widths = {8, most.ffn // 2, most.ffn, *(d.ffn for d in sizes if d.ffn and d.stage == stage)}
        attention = {
            (h, w): each * h * w / most.heads / most.qk for h in {2, most.heads} for w in {min(16, most.qk), most.qk}
        }
        ffn = {w: each * w / most.ffn for w in sorted(widths)}
        costs += rows(None if stage else 0.01, attention, ffn, **({"stage": stage} if stage else {}))
    of = {**described(network.family_name, dims, network.geometry), "blocks": [d.sizes for d in dims]}
    return {**table(costs, base=of), "measured_on": "a guess"}


def scaled(content: dict[str, Any], share: float, **at: int) -> list[dict[str, Any]]:
    """The costs of all sites, times a share, at another embedding or number of tokens."""
    sites = [cost for cost in content["costs"] if cost["part"] in ("attention", "ffn")]
    return [{**cost, **at, "ms": cost["ms"] * share} for cost in sites]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("base") / "base.safetensors"
    torch.manual_seed(0)  # on some random bases the last round ends at 94 % of the budget
    save_file(timm.create_model(NAME, num_classes=10, **ARGS).state_dict(), file)
    return file


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, fewer_digits():
        patch.setattr("edgevit.latency.table.measured_table", guessed)
        patch.setattr(paired, "ROUNDS", 2)
        patch.setattr(paired, "SECONDS", 0.02)
        yield


@pytest.fixture(scope="module")
def asked(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    few = {"calibration_images": 16, "sensitivity_images": 8, "sequential": False}
    return {
        "checkpoint": checkpoint,
        "model_args": ARGS,
        "data": "digits",
        "classes": "3,7",
        "accept_weak_base": True,
        "options": few,
        "training": Training(steps=0, device="cpu", batch_size=32),
        "cache": tmp_path_factory.mktemp("cache"),
        "target": MeasurementTarget(threads=1),
    }


class Computed:
    """Takes what its MACs say, 1.5 times as much as the table thinks of a model like the base."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.measured: list[str] = []
        patch.setattr(paired.PairedBench, "prepare", lambda *_, **__: None)
        patch.setattr(paired.PairedBench, "measure", lambda _, base, model: self.measure(base, model))

    def measure(self, base: Path, model: Path) -> MeasuredFigure:
        self.measured.append(model.name)
        macs, of_base = (ModelFolder(folder).spec().macs for folder in (model, base))
        value = BASE_MS * macs / of_base * 1.5
        return MeasuredFigure(value, value * 0.999, value * 1.001, 8)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    return Computed(monkeypatch)


@pytest.mark.slow
def test_a_backbone_meets_a_budget_by_its_features(asked: dict[str, Any], computed: Computed, tmp_path: Path) -> None:
    (made,) = edgevit.meet(NAME, ms=6.0, output="features", out=tmp_path / "t", **{**asked, "classes": None})
    assert made.model.spec.output_kind == "features" and made.record.met is not None and made.record.met.keeps
    assert made.record.similarity is not None and made.record.data is not None and made.record.data.classes == ()


@pytest.fixture(scope="module")
def swin(asked: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is asked of a small Swin of two stages."""
    args = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
    file = tmp_path_factory.mktemp("swin") / "base.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model(SWIN, num_classes=10, **args).state_dict(), file)
    return {**asked, "model_args": args, "checkpoint": file}


@pytest.mark.slow
def test_every_stage_of_a_network_gives_what_its_own_prices_say(
    swin: dict[str, Any], computed: Computed, tmp_path: Path
) -> None:
    (made,) = edgevit.meet(SWIN, ms=6.0, out=tmp_path / "t", **swin)
    met, blocks = made.record.met, made.model.spec.blocks
    assert met is not None and met.outcome == "met" and {d.stage for d in blocks} <= {0, 1}
    assert made.model.spec.narrowed is None, "the embedding of a stage stays"
    with pytest.raises(BudgetError, match=r"--ms 0\.02 is less than any plan takes in shape 'fused': 0\.\d+ ms by the"):
        edgevit.meet(SWIN, ms=0.02, out=tmp_path / "u", **swin)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vulcan", "mdp"])
def test_other_methods_cut_a_network_of_stages_by_its_table(
    method: str, swin: dict[str, Any], computed: Computed, tmp_path: Path
) -> None:
    (made,) = edgevit.meet(SWIN, ms=6.0, out=tmp_path / "t", **{**swin, "method": method, "options": {}})
    assert made.record.met is not None and made.record.met.outcome != "over"


@pytest.mark.slow
def test_a_network_of_stages_meets_a_budget_by_the_clock(
    swin: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where nothing was measured before
    monkeypatch.setattr("edgevit.latency.table.measured_table", partial(measured_table, points=0, rounds=2))
    monkeypatch.setattr(grid, "SHARES", (0.5,))
    monkeypatch.setattr(rounds, "MOST", 1)
    monkeypatch.setattr(paired, "ROUNDS", 6)
    monkeypatch.setattr(paired, "SECONDS", 0.2)
    base = edgevit.cost(SWIN, model_args=swin["model_args"], threads=1, rounds=2, points=1).in_quantity("ms").base
    (made,) = edgevit.meet(SWIN, ms=0.6 * base, out=tmp_path / "t", **swin)
    met, listed = made.record.met, load_cost_table(ModelFolder(made.folder).cost_table_file)
    assert met is not None
    assert {cost.stage for cost in listed.costs} == {None, 1}
    assert met.base == pytest.approx(base) and met.verified.value < 1.2 * met.budget
    assert abs(met.rounds[0].measured.value / met.rounds[0].predicted - 1) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "write"),
    [("map", lambda folder: f"{write_depth(folder)}:build"),
     ("boxes", lambda folder: f"{write_detectors(folder)}:masks")],
)  # fmt: skip
def test_a_network_with_a_head_of_its_own_meets_a_budget_as_a_whole(
    output: str, write: Any, asked: dict[str, Any], computed: Computed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    base, frames = write(tmp_path / "mine"), write_frames(tmp_path / "frames")
    given = {**asked, "checkpoint": None, "model_args": {}, "classes": None, "data": frames, "output": output}
    (made,) = edgevit.meet(base, ms=12.0 / 1.5, out=tmp_path / "t", **{**given, "accept_weak_base": False})
    met, spec = made.record.met, made.model.spec
    assert met is not None and met.keeps and len(spec.blocks) == len(spec.base.blocks) and spec.builder is not None
    assert made.record.map is not None or output == "boxes"


@pytest.mark.slow
def test_a_model_is_derived_measured_and_verified_through_onnx_runtime(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MOST", 1)
    export, exported = current.export_files, []

    def noted(asked: FilesRequest, *more: Any) -> Any:
        exported.append(asked.model.name)
        return export(asked, *more)

    monkeypatch.setattr(current, "export_files", noted)
    (made,) = edgevit.meet(NAME, ms=6.0, out=tmp_path / "t", **asked)
    assert len(exported) == 3 and len({*exported, "base", "t"}) == 3, "the base, the plan and the model, each once"
    met = made.record.met
    assert met is not None and len(met.rounds) == 1
    assert (met.budget, met.option, met.quantity, met.table.measured_on) == (6.0, "ms 6", "ms", "a guess")
    assert met.figure in ("p50", "processor") and met.verified.repeats == 2 and 0 < met.verified.value < BASE_MS
    kept = load_cost_table(ModelFolder(made.folder).cost_table_file)
    assert kept.record() == met.table, "the table itself lies beside the model"
    assert met.outcome == ("over" if met.verified.value > 6 else "met" if met.verified.value >= 5.82 else "under")
    assert ModelFolder(tmp_path / "t").derivation() == made.record
    assert (tmp_path / "t" / "export" / "model.fp32.onnx").is_file() and edgevit.load(tmp_path / "t")
    assert [file.name for file in tmp_path.iterdir()] == ["t"], "what the rounds made is gone"


@pytest.mark.slow
def test_a_budget_is_met_in_int8(asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MOST", 1)
    (made,) = edgevit.meet(NAME, ms=6.0, out=tmp_path / "t", run_precision="int8", **asked)
    report, met = ModelFolder(made.folder).export_record(), made.record.met
    assert met is not None and 0 < met.verified.value < BASE_MS
    assert report.quantisation is not None and report.quantisation.images >= 16
    assert (tmp_path / "t" / "export" / "model.int8.onnx").is_file() and "fp16" not in report.parity


def test_rounds_correct_what_is_wrong_with_the_table(asked: dict[str, Any], tmp_path: Path, computed: Computed) -> None:
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", progress=(progress := RecordedProgress()), **asked)
    first = next(note for note in progress.notes if note.startswith("round 1: "))
    assert re.search(r"the budget of 5 ms; it took \d+ (s|min), at most 4 more follow$", first)
    met = made.record.met
    assert met is not None and met.outcome == "met" and 4.85 <= met.verified.value <= 5
    errors = [abs(one.measured.value / one.predicted - 1) for one in met.rounds]
    assert errors[0] > 0.05 and errors[-1] < 0.05 and len(met.rounds) > 1
    assert len(computed.measured) == len(met.rounds) + 1 and computed.measured[-1] == "t"


@pytest.mark.slow
def test_every_round_cuts_the_base_that_was_trained_once(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, finetune = [], problem._finetune
    monkeypatch.setattr("edgevit.train.settings.PASSES", 0)
    monkeypatch.setattr(problem, "_finetune", lambda *given: trained.append(given) or finetune(*given))
    more = {"derive_from": "finetuned", "cache": tmp_path / "cache"}  # trained for the usual passes
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **{**asked, **more})
    start, met = made.record.start, made.record.met
    assert start is not None and (start.network, start.steps) == ("finetuned", 1)
    assert met is not None and len(met.rounds) > 1 and len(trained) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nuwa", "vulcan", "mdp"])
def test_a_method_that_chooses_a_rate_meets_a_budget_by_the_table(
    method: str, asked: dict[str, Any], tmp_path: Path, computed: Computed
) -> None:
    few = {"purification": "none", "calibration_images": 64} if method == "nuwa" else {}
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **{**asked, "method": method, "options": few})
    met = made.record.met
    assert met is not None and met.outcome != "over" and 4.5 <= met.verified.value <= 5
    assert made.record.method == method and (met.outcome == "met" or met.ended)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "ms"), [("heart", 9.0), ("forge", 2.3)])
def test_a_budget_is_spent_on_tokens_where_the_method_lets_them_leave(
    method: str, ms: float, asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def listed(network: Any, target: MeasurementTarget, *, tokens: bool, **how: Any) -> CostTable:
        told.append(tokens)
        content = guess(network, how["sizes"])
        fewer = [cost for n in (48, 32, 16) for cost in scaled(content, n / 65, tokens=n)]
        return CostTable.model_validate({**content, "costs": [*content["costs"], *fewer]})

    monkeypatch.setattr("edgevit.latency.table.measured_table", listed)
    few = {"calibration_images": 8, "probes": 1} if method == "heart" else {
        **asked["options"], "cut_tokens": "predicted", "drop_blocks": False, "drop_sites": False, "drop_heads": False,
    }  # fmt: skip
    (made,) = edgevit.meet(NAME, ms=ms, out=tmp_path / "t", **{**asked, "method": method, "options": few})
    met = made.record.met
    assert met is not None and met.verified.value <= ms and set(told) == {True}
    assert any(dims.tokens for dims in made.model.spec.blocks)


@pytest.mark.slow
def test_a_slice_of_a_super_network_meets_a_budget_without_any_image(
    asked: dict[str, Any], tmp_path: Path, computed: Computed
) -> None:
    same = ("checkpoint", "model_args", "data", "classes", "accept_weak_base")
    how = Training(steps=1, device="cpu", batch_size=32)
    few = {"proxy_images": 16, "updates": 1, "points": 2}
    edgevit.supernet(NAME, out=tmp_path / "net", training=how, options=few, **{n: asked[n] for n in same})
    given = {name: asked[name] for name in ("training", "cache", "target")}
    (made,) = edgevit.meet(method="skd", supernet=tmp_path / "net", ms=6.0, out=tmp_path / "t", **given)
    met = made.record.met
    assert met is not None and met.outcome == "met" and made.record.data is None
    assert made.top1 is None and made.record.base == str(tmp_path / "net")


def test_a_search_that_was_stopped_goes_on_where_it_was(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = computed.measure

    def stopped(base: Path, model: Path) -> MeasuredFigure:
        if len(computed.measured) == 1:
            raise KeyboardInterrupt
        return measure(base, model)

    monkeypatch.setattr(computed, "measure", stopped)
    with pytest.raises(Interrupted, match=r"the same command goes on from .*t\.partial"):
        edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **asked)
    with pytest.raises(OutputError, match="add --resume"):  # another budget: not the same command
        edgevit.meet(NAME, ms=4.0, out=tmp_path / "t", **asked)
    with pytest.raises(OptionError, match="ms was 5"):
        edgevit.meet(NAME, ms=4.0, out=tmp_path / "t", resume=True, **asked)
    monkeypatch.setattr(computed, "measure", measure)
    before = list(computed.measured)
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **asked)
    assert made.record.met is not None and len(made.record.met.rounds) + 1 == len(computed.measured)
    assert computed.measured[: len(before)] == before and computed.measured.count(before[0]) == 1


def test_a_board_that_is_lost_is_said_to_be_gone_on_with(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Path) -> MeasuredFigure:
        raise ConnectionLostError("the connection to orin broke")

    monkeypatch.setattr(computed, "measure", lost)
    with pytest.raises(ConnectionLostError, match=r"broke; the same command goes on"):
        edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **asked)


@pytest.fixture
def typed(asked: dict[str, Any]) -> list[object]:
    """What is asked, as a person types it; the cache is that of the tests."""
    of_base = [part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}")]
    few = [part for name, value in asked["options"].items() for part in ("--set", f"forge.{name}={value}".lower())]
    given = ["--checkpoint", asked["checkpoint"], "--data", "digits", "--classes", "3,7", "--accept-weak-base"]
    how = ["--steps", 0, "--device", "cpu", "--batch-size", 32, "--threads", 1]
    return ["derive", NAME, *of_base, *given, *few, *how]


@pytest.mark.slow
def test_several_budgets_share_the_base_and_what_was_learnt_and_end_in_one_table(
    asked: dict[str, Any], typed: list[object], tmp_path: Path, computed: Computed, edgevit_main: Any
) -> None:
    done = edgevit_main(*typed, "--ms", "6,4,3", "--out", tmp_path / "t")
    assert done.code == 0, done.err
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    assert [row[:2] for row in cells[-3:]] == [["ms6", "6 ms"], ["ms4", "4 ms"], ["ms3", "3 ms"]]
    found = edgevit.meet(NAME, ms=(6, 4, 3), out=tmp_path / "t", resume=True, **asked)
    assert [one.folder.name for one in found] == ["ms6", "ms4", "ms3"]
    first, second, _ = (one.record.met for one in found)
    assert first is not None and second is not None and first.outcome == second.outcome == "met"
    assert len(second.rounds) <= len(first.rounds)
    errors = [abs(met.rounds[0].measured.value / met.rounds[0].predicted - 1) for met in (first, second)]
    assert errors[1] < errors[0], "it begins with the corrections of the first"
    assert sorted(folder.name for folder in (tmp_path / "t").iterdir()) == ["base", "ms3", "ms4", "ms6"]
    assert found[0].record == ModelFolder(tmp_path / "t" / "ms6").derivation()


@pytest.mark.slow
def test_several_budgets_that_were_stopped_end_as_if_they_had_not_been(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = edgevit.meet(NAME, ms=(6, 4, 3), out=tmp_path / "whole", **asked)
    measure, first = computed.measure, computed.measured.index("ms6") + 1
    computed.measured.clear()

    def stopped(base: Path, model: Path) -> MeasuredFigure:
        if len(computed.measured) == first:  # in the second budget's first round
            raise KeyboardInterrupt
        return measure(base, model)

    monkeypatch.setattr(computed, "measure", stopped)
    with pytest.raises(Interrupted):
        edgevit.meet(NAME, ms=(6, 4, 3), out=tmp_path / "t", **asked)
    assert (tmp_path / "t" / "ms6").is_dir() and (tmp_path / "t" / "ms4.partial" / "rounds.json").is_file()
    monkeypatch.setattr(computed, "measure", measure)
    made = edgevit.meet(NAME, ms=(6, 4, 3), out=tmp_path / "t", **asked)
    for one, other in zip(made, whole, strict=True):
        assert one.record.met is not None and other.record.met is not None
        assert one.record.met.rounds == other.record.met.rounds and one.record.met.factors == other.record.met.factors


@pytest.mark.slow
def test_what_several_budgets_are_to_overwrite_is_neither_taken_for_done_nor_for_the_base(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    edgevit.meet(NAME, ms=(6, 4), out=tmp_path / "t", **asked)
    other, before = {**asked, "classes": "3,8"}, len(computed.measured)
    measure = computed.measure

    def stopped(base: Path, model: Path) -> MeasuredFigure:
        if len(computed.measured) > before:
            raise KeyboardInterrupt
        return measure(base, model)

    with pytest.raises(OutputError, match=r"ms6 exists and is not overwritten"):
        edgevit.meet(NAME, ms=(6, 4), out=tmp_path / "t", **other)
    with pytest.raises(OutputError, match=r"t/base is the base of other classes; choose another --out"):
        edgevit.meet(NAME, ms=(5, 3), out=tmp_path / "t", **other)
    monkeypatch.setattr(computed, "measure", stopped)
    with pytest.raises(Interrupted, match=r"^stopped; the same command continues with the budgets that are not done$"):
        edgevit.meet(NAME, ms=(6, 4), out=tmp_path / "t", overwrite=True, **other)
    busy = pytest.raises(OutputError, match=r"another edgevit is working in .*/t; wait until it has ended")
    with alone_in(tmp_path / "t", OutputError("held")), busy:
        edgevit.meet(NAME, ms=(6, 4), out=tmp_path / "t", overwrite=True, **other)
    monkeypatch.setattr(computed, "measure", measure)
    made = edgevit.meet(NAME, ms=(6, 4), out=tmp_path / "t", overwrite=True, **other)
    folders = [*(one.folder for one in made), tmp_path / "t" / "base"]
    assert [list(ModelFolder(folder).spec().class_names) for folder in folders] == [["3", "8"]] * 3


@pytest.mark.slow
def test_a_model_of_other_options_or_of_another_checkpoint_is_not_taken_for_one_of_several_budgets(
    asked: dict[str, Any], tmp_path: Path, computed: Computed
) -> None:
    file = tmp_path / "base.safetensors"
    shutil.copy(asked["checkpoint"], file)
    given = {**asked, "checkpoint": file, "out": tmp_path / "t", "resume": True}
    edgevit.meet(NAME, ms=(6, 4), **given)
    made = len(computed.measured)
    with pytest.raises(OptionError, match=r"ms6 was made by other options: classes was 3,7 and is 3,8; give the same"):
        edgevit.meet(NAME, ms=(6, 4), **{**given, "classes": "3,8"})
    torch.manual_seed(1)
    save_file(timm.create_model(NAME, num_classes=10, **ARGS).state_dict(), file)
    with pytest.raises(OptionError, match=r"ms6 was made by other options: the content of files\.checkpoint differs"):
        edgevit.meet(NAME, ms=(6, 4), **given)
    with pytest.raises(OutputError, match=r"t/base is a base of other weights; choose another --out"):
        edgevit.meet(NAME, ms=(5, 3), **{**given, "resume": False})
    assert len(computed.measured) == made
    folder = ModelFolder(tmp_path / "t" / "ms6")
    record = folder.derivation()
    assert record is not None and record.met is not None
    folder.write_derivation(replace(record, met=replace(record.met, request=None)))  # of an older edgevit
    with pytest.raises(OptionError, match="ms6 does not say by which options it was made"):
        edgevit.meet(NAME, ms=(6, 4), **given)


@pytest.mark.slow
def test_images_per_second_are_a_budget_and_training_follows_once_on_the_final_shape(
    asked: dict[str, Any], typed: list[object], tmp_path: Path, computed: Computed, edgevit_main: Any
) -> None:
    trained = [*typed[: typed.index("--steps") + 1], 2, *typed[typed.index("--steps") + 2 :]]
    done = edgevit_main(*trained, "--fps", "200", "--out", tmp_path / "t")
    assert done.code == 0 and "the budget of 200 fps (5 ms)" in " ".join(done.out.split()), done.err
    record = ModelFolder(tmp_path / "t").derivation()
    assert record is not None and record.met is not None and record.met.outcome != "over"
    assert record.facts.steps == 2 and record.met.option == "fps 200"


def test_a_budget_out_of_reach_is_refused_with_the_minimum(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        BudgetError,
        match=r"--ms 0.02 is less than any plan takes in shape 'fused': 0.04906 ms by the table measured on a guess "
        r"\(FFN 0\.03906 ms, outside the blocks 0\.01 ms\); raise the budget",
    ):
        edgevit.meet(NAME, ms=0.02, out=tmp_path / "t", **asked)
    with pytest.raises(
        BudgetError,
        match=r"--fps 50000, 0\.02 ms for 1, is less than any plan takes in shape 'fused': 0\.04906 ms .*; ask for "
        r"fewer images per second, or try another --shape",
    ):
        edgevit.meet(NAME, fps=50_000, out=tmp_path / "t", **asked)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="is not below the base's"):
        edgevit.meet(NAME, ms=11, out=tmp_path / "t", **asked)


def test_a_base_that_does_not_know_its_classes_is_refused_before_a_cost_is_measured(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.latency.table.measured_table", None)  # not to be called
    with pytest.raises(DataError, match=r"validation images among all 10 outputs .*--accept-weak-base$"):
        edgevit.meet(NAME, ms=5, out=tmp_path / "t", **{**asked, "accept_weak_base": False})
    assert list(tmp_path.iterdir()) == []


def test_one_of_several_budgets_that_cannot_be_met_is_refused_before_any_takes_its_time(
    asked: dict[str, Any], tmp_path: Path, computed: Computed
) -> None:
    with pytest.raises(BudgetError, match=r"--ms 0.02 is less than any plan takes in shape 'fused': 0.04906 ms"):
        edgevit.meet(NAME, ms=(6, 0.02), out=tmp_path / "t", **asked)
    with pytest.raises(OptionError, match=r"--ms 50 is not below the base's"):
        edgevit.meet(NAME, ms=(6, 50), out=tmp_path / "t", **asked)
    assert computed.measured == [] and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_verification_above_the_budget_is_told_with_the_least_that_a_plan_takes(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = computed.measure

    def slower(base: Path, model: Path) -> MeasuredFigure:
        seen = measure(base, model)
        return MeasuredFigure(seen.value * 1.2, seen.low, seen.high, 8) if model.name == "t" else seen

    monkeypatch.setattr(computed, "measure", slower)
    (made,) = edgevit.meet(NAME, ms=4, out=tmp_path / "t", **asked)
    met = made.record.met
    assert met is not None and met.outcome == "over" and met.ended is not None
    assert met.ended.startswith("measured once more, the plan that is kept takes more than in its round; by the")


@pytest.mark.slow
def test_a_model_may_be_called_as_the_folder_of_the_base_is(
    asked: dict[str, Any], tmp_path: Path, computed: Computed
) -> None:
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "base", **asked)
    assert made.record.met is not None and made.record.met.outcome == "met" and made.folder == tmp_path / "base"
    assert [file.name for file in tmp_path.iterdir()] == ["base"]


def test_a_verification_below_the_window_is_told_as_that(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = computed.measure

    def faster(base: Path, model: Path) -> MeasuredFigure:
        seen = measure(base, model)
        return MeasuredFigure(seen.value * 0.95, seen.low, seen.high, 8) if model.name == "t" else seen

    monkeypatch.setattr(computed, "measure", faster)
    (made,) = edgevit.meet(NAME, ms=5.0, out=tmp_path / "t", **asked)
    met = made.record.met
    assert met is not None and met.outcome == "under" and len(met.rounds) < rounds.MOST
    assert met.ended == "measured once more, the plan that is kept takes less than in its round"


def test_a_model_above_the_budget_is_told_with_the_least_that_a_plan_takes_and_exit_code_3(
    asked: dict[str, Any], typed: list[object], tmp_path: Path, computed: Computed, edgevit_main: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (made,) = edgevit.meet(NAME, ms=0.06, out=tmp_path / "t", **asked)
    met = made.record.met
    assert met is not None and met.outcome == "over" and met.ended is not None
    least = "by the corrected table no plan in shape 'fused' takes less than"
    assert met.ended.startswith(f"no plan costs less than one that is measured; {least} 0.")
    assert "(FFN 0." in met.ended and "outside the blocks 0." in met.ended
    monkeypatch.setattr(rounds, "MOST", 1)
    done = edgevit_main(*typed, "--ms", 4, "--out", tmp_path / "u")
    over = ModelFolder(tmp_path / "u").derivation()
    assert done.code == 3 and over is not None and over.met is not None and over.met.outcome == "over", done.err
    used_up = f"all rounds were used up; {least}"
    assert over.met.ended is not None and over.met.ended.startswith(used_up), "of all plans, not of the one measured"
    told = over.met.ended.removeprefix(used_up).split()
    assert float(told[0]) < 0.1 * over.met.rounds[0].measured.value and over.met.ended in " ".join(done.out.split())
    assert made.model.geometry.embed == 128, "the table says nothing of other widths"


@pytest.mark.slow
def test_a_budget_is_spent_on_the_embedding_where_the_table_lists_it(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[bool, int | None]] = []

    def listed(network: Any, target: MeasurementTarget, *, narrower: bool, embed: int | None, **how: Any) -> CostTable:
        told.append((narrower, embed))
        content = guess(network, how["sizes"])
        narrow = [{"part": "fixed", "embed": 64, "ms": 0.005}, *scaled(content, 0.4, embed=64)]
        return CostTable.model_validate({**content, "costs": [*content["costs"], *narrow]})

    monkeypatch.setattr("edgevit.latency.table.measured_table", listed)
    (made,) = edgevit.meet(NAME, ms=2.0, out=tmp_path / "t", **asked)
    met, width = made.record.met, made.model.geometry.embed
    assert met is not None and 0.9 * 2.0 < met.verified.value <= 2.0 and 64 <= width < 128
    assert told[0] == (True, None) and {embed for _, embed in told[1:]} <= {64, 80, 96, 112, None}, "of rounds' plans"
    with pytest.raises(BudgetError, match=r"--ms 0.01 is less than any plan takes"):
        edgevit.meet(NAME, ms=0.01, out=tmp_path / "l", **asked)
    told.clear()
    kept = {**asked, "options": {**asked["options"], "cut_embedding": False}}
    with pytest.raises(BudgetError, match=r"--ms 0.02 is less than any plan takes"):
        edgevit.meet(NAME, ms=0.02, out=tmp_path / "l", **kept)
    assert told == [(False, None)], "what the method cannot use is not measured"


@pytest.mark.slow
def test_a_table_of_another_place_or_base_is_refused_and_one_of_this_place_is_where_to_begin(
    asked: dict[str, Any], tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.latency.table.measured_table", None)
    table, origin = guessed(network_without_weights(NAME, ARGS), MeasurementTarget()), probe(asked["target"], Silent())
    own = origin.model_dump(mode="json")

    def given(**changed: Any) -> dict[str, Any]:
        file = tmp_path / "t.json"
        file.write_text(json.dumps({**table.content(), "origin": own, **changed}))
        return {"cost_table": file, "out": tmp_path / "t", "ms": 5.0, **asked}

    elsewhere = {**own, "batch": 8, "precision": "fp16", "power_mode": "25W"}
    with pytest.raises(CostTableError, match=r"power_mode 25W \(here it is .*\), precision fp16 .*, batch 8 .* 1\)"):
        edgevit.meet(NAME, **given(origin=elsewhere))
    with pytest.raises(CostTableError, match="the base was measured with tokens 17"):
        edgevit.meet(NAME, **given(base={**table.content()["base"], "tokens": 17}))
    with pytest.raises(CostTableError, match="does not say where it was measured"):
        edgevit.meet(NAME, **given(origin=None))
    (made,) = edgevit.meet(NAME, **given())
    assert made.record.met is not None and made.record.met.outcome == "met"
    assert made.record.met.conditions == origin.model_dump(mode="json", exclude_none=True)


def test_without_a_budget_that_is_measured_it_derives(asked: dict[str, Any], tmp_path: Path) -> None:
    (made,) = edgevit.meet(NAME, rate=0.5, out=tmp_path / "t", **{**asked, "target": MeasurementTarget()})
    assert made.record.met is None and made.record.budget.quantity == "macs"
