"""Methods that are wrong, each in one way: mypy refuses every one of them, or says that its `type: ignore` is unused.

Read by mypy (`files` in pyproject.toml), and run by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace, Target
from edgevit.derivation.method import Method
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Derived, Problem


@dataclass(frozen=True)
class Config:
    order: float = 2.0


@dataclass(frozen=True)
class Other:
    order: float = 2.0


def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
    return 0


def derive(problem: Problem, config: Config) -> Derived:
    return Derived(problem.network, Plan(()), {})


def search_space(network: nn.Module, config: Config, policy: Policy) -> SearchSpace:
    return SearchSpace()


RIGHT = Method(Config, default_steps, derive, search_space=search_space)

WITHOUT_DERIVE = Method(Config, default_steps)  # type: ignore[call-arg]


def steps_without_images(config: Config, rate: float, batch_size: int) -> int:
    return 0


TOO_FEW_ARGUMENTS = Method(Config, steps_without_images, derive)  # type: ignore[arg-type]


def derive_plan(problem: Problem, config: Config) -> Plan:
    return Plan(())


ANOTHER_RESULT = Method(Config, default_steps, derive_plan)  # type: ignore[arg-type]


def derive_of_another(problem: Problem, config: Other) -> Derived:
    return Derived(problem.network, Plan(()), {})


ANOTHER_CONFIG: Method[Config] = Method(Config, default_steps, derive_of_another)  # type: ignore[arg-type]


def search_space_of_options(config: Config, network: nn.Module, policy: Policy) -> SearchSpace:
    return SearchSpace()


ANOTHER_ORDER = Method(Config, default_steps, derive, search_space=search_space_of_options)  # type: ignore[arg-type]


def is_fine(target: Target, config: Config) -> bool:
    return True


CHECK_THAT_ANSWERS = Method(Config, default_steps, derive, check_options=is_fine)  # type: ignore[arg-type]
