"""A board for tests: stand-ins for TensorRT and CUDA in this process, and small models that they run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from places import STANDINS

from edgevit.agent import engine
from edgevit.agent.cuda import open_cuda

ORIN = {"device": "Orin", "sms": 8, "capability": "8.7", "runtime": "12.6"}  # as the stand-in for CUDA says
RELEASES = ("8.5.2", "8.6.1", "10.3.0", "10.7.0", "10.16", "11.1", "11.4")
STRONG = RELEASES[2:]  # take types from the file
MODULES = ("tensorrt", "pycuda", "pycuda.driver", "edgevit.agent.cuda.pycuda")
CLASSES = 5


def play(monkeypatch: pytest.MonkeyPatch, cache: Path, release: str = "10.3.0", fault: str = "") -> None:
    """Have `import tensorrt` and `import pycuda` find the stand-ins, afresh, until the test is over."""
    monkeypatch.syspath_prepend(str(STANDINS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("STANDIN_TENSORRT", release)
    monkeypatch.setenv("STANDIN_TENSORRT_FAULT", fault)
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)  # so that what the test imports is forgotten with it
        monkeypatch.delitem(sys.modules, name)


def play_cudart(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Have the ctypes binding load the stand-in library, compiled now."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in libcudart")
    library = folder / "libcudart-standin.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, STANDINS / "cudart.c"], check=True)
    monkeypatch.setenv("EDGEVIT_CUDART", str(library))
    return library


def write_model(
    path: Path,
    *,
    fp16: bool = False,
    batch: int | None = None,
    layer_norm: bool = True,
    dtype: int | None = None,
    channels: int = 4,
) -> Path:
    """Write a small network with one block of attention: images [B, channels, 8, 8] to logits [B, 5]."""
    random = np.random.default_rng(1)
    kind = dtype or (TensorProto.FLOAT16 if fp16 else TensorProto.FLOAT)
    numbers = helper.tensor_dtype_to_np_dtype(kind)
    weights = {
        "tokens": np.array([0, channels, 64], np.int64),
        "scale": np.array(0.125, numbers),
        "norm.weight": np.ones(64, numbers),
        "norm.bias": np.zeros(64, numbers),
        "head.weight": random.standard_normal((64, CLASSES)).astype(numbers),
        **{name: (random.standard_normal((64, 64)) / 8).astype(numbers) for name in ("q", "k", "v")},
    }
    norm = ("LayerNormalization", ["x", "norm.weight", "norm.bias"]) if layer_norm else ("Mul", ["x", "norm.weight"])
    nodes = [
        ("patch_embed", "Reshape", ["images", "tokens"], {}),
        ("blocks.0.norm1", *norm, {}),
        *((f"blocks.0.attn.{name}", "MatMul", ["y", name], {}) for name in ("q", "k", "v")),
        ("blocks.0.attn", "Mul", ["Q", "scale"], {}),
        ("blocks.0.attn", "Transpose", ["K"], {"perm": [0, 2, 1]}),
        ("blocks.0.attn", "MatMul", ["S", "T"], {}),
        ("blocks.0.attn", "Softmax", ["A"], {"axis": -1}),
        ("blocks.0.attn", "MatMul", ["P", "V"], {}),
        ("pool", "ReduceMean", ["O"], {"axes": [1], "keepdims": 0}),
        ("head", "MatMul", ["M", "head.weight"], {}),
    ]
    made = ("x", "y", "Q", "K", "V", "S", "T", "A", "P", "O", "M", "logits")
    graph = helper.make_graph(
        [
            helper.make_node(op, inputs, [output], name=f"{module}/{op}_{output}", **attributes)
            for (module, op, inputs, attributes), output in zip(nodes, made, strict=True)
        ],
        "small",
        [helper.make_tensor_value_info("images", kind, [batch or "batch", channels, 8, 8])],
        [helper.make_tensor_value_info("logits", kind, [batch or "batch", CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def model_for(release: str, folder: Path, **options: Any) -> Path:
    """Write the file that is sent to a board of this release: fp16 where types come from the file."""
    path = folder / "model.onnx"
    return write_model(path, fp16=release in STRONG, layer_norm=release != "8.5.2", **options)


def exercise(copied: bytes) -> dict[str, Any]:
    """Copy there and back, wait, time and launch; return what it says of the device."""
    with open_cuda() as cuda:
        stream, start, end = cuda.stream(), cuda.event(), cuda.event()
        device, there, back = cuda.malloc(len(copied)), cuda.host(len(copied)), cuda.host(len(copied))
        there[:] = copied
        cuda.copy_in(device, there, stream)
        cuda.record(start, stream)
        cuda.copy_out(back, device, stream)
        cuda.record(end, stream)
        cuda.wait(end)
        assert bytes(back) == copied
        assert 0 <= cuda.elapsed_ns(start, end) < 1e9
        there[:4] = b"part"
        cuda.copy_in(device, there[:4], stream)
        launch = cuda.capture(stream, lambda: cuda.copy_out(back[:8], device, stream))
        launch()
        cuda.synchronize(stream)
        assert bytes(back[:8]) == b"part" + copied[4:8]
        return {"binding": cuda.binding, **cuda.describe()}


def real_cudart() -> Path:
    """NVIDIA's own library, of the packages that torch brings."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    found = [path for folder in folders for path in sorted(Path(folder).glob("cu*/lib/libcudart.so.*"))]
    if not found:
        pytest.skip("no libcudart of NVIDIA's in this environment")
    return found[0]


def build(onnx: Path, root: str = "/", send: Callable[[Any], None] = lambda message: None, **options: Any) -> Any:
    """Build an engine on the board that is played; what the agent says of it."""
    return engine.build(send, root, onnx=str(onnx), **{"precision": "fp16", "batches": [1, 4, 8], **options})
