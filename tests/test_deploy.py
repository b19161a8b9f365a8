"""deploy/: the setup script on captured trees, the examples against ONNX Runtime and stand-ins, the Dockerfiles read.

Stand-ins (tests/standins, tests/boards/programs) show that calls and arguments are right; they are no board.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from places import ROOT

from edgevit.agent import control

DEPLOY = ROOT / "deploy"
BOARDS = ROOT / "tests" / "boards"
STANDINS = ROOT / "tests" / "standins"
SETUP = DEPLOY / "jetson" / "setup.sh"
CLASSIFY = DEPLOY / "examples" / "classify.py"
PYTHON_38 = next(Path.home().glob(".pyenv/versions/3.8*/bin/python"), None)
TREES = sorted(path.name for path in BOARDS.iterdir() if (path / "proc" / "device-tree").is_dir())


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("classify_example", CLASSIFY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


classify = load_example()


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"this machine has no {', '.join(missing)}")


# -- jetson/setup.sh ---------------------------------------------------------------------------------------------------


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(params=TREES)
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A board's tree with the programs that the script calls: stand-ins that note what they were asked."""
    tree = tmp_path / "board"
    shutil.copytree(BOARDS / request.param, tree)
    shutil.copytree(BOARDS / "programs", tree, dirs_exist_ok=True)
    write_program(tree / "usr/bin/python3", 'case "$2" in *tensorrt*) echo 10.3.0 ;; *print*) echo 3.10.12 ;; esac')
    write_program(tree / "usr/sbin/visudo", f'cp "$2" {tree}/seen-by-visudo')
    write_program(tree / "usr/sbin/usermod", f'echo "$*" >> {tree}/asked-of-usermod')
    write_program(tree / "usr/local/bin/jtop", "exit 0")
    (tree / "etc/group").write_text("root:x:0:\njtop:x:990:someone,daemon2\n")
    (tree / "etc/sudoers.d").mkdir()
    (tree / "usr/local/cuda/lib64").mkdir(parents=True)
    (tree / "usr/local/cuda/lib64/libcudart.so").touch()
    (tree / "proc/meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 4194304 kB\n")
    return tree


def run_setup(tree: Path, *arguments: str, answers: str = "", shell: str = "sh") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EDGEVIT_BOARD_ROOT": str(tree)}
    command = [shell, str(SETUP), *arguments]
    return subprocess.run(command, env=environment, input=answers, text=True, capture_output=True, timeout=60)


