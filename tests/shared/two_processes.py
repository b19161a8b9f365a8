"""Two processes that compute together, as `accelerate launch` starts them, without the time that it takes itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from board_fixtures import free_port


def in_two_processes(arguments: Sequence[object]) -> list[str]:
    """Run Python with these arguments twice; what each has said on stdout. On the CPU they talk through gloo."""
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, *map(str, arguments)]
    environments = [{**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, env=each, **pipes) for each in environments]
    told = [process.communicate(timeout=120) for process in processes]
    for process, (_, said) in zip(processes, told, strict=True):
        assert process.returncode == 0, said
    return [out for out, _ in told]
