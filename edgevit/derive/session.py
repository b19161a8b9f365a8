"""`edgevit.derive`: open base and data, take the baselines, let a method work, measure, write the model folder."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.accuracy import Accuracy, from_counts
from edgevit.data.assumptions import Sureness
from edgevit.data.task import Split, Task, without
from edgevit.derive.abilities import refuse_after_tokens, refuse_silent, refuse_untaught
from edgevit.derive.algebra.factorise import one_thread
from edgevit.derive.allocate.budget import Budget, make_budget
from edgevit.derive.allocate.cost_table import load_cost_table
from edgevit.derive.allocate.policy import Policy, make_policy
from edgevit.derive.base_check import ask, judge
from edgevit.derive.cache import Cache, cache_folder
from edgevit.derive.card import model_card
from edgevit.derive.estimate import estimate
from edgevit.derive.head import open_task_for
from edgevit.derive.in_a_row import check_row, cut_first
from edgevit.derive.method import Method, Slices, find_method
from edgevit.derive.opening import Opened, open_for, resumable
from edgevit.derive.problem import Problem, Stopwatch, finetuned_base
from edgevit.derive.reach import Asked, asked_of
from edgevit.derive.realise import realise
from edgevit.derive.rejection import RejectionImages, calibrate_rejection, find_rejection_images
from edgevit.derive.request import DeriveRequest
from edgevit.derive.steps import Step
from edgevit.folder.derivation import (
    Accuracies,
    AccuracyRecord,
    BaseCheckRecord,
    DerivationRecord,
    Facts,
    ShapeRecord,
    TrainingRecord,
    ValidationRecord,
)
from edgevit.folder.model import ClassLabel
from edgevit.folder.model_folder import ModelFolder
from edgevit.folder.names import HISTORY
from edgevit.folder.plan import PlanRecord, StepRecord
from edgevit.folder.records import plain
from edgevit.folder.state import BASELINES_KIND, Baselines
from edgevit.folder.unfinished import BASELINES, open_partial, partial_folder
from edgevit.folder.writing import write_whole, writing
from edgevit.models.checkpoint import Headless, Model, derived_spec, open_network, save, tensors_sha256
from edgevit.models.families import load_family
from edgevit.progress import Progress, Silent
from edgevit.request import as_request
from edgevit.signals import stop_when_asked
from edgevit.train.compute import close_compute
from edgevit.train.history import History
from edgevit.train.passes import evaluate, open_passes
from edgevit.train.settings import Training, fill
from edgevit.version import written_by


@dataclass(frozen=True)
class Derivation:
    """What `derive` gives back: the same that it wrote to `folder`."""

    folder: Path
    model: Model
    record: DerivationRecord
    is_main: bool = True  # False in all but the first of several processes: only that one wrote the folder


@dataclass(frozen=True)
class _Wanted:
    """One derivation as it was asked for, names looked up and defaults filled in."""

    opened: Opened
    first: tuple[Step, ...]  # what cuts the base before the method does
    method: Method[Any]
    config: Any
    budget: Budget
    policy: Policy
    asked: Training  # as the user asked for it
    training: Training  # with what the method decides filled in
    finetune_base: bool
    rejection: RejectionImages | None
    accept_weak_base: bool
    job: str | None

    def resolved(self) -> dict[str, Any]:
        """What the request came to, as far as that decides on the model."""
        unlabelled = self.opened.task.unlabelled
        asked = {
            **self.opened.resolved(self.training),
            "base_columns": self.opened.task.base_columns,
            "budget": plain(self.budget.record()),
            "first": [asdict(step) for step in self.first],
            "method": self.method.name,
            "options": asdict(self.config),
            "shape": asdict(self.policy),
            "unlabelled": unlabelled and unlabelled.fingerprint(),
            "reject": self.rejection and self.rejection.share,
        }
        return dict(json.loads(json.dumps(asked)))  # as it will be read back

    def record(self, accuracy: Accuracies, checked: BaseCheckRecord, **found: Any) -> DerivationRecord:
        """What derivation.json says: what was asked, and `found` by its name there."""
        return _record(
            base=self.opened.base_name,
            method=self.method.name,
            config=asdict(self.config),
            training=training_record(self.training),
            shape=shape_record(self.policy),
            head=self.opened.head,
            data=self.opened.task.record(),
            assumptions=self.opened.assumed.record(checked),
            accuracy=accuracy,
            fitted_head=self.opened.fitted,
            job=self.job,
            **found,
        )


def _record(**said: Any) -> DerivationRecord:
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return DerivationRecord(created=created, versions=versions(), **said)


def training_record(training: Training) -> TrainingRecord:
    rest = asdict(training)
    return TrainingRecord(rest.pop("seed"), rest.pop("steps"), rest)


def shape_record(policy: Policy) -> ShapeRecord:
    rest = asdict(policy)
    return ShapeRecord(rest.pop("name"), rest)


def versions() -> dict[str, str]:
    packages = ("torch", "timm", "accelerate", "scikit-learn", "numpy")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"edgevit": written_by(), "python": platform.python_version(), **found}


def _baselines(wanted: _Wanted, problem: Problem) -> Baselines:
    """What a derived model is judged against, but for what must be trained; kept in a file once taken."""
    file, task = problem.folder / BASELINES, problem.task
    if file.is_file():
        return BASELINES_KIND.read(file)
    problem.progress.note(f"baselines on {len(task.test)} test images")
    told = estimate(problem, wanted.config, finetune_base=wanted.finetune_base).told()
    problem.progress.note(f"the whole takes {told}")
    with problem.stopwatch.stage("baselines"):
        seen = _base_accuracy(wanted.opened.base.network, problem, task.test)
        chosen_on = _base_accuracy(wanted.opened.base.network, problem, task.validation)
    taken = Baselines(
        AccuracyRecord(seen.top1_full, seen.images), seen.record(), sum(chosen_on.restricted), edgevit=written_by()
    )
    _keep_baselines(taken, problem)
    return taken


def _add_finetuned(taken: Baselines, wanted: _Wanted, problem: Problem) -> Baselines:
    """The third baseline, where it is asked for: it trains."""
    task = problem.task
    if not wanted.finetune_base or taken.base_finetuned is not None:
        return taken
    finetuned = evaluate(finetuned_base(problem), task.test, problem.columns, task.class_names, problem.passes)
    taken = replace(taken, base_finetuned=finetuned.record(), edgevit=written_by())
    _keep_baselines(taken, problem)
    return taken


def _check_base(baselines: Baselines, wanted: _Wanted, problem: Problem) -> BaseCheckRecord:
    """See that the base knows its classes before hours of work, and what other preprocessing would give.

    Raises:
        DataError: it is near chance, and that is not accepted.
    """
    task, network = problem.task, wanted.opened.base.network
    images = len(task.test)
    full, restricted = (round(taken.top1 * images) for taken in (baselines.base_full_head, baselines.base_restricted))
    seen = Sureness("test", images, full, restricted, task.arguments["base_outputs"], len(task.classes))
    with problem.stopwatch.stage("check"):
        answers = ask(network, task, problem.passes, problem.cache, problem.identity)
    judge(answers, seen, task, wanted.accept_weak_base, problem.progress)
    return answers.record(near_chance=seen.near_chance)


def _base_accuracy(base: nn.Module, problem: Problem, part: Split) -> Accuracy:
    """Accuracy of the base on a part of the images; the same for every derivation from it."""
    task, names = problem.task, problem.task.class_names
    key = {**problem.identity, "test": part.content_sha256(), "precision": problem.training.precision}

    def take() -> dict[str, Tensor]:
        seen = evaluate(base, part, task.base_columns, names, problem.passes, "baselines")
        return {
            "counts": torch.tensor([seen.total, seen.restricted, seen.full]),
            "answers": torch.tensor(seen.answers),
        }

    taken = problem.cache.tensors("baselines", {**key, "with": "answers"}, take)
    return from_counts(names, taken["counts"], taken["answers"])


def _keep_baselines(taken: Baselines, problem: Problem) -> None:
    if problem.compute.is_main:
        with writing(problem.folder):
            write_whole(problem.folder / BASELINES, BASELINES_KIND.text(taken))


def _budget(
    base: Model,
    network: nn.Module,
    images: int,
    policy: Policy,
    request: DeriveRequest,
    method: Method[Any],
    config: Any,
) -> Budget:
    """What is asked of `network`, which has the classes that are kept of the base, and training images.

    Raises:
        BudgetError: the method cannot meet it, or one that cuts first cannot meet its own.
    """
    geometry = load_family(base.spec.family).geometry(network)
    table = None if request.cost_table is None else load_cost_table(request.cost_table)
    if table is not None:
        table.check(base.spec.family, base.spec.blocks, geometry, policy)
    budget = make_budget(base.spec.macs, base.spec.params, **request.budget(), table=table)
    refuse_silent(method, method.cuts(network, config, policy), budget.prices)
    budget = replace(budget, at_least=request.at_least, at_least_embed=request.at_least_embed)
    check_row(request.first, method, config, Asked(network, budget, policy, images), base)
    return budget


def _check_tokens(opened: Opened, first: Sequence[Step], method: Method[Any], config: Any, policy: Policy) -> None:
    """Refuse, before anything is measured, a method that cannot cut a network that tokens leave."""
    leave = any(block.tokens for block in opened.base.spec.blocks)
    earlier = [(found := find_method(step.method), found.make_config(step.options)) for step in first]
    for one, given in (*earlier, (method, config)):
        if leave:
            refuse_after_tokens(one, given, opened.network, policy)
        leave = leave or one.cuts(opened.network, given, policy).tokens


def _named(data: str | Path, classes: Sequence[str]) -> str:
    """A task in a few words."""
    more = f", ... ({len(classes)} classes)" if len(classes) > 4 else ""
    return f"{data}: {', '.join(classes[:4])}{more}"


def _identity(opened: Opened) -> dict[str, Any]:
    """What a network's outputs for an image depend on, for keys of the cache: to the last bit, hence the batches."""
    base, passes = opened.base, opened.passes
    spec = base.spec
    return {
        "base": [spec.timm_name, spec.timm_args, spec.base.weights_sha256, [asdict(b) for b in spec.blocks]],
        "state": tensors_sha256(base.network.state_dict()),
        "preprocessing": base.preprocessing,
        "head": [opened.head, *opened.task.base_columns],
        "device": passes.compute.device.type,
        "batches": [passes.batch_size(base.network, gradients=gradients) for gradients in (False, True)],
    }


