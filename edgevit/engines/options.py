"""Options of an engine: its build, and its tolerances against fp32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from edgevit.errors import OptionError
from edgevit.exporting.request import GateTolerances
from edgevit.request import ENGINE, Nested, Option

_LEVELS = range(6)
MIB = 1 << 20
MOST_IMAGES = 1000  # most images whose outputs are held at once
MOST_OUTPUTS = 1 << 26  # values of outputs that are held at once, 256 MB in fp32


def _read_batches(text: str, _: Mapping[str, Any]) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise OptionError(f"--batches {text} is not three numbers of images; try 1,1,8")
    least, chosen, most = map(int, parts)
    return least, chosen, most


def _read_mib(text: str, _: Mapping[str, Any]) -> int:
    if not text.isdecimal():
        raise OptionError(f"--workspace {text} is not a number of MiB; try 1024")
    return int(text) * MIB


@dataclass(frozen=True)
class EngineOptions:
    """Options of the build of an engine."""

    # Smallest, optimal (kernels are chosen for it), largest. A camera gives one image at a time; up to 8 still run, and
    # memory grows with the largest. An export with a fixed batch has only that one.
    batches: Annotated[
        tuple[int, int, int],
        Option(
            "Smallest, optimal and largest number of images per inference.",
            ENGINE,
            metavar="MIN,OPT,MAX",
            read=_read_batches,
            common=True,
        ),
    ] = (1, 1, 8)
    workspace_bytes: Annotated[
        int | None,
        Option(
            "Workspace of TensorRT in MiB.  [default: by the free memory of the board]",
            ENGINE,
            name="--workspace",
            metavar="NUMBER",
            read=_read_mib,
        ),
    ] = None
    optimization_level: Annotated[
        int | None,
        Option(
            "Optimisation level of the builder, 0 to 5, with TensorRT 8.6 and newer.  [default: TensorRT's own]", ENGINE
        ),
    ] = None
    timing_cache: bool = True
    rebuild: Annotated[bool, Option("Build the engine even if nothing has changed.", ENGINE)] = False
    most_probes: int = 16  # builds in the search for single blocks; one culprit in 12 or 24 blocks takes 6 or 7
    tolerances: Annotated[GateTolerances, Nested()] = field(default_factory=GateTolerances)

    def __post_init__(self) -> None:
        least, chosen, most = self.batches
        if not 1 <= least <= chosen <= most:
            raise OptionError(
                f"--batches {least},{chosen},{most} does not ascend from 1; give the smallest, the optimal and the "
                f"largest, such as 1,1,8"
            )
        if self.optimization_level is not None and self.optimization_level not in _LEVELS:
            raise OptionError(f"--optimization-level {self.optimization_level} is not one of 0 to 5; 3 is usual")
        if self.workspace_bytes is not None and self.workspace_bytes < 1:
            raise OptionError(f"--workspace is {self.workspace_bytes}: it must be at least 1")
