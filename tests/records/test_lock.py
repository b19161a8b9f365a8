from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgevit.errors import OutputError
from edgevit.records.lock import alone_in, in_turn

BUSY = OutputError("busy")
HOLD = """
import sys, time
from pathlib import Path
from edgevit.errors import OutputError
from edgevit.records.lock import alone_in
with alone_in(Path(sys.argv[1]), OutputError("busy")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_ends_however_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match="busy"), alone_in(tmp_path, BUSY):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with alone_in(tmp_path, BUSY):
            assert os.listdir(tmp_path) == []  # nothing was left behind


def test_a_lock_may_be_taken_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with alone_in(tmp_path, BUSY), pytest.raises(OutputError), alone_in(tmp_path, BUSY):
            pass


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), alone_in(tmp_path / "none", BUSY):
        pass


def test_a_lock_file_is_neither_followed_nor_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic link"), in_turn(tmp_path / "lock"):
        pass
    with in_turn(tmp_path / "victim"), in_turn(tmp_path / "new"):
        assert (tmp_path / "new").is_file()
    assert (tmp_path / "victim").read_text() == "precious"
