"""Requests of `export` and `evaluate`, with the options of engines and boards.

`edgevit/exporting/request.py` has the part that needs no board.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from edgevit.board.profiles import load_profile
from edgevit.board.request import AskedBoard, SshConfig
from edgevit.engines.options import EngineOptions
from edgevit.errors import OptionError
from edgevit.exporting.request import ENGINE as SUFFIX
from edgevit.exporting.request import FilesRequest, GateTolerances, JudgeRequest
from edgevit.records.names import suffix_of
from edgevit.request import BOARD, ENGINE, Nested, Option

IMAGES = 500  # of the gate, spread evenly over the classes: a loss of one point is 5 of them


@dataclass(frozen=True, kw_only=True)
class ExportRequest(FilesRequest):
    """The request of `edgevit.export`: files, and with `trt` an engine, too."""

    trt: Annotated[bool, Option("Also build a TensorRT engine on the board.", ENGINE, common=True)] = False
    engine: Annotated[EngineOptions, Nested()] = field(default_factory=EngineOptions)
    board: AskedBoard = None
    ssh_config: SshConfig = None
    profile: Annotated[str | None, Option("Board profile to require, by name or path.", BOARD)] = None

    @property
    def engine_images(self) -> int:
        """The largest number of images of the gate."""
        return IMAGES if self.max_images is None else self.max_images

    @property
    def allowed_loss(self) -> GateTolerances:
        return self.engine.tolerances

    def check(self) -> None:
        """Check the request; raises as `edgevit.export` does."""
        of_engine = {
            "board": self.board, "ssh-config": self.ssh_config, "profile": self.profile, "rebuild": self.engine.rebuild,
        }  # fmt: skip
        for name, value in of_engine.items():
            if value and not self.trt:
                raise OptionError(f"--{name} is for an engine; give --trt, too")
        super().check()
        if self.profile is not None:
            load_profile(self.profile)


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(JudgeRequest):
    """The request of `edgevit.evaluate`: a model on this machine, or an engine on its board."""

    board: AskedBoard = None
    ssh_config: SshConfig = None

    @property
    def of_engine(self) -> bool:
        """Whether the model is an engine."""
        return suffix_of(self.model) == SUFFIX

    def check(self) -> None:
        """Check the request; raises as `edgevit.evaluate` does."""
        for name, value in {"board": self.board, "ssh-config": self.ssh_config}.items():
            if value and not self.of_engine:
                raise OptionError(
                    f"--{name} is for an engine, and {self.model} is not one; try one of its export/engines"
                )
        super().check()
