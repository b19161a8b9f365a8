"""What an agent tells of a machine is read once, whole, into a record with its own names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import pytest

from edgevit.agent.examine import examine as examine_there
from edgevit.board.connection import open_board
from edgevit.board.facts import BoardFacts, ListedMode, PowerMode, examine, read_facts
from edgevit.errors import AgentError

NX = "orin-nx-16gb-jetpack6.2"


@pytest.mark.parametrize("board", [None, NX])
def test_nothing_that_the_agent_tells_is_lost(
    board: str | None, board_tree: Callable[[str], Path], tmp_path: Path
) -> None:
    told = examine_there(lambda message: None, str(board_tree(board) if board else tmp_path))
    assert {*told, "clock_ahead_s", "host"} == {one.name for one in fields(BoardFacts)}
    there = asdict(read_facts(told, "orin"))
    assert (there.pop("clock_ahead_s"), there.pop("host")) == (None, "orin")  # the host adds them
    assert json.loads(json.dumps(there)) == json.loads(json.dumps(told))


def test_a_board_is_examined_by_its_agent() -> None:
    with open_board(None) as here:
        facts = examine(here)
    assert facts.python and facts.module.part is None and facts.memory.total_bytes
    assert facts.clock_ahead_s is not None and abs(facts.clock_ahead_s) < 30


def test_what_is_of_another_type_is_named() -> None:
    with pytest.raises(AgentError, match=r"the answer of orin to .examine. has 'much' as memory\.total_bytes"):
        read_facts({"memory": {"total_bytes": "much"}}, "orin")


@pytest.mark.parametrize(("name", "found"), [(None, 2), ("15W", 0), ("no such mode", 2)])
def test_a_mode_is_listed_by_its_name_or_is_the_one_that_the_board_is_in(name: str | None, found: int) -> None:
    modes = tuple(ListedMode(i, text) for i, text in enumerate(("15W", "25W", "MAXN")))
    assert BoardFacts(power_mode=PowerMode(2, "MAXN"), power_modes=modes).listed_mode(name) == modes[found]
    assert BoardFacts().listed_mode(name) is None
