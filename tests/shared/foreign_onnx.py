"""A small Vision Transformer as another program would write it: its own names, old operators, shapes computed in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HEADS, TOKENS, CLASSES, SIDE, PATCH = 32, 2, 16, 10, 32, 8
HOW = ("--mean", "0.5", "--std", "0.5", "--crop-pct", "1", "--interpolation", "bicubic")  # images are prepared for it
PREPARED: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}


class _Graph:
    """Nodes and weights, numbered as they come."""

    def __init__(self, kind: int) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.random, self.kind = np.random.default_rng(0), kind

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"op_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any, kind: Any = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, kind or helper.tensor_dtype_to_np_dtype(self.kind))
        return name

    def weight(self, *shape: int, scale: float = 0.3) -> str:
        return self.constant(self.random.standard_normal(shape) * scale)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", x, self.weight(inputs, outputs, scale=1.5 * inputs**-0.5))
        return self.add("Add", self.weight(outputs, scale=0.1), product)

    def norm(self, x: str, decomposed: bool) -> str:
        gain, bias = self.constant(1 + 0.1 * self.random.standard_normal(WIDTH)), self.weight(WIDTH, scale=0.1)
        if not decomposed:
            return self.add("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-6)
        difference = self.add("Sub", x, self.add("ReduceMean", x, axes=[-1]))
        variance = self.add("ReduceMean", self.add("Pow", difference, self.constant(2.0)), axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", variance, self.constant(1e-6)))
        return self.add("Add", self.add("Mul", self.add("Div", difference, deviation), gain), bias)

    def heads(self, x: str, batch: str, order: tuple[int, ...]) -> str:
        shape = self.add("Concat", batch, self.constant([TOKENS, HEADS, WIDTH // HEADS], np.int64), axis=0)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=order)

    def block(self, x: str, decomposed: bool, scaled: bool, masked: bool) -> str:
        def branch(value: str) -> str:
            return self.add("Mul", self.constant(np.full(WIDTH, 0.7)), value) if scaled else value

        normed = self.norm(x, decomposed)
        first = self.constant([0], np.int64)
        batch = self.add("Slice", self.add("Shape", normed), first, self.constant([1], np.int64), first)
        q, k, v = (self.heads(self.linear(normed, WIDTH, WIDTH), batch, order)
                   for order in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))  # fmt: skip
        scores = self.add("Div", self.add("MatMul", q, k), self.constant((WIDTH // HEADS) ** 0.5))
        if masked:  # a token looks at those before it alone
            scores = self.add("Add", scores, self.constant(np.triu(np.full((TOKENS, TOKENS), -np.inf), 1)))
        mixed = self.add("Transpose", self.add("MatMul", self.add("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        shape = self.add("Concat", batch, self.constant([TOKENS, WIDTH], np.int64), axis=0)
        x = self.add("Add", branch(self.linear(self.add("Reshape", mixed, shape), WIDTH, WIDTH)), x)
        hidden = self.linear(self.norm(x, decomposed), WIDTH, 2 * WIDTH)
        erf = self.add("Erf", self.add("Div", hidden, self.constant(2**0.5)))
        gelu = self.add("Mul", self.add("Mul", hidden, self.add("Add", erf, self.constant(1.0))), self.constant(0.5))
        return self.add("Add", x, branch(self.linear(gelu, 2 * WIDTH, WIDTH)))


def _head(g: _Graph, output: str, early: str, last: str) -> None:
    """Add what leads from tokens after the first block, and from normalised ones after the last, to the output."""
    if output == "tokens":
        g.add("Identity", last)
        return
    if output != "map":
        pooled = g.add("ReduceMean", last, axes=[1], keepdims=0)
        g.linear(pooled, WIDTH, CLASSES) if output == "logits" else g.add("Identity", pooled)
        return
    both = g.add("Transpose", g.add("Concat", early, last, axis=2), perm=(0, 2, 1))
    side = SIDE // PATCH
    grid = g.add("Reshape", both, g.constant([0, 2 * WIDTH, side, side], np.int64))
    coarse = g.add("Conv", grid, g.weight(1, 2 * WIDTH, 1, 1), kernel_shape=[1, 1])
    scales = g.constant([1, 1, PATCH, PATCH], np.float32)
    g.add("Resize", coarse, "", scales, mode="linear")


def write_vit(
    path: Path,
    *,
    depth: int = 2,
    batch: int | str = "n",
    side: int | str = SIDE,
    stream: float = 1.0,
    decomposed: bool = True,
    extras: bool = False,
    masked: bool = False,
    opset: int = 16,
    kind: int = TensorProto.FLOAT,
    output: str = "logits",
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write it; `stream` is how large its residual stream is, which a normalisation does not mind and fp16 does.

    `extras` are a normalisation before the blocks, and LayerScale; `masked` adds a mask of -inf to the scores.
    `output`: logits, pooled "features", "tokens", or a "map" [B, 1, side, side] by tokens of two depths, as of DPT.
    """
    g = _Graph(kind)
    patches = g.add("Conv", "pixel_values", g.weight(WIDTH, 3, PATCH, PATCH, scale=stream * 0.3),
                    kernel_shape=[PATCH, PATCH], strides=[PATCH, PATCH])  # fmt: skip
    tokens = g.add("Transpose", g.add("Reshape", patches, g.constant([0, WIDTH, TOKENS], np.int64)), perm=(0, 2, 1))
    x = g.add("Add", tokens, g.weight(1, TOKENS, WIDTH, scale=stream))
    x = g.norm(x, decomposed) if extras else x
    depths = [x := g.block(x, decomposed, extras, masked) for _ in range(depth)]
    _head(g, output, (depths or [x])[0], g.norm(x, decomposed))
    g.nodes[-1].output[0] = "prob"
    shapes = {"logits": [CLASSES], "features": [WIDTH], "tokens": [TOKENS, WIDTH], "map": [1, side, side]}
    graph = helper.make_graph(
        g.nodes,
        "other",
        [helper.make_tensor_value_info("pixel_values", kind, [batch, 3, side, side])],
        [helper.make_tensor_value_info("prob", kind, [batch, *shapes[output]])],
        [numpy_helper.from_array(value, name) for name, value in g.weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


def with_det(path: Path) -> Path:
    """Add a determinant of nine logits to the logits of such a file: an operator that TensorRT has no importer for."""
    model = onnx.load(path)
    graph = model.graph
    sizes = {"first": [0], "nine": [9], "axis": [1], "square": [-1, 3, 3], "column": [-1, 1]}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.int64), name) for name, v in sizes.items())
    graph.node[-1].output[0] = "logits"
    graph.node.extend(
        helper.make_node(operator, inputs, [output], name=f"det_{output}")
        for operator, inputs, output in (
            ("Slice", ["logits", "first", "nine", "axis"], "part"),
            ("Reshape", ["part", "square"], "squares"),
            ("Det", ["squares"], "dets"),
            ("Reshape", ["dets", "column"], "added"),
            ("Add", ["logits", "added"], "prob"),
        )
    )
    onnx.save(model, path)
    return path


def quantised(file: Path) -> Path:
    """Quantise a file as ONNX Runtime's own quantiser does, beside it: Q/DQ around its linear layers."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            images = np.random.default_rng(0).uniform(-1, 1, (4, 3, SIDE, SIDE)).astype(np.float32)  # as of PREPARED
            self.batches = iter([{"pixel_values": images}])

        def get_next(self) -> Any:
            return next(self.batches, None)

    target = file.with_name(f"{file.stem}-quantised.onnx")
    quantize_static(
        file, target, Images(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"],
        extra_options={"ActivationSymmetric": True, "MatMulConstBOnly": True, "QuantizeBias": False},
    )  # fmt: skip
    return target
