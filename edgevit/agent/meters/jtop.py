"""Power from jetson_stats (jtop), where its service runs and its Python package is installed.

Only its rails: its own total adds up all of them, and on AGX Orin one is part of another.
"""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import Any

from ..power import Rails, Readings
from . import ina3221

SOCKET = "run/jtop.sock"
INTERVAL_S = 0.2


def why_not(root: str) -> str | None:
    meter = Meter(root)
    with meter:
        pass
    return meter.reason


class Meter:
    def __init__(self, root: str, total: Rails = ()) -> None:
        self.root = root
        self.interval_ms = ina3221.interval_ms(root)
        self.readings = Readings("jtop", total)
        self.client: Any = None
        self.reason: str | None = None

    def __enter__(self) -> Meter:
        self._connect()
        self.begin()
        if self.client is not None and not self.readings.rows:
            self.reason = "jtop tells no rails"
        return self

    def _connect(self) -> None:
        if not os.path.exists(os.path.join(self.root, SOCKET)):
            self.reason = f"no /{SOCKET}: the service of jetson_stats does not run"
            return
        try:
            import jtop
        except ImportError as error:
            self.reason = f"cannot import jtop ({error})"
            return
        client = jtop.jtop(interval=INTERVAL_S)
        try:
            client.start()
        except jtop.JtopException as error:  # no permission, or a service of another version
            self.reason = f"jtop: {error}"
            return
        self.client = client

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        if self.client is None or not self.client.ok(spin=True):
            return
        rails = self.client.power.get("rail", {})
        row = {name: float(rail["power"]) for name, rail in rails.items() if name != "NC" and "power" in rail}
        if row:
            self.readings.add(perf_counter_ns(), row)

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        self.read()
        if self.client is not None:
            self.client.close()

    def figures(self) -> dict[str, Any]:
        return self.readings.figures(self.interval_ms)
