"""Runs that are as short as they can be, and runs that were made before."""

import pytest
import some_costs

from edgevit.latency import measure, target


@pytest.fixture
def short(monkeypatch):
    """Ten inferences for each run."""
    monkeypatch.setattr(target, "SAMPLES", 10)
    monkeypatch.setattr(target, "WARMUP_S", 0.0)
    for name in ("WINDOW_S", "POWER_WINDOW_S"):
        monkeypatch.setattr(measure, name, 0.05)


@pytest.fixture(scope="session")
def origin():
    """What a table of this machine says of it."""
    return some_costs.here()


@pytest.fixture
def fill(small_vit, tmp_path, origin):
    """Keep runs of all that a table of a small base is made of; give the base."""

    def run(folder=tmp_path, **how):
        network = small_vit(**some_costs.ARGS)
        some_costs.fill(network, origin, folder, **how)
        return network

    return run
