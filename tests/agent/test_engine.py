"""The builder: against stand-ins that are strict per release (API checks), and through TensorRT-RTX's real compiler."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto
from places import ROOT, STANDINS
from pythons import interpreter
from standin_board import RELEASES, STRONG, build, model_for, play, write_model

from edgevit.agent import engine as builder
from edgevit.agent.execution import import_tensorrt, make_log
from edgevit.agent.runners import RunnerError


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_builds_an_fp16_engine_of_dynamic_batch(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path / "cache", release)
    told: list[dict[str, Any]] = []
    built = build(model_for(release, tmp_path), send=lambda message: told.append(message["progress"]))
    path = Path(built["engine"])
    assert path == tmp_path / "cache/edgevit/files" / f"{built['sha256']}.engine"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == built["sha256"]
    assert (built["bytes"], built["tensorrt"]) == (path.stat().st_size, release)
    assert built["strongly_typed"] == (release in STRONG)
    assert built["device_memory_bytes"] == 4 << 20
    dtype = "float16" if release in STRONG else "float32"
    assert built["inputs"] == [{"name": "images", "dtype": dtype, "shape": [-1, 4, 8, 8]}]
    assert built["outputs"] == [{"name": "logits", "dtype": dtype, "shape": [-1, 5]}]
    # TensorRT 8 shows the network as one layer, so there is nothing to count in.
    assert built["fused"] == (1 if release in STRONG else None)
    assert [progress["stage"] for progress in told][:2] == ["parse", "build"] and told[-1]["stage"] == "write"
    assert list(path.parent.iterdir()) == [path]  # no temporary file is left
    json.dumps(built)


@pytest.mark.parametrize("release", ["8.6.1", "10.3.0"])
def test_a_file_of_fixed_batch_needs_no_profile(release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, release)
    built = build(model_for(release, tmp_path, batch=4), batches=None)
    assert built["inputs"][0]["shape"] == [4, 4, 8, 8]
    with pytest.raises(RunnerError, match=r"fixed batch of 4; export it with --batch dynamic"):
        build(tmp_path / "model.onnx", batches=[1, 4, 8])


def test_an_engine_whose_layers_cannot_be_read_is_an_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, fault="no-layers")
    built = build(model_for("10.3.0", tmp_path))
    assert Path(built["engine"]).is_file() and built["inputs"] and built["device_memory_bytes"]
    assert built["layers"] == [] and built["fused"] is None
    (warning,) = built["warnings"]
    assert warning.startswith("the layers of the engine are not known: the layer information is no JSON (")


@pytest.mark.parametrize(
    ("release", "features"),
    [
        ("8.5.2", ["FASTER_DYNAMIC_SHAPES_0805"]),
        ("8.6.1", ["FASTER_DYNAMIC_SHAPES_0805", "PROFILE_SHARING_0806"]),
        ("10.3.0", []),
    ],
)
def test_an_engine_of_dynamic_batch_gets_what_its_release_has_for_that(
    release: str, features: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release)
    assert header_of(build(model_for(release, tmp_path)))["features"] == features
    assert header_of(build(model_for(release, tmp_path, batch=4), batches=None))["features"] == []


def header_of(built: dict[str, Any]) -> dict[str, Any]:
    """What the stand-in keeps of how it was asked to build."""
    header: dict[str, Any] = json.loads(Path(built["engine"]).read_bytes().split(b"\n")[1])
    return header


def test_progress_comes_from_tensorrt_where_it_tells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "10.3.0")
    monkeypatch.setattr(builder, "TICK_S", 0.0)
    done: list[float] = []
    build(model_for("10.3.0", tmp_path), send=lambda message: done.append(message["progress"]["done"]))
    assert done[1:-1] == sorted(done[1:-1]) and {0.125, 0.25, 0.5, 1.0} <= set(done)


@pytest.mark.parametrize(("release", "fault"), [("8.6.1", "fp16-layernorm"), ("8.5.2", "fp16-block:0")])
def test_layers_kept_in_fp32_mend_what_fp16_breaks(
    release: str, fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release, fault)
    model = model_for(release, tmp_path)

    def is_garbage(**options: Any) -> bool:
        return bool(header_of(build(model, **options))["garbage"])

    assert is_garbage()
    assert not is_garbage(fp32_layers=[r"^blocks\.0\."])
    assert not is_garbage(precision="fp32")
    with pytest.raises(RunnerError, match=r"no layer matches blocks\\\.9; TensorRT has e\.g\. 'patch_embed/"):
        is_garbage(fp32_layers=[r"blocks\.9"])


@pytest.mark.parametrize("release", ["8.5.2", "8.6.1"])
def test_layers_that_compute_nothing_are_held_to_no_precision(
    release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, release, "no-typed-move,fp16-block:0")
    model = model_for(release, tmp_path)
    built = build(model, fp32_layers=[r"^blocks\.0\."])  # a transposition among them
    assert built["refused"] is None and not header_of(built)["garbage"]
    assert any(
        node.op_type == "Transpose" and node.name.startswith("blocks.0.") for node in onnx.load(model).graph.node
    )


def test_an_fp32_file_is_no_fp16_engine_where_types_come_from_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "10.16")
    model = write_model(tmp_path / "model.onnx")
    with pytest.raises(RunnerError, match=r"takes types from the file, and this file is fp32.*send the fp16 file"):
        build(model)
    assert build(model, precision="fp32")["inputs"][0]["dtype"] == "float32"


def memory(root: Path, available_bytes: int, swap_bytes: int = 0) -> str:
    (root / "proc").mkdir(parents=True, exist_ok=True)
    lines = f"MemAvailable: {available_bytes // 1024} kB\nSwapFree: {swap_bytes // 1024} kB\n"
    (root / "proc/meminfo").write_text(lines)
    return str(root)


def needed_for(model: Path) -> int:
    return builder.BUILD_BYTES + builder.BUILD_PER_FILE_BYTE * model.stat().st_size


def test_the_workspace_is_limited_by_what_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path)
    model = model_for("10.3.0", tmp_path)
    root = memory(tmp_path / "root", 5 << 30, swap_bytes=4 << 30)
    free = (5 << 30) - needed_for(model)
    built = build(model, root)
    assert built["workspace_bytes"] == int(free * builder.WORKSPACE_SHARE) and built["warnings"] == []
    assert build(model, root, workspace_bytes=1 << 20)["workspace_bytes"] == 1 << 20
    assert build(model, root, workspace_bytes=1 << 40)["workspace_bytes"] == free
    assert build(model, str(tmp_path))["workspace_bytes"] is None  # nothing tells what is free: TensorRT's own default


@pytest.mark.parametrize(
    ("more_bytes", "swap_bytes", "wanted", "workspace"),
    [
        (4096, 0, None, 256),
        (400 << 20, 0, None, 256),
        (4096, 0, 1 << 30, 256),
        (4096, 0, 64 << 20, 64),
        (-(1 << 29), 1 << 30, None, 256),
        (-(1 << 28), 0, None, 256),
    ],
    ids=["nothing left", "too small a share", "much wanted", "little wanted", "swap", "less than the estimate"],
)
def test_a_workspace_is_never_too_small_for_fast_kernels_without_a_warning(
    more_bytes: int,
    swap_bytes: int,
    wanted: int | None,
    workspace: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    play(monkeypatch, tmp_path)
    model = model_for("10.3.0", tmp_path)
    root = memory(tmp_path / "root", needed_for(model) + more_bytes, swap_bytes)
    built = build(model, root, workspace_bytes=wanted)
    assert built["workspace_bytes"] == workspace << 20
    (warning,) = built["warnings"]
    assert f"tries kernels with {(workspace << 20) / 1e6:.0f} MB" in warning and "--rebuild" in warning
    assert ("GB of swap" in warning) == bool(swap_bytes)


def test_too_little_memory_is_refused_before_building(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path)
    model = model_for("10.3.0", tmp_path)
    refused = r"needs about 1\.1 GB, by an estimate, and 0\.3 GB are free"
    with pytest.raises(RunnerError, match=rf"{refused}; close other.*sudo init 3.*36\.4\.7"):
        build(model, memory(tmp_path / "root", 300_000_000))
    with pytest.raises(RunnerError, match=rf"{refused} and 0\.2 GB of swap; close other"):
        build(model, memory(tmp_path / "root", 300_000_000, swap_bytes=200_000_000))


@pytest.mark.parametrize(
    ("release", "fault", "options", "message"),
    [
        ("10.3.0", "out-of-memory", {}, r"cannot build an engine: .*OutOfMemory.*; close other programs"),
        (
            *("8.6.1", "tight-workspace", {}),
            r"cannot build an engine: it skipped .* the smallest needs 2833 MB \(.*implementation for node.*; close",
        ),
        (
            *("10.7.0", "lacks-library:10.3.0", {}),
            r"two TensorRTs are mixed on this board: Python's is 10\.7\.0, its library is 10\.3\.0 and lacks "
            r"libnvinfer_builder_resource\.so\.10\.3\.0; see `dpkg -l .*--reinstall",
        ),
        (
            "10.7.0",
            "lacks-library:10.7.0",
            {},
            r"TensorRT 10\.7\.0 lacks libnvinfer_builder_resource\.so\.10\.7\.0; see",
        ),
        ("8.5.2", "", {"optimization_level": 5}, r"TensorRT 8\.5\.2 has no optimization levels; leave"),
        ("10.3.0", "", {"batches": None}, r"the file's batch is dynamic: say the least"),
        ("10.3.0", "", {"batches": [8, 4, 1]}, r"batches \[8, 4, 1\] are not the least, the most likely and the most"),
    ],
)
def test_what_cannot_be_built_is_one_line(
    release: str,
    fault: str,
    options: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    play(monkeypatch, tmp_path / "cache", release, fault)
    with pytest.raises(RunnerError, match=message) as error:
        build(model_for(release, tmp_path), **options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache/edgevit/files").exists()


def test_a_model_that_the_parser_does_not_know_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, "8.5.2")
    with pytest.raises(RunnerError, match=r"TensorRT 8\.5\.2 cannot read the model: No importer .*LayerNormalization"):
        build(write_model(tmp_path / "model.onnx"))


@pytest.mark.parametrize("dtype", [TensorProto.DOUBLE, TensorProto.INT32])
def test_an_input_of_another_type_is_refused_although_the_parser_takes_it(
    dtype: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path)
    with pytest.raises(
        RunnerError, match=r"input 'images' is (float64|int32), and engines are built for float32 or float16 or int64"
    ):
        build(write_model(tmp_path / "model.onnx", dtype=dtype))


def test_a_disk_that_is_full_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "edgevit").write_text("in the way")
    play(monkeypatch, tmp_path)
    with pytest.raises(RunnerError, match=r"cannot write .*\(Not a directory\); see `df -h "):
        build(model_for("10.3.0", tmp_path))


def test_the_stand_in_has_the_names_of_its_release_and_no_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "11.1")
    trt = import_tensorrt()
    assert not hasattr(trt.BuilderFlag, "FP16") and hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")
    config = trt.Builder(make_log(trt)).create_builder_config()
    with pytest.raises(AttributeError, match=r"TensorRT 11\.1 has no IBuilderConfig\.max_workspace_size"):
        config.max_workspace_size = 1
    with pytest.raises(NotImplementedError, match=r"does not play IBuilderConfig\.max_aux_streams"):
        _ = config.max_aux_streams


# Real compiler -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batches", [None, [1, 2, 4]])
def test_nvidias_own_compiler_builds_what_the_builder_asks_for(
    batches: list[int] | None, small_vit: Callable[..., Any], tmp_path: Path
) -> None:
    rtx = pytest.importorskip("tensorrt_rtx")
    from edgevit.exporting.fusion import FUSED_KERNEL
    from edgevit.exporting.graph import write_onnx

    path = tmp_path / "model.onnx"
    options = {"input_size": (3, 32, 32), "opset": 20, "metadata": {}, "precision": "fp16"}
    write_onnx(small_vit(), path, batch="dynamic" if batches else 1, **options)
    told: list[tuple[str, float]] = []
    trt = without_a_gpu(rtx)
    log = make_log(trt)
    settings = builder.Settings(str(path), "fp16", batches, (), 1 << 30, 3)
    plan = builder.build_plan(trt, log, settings, None, lambda stage, done: told.append((stage, done)))
    # It cannot be opened without a GPU, so its layers are counted where its list of functions is known to be.
    assert len(FUSED_KERNEL.findall(memoryview(plan))) == 2
    done = [share for _, share in told]
    assert done == sorted(done) and done[-1] > 0 and not log.errors
    fp32 = builder.Settings(str(path), "fp32", batches, ("blocks",), None, None)
    assert builder.build_plan(trt, log, fp32, None, lambda stage, done: None) is not None  # the file has the types


def without_a_gpu(rtx: Any) -> Any:
    """TensorRT-RTX as the board's module is: it takes the target from the GPU there is, or else must be told one."""

    class Builder:
        def __init__(self, logger: Any) -> None:
            self._builder = rtx.Builder(logger)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._builder, name)

        def create_builder_config(self) -> Any:
            config = self._builder.create_builder_config()
            config.num_compute_capabilities = 1
            config.set_compute_capability(rtx.ComputeCapability.SM86, 0)
            return config

    return types.SimpleNamespace(**{**vars(rtx), "Builder": Builder})