def content(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shell", ["sh", "bash", "dash"])
def test_the_setup_script_is_valid_shell(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"this machine has no {shell}")
    assert subprocess.run([shell, "-n", SETUP]).returncode == 0


@needs("shellcheck")
def test_shellcheck_finds_nothing_in_the_setup_script() -> None:
    subprocess.run(["shellcheck", "--severity=style", SETUP], check=True)


def test_check_tells_what_is_there_and_changes_nothing(board: Path) -> None:
    before = content(board)
    done = run_setup(board, "--check", "--user", "daemon", answers="y\ny\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert content(board) == before
    told = done.stdout
    compatible = (board / "proc/device-tree/compatible").read_text().split("\0")[0]
    release = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", (board / "etc/nv_tegra_release").read_text())
    assert release is not None
    assert f"Jetson Orin: {compatible}" in told and f"L4T {release[1]}.{release[2]}" in told
    assert "Python 3.10.12" in told and "TensorRT 10.3.0" in told and "libcudart.so" in told
    assert "4 GiB of memory available" in told and "MISSING" not in told
    mode = subprocess.run([board / "usr/sbin/nvpmodel", "-q"], text=True, capture_output=True, check=True).stdout
    assert f"power mode {mode.splitlines()[-2].partition(': ')[2]}\n" in told


@pytest.mark.quick("*5.1.1", "*7.2.1")
def test_a_user_who_may_not_open_the_gpu_is_told_the_group(board: Path) -> None:
    (board / "dev").mkdir()
    (board / "dev/nvmap").touch()  # of a group that daemon is not in
    (board / "dev/nvmap").chmod(0o644)
    assert run_setup(board, "--check", "--user", "daemon").returncode == 0
    (board / "dev/nvmap").chmod(0o660)
    done = run_setup(board, "--check", "--user", "daemon")
    assert done.returncode == 1 and f"MISSING  daemon in the group {(board / 'dev/nvmap').group()}" in done.stdout
    assert "try: sudo usermod -aG video,render daemon" in done.stdout
    assert f"root is in the group {(board / 'dev/nvmap').group()}" in run_setup(board, "--user", "root").stdout


@pytest.mark.quick("*5.1.1", "*7.2.1")
def test_each_change_is_made_once_and_only_after_a_yes(board: Path) -> None:
    before = content(board)
    refused = run_setup(board, "--user", "daemon", answers="n\nno\n")
    assert refused.returncode == 0 and refused.stdout.count("left as it is") == 2
    nobody_there = run_setup(board, "--user", "daemon")
    assert nobody_there.returncode == 0 and nobody_there.stdout.count("left as it is") == 2
    assert content(board) == before

    done = run_setup(board, "--user", "daemon", answers="y\ny\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert (board / "asked-of-usermod").read_text() == "-aG jtop daemon\n"
    drop_in = board / "etc/sudoers.d/edgevit"
    assert drop_in.stat().st_mode & 0o777 == 0o440
    written = drop_in.read_text()
    assert written == (board / "seen-by-visudo").read_text()
    assert all(f"    {line}\n" in done.stdout for line in written.splitlines()), "shown before it is written"

    (board / "etc/group").write_text("jtop:x:990:someone,daemon\n")
    after = content(board)
    again = run_setup(board, "--user", "daemon", answers="y\ny\n")
    assert again.returncode == 0 and "[y/N]" not in again.stdout
    assert "daemon is in the group jtop" in again.stdout and "may set power mode and clocks" in again.stdout
    assert content(board) == after


def test_the_permission_is_for_exactly_what_edgevit_runs_as_root(board: Path) -> None:
    assert ROOT / control.SETUP == SETUP
    run_setup(board, "--user", "daemon", answers="n\ny\n")
    text = (board / "etc/sudoers.d/edgevit").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(line.startswith("daemon ALL=(root) NOPASSWD: /usr/") for line in lines)
    commands = [command for line in lines for command in line.partition("NOPASSWD: ")[2].split(", ")]
    store = re.search(rf"--store (/\S+/\.cache/edgevit/{control.RESTORE}/{control.CLOCKS})", text)
    assert store is not None
    assert commands == [
        *(f"/usr/sbin/nvpmodel {arguments}" for arguments in ("-q", "-m [0-9]", "-m [0-9][0-9]")),
        *(f"/usr/bin/jetson_clocks {arguments}" for arguments in ('""', "--show")),
        *(f"/usr/bin/jetson_clocks --{what} {store[1]}" for what in ("store", "restore")),
    ]


def test_the_store_that_is_permitted_is_the_one_that_edgevit_uses(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(os, "getuid", lambda: pwd.getpwnam("daemon").pw_uid)
    run_setup(board, "--user", "daemon", answers="n\ny\n")
    store = control.restore_folder("/") / control.CLOCKS
    assert f"--store {store}, " in (board / "etc/sudoers.d/edgevit").read_text()


@needs("visudo")
def test_visudo_accepts_the_lines(board: Path) -> None:
    run_setup(board, "--user", "daemon", answers="n\ny\n")
    done = subprocess.run(["visudo", "-cf", board / "etc/sudoers.d/edgevit"], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("board", TREES[:1], indirect=True)
def test_lines_that_visudo_refuses_are_not_written(board: Path) -> None:
    write_program(board / "usr/sbin/visudo", "exit 1")
    done = run_setup(board, "--user", "daemon", answers="n\ny\n")
    assert "--store writes to any file to which daemon\nmakes it a link" in done.stdout
    assert done.returncode == 1 and "MISSING  the consent of visudo" in done.stdout
    assert not (board / "etc/sudoers.d/edgevit").exists()


@pytest.mark.parametrize("board", TREES[:1], indirect=True)
@pytest.mark.parametrize(
    ("remove", "said", "hint"),
    [
        ("usr/bin/python3", "python3", "sudo apt install python3"),
        ("usr/local/cuda/lib64/libcudart.so", "libcudart.so", "sudo apt install nvidia-jetpack"),
        ("etc/nv_tegra_release", "the L4T release", "nvidia-l4t-core"),
        ("usr/sbin/nvpmodel", "nvpmodel or jetson_clocks", "nvidia-l4t-nvpmodel"),
        ("proc/meminfo", "2 GiB of memory to build engines in, seen 0 MiB", "sudo init 3"),
    ],
)
def test_what_is_missing_is_named_with_what_to_try(board: Path, remove: str, said: str, hint: str) -> None:
    (board / remove).unlink()
    done = run_setup(board, "--check", "--user", "daemon")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("MISSING") and said in line)
    assert lines[at + 1].strip().startswith("try: ") and hint in lines[at + 1]


@pytest.mark.parametrize("board", TREES[:1], indirect=True)
def test_an_old_python_and_a_python_without_tensorrt_are_missing(board: Path) -> None:
    write_program(
        board / "usr/bin/python3",
        'case "$2" in *version_info*print*) exit 1 ;; *print*) echo 3.6.9 ;; *) exit 1 ;; esac',
    )
    assert "MISSING  Python 3.8 or newer, seen 3.6.9" in run_setup(board, "--check").stdout
    write_program(board / "usr/bin/python3", 'case "$2" in *tensorrt*) exit 1 ;; *print*) echo 3.10.12 ;; esac')
    assert "MISSING  TensorRT for /usr/bin/python3" in run_setup(board, "--check").stdout


def test_a_machine_that_is_no_jetson_is_told_so(tmp_path: Path) -> None:
    done = run_setup(tmp_path)
    assert (done.returncode, done.stdout) == (1, "") and "This is not a Jetson" in done.stderr
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/compatible").write_text("raspberrypi,4-model-b\0brcm,bcm2711\0")
    assert "This is not a Jetson" in run_setup(tmp_path, "--check").stderr


NO_USERS = ("a b", "root;reboot", "ALL", "0", "1000", "nobody-of-that-name")


@pytest.mark.parametrize("arguments", [["--chek"], ["--user"], *(["--user", name] for name in NO_USERS)])
def test_a_mistyped_setup_does_nothing(tmp_path: Path, arguments: list[str]) -> None:
    done = run_setup(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "") and "setup.sh" in done.stderr


# -- examples/classify.py ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(40, 48), (300, 200), (31, 97), (32, 32), (5, 7)], ids=str)
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"interpolation": "bilinear", "crop_pct": 1.0},
        {"interpolation": "lanczos", "crop_pct": 0.5},
        {"input_size": [3, 48, 32]},
        {"crop_mode": "squash"},
        {"crop_mode": "border"},
        {"crop_mode": "border", "input_size": [3, 24, 40]},
        {"exif": "apply"},
    ],
    ids=str,
)
def test_the_example_sees_what_timm_sees(size: tuple[int, int], changed: dict[str, Any]) -> None:
    from edgevit.data.transforms import evaluation_transform
    from edgevit.records.pictures import to_rgb
    from edgevit.records.reading import Reading

    settings = {"input_size": [3, 32, 32], "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
                "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], **changed}  # fmt: skip
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8))
    image.getexif()[274] = 6
    read = to_rgb(image, Reading.of(settings))
    expected = evaluation_transform({**settings, "input_size": tuple(settings["input_size"])})(read)
    np.testing.assert_allclose(classify.preprocess(image, settings)[0], expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_the_example_does_not_cut_deep_images_off(mode: str) -> None:
    with pytest.raises(SystemExit, match=f"an image of mode {mode} is deeper than 8 bits; scale it"):
        classify.preprocess(Image.new(mode, (32, 32)), {})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, small_vit: Callable[..., Any], digits_checkpoint: Path) -> Path:
    """A model folder of three of the digits with its export: a base that knows them, and nothing cut but its head."""
    from safetensors.torch import load_file

    from edgevit.data.task import open_task
    from edgevit.engines.run import export
    from edgevit.exporting.graph import write_onnx
    from edgevit.network.folder import save
    from edgevit.network.model import Model, derived_spec, describe

    network = small_vit()
    network.load_state_dict(load_file(digits_checkpoint))
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 10}
    base = describe(network, "vit_tiny_patch16_224", args)
    task = open_task("digits", ["3", "5", "8"], preprocessing=base.preprocessing, base_outputs=10)
    network.keep_classes(task.base_columns)
    labels = task.classes
    folder = tmp_path_factory.mktemp("deploy") / "m"
    save(Model(network, derived_spec(base.spec, network, "subset", labels)), folder)
    export(folder, accuracy=False)
    # What TensorRT 8.5 can read, on which JetPack 5 builds its engines.
    write_onnx(network, folder / "opset16.onnx", input_size=(3, 32, 32), batch="dynamic", opset=16, metadata={})
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as image files, in folders of their names; larger than the model's input, and not square."""
    from sklearn.datasets import load_digits

    folder, digits = tmp_path_factory.mktemp("pictures"), load_digits()
    for name in ("3", "5", "8"):
        (folder / name).mkdir()
        for i in np.flatnonzero(digits.target == int(name))[:12]:
            picture = Image.fromarray((digits.images[i] * 15.9).astype(np.uint8)).convert("RGB")
            picture.resize((60, 64), Image.BICUBIC).save(folder / name / f"{i}.png")
    return folder


