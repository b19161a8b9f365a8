'''One file per derivation method. Each ends with what it says of itself (`Method` in edgevit/derivation/method.py):

    METHOD = Method(Config, default_steps, derive)   with these of its own, which mypy holds against the types there:

    class Config                 frozen dataclass: the method's options, in the CLI (`--set method.option=value`), in
                                 derivation.json and in reports; every field has a default, is a bool, int, float,
                                 str or Literal, and has a comment: the sentence that `edgevit methods NAME` shows.
                                 One that has the option `supernet` cuts a super-network, which is its base then
    def default_steps(config, rate, images, batch_size) -> int   optimiser steps where the user gives none; 0 if it
                                 does not train
    def derive(problem, config) -> Derived

and, where they are not as most are:

    gentle=True                  if its training starts from weights that are nearly right: the learning rate warms
                                 up and is no higher than what is wrong with them needs (`train.settings.fill`)
    imitates_base=True           if its default teacher is the restricted base; else training has no teacher
    needs_all_tokens=True        if it cannot cut a model that removes tokens: such a base is refused at once
    cuts_half_blocks=True        if it can cut a model whose blocks have lost their attention or their FFN
                                 (`Block.attention`, `Block.ffn` are None there); else such a base is refused at once
    check_training=              check_training(config, training), if it cannot train in every way: refuses one before
                                 the base is opened
    check_base=                  check_base(base, config, request), if it cannot cut every base that can be opened:
                                 refuses one before an image is read
    search_space=                search_space(network, config, policy) -> SearchSpace, if it may remove more than
                                 widths: heads, blocks, the embedding, tokens (edgevit/derivation/feasibility.py); a
                                 budget below the cheapest network of the space is refused at once
    check_options=               check_options(target, config), if options may not fit a network or its images
                                 (feasibility.Target): refuses them with an OptionError, before anything is measured

Read from the source, so that a list of methods imports none of them: the docstring, the Config, NEEDS_IMAGES = False if
it needs none unless it is asked to train (its task may have none then), DROPS_TOKENS = True if it always drops tokens,
and NEEDS_LABELS = False if it reads labels in training alone, or says what else reads them (`reads_labels`): it can
cut networks that put out features, maps or boxes.

A budget in ms or mJ comes with a cost table (`problem.budget.prices`); `fit` spends every kind of budget.

A method decides what to keep: a `Plan` (edgevit/derivation/plan.py), with new weights where it works them out. It may
train `problem.network` in place before that, or what comes of the plan after it. The derived network is made by
`realise`, or by `leave_tokens` where tokens leave after its weights were solved (edgevit/derivation/realise.py);
`Network.build` is for networks that a method only measures. What a method is given and gives back is in
`edgevit.derivation.problem`.

`Derived.facts` goes into derivation.json as it is. Others read no more of it than the fields of
`edgevit.records.derivation.Facts`: `steps` (done; 0 without training), `kept_blocks` where blocks are left out,
`reused` where the cache is used, and so on.

A whole method, to be copied to methods/<name>.py or baselines/<name>.py:

    """Keep the FFN neurons with the largest weights, narrow attention by SVD, alike in every block; then train."""

    from __future__ import annotations

    from dataclasses import dataclass

    from edgevit.derivation.allocate.policy import fit, uniform
    from edgevit.derivation.method import Method
    from edgevit.derivation.plan import Plan
    from edgevit.derivation.problem import Derived, Problem, train_for
    from edgevit.derivation.realise import realise
    from edgevit.network.anatomy import ffns


    @dataclass(frozen=True)
    class Config:
        order: float = 2.0  # The order of the norm by which neurons are ranked.


    def default_steps(config: Config, rate: float, images: int, batch_size: int) -> int:
        return images // batch_size


    def derive(problem: Problem, config: Config) -> Derived:
        base = problem.network.to(problem.compute.device)
        blocks = base.read()
        dims = [block.dims for block in blocks]
        chosen = fit(uniform(dims), dims, base.geometry, problem.budget, problem.policy)
        scores = [f.w1.norm(config.order, dim=1) * f.w2.norm(config.order, dim=0) for f in ffns(blocks)]
        kept = [score.topk(new.ffn).indices for score, new in zip(scores, chosen, strict=True)]
        plan = Plan.narrowed(chosen, kept)
        network = realise(base, plan)
        steps = train_for(problem, network)
        return Derived(network, plan, {"steps": steps, "steps_planned": problem.training.steps})


    METHOD = Method(Config, default_steps, derive)

tests/derivation/test_methods.py and test_methods_masked.py run every method and this example.

Published methods that these are compared with are in `edgevit/baselines`, by the same protocol.
'''

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from edgevit.errors import UnknownNameError

_BASELINES = "edgevit.baselines"  # imported by name: that package is built on this one


def method_names() -> list[str]:
    """List edgevit's own methods, then the baselines."""
    return [*own_method_names(), *baseline_names()]


def own_method_names() -> list[str]:
    """List the methods of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def baseline_names() -> list[str]:
    """List the published methods that edgevit's own are compared with: the files of `edgevit/baselines`."""
    modules = pkgutil.iter_modules(import_module(_BASELINES).__path__)
    return sorted(module.name for module in modules if not module.ispkg)


def method_module(name: str) -> str:
    """Name a method's module: `methods.<name>`, `methods.<name>.method` if it is a folder, or `baselines.<name>`."""
    if name in baseline_names():
        return f"{_BASELINES}.{name}"
    is_folder = {module.name: module.ispkg for module in pkgutil.iter_modules(__path__)}
    return f"{__name__}.{name}{'.method' if is_folder[name] else ''}"


def load_method(name: str) -> ModuleType:
    """Import a method.

    Raises:
        UnknownNameError: there is no such file.
    """
    if name not in method_names():
        raise UnknownNameError("method", name, method_names())
    return import_module(method_module(name))
