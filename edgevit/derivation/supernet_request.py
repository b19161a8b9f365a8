"""The request of `supernet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from edgevit.data.request import Data
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.options import SUPERNET
from edgevit.derivation.request import NO_LIMIT, OVERWRITE, RESUME, Request, method_options
from edgevit.errors import OptionError
from edgevit.network.request import BASE
from edgevit.request import OUTPUT, SHAPE, Nested, Option
from edgevit.train.settings import Training


@dataclass(frozen=True, kw_only=True)
class SupernetRequest(Request):
    """The request of `edgevit.supernet`."""

    base: Annotated[str | Path, BASE]
    data: Data
    rate: Annotated[
        float,
        Option(
            "Share of the base's MACs to remove from the smallest slice: 0.75 leaves a quarter.",
            SHAPE,
            name="--smallest-rate",
            earlier="--rate",
            common=True,
        ),
    ] = 0.75
    options: Annotated[
        Mapping[str, Any],
        method_options(
            "How it is made, such as supernet.points=5; edgevit methods supernet lists all; repeatable.",
            "supernet.OPTION=VALUE",
        ),
    ] = field(default_factory=dict)
    training: Annotated[
        Training,
        Nested(
            without=("lr_by_loss", "early_stop"),
            help={
                "steps": "Number of optimiser steps.  [default: supernet.epochs passes over the images]",
                "evaluations": "Number of accuracy checks of the whole network and its smallest slice in training.",
                "teacher": "Network whose outputs are learnt: restricted (the base as it is) or none.  [default: none]",
            },
        ),
    ] = field(default_factory=Training)
    resume: Annotated[bool, Option(RESUME.format("training"), OUTPUT, common=True)] = False
    overwrite: Annotated[bool, OVERWRITE] = False

    def check(self) -> None:
        """Refuse a request that cannot be carried out; `edgevit.supernet` lists the errors."""
        make_budget(NO_LIMIT, NO_LIMIT, rate=self.rate)
        self._check_out(resume=self.resume, overwrite=self.overwrite)
        if self.training.teacher == "finetuned":
            raise OptionError("--teacher finetuned is for a derivation; a super-network takes restricted or none")
        self._check(self.base, SUPERNET, self.options)
