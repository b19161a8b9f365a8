"""The real agent over a real pipe, under every Python that a board may have."""

from dataclasses import asdict

import pytest
from pythons import interpreter

from edgevit.agent.measure import MeasurementRequest
from edgevit.agent.records import Run
from edgevit.agent.runners import runner_names
from edgevit.board.client import Agent
from edgevit.errors import AgentError, UnreachableError

REQUEST = MeasurementRequest("/models/any.onnx", "0" * 64, "any", None, "fake", 4, 20, 0, 3, 0, {"latency_ms": 1})


@pytest.mark.quick("3.8")
@pytest.mark.parametrize("version", ["3.8", "3.10", "3.12"])
def test_the_agent_measures_under_each_python(version):
    with Agent(python=interpreter(version)) as agent:
        assert agent.hello["python"].startswith(version)
        assert agent.hello["runners"] == runner_names()
        run = Run.from_dict(agent.call("measure", **asdict(REQUEST)))
    assert len(run.latencies_ns) == 20
    assert run.p50_ns() >= 1e6
    assert version in run.environment["python"]


@pytest.mark.quick("3.8", "3.12")
@pytest.mark.parametrize("version", ["3.8", "3.10", "3.12"])
def test_a_job_runs_under_each_python(version, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tmp_path))
    told = []
    with Agent(python=interpreter(version)) as agent:
        assert agent.call("start", job="a", method="measure", args=asdict(REQUEST), owner="anna@desk")["state"] == "new"
        run = Run.from_dict(agent.call("follow", told.append, job="a")["result"])
        agent.call("forget", job="a")
        assert agent.call("cancel") == {"cancelled": [], "others": []}
    assert version in run.environment["python"]
    assert told[0]["stage"] == "load"


@pytest.mark.quick("2.7", "3.7")
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_a_python_that_is_too_old_is_told_so(version):
    with (
        pytest.raises(UnreachableError, match=rf"needs Python 3\.8 or newer, and this is {version}"),
        Agent(python=interpreter(version)),
    ):
        pass


def test_progress_arrives_before_the_result():
    told = []
    with Agent() as agent:
        agent.call("measure", told.append, **{**asdict(REQUEST), "duration_s": 0.5})
    assert told[0] == {"stage": "load", "done": 0.0}
    assert told[-1]["stage"] == "measure"


def test_a_failing_request_keeps_the_agent_alive():
    with Agent() as agent:
        with pytest.raises(AgentError, match="no runner 'nope'") as caught:
            agent.call("measure", **{**asdict(REQUEST), "runner": "nope"})
        assert "measure.py" in caught.value.remote_traceback
        with pytest.raises(AgentError, match=r"TypeError: .*unexpected keyword argument 'volts'"):
            agent.call("measure", volts=5)
        with pytest.raises(AgentError, match="KeyError: 'sing'"):
            agent.call("sing")
        assert agent.call("hello") == agent.hello