def run_classify(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CLASSIFY), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=120)


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the example says on stderr as it stops, in this process."""

    def told(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["classify.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            classify.main()
        assert stop.value.code not in (None, 0)
        return str(stop.value.code if isinstance(stop.value.code, str) else capsys.readouterr().err)

    return told


def predictions(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    return {name: best.rpartition(" ")[0] for name, best in (line.split("\t") for line in done.stdout.splitlines())}


@pytest.fixture(scope="module")
def by_onnx(exported: Path, pictures: Path) -> dict[str, str]:
    return predictions(run_classify(exported / "export", *sorted(pictures.glob("*/*.png"))))


@pytest.mark.slow
def test_the_example_is_right_as_often_as_evaluate_says(
    exported: Path, pictures: Path, by_onnx: dict[str, str]
) -> None:
    from edgevit.engines.run import evaluate

    # evaluate wants images to train on as well, and looks at those of val/ only.
    (pictures / "train").mkdir()
    (pictures / "val").mkdir()
    for name in ("3", "5", "8"):
        for part in ("train", "val"):
            (pictures / part / name).symlink_to(pictures / name, target_is_directory=True)
    judged = evaluate(exported / "export" / "model.fp32.onnx", pictures, device="cpu")
    right = {name: 0 for name in judged.per_class}
    for path, predicted in by_onnx.items():
        right[Path(path).parent.name] += predicted == Path(path).parent.name
    assert judged.images == len(by_onnx) == 36
    assert {name: count / 12 for name, count in right.items()} == pytest.approx(judged.per_class)
    assert judged.top1 > 0.5


BUILD = """
import sys
import tensorrt as trt

