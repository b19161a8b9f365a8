"""Which file of a model is measured: the exported one that is unaltered, and nothing that is weights alone."""

import onnx
import pytest
from small_models import write_halves

import edgevit
from edgevit.board.models import check_sendable, find_file
from edgevit.errors import CheckpointError
from edgevit.records.writing import file_sha256


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = write_halves(tmp_path_factory.mktemp("model") / "m")
    edgevit.export(folder, accuracy=False)
    return folder


@pytest.mark.parametrize(("provider", "precision"), [(None, "fp32"), ("cpu", "fp32"), ("cuda", "fp16")])
def test_a_folder_gives_the_file_that_its_provider_runs_best(exported, provider, precision):
    found = find_file(exported, None, provider)
    assert found.path == exported / "export" / f"model.{precision}.onnx" and found.label == "m"
    spec = edgevit.load(exported).spec
    assert found.sha256 == file_sha256(found.path) and (found.work.macs, found.work.params) == (spec.macs, spec.params)


def test_what_cannot_be_measured_says_what_can(exported, tmp_path):
    (tmp_path / "two words.safetensors").write_bytes(b"x")
    for path, said in (
        (tmp_path / "two words.safetensors", r"holds weights alone; try `edgevit base NAME --checkpoint '.*' --out"),
        (tmp_path / "nothing", "expected a model folder, an ONNX file or an engine"),
    ):
        with pytest.raises(CheckpointError, match=said):
            find_file(path, None, None)


def test_a_file_whose_weights_are_in_others_is_not_sent_to_a_board(exported, tmp_path):
    file = tmp_path / "model.onnx"
    model = onnx.load(exported / "export/model.fp32.onnx")
    onnx.save(model, file, save_as_external_data=True, location="model.data", size_threshold=0)
    with pytest.raises(
        CheckpointError, match=r"model\.onnx has its weights in other files, which are not sent to orin;"
    ):
        check_sendable(find_file(file, None, None), "orin")
    check_sendable(find_file(exported, None, None), "orin")
    file.write_bytes(b"no model")
    check_sendable(find_file(file, None, None), "orin")
