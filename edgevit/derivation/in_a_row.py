"""The steps before the last one: each method cuts what the one before it made; none is done again on resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgevit.derivation.abilities import lost_site, refuse_after_tokens, refuse_half_blocks
from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.method import Method, find_method
from edgevit.derivation.plan import Plan, planned
from edgevit.derivation.problem import Derived, Problem
from edgevit.derivation.reach import Asked, Cuts, asked_of, check_reachable, together, written
from edgevit.derivation.steps import Step
from edgevit.errors import OptionError
from edgevit.network.checkpoint import Model, tensors_sha256
from edgevit.network.copies import bare_copy
from edgevit.network.families import family_of
from edgevit.progress import Progress
from edgevit.records.derivation import FirstRecord
from edgevit.records.names import HISTORY
from edgevit.records.plan import StepRecord
from edgevit.records.state import DONE, DONE_KIND, DoneStep
from edgevit.records.writing import write_whole, writing
from edgevit.train.history import History
from edgevit.train.settings import Training, fill
from edgevit.train.state import load_tensors, reading_state, save_tensors
from edgevit.version import written_by


@dataclass(frozen=True)
class CutFirst:
    """What is there before the last method begins."""

    problem: Problem  # for the last method: of the network that the steps made
    blocks: tuple[int, ...]  # of the first base, those that the network has
    plans: tuple[StepRecord, ...]
    records: tuple[FirstRecord, ...]
    history: tuple[dict[str, Any], ...]

    def kept_blocks(self, plan: Plan) -> list[int]:
        """Which blocks of the first base stay by a plan for the network."""
        return [self.blocks[i] for i in plan.kept_blocks]

    def in_terms_of_the_base(self, derived: Derived) -> dict[str, object]:
        """The facts of the last method; blocks by their number in the first base."""
        facts = dict(derived.facts)
        if self.plans or "kept_blocks" in facts:
            facts["kept_blocks"] = self.kept_blocks(derived.plan)
        if self.plans:
            facts.pop("kept_heads", None)  # they are numbered within the network; plan.json has them step by step
        return facts


@dataclass(frozen=True)
class _InRow:
    """One method where it stands in a row, with its options, and what it may take away with them."""

    method: Method[Any]
    given: Mapping[str, Any]
    network: nn.Module
    policy: Policy

    @property
    def config(self) -> Any:
        return self.method.make_config(self.given)

    @property
    def cuts(self) -> Cuts:
        cuts: Cuts = self.method.cuts(self.network, self.config, self.policy)
        return cuts

    def follows_tokens(self) -> bool:
        """Whether it can cut what tokens leave."""
        try:
            refuse_after_tokens(self.method, self.config, self.network, self.policy)
        except OptionError:
            return False
        return True

    def holding(self, behind: Sequence[_InRow], progress: Progress) -> _InRow:
        """Itself, keeping the sites and tokens that it need not take away and a method behind it wants."""
        found, cuts = self, self.cuts
        whole = next((one for one in behind if not one.method.cuts_half_blocks), None)
        if cuts.sites and whole is not None:
            why = f"{whole.method.name} cuts blocks that have both attention and FFN"
            found = found._with(cuts.all_sites, why, progress)
        all_pass = next((one for one in behind if not one.follows_tokens()), None)
        if cuts.tries_tokens and all_pass is not None:
            found = found._with(cuts.all_tokens, f"{all_pass.method.name} cuts a model that no token leaves", progress)
        return found

    def ways_behind(self, other: _InRow) -> str:
        """How another method, which stands behind it, can have all sites."""
        name = self.method.name
        keep = " ".join(f"--set {name}.{option}={written(value)}" for option, value in self.cuts.all_sites.items())
        last = f"let {name} cut last (--first {other.method.name}:RATE --method {name})"
        return f"keep them ({keep}), {last}" if keep else last

    def _with(self, keeping: Mapping[str, Any], why: str, progress: Progress) -> _InRow:
        """Itself with these options, unless somebody gave one of them: what was asked for is not changed."""
        if not keeping or keeping.keys() & self.given.keys():
            return self
        options = ", ".join(f"{self.method.name}.{name}={written(value)}" for name, value in keeping.items())
        progress.note(f"{self.method.name} cuts first, with {options}: {why}")
        return replace(self, given={**self.given, **keeping})


def settle_row(
    steps: Sequence[Step],
    method: Method[Any],
    options: Mapping[str, Any],
    network: nn.Module,
    policy: Policy,
    progress: Progress,
) -> tuple[Step, ...]:
    """The steps with the options by which each leaves what those behind it can cut; nothing is measured for that.

    Args:
        method: the last one, with its options.
        network: the first base.

    Raises:
        OptionError: some method of the row cannot cut what reaches it; the message says in which order it can.
    """
    row = [_InRow(find_method(step.method), step.options, network, policy) for step in steps]
    row.append(_InRow(method, options, network, policy))
    row = [one.holding(row[i + 1 :], progress) for i, one in enumerate(row)]
    blocks = family_of(network).read(network)
    leave, lost, by = any(block.tokens for block in blocks), lost_site(blocks), list[_InRow]()
    for one in row:
        if leave:
            refuse_after_tokens(one.method, one.config, network, policy)
        if lost:
            refuse_half_blocks(
                one.method, lost, "derive from the model that it came from, at the rate of both together"
            )
        elif by:
            refuse_half_blocks(one.method, f"{by[0].method.name} before it takes some away", by[0].ways_behind(one))
        leave = leave or one.cuts.tokens or one.cuts.tries_tokens
        by += [one] if one.cuts.sites else []
    return tuple(replace(step, options=one.given) for step, one in zip(steps, row, strict=False))


def check_row(steps: Sequence[Step], method: Method[Any], config: Any, asked: Asked, base: Model) -> None:
    """Refuse a rate or budget that is not met even if every method up to there cuts all that it may.

    Args:
        method: the last one, which is asked for the budget; the steps before it have rates of their own.

    Raises:
        BudgetError: with the minimum.
    """
    row: list[tuple[Method[Any], Any, Budget]] = []
    for step in steps:
        found, budget = find_method(step.method), make_budget(base.spec.macs, base.spec.params, rate=step.rate)
        row.append((found, found.make_config(step.options), budget))
    row.append((method, config, asked.budget))
    cuts = [one.cuts(asked.network, given, asked.policy) for one, given, _ in row]
    row[0][0].check(row[0][1], replace(asked, budget=row[0][2]))
    for i, (_, given, budget) in enumerate(row[1:], 2):

        def so_far(_: Any, count: int = i) -> Cuts:
            return together(cuts[:count])

        names = ", then ".join(one.name for one, *_ in row[:i])
        check_reachable(replace(asked, budget=budget), names, so_far, given)


def cut_first(steps: Sequence[Step], problem: Problem, base: Model, asked: Training) -> CutFirst:
    """Let each step cut what the one before it made; a step that is complete already is read.

    Args:
        base: the first base, from whose MACs the rates count.
        asked: the training as the user asked for it; what each method decides of it is filled in here.
    """
    found = CutFirst(problem, tuple(range(len(base.spec.blocks))), (), (), ())
    for i, step in enumerate(steps):
        found = _after(found, step, problem.folder / f"step{i + 1}", base, asked)
    if steps:
        torch.manual_seed(problem.training.seed)  # the last method draws the same, were the steps done or read
    return found


def _after(before: CutFirst, step: Step, folder: Path, base: Model, asked: Training) -> CutFirst:
    problem, main = before.problem, before.problem.compute.is_main
    family = family_of(problem.network)
    file, weights = folder / DONE, folder / "network.safetensors"
    with writing(folder):
        folder.mkdir(exist_ok=True)
    history = History(folder / HISTORY)
    if not file.is_file():
        derived = _derive(problem, step, folder, history, base, asked)
        if main:
            save_tensors(weights, derived.network.state_dict())
            record = DoneStep(derived.plan.record(step.method), derived.facts, written_by())
            with writing(file):  # last: a step whose done.json exists is complete
                write_whole(file, DONE_KIND.text(record))
        problem.compute.wait()
    done = DONE_KIND.read(file)
    network = bare_copy(problem.network).cpu()
    kept = [block.block for block in done.plan.blocks]
    with reading_state(weights):
        state = load_tensors(weights)
        plan = planned(done.plan)
        family.keep_blocks(network, kept)
        if plan.embed is not None:  # its weights come from the file: any matrix of this shape will do
            old = family.geometry(network).embed
            network = family.with_embedding(network, torch.zeros(plan.embed.width, old, dtype=torch.float64))
        family.resize(network, plan.dims, state)
        network.load_state_dict(state, assign=True)
    identity = {**problem.identity, "state": tensors_sha256(network.state_dict())}
    name = folder.name
    return CutFirst(
        replace(problem, network=network, identity=identity, origin=folder),
        tuple(before.blocks[i] for i in kept),
        (*before.plans, done.plan),
        (*before.records, FirstRecord(step.method, step.rate, dict(step.options), done.facts)),
        (*before.history, *({**line, "stage": f"{name}: {line['stage']}"} for line in history.lines)),
    )


def _derive(problem: Problem, step: Step, folder: Path, history: History, base: Model, asked: Training) -> Derived:
    """Let one step's method work, as if it were alone."""
    method = find_method(step.method)
    config = method.make_config(step.options)
    budget = make_budget(base.spec.macs, base.spec.params, rate=step.rate)
    steps = asked.steps
    if steps is None:
        steps = method.default_steps(config, budget.rate, len(problem.task.train), asked.batch_size)
    training = fill(replace(asked, steps=steps), gentle=method.gentle)
    torch.manual_seed(training.seed)
    alone = replace(problem, budget=budget, training=training, folder=folder, history=history)
    method.check(config, asked_of(alone))
    return method.derive(replace(alone, network=bare_copy(problem.network)), config)  # it may train what it is given
