"""Profiled layers as a board might have told them, for tests to alter."""

from __future__ import annotations

from edgevit.agent.layers import Layer
from edgevit.board.layers import LayerProfile

MS = 1_000_000


def layer(name: str, ms: float, *nodes: str, fused: bool = False) -> Layer:
    """One that took so many milliseconds in each of three inferences."""
    times = (round(ms * MS),) * 3
    return Layer(name, "kgen", "fp16", None, nodes or (name,), fused=fused, times_ns=times)


PROFILE = LayerProfile(
    label="t1",
    model="t1.engine",
    model_sha256="0" * 64,
    precision="fp16",
    runner="tensorrt",
    provider="TensorRT",
    batch=1,
    clock="gpu",
    inferences_ns=(10 * MS, 11 * MS, 30 * MS),
    plain_ns=(8 * MS, 9 * MS),
    layers=(
        layer("patch_embed.proj/Conv", 1),
        layer("__myl_0", 0.5, "blocks.0/Add_1", "blocks.1.norm1/LayerNormalization"),
        layer("_gemm_mha_v2_1", 2, "blocks.1.attn/MatMul", "blocks.1.attn/Softmax", fused=True),
        layer("__myl_2", 1.5, "blocks.1.attn.proj/MatMul", "blocks.1/Add", "blocks.1.norm2/LayerNormalization"),
        layer("__myl_3", 3, "blocks.1.mlp.fc1/MatMul"),
        layer("Reformatting 7", 0.25, "nothing known"),
        layer("head/Gemm", 0.75),
    ),
    environment={"tensorrt": "10.3.0"},
    session="s",
    created="2026-01-01T00:00:00+00:00",
    edgevit="0.1.0",
)
