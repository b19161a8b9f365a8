"""A method as the rest of edgevit sees it: what its file says of itself, with a type for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from torch import nn

from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.reach import Asked, Cuts, check_reachable
from edgevit.derivation.request import DeriveRequest, Deriving
from edgevit.network.checkpoint import Model
from edgevit.train.settings import Training

C = TypeVar("C")


def no_steps(config: object, rate: float, images: int, batch_size: int) -> int:
    """The `default_steps` of a method whose model is good as it is: nothing is trained unless steps are asked for."""
    return 0


def widths_alone(network: nn.Module, config: object, policy: Policy) -> Cuts:
    """What a method may take away if it declares no `cuts`: widths and nothing else."""
    return Cuts()


def takes_any_base(base: Model, config: object, request: DeriveRequest) -> None:
    """Refuse nothing: a method that declares no `check_base` cuts every base that can be opened."""


def trains_anyhow(config: object, training: Training) -> None:
    """Refuse nothing: a method that declares no `check_training` trains, if at all, as it is asked to."""


def fits_anything(asked: Asked, config: object) -> None:
    """Refuse nothing: the options of a method that declares no `check_options` fit every network."""


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
    check_training: Callable[[C, Training], None] = trains_anyhow  # refuses one before anything is opened
    check_base: Callable[[Model, C, DeriveRequest], None] = takes_any_base  # refuses one before an image is read
    gentle: bool = False  # its training starts from weights that are nearly right
    needs_all_tokens: bool = False  # it cannot cut a network that tokens leave before its last block
    cuts_half_blocks: bool = False  # it cuts models, too, whose blocks have lost their attention or their FFN
    name: str = ""  # that of its file, which `find_method` knows

    def make_config(self, options: Mapping[str, Any]) -> C:
        """Its config from options, by value or by text.

        Raises:
            UnknownNameError, OptionError: as `edgevit.derivation.options.make_config` says.
        """
        return make_config(self.name, self.config, options)

    def check(self, config: C, asked: Asked) -> None:
        """Refuse what it cannot do, before anything is measured.

        Raises:
            OptionError: its options do not fit the network or the images.
            DataError: there are too few images.
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


def refuse_training(request: Deriving) -> None:
    """Refuse, before anything is opened, a training that the method cannot do.

    Raises:
        UnknownNameError, OptionError: it cannot, or has no such options.
    """
    method = find_method(request.method)
    method.check_training(method.make_config(request.settings), request.training)
