"""`edgevit export` and `edgevit evaluate` as a person types them: exit codes, one-line errors, JSON on stdout."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import timm
import torch
from foreign_onnx import HOW, with_det, write_vit
from places import STANDINS
from typer.testing import CliRunner, Result

from edgevit.cli.app import app
from edgevit.errors import EdgeVitError
from edgevit.network.folder import save
from edgevit.network.model import describe

pytestmark = pytest.mark.usefixtures("examined_once")
ARGS = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 10}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("vit_tiny_patch16_224", **ARGS)
    path = tmp_path_factory.mktemp("cli") / "model"
    save(describe(network, "vit_tiny_patch16_224", ARGS), path)
    return path


def test_export_shows_a_table_and_warns_on_stderr(folder: Path) -> None:
    result = run("export", folder)
    assert result.exit_code == 0, result.output
    assert "model.fp16.onnx" in result.stdout and "relative error of logits" in result.stdout
    assert "top-1" not in result.stdout, "nothing was classified"
    assert result.stdout.splitlines()[-1] == f"Next: edgevit bench {folder}"
    assert "warning: accuracy not checked" in result.stderr and "warning" not in result.stdout


@pytest.mark.slow
def test_export_json_is_all_of_stdout_and_is_the_record(folder: Path) -> None:
    result = run("export", folder, "--data", "digits", "--batch", 4, "--no-fp16", "--json", "-q")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown == json.loads((folder / "export" / "export.json").read_text())
    assert shown["batch"] == 4 and shown["accuracy"]["files"]["fp32"]["agreement"] == 1


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine is a board, with the stand-in for TensorRT."""
    monkeypatch.setenv("PYTHONPATH", str(STANDINS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tmp_path))
    monkeypatch.setenv("STANDIN_TENSORRT_FAULT", "fp16-layernorm")


def test_an_engine_has_its_own_table_and_is_in_the_json(folder: Path, standin: None) -> None:
    arguments = ("export", folder, "--trt", "--no-accuracy", "--data", "digits", "--max-images", 100)
    shown = run(*arguments)
    assert shown.exit_code == 0, shown.output
    for text in ("fp16 with LayerNorm in fp32", "worst class", "1 of 1", "for batches 1 to 8; top-1 on 100 validation"):
        assert text in shown.stdout
    assert "trying fp16 with LayerNorm in fp32" in shown.stderr
    again = run(*arguments, "--json", "-q")
    answer = json.loads(again.stdout)
    engine = answer.pop("engine")
    assert answer == json.loads((folder / "export" / "export.json").read_text())
    assert Path(engine["path"]).name == engine["file"] and engine["precision"] == "mixed"
    assert engine["accuracy"]["images"] == 100 and len(engine["accuracy"]["per_class"]) == 10


@pytest.mark.slow
def test_an_onnx_file_of_another_program_goes_the_same_way(tmp_path: Path, folder: Path, standin: None) -> None:
    file, out = write_vit(tmp_path / "m.onnx", depth=1), tmp_path / "m"
    told = run("export", file, "--data", "digits", "--classes", "3,5,8", "--max-images", 60, "--trt", *HOW)
    assert told.exit_code == 0, told.output
    assert "agrees with" in told.stdout and "m.onnx" in told.stdout and "fp16" in told.stdout
    assert f"files of {file} are written to {out}" in told.stderr.replace("\n", "")
    judge, bench = told.stdout.splitlines()[-2:]
    assert bench == f"Next: edgevit bench {out} --runner tensorrt"
    assert "recognised 1 blocks and 3 layer normalisations" in told.stderr
    again = run("export", out, "--trt", "--max-images", 60, "--json", "-q")
    (engine,) = (out / "export" / "engines").glob("*/*.engine")
    assert json.loads(again.stdout)["engine"]["path"] == str(engine), "reused: its folder says the classes and the data"
    shown = run("show", out)
    assert "m.onnx, opset 16, batch dynamic, 10 outputs: 3 is output 3" in " ".join(shown.stdout.split())
    typed = judge.replace("\n", "").partition(": edgevit ")[2].split()
    assert typed == ["evaluate", str(engine), "--data", "digits"]
    judged = json.loads(run(*typed, "--max-images", 30, "--json", "-q").stdout)
    assert (judged["form"], judged["images"]) == ("engine", 30)
    measured = run("bench", out, "--runner", "tensorrt", "--duration", 0.2, "--warmup", 0, "--json", "-q")
    assert measured.exit_code in (0, 4), measured.output
    shutil.copytree(out, tmp_path / "other")
    few = ("--duration", 0.05, "--samples", 10, "--warmup", 0, "--warmup-seconds", 0, "--repeat", 2)
    run("export", folder, "--no-accuracy", "-q")
    for runner, runs in (("tensorrt", tmp_path / "e.jsonl"), ("onnxruntime", tmp_path / "o.jsonl")):
        beside = (tmp_path / "other",) if runner == "tensorrt" else (folder,)
        turns = run("bench", *beside, out, "--runner", runner, *few, "--output", runs, "-q")
        assert turns.exit_code in (0, 4), turns.output
        compared = run("compare", runs, "--json")
        (first, *_) = json.loads(compared.stdout)["comparisons"]
        names = [first[which].split()[0] for which in ("before", "after")]
        assert compared.exit_code in (0, 4) and names == [beside[0].name, "m"]
    assert "holds an ONNX file" in str(run("derive", out, "--data", "digits", "--rate", 0.5, "--out", "d").exception)


