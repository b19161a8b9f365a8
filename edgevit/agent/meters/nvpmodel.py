"""The power mode before and after: somebody else may have changed it in between."""

from __future__ import annotations

from ..jetson import power_mode


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.modes: list[str | None] = []

    def __enter__(self) -> Meter:
        self._ask()
        return self

    def read(self) -> None:
        pass  # asking takes a process

    def __exit__(self, *_: object) -> None:
        self._ask()

    def _ask(self) -> None:
        mode = power_mode(self.root)
        self.modes.append(mode["name"] if mode else None)

    def figures(self) -> dict[str, object]:
        before, after = self.modes
        return {"power_mode_before": before, "power_mode_after": after}
