"""Runs that are as short as they can be, of the first two networks of a suite."""

import pytest

from edgevit.jobs.suite import figures, run, suite, time_limit
from edgevit.jobs.suite.suite import SuiteNetwork


@pytest.fixture
def short(monkeypatch):
    """Three inferences for each run."""
    for name, value in {"SAMPLES": 3, "WARMUP": 0, "WARMUP_S": 0.0, "WINDOW_S": 0.0, "ENERGY_WINDOW_S": 0.05}.items():
        for module in (run, figures, time_limit):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


@pytest.fixture
def two(monkeypatch):
    """One question about two networks of one block: 192 tokens, and heads that are no fusable width."""
    pooled, shallow = {"class_token": False, "global_pool": "avg"}, {"depth": 1}
    dims, _ = suite.shape_of("tiny", **shallow)
    narrow = tuple(type(d)(d.heads, 12, 8, 64) for d in dims)
    subjects = [
        SuiteNetwork("tiny 192 tokens", "tiny", args={**pooled, **shallow, "img_size": (192, 256)}),
        SuiteNetwork("tiny 0.8 paper", "tiny", dims=narrow, args=shallow),
    ]
    monkeypatch.setattr(run, "suite", lambda sizes, **options: {"tokens": subjects[:1], "shapes at 0.8": subjects[1:]})
    monkeypatch.setattr(run._Work, "dense", property(lambda self: SuiteNetwork("tiny", "tiny", args=shallow)))
