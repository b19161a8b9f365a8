"""A method as the rest of edgevit sees it: what its file defines, with a type for each part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from edgevit.derive.allocate.policy import Policy
from edgevit.derive.methods import load_method
from edgevit.derive.options import make_config
from edgevit.derive.problem import Derived, Problem
from edgevit.derive.reach import Asked, Cuts, check_reachable
from edgevit.derive.request import DeriveRequest
from edgevit.models.checkpoint import Model


@dataclass(frozen=True)
class Method:
    """One file, or folder, of `methods/`; its module's docstring says what the parts are for."""

    name: str
    make_config: Callable[..., Any]  # from options, by value or by text
    default_steps: Callable[[Any, float, int, int], int]  # of config, rate, images and batch size
    derive: Callable[[Problem, Any], Derived]
    gentle: bool  # its training starts from weights that are nearly right
    needs_all_tokens: bool  # what it measures is of tokens that pass through all blocks
    cuts: Callable[[nn.Module, Any, Policy], Cuts]  # of a network, config and policy: what it may take away
    check_base: Callable[[Model, Any, DeriveRequest], None]  # refuses a base, before an image is read
    check_options: Callable[[Asked, Any], None]  # refuses a config that does not fit what is asked

    def check(self, config: Any, asked: Asked) -> None:
        """Refuse what it cannot do, before anything is measured.

        Raises:
            OptionError: its options do not fit the network or the images.
            BudgetError: with the minimum, if nothing that it may take away meets the budget.
        """
        self.check_options(asked, config)
        check_reachable(asked, self.name, lambda config: self.cuts(asked.network, config, asked.policy), config)


def find_method(name: str) -> Method:
    """Import a method.

    Raises:
        UnknownNameError: there is no such file.
    """
    module = load_method(name)
    return Method(
        name,
        lambda options: make_config(name, module, options),
        module.default_steps,
        module.derive,
        getattr(module, "GENTLE", False),
        getattr(module, "NEEDS_ALL_TOKENS", False),
        getattr(module, "cuts", lambda *_: Cuts()),
        getattr(module, "check_base", lambda *_: None),
        getattr(module, "check_options", lambda *_: None),
    )
