"""Power from NVIDIA's tegrastats, where the sensors cannot be read directly."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from contextlib import ExitStack, suppress
from time import perf_counter_ns

from ..kernel import find_program
from ..power import PowerFigures, Rails, Readings
from . import ina3221

_INTERVAL_MS = 100
FIRST_LINE_S = 4.0  # time for its first line: where sensors wait for an average, it reads eight files at 430 ms each
_PIPE_BYTES = 65536
_READS = 4  # number of reads at a time, so that a program that never stops printing cannot block this one

# JetPack 5 and 6 print VDD_IN 4761mW/4778mW (now/mean since its start), JetPack 7 one figure more.
_RAIL = re.compile(r"\b(\w+) (\d{1,9})mW/")


def rails_mw(line: str) -> dict[str, float]:
    """The power of each rail at the moment, in a line of tegrastats as user or as root, of JetPack 5, 6 or 7."""
    return {label: float(value) for label, value in _RAIL.findall(line) if label != "NC"}


def why_not(root: str) -> str | None:
    if find_program(root, "tegrastats") is None:
        return "no program tegrastats"
    with Meter(root) as meter:
        pass
    return None if meter.readings.rows else "tegrastats prints no rails"


class Meter:
    """Runs tegrastats for as long as the block lasts, and takes its newest line at each reading."""

    def __init__(self, root: str, total: Rails = ()) -> None:
        self.program = find_program(root, "tegrastats")
        self.interval_ms = ina3221.interval_ms(root, total)
        self.readings = Readings("tegrastats", total)
        self.process: subprocess.Popen[bytes] | None = None
        self.unfinished = b""
        self.printed = False  # whether it has printed a line, with rails or without

    def __enter__(self) -> Meter:
        if self.program:
            with suppress(OSError):  # it cannot be run: no readings
                self.process = subprocess.Popen(
                    [self.program, "--interval", str(_INTERVAL_MS)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
        if self.process:
            with ExitStack() as unless_ready:
                unless_ready.callback(self._stop, self.process)
                self._wait_for_first_line(self.process)
                unless_ready.pop_all()
        self.begin()
        return self

    def _wait_for_first_line(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)
        deadline = time.monotonic() + FIRST_LINE_S
        while not self.printed and (remaining_s := deadline - time.monotonic()) > 0:
            select.select([process.stdout], [], [], remaining_s)
            self.read()
            if process.poll() is not None:
                return

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        if self.process is None or self.process.stdout is None:
            return
        pieces = [self.unfinished[-_PIPE_BYTES:]]
        with suppress(BlockingIOError):  # it has printed no more
            for _ in range(_READS):
                pieces.append(os.read(self.process.stdout.fileno(), _PIPE_BYTES))
        *lines, self.unfinished = b"".join(pieces).split(b"\n")
        self.printed |= bool(lines)
        rails = rails_mw(lines[-1].decode("utf-8", errors="replace")) if lines else {}
        if rails:
            self.readings.add(perf_counter_ns(), rails)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        if self.process is None:
            return
        try:
            time.sleep(_INTERVAL_MS / 1e3)  # for one more line
            self.read()
        finally:
            self._stop(self.process)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout
        process.stdout.close()

    def figures(self) -> PowerFigures:
        return self.readings.figures(self.interval_ms)
