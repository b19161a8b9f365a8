"""Processes of a session are found until they end."""

from __future__ import annotations

import subprocess

from benchmarks.product import hostile


def test_a_session_s_processes_are_found_until_they_end() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        assert hostile.session(process.pid) == [process.pid]
        process.kill()
        process.wait()
        assert hostile.session(process.pid) == []