onnx, engine = sys.argv[1:3]
logger, kinds = trt.Logger(), trt.NetworkDefinitionCreationFlag
flag = kinds.STRONGLY_TYPED if hasattr(kinds, "STRONGLY_TYPED") else kinds.EXPLICIT_BATCH
builder = trt.Builder(logger)
network = builder.create_network(1 << int(flag))
assert trt.OnnxParser(network, logger).parse_from_file(onnx)
images, config, profile = network.get_input(0), builder.create_builder_config(), builder.create_optimization_profile()
least = (int(sys.argv[3]), *images.shape[1:])
profile.set_shape(images.name, least, least, least)
config.add_optimization_profile(profile)
open(engine, "wb").write(builder.build_serialized_network(network, config))
"""


@pytest.fixture(scope="module")
def standin_board(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the stand-ins for TensorRT and the CUDA runtime."""
    if shutil.which("gcc") is None:
        pytest.skip("this machine has no gcc")
    folder = tmp_path_factory.mktemp("cuda")
    library = folder / "libcudart.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, STANDINS / "cudart.c"], check=True)
    return {"PYTHONPATH": str(STANDINS), "LD_LIBRARY_PATH": str(folder)}


@pytest.mark.quick("10.3.0-export/model.fp16.onnx-1")
@pytest.mark.parametrize(
    ("release", "file", "least"),
    [
        ("8.5.2", "opset16.onnx", 4),
        ("10.3.0", "export/model.fp16.onnx", 1),
        ("11.1", "export/model.fp16.onnx", 2),
    ],
)
def test_an_engine_gives_the_classes_of_the_onnx_file(
    exported: Path, pictures: Path, by_onnx: dict[str, str], standin_board: dict[str, str], release: str, file: str,
    least: int,
) -> None:  # fmt: skip
    environment = {**standin_board, "STANDIN_TENSORRT": release}
    engine = exported / "export" / "engines" / release / "0.engine"
    engine.parent.mkdir(parents=True)
    try:
        subprocess.run(
            [sys.executable, "-c", BUILD, exported / file, engine, str(least)],
            env={**os.environ, **environment},
            check=True,
        )
        done = run_classify(exported / "export", *by_onnx, **environment)
        assert predictions(done) == by_onnx
        other = "10.3.0" if release != "10.3.0" else "11.1"
        refused = run_classify(exported / "export", *by_onnx, **{**environment, "STANDIN_TENSORRT": other})
        assert refused.returncode == 1 and "was it built on this board, by this TensorRT?" in refused.stderr
        small = run_classify(exported / "export", *by_onnx, **environment, STANDIN_TENSORRT_FAULT="no-context")
        assert small.returncode == 1 and "OutOfMemory" in small.stderr
        assert "cannot prepare to run the engine" in small.stderr and "Traceback" not in small.stderr
        if release != "10.3.0":
            return  # what is chosen is chosen alike
        shutil.copy(engine, engine.with_name("1.engine"))
        several = run_classify(exported / "export", *by_onnx, **environment)
        assert several.returncode == 1 and several.stderr.count("--engine ") == 2
        first, expected = next(iter(by_onnx.items()))
        for choice in (("--engine", engine), ("--onnx",)):
            chosen = run_classify(exported / "export", *choice, first, "--top", 3, **environment)
            name, best, *others = chosen.stdout.rstrip("\n").split("\t")
            assert (name, best.partition(" ")[0], len(others)) == (first, expected, 2)
            assert sum(float(label.rpartition(" ")[2]) for label in (best, *others)) == pytest.approx(1, abs=2e-3)
    finally:
        shutil.rmtree(engine.parent.parent)


