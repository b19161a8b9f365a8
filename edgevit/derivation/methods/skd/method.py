"""SKD super-network (Li et al.): cut a slice from a network trained for every size (`edgevit supernet`).

This needs no training and no data. `--steps N` trains the slice afterwards; its teacher is the whole super-network.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.feasibility import SearchSpace
from edgevit.derivation.method import Method, no_steps
from edgevit.derivation.methods.skd.piad import embed_without
from edgevit.derivation.methods.skd.slices import plan_of_slice, read_supernet
from edgevit.derivation.problem import Derived, Problem, distillation_for, train_for
from edgevit.derivation.realise import realise
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.solve.factorise import one_thread
from edgevit.network.model import Model
from edgevit.network.network import Network

NEEDS_IMAGES = False


@dataclass(frozen=True)
class Config:
    supernet: str = ""  # The folder of the super-network, which is also the base; --supernet sets it.


def search_space(network: Network, config: Config, policy: Policy) -> SearchSpace:
    """Return what it may remove: the embedding only if the super-network was made for that."""
    if not config.supernet:
        return SearchSpace()
    whole: int = network.geometry.embed
    narrowest = embed_without(whole, read_supernet(config.supernet).order)
    return SearchSpace(embed=narrowest if narrowest < whole else 0)


def check_base(base: Model, config: Config, request: DeriveRequest) -> None:
    """Refuse a size or classes that the super-network does not have."""
    size = {"rate": request.rate, "macs": request.macs, "params": request.params}
    read_supernet(config.supernet).check(base.spec, base, request.classes, **size)


def derive(problem: Problem, config: Config) -> Derived:
    with problem.stopwatch.stage("slice"), one_thread():  # each copy is too short for several threads on a busy machine
        plan = plan_of_slice(problem.network, read_supernet(config.supernet).order, problem.budget, problem.policy)
        slim = realise(problem.network, plan)
    done = 0
    if problem.training.steps:
        distillation = distillation_for(problem, plan.embed)
        done = train_for(problem, slim, stage="finetune", distillation=distillation)
    return Derived(slim, plan, {"steps": done, "steps_planned": problem.training.steps})


METHOD = Method(Config, no_steps, derive, search_space=search_space, check_base=check_base)
