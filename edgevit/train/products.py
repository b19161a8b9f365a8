"""Set the precision of matrix products, and the library if torch has two of one precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

WIDE = 384  # embedding width from which oneDNN is faster (decision 008)
_AS_EXACT = 1e-5  # highest relative error of fp32 products: bf16 has 1e-3, fp32 1e-7


@contextmanager
def exact_products(device: torch.device, *, wide: bool = False) -> Iterator[None]:
    """Multiply fp32 matrices in fp32 within the block, even if the program allows TF32 (10 bits) or bf16 (8 bits).

    Args:
        device: the device that multiplies.
        wide: whether matrices are so large that oneDNN is faster than MKL, if it is as exact.
    """
    cuda = torch.backends.cuda.matmul
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the attributes of torch 2.9, which cannot be mixed with this function
        kinds = [cuda, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
        precisions = [kind.fp32_precision for kind in kinds]
        for kind in kinds:
            kind.fp32_precision = "ieee"
        try:
            yield
        finally:
            for kind, precision in zip(kinds, precisions, strict=True):
                kind.fp32_precision = precision
        return
    # torch uses oneDNN if bf16 is allowed, and oneDNN still multiplies in fp32 on processors without AMX.
    needed = "medium" if wide and device.type == "cpu" and _is_exact_by_onednn() else "highest"
    if allowed != needed:
        torch.set_float32_matmul_precision(needed)
    try:
        yield
    finally:
        if allowed != needed:
            torch.set_float32_matmul_precision(allowed)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Convolve fp32 images in fp32 on a GPU within the block; torch lets cuDNN use TF32 by default.

    A patch embedding is a convolution, so all measurements of a network would have an error of 1e-3.
    """
    cudnn: Any = torch.backends.cudnn
    newer = hasattr(cudnn, "conv")  # since torch 2.9
    owner, name, exact = (cudnn.conv, "fp32_precision", "ieee") if newer else (cudnn, "allow_tf32", False)
    allowed = getattr(owner, name)
    setattr(owner, name, exact)
    try:
        yield
    finally:
        setattr(owner, name, allowed)


@contextmanager
def exact_sums(device: torch.device) -> Iterator[None]:
    """Multiply wide matrices as `exact_products` does, within a pass that may be rounded."""
    with torch.autocast(device.type, enabled=False), exact_products(device, wide=True):
        yield


@lru_cache(maxsize=1)
def _is_exact_by_onednn() -> bool:
    """Tell whether products that may be rounded are in fact computed in fp32 on this machine, by trying one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(WIDE, WIDE, generator=generator)
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", enabled=False):  # the first call may be within a rounded pass
            product = x @ x
    finally:
        torch.set_float32_matmul_precision(allowed)
    whole = x.double() @ x.double()
    return bool((product - whole).norm() < _AS_EXACT * whole.norm())


def rounded_products(device: torch.device) -> AbstractContextManager[object]:
    """Multiply in bf16 within the block, if the device is a processor that supports it; results are stored in fp32."""
    on = device.type == "cpu" and multiplies_bf16()
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


def multiplies_bf16() -> bool:
    """Tell whether the processor has instructions for products in bf16; without them bf16 is slower than fp32."""
    has: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # since torch 2.10
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