def test_an_operator_that_the_target_lacks_is_refused_in_one_line(tmp_path: Path, standin: None) -> None:
    """ONNX Runtime has it, so nothing is wrong until the board reads the file."""
    file = with_det(write_vit(tmp_path / "det.onnx", depth=1))
    told = run("export", file, "--trt", "--no-accuracy", "--no-fp16", *HOW)
    assert told.exit_code == 1 and isinstance(told.exception, EdgeVitError), told.output
    assert "TensorRT 10.3.0 cannot read the model: " in (said := str(told.exception)) and "\n" not in said
    assert "op: Det" in said and said.endswith(
        "export it with a lower opset (--opset, of a model folder), or without that operator"
    )
    assert (tmp_path / "det" / "export").is_dir() and not list((tmp_path / "det").rglob("*.engine"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "nowhere"], "nowhere does not exist; check the path of the model folder"),
        (["export", "FOLDER", "--batch", "many"], "--batch many"),
        (["export", "FOLDER", "--opset", "23"], "17 to 20"),
        (["export", "FOLDER", "--data", "digitz"], "data digitz does not exist"),
        (["export", "FOLDER", "--device", "gpu"], "no device 'gpu'"),
        (["export", "FOLDER", "--no-accuracy", "--fp16-tolerance", "0"], "logits in fp16 are off"),
        (["export", "FOLDER", "--board", "jetson@orin"], "--board is for an engine; give --trt, too"),
        (["export", "FOLDER", "--rebuild"], "--rebuild is for an engine"),
        (["export", "FOLDER", "--trt", "--batches", "1,8"], "--batches 1,8 is not three numbers"),
        (["export", "FOLDER", "--trt", "--batches", "4,1,8"], "--batches 4,1,8 does not ascend"),
        (["export", "FOLDER", "--trt", "--batches", "0,1,8"], "does not ascend from 1"),
        (["export", "FOLDER", "--trt", "--workspace", "0"], "--workspace is 0"),
        (["export", "FOLDER", "--trt", "--optimization-level", "9"], "not one of 0 to 5"),
        (["export", "FOLDER", "--trt", "--engine-agreement", "98"], "--engine-agreement 98 is not in [0, 1]"),
        (["export", "FOLDER", "--trt", "--profile", "orin-nxx"], "orin-nxx"),
        (["evaluate", "FOLDER"], "--data"),
        (["evaluate", "FOLDER", "--data", "digits", "--classes", "33"], "no class is named 33"),
        (["evaluate", "vit_tiny_patch16_224", "--data", "digits"], "--checkpoint"),
        (["evaluate", "vit_tiny_patch16_225", "--data", "digits", "--pretrained"], "did you mean"),
    ],
)
def test_bad_input_is_one_line(folder: Path, arguments: list[str], said: str) -> None:
    result = run(*[str(folder) if a == "FOLDER" else a for a in arguments])
    assert isinstance(result.exception, EdgeVitError)  # app.main prints it and exits 1
    assert said in str(result.exception) and "\n" not in str(result.exception)
    assert result.stdout == ""


def test_help_imports_no_torch() -> None:
    import subprocess

    program = "import sys; from edgevit.cli import evaluate, export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
