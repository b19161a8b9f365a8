"""Multiply images by the matrix of a .npy file: a classifier of one linear layer, through numpy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgevit.agent.runners import Loaded, RunnerError

REQUIRES = ("numpy",)  # imported before the load clock starts


@contextmanager
def open_runner(model: str, batch: int) -> Iterator[Loaded]:
    import numpy as np

    weights = np.load(model)  # [inputs, classes]
    if weights.ndim != 2:
        raise RunnerError(f"{model} holds an array of {weights.ndim} axes, expected 2: inputs and classes")
    images = np.zeros((batch, weights.shape[0]), weights.dtype)
    # `infer` returns only when its output is complete; it never times itself.
    yield Loaded(lambda: images @ weights, provider="cpu", environment={"numpy": np.__version__})
