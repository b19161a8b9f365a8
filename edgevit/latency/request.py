"""What is asked of `meet`, and of `edgevit derive`: a derivation whose budget may be measured, and where."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from edgevit.derivation.allocate.budget import MEASURED_BUDGETS, MeasuredBudget
from edgevit.derivation.options import read_options
from edgevit.derivation.request import FPS, MJ, MS, CostTableFile, DeriveRequest, Deriving, Macs, Params, Rate
from edgevit.errors import OptionError
from edgevit.latency.target import MeasurementTarget
from edgevit.numbers import check_number
from edgevit.records.contents import contents
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import REQUEST, REQUEST_KIND, STATE, differences, first_few, partial_folder
from edgevit.request import BUDGET, RUNNER, Nested, Option

NONE_MEASURED: dict[str, None] = dict.fromkeys(MEASURED_BUDGETS)
TRY = {"ms": "try 5.0", "mj": "try 40", "fps": "try 30"}


def read_budgets(option: str) -> Callable[[str, Mapping[str, Any]], tuple[float, ...]]:
    """Read one number, or several that are separated by commas."""

    def read(text: str, _: Mapping[str, Any]) -> tuple[float, ...]:
        try:
            return tuple(float(number) for number in text.split(","))
        except ValueError:
            raise OptionError(f"--{option} {text} is no number; {TRY[option]}, or several such as 4,6,8") from None

    return read


def _budgets(option: str, what: str) -> Option:
    return Option(what, BUDGET, metavar="NUMBER[,...]", common=True, read=read_budgets(option))


@dataclass(frozen=True, kw_only=True)
class MeetRequest(Deriving):
    """What `edgevit.meet` and `edgevit derive` are asked."""

    rate: Rate = None
    macs: Macs = None
    params: Params = None
    ms: Annotated[float | Sequence[float] | None, _budgets("ms", MS)] = None
    mj: Annotated[float | Sequence[float] | None, _budgets("mj", MJ)] = None
    fps: Annotated[float | Sequence[float] | None, _budgets("fps", FPS)] = None
    cost_table: CostTableFile = None
    run_precision: Annotated[
        str | None,
        Option("Precision of the measured models: fp32 or fp16.  [default: fp16 on a GPU, fp32 on the CPU]", RUNNER),
    ] = None
    # Its precision is `run_precision`, as training has one of that name.
    target: Annotated[MeasurementTarget, Nested(without=("precision",))] = field(default_factory=MeasurementTarget)

    among_others: bool = False  # of several budgets, this is one

    @property
    def quantity(self) -> MeasuredBudget | None:
        """What the budget counts, where that is measured."""
        return next((name for name in MEASURED_BUDGETS if getattr(self, name) is not None), None)

    @property
    def budgets(self) -> tuple[float, ...]:
        """The numbers given of the quantity that is measured."""
        given = None if self.quantity is None else getattr(self, self.quantity)
        return () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)

    @property
    def run_target(self) -> MeasurementTarget:
        """Where models are measured, with their precision."""
        return replace(self.target, precision=self.run_precision or self.target.precision)

    @property
    def is_measured(self) -> bool:
        """Whether models are to be measured: no table alone says what they take."""
        return self.quantity is not None and (self.cost_table is None or bool(self._target_given()))

    def check(self) -> None:
        """Refuse what cannot be done; see `edgevit.meet` for what is raised."""
        if not self.is_measured:
            self._refuse_target()
            self.derivation().check()
            return
        assert self.quantity is not None
        from edgevit.derivation.compatibility import refuse_linear

        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise OptionError(f"--{self.quantity} is measured by one process; give it without accelerate launch")
        if others := [name for name, value in self._asked().items() if value is not None and name != self.quantity]:
            raise OptionError(f"--{others[0]} and --{self.quantity} exclude each other; give one of them")
        for number in self.budgets:
            check_number(f"--{self.quantity}", number, "(0, inf)", TRY[self.quantity])
        if len(set(self.budgets)) < len(self.budgets):
            raise OptionError(f"--{self.quantity} has a number twice; give each once")
        refuse_linear(self.method, self.quantity)
        if self.run_precision is not None and self.target.precision not in (None, self.run_precision):
            raise OptionError(
                f"the precision is {self.target.precision} in target and {self.run_precision} in run_precision; give "
                "one of them"
            )
        self.run_target.check()
        # Without a table, the numbers themselves are judged by what is measured.
        instead: dict[str, Any] = {} if self.cost_table is not None else {"rate": 0.5, **NONE_MEASURED}
        for one in self.each():
            if one.is_there:
                one._refuse_of_others()
            else:
                one.derivation(**instead).check()

    def _refuse_target(self) -> None:
        """Raise OptionError for options of a target where nothing is measured, and for several budgets."""
        if given := self._target_given():
            name = given[0].replace("_", "-")
            raise OptionError(f"--{name} is for a budget that is measured, and nothing is measured; leave it out")
        if len(self.budgets) > 1:
            raise OptionError(
                f"--{self.quantity} has {len(self.budgets)} numbers: leave --cost-table out, give one, or say with "
                "--board, --threads or another option where models are to be measured"
            )

    def _target_given(self) -> list[str]:
        """The options of a target that are given."""
        own = ["run_precision"] if self.run_precision else []
        return own + [
            one.name
            for one in fields(MeasurementTarget)
            if getattr(self.target, one.name) != getattr(MeasurementTarget(), one.name)
        ]

    def _asked(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("rate", "macs", "params", *MEASURED_BUDGETS)}

    def each(self) -> list[MeetRequest]:
        """One request per budget; several have their folders in `out`."""
        if len(self.budgets) == 1 or self.quantity is None:
            return [self]
        name = self.quantity
        made = [
            replace(self, **{name: number}, out=self.out / f"{name}{number:.12g}", among_others=True)  # type: ignore[arg-type]
            for number in self.budgets
        ]
        if not self.overwrite:
            return made
        # What lies behind the one that was being made is of an earlier command, and is to be overwritten.
        begun = next((i for i, one in enumerate(made) if partial_folder(one.out).is_dir()), -1)
        return [replace(one, resume=self.resume and i <= begun) for i, one in enumerate(made)]

    @property
    def names_a_folder_alone(self) -> bool:
        """Whether nothing is given but the folder of an unfinished derivation that is to be gone on with."""
        return self.resume and self == MeetRequest(out=self.out, resume=True)

    def begun(self) -> MeetRequest:
        """The request by which the derivation began that `out` names, to go on with it.

        Raises:
            OptionError: none was begun there.
            UnfinishedError: its request cannot be read.
        """
        file = partial_folder(self.out) / REQUEST
        record = REQUEST_KIND.read(file) if file.is_file() else None
        if record is None or not record.request:
            raise OptionError(
                f"nothing to go on with: there is no {file} that states a request; give the BASE and all options of "
                "the command that was stopped"
            )
        own = {field.name for field in fields(MeetRequest)}
        stated = {name: value for name, value in record.request.items() if name in own}
        return replace(STATE.checked(stated, MeetRequest, f"{file}, asked,"), out=self.out, resume=True)

    def going_on(self) -> MeetRequest:
        """This with `resume` where an unfinished search of the very same request is there: nobody begins it anew.

        Raises:
            UnfinishedError: what it holds is damaged.
        """
        for one in self.each() if self.is_measured else ():
            file = partial_folder(one.out) / REQUEST
            if file.is_file() and REQUEST_KIND.read(file).more == identity(one):
                return replace(self, resume=True)
        return self

    @property
    def is_there(self) -> bool:
        """Whether this is one of several budgets, which are gone on with, and has been met."""
        being_replaced = self.overwrite and partial_folder(self.out).is_dir()
        is_made = self.resume and self.among_others and not being_replaced
        return is_made and ModelFolder(self.out).derivation_file.is_file()

    def _refuse_of_others(self) -> None:
        """Raise OptionError where the model that is there was made by another request than this."""
        record = ModelFolder(self.out).derivation()
        asked = None if record is None or record.met is None else record.met.request
        if asked is None:
            raise OptionError(
                f"{self.out} does not say by which options it was made, so it is not gone on with; choose another "
                "--out, or remove it"
            )
        if changed := differences(asked, identity(self)):
            raise OptionError(
                f"{self.out} was made by other options: {first_few(changed)}; give the same ones, choose another "
                "--out, or remove it"
            )

    def derivation(self, **changed: Any) -> DeriveRequest:
        """The derivation by a table or a linear budget, but for what is changed of it."""
        shared = {one.name: getattr(self, one.name) for one in fields(Deriving)}
        number: dict[str, Any] = {str(self.quantity): one for one in self.budgets[:1]}
        asked: dict[str, Any] = {**self._asked(), **NONE_MEASURED, **number, "cost_table": self.cost_table}
        return DeriveRequest(**{**shared, **asked, **changed})


def identity(request: MeetRequest) -> dict[str, Any]:
    """What must be the same for an unfinished search to be gone on with."""
    told = request.told()
    told["files"] = contents(told)
    told["options"] = read_options(request.method, request.options)  # whether they were typed, or given from Python
    for name in ("out", "resume", "overwrite", "cache"):
        del told[name]
    for name in ("device", "workers"):
        del told["training"][name]
    told["target"]["precision"] = request.run_target.precision
    del told["run_precision"]
    del told["target"]["ssh_config"]
    return told
