"""Whatever is wrong is one line: what, seen against expected, and what to try. Exit code 1, and nothing is lost."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

NAME = "vit_tiny_patch16_224"
ARGS = [part for text in ("img_size=32", "patch_size=8", "embed_dim=64", "depth=2", "num_heads=2")
        for part in ("--model-arg", text)]  # fmt: skip
SHORT = ["--steps", "2", "--batch-size", "8", "--evaluations", "1", "--device", "cpu", "-q"]
Make = Callable[[Path, dict[str, int]], Path]


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(f.relative_to(root)): f.read_bytes() if f.is_file() else None for f in root.rglob("*")}


@pytest.fixture
def refused(edgevit_main: Any, digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `derive` on digits, changed as asked, see it refused, and see that it wrote nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*more: object, without: tuple[str, ...] = (), base: object = NAME) -> str:
        options: dict[str, list[object]] = {
            "base": [base],
            "args": [*ARGS],
            "checkpoint": ["--checkpoint", digits_checkpoint],
            "data": ["--data", "digits"],
            "classes": ["--classes", "3,5,8"],
            "budget": ["--rate", "0.5"],
            "method": ["--method", "vulcan"],  # the widths of one that drops nothing have a limit
            "out": ["--out", "out"],
        }
        kept = [part for name, parts in options.items() if name not in without for part in parts]
        before = tree(tmp_path)
        error: str = edgevit_main("derive", *kept, *SHORT, *more).error
        assert tree(tmp_path) == before
        return error

    return run


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_data_folder_that_is_missing_or_empty(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "data nowhere does not exist; expected a folder of" in refused("--data", "nowhere", without=("data",))
    assert "empty holds no class folders" in refused("--data", "empty", without=("data",))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("3,5,x", "no class 'x'; known: 0, 1, 2"),
        ("3,5,33", "no class is named 33, and where names are numbers (0, 1, 2, 3 ...) indices are not taken"),
        ("3,5,3", "class '3' is listed twice; list each class once"),
        ("3", "1 target class: a classifier needs two or more"),
        (",", "lists no classes"),
        ("nowhere.txt", "no class file at nowhere.txt"),
    ],
)
def test_classes_that_cannot_be(refused: Any, classes: str, said: str) -> None:
    assert said in refused("--classes", classes, without=("classes",))


def test_a_class_that_is_mistyped_is_corrected(refused: Any, tmp_path: Path, image_folder: Make) -> None:
    image_folder(tmp_path / "d", {name: 4 for name in ("tabby", "terrier", "koala")})
    (tmp_path / "names.txt").write_text("\n".join(["tabby", "terrier", "koala", *"abcdefg"]))
    error = refused(
        "--data", "d", "--base-classes", "names.txt", "--classes", "tabby,terier", without=("data", "classes")
    )
    assert "no class 'terier'; did you mean 'terrier'" in error
    error = refused("--data", "d", "--classes", "tabby,koala", without=("data", "classes"))
    assert "3 classes ('koala', 'tabby', 'terrier') and the base 10 outputs" in error and "--base-classes" in error


@pytest.mark.quick("cut off")
@pytest.mark.parametrize("content", [b"hello", b"", b"\x89PNG\r\n\x1a\n1234"], ids=["text", "empty", "cut off"])
def test_a_bad_image_is_named_and_can_be_left_out(
    refused: Any, edgevit_main: Any, digits_checkpoint: Path, tmp_path: Path, image_folder: Make, content: bytes
) -> None:
    image_folder(tmp_path / "d", {str(n): 6 for n in range(10)})
    (tmp_path / "d" / "5" / "3.png").write_bytes(content)
    error = refused("--data", "d", without=("data",))
    assert f"cannot read d{os.sep}5{os.sep}3.png: " in error and "--skip-bad-images" in error
    done = edgevit_main("derive", NAME, *ARGS, "--checkpoint", digits_checkpoint, "--data", "d", "--classes", "3,5",
                        "--rate", "0.5", "--steps", "0", "--device", "cpu", "--out", "out", "--skip-bad-images",
                        "--method", "magnitude", "--accept-weak-base", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["data"]["skipped_images"] == 1
    bad = (tmp_path / "d" / "5" / "3.png").resolve()  # in full, so that it is told once however the folder is given
    assert f"left out 1 image that cannot be read: {bad}" in done.err


# -- budget and shape --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", ["1", "1.5", "-0.1"])
def test_a_rate_outside_0_and_1(refused: Any, rate: str) -> None:
    assert "is not between 0 and 1; 0.6 leaves 40 %" in refused("--rate", rate, without=("budget",))


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ([], "a budget is one of --rate, --macs, --params, --ms, --mj and --fps, not none; try --rate 0.6"),
        (["--rate", "0.5", "--macs", "1M"], "not --rate and --macs"),
        (["--rate", "0.5", "--macs", "1M", "--params", "1k"], "not --rate and --macs and --params"),
        (["--macs", "lots"], "--macs lots is not a positive count; try 6.8G"),
        (["--params", "-3"], "--params -3 is not a positive count"),
        (["--macs", "0"], "not a positive count"),
        (["--macs", "1e400"], "--macs 1e400"),
        (["--macs", "1.2.3G"], "not a positive count"),
        (["--macs", "1T"], "is not below the base's"),
        (["--params", "1G"], "is not below the base's"),
    ],
)
def test_a_budget_that_cannot_be(refused: Any, budget: list[str], said: str) -> None:
    assert said in refused(*budget, without=("budget",))


def test_a_budget_below_what_the_shape_reaches_gives_the_minimum(
    refused: Any, edgevit_main: Any, digits_checkpoint: Path
) -> None:
    error = refused("--rate", "0.99", without=("budget",))
    assert "in shape 'fused' reaches no less than" in error and "another --shape" in error
    least = float(error.partition("(rate ")[2].partition(")")[0])
    assert 0.5 < least < 0.9
    assert "reaches no less" in refused("--rate", f"{least + 0.001:.3f}", without=("budget",))
    free = refused("--rate", "0.99", "--shape", "free", without=("budget",))
    assert float(free.partition("(rate ")[2].partition(")")[0]) > least
    assert "reaches no less than" in refused("--params", "10k", without=("budget",))
    command = ["derive", NAME, *ARGS, "--checkpoint", digits_checkpoint, "--data", "digits", "--classes", "3,5", *SHORT]
    done = edgevit_main(*command, "--rate", f"{least - 0.002:.3f}", "--steps", "0", "--out", "out")
    assert done.code == 0, done.err


# -- names and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "vulkan"], "no method 'vulkan'; did you mean 'vulcan'"),
        (["--shape", "fuse"], "no shape policy 'fuse'; did you mean 'fused'"),
        (["--head", "all"], "no head 'all'; did you mean"),
        (["--device", "gpu"], "no device 'gpu'"),
        (["--precision", "fp8"], "no precision 'fp8'; did you mean"),
        (["--precision", "fp16"], "fp16 trains on CUDA only; on the CPU try --precision bf16"),
        (["--augment", "mixup"], "no augmentation 'mixup'"),
        (["--schedule", "step"], "no schedule 'step'"),
        (["--set", "vulcan.colapse=none"], "vulcan has no option 'colapse'; did you mean 'collapse'"),
        (["--set", "vulcan.factorisation=nothing"], "vulcan.factorisation has no value 'nothing'"),
        (["--set", "vulcan.rho=high"], "vulcan.rho=high is not of type float"),
        (["--set", "vulcan.rank=maybe"], "vulcan.rank=maybe is neither true nor false"),
        (["--set", "vulcan.calibration_images=0"], "calibration_images"),
        (["--set", "vulcan.calibration_images=1.5"], "is not of type int"),
        (["--set", "rho=1"], "is not of the form method.option=value"),
        (["--set", "other.rho=1"], "is an option of 'other', but the method is 'vulcan'"),
        (["--ffn-multiple", "12"], "FFN multiple 12 is not one of"),
        (["--embed-multiple", "12"], "embedding multiple 12 is not one of 1, 8, 16, 32, 64"),
        (["--batch-size", "0"], "--batch-size 0 is not in [1, 2**31)"),
        (["--grad-accum", "3"], "batch size 8 does not divide into 3 micro-batches"),
        (["--grad-accum", "0"], "--grad-accum 0 is not in [1, 2**31)"),
        (["--evaluations", "0"], "--evaluations 0 is not in [1, 2**31)"),
        (["--steps", "-1"], "--steps -1 is not in [0, 2**31); 0 trains nothing"),
        (["--lr", "0"], "--lr 0 is not in (0, 1]"),
        (["--lr", "nan"], "--lr nan is not a finite number"),
        (["--weight-decay", "-1"], "--weight-decay -1 is not a finite number of at least 0"),
        (["--warmup-steps", "-1"], "warmup-steps -1"),
        (["--workers", "-1"], "workers -1"),
        (["--validation-fraction", "1"], "--validation-fraction 1 is not in (0, 1); try 0.1"),
        (["--crop-pct", "0"], "--crop-pct 0 is not in (0, 1]"),
        (["--interpolation", "cubic"], "--interpolation cubic is unknown"),
        (["--mean", "0.5,0.5"], "--mean 0.5,0.5 is not one number or three"),
        (["--std", "a"], "--std a is not one number or three"),
        (["--std", "0"], "--std 0"),
        (["--std", "inf"], "--std inf is not a finite number"),
        (["--mean", "0.5,nan,0.5"], "--mean nan is not a finite number"),
        (["--mean", "127,127,127"], "--mean 127 is of pixels up to 255, and here they lie in [0, 1]; divide by 255"),
        (["--std", "58"], "--std 58 is of pixels up to 255"),
        (["--seed", str(2**70)], "--seed of 22 digits is not in"),
        (["--seed", str(2**32)], "--seed 4294967296 is not in [0, 2**32)"),
        (["--set", "vulcan.rho=inf"], "vulcan.rho inf is not a finite number"),
        (["--set", f"vulcan.calibration_images={2**70}"], "vulcan.calibration_images of 22 digits is not in"),
        (["--model-arg", "img_size"], "--model-arg img_size is not of the form"),
        (["--model-arg", "colour=red"], "--model-arg colour is no argument"),
        (["--model-arg", "num_heads=7"], "num_heads=7"),
        (["--base-classes", "nowhere.txt"], "no class file at nowhere.txt"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_an_unknown_name_or_a_value_that_cannot_be(refused: Any, options: list[str], said: str) -> None:
    assert said in refused(*options)


def test_a_device_that_this_machine_lacks(refused: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert "this machine has no cuda device that torch can see; try --device cpu" in refused("--device", "cuda:1")


# -- base and weights --------------------------------------------------------------------------------------------------


def test_a_base_that_is_unknown_or_without_weights(refused: Any, tmp_path: Path) -> None:
    assert "did you mean 'deit_base_patch16_224'" in refused(base="deit_bse_patch16_224")
    assert "no model folder at runs/nowhere" in refused(base="runs/nowhere", without=("checkpoint", "args"))
    assert "needs weights: give --checkpoint FILE" in refused(without=("checkpoint",))
    assert "nowhere is no folder here, and a network" in refused(base="nowhere", without=("checkpoint", "args"))
    (tmp_path / "my base.pth").touch()
    assert "cannot read my base.pth" in refused(base="my base.pth", without=("checkpoint", "args"))
    (tmp_path / "m.onnx").touch()
    assert "m.onnx is an ONNX file" in refused(base="m.onnx", without=("checkpoint", "args"))
    assert "NaFlexVit" in refused(base="naflexvit_base_patch16_gap", without=("checkpoint", "args"))
    assert "torchvision's vit_b_16 has no weights 'V3'; known: IMAGENET1K_V1" in refused(base="vit_b_16.V3")
    download = "`hf download google/vit-base --local-dir DIR`, and give DIR"
    assert download in refused(base="hf-hub:google/vit-base", without=("checkpoint", "args"))
    assert "no weights at nowhere.pth" in refused("--checkpoint", "nowhere.pth", without=("checkpoint",))
    assert "--checkpoint and --pretrained exclude each other" in refused("--pretrained")
    (tmp_path / "folder").mkdir()
    assert "not a complete model folder: model.json" in refused(base="folder", without=("checkpoint", "args"))


def test_a_checkpoint_that_is_truncated_or_of_another_architecture(
    refused: Any, digits_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut.safetensors").write_bytes(digits_checkpoint.read_bytes()[:5000])
    error = refused("--checkpoint", "cut.safetensors", without=("checkpoint",))
    assert "cannot read cut.safetensors" in error and "truncated" in error
    assert "does not fit vit_tiny_patch16_224: it lacks blocks.2" in refused("--model-arg", "depth=3")
    state = load_file(digits_checkpoint)
    towers = {f"{tower}.{k}": v.clone() for tower in ("visual", "written") for k, v in state.items()}
    save_file(towers, tmp_path / "other.safetensors")
    said = refused("--checkpoint", "other.safetensors", without=("checkpoint",))
    assert "it lacks blocks.0" in said and "does not use them: visual." in said


@pytest.mark.parametrize(
    ("argument", "said"), [("qk_norm=True", "qk-norm"), ("scale_mlp_norm=True", "a normalisation inside the FFN")]
)
def test_a_model_that_cannot_be_factorised(refused: Any, tmp_path: Path, argument: str, said: str) -> None:
    import timm
    from small_models import ARGS as SMALL

    name, _, value = argument.partition("=")
    made = timm.create_model(NAME, **SMALL, **{name: value == "True" or value})
    save_file(made.state_dict(), tmp_path / "b.safetensors")
    error = refused("--checkpoint", "b.safetensors", "--model-arg", argument, without=("checkpoint",))
    assert f"cannot prune {NAME}" in error and said in error


def test_a_network_that_is_no_transformer(refused: Any, tmp_path: Path) -> None:
    import timm

    save_file(timm.create_model("resnet10t", num_classes=10).state_dict(), tmp_path / "b.safetensors")
    error = refused("--checkpoint", "b.safetensors", "--model-arg", "num_classes=10", base="resnet10t",
                    without=("checkpoint", "args"))  # fmt: skip
    assert "cannot prune a ResNet: supported families are bert, swin, vit" in error


# -- output ------------------------------------------------------------------------------------------------------------


def test_an_output_that_exists_is_not_touched(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert "out exists and is not overwritten; choose another --out" in refused()
    (tmp_path / "file").write_text("mine")
    assert "file exists and is not overwritten" in refused("--out", "file", without=("out",))
    assert "file is not a folder, so file/below cannot be created" in refused("--out", "file/below", without=("out",))


@pytest.mark.quick("0", "150000")
@pytest.mark.parametrize("limit", [0, 1000, 20_000, 150_000, 400_000])
def test_a_full_disk_is_one_line_and_no_model_folder(
    edgevit_main: Any, digits_checkpoint: Path, tmp_path: Path, limit: int
) -> None:
    """A file that may not grow further stands for a disk that has no room."""
    command = ["derive", NAME, *ARGS, "--checkpoint", digits_checkpoint, "--data", "digits", "--classes", "3,5",
               "--rate", "0.2", "--method", "magnitude", *SHORT, "--evaluations", "2",
               "--out", tmp_path / "out"]  # fmt: skip
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        done = edgevit_main(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot write" in done.error and not (tmp_path / "out").exists()
    assert [f.name for f in tmp_path.iterdir()] in ([], ["out.partial"])
    again = edgevit_main(*command, "--resume")
    assert again.code == 0, again.err
    assert [f.name for f in tmp_path.iterdir()] == ["out"]


# -- show and evaluate -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(small_vit: Any, tmp_path: Path) -> Path:
    from edgevit.network.folder import save
    from edgevit.network.model import describe

    args = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
    save(describe(small_vit(), NAME, args), tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize("command", ["show", "evaluate"])
def test_a_folder_that_is_broken(edgevit_main: Any, folder: Path, tmp_path: Path, command: str) -> None:
    data = ["--data", "digits"] if command == "evaluate" else []
    assert "nowhere does not exist" in edgevit_main("show", tmp_path / "nowhere").error
    spec = (folder / "model.json").read_text()
    (folder / "model.json").write_text(spec.replace('"heads": 2', '"heads": 1').replace('"qk": 32', '"qk": 64'))
    assert "was altered" in edgevit_main(command, folder, *data).error
    (folder / "model.json").write_text(spec[:50])
    assert "is not JSON" in edgevit_main(command, folder, *data).error
    (folder / "model.json").unlink()
    assert "model.json is missing" in edgevit_main(command, folder, *data).error


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 9}'])
def test_a_derivation_that_cannot_be_read_is_one_line(edgevit_main: Any, folder: Path, text: str) -> None:
    (folder / "derivation.json").write_text(text)
    assert "derivation.json" in edgevit_main("show", folder).error


def test_a_base_folder_without_a_derivation_is_shown(edgevit_main: Any, folder: Path) -> None:
    done = edgevit_main("show", folder)
    assert (done.code, done.err) == (0, "") and "100.0 %" in done.out and f"{NAME}, 10 outputs" in done.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "nowhere"], "data nowhere does not exist"),
        (["--data", "digits", "--classes", "3,x"], "no class 'x'"),
        (["--data", "digits", "--classes", "3,3"], "listed twice"),
        (["--data", "digits", "--device", "gpu"], "no device 'gpu'"),
        (["--data", "digits", "--split", "training"], "training"),
        (["--data", "digits", "--batch-size", "0"], "--batch-size 0"),
        (["--data", "digits", "--checkpoint", "x.pth"], "brings its own weights"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_evaluate_refuses_in_one_line(edgevit_main: Any, folder: Path, options: list[str], said: str) -> None:
    assert said in edgevit_main("evaluate", folder, *options).error


def test_an_error_in_a_real_process_is_one_line_with_exit_code_1(digits_checkpoint: Path, tmp_path: Path) -> None:
    program = "import sys; sys.argv[0] = 'edgevit'; from edgevit.cli.app import main; main()"
    command = ["derive", NAME, *ARGS, "--checkpoint", str(digits_checkpoint), "--data", "digits", "--classes", "3,5",
               "--rate", "1.5", "--out", "out", "--json"]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=tmp_path, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: --rate 1.5 is not between 0 and 1; 0.6 leaves 40 % of the base's MACs\n"
    assert list(tmp_path.iterdir()) == []
