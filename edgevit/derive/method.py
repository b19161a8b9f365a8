"""A method as the rest of edgevit sees it: what its file says of itself, with a type for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from torch import nn

from edgevit.data.classes import TargetClass
from edgevit.derive.allocate.budget import Budget
from edgevit.derive.allocate.policy import Policy
from edgevit.derive.methods import load_method
from edgevit.derive.options import make_config
from edgevit.derive.plan import Plan
from edgevit.derive.problem import Derived, Problem
from edgevit.derive.reach import Asked, Cuts, check_reachable
from edgevit.folder.model import ModelSpec

C = TypeVar("C")
Classes = str | Path | Sequence[str | int] | None


class Slices(Protocol):
    """What a method that needs no image cuts from: a base that was made to be cut."""

    def check(self, spec: ModelSpec, network: nn.Module, classes: Classes, **size: Any) -> None:
        """Refuse a size (rate, macs, params) or classes that it cannot give, before anything is worked out."""

    def classes(self, spec: ModelSpec, classes: Classes) -> tuple[TargetClass, ...]:
        """The classes asked for, with their rows in the classifier; None is all that it knows."""

    def plan(self, network: nn.Module, budget: Budget, policy: Policy, outputs: int | None = None) -> Plan:
        """The plan of this budget, for a classifier of so many outputs unless None."""


def widths_alone(network: nn.Module, config: object, policy: Policy) -> Cuts:
    """What a method may take away that says nothing of it."""
    return Cuts()


def fits_anything(asked: Asked, config: object) -> None:
    """Refuse nothing: the options of a method that says nothing of it fit every network."""


@dataclass(frozen=True)
class Method(Generic[C]):
    """What the file, or folder, of a method says of itself, as its last line: METHOD = Method(Config, ...).

    mypy holds the functions against these types, and their config against the method's own.
    """

    config: type[C]  # its options, a frozen dataclass
    default_steps: Callable[[C, float, int, int], int]  # of config, rate, images and batch size
    derive: Callable[[Problem, C], Derived]
    cuts: Callable[[nn.Module, C, Policy], Cuts] = widths_alone  # of a network: what it may take away
    check_options: Callable[[Asked, C], None] = fits_anything  # refuses a config that does not fit what is asked
    slices: Callable[[C], Slices] | None = None  # what it cuts from, if that needs no image
    gentle: bool = False  # its training starts from weights that are nearly right
    needs_all_tokens: bool = False  # what it measures is of tokens that pass through all blocks
    name: str = ""  # that of its file, which `find_method` knows

    def make_config(self, options: Mapping[str, Any]) -> C:
        """Its config from options, by value or by text.

        Raises:
            UnknownNameError, OptionError: as `edgevit.derive.options.make_config` says.
        """
        return make_config(self.name, self.config, options)

    def check(self, config: C, asked: Asked) -> None:
        """Refuse what it cannot do, before anything is measured.

        Raises:
            OptionError: its options do not fit the network or the images.
            BudgetError: with the minimum, if nothing that it may take away meets the budget.
        """
        self.check_options(asked, config)
        check_reachable(asked, self.name, lambda config: self.cuts(asked.network, config, asked.policy), config)


def find_method(name: str) -> Method[Any]:
    """Import a method.

    Raises:
        UnknownNameError: there is no such file.
    """
    method: Method[Any] = load_method(name).METHOD
    return replace(method, name=name)
