"""Every method that the agent has is found by its name, and whatever becomes of it is an answer."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from edgevit.agent.methods import MODULES, method_named, reply
from edgevit.agent.runners import RunnerError


@pytest.mark.parametrize("name", MODULES)
def test_a_method_is_where_it_is_said_to_be_and_is_given_the_machine(name: str) -> None:
    assert list(inspect.signature(method_named(name)).parameters)[:2] == ["send", "root"]


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "message"), [(RunnerError("no TensorRT"), "no TensorRT"), (KeyError("onnx"), "KeyError: 'onnx'")]
)
def test_a_failure_is_told_with_its_traceback(error: Exception, message: str) -> None:
    told: list[Any] = []
    reply(lambda: 7, told.append)
    reply(lambda: fail(error), told.append)
    assert told[0] == {"result": 7} and told[1]["error"]["message"] == message
    assert "in fail" in told[1]["error"]["traceback"]


def test_a_host_that_is_gone_is_not_told() -> None:
    with pytest.raises(BrokenPipeError):
        reply(lambda: fail(BrokenPipeError()), [].append)
