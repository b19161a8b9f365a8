"""Power from NVIDIA's tegrastats, where the sensors cannot be read directly; and what else one of its lines tells."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from ..kernel import find_program
from ..power import Rails, Readings
from . import ina3221

INTERVAL_MS = 100
FIRST_LINE_S = (
    4.0  # that its first line may take: where the sensors wait for an average, it reads eight files of 430 ms
)
PIPE_BYTES = 65536
READS = 4  # at a time, lest a program that never stops printing holds us up

# JetPack 5 and 6 print VDD_IN 4761mW/4778mW (now/mean since its start) and cpu@48.468C, JetPack 7 one figure more each.
RAM = re.compile(r"\bRAM (\d{1,9})/(\d{1,9})MB")
GPU = re.compile(r"\bGR3D_FREQ (\d{1,4})%")
TEMPERATURE = re.compile(r"\b(\w+)@(-?\d{1,6}(?:\.\d+)?)C\b")
RAIL = re.compile(r"\b(\w+) (\d{1,9})mW/")


@dataclass(frozen=True)
class Stats:
    """One line of tegrastats; as user and as root, of JetPack 5, 6 or 7."""

    ram_used_bytes: int | None
    ram_total_bytes: int | None
    gpu_load_percent: int | None
    temperatures_c: dict[str, float]  # by zone, lower case; without those that are switched off
    rails_mw: dict[str, float]  # at the moment


def parse(line: str) -> Stats:
    ram, gpu = RAM.search(line), GPU.search(line)
    degrees = {zone.lower(): float(value) for zone, value in TEMPERATURE.findall(line)}
    return Stats(
        ram_used_bytes=int(ram.group(1)) << 20 if ram else None,
        ram_total_bytes=int(ram.group(2)) << 20 if ram else None,
        gpu_load_percent=int(gpu.group(1)) if gpu else None,
        temperatures_c={zone: value for zone, value in degrees.items() if value > -256},
        rails_mw={label: float(value) for label, value in RAIL.findall(line) if label != "NC"},
    )


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
        self.printed = False  # at least one line, with rails or without

    def __enter__(self) -> Meter:
        if self.program:
            with suppress(OSError):  # it cannot be run: no readings
                self.process = subprocess.Popen(
                    [self.program, "--interval", str(INTERVAL_MS)],
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
        pieces = [self.unfinished[-PIPE_BYTES:]]
        with suppress(BlockingIOError):  # it has printed no more
            for _ in range(READS):
                pieces.append(os.read(self.process.stdout.fileno(), PIPE_BYTES))
        *lines, self.unfinished = b"".join(pieces).split(b"\n")
        self.printed |= bool(lines)
        rails = parse(lines[-1].decode("utf-8", errors="replace")).rails_mw if lines else {}
        if rails:
            self.readings.add(perf_counter_ns(), rails)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        if self.process is None:
            return
        try:
            time.sleep(INTERVAL_MS / 1e3)  # for one more line
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

    def figures(self) -> dict[str, Any]:
        return self.readings.figures(self.interval_ms)
