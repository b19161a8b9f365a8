"""An engine from a model folder to its record, on this machine as the board, with the stand-in for TensorRT.

The stand-in runs engines with ONNX Runtime, so that the gate sees true logits; its faults spoil them as TensorRT's own
have been seen to. That shows the way through every part, and says nothing of TensorRT or of an Orin.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from board_fixtures import Server, playing
from places import STANDINS
from recorded_progress import RecordedProgress
from seals import reseal
from small_models import write_derived, write_halves, write_headless

from edgevit.board.connection import open_board
from edgevit.board.facts import BoardFacts, examine
from edgevit.board.store import find_engine
from edgevit.cli.export import engine_table
from edgevit.engines.build import build_engine
from edgevit.engines.request import ExportRequest
from edgevit.engines.run import evaluate, export
from edgevit.errors import AgentError, EngineError, ExportError, OptionError, ProfileError, UnfitBoardError
from edgevit.records.engine import ENGINE_KIND, EngineRecord, OnnxSource, read_engine
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256
from edgevit.request import request_of

QUICK: dict[str, Any] = {"accuracy": False}  # of the export; the gate asks nobody
pytestmark = pytest.mark.usefixtures("examined_once")
ONE: dict[str, Any] = {"batches": (1, 1, 1)}  # which the gate looks at alone


class Notes(RecordedProgress):
    @property
    def builds(self) -> list[str]:
        """The levels that were built, in order."""
        return [name.removesuffix(": build") for name in self.stages if name.endswith(": build")]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_derived(tmp_path_factory.mktemp("engines") / "derived", 16, 16, head="full", depth=3)
    export(folder, **QUICK)
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A model folder with an export."""
    return Path(shutil.copytree(exported, tmp_path / "derived"))


