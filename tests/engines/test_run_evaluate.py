"""An engine evaluated on this machine as the board; the stand-in for TensorRT runs it with ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import Server, playing
from places import STANDINS
from recorded_progress import RecordedProgress
from small_models import random_base, write_derived

import edgevit
from edgevit.board.client import Agent
from edgevit.board.connection import open_board
from edgevit.data.task import open_task
from edgevit.engines import run as module
from edgevit.engines.build import build_engine
from edgevit.engines.request import EvaluateRequest, ExportRequest
from edgevit.engines.run import evaluate, evaluate_engine
from edgevit.errors import AgentError, DataError, EngineError, OptionError, UnfitBoardError
from edgevit.exporting.evaluate import Evaluation
from edgevit.network.folder import load
from edgevit.records.engine import ENGINE_KIND, read_engine
from edgevit.records.model import Rejection
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")
Play = Callable[..., None]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model folder with one engine."""
    home = tmp_path_factory.mktemp("engines")
    folder = write_derived(home / "derived", 16, 16, head="full", depth=1)
    with pytest.MonkeyPatch.context() as patch:
        playing(patch, home)()
        with open_board(None) as board:
            build_engine(ExportRequest(model=folder, trt=True, accuracy=False), board)
    yield folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(built, tmp_path / "derived"))


def engine_in(folder: Path) -> Path:
    (record,) = ModelFolder(folder).export.engines()
    return record.path


def judge(engine: Path, told: RecordedProgress | None = None, **options: Any) -> Evaluation:
    with open_board(None) as board:
        return evaluate_engine(EvaluateRequest(model=engine, **options), board, told)


def figures(result: Evaluation) -> dict[str, Any]:
    """What must be the same of a model in whatever form."""
    return {**vars(result), "model": None, "form": None}


@pytest.mark.slow
def test_an_engine_gets_the_figures_of_the_file_that_it_was_built_from(built: Path, play: Play) -> None:
    own = judge(engine_in(built))
    assert (own.form, own.part, own.data, own.outputs) == ("engine", "test", "digits", 10)
    assert sorted(own.per_class) == ["3", "5", "8"] and own.top1 != own.top1_full
    assert figures(own) == figures(evaluate(built / "export" / "model.fp16.onnx", "digits"))


@pytest.mark.slow
def test_an_engine_of_tokens_has_named_outputs_and_is_judged_by_all_of_them(tmp_path: Path, play: Play) -> None:
    folder = tmp_path / "tokens"
    edgevit.base(random_base(depth=2).module, output="features:class,patches@1,2", out=folder)
    built = edgevit.export(folder, data="digits", trt=True, accuracy=False).engine
    assert built is not None and built.accuracy is not None and built.accuracy.agreement > 0.999
    names = ["class_token_1", "patch_tokens_1", "class_token_2", "patch_tokens_2"]
    assert [tensor.name for tensor in built.outputs] == names
    assert (judged := judge(built.path, data="digits", max_images=20).agreement) is not None and judged > 0.999


def test_parts_classes_and_numbers_of_images_are_chosen_as_for_a_model_folder(built: Path, play: Play) -> None:
    asked: dict[str, Any] = {"data": "digits", "classes": "8,3", "part": "validation", "max_images": 15}
    own = judge(engine_in(built), **asked)
    assert own.images == 15 and own.part == "validation" and list(own.per_class) == ["8", "3"]
    assert figures(own) == figures(evaluate(built, **asked))


@pytest.mark.slow
def test_what_an_engine_calls_other_is_counted_as_of_a_model_folder(folder: Path, play: Play) -> None:
    model, network = ModelFolder(folder), load(folder)
    images, _ = next(
        open_task("digits", ["3", "5", "8"], preprocessing=network.preprocessing, base_outputs=10).test.batches(90)
    )
    middle = float(network(images)[:, [3, 5, 8]].logsumexp(1).detach().median())
    spec = replace(model.spec(), rejection=Rejection("logsumexp", middle, 0.05))
    model.write(spec, derivation=model.derivation(), plan=model.plan())
    own, usual = judge(engine_in(folder)).rejected, evaluate(folder).rejected
    assert own is not None and usual is not None
    assert (own.images, own.foreign_images) == (usual.images, usual.foreign_images)
    assert 0 < own.other < own.images and 0 < own.foreign_other < own.foreign_images
    for counted in ("other", "right", "foreign_other"):
        assert abs(getattr(own, counted) - getattr(usual, counted)) <= 2, "of fp16 and of torch's fp32"