def test_a_machine_without_the_cuda_runtime_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(classify.ctypes, "CDLL", load)
    with pytest.raises(SystemExit, match=r"no CUDA runtime .* try: export LD_LIBRARY_PATH=/usr/local/cuda/lib64"):
        classify.Cuda()


CV2 = """
import numpy as np
from PIL import Image

CAP_GSTREAMER, COLOR_BGR2RGB = 1800, 4

class VideoCapture:
    def __init__(self, source, api=None):
        assert api == (CAP_GSTREAMER if "nvarguscamerasrc" in str(source) else None)
        self.source, self.frames = source, 2

    def isOpened(self):
        return self.source != "/dev/video7"

    def read(self):
        self.frames -= 1
        return self.frames >= 0, np.asarray(Image.open({picture!r}).convert("RGB"))[:, :, ::-1]

    def release(self):
        print("released")

def cvtColor(image, code):
    assert code == COLOR_BGR2RGB
    return np.ascontiguousarray(image[:, :, ::-1])
"""


@pytest.mark.slow
def test_a_camera_frame_is_classified_like_the_file_it_shows(
    exported: Path, by_onnx: dict[str, str], tmp_path: Path
) -> None:
    path, expected = next(iter(by_onnx.items()))
    (tmp_path / "cv2.py").write_text(CV2.replace("{picture!r}", repr(path)))
    for camera in ("0", "csi"):
        done = run_classify(exported / "export", "--camera", camera, "--frames", 2, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        first, second, last = done.stdout.splitlines()
        assert first.startswith(f"frame 0\t{expected} ") and second.startswith(f"frame 1\t{expected} ")
        assert last == "released"
    ended = run_classify(exported / "export", "--camera", "0", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1 and "the camera 0 gives no more frames" in ended.stderr
    closed = run_classify(exported / "export", "--camera", "/dev/video7", PYTHONPATH=str(tmp_path))
    assert closed.returncode == 1 and "cannot open the camera /dev/video7" in closed.stderr


def test_the_example_calls_other_what_the_model_would(exported: Path, by_onnx: dict[str, str], tmp_path: Path) -> None:
    from edgevit.exporting.session import OnnxModel
    from edgevit.network.prediction import Rejection

    record = json.loads((exported / "export" / "export.json").read_text())
    model = OnnxModel(exported / "export" / "model.fp32.onnx")
    logits = {name: model.predict(torch_images(name, record["preprocessing"])) for name in by_onnx}
    middle = sorted(float(row.logsumexp(1)) for row in logits.values())[len(logits) // 2]
    rule = {"score": "logsumexp", "threshold": middle - 1e-5, "share": 0.5}
    shutil.copytree(exported / "export", tmp_path / "export")
    (tmp_path / "export" / "export.json").write_text(json.dumps({**record, "rejection": rule}))
    done = run_classify(tmp_path / "export", "--onnx", *by_onnx)
    said = {name: best for name, *best in (line.split("\t") for line in done.stdout.splitlines())}
    expected = {name for name, row in logits.items() if Rejection(**rule).rejects(row).item()}
    assert {name for name, best in said.items() if best[0] == "other"} == expected and len(expected) == len(said) // 2
    assert all(best[-1].startswith(f"{by_onnx[name]} ") for name, best in said.items())
    (tmp_path / "export" / "export.json").write_text(json.dumps({**record, "rejection": {**rule, "score": "x"}}))
    refused = run_classify(tmp_path / "export", "--onnx", *by_onnx)
    assert refused.returncode == 1 and "the model rejects by 'x', which this program does not know" in refused.stderr


def torch_images(file: str, settings: dict[str, Any]) -> Any:
    import torch

    return torch.from_numpy(classify.preprocess(Image.open(file), settings))


@pytest.mark.parametrize(
    ("package", "mend"),
    [("tensorrt", "or --onnx"), ("onnxruntime", "pip install onnxruntime"), ("cv2", "apt install python3-opencv")],
)
def test_the_example_says_which_package_it_needs(
    exported: Path,
    tmp_path: Path,
    package: str,
    mend: str,
    refusal: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('no {package} here')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    choice = {"tensorrt": ["--engine", tmp_path / "0.engine"], "cv2": ["--camera", "0"]}.get(package, [])
    said = refusal(exported / "export", *choice, "x.png")
    assert "\n" not in said and f"(no {package} here)" in said and mend in said


@pytest.mark.slow
def test_the_example_says_what_it_lacks(exported: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    assert "no export.json in" in refusal(tmp_path, "x.png")
    assert "no export.json in" in refusal(Path(__file__), "x.png")
    assert "give images, or --camera" in refusal(exported / "export")
    (tmp_path / "no.png").write_text("no picture")
    for name in ("gone.png", "no.png", "."):
        said = refusal(exported / "export", tmp_path / name)
        assert said.startswith(f"cannot read {tmp_path / name}: ") and "\n" not in said
    shutil.copytree(exported / "export", tmp_path / "export")
    record = json.loads((exported / "export" / "export.json").read_text())
    (tmp_path / "export" / "export.json").write_text(json.dumps({**record, "classes": []}))
    for arguments in (["x.png"], ["--plain"]):
        assert "does not say which output is which class" in refusal(tmp_path / "export", *arguments)


@pytest.mark.skipif(PYTHON_38 is None, reason="no Python 3.8 here, which is JetPack 5's")
def test_the_example_is_python_3_8() -> None:
    program = "import ast, sys; ast.parse(open(sys.argv[1]).read())"
    assert subprocess.run([str(PYTHON_38), "-c", program, CLASSIFY]).returncode == 0


# -- examples/cpp ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("this machine has no g++")
    built = tmp_path_factory.mktemp("cpp") / "classify"
    warnings = ["-Wall", "-Wextra", "-Werror", "-O1", "-std=c++17"]
    source = DEPLOY / "examples" / "cpp" / "classify.cpp"
    subprocess.run(["g++", *warnings, "-I", STANDINS / "cpp", source, "-o", built], check=True)
    return built


Cpp = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_cpp(program: Path, tmp_path: Path) -> Cpp:
    """Run the C++ program with a stand-in engine, whose logits are values of its input."""

    def run(
        settings: dict[str, Any],
        image: Image.Image,
        *,
        batch: int = -1,
        dtype: str = "float",
        indent: str = "",
        **more: Any,
    ) -> Any:
        classes = [{"name": f"{indent}class number {i}", "column": i} for i in range(8)]
        (tmp_path / "model.txt").write_text(classify.plain({"preprocessing": settings, "classes": classes, **more}))
        (tmp_path / "a.engine").write_text(f"standin {batch} {settings['input_size'][1]} 8 {dtype}")
        image.save(tmp_path / "a.ppm")
        command = [program, tmp_path / "model.txt", tmp_path / "a.engine", tmp_path / "a.ppm"]
        return subprocess.run(command, text=True, capture_output=True)

    return run


@pytest.mark.parametrize("size", [(40, 48), (90, 61), (32, 32), (20, 27)], ids=str)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(("batch", "dtype"), [(-1, "float"), (1, "half"), (4, "float"), (-4, "float")])
def test_the_cpp_program_makes_the_same_input_as_the_python_one(
    run_cpp: Cpp, size: tuple[int, int], interpolation: str, batch: int, dtype: str
) -> None:
    settings = {"input_size": [3, 32, 32], "interpolation": interpolation, "crop_pct": 0.875, "crop_mode": "center",
                "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # fmt: skip
    image = Image.fromarray(np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), np.uint8))
    done = run_cpp(settings, image, batch=batch, dtype=dtype)
    assert done.returncode == 0, done.stderr
    values = classify.preprocess(image, settings).ravel()
    logits = values[[i * values.size // 8 for i in range(8)]]
    odds = np.exp(logits - logits.max())
    name, best = done.stdout.rstrip("\n").split("\t")
    assert name.endswith("a.ppm")
    label, _, share = best.rpartition(" ")
    # One step of 255 in a pixel is 0.02 in its value: fixed-point and real arithmetic may round a tie apart.
    assert float(share) == pytest.approx(float(odds.max() / odds.sum()), rel=0.03)
    assert odds[int(label.rpartition(" ")[2])] == pytest.approx(1, rel=0.03)


def test_the_cpp_program_leaves_names_as_they_are(run_cpp: Cpp) -> None:
    settings = {"input_size": [3, 32, 32], "interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "center",
                "mean": [0.5] * 3, "std": [0.25] * 3}  # fmt: skip
    done = run_cpp(settings, Image.new("RGB", (32, 32), "gray"), indent="  ")
    assert done.stdout.split("\t")[1].startswith("  class number "), done.stderr


def test_the_cpp_program_calls_other_what_the_python_one_would(run_cpp: Cpp) -> None:
    settings = {"input_size": [3, 32, 32], "interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "center",
                "mean": [0.5] * 3, "std": [0.25] * 3}  # fmt: skip
    image = Image.fromarray(np.random.default_rng(2).integers(0, 255, (32, 32, 3), np.uint8))
    values = classify.preprocess(image, settings).ravel()
    logits = values[[i * values.size // 8 for i in range(8)]]
    score = classify.score(logits, [{"column": i} for i in range(8)])
    assert score == pytest.approx(float(np.log(np.exp(logits.astype(np.float64)).sum())))
    for shift, expected in ((-1e-3, []), (1e-3, ["other"])):
        rule = {"score": "logsumexp", "threshold": score + shift, "share": 0.05}
        done = run_cpp(settings, image, rejection=rule)
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip("\n").split("\t")[1:-1] == expected


def test_the_cpp_program_says_what_is_wrong(
    program: Path, run_cpp: Cpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"input_size": [3, 32, 32], "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
                "mean": [0.5] * 3, "std": [0.5] * 3}  # fmt: skip
    image = Image.new("RGB", (32, 32))
    assert (
        "interpolation lanczos is not in this program"
        in run_cpp({**settings, "interpolation": "lanczos"}, image).stderr
    )
    assert run_cpp(settings, image).returncode == 0

    def refused(*arguments: object) -> str:
        done = subprocess.run([program, *map(str, arguments)], text=True, capture_output=True)
        assert done.returncode and not done.stdout
        return done.stderr

    model, engine, ppm = (tmp_path / name for name in ("model.txt", "a.engine", "a.ppm"))
    assert "usage: classify" in refused(model)
    assert "does not describe a model" in refused(ppm, engine, ppm)
    assert "built elsewhere, or by another TensorRT?" in refused(model, ppm, ppm)
    assert "built elsewhere, or by another TensorRT?" in refused(model, tmp_path / "none", ppm)
    assert "is not an 8-bit PPM" in refused(model, engine, model)
    with monkeypatch.context() as small:
        small.setenv("STANDIN_TENSORRT_FAULT", "no-context")
        assert refused(model, engine, ppm).endswith("cannot prepare to run " + str(engine) + "; close other programs\n")
    ppm.write_bytes(ppm.read_bytes()[:100])
    assert "is not an 8-bit PPM" in refused(model, engine, ppm)


@pytest.mark.slow
@needs("cmake", "g++")
def test_cmake_builds_the_cpp_program(tmp_path: Path) -> None:
    for library in ("nvinfer", "cudart"):  # the stand-ins are headers: there is nothing to link
        subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", tmp_path / f"lib{library}.so"], check=True)
    where = {
        "TENSORRT_INCLUDE": STANDINS / "cpp",
        "CUDA_INCLUDE": STANDINS / "cpp",
        "TENSORRT_LIBRARY": tmp_path / "libnvinfer.so",
        "CUDART_LIBRARY": tmp_path / "libcudart.so",
    }
    definitions = [f"-D{name}={path}" for name, path in where.items()]
    source = DEPLOY / "examples" / "cpp"
    for command in (
        ["cmake", "-S", source, "-B", tmp_path / "build", *definitions],
        ["cmake", "--build", tmp_path / "build"],
    ):
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "build" / "classify").is_file()


# -- docker/ -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted((DEPLOY / "docker").glob("*.Dockerfile")), ids=lambda file: file.name)
def test_a_dockerfile_names_a_fixed_base_and_copies_what_exists(file: Path) -> None:
    text = re.sub(r"\\\n", " ", file.read_text())
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert lines[0][0] == "FROM"
    for line in lines:
        if line[0] == "FROM":
            _, colon, tag = line[1].rpartition(":")
            assert colon and tag != "latest" and re.search(r"\d", tag)
        if line[0] == "COPY":
            for source in line[1:-1]:
                assert (ROOT / source).exists(), source
        if line[0] in ("CMD", "ENTRYPOINT"):
            assert isinstance(json.loads(" ".join(line[1:])), list)
    assert {line[0] for line in lines} <= {"FROM", "RUN", "COPY", "WORKDIR", "CMD", "ENTRYPOINT", "ENV"}


def test_links_in_the_index_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (DEPLOY / "README.md").read_text()):
        assert (DEPLOY / target).exists(), target
