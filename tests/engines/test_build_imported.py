"""Engines of an ONNX file that edgevit did not make: built, judged, stored, found and evaluated as others are.

TensorRT is the stand-in, which runs engines with ONNX Runtime; with `fp16-range` it rounds what fp16 nodes put out, so
that an overflow is one. Nothing here says that an Orin does the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from board_fixtures import playing
from dense_networks import write_frames
from foreign_onnx import PREPARED, quantised, write_vit
from recorded_progress import RecordedProgress

from edgevit.board.connection import open_board
from edgevit.board.facts import examine
from edgevit.board.models import find_engine_file
from edgevit.engines.build import build_engine
from edgevit.engines.request import EvaluateRequest, ExportRequest
from edgevit.engines.run import evaluate, evaluate_engine, export
from edgevit.errors import EngineError, ExportError
from edgevit.exporting.imported.source import open_imported
from edgevit.exporting.source import Form
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportedFile
from edgevit.records.model_folder import ModelFolder
from edgevit.records.writing import file_sha256
from edgevit.request import request_of

pytestmark = pytest.mark.usefixtures("examined_once")
Play = Callable[..., None]
IMAGES = 50
NORMS = ("blocks.0.norm1", "blocks.0.norm2", "blocks.1.norm1", "blocks.1.norm2", "head.norm1")


def build(folder: Path, notes: RecordedProgress | None = None, **options: object) -> EngineRecord:
    with open_board(None) as board:
        asked = {"accuracy": False, "max_images": IMAGES, "batches": (4, 4, 4), **options, "model": folder, "trt": True}
        return build_engine(request_of(ExportRequest, asked, "build"), board, notes or RecordedProgress())


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a ViT with decomposed normalisations whose squares are beyond fp16, exported."""
    home = tmp_path_factory.mktemp("overflowing")
    file = write_vit(home / "other.onnx", stream=300)
    export(file, out=home / "m", data="digits", preprocessing=PREPARED, accuracy=False)
    return home / "m"


@pytest.fixture
def folder(overflowing: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(overflowing, tmp_path / "m"))


def test_the_range_check_names_what_overflows_before_anything_is_built(overflowing: Path) -> None:
    report = ModelFolder(overflowing).export.record()
    assert report.range is not None and report.range.activations_largest > 65504
    assert report.range.activations_where.endswith("/Pow")
    assert {name for name in report.range.overflowing if name.endswith("/Pow")} == {f"{name}/Pow" for name in NORMS}
    assert report.fp32_modules == NORMS
    assert report.fusion is None or report.fusion.fused == 2, "TensorRT-RTX builds it, and fuses beside these norms"
    assert any("fp16 overflows in blocks.0.norm1/Pow" in text for text in report.warnings)


