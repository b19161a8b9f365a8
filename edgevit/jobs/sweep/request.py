"""The options of `edgevit sweep`, checked before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from edgevit.board.request import Threads
from edgevit.data.classes import listed
from edgevit.data.request import Data, HeadBlocks, check_data
from edgevit.data.sources import has_masks
from edgevit.derivation.methods import method_names
from edgevit.derivation.options import describe
from edgevit.derivation.request import (
    METHOD,
    OUTPUTS,
    Cache,
    DeriveFrom,
    DeriveRequest,
    OutputOption,
    Request,
    check_output,
    method_options,
    puts_out_features,
    refuse_classes,
)
from edgevit.errors import OptionError, OutputError, UnknownNameError
from edgevit.exporting.request import Probe, ReadyMade, ready_made_files
from edgevit.jobs.sweep.record import BASE as BASE_FOLDER
from edgevit.jobs.sweep.record import PARTS, RATES, RECORD
from edgevit.network.request import BASE
from edgevit.numbers import COUNT, check_number
from edgevit.records.contents import contents
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import refuse_existing
from edgevit.request import BUDGETS, DATA, OUTPUT, SHAPE, TRAINING, Nested, Option, options_of
from edgevit.train.settings import TEACHING, Training

# What may differ where a sweep is continued: it changes no model, or sweep.json has it beside. Models are not trained.
_FREE = {
    "rates", "part", "threads", "ready_made", "cache", "accept_weak_base", "accept_preprocessing", "steps",
    "device", "workers",
}  # fmt: skip
# sweep.json states these always, and others where they differ from their defaults: a sweep that was begun before an
# option was there is continued.
_STATED = {"base", "data", "pretrained", "method", "shape", "skip_bad_images", "validation_fraction", "seed"}


def _read_rates(text: str, _: Mapping[str, Any]) -> tuple[float, ...]:
    """Read numbers that are separated by commas, each once and in order."""
    try:
        return tuple(sorted({float(rate) for rate in text.split(",") if rate.strip()}))
    except ValueError:
        raise OptionError(f"--rates {text} is not numbers separated by commas; try 0.5,0.8,0.9") from None


@dataclass(frozen=True, kw_only=True)
class SweepRequest(Request):
    """The options of `edgevit sweep`. `training` is that of the base, for `base_steps`."""

    base: Annotated[str | Path, BASE]
    data: Data
    out: Annotated[
        Path,
        Option("Folder for the models; an earlier sweep in it is continued.", OUTPUT, metavar="FOLDER", common=True),
    ]
    rates: Annotated[
        tuple[float, ...],
        Option(
            "Shares of the base's MACs to remove, separated by commas.",
            BUDGETS,
            read=_read_rates,
            metavar="NUMBER[,...]",
            common=True,
        ),
    ] = RATES
    method: Annotated[str, Option(f"Pruning method, without training: {METHOD}", SHAPE, common=True)] = "forge"
    options: Annotated[
        Mapping[str, Any],
        method_options(
            "Option of the method, such as forge.drop_blocks=no; edgevit methods METHOD lists all; repeatable."
        ),
    ] = field(default_factory=dict)
    output: OutputOption = OUTPUTS[0]
    head_blocks: HeadBlocks = 1
    probe: Probe = ()
    part: Annotated[
        str | None,
        Option(
            "Part of the images to evaluate on: validation or test.  "
            "[default: validation; test where the base was probably trained on the validation images]",
            DATA,
            name="--split",
        ),
    ] = None
    derive_from: DeriveFrom = "base"
    base_steps: Annotated[
        int | None,
        Option(
            "Number of optimiser steps for training the base, once for all rates.  "
            "[default: 10 passes over the training images]",
            TRAINING,
        ),
    ] = None
    training: Annotated[
        Training,
        # The base is trained, on the labels alone, and for a number of steps of its own.
        Nested(without=("steps", "lr_by_loss", "early_stop", *TEACHING)),
    ] = field(default_factory=lambda: Training(steps=0))
    threads: Threads = None
    ready_made: ReadyMade = ()
    cache: Cache = True

    def check(self) -> None:
        """Refuse impossible requests; see `edgevit.sweep` for what is raised."""
        if not self.rates:
            raise OptionError("no rates; try --rates 0.5,0.8,0.9")
        for rate in self.rates:
            check_number("--rates", rate, "(0, 1)", "0.9 leaves 10 % of the MACs; the base is always beside the models")
        if self.threads is not None:
            check_number("--threads", self.threads, COUNT)
        if self.part is not None and self.part not in PARTS:
            raise UnknownNameError("part of the data", self.part, PARTS)
        self._check_output()
        names = {BASE_FOLDER, *(self.at(rate).out.name for rate in self.rates)}
        if clashing := [file for file in ready_made_files(self.ready_made) if file.stem in names]:
            raise OptionError(
                f"--beside {clashing[0]}: {self.out / clashing[0].stem} is the folder of another model; rename the file"
            )
        if self.method in method_names() and describe(self.method).slices:
            raise OptionError("slices of a super-network need no sweep: `edgevit show NET` lists their accuracy")
        if self.derive_from == "base" and (idle := self._of_training()):
            option = f"--{next(iter(idle)).replace('_', '-')}"
            raise OptionError(f"{option} is for a base that is trained; give --derive-from better, too")
        self._refuse_other_folder()
        due = [request for rate in self.rates if not (request := self.at(rate)).out.is_dir()]
        for request in due[:1]:  # they differ in their rates alone
            request.check()

    def _check_output(self) -> None:
        """Refuse options of classes for other outputs, and probes of anything but features."""
        check_output(self.output)
        if self.output == "boxes" and self.derive_from != "base":
            raise OptionError(
                f"--derive-from {self.derive_from}: a sweep cuts a detector as it is; train it by edgevit derive"
            )
        if self.output != OUTPUTS[0]:
            refuse_classes(self.output, {"--split": self.part is not None and not self.probe})
            self._check_beside()
        if self.probe and not puts_out_features(self.output):
            raise OptionError(f"--probe is for --output features, and the output is {self.output}; leave it out")
        if self.probe:
            check_data(self.data)

    def _check_beside(self) -> None:
        """Refuse --beside for detectors, and where nothing tells how good features or maps of another network are."""
        if self.ready_made and self.output == "boxes":
            raise OptionError("--beside is for classifiers, features and maps, and the output is boxes; leave it out")
        if self.ready_made and puts_out_features(self.output) and not self.probe:
            raise OptionError(
                "--beside: features of another network are compared by what they are worth; give --probe knn,linear, "
                "and --data with a folder for each class"
            )
        if self.ready_made and not puts_out_features(self.output) and not has_masks(self.data):
            raise OptionError(
                f"--beside: maps of another network are compared by target maps, and {self.data} has none; give --data "
                "with images/, and their targets in masks/ by the same names"
            )

    def _of_training(self) -> dict[str, object]:
        """The options of the base's training that differ from their defaults."""
        return {
            option.field: value
            for option in options_of(SweepRequest)
            if option.option.panel == TRAINING and (value := reduce(getattr, option.path, self)) != option.default
        }

    def _refuse_other_folder(self) -> None:
        """Raise OutputError unless `out` is a sweep, an empty folder, or does not exist."""
        if (self.out / RECORD).is_file():
            return
        if not self.out.is_dir():
            refuse_existing(self.out)
        elif any(self.out.iterdir()):
            raise OutputError(f"{self.out} exists and holds no {RECORD}, so it is no sweep; choose another --out")

    def at(self, rate: float) -> DeriveRequest:
        """The derivation at one rate."""
        folder = self.out / f"r{rate:.12g}"
        shared = {f.name: getattr(self, f.name) for f in fields(DeriveRequest) if hasattr(self, f.name)}
        resumed = {"out": folder, "resume": has_state(partial_folder(folder))}
        return DeriveRequest(**{**shared, **resumed}, rate=rate, by_class=bool(self.probe))

    def opening(self) -> dict[str, object]:
        """The arguments with which the base is opened."""
        return {**super().opening(), "base_classes": self.base_classes}

    def identity(self) -> dict[str, object]:
        """The options that must be the same to continue a sweep, as plain values."""
        weights = contents({"base": str(self.base), "checkpoint": self.checkpoint and str(self.checkpoint)})
        usual = SweepRequest(base=self.base, data=self.data, out=self.out)._options()
        stated = {
            name: value
            for name, value in self._options().items()
            if name not in _FREE and (name in _STATED or value != usual[name])
        }
        return {**stated, "weights": weights.get("checkpoint", weights.get("base")), "classes": listed(self.classes)}

    def _options(self) -> dict[str, object]:
        """All options as plain values, those of training among the others."""
        options = self.plain()
        training = options.pop("training")
        return {**options, **training}
