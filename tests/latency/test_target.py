"""Where something is measured: what runs there by default, what is refused, and what a table says of it."""

import pytest

from edgevit.board.bench import Setting
from edgevit.board.facts import read_facts
from edgevit.errors import EdgeVitError
from edgevit.latency.target import MeasurementTarget
from edgevit.version import processor

FACTS = {"module": {"part": None}, "meters": {}, "power_mode": None, "clocks_locked": None}


def test_engines_in_fp16_run_on_a_board_and_onnx_files_in_fp32_here():
    here, there = MeasurementTarget(), MeasurementTarget(board="jetson@orin")
    assert (here.runs_on, here.builds, here.computes_in) == ("onnxruntime", False, "fp32")
    assert (there.runs_on, there.builds, there.computes_in) == ("tensorrt", True, "fp16")
    assert (
        MeasurementTarget(provider="cuda").computes_in == "fp16"
        and MeasurementTarget(precision="fp16").computes_in == "fp16"
    )
    assert MeasurementTarget(batch=4, threads=1).conditions().batches == (4,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runner": "tensort"}, "no runner 'tensort'; did you mean 'tensorrt'?"),
        ({"precision": "mixed"}, "a table has no precision 'mixed'; known: fp32, fp16"),
        ({"batch": 0}, "--batch 0 is not in [1, 100000]"),
        ({"board": "b", "provider": "cpu"}, "the runner 'tensorrt' has no option 'provider'"),
        ({"threads": 0}, "--threads 0 is not"),
        ({"precision": "int8", "provider": "cuda"}, "as engines or on the CPU, and not with the provider cuda"),
    ],
)
def test_a_place_that_cannot_be_is_refused(given, said):
    with pytest.raises(EdgeVitError) as error:
        MeasurementTarget(**given).check()
    assert said in str(error.value)


def test_a_table_says_of_this_machine_its_processor_and_threads_and_of_a_board_its_fingerprint():
    here = MeasurementTarget(threads=1, batch=2).origin(
        Setting("this machine", read_facts(FACTS, "this machine"), None)
    )
    assert (here.board, here.processor, here.threads, here.batch) == (None, processor(), 1, 2)
    assert (here.runner, here.provider, here.precision, here.power_mode) == ("onnxruntime", "cpu", "fp32", None)
    facts = {
        **FACTS, "module": {"part": "p3767", "model": "Orin X"}, "l4t": "36.4", "tensorrt": {"version": "10.3"},
        "power_mode": {"id": 2, "name": "15W"}, "clocks_locked": False, "cuda": {"sms": 8},
    }  # fmt: skip
    setting = Setting("b", read_facts(facts, "b"), None)
    there = MeasurementTarget(board="b").origin(setting)
    assert (there.board, there.processor, there.threads) == ("orin-x-l4t36.4-trt10.3-8sm", None, None)
    assert (there.power_mode, there.clocks_locked, there.provider) == ("15W", False, None)
    changed = MeasurementTarget(board="b", power_mode="25W", lock_clocks=True).origin(setting)
    assert (changed.power_mode, changed.clocks_locked) == ("25W", True)


def test_a_machine_behind_ssh_that_is_no_board_has_no_processor_of_this_one():
    setting = Setting("pc", read_facts({**FACTS, "machine": "x86_64", "hostname": "pc"}, "pc"), None)
    there = MeasurementTarget(board="me@pc", runner="onnxruntime", threads=1).origin(setting)
    assert (there.board, there.processor) == (None, "x86_64 of pc")
