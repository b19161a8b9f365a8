"""In which precision matrices are multiplied, and by which library where torch has two of one precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import torch

WIDE = 384  # width of an embedding from which a network's products are faster by oneDNN (decision 012)
AS_EXACT = 1e-5  # of the root mean square: bf16 is off by 1e-3, fp32 by 1e-7


@contextmanager
def exact_products(device: torch.device, *, wide: bool = False) -> Iterator[None]:
    """Multiply fp32 matrices in fp32, whatever the program allows that we run in: TF32 keeps 10 bits of 23, bf16 8.

    Args:
        device: that multiplies.
        wide: whether matrices are so large that oneDNN, where it is as exact, multiplies them faster than MKL.
    """
    cuda = torch.backends.cuda.matmul
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by the attributes that torch has since 2.9; the two ways must not be mixed
        kinds = [cuda, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
        found = [kind.fp32_precision for kind in kinds]
        for kind in kinds:
            kind.fp32_precision = "ieee"
        try:
            yield
        finally:
            for kind, precision in zip(kinds, found, strict=True):
                kind.fp32_precision = precision
        return
    # torch hands products to oneDNN where it is allowed bf16, which oneDNN makes no use of on processors without AMX.
    wanted = "medium" if wide and device.type == "cpu" and _is_exact_by_onednn() else "highest"
    if allowed != wanted:
        torch.set_float32_matmul_precision(wanted)
    try:
        yield
    finally:
        if allowed != wanted:
            torch.set_float32_matmul_precision(allowed)


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """Convolve fp32 images in fp32 on a GPU: torch lets cuDNN use TF32 there unless it is told not to.

    A patch embedding is a convolution, so all that is measured of a network would be off by 1e-3.
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
    """As `exact_products` of wide matrices, within a pass that may itself be rounded."""
    with torch.autocast(device.type, enabled=False), exact_products(device, wide=True):
        yield


@lru_cache(maxsize=1)
def _is_exact_by_onednn() -> bool:
    """Whether what is allowed to be rounded is in fact multiplied in fp32 here: seen by the products of a matrix."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(WIDE, WIDE, generator=generator)
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", enabled=False):  # it may be asked first within a pass that is rounded
            seen = x @ x
    finally:
        torch.set_float32_matmul_precision(allowed)
    whole = x.double() @ x.double()
    return bool((seen - whole).norm() < AS_EXACT * whole.norm())


def rounded_products(device: torch.device) -> AbstractContextManager[object]:
    """Multiply in bf16, 8 bits, if the device is a processor that does; what is kept is fp32."""
    on = device.type == "cpu" and multiplies_bf16()
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


def multiplies_bf16() -> bool:
    """Whether the processor has instructions for products in bf16: without, they are slower than those in fp32."""
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # since torch 2.10
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))