def derive(
    base: str | Path | DeriveRequest | None = None, *, progress: Progress | None = None, **options: Any
) -> Derivation:
    """Derive a small class-specific model from a base and write it to a folder.

        derive("deit_base_patch16_224", checkpoint="base.safetensors", data="photos", rate=0.6, out="runs/t1")

    Args:
        base: a timm name (with `checkpoint`, or `pretrained`), a model folder, or a whole request.
        options: the fields of `DeriveRequest`, which says what each is. One of `rate`, `macs`, `params` and `ms` is the
            budget. `cache` may be the path of a folder other than the user's.

    Raises:
        OptionError: also of an option that there is not.
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
        Interrupted: Ctrl-C; the same call with `resume` goes on and ends in the same weights.
    """
    return run(as_request(DeriveRequest, "base", base, options), progress)


def run(request: DeriveRequest, progress: Progress | None = None) -> Derivation:
    """Do what is asked; `derive` says what is raised."""
    request.check()
    progress, training = progress or Silent(), request.training
    base, options = request.base, dict(request.settings)
    if (folder := request.supernet_folder()) is not None:
        base, options = folder, {**options, "supernet": str(folder)}
    assert base is not None
    _plans(str(base), ())  # refuses one that a newer version wrote, before anything takes its time
    method = find_method(request.method)
    config = method.make_config(options)
    slices = None if method.slices is None else method.slices(config)
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    found = open_network(base, **request.opening(), progress=progress)
    if slices is not None:
        assert isinstance(found, Model), "a super-network has a head"
        size = {"rate": request.rate, "macs": request.macs, "params": request.params}
        slices.check(found.spec, found.network, request.classes, **size)
    if request.data is None:
        assert slices is not None and isinstance(found, Model), "only slices need no images"
        budget = _budget(found, found.network, 0, policy, request, method, config)
        return _without_images(slices, str(base), found, config, budget, policy, request)
    task, rejection = _open_images(found, request, progress)
    passes = open_passes(training, progress)
    compute = passes.compute
    # Several processes would have to agree on what is there: they work everything out.
    keeping = request.cache if compute.accelerator.num_processes == 1 else False
    weights = "" if request.checkpoint is None else f", {Path(request.checkpoint).name}"
    shared = Cache(
        cache_folder() if keeping is True else keeping or None, progress,
        base=f"{base}{weights}", task=_named(request.data, task.class_names),
    )  # fmt: skip
    opened = open_for(found, base, request, request.head, task, passes, shared)
    _check_tokens(opened, request.first, method, config, policy)
    budget = _budget(opened.base, opened.network, len(task.train), policy, request, method, config)
    if training.steps is None:
        steps = method.default_steps(config, budget.rate, len(task.train), training.batch_size)
        training = replace(training, steps=steps)
    training = fill(training, gentle=method.gentle)
    if request.unlabelled is not None:
        refuse_untaught(request.method, config, training.steps)
    wanted = _Wanted(
        opened, request.first, method, config, budget, policy, request.training, training, request.finetune_base,
        rejection, request.accept_weak_base, request.job,
    )  # fmt: skip
    folder = partial_folder(request.out)
    same, asked = request.same(wanted.resolved()), request.told()
    alone = open_partial(request.out, same, request.resume, asked=asked, overwrite=request.overwrite)
    with alone if compute.is_main else nullcontext():
        compute.wait()
        history = History(folder / HISTORY)
        problem = Problem(
            opened.network, task, opened.columns, budget, policy, training, passes, folder, history, Stopwatch(),
            shared, _identity(opened),
        )  # fmt: skip
        derivation = _carry_out(wanted, problem, request.out, overwrite=request.overwrite)
    close_compute()
    return derivation


