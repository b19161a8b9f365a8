"""The request of `meet` and of `edgevit derive`: a derivation, and the target if its budget is measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from edgevit.derivation.allocate.budget import MEASURED_BUDGETS
from edgevit.derivation.options import read_options
from edgevit.derivation.request import FPS, MJ, MS, CostTableFile, DeriveRequest, Deriving, Macs, Params, Rate
from edgevit.errors import OptionError
from edgevit.latency.target import MeasurementTarget
from edgevit.numbers import check_number
from edgevit.records.contents import contents
from edgevit.records.unfinished import REQUEST, REQUEST_KIND, STATE, partial_folder
from edgevit.request import BUDGET, RUNNER, Nested, Option

NONE_MEASURED: dict[str, None] = dict.fromkeys(MEASURED_BUDGETS)
_EXAMPLES = {"ms": "try 5.0", "mj": "try 40", "fps": "try 30"}


def read_budgets(option: str) -> Callable[[str, Mapping[str, Any]], tuple[float, ...]]:
    """Return a reader of one number, or of several separated by commas."""

    def read(text: str, _: Mapping[str, Any]) -> tuple[float, ...]:
        try:
            return tuple(float(number) for number in text.split(","))
        except ValueError:
            raise OptionError(
                f"--{option} {text} is no number; {_EXAMPLES[option]}, or several such as 4,6,8"
            ) from None

    return read


def _budgets(option: str, help_text: str) -> Option:
    return Option(help_text, BUDGET, metavar="NUMBER[,...]", common=True, read=read_budgets(option))


@dataclass(frozen=True, kw_only=True)
class MeetRequest(Deriving):
    """A derivation whose budget may be measured."""

    rate: Rate = None
    macs: Macs = None
    params: Params = None
    ms: Annotated[float | Sequence[float] | None, _budgets("ms", MS)] = None
    mj: Annotated[float | Sequence[float] | None, _budgets("mj", MJ)] = None
    fps: Annotated[float | Sequence[float] | None, _budgets("fps", FPS)] = None
    cost_table: CostTableFile = None
    run_precision: Annotated[
        str | None,
        Option("Precision of measured models: fp32, fp16 or int8.  [default: fp16 on a GPU, fp32 on the CPU]", RUNNER),
    ] = None
    # Its precision is `run_precision`, as training has one of that name.
    target: Annotated[MeasurementTarget, Nested(without=("precision",))] = field(default_factory=MeasurementTarget)

    among_others: bool = False  # one of several budgets, whose base lies beside its model

    @property
    def budgets(self) -> tuple[float, ...]:
        """The numbers of the measured quantity."""
        numbers = None if self.quantity is None else getattr(self, self.quantity)
        return () if numbers is None else tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)

    @property
    def run_target(self) -> MeasurementTarget:
        """The target with the precision of the models that are measured."""
        return replace(self.target, precision=self.run_precision or self.target.precision)

    @property
    def is_measured(self) -> bool:
        """Whether models are measured, which a given table alone does not require."""
        return self.quantity is not None and (self.cost_table is None or bool(self._target_options()))

    def check(self) -> None:
        """Refuse an invalid request of one budget; raises as `edgevit.meet` does."""
        if self.is_measured:
            self.check_measuring()
            # Without a table, the limit itself is checked after the table is measured.
            instead: dict[str, object] = {} if self.cost_table is not None else {"rate": 0.5, **NONE_MEASURED}
            self.derivation(**instead).check()
        else:
            self._refuse_target()
            self.derivation().check()

    def check_measuring(self) -> None:
        """Refuse numbers, or a target, that cannot be measured; for several budgets at once."""
        assert self.quantity is not None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise OptionError(f"--{self.quantity} is measured by one process; give it without accelerate launch")
        for option, more in (("--remove-blocks", self.remove_blocks), ("--rest-rate", self.rest_rate)):
            if more:
                raise OptionError(
                    f"{option} removes more than --{self.quantity} measures; give --rate, --macs or --params with it"
                )
        if others := [name for name, value in self.budget().items() if value is not None and name != self.quantity]:
            raise OptionError(f"--{others[0]} and --{self.quantity} exclude each other; give one of them")
        if self.budget_of == "whole":
            raise OptionError(
                f"--budget-of whole is for --rate and --macs, and --{self.quantity} is measured; leave it out"
            )
        for number in self.budgets:
            check_number(f"--{self.quantity}", number, "(0, inf)", _EXAMPLES[self.quantity])
        if self.run_precision is not None and self.target.precision not in (None, self.run_precision):
            raise OptionError(
                f"the precision is {self.target.precision} in target and {self.run_precision} in run_precision; give "
                "one of them"
            )
        self.run_target.check()

    def _refuse_target(self) -> None:
        """Raise OptionError for options of a target, and for several budgets, if nothing is measured."""
        if options := self._target_options():
            name = options[0].replace("_", "-")
            raise OptionError(f"--{name} is for a budget that is measured, and nothing is measured; leave it out")
        if len(self.budgets) > 1:
            raise OptionError(
                f"--{self.quantity} has {len(self.budgets)} numbers: leave --cost-table out, give one, or say with "
                "--board, --threads or another option where models are to be measured"
            )

    def _target_options(self) -> list[str]:
        """List the options of the target that are not at their defaults."""
        default = MeasurementTarget()
        names = [
            field.name for field in fields(default) if getattr(self.target, field.name) != getattr(default, field.name)
        ]
        return ["run_precision", *names] if self.run_precision else names

    @property
    def names_a_folder_alone(self) -> bool:
        """Whether the request states only the folder of an unfinished derivation to continue."""
        return self.resume and self == MeetRequest(out=self.out, resume=True)

    def begun(self) -> MeetRequest:
        """Return the request of the unfinished derivation in `out`, to continue it.

        Raises:
            OptionError: there is none.
            UnfinishedError: its request cannot be read.
        """
        file = partial_folder(self.out) / REQUEST
        record = REQUEST_KIND.read(file) if file.is_file() else None
        if record is None or not record.request:
            raise OptionError(
                f"nothing to go on with: there is no {file} that states a request; give the BASE and all options of "
                "the command that was stopped"
            )
        names = {field.name for field in fields(MeetRequest)}
        stated = {name: value for name, value in record.request.items() if name in names}
        return replace(STATE.checked(stated, MeetRequest, f"{file}, asked,"), out=self.out, resume=True)

    def derivation(self, **changed: Any) -> DeriveRequest:
        """Return the derivation by a table or a counted budget, with some options changed."""
        shared = {field.name: getattr(self, field.name) for field in fields(Deriving)}
        number: dict[str, object] = {str(self.quantity): number for number in self.budgets[:1]}
        budget: dict[str, object] = {**self.budget(), **NONE_MEASURED, **number, "cost_table": self.cost_table}
        return DeriveRequest(**{**shared, **budget, **changed})


def identity(request: MeetRequest) -> dict[str, object]:
    """Return what must be equal to continue an unfinished search."""
    options = request.plain()
    options["files"] = contents(options)
    options["options"] = read_options(request.method, request.options)  # equal for texts and values
    for name in ("out", "resume", "overwrite", "cache"):
        del options[name]
    for name in ("device", "workers"):
        del options["training"][name]
    options["target"]["precision"] = request.run_target.precision
    del options["run_precision"]
    del options["target"]["ssh_config"]
    return options
