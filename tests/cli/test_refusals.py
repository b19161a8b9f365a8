"""A mistake that names, numbers, paths and listings can tell is refused at once: before torch or timm is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Runs every command line of stdin in one interpreter, and tells for each how it ended and what it has imported.
RUNNER = """
import contextlib, io, json, sys
from edgevit.cli.app import _run
told = []
for arguments in json.load(sys.stdin):
    sys.argv = ["edgevit", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = _run()
    heavy = sorted({"torch", "timm", "onnx", "onnxruntime", "sklearn", "accelerate"} & set(sys.modules))
    told.append([code, said.getvalue(), heavy])
print(json.dumps(told))
"""
BASE = ["vit_tiny_patch16_224", "--checkpoint", "weights.safetensors"]
TASK = ["--data", "images", "--classes", "cat,dog"]
GIVEN = ["derive", *BASE, *TASK, "--out", "new"]
DERIVE = [*GIVEN, "--rate", "0.5"]
SUPERNET = ["supernet", *BASE, *TASK, "--out", "new"]
SWEEP = ["sweep", *BASE, *TASK, "--out", "new"]
ONNX = ["export", "other.onnx", "--out", "new"]
PACKAGE = ["package", "images", "--triton", "--out", "new"]
EVALUATE = ["evaluate", *BASE, *TASK]

REFUSED: list[tuple[list[str], str]] = [
    # budget and output
    (GIVEN, "a budget is one of --rate, --macs, --params, --ms, --mj and --fps, not none"),
    ([*DERIVE, "--macs", "1G"], "not --rate and --macs"),
    ([*GIVEN, "--rate", "1.5"], "--rate 1.5"),
    ([*GIVEN, "--rate", "half"], "--rate half is not a number; try 0.6"),
    ([*GIVEN, "--macs", "lots"], "--macs lots is not a positive count"),
    ([*DERIVE, "--ms", "5"], "--rate and --ms exclude each other"),
    ([*GIVEN, "--ms", "5,5"], "--ms has a number twice"),
    ([*DERIVE, "--threads", "1"], "--threads is for a budget that is measured"),
    ([*GIVEN, "--ms", "5", "--cost-table", "nowhere.yaml"], "nowhere.yaml"),
    ([*DERIVE, "--out", "images"], "images exists and is not overwritten"),
    ([*DERIVE, "--out", "images", "--overwrite"], "images is not a model folder, so it is not overwritten"),
    ([*DERIVE, "--out", "begun"], "begun.partial holds an unfinished derivation; add --resume"),
    # names
    ([*DERIVE, "--method", "forg"], "no method 'forg'; did you mean 'forge'"),
    ([*DERIVE, "--shape", "fuse"], "no shape policy 'fuse'"),
    ([*DERIVE, "--ffn-multiple", "7"], "FFN multiple 7"),
    ([*DERIVE, "--head", "half"], "no head 'half'"),
    ([*DERIVE, "--device", "gpu"], "no device 'gpu'"),
    ([*DERIVE, "--schedule", "linear"], "no schedule 'linear'"),
    ([*DERIVE, "--precision", "int8"], "no precision 'int8'"),
    ([*DERIVE, "--augment", "mixup"], "no augmentation 'mixup'"),
    ([*DERIVE, "--set", "forge.algin=1"], "forge has no option 'algin'; did you mean 'align'"),
    ([*DERIVE, "--set", "forge.cut_tokens=now"], "forge.cut_tokens has no value 'now'"),
    ([*DERIVE, "--set", "nuwa.ridge=1"], "an option of 'nuwa', but the method is 'forge'"),
    ([*DERIVE, "--classes", "cat,dgo"], "no class 'dgo'; did you mean 'dog'"),
    ([*DERIVE, "--interpolation", "cubic"], "--interpolation cubic is unknown"),
    # numbers
    ([*DERIVE, "--lr", "0"], "--lr 0"),
    ([*DERIVE, "--reject", "2"], "--reject 2"),
    ([*DERIVE, "--validation-fraction", "1"], "--validation-fraction 1"),
    # files and folders
    (["derive", "--rate", "0.5", "--out", "new", *TASK], "nothing to derive from"),
    (
        ["derive", "--checkpoint", "my weights.pt", "--out", "new", *TASK],
        "such as my weights.pt itself, without --chec",
    ),
    (["derive", *BASE, "--rate", "0.5", "--out", "new"], "--data is missing"),
    ([*DERIVE, "--data", "nowhere"], "data nowhere does not exist"),
    ([*DERIVE, "--data", "weights.safetensors"], "data weights.safetensors is not a folder"),
    ([*DERIVE, "--classes", "nowhere.txt"], "no class file at nowhere.txt"),
    ([*DERIVE, "--base-classes", "nowhere.txt"], "no class file at nowhere.txt"),
    ([*DERIVE, "--unlabelled", "nowhere"], "unlabelled images: nowhere does not exist"),
    ([*DERIVE, "--checkpoint", "nowhere.pt"], "no weights at nowhere.pt"),
    ([*DERIVE, "--pretrained"], "--checkpoint and --pretrained exclude each other"),
    (["derive", "runs/nowhere", *TASK, "--rate", "0.5", "--out", "new"], "no model folder at runs/nowhere"),
    (["derive", "images", *TASK, "--rate", "0.5", "--out", "new"], "images is not a complete model folder"),
    (["derive", "vit_tiny_patch16_224", *TASK, "--rate", "0.5", "--out", "new"], "needs weights: give --checkpoint"),
    (["derive", "--method", "skd", "--rate", "0.5", "--out", "new"], "give it with --supernet NET"),
    (["derive", "--method", "skd", "--supernet", "nowhere", "--rate", "0.5", "--out", "new"], "no such folder"),
    ([*DERIVE, "--supernet", "nowhere"], "is for --method skd"),
    # the same for other commands
    ([*SUPERNET, "--out", "images"], "images exists and is not overwritten"),
    ([*SUPERNET, "--out", "begun"], "begun.partial holds an unfinished derivation"),
    ([*SUPERNET, "--set", "supernet.point=3"], "did you mean 'points'"),
    ([*SUPERNET, "--shape", "fuse"], "no shape policy 'fuse'"),
    ([*SUPERNET, "--data", "nowhere"], "data nowhere does not exist"),
    ([*SUPERNET, "--checkpoint", "nowhere.pt"], "no weights at nowhere.pt"),
    ([*SUPERNET, "--classes", "cat,dgo"], "no class 'dgo'"),
    ([*SUPERNET, "--device", "gpu"], "no device 'gpu'"),
    (["base", *BASE, "--out", "images"], "images exists and is not overwritten"),
    (["base", *BASE, "--out", "new", "--data", "nowhere"], "data nowhere does not exist"),
    (["base", "vit_tiny_patch16_224", "--checkpoint", "nowhere.pt", "--out", "new"], "no weights at nowhere.pt"),
    (["base", *BASE, *TASK[:2], "--classes", "cat,dgo", "--out", "new"], "no class 'dgo'"),
    ([*EVALUATE, "--data", "nowhere"], "data nowhere does not exist"),
    ([*EVALUATE, "--split", "train"], "no part of the data 'train'"),
    ([*EVALUATE, "--device", "gpu"], "no device 'gpu'"),
    ([*EVALUATE, "--max-images", "0"], "--max-images 0"),
    ([*EVALUATE, "--classes", "cat,dgo"], "no class 'dgo'"),
    (["evaluate", "nowhere.onnx", *TASK], "there is no nowhere.onnx"),
    (["evaluate", "nowhere.engine", *TASK], "there is no nowhere.engine"),
    (["evaluate", "alone.engine", *TASK], "alone.engine has no record alone.json"),
    ([*EVALUATE, "--board", "orin"], "--board is for an engine, and vit_tiny_patch16_224 is not one"),
    (["evaluate", "runs/nowhere", *TASK], "no model folder at runs/nowhere"),
    (["evaluate", *BASE[:2], "nowhere.pt", *TASK], "no weights at nowhere.pt"),
    ([*SWEEP, "--rates", "half"], "--rates half"),
    ([*SWEEP, "--data", "nowhere"], "data nowhere does not exist"),
    ([*SWEEP, "--method", "forg"], "no method 'forg'"),
    ([*SWEEP, "--checkpoint", "nowhere.pt"], "no weights at nowhere.pt"),
    (["export", "nowhere"], "nowhere does not exist"),
    (["export", "images"], "images is not a complete model folder"),
    (["export", "nowhere", "--opset", "3"], "opset 3"),
    (["export", "nowhere", "--batch", "many"], "--batch many"),
    (["export", "nowhere", "--board", "orin"], "--board is for an engine; give --trt, too"),
    ([*ONNX, "--pad-heads"], "--pad-heads is for model folders: an ONNX file keeps its heads"),
    ([*ONNX, "--opset", "17"], "--opset 17 is for model folders: an ONNX file keeps its own"),
    ([*ONNX, "--classes", "cat"], "--classes and --base-classes are of the images of --data"),
    ([*ONNX, "--data", "images", "--classes", "cat,dgo"], "no class 'dgo'; did you mean 'dog'"),
    ([*ONNX, "--input-size", "224"], "--input-size 224 is not channels, height and width; try 3x224x224"),
    ([*ONNX, "--crop-mode", "middle"], "no crop mode 'middle'"),
    ([*ONNX, "--std", "0"], "--std 0 is not above 0"),
    ([*ONNX, "--out", "images"], "images exists and is not overwritten"),
    (["export", "other.onnx"], "other exists and is not overwritten; choose another --out, or remove it"),
    (["export", "nowhere.onnx", "--out", "new"], "there is no nowhere.onnx"),
    (
        ["export", "my weights.pt", "--out", "new"],
        "contains only weights; try `edgevit base 'my weights.pt' --out DIR`",
    ),
    (["export", "images", "--out", "new"], "--out is for an ONNX file, and images is not one"),
    (["export", "images", "--mean", "0.5"], "--mean is for an ONNX file, and images is not one; leave it out"),
    (
        ["export", "images", "--classes", "a,b"],
        "--classes is for an ONNX file, and images is not one; give it to `edgevit",
    ),
    (["show", "nowhere"], "nowhere does not exist"),
    (["package", "images", "--out", "new"], "one of --triton, --deepstream, --python, --cpp, not none"),
    (["package", "images", "--triton", "--cpp", "--out", "new"], "not --triton and --cpp"),
    ([*PACKAGE, "--precision", "fp8"], "no precision 'fp8'"),
    (["package", "images", "--triton", "--out", "images"], "images exists and is not overwritten"),
    (["package", "nowhere.engine", "--triton", "--out", "new"], "there is no nowhere.engine"),
    (["package", "other.onnx", "--triton", "--out", "new"], "`edgevit export other.onnx` makes one of it"),
    (["show", "images"], "images is not a complete model folder"),
    (["derive-many", "nowhere.yaml"], "nowhere.yaml"),
    (["fleet", "nowhere.yaml"], "nowhere.yaml"),
    (["fleet", "nowhere.yaml", "--only", "5/4"], "--only 5/4 is not a part"),
    (["bench", "nowhere"], "no model at nowhere"),
    (["bench", "nowhere", "--compare", "nowhere.jsonl"], "nowhere.jsonl"),
    (["bench", "nowhere", "--gate", "speed"], "speed"),
    (["compare", "nowhere.jsonl", "other.jsonl"], "nowhere.jsonl"),
    (["profiles", "orin-nano-3gb"], "orin-nano"),
    (["board", "--profile", "orin-nano-3gb"], "orin-nano"),
    (["methods", "forg"], "no method 'forg'; did you mean 'forge'"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("refusals")
    for name in ("cat", "dog", "hen"):
        (folder / "images" / name).mkdir(parents=True)
        (folder / "images" / name / "1.png").touch()
    (folder / "weights.safetensors").touch()
    (folder / "my weights.pt").touch()
    (folder / "alone.engine").touch()
    (folder / "other.onnx").touch()
    (folder / "other").mkdir()
    (folder / "begun.partial").mkdir()
    (folder / "begun.partial" / "masks.safetensors").touch()
    before = sorted(folder.rglob("*"))
    lines = json.dumps([arguments for arguments, _ in REFUSED])
    done = subprocess.run([sys.executable, "-c", RUNNER], input=lines, text=True, capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sorted(folder.rglob("*")) == before
    told: list[Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[" ".join(arguments)[-60:] for arguments, _ in REFUSED])
def test_it_is_refused_in_one_line_before_torch_is_imported(answers: list[Any], number: int) -> None:
    (code, said, heavy), expected = answers[number], REFUSED[number][1]
    assert (code, heavy) == (1, []), said
    assert said.startswith("error: ") and said.count("\n") == 1 and expected in said, said


def test_a_partial_folder_that_holds_no_training_is_no_obstacle(tmp_path: Path) -> None:
    from edgevit.errors import OutputError
    from edgevit.records.unfinished import refuse_unfinished

    for name in ("request.json", "baselines.json", "history.jsonl"):
        (tmp_path / name).touch()
    refuse_unfinished(tmp_path, resume=False)
    (tmp_path / "train").mkdir()
    with pytest.raises(OutputError, match="add --resume and the same options to continue it"):
        refuse_unfinished(tmp_path, resume=False)


# -- --overwrite -------------------------------------------------------------------------------------------------------


def test_a_model_folder_is_overwritten_once_the_new_one_is_whole(
    edgevit_main: Any, small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    save_file(small_vit().state_dict(), tmp_path / "w.safetensors")
    sizes = [part for text in ("img_size=32", "patch_size=8", "embed_dim=64", "depth=2", "num_heads=2")
             for part in ("--model-arg", text)]  # fmt: skip
    command = ["base", "vit_tiny_patch16_224", *sizes, "--checkpoint", tmp_path / "w.safetensors", "--out"]
    out = tmp_path / "m"
    assert edgevit_main(*command, out).code == 0
    assert "replace it with --overwrite" in edgevit_main(*command, out).error
    (out / "README.md").write_text("earlier")
    failed = edgevit_main(*command, out, "--overwrite", "--data", "digits", "--classes", "1,2,77")
    assert failed.code == 1 and (out / "README.md").read_text() == "earlier"
    assert edgevit_main(*command, out, "--overwrite").code == 0
    assert (out / "README.md").read_text() != "earlier"
    (out / "thesis.tex").touch()
    assert "holds 'thesis.tex', which edgevit did not write" in edgevit_main(*command, out, "--overwrite").error
    assert sorted(f.name for f in tmp_path.iterdir()) == ["m", "w.safetensors"]