def _open_images(
    base: Model | Headless, request: DeriveRequest, progress: Progress
) -> tuple[Task, RejectionImages | None]:
    """Open the task's images, and those that tell when an image is called `other`, if that is asked for."""
    task = open_task_for(base, request, progress, request.unlabelled)
    rejection = None if request.reject is None else find_rejection_images(request.reject, task, progress)
    if rejection is not None and task.unlabelled is not None:
        foreign = (rejection.foreign_validation, rejection.foreign_test)
        task = replace(task, unlabelled=without(task.unlabelled, foreign, progress))
    return task, rejection


def _without_images(
    slices: Slices, base_name: str, base: Model, config: Any, budget: Budget, policy: Policy, request: DeriveRequest
) -> Derivation:
    """Cut without any image, and write the model folder; nothing is measured."""
    stopwatch, head, out = Stopwatch(), request.head, request.out
    with stopwatch.stage("slice"), one_thread():
        chosen = slices.classes(base.spec, request.classes)
        rows = [c.base_index for c in chosen] if head == "subset" else None
        plan = slices.plan(base.network, budget, policy, None if rows is None else len(rows))
        network = realise(base.network, plan)
        if rows is not None:
            load_family(base.spec.family).keep_classes(network, rows)
    spec = derived_spec(base.spec, network, head, tuple(ClassLabel(c.name, c.base_index) for c in chosen))
    record = _record(
        base=base_name,
        method=request.method,
        config=asdict(config),
        training=None,
        budget=budget.record(budget.cost(spec.blocks, load_family(spec.family).geometry(network))),
        shape=shape_record(policy),
        head=head,
        data=None,
        seconds=stopwatch.seconds,
        facts=Facts(),
        accuracy=Accuracies(None, None, None, None),
    )
    model = Model(network.eval(), spec)
    save(
        model,
        out,
        overwrite=request.overwrite,
        card=model_card(out.name, spec, record, load_family(spec.family).plain_loader(network)),
        derivation=record,
        plan=_plans(base_name, [plan.record(request.method)]),
    )
    return Derivation(out, model, record)


