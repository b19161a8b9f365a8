"""What to build, and how right it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgevit.engines.gate import GateTolerances
from edgevit.errors import OptionError

LEVELS = range(6)
IMAGES = 500  # to judge on, spread evenly over the classes: a drop of one point is 5 of them


@dataclass(frozen=True)
class Options:
    """One engine, asked for."""

    # Least, the one that kernels are chosen for, most. A camera gives one image at a time, so that is what they are
    # chosen for; up to 8 still run, and memory follows the most. An export of a fixed batch has only that one.
    batches: tuple[int, int, int] = (1, 1, 8)
    workspace_bytes: int | None = None  # None: by what the board has free
    optimization_level: int | None = None  # 0 to 5; None: TensorRT's own
    timing_cache: bool = True
    rebuild: bool = False
    max_images: int = IMAGES
    most_probes: int = 16  # builds in the search for single blocks; one culprit in 12 or 24 blocks takes 6 or 7
    tolerances: GateTolerances = field(default_factory=GateTolerances)
    profile: str | None = None  # name or path of the one that the board must match
    export: Mapping[str, Any] = field(default_factory=dict)  # as `edgevit.export` takes them

    def __post_init__(self) -> None:
        least, chosen, most = self.batches
        if not 1 <= least <= chosen <= most:
            raise OptionError(
                f"--batches {least},{chosen},{most} does not ascend from 1; give the least, the one to choose kernels "
                f"for and the most, such as 1,1,8"
            )
        if self.optimization_level is not None and self.optimization_level not in LEVELS:
            raise OptionError(f"--optimization-level {self.optimization_level} is not one of 0 to 5; 3 is usual")
        for name, value in (("workspace", self.workspace_bytes), ("max-images", self.max_images)):
            if value is not None and value < 1:
                raise OptionError(f"--{name} is {value}: it must be at least 1")

    @property
    def precisions(self) -> tuple[str, ...]:
        """Of the exported files that an engine may be built from."""
        return ("fp32", "fp16") if self.export.get("fp16", True) else ("fp32",)