@pytest.fixture(scope="module")
def built(overflowing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same with an engine, to be looked at and not changed."""
    home = tmp_path_factory.mktemp("board")
    folder = Path(shutil.copytree(overflowing, home / "m"))
    with pytest.MonkeyPatch.context() as patch:
        playing(patch, home)(fault="fp16-range")
        build(folder)
        yield folder


def test_the_ladder_begins_with_these_in_fp32_and_is_right(built: Path) -> None:
    (record,) = ModelFolder(built).export.engines()
    assert (
        record.precision_level == "fp16 with LayerNorm in fp32"
        and record.fp32_modules == NORMS
        and record.attempts == ()
    )
    assert record.onnx.name == "model.fp16.onnx", "which the export wrote so"
    assert record.accuracy is not None and record.accuracy.agreement >= 0.98 and record.accuracy.images == IMAGES
    assert record.weights_sha256 == ModelFolder(built).imported().weights_sha256
    assert (record.blocks, record.fused_expected) == (2, 2)


def force_fp16(folder: Path) -> None:
    """Put a file into the export that is fp16 throughout, as a converter that does not look makes it."""
    files = ModelFolder(folder)
    path, report = files.export.onnx("fp16"), files.export.record()
    open_imported(folder).write(path, Form("fp16", report.batch, report.opset), {})
    listed = {**report.files, path.name: ExportedFile(file_sha256(path), path.stat().st_size, None)}
    files.export.write_record(replace(report, files=listed, fp32_modules=()))


@pytest.mark.slow
def test_the_gate_refuses_fp16_that_overflows_and_the_ladder_ends_with_the_norms_in_fp32(
    folder: Path, play: Play
) -> None:
    force_fp16(folder)
    play(fault="fp16-range")
    notes = RecordedProgress()
    record = build(folder, notes)
    assert [attempt.precision_level for attempt in record.attempts] == ["fp16"] and record.attempts[
        0
    ].failure is not None
    assert "agrees with fp32 on" in record.attempts[0].failure or "loses" in record.attempts[0].failure
    assert record.precision_level == "fp16 with LayerNorm in fp32" and record.fp32_modules == NORMS
    assert record.accuracy is not None and record.accuracy.agreement >= 0.98
    written = onnx.load(folder / "export" / record.onnx.name)
    assert record.onnx.name == "model.fp16.norms32.onnx"
    types = {v.name: v.type.tensor_type.elem_type for v in onnx.shape_inference.infer_shapes(written).graph.value_info}
    assert {types[n.output[0]] for n in written.graph.node if n.name.endswith("norm1/Pow")} == {onnx.TensorProto.FLOAT}


@pytest.mark.slow
def test_a_block_that_spoils_fp16_is_found_by_the_names_its_nodes_were_given(folder: Path, play: Play) -> None:
    play(fault="fp16-block:1")
    record = build(folder)
    assert record.precision_level == "fp16 with LayerNorm and block 1 in fp32" and record.fp32_modules[-1] == "blocks.1"


def test_its_engine_is_found_on_its_board_evaluated_like_the_file_and_refused_elsewhere(
    built: Path, play: Play
) -> None:
    (record,) = ModelFolder(built).export.engines()
    with open_board(None) as board:
        assert find_engine_file(built, examine(board), [4], None).path == record.path.absolute()
        seen = evaluate_engine(EvaluateRequest(model=record.path, max_images=IMAGES), board)
    usual = evaluate(built, max_images=IMAGES)
    assert (seen.form, seen.data, seen.images) == ("engine", "digits", IMAGES) and usual.form == "onnx"
    assert abs(seen.top1 - usual.top1) <= 2 / IMAGES and seen.per_class.keys() == usual.per_class.keys()
    play("10.16")
    with open_board(None) as board, pytest.raises(EngineError, match="was built for"):
        find_engine_file(built, examine(board), [4], None)


@pytest.mark.slow
def test_an_older_release_gets_the_file_as_it_is(folder: Path, play: Play) -> None:
    play("8.5.2")
    record = build(folder)
    assert record.onnx.name == "model.fp32.onnx" and not record.strongly_typed


def test_operators_that_an_older_release_lacks_are_told_in_one_line(tmp_path: Path, play: Play) -> None:
    file = write_vit(tmp_path / "new.onnx", opset=17, decomposed=False)
    out = tmp_path / "m"
    export(file, out=out, data="digits", preprocessing=PREPARED, accuracy=False, fp16=False)
    play("8.5.2")
    with pytest.raises(ExportError, match=r"new.onnx has operator set 17, and the board needs 16; export the"):
        build(out, fp16=False)


def test_a_map_is_built_and_judged_on_images_without_labels(tmp_path: Path, play: Play) -> None:
    frames = write_frames(tmp_path / "frames", 150)
    file = write_vit(tmp_path / "other.onnx", depth=1, output="map")
    export(file, out=tmp_path / "m", data=frames, preprocessing=PREPARED, accuracy=False, fp16=False)
    play(fault="always")  # its outputs are negated
    with pytest.raises(EngineError, match=r"no engine is right: fp32 agrees with fp32 to 0\.00% on 12 images"):
        build(tmp_path / "m", fp16=False)
    play()
    record = build(tmp_path / "m", fp16=False)
    assert [(tensor.name, tensor.shape[1:]) for tensor in record.outputs] == [("maps", (1, 32, 32))]
    assert record.accuracy is not None and record.accuracy.agreement == pytest.approx(1)
    assert (record.accuracy.part, record.accuracy.host) == ("validation", None)
    result = evaluate(record.path, frames, max_images=10)
    assert (result.form, result.images, result.agreement) == ("engine", 10, pytest.approx(1, abs=1e-3))


@pytest.mark.parametrize("release", ["10.3.0", "8.5.2"])
def test_a_quantised_file_is_built_as_it_is_and_compared_with_itself(tmp_path: Path, play: Play, release: str) -> None:
    file = quantised(write_vit(tmp_path / "other.onnx", depth=1))
    export(file, out=tmp_path / "m", data="digits", preprocessing=PREPARED, accuracy=False)
    play(release=release, fault="always")
    with pytest.raises(EngineError, match="no engine is right: int8 "):
        build(tmp_path / "m")
    play(release=release)
    record = build(tmp_path / "m")
    assert (record.precision, record.precision_level, record.onnx.name) == ("int8", "int8", "model.int8.onnx")
    assert record.attempts == () and record.accuracy is not None and record.accuracy.agreement == 1