def _plans(base_name: str, steps: Sequence[StepRecord]) -> PlanRecord:
    """These steps, after those of the base where it was derived itself."""
    earlier = ModelFolder(Path(base_name)).plan()
    return PlanRecord((*(earlier.steps if earlier else ()), *steps))


def _carry_out(wanted: _Wanted, problem: Problem, out: Path, *, overwrite: bool) -> Derivation:
    """Take the baselines, let the method work, measure what it made, and write the model folder."""
    torch.manual_seed(wanted.training.seed)
    with resumable(problem.folder, is_main=problem.compute.is_main):
        baselines = _baselines(wanted, problem)
        checked = _check_base(baselines, wanted, problem)
        baselines = _add_finetuned(baselines, wanted, problem)
        torch.manual_seed(wanted.training.seed)  # the method draws the same whether or not baselines were worked out
        before = cut_first(wanted.first, problem, wanted.opened.base, wanted.asked)
        if wanted.first:  # only now is it known what is left to cut
            wanted.method.check(wanted.config, asked_of(before.problem))
        derived = wanted.method.derive(before.problem, wanted.config)
        with problem.stopwatch.stage("evaluation"):
            test, names = problem.task.test, problem.task.class_names
            accuracy = evaluate(derived.network, test, problem.columns, names, problem.passes, "test the model")
            chosen_on = evaluate(derived.network, problem.task.validation, problem.columns, names, problem.passes)
        rule, rejected = None, None
        if wanted.rejection is not None:
            with problem.stopwatch.stage("rejection"):
                rule, rejected = calibrate_rejection(derived.network, problem.columns, wanted.rejection, problem.passes)
    network = derived.network.cpu().eval()
    spec = replace(
        derived_spec(wanted.opened.base.spec, network, wanted.opened.head, wanted.opened.labels), rejection=rule
    )
    geometry, kept = load_family(spec.family).geometry(network), before.kept_blocks(derived.plan)
    cost = problem.budget.cost(spec.blocks, geometry, kept)
    assert problem.budget.holds(cost)
    measured = replace(accuracy.record(), rejection=rejected)
    record = wanted.record(
        Accuracies(baselines.base_full_head, baselines.base_restricted, baselines.base_finetuned, measured),
        checked,
        validation=ValidationRecord(chosen_on.images, baselines.right_on_validation, sum(chosen_on.restricted)),
        budget=problem.budget.record(cost),
        processes=problem.compute.accelerator.num_processes,
        seconds=problem.stopwatch.seconds,
        first=before.records,
        facts=Facts.of(before.in_terms_of_the_base(derived)),
    )
    model = Model(network, spec)
    if problem.compute.is_main:
        with stop_when_asked():  # too late to stop: a model that is there has no unfinished folder beside it
            save(
                model,
                out,
                overwrite=overwrite,
                card=model_card(out.name, spec, record, load_family(spec.family).plain_loader(network)),
                derivation=record,
                plan=_plans(wanted.opened.base_name, [*before.plans, derived.plan.record(wanted.method.name)]),
                history=[*before.history, *problem.history.lines],
            )
            shutil.rmtree(problem.folder, ignore_errors=True)
    problem.compute.wait()
    return Derivation(out, model, record, problem.compute.is_main)
