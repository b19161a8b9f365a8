"""One command works in a folder at a time, and says how it continues."""

from pathlib import Path

import pytest

from edgevit.errors import Interrupted, OutputError
from edgevit.jobs.folder import working_in


def test_a_folder_is_made_and_held_until_the_command_ends(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with working_in(folder, "the rest"):
        assert folder.is_dir()
        busy = pytest.raises(OutputError, match=f"another edgevit is working in {folder}; wait until")
        with busy, working_in(folder, "the rest"):
            pass
    stopped = pytest.raises(Interrupted, match=r"^stopped; the same command continues with the rest$")
    with stopped, working_in(folder, "the rest"):
        raise KeyboardInterrupt
    with working_in(folder, "the rest"):
        pass