def test_images_go_to_one_open_engine_in_parts_where_they_are_many(
    built: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = judge(engine_in(built), part="validation")
    monkeypatch.setattr(module, "MOST_IMAGES", 20)
    opened, sizes, exchange = set[Agent](), list[int](), Agent.exchange

    def count(agent: Agent, request: Mapping[str, int], *contents: memoryview) -> None:
        opened.add(agent)
        sizes.append(request["count"])
        exchange(agent, request, *contents)

    monkeypatch.setattr(Agent, "exchange", count)
    assert judge(engine_in(built), part="validation") == whole
    assert len(opened) == 1 and sum(sizes) == whole.images and {*sizes[:-1]} == {16}, "whole batches of 8"


@pytest.mark.quick("no-context")
@pytest.mark.parametrize("fault", ["", "no-context"])
def test_the_board_keeps_the_engine_and_none_of_the_images(
    built: Path, sshd: Callable[..., Server], fault: str
) -> None:
    server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0", STANDIN_TENSORRT_FAULT=fault or "none")
    engine = engine_in(built)
    with (
        pytest.raises(AgentError, match="OutOfMemory") if fault else nullcontext(),
        open_board(server.host, ssh_config=server.config) as board,
    ):
        evaluate_engine(EvaluateRequest(model=engine, part="validation"), board)
    assert [path.name for path in (server.cache / "files").iterdir()] == [f"{read_engine(engine).sha256}.engine"]


def test_the_batch_size_is_one_that_the_engine_takes_and_decides_on_what_is_seen(built: Path, play: Play) -> None:
    engine, told = engine_in(built), RecordedProgress()
    right = judge(engine, told)
    assert f"{engine.name} takes 1 to 8 images per inference: 8 instead of 32" in told.notes
    play(fault="batch:8")
    told = RecordedProgress()
    assert judge(engine, told, batch_size=1) == right and not told.notes
    assert judge(engine, batch_size=8).top1 < right.top1


def test_an_engine_apart_from_its_record_or_its_model_folder_is_refused(built: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(engine_in(built), tmp_path))
    with pytest.raises(EngineError, match=rf"has no record {alone.stem}\.json.*copy that to the same folder"):
        EvaluateRequest(model=alone).check()
    shutil.copy(engine_in(built).with_suffix(".json"), tmp_path)
    with pytest.raises(EngineError, match=r"is in no model folder, whose model\.json has.*copy all of MODEL"):
        EvaluateRequest(model=alone, data="digits").check()


def test_an_engine_is_found_by_a_path_from_where_one_stands(
    built: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_in(built)
    monkeypatch.chdir(engine.parent)
    assert judge(Path(engine.name), max_images=6).images == 6


def test_an_engine_of_other_weights_another_board_or_altered_is_refused(folder: Path, play: Play) -> None:
    engine = engine_in(folder)
    record, described = read_engine(engine), engine.with_suffix(".json")
    described.write_text(ENGINE_KIND.text(replace(record, weights_sha256="0" * 64)))
    with pytest.raises(EngineError, match=r"is of other weights .*; build one of this model with `edgevit export"):
        judge(engine)
    described.write_text(ENGINE_KIND.text(record))
    play("10.16")
    with pytest.raises(EngineError, match=rf"was built for {record.fingerprint}, and this is \S+trt10\.16"):
        judge(engine)
    play()
    engine.write_bytes(b"altered")
    with pytest.raises(EngineError, match="was altered"):
        judge(engine)


def test_without_tensorrt_one_line_says_where_to_look_for_it(
    built: Path, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(UnfitBoardError, match=r"no TensorRT on this machine .*give --board USER@HOST") as error:
        judge(engine_in(built))
    assert "\n" not in str(error.value)


def test_images_that_are_gone_are_asked_for(folder: Path, play: Play) -> None:
    (folder / "derivation.json").unlink()
    with pytest.raises(DataError, match="give them with --data"):
        judge(engine_in(folder))
    assert judge(engine_in(folder), data="digits", max_images=6).images == 6


def test_options_of_a_base_are_refused(built: Path) -> None:
    with pytest.raises(OptionError, match="leave out pretrained"):
        EvaluateRequest(model=engine_in(built), pretrained=True).check()
