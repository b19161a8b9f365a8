"""The request of `cost`; names and numbers are checked before torch is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from edgevit.derivation.allocate.policy import make_policy
from edgevit.errors import CheckpointError, OptionError
from edgevit.latency.target import MeasurementTarget
from edgevit.network.arguments import check_arguments
from edgevit.network.builder import check_builder, is_builder
from edgevit.network.request import BASE, ModelArgs, check_model_folder, plain_base
from edgevit.numbers import COUNT, check_number
from edgevit.records.release import is_release, weights_of
from edgevit.records.writing import refuse_unwritable
from edgevit.request import MEASURING, OUTPUT, SHAPE, Option

ROUNDS = 5  # runs of each stack
POINTS = 32  # largest number of stacks
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True)
class CostRequest(MeasurementTarget):
    """A cost table to be measured."""

    base: Annotated[str | Path, BASE]
    output: Annotated[
        Path | None,
        Option(
            "File for the table, .yaml or .json.  [default: none; the figures stay in the cache]", OUTPUT, common=True
        ),
    ] = None
    model_args: ModelArgs = field(default_factory=dict)
    shape: Annotated[
        str, Option("Widths to cover: fused, fused4, paper or free, as for `edgevit derive`.", SHAPE, common=True)
    ] = "fused"
    rounds: Annotated[int, Option("Number of measurements of each stack of blocks, in turns.", MEASURING)] = ROUNDS
    points: Annotated[
        int,
        Option(
            "Largest number of stacks (of each stage), without six for each narrower embedding; about 20 are always "
            "measured.",
            MEASURING,
        ),
    ] = POINTS
    tokens: Annotated[
        bool,
        Option("Also measure blocks with fewer tokens: five stacks for each token count.", MEASURING),
    ] = False

    def check(self) -> None:
        """Refuse an invalid request; raises as `edgevit.cost` does."""
        make_policy(self.shape)
        super().check()
        check_number("--rounds", self.rounds, "[2, 2**31)", "one run of each does not tell how sure it is")
        check_number("--points", self.points, COUNT)
        if self.output is not None:
            if self.output.suffix not in _SUFFIXES:
                raise OptionError(f"--output {self.output} ends in neither .yaml nor .json; a table is one of these")
            refuse_unwritable(self.output)
        check_arguments(self.model_args)
        base = plain_base(self.base, downloads=False)
        if is_builder(base):
            check_builder(base, pretrained=False, model_args=self.model_args)
        elif is_release(Path(base)):
            weights_of(Path(base))
        elif Path(base).is_dir():
            if self.model_args:
                raise OptionError(f"{base} is a model folder and brings its own arguments; leave --model-arg out")
            check_model_folder(base)
        elif os.sep in str(base):
            raise CheckpointError(f"no model folder at {base}; check the path")
