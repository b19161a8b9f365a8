"""Runners by name, and what each says of itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from edgevit.agent import runners
from edgevit.agent.measure import MeasurementRequest, measure
from edgevit.agent.runners import RunnerError
from edgevit.board.request import TYPES

TORCH_RUNNER = '''
"""A matrix product on the GPU, by torch: shows that what a runner tells of GPU time holds on a real one."""
from contextlib import contextmanager

from edgevit.agent.runners import Loaded

REQUIRES = ("torch",)


@contextmanager
def open_runner(model, batch, *, size=4096):
    import torch

    a = torch.randn(size, size, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def infer():
        start.record()
        for _ in range(batch):
            torch.mm(a, a)
        end.record()
        end.synchronize()

    yield Loaded(infer, "torch", {}, gpu_ns=lambda: round(start.elapsed_time(end) * 1e6))
'''


@pytest.mark.gpu
def test_a_runner_on_a_real_gpu_tells_gpu_time_apart_from_host_time(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch_product.py").write_text(TORCH_RUNNER)
    monkeypatch.setattr(runners, "__path__", [*runners.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, "edgevit.agent.runners.torch_product", None)
    monkeypatch.delitem(sys.modules, "edgevit.agent.runners.torch_product")
    known = dict(model=__file__, model_sha256="0" * 64, label="product", precision="fp32", runner="torch_product")
    run = measure(MeasurementRequest(**known, batch=4, samples=50, duration_s=0.5), lambda *_, **__: None)
    assert run.gpu_ns is not None and len(run.gpu_ns) == len(run.latencies_ns)
    assert all(0 < gpu_ns <= 1.05 * host_ns for gpu_ns, host_ns in zip(run.gpu_ns, run.latencies_ns, strict=True))


@pytest.mark.parametrize("name", runners.runner_names())
def test_every_runner_says_what_it_requires_and_takes_model_and_batch(name):
    runner = runners.import_runner(name)
    assert isinstance(runner.REQUIRES, tuple)
    assert not {"model", "batch"} & set(runners.runner_options(name))
    assert {kind.partition(" | ")[0] for kind in runners.option_types(name).values()} <= TYPES.keys()
    assert runner.__doc__


def test_an_unknown_runner_lists_the_known_ones():
    with pytest.raises(RunnerError, match="no runner 'nope'; known: fake, onnxruntime, tensorrt"):
        runners.import_runner("nope")
