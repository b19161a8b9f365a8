"""How busy the GPU is, as its driver says; nvidia-smi does not tell it on a Jetson."""

from __future__ import annotations

from ..kernel import read_integer

PATHS = (
    "sys/devices/platform/gpu.0/load",
    "sys/devices/gpu.0/load",
    "sys/devices/platform/bus@0/17000000.gpu/load",  # JetPack 6 and 7
    "sys/devices/17000000.ga10b/load",  # JetPack 5
    # The device behind the GPU's clock, wherever else it is: /sys/devices/platform/17000000.gpu on some of JetPack 6.
    "sys/class/devfreq/17000000.gpu/device/load",
    "sys/class/devfreq/17000000.ga10b/device/load",
)


class Meter:
    def __init__(self, root: str) -> None:
        self.root = root
        self.path = next((path for path in PATHS if read_integer(root, path) is not None), None)
        self.readings: list[int] = []

    def __enter__(self) -> Meter:
        return self

    def read(self) -> None:
        permille = read_integer(self.root, self.path) if self.path else None
        if permille is not None:
            self.readings.append(permille)

    def __exit__(self, *_: object) -> None:
        self.read()

    def figures(self) -> dict[str, object]:
        return {"gpu_load_permille": tuple(self.readings) or None}
