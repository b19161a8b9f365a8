"""The runner that sleeps."""

from time import perf_counter_ns

from edgevit.agent.runners.fake import open_runner


def test_an_inference_takes_as_long_as_asked_whatever_the_file_is():
    with open_runner("/no/such/file", 8, latency_ms=20) as loaded:
        began = perf_counter_ns()
        loaded.infer()
        assert perf_counter_ns() - began >= 20_000_000
        assert loaded.provider is None and loaded.settle() == {}
