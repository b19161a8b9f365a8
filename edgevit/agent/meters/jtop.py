"""Power from jetson_stats (jtop), where its service runs and its Python package is installed.

Its rails, and its total only where that is a rail and has its name: VDD_IN, of Orin NX and Nano, it lists nowhere else.
Elsewhere its total adds up all rails, and on AGX Orin one is part of another.
"""

from __future__ import annotations

import json
import os
import subprocess
from time import perf_counter_ns
from typing import Any, Dict

from ..__main__ import claim_stdout
from ..control import own_command
from ..power import PowerFigures, Rails, Readings
from . import ina3221

_SOCKET = "run/jtop.sock"
_INTERVAL_S = 0.2
ANSWER_S = 15.0  # importing the package from an SD card takes a few
_RESTART = "try `sudo systemctl restart jtop`"


def why_not(root: str) -> str | None:
    """Ask in a process of its own: jtop waits for ever for a service that hangs."""
    if reason := _no_service(root):
        return reason
    try:
        finished = subprocess.run(
            own_command(tell, os.path.abspath(root)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ANSWER_S,
        )
        answer: str | None = json.loads(finished.stdout)["reason"]
        return answer
    except subprocess.TimeoutExpired:
        return f"jtop: no answer within {ANSWER_S:.0f} s; {_RESTART}"
    except (OSError, ValueError):
        return f"jtop: its client ended without an answer; {_RESTART}"


def tell(root: str) -> None:
    """Print why jtop cannot be read, and nothing that its package prints."""
    with claim_stdout() as answer:
        meter = Meter(root)
        with meter:
            pass
        json.dump({"reason": meter.reason}, answer)


def _no_service(root: str) -> str | None:
    running = os.path.exists(os.path.join(root, _SOCKET))
    return None if running else f"no /{_SOCKET}: the service of jetson_stats does not run"


class Meter:
    def __init__(self, root: str, total: Rails = ()) -> None:
        self.root = root
        self.interval_ms = ina3221.interval_ms(root, total)
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
        self.reason = _no_service(self.root)
        if self.reason:
            return
        try:
            import jtop
        except ImportError as error:
            self.reason = f"cannot import jtop ({error})"
            return
        try:
            client = jtop.jtop(interval=_INTERVAL_S)
            client.start()
        # Not its JtopException alone, which tells of permissions and versions: it leaves to its caller what sockets and
        # pickles raise, as when the service is restarted or of another Python.
        except Exception as error:
            text = " ".join(str(error).split())
            self.reason = f"jtop: {text}" if isinstance(error, jtop.JtopException) else f"jtop: {error!r}"
            return
        self.client = client

    def begin(self) -> None:
        self.read()
        self.readings.begin()

    def read(self) -> None:
        rails = self._rails() if self.client is not None else {}
        row = {name: float(rail["power"]) for name, rail in rails.items() if name != "NC" and "power" in rail}
        if row:
            self.readings.add(perf_counter_ns(), row)

    def _rails(self) -> Dict[str, Any]:
        try:
            power: Dict[str, Any] = self.client.power if self.client.ok(spin=True) else {}
            total = power.get("tot", {})
            return {**power.get("rail", {}), **({total["name"]: total} if "name" in total else {})}
        except Exception as error:  # any kind, as above: `ok` raises the error that the client's thread has met since
            self.reason, self.client = f"jtop: {error!r}", None
            return {}

    def __exit__(self, *_: object) -> None:
        self.readings.ended_ns = perf_counter_ns()
        self.read()
        if self.client is not None:
            self.client.close()

    def figures(self) -> PowerFigures:
        return self.readings.figures(self.interval_ms)
