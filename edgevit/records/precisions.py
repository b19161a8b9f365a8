"""The precisions of exported files, engines and measurements, one row for each.

To add one, add its row and its conversion in `edgevit.exporting.halving`. The agent, which imports nothing of edgevit,
has names of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgevit.errors import UnknownNameError


@dataclass(frozen=True)
class Precision:
    """The properties of one precision."""

    name: str
    dtype: str  # data type of images and logits in an ONNX file
    value_bytes: int  # bytes of a weight or an activation
    peak_share: float  # upper bound of its arithmetic rate, as a share of the peak of dense fp16
    calibrated: bool  # whether it needs images to determine ranges of values
    mixes: bool  # whether single modules of a file can stay in fp32
    fuses: bool  # whether NVIDIA's compiler fuses attention of suitable dimensions
    error: float  # tolerated relative L2 error of the logits of a file
    agreement: float  # required share of images with the top-1 class of torch
    skipping: str | None  # option of an export that skips its file; None: it is always written


# TensorRT computes fp32 in TF32 unless disabled, and a TF32 operand is twice as wide as an fp16 one.
FP32 = Precision(
    name="fp32", dtype="float32", value_bytes=4, peak_share=0.5, calibrated=False, mixes=False, fuses=False,
    error=1e-4, agreement=0.999, skipping=None,
)  # fmt: skip
FP16 = Precision(
    name="fp16", dtype="float16", value_bytes=2, peak_share=1.0, calibrated=False, mixes=True, fuses=True,
    error=2e-2, agreement=0.99, skipping="--no-fp16",
)  # fmt: skip
# Linear layers in INT8, and all else in floating point. The drop in accuracy decides, so that these two are wide.
INT8 = Precision(
    name="int8", dtype="float32", value_bytes=1, peak_share=2.0, calibrated=True, mixes=False, fuses=False,
    error=1.0, agreement=0.9, skipping="--precision fp16",
)  # fmt: skip
PRECISIONS = {row.name: row for row in (FP32, FP16, INT8)}
MIXED = "mixed"  # an engine in FP16 with modules in FP32


def precision_of(name: str) -> Precision:
    """The row of a precision.

    Raises:
        UnknownNameError: there is none of this name.
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


def usual_precision(*, on_cpu: bool) -> str:
    """The name of the precision in which a model is measured unless another is requested."""
    return (FP32 if on_cpu else FP16).name