def with_unknown_operator(path: Path) -> None:
    model = onnx.load(write_model(path))
    next(node for node in model.graph.node if node.op_type == "Softmax").op_type = "Det"
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b"no protobuf"), r"cannot read the model: "),
        (with_unknown_operator, r"cannot read the model: Det \(blocks\.0\.attn/Softmax_P\): .*; export it"),
    ],
    ids=["damaged", "operator"],
)
def test_a_real_parser_that_refuses_is_one_line(tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    rtx = pytest.importorskip("tensorrt_rtx")
    path = tmp_path / "model.onnx"
    spoil(path)
    trt = without_a_gpu(rtx)
    settings = builder.Settings(str(path), "fp16", None, (), None, None)
    with pytest.raises(RunnerError, match=said) as error:
        builder.build_plan(trt, make_log(trt), settings, None, lambda stage, done: None)
    assert "\n" not in str(error.value)


# Layers --------------------------------------------------------------------------------------------------------------


# ONNX ----------------------------------------------------------------------------------------------------------------


def test_the_table_that_the_stand_in_plays_by_is_whole() -> None:
    table = json.loads((STANDINS / "tensorrt_api.json").read_text())
    assert tuple(table["releases"]) == RELEASES
    assert all(len(has) == len(RELEASES) for names in table["names"].values() for has in names.values())


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_is_described_by_what_it_has(release: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play(monkeypatch, tmp_path, release)
    assert builder.describe_tensorrt() == {
        "version": release,
        "error": None,
        "strongly_typed": release in STRONG,
        "fp16_flag": not release.startswith("11."),
        "native_layer_norm": release != "8.5.2",
    }


def test_a_missing_tensorrt_says_why_and_what_to_try(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    known = builder.describe_tensorrt()
    assert known["version"] is known["fp16_flag"] is None
    assert "apt install python3-libnvinfer" in known["error"] and "--system-site-packages" in known["error"]
    (tmp_path / "tensorrt.py").write_text("raise ImportError('libnvdla_compiler.so: cannot open shared object file')")
    monkeypatch.delitem(sys.modules, "tensorrt")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "cannot be loaded (libnvdla_compiler.so" in builder.describe_tensorrt()["error"]


def test_the_old_python_of_jetpack_5_is_told_that_it_has_no_tensorrt() -> None:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from edgevit.agent import classify, engine, trtexec, cuda\n"
        "from edgevit.agent.runners import import_runner\n"
        "import_runner('tensorrt')\n"
        "print(json.dumps([engine.describe_tensorrt(), cuda.describe_cuda()]))"
    )
    # Not a copy of it all: only the package's own folder, so that nothing else of it can be imported by mistake.
    ran = subprocess.run([interpreter("3.8"), "-c", code, ROOT], capture_output=True, text=True, check=True)
    tensorrt, cuda = json.loads(ran.stdout)
    assert "no TensorRT for this Python" in tensorrt["error"]
    assert cuda["binding"] is None or cuda["device"]
