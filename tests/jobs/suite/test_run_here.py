"""Networks of the suite as they are, of DeiT-Tiny, through ONNX Runtime: each runs and is set beside the dense one."""

import pytest

from edgevit.jobs.suite import run as module
from edgevit.jobs.suite.record import read_proof
from edgevit.jobs.suite.request import ProveRequest
from edgevit.jobs.suite.run import _Work, run
from edgevit.jobs.suite.suite import suite

pytestmark = pytest.mark.usefixtures("short", "examined_once")


def test_the_quick_suite_of_deit_tiny_runs_here_as_far_as_there_is_time(tmp_path, monkeypatch):
    """For two networks of its first question: to write one for ONNX takes torch three seconds."""
    whole = suite(("tiny",), quick=True)
    some = {name: networks[:2] if name == "shapes at 0.8" else networks for name, networks in whole.items()}
    monkeypatch.setattr(module, "suite", lambda sizes, **how: some)
    monkeypatch.setattr(_Work, "_fits", lambda self, question, subject, networks: question == "shapes at 0.8")
    asked = ProveRequest(sizes=("tiny",), quick=True, rounds=1, threads=1, output=tmp_path / "p.json")
    proof = run(asked)
    networks = some["shapes at 0.8"]
    assert [one.name for one in proof.measured] == ["tiny", *(one.name for one in networks)]
    assert proof.left_out == ("tiny heads of 16", "tiny heads of 12")
    dense, *others = proof.measured
    assert (len(dense.blocks), dense.tokens, dense.blocks[0].heads, dense.blocks[0].qk) == (12, 197, 3, 64)
    assert [one.blocks for one in others] == [subject.dims for subject in networks]
    assert all([figure.batch for figure in one.figures] == [1] for one in proof.measured)
    assert all(one.figures[0].ratio > 0 for one in others)
    # On a loaded machine the median of three inferences may be anything; of the fastest the next program takes less.
    fastest = {run.label: min(run.latencies_ns) for run in proof.measurements()}
    assert all(fastest[one.name] < fastest["tiny"] for one in others)
    assert len(proof.runs) == 3 and proof == read_proof(asked.output)
    assert "is not judged" in proof.answers[0], "one round is too few"
