"""The interface of a method: what its file declares, with a type for each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace, Target, check_reachable
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.request import DeriveRequest, Deriving
from edgevit.network.model import Model
from edgevit.network.network import Network
from edgevit.train.settings import Training

C = TypeVar("C")


def no_steps(config: object, rate: float, images: int, batch_size: int) -> int:
    """The `default_steps` of a method whose weights need no training: it trains only if steps are requested."""
    return 0


def _accept(*_: object) -> None:
    """Refuse nothing."""


@dataclass(frozen=True)
class Method(Generic[C]):
    """What the file, or folder, of a method declares in its last line: METHOD = Method(Config, ...).

    mypy checks the functions against these types, and against the method's own config.
    """

    config: type[C]  # the frozen dataclass of the method's options
    # The number of steps, from the config, the rate, the number of images and the batch size.
    default_steps: Callable[[C, float, int, int], int]
    derive: Callable[[Problem, C], Derived]
    # What the method may remove from a network: widths and nothing else, unless it declares more.
    search_space: Callable[[Network, C, Policy], SearchSpace] = lambda *_: SearchSpace()
    check_options: Callable[[Target, C], None] = _accept  # refuses a config that does not fit the target
    # Refuses a training that the method cannot use, before anything is opened.
    check_training: Callable[[C, Training], None] = _accept
    # Refuses a base that the method cannot cut, before an image is read.
    check_base: Callable[[Model, C, DeriveRequest], None] = _accept
    gentle: bool = False  # whether its training starts from weights that are nearly right
    imitates_base: bool = False  # whether the restricted base is the default teacher of its training
    reads_labels: Callable[[C], bool] = lambda _: False  # whether anything but its training reads labels
    reads_unlabelled: bool = False  # whether it also calibrates on unlabelled images
    needs_all_tokens: bool = False  # whether it refuses a network whose blocks pass on fewer tokens
    cuts_half_blocks: bool = False  # whether it can cut models whose blocks lack their attention or their FFN
    name: str = ""  # name of the method's file; `find_method` sets it

    def make_config(self, options: Mapping[str, Any]) -> C:
        """Make the method's config from options, by value or by text.

        Raises:
            UnknownNameError, OptionError: as `edgevit.derivation.options.make_config` says.
        """
        return make_config(self.name, self.config, options)

    def check(self, config: C, target: Target) -> None:
        """Refuse what it cannot do, before anything is measured.

        Raises:
            OptionError: its options do not fit the network or the images.
            DataError: there are too few images.
            BudgetError: nothing that it may remove meets the budget; the message gives the minimum.
        """
        self.check_options(target, config)
        check_reachable(
            target, self.name, lambda config: self.search_space(target.network, config, target.policy), config
        )


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
    method.check_training(method.make_config(request.options), request.training)
