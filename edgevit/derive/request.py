"""What is asked of `derive`, `supernet` and `base`: frozen records, which the command line and Python build alike.

`check` refuses, before torch is imported and anything is read, whatever names, numbers, paths and listings can tell.
What takes the base or the images to tell, such as whether a budget is within reach, is refused where they are opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgevit.data.request import check_data
from edgevit.derive import method_names
from edgevit.derive.allocate.budget import make_budget
from edgevit.derive.allocate.policy import make_policy
from edgevit.derive.options import SUPERNET, read_options
from edgevit.derive.steps import Step, check_steps
from edgevit.errors import OptionError, UnknownNameError
from edgevit.folder.model_folder import ModelFolder
from edgevit.folder.unfinished import partial_folder, refuse_unfinished
from edgevit.folder.writing import refuse_existing
from edgevit.models.request import check_base
from edgevit.numbers import check_number
from edgevit.train.settings import Training

SLICES = "skd"  # the method that cuts a super-network instead of a base
HEADS = ("subset", "full")
NO_LIMIT = 2**62  # MACs and parameters of a base that is not open yet: a budget is below them


@dataclass(frozen=True, kw_only=True)
class BaseRequest:
    """What `edgevit.base` is asked."""

    name: str | Path
    out: Path
    data: str | Path | None = None
    classes: str | Path | Sequence[str | int] | None = None
    checkpoint: str | Path | None = None
    pretrained: bool = False
    model_args: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    base_classes: str | Path | Sequence[str] | None = None
    # Of a head that is fitted, where the base has none: how images are split and read.
    training: Training = field(default_factory=Training)
    validation_fraction: float = 0.1
    skip_bad_images: bool = False
    cache: bool | Path = True
    overwrite: bool = False

    def check(self) -> None:
        """Refuse what cannot be done; see `edgevit.base` for what is raised."""
        refuse_existing(self.out, overwrite=self.overwrite)
        self.training.check()
        check_number("--validation-fraction", self.validation_fraction, "(0, 1)", "try 0.1")
        check_base(self.name, checkpoint=self.checkpoint, pretrained=self.pretrained, model_args=self.model_args)
        if self.data is not None:
            check_data(self.data, self.classes, self.base_classes)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `edgevit.derive` and `edgevit.supernet` are both asked."""

    base: str | Path | None
    data: str | Path | None
    out: Path
    classes: str | Path | Sequence[str | int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: str = "fused"
    ffn_multiple: int | None = None
    checkpoint: str | Path | None = None
    pretrained: bool = False
    model_args: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    base_classes: str | Path | Sequence[str] | None = None
    training: Training = field(default_factory=Training)
    validation_fraction: float = 0.1
    skip_bad_images: bool = False
    accept_weak_base: bool = False
    resume: bool = False
    overwrite: bool = False

    def _check(self, base: str | Path, method: str, unlabelled: str | Path | None = None) -> None:
        refuse_existing(self.out, overwrite=self.overwrite)
        refuse_unfinished(partial_folder(self.out), self.resume)
        read_options(method, self.options)
        make_policy(self.shape, self.ffn_multiple)
        self.training.check()
        check_number("--validation-fraction", self.validation_fraction, "(0, 1)", "try 0.1")
        check_base(base, checkpoint=self.checkpoint, pretrained=self.pretrained, model_args=self.model_args)
        if self.data is not None:
            check_data(self.data, self.classes, self.base_classes, unlabelled=unlabelled)


@dataclass(frozen=True, kw_only=True)
class SupernetRequest(Request):
    """What `edgevit.supernet` is asked."""

    base: str | Path
    data: str | Path
    rate: float = 0.75

    def check(self) -> None:
        """Refuse what cannot be done; see `edgevit.supernet` for what is raised."""
        make_budget(NO_LIMIT, NO_LIMIT, rate=self.rate)
        self._check(self.base, SUPERNET)


@dataclass(frozen=True, kw_only=True)
class DeriveRequest(Request):
    """What `edgevit.derive` is asked."""

    rate: float | None = None
    macs: str | float | None = None
    params: str | float | None = None
    ms: float | None = None
    cost_table: str | Path | None = None
    method: str = "forge"
    supernet: str | Path | None = None
    head: str = "subset"
    finetune_base: bool = False
    unlabelled: str | Path | None = None
    reject: float | None = None
    cache: bool | Path = True
    first: tuple[Step, ...] = ()  # methods that cut the base before this one does
    job: str | None = None  # the hash of the job of a plan that this is, which derivation.json keeps

    def check(self) -> None:
        """Refuse what cannot be done; see `edgevit.derive` for what is raised."""
        if self.method not in method_names():
            raise UnknownNameError("method", self.method, method_names())
        base = self.supernet_folder() or self.base
        if base is None:
            raise OptionError("nothing to derive from: give a BASE, a timm name or a model folder")
        if self.data is None and self.needs_images():
            raise OptionError("--data is missing; only a slice of a super-network that is not trained needs no images")
        self.check_budget()
        check_steps(self.first, self.method, self.rate, milliseconds=self.ms is not None)
        if self.head not in HEADS:
            raise UnknownNameError("head", self.head, HEADS)
        if self.reject is not None:
            check_number("--reject", self.reject, "(0, 1)", "try 0.05")
        self._check(base, self.method, self.unlabelled)

    def needs_images(self) -> bool:
        """Whether something is to be trained or measured: anything but a slice as it is."""
        asks = (self.training.steps, self.finetune_base, self.unlabelled, self.reject is not None)
        return self.method != SLICES or any(asks)

    def check_budget(self) -> None:
        """Refuse a budget that no base could have.

        Raises:
            OptionError: none or several are given, or one is out of range, or the method counts in other quantities.
            CostTableError: the table cannot be read.
        """
        table = None
        if self.ms is not None or self.cost_table is not None:
            from edgevit.derive.abilities import refuse_linear
            from edgevit.derive.allocate.cost_table import load_cost_table  # numpy and pydantic: a quarter second

            if self.ms is not None:
                refuse_linear(self.method)
            table = None if self.cost_table is None else load_cost_table(self.cost_table)
        make_budget(NO_LIMIT, NO_LIMIT, rate=self.rate, macs=self.macs, params=self.params, ms=self.ms, table=table)

    def supernet_folder(self) -> Path | None:
        """The super-network that is sliced; None where the method works on a base.

        Raises:
            OptionError: one is given to another method, or none to this one, or a base beside it.
            CheckpointError: there is none in the folder.
        """
        given = self.supernet or self.options.get("supernet")
        if self.method != SLICES:
            if given is not None:
                raise OptionError(f"--supernet {given} is for --method {SLICES}, and the method is {self.method!r}")
            return None
        if given is None and (self.base is None or not ModelFolder(Path(self.base)).is_supernet):
            raise OptionError(
                f"--method {SLICES} slices a super-network: give it with --supernet NET; edgevit supernet makes one"
            )
        if given is not None and self.base is not None and Path(self.base) != Path(given):
            raise OptionError(f"--supernet {given} is the base itself; leave {self.base} out")
        folder = Path(given or str(self.base))
        ModelFolder(folder).refuse_no_supernet()
        return folder
