from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from model_folders import derivation_of, export_of, some_spec
from some_engines import add

from edgevit.errors import CheckpointError, EngineError, ExportError
from edgevit.records.model_folder import ModelFolder, model_of
from edgevit.records.model_folder import export_of as export_with
from edgevit.records.names import MODEL_FOLDER
from edgevit.records.writing import file_sha256


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    folder = ModelFolder(tmp_path)
    folder.weights_file.write_bytes(b"weights")
    folder.write(some_spec(), card="a card\n", derivation=derivation_of(None), history=[{"step": 1}, {"step": 2}])
    return folder


def test_what_is_written_is_read_again(folder: ModelFolder) -> None:
    assert folder.spec() == some_spec() and folder.derivation() == derivation_of(None)
    assert folder.document().weights_sha256 == file_sha256(folder.weights_file)
    assert folder.card_file.read_text() == "a card\n"
    assert folder.history_file.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert folder.is_model and not folder.is_supernet
    assert {file.name for file in folder.path.iterdir()} < MODEL_FOLDER


def test_a_record_that_lost_its_seal_is_refused(folder: ModelFolder) -> None:
    for file, read in ((folder.spec_file, folder.document), (folder.derivation_file, folder.derivation)):
        content = json.loads(file.read_text())
        del content["content_sha256"]
        file.write_text(json.dumps(content))
        with pytest.raises(CheckpointError, match=r"was altered: the hash of its content is .* the file states none"):
            read()


def test_a_record_of_another_model_is_refused_and_both_are_named(folder: ModelFolder, tmp_path: Path) -> None:
    other = ModelFolder(tmp_path / "other")
    other.path.mkdir()
    other.weights_file.write_bytes(b"other weights")
    other.write(some_spec(), derivation=derivation_of(None))
    folder.derivation_file.write_text(other.derivation_file.read_text())
    own, foreign = (one.document().weights_sha256[:12] for one in (folder, other))
    both = rf"is of other weights \({foreign}\) than {tmp_path} has \({own}\): it belongs to another model; "
    with pytest.raises(CheckpointError, match=rf"^{folder.derivation_file} {both}copy the folder again"):
        folder.derivation()
    folder.export.path.mkdir()
    record = export_of({})
    for weights, refused in ((foreign, True), (folder.weights_sha256(), False)):
        model = replace(record.model, weights_sha256=weights.ljust(64, "0"))
        folder.export.write_record(replace(record, model=model))
        if refused:
            with pytest.raises(ExportError, match=r"of other weights .*; export this one again with `edgevit"):
                folder.export_record()
    assert folder.export_record().folder == folder.export.path
    engine = add(folder.path).path
    with pytest.raises(EngineError, match=rf"^{engine} is of other weights .*build one of this model with `edgevit"):
        folder.engine_record(engine)


def test_a_base_says_no_derivation(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path)
    folder.weights_file.write_bytes(b"weights")
    folder.write(some_spec())
    assert folder.derivation() is None and not folder.card_file.exists() and not folder.history_file.exists()
    with pytest.raises(CheckpointError, match=r"is not a super-network: no supernet\.json in it; make one"):
        folder.supernet()
    with pytest.raises(CheckpointError, match="is not a super-network: no such folder"):
        ModelFolder(tmp_path / "none").supernet()


def test_an_export_and_its_engines_lie_in_the_model_folder(folder: ModelFolder) -> None:
    export = folder.export
    export.path.mkdir()
    for label in ("fp32", "fp16"):
        export.onnx(label).touch()
    assert [file.name for file in export.onnx_files()] == ["model.fp16.onnx", "model.fp32.onnx"]
    export.write_record(export_of({}))
    assert export.record().folder == export.path and export_with(export.onnx("fp32")) == export
    older, newer = add(folder.path, created="2026-01-01"), add(folder.path, created="2026-02-01")
    assert export.engines() == [newer, older]
    assert model_of(newer.path) == folder
    newer.path.unlink()
    assert export.engines() == [older], "a record without its engine tells of nothing"
