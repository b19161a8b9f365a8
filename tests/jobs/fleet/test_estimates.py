"""The memory and the work of derivations."""

from __future__ import annotations

from typing import Any

from small_base import ARGS, NAME

from edgevit.jobs.fleet.estimates import PROCESS_BYTES, BaseSize, memory_of, size_of, work_of
from edgevit.jobs.fleet.plan import read_plan
from edgevit.network.opening import network_without_weights
from edgevit.train.settings import Training


def test_training_takes_memory_by_its_batch_and_work_by_its_steps(fleet_plan: Any) -> None:
    size = size_of(network_without_weights(NAME, ARGS))
    assert size.params > 100_000 and size.kept > 2 * 17 * 64

    def derivation(**training: Any) -> Any:
        return read_plan(fleet_plan(training={"device": "cpu", **training}, methods=None)).jobs[0].derivation

    small, large = derivation(steps=10, batch_size=8), derivation(steps=100, batch_size=64)
    assert work_of(large, size) > 5 * work_of(small, size) - 5 * 3000 * size.macs
    assert memory_of(large, size) - memory_of(small, size) == 4 * 56 * size.kept
    usual = Training().batch
    for unstated in ({}, {"batch_size": None}):
        whole = derivation(steps=10, **unstated)
        assert memory_of(whole, size) - memory_of(small, size) == 4 * (usual - 8) * size.kept
        assert work_of(whole, size) == work_of(derivation(steps=10, batch_size=usual), size)
    parts = derivation(steps=10, batch_size=64, grad_accum=8)
    assert memory_of(parts, size) == memory_of(small, size), "a step keeps one micro-batch at a time"
    untrained = memory_of(derivation(steps=0), BaseSize(1, 1_000_000, 10**12))
    assert untrained == PROCESS_BYTES + 16_000_000
