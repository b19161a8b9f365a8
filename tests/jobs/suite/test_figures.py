"""Figures of a network from its runs and those of the dense one."""

from dataclasses import replace
from pathlib import Path

import pytest
from some_runs import DENSE

from edgevit.board.bench import Setting
from edgevit.board.facts import BoardFacts
from edgevit.board.profiles import load_profile
from edgevit.engines.unjudged import Placed
from edgevit.jobs.suite.figures import measured_network
from edgevit.jobs.suite.files import Prepared
from edgevit.jobs.suite.suite import SuiteNetwork

SETTING = Setting("nano", BoardFacts(), load_profile("orin-nano-8gb"))
NETWORK = SuiteNetwork("tiny fp32", "tiny", precision="fp32")


def runs_of(label, ms, batch=1):
    return [
        replace(
            DENSE, label=label, batch=batch, round=i, latencies_ns=(int(ms * 1e6),) * 3, session="s", precision="fp32"
        )
        for i in (1, 2)
    ]


def test_figures_are_medians_by_batch_size_and_a_share_of_the_roofline():
    prepared = Prepared(NETWORK, "fp32", Placed(Path("a.engine"), "0" * 64, fused=0, build_s=3.0))
    runs = [*runs_of("tiny", 8.0), *runs_of(NETWORK.name, 4.0), *runs_of(NETWORK.name, 20.0, batch=8)]
    measured = measured_network("sizes and precisions", prepared, runs, "tiny", SETTING, "at batch 8: it died")
    assert (measured.question, measured.build_s, measured.failed) == (
        "sizes and precisions",
        3.0,
        "at batch 8: it died",
    )
    assert measured.fusable == 0, "fp32 fuses none"
    one, eight = measured.figures
    assert (one.batch, one.p50_ms, one.ratio) == (1, 4.0, pytest.approx(0.5))
    assert (eight.batch, eight.p50_ms, eight.ratio) == (8, 20.0, None), "the dense one was not measured at 8"
    assert 0 < one.roofline_share < eight.roofline_share < 1
    alone = measured_network("q", prepared, runs, "tiny", replace(SETTING, profile=None), None)
    assert [figure.roofline_share for figure in alone.figures] == [None, None]


def test_a_network_without_an_engine_has_no_figures():
    refused = Prepared(NETWORK, "fp32", Placed(Path(), "", refused="out of memory"))
    assert refused.measurable is None
    measured = measured_network("q", refused, runs_of("tiny", 8.0), "tiny", SETTING, None)
    assert (measured.figures, measured.refused) == ((), "out of memory") and measured.params > 5e6