@pytest.fixture(scope="module")
def with_engine(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("board")
    folder = Path(shutil.copytree(exported, home / "derived"))
    with pytest.MonkeyPatch.context() as patch:
        playing(patch, home)()
        build(folder)
    return folder


@pytest.fixture
def stored(with_engine: Path, tmp_path: Path, play: Callable[..., None]) -> EngineRecord:
    """The record of an engine that is in a model folder of its own."""
    folder = Path(shutil.copytree(with_engine, tmp_path / "derived"))
    (record,) = ModelFolder(folder).export.engines()
    return record


@contextmanager
def built(folder: Path, notes: Notes | None = None, **options: Any) -> Iterator[EngineRecord]:
    with open_board(None) as board:
        request = request_of(ExportRequest, {**QUICK, **options, "model": folder, "trt": True}, "build")
        yield build_engine(request, board, notes or Notes())


def build(folder: Path, notes: Notes | None = None, **options: Any) -> EngineRecord:
    with built(folder, notes, **options) as record:
        return record


def folder_of(record: EngineRecord) -> Path:
    """The model folder that an engine is in."""
    return record.path.parents[3]


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def test_an_engine_that_is_right_is_stored_with_what_is_known_of_it(folder: Path, play: Callable[..., None]) -> None:
    notes = Notes()
    record = build(folder, notes)
    assert (record.precision, record.precision_level, record.attempts) == ("fp16", "fp16", ())
    assert notes.builds == ["fp16"]
    assert record.path.parent.name == record.fingerprint and record.key.startswith(record.path.stem)
    assert file_sha256(record.path) == record.sha256 and record.path.stat().st_size == record.bytes
    assert record.onnx == OnnxSource("model.fp16.onnx", file_sha256(folder / "export" / "model.fp16.onnx"))
    assert (record.fused, record.blocks, record.fused_expected) == (3, 3, 3)
    assert (record.batches, record.board.tensorrt) == ((1, 1, 8), "10.3.0")
    assert [tensor.name for tensor in (*record.inputs, *record.outputs)] == ["images", "logits"]
    assert len(json.loads(record.layers_path.read_text())) > 3
    seen = record.accuracy
    assert seen is not None and seen.part == "validation" and seen.data == "digits"
    assert seen.agreement == 1 and seen.host == seen.board and sorted(seen.per_class) == ["3", "5", "8"]
    assert any("10.3.0 is known to miscompile" in text for text in record.warnings)
    assert ModelFolder(folder).export.engines() == [record] and hidden(folder) == []


@pytest.mark.slow
def test_nothing_is_built_twice_until_something_changes(stored: EngineRecord) -> None:
    first, folder, notes = stored, folder_of(stored), Notes()
    again = build(folder, notes)
    assert again == first and notes.builds == []
    assert any("is up to date: reused" in text and text.startswith(str(first.path)) for text in notes.notes)
    assert build(folder, again := Notes(), rebuild=True).key == first.key and again.builds == ["fp16"]
    other = build(folder, batches=(1, 2, 4))
    assert other.key != first.key and {record.key for record in ModelFolder(folder).export.engines()} == {
        first.key,
        other.key,
    }
    first.path.write_bytes(b"altered")
    assert build(folder, again := Notes()).sha256 == first.sha256 and again.builds == ["fp16"]


@pytest.mark.slow
def test_of_all_that_was_tried_the_board_keeps_only_the_engine_that_is_taken(
    folder: Path, sshd: Callable[..., Server]
) -> None:
    server = sshd(PYTHONPATH=STANDINS, STANDIN_TENSORRT="8.6.1", STANDIN_TENSORRT_FAULT="fp16-layernorm")
    request = request_of(ExportRequest, {**QUICK, **ONE, "model": folder, "trt": True}, "build")
    notes = Notes()
    with open_board(server.host, ssh_config=server.config) as board:
        record = build_engine(request, board, notes)
    assert len(notes.builds) == 2 and any(name.startswith("send images") for name in notes.stages)
    left = {path.name for path in (server.cache / "files").iterdir() if path.suffix != ".onnx"}
    assert left == {f"{record.sha256}.engine"}


@pytest.mark.slow
def test_what_a_fetch_left_that_was_killed_goes_with_the_next(stored: EngineRecord) -> None:
    left, going_on = (stored.path.with_name(f".{name}") for name in ("1.engine.7", ".2.engine.8.8.part"))
    for file in (left, going_on):
        file.write_bytes(b"half an engine")
    os.utime(left, (0, 0))
    build(folder_of(stored), rebuild=True)
    assert hidden(folder_of(stored)) == [going_on.name]


@pytest.mark.quick("11.4")
@pytest.mark.parametrize("release", ["8.6.1", "11.4"])
def test_fp16_that_layer_norm_spoils_gets_it_in_fp32(folder: Path, play: Callable[..., None], release: str) -> None:
    play(release, "fp16-layernorm")
    notes = Notes()
    record = build(folder, notes, **ONE)
    assert record.precision_level == "fp16 with LayerNorm in fp32" and record.precision == "mixed"
    assert record.fp32_modules[0] == "blocks.0.norm1" and record.fp32_modules[-1] == "norm"
    assert notes.builds == ["fp16", "fp16 with LayerNorm in fp32"]
    assert any(
        text.startswith("fp16 loses ") and text.endswith("trying fp16 with LayerNorm in fp32") for text in notes.notes
    )
    assert [attempt.precision_level for attempt in record.attempts] == ["fp16"] and "loses" in record.attempts[
        0
    ].failure
    assert record.fused in (None, 3)  # attention stays wholly in fp16; TensorRT 8 does not say


@pytest.mark.slow
def test_the_block_that_spoils_fp16_is_found(folder: Path, play: Callable[..., None]) -> None:
    """By a release that is told which layers to keep in fp32; the next test's reads that in the file."""
    play("8.5.2", "fp16-block:2")
    record = build(folder, **ONE)
    assert record.precision_level == "fp16 with LayerNorm and block 2 in fp32"
    assert record.fp32_modules[-1] == "blocks.2"
    assert record.fused is None and len(record.attempts) <= 5
    assert record.accuracy is not None and record.accuracy.agreement == 1


@pytest.mark.slow
def test_two_blocks_that_spoil_it_are_both_found(folder: Path, play: Callable[..., None]) -> None:
    play(fault="fp16-block:0,fp16-block:2")
    record = build(folder, **ONE)
    assert record.precision_level == "fp16 with LayerNorm and blocks 0, 2 in fp32"
    assert record.fp32_modules[-2:] == ("blocks.0", "blocks.2") and record.fused == 1
    assert record.accuracy is not None and record.accuracy.agreement == 1
    name = "model.fp16.norms32.blocks32-0-2.onnx"
    assert record.onnx.name == name
    listed = json.loads((folder / "export" / "export.json").read_text())
    assert listed["files"][name]["sha256"] == record.onnx.sha256 == file_sha256(folder / "export" / name)
    assert sorted(listed["files"]) == [name, "model.fp16.onnx", "model.fp32.onnx"], "no file of a level that failed"
    assert listed["parity"]["fp16.norms32.blocks32-0-2"]["error"] < 2e-2


@pytest.mark.slow
def test_fp16_that_is_wrong_everywhere_gives_fp32_and_under_a_looser_gate_fp16(
    folder: Path, play: Callable[..., None]
) -> None:
    play("8.6.1", "fp16")
    assert build(folder, drop=1, class_drop=1, agreement=0, **ONE).precision_level == "fp16"
    notes = Notes()
    record = build(folder, notes, **ONE)
    assert (record.precision_level, record.precision, record.fp32_modules) == ("fp32", "fp32", ())
    assert record.onnx.name == "model.fp32.opset17.onnx" and record.fused_expected == 0
    assert [attempt.precision_level for attempt in record.attempts] == notes.builds[:-1] and notes.builds[-1] == "fp32"


@pytest.mark.quick("10.3.0")
@pytest.mark.parametrize("release", ["8.5.2", "10.3.0"])
def test_an_engine_that_is_always_wrong_is_refused_and_nothing_is_kept(
    folder: Path, play: Callable[..., None], release: str
) -> None:
    play(release, "always")
    with pytest.raises(EngineError, match=r"no engine is right: fp32 loses \d+% on '[358]' \(of \d+ images"):
        build(folder, **ONE)
    assert ModelFolder(folder).export.engines() == [] and hidden(folder) == []
    assert sorted(path.name for path in (folder / "export").iterdir()) == [
        "export.json",
        "model.fp16.onnx",
        "model.fp32.onnx",
    ]


@pytest.mark.slow
def test_a_model_without_fp16_gets_an_engine_in_fp32(folder: Path, play: Callable[..., None]) -> None:
    notes = Notes()
    record = build(folder, notes, fp16=False, **ONE)
    assert record.precision_level == "fp32" and notes.builds == ["fp32"]
    with_it = build(folder, **ONE)
    assert with_it.precision_level == "fp16" and with_it.key != record.key


@pytest.mark.slow
@pytest.mark.parametrize(("release", "opset"), [("8.5.2", 16), ("8.6.1", 17)])
def test_older_releases_get_a_file_of_operators_that_they_know(
    folder: Path, play: Callable[..., None], release: str, opset: int
) -> None:
    play(release)
    record = build(folder, **ONE)
    path = folder / "export" / f"model.fp32.opset{opset}.onnx"
    assert record.onnx == OnnxSource(path.name, file_sha256(path)) and record.precision_level == "fp16"
    assert not record.strongly_typed and onnx.load(path).opset_import[0].version == opset
    assert any("fuses no attention on Orin" in text for text in record.warnings) == (release == "8.5.2")
    report = json.loads((folder / "export" / "export.json").read_text())
    assert report["inputs"][0]["dtypes"][path.name] == "float32"
    assert build(folder, **ONE).path == record.path, "the export is still up to date with the file it gained"


@pytest.mark.slow
def test_blocks_without_an_attention_are_none_that_could_be_fused(tmp_path: Path, play: Callable[..., None]) -> None:
    record = build(write_halves(tmp_path / "halves", depth=3), **ONE)
    assert (record.fused, record.blocks, record.fused_expected) == (2, 2, 2)


@pytest.mark.slow
def test_the_same_name_elsewhere_is_other_data_and_another_name_of_the_same_is_not(
    folder: Path,
    play: Callable[..., None],
    image_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in ("here", "there"):
        for part in ("train", "val"):
            image_folder(tmp_path / place / "images" / part, dict.fromkeys(("3", "5", "8"), 12))
    monkeypatch.chdir(tmp_path / "here")
    asked: dict[str, Any] = {**ONE, "drop": 1, "class_drop": 1, "agreement": 0}
    first = build(folder, data="images", **asked)
    assert build(folder, notes := Notes(), data=tmp_path / "here" / "images", **asked) == first and not notes.builds
    monkeypatch.chdir(tmp_path / "there")
    other = build(folder, notes := Notes(), data="images", **asked)
    assert notes.builds == ["fp16"] and other.key != first.key


@pytest.mark.slow
def test_a_missing_export_is_made_first_and_engines_outlive_a_new_one(folder: Path, play: Callable[..., None]) -> None:
    shutil.rmtree(folder / "export")
    record = build(folder, batch=4, fp16=False)
    assert record.batches == (4, 4, 4)
    assert json.loads((folder / "export" / "export.json").read_text())["batch"] == 4
    export(folder, batch=2, accuracy=False, fp16=False)
    assert ModelFolder(folder).export.engines() == [record]
    assert find_engine(folder, board_facts(), 4) == record


def test_other_batches_than_those_of_the_files_are_refused(folder: Path, play: Callable[..., None]) -> None:
    told = (
        r"--batches 1,4,16 is for files of any batch, and these have a fixed batch of 4; leave it out, or export with"
    )
    with pytest.raises(OptionError, match=told):
        build(folder, batch=4, fp16=False, batches=(1, 4, 16))


def board_facts() -> BoardFacts:
    with open_board(None) as board:
        return examine(board)


@pytest.mark.slow
def test_an_engine_belongs_to_its_release(stored: EngineRecord, play: Callable[..., None]) -> None:
    built_on, folder = stored.fingerprint, folder_of(stored)
    play("10.16")
    with pytest.raises(EngineError, match=rf"was built for {built_on}, and this is \S+trt10\.16"):
        find_engine(folder, board_facts(), 1)
    assert build(folder, **ONE).fingerprint != built_on and len(ModelFolder(folder).export.engines()) == 2


def test_a_model_whose_images_are_gone_is_built_with_loud_warnings(folder: Path, play: Callable[..., None]) -> None:
    moved = {"data": "/nowhere/images"}
    reseal(folder / "derivation.json", lambda content: content["data"].update(moved))
    play(fault="fp16")  # which nobody can see
    engine = build(folder)
    assert engine.accuracy is None and engine.precision_level == "fp16"
    told = " ".join(engine.warnings)
    assert (
        "/nowhere/images" in told
        and "ACCURACY ON THE BOARD NOT CHECKED" in told
        and "THIS ENGINE WAS NOT CHECKED" in told
    )


def test_a_board_without_tensorrt_or_of_another_profile_is_refused(
    folder: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProfileError, match="orin-nx-16gb"):
        build(folder, profile="orin-nx-16gb")
    monkeypatch.delenv("PYTHONPATH")
    with pytest.raises(UnfitBoardError, match=r"no TensorRT on this machine.*apt install python3-libnvinfer"):
        build(folder)


@pytest.mark.parametrize(
    ("fault", "error", "message"),  # at the last level, and so in fp32 from the first
    [
        ("no-tactic", EngineError, r"fp32 cannot be built: TensorRT 10\.3\.0 says .*Could not find any implementation"),
        ("out-of-memory", AgentError, r"cannot build an engine: .*OutOfMemory.*; close other programs"),
        (
            "tight-workspace",
            AgentError,
            r"cannot build an engine: it skipped kernels for want of memory, .*; close other programs",
        ),
        ("batch:8", EngineError, r"no engine is right: fp32 loses .*, at batch 8; "),
    ],
)
def test_a_build_that_fails_is_told_as_the_board_tells_it(
    folder: Path, play: Callable[..., None], fault: str, error: type[Exception], message: str
) -> None:
    play(fault=fault)
    with pytest.raises(error, match=message):
        build(folder, fp16=False)
    assert ModelFolder(folder).export.engines() == []


@pytest.mark.slow
@pytest.mark.parametrize("release", ["8.6.1", "10.3.0"])
def test_a_precision_that_cannot_be_built_is_left_for_the_next(
    folder: Path, play: Callable[..., None], release: str
) -> None:
    play(release, "no-fp16-tactic")
    record = build(folder, **ONE)
    assert record.precision_level == "fp32"
    assert [attempt.precision_level for attempt in record.attempts][:2] == ["fp16", "fp16 with LayerNorm in fp32"]
    failure = record.attempts[0].failure
    assert failure.startswith(f"cannot be built: TensorRT {release} says ") and "Could not find any" in failure


def test_an_engine_whose_layers_cannot_be_read_is_judged_and_kept(folder: Path, play: Callable[..., None]) -> None:
    play(fault="no-layers")
    record = build(folder, **ONE)
    assert record.fused is None and record.accuracy is not None and json.loads(record.layers_path.read_text()) == []
    assert any("the layers of the engine are not known" in text for text in record.warnings)
    assert read_engine(record.path) == record


@pytest.mark.slow
def test_options_reach_the_board(folder: Path, play: Callable[..., None]) -> None:
    record = build(folder, workspace_bytes=64 << 20, optimization_level=2, batches=(2, 4, 4))
    assert (record.workspace_bytes, record.optimization_level, record.batches) == (64 << 20, 2, (2, 4, 4))
    play("8.5.2")
    with pytest.raises(AgentError, match="no optimization levels"):
        build(folder, optimization_level=2)


def test_a_model_too_large_for_one_file_is_refused(
    folder: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgevit.exporting.graph.PROTOBUF_LIMIT_BYTES", 1000)
    export(folder, accuracy=False, fp16=False)
    with pytest.raises(EngineError, match=r"model\.fp32\.onnx\.data has weights of .*, which exceed the 2 GB"):
        build(folder, fp16=False)


@pytest.mark.slow
def test_another_power_mode_than_the_engine_was_built_in_is_said(stored: EngineRecord) -> None:
    described = stored.path.with_suffix(".json")
    described.write_text(ENGINE_KIND.text(replace(stored, board=replace(stored.board, power_mode="15W"))))
    warnings = build(folder_of(stored)).warnings
    assert any("built in power mode 15W" in text and "--rebuild" in text for text in warnings)


def test_an_export_that_cannot_be_made_builds_nothing(folder: Path, play: Callable[..., None]) -> None:

    with pytest.raises(ExportError, match="logits in fp16 are off"):
        build(folder, fp16_error=1e-9)


@pytest.mark.slow
def test_an_engine_without_classes_is_judged_by_its_features_and_evaluated_by_them(
    tmp_path: Path, play: Callable[..., None]
) -> None:
    folder = write_headless(tmp_path / "headless")
    play(fault="fp16")  # its outputs are negated
    notes = Notes()
    record = build(folder, notes, data="digits", max_images=30)
    assert record.precision == "fp32" and [tensor.name for tensor in record.outputs] == ["features"]
    assert "agrees with fp32 to 0.00% on 30 images, 98% is required" in (record.attempts[0].failure or "")
    seen = record.accuracy
    assert seen is not None and (seen.host, seen.board, seen.worst_class, seen.per_class) == (None, None, None, {})
    assert seen.agreement == pytest.approx(1) and seen.images == 30
    result = evaluate(record.path, "digits", max_images=10)
    assert result.agreement == pytest.approx(1) and (result.form, result.top1) == ("engine", None)
    assert engine_table(record).row_count == 1


def test_int8_needs_a_tensorrt_that_takes_types_from_the_file(folder: Path, play: Callable[..., None]) -> None:
    play(release="8.5.2")
    with pytest.raises(EngineError, match=r"TensorRT 8\.5\.2\S* takes no types from a file, .* TensorRT 10"):
        build(folder, **ONE, precision="int8", max_images=20)


@pytest.mark.slow
def test_int8_is_taken_where_it_is_faster_than_fp16_and_otherwise_the_record_says_why(
    tmp_path: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_derived(tmp_path / "m", 64, 64, depth=1, embed_dim=128)
    options = {**QUICK, **ONE, "precision": "int8", "max_images": 20}
    play()
    record = build(folder, **options)
    assert (record.precision, record.onnx.name) == ("fp16", "model.fp16.onnx")
    assert [attempt.precision_level for attempt in record.attempts] == ["int8"]
    assert "is not shown to be faster than fp16: " in str(record.attempts[0].failure)
    monkeypatch.setenv("STANDIN_TENSORRT_NS_PER_BYTE", "50")  # weights of INT8 are half as large
    record = build(folder, **options, rebuild=True)
    assert (record.precision, record.precision_level, record.attempts) == ("int8", "int8", ())
    assert record.onnx.name == "model.int8.fp16.onnx" and record.inputs[0].dtype == "float16"
    assert record.accuracy is not None and record.accuracy.agreement >= 0.98
