"""`edgevit.derive`: open base and data, take the baselines, let a method work, measure, write the model folder."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.accuracy import Accuracy, from_counts
from edgevit.data.assumptions import Sureness
from edgevit.data.task import Split, Task, without
from edgevit.data.unseen import without_images
from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.policy import Policy, make_policy
from edgevit.derivation.compatibility import refuse_base, refuse_silent, refuse_untaught
from edgevit.derivation.estimate import estimate
from edgevit.derivation.feasibility import Target
from edgevit.derivation.method import Method, find_method, refuse_training
from edgevit.derivation.problem import Problem, accuracy_on_validation, finetuned_base
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.session.base_check import ask, judge_base
from edgevit.derivation.session.card import model_card
from edgevit.derivation.session.opening import Opened, known_classes, open_for, resumable, unfinished, write_model
from edgevit.derivation.session.rejection import RejectionImages, calibrate_rejection, find_rejection_images
from edgevit.derivation.session.start import start_from
from edgevit.derivation.solve.head import open_task_for
from edgevit.network.checkpoint import Headless, Model, derived_spec, open_network
from edgevit.network.families import load_family
from edgevit.progress import Progress, Silent
from edgevit.records.answers import PartAnswers
from edgevit.records.derivation import (
    Accuracies,
    AccuracyRecord,
    BaseCheckRecord,
    DerivationRecord,
    Facts,
    JudgedPart,
    ShapeRecord,
    TrainingRecord,
    ValidationRecord,
)
from edgevit.records.kinds import plain
from edgevit.records.model import Rejection
from edgevit.records.model_folder import ModelFolder
from edgevit.records.plan import PlanRecord
from edgevit.records.state import BASELINES_KIND, Baselines
from edgevit.records.unfinished import BASELINES
from edgevit.records.writing import write_whole, writing
from edgevit.request import as_request, takes_options
from edgevit.train.passes import accuracy_of
from edgevit.train.settings import Training, fill, usual_steps
from edgevit.version import written_by


@dataclass(frozen=True)
class Derivation:
    """What `derive` gives back: the same that it wrote to `folder`."""

    folder: Path
    model: Model
    record: DerivationRecord
    is_main: bool = True  # False in all but the first of several processes: only that one wrote the folder


@dataclass(frozen=True)
class _Judged:
    """What images say of the derived model."""

    accuracy: Accuracies
    validation: ValidationRecord | None = None
    rule: Rejection | None = None
    answers: dict[JudgedPart, PartAnswers] | None = None


_UNSEEN = _Judged(Accuracies(None, None, None, None))  # where there are none


@dataclass(frozen=True)
class _Wanted:
    """One derivation as it was asked for, names looked up and defaults filled in."""

    request: DeriveRequest
    opened: Opened
    earlier: PlanRecord | None  # by which the base was derived itself
    method: Method[Any]
    config: Any
    budget: Budget
    policy: Policy
    training: Training
    base_training: Training  # of a copy of the base, where one is fine-tuned
    rejection: RejectionImages | None

    def resolved(self) -> dict[str, Any]:
        """What the request came to, as far as that decides on the model."""
        request, unlabelled = self.request, self.opened.task.unlabelled
        asked = {
            **self.opened.resolved(self.training),
            "base_columns": self.opened.task.base_columns,
            "budget": plain(self.budget.record()),
            "method": self.method.name,
            "options": asdict(self.config),
            "shape": asdict(self.policy),
            "unlabelled": unlabelled and unlabelled.content_sha256(),
            "reject": self.rejection and self.rejection.share,
        }
        if request.derive_from != "base" or request.base_steps is not None:
            asked |= {"derive_from": request.derive_from, "base_steps": self.base_training.steps}
        return dict(json.loads(json.dumps(asked)))  # as it will be read back

    def record(self, checked: BaseCheckRecord | None, **found: Any) -> DerivationRecord:
        """What derivation.json says: what was asked, and `found` by its name there."""
        task, assumed = self.opened.task, self.opened.assumed
        return DerivationRecord(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions=versions(),
            base=self.opened.base_name,
            method=self.method.name,
            config=asdict(self.config),
            training=training_record(self.training) if task.has_images else None,
            shape=shape_record(self.policy),
            head="subset" if self.opened.head == "subset" else "full",
            data=task.record() if task.has_images else None,
            assumptions=None if assumed is None else assumed.record(checked),
            fitted_head=self.opened.fitted,
            job=self.request.job,
            **found,
        )


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
    told = estimate(problem, wanted.config, finetune_base=wanted.request.finetunes_base).told()
    problem.progress.note(f"this derivation takes {told}")
    with problem.stopwatch.stage("baselines"):
        seen = _base_accuracy(wanted.opened.base.network, problem, task.test)
        chosen_on = _base_accuracy(wanted.opened.base.network, problem, task.validation)
    assert seen.which is not None and chosen_on.which is not None
    taken = Baselines(
        AccuracyRecord(seen.top1_full, seen.images),
        seen.record(),
        sum(chosen_on.restricted),
        edgevit=written_by(),
        answers={"validation": PartAnswers(chosen_on.which), "test": PartAnswers(seen.which)},
    )
    _keep_baselines(taken, problem)
    return taken


def _add_finetuned(taken: Baselines, wanted: _Wanted, problem: Problem) -> Baselines:
    """The third baseline, where the base is trained: for it, or to be cut."""
    task = problem.task
    if not wanted.request.finetunes_base or taken.base_finetuned is not None:
        return taken
    if problem.base_training.steps == 0:  # as long as a model that is not trained
        problem.progress.warn(
            "the base is fine-tuned for no steps, so it is no baseline; say how many with --base-steps"
        )
        return taken
    network = finetuned_base(problem)
    finetuned = accuracy_of(network, task.test, problem.columns, task.class_names, problem.passes)
    chosen_on = accuracy_on_validation(problem, network)
    taken = replace(
        taken,
        base_finetuned=finetuned.record(),
        finetuned_right_on_validation=sum(chosen_on.restricted),
        edgevit=written_by(),
        answers=_with_answers(taken, "base_finetuned", finetuned, chosen_on),
    )
    _keep_baselines(taken, problem)
    return taken


def _with_answers(
    baselines: Baselines, who: str, test: Accuracy, validation: Accuracy
) -> dict[JudgedPart, PartAnswers] | None:
    """The answers of the baselines and of one more network; None where an older edgevit took the baselines."""
    if baselines.answers is None:
        return None
    assert validation.which is not None and test.which is not None
    which = {"validation": validation.which, "test": test.which}
    return {part: replace(answers, **{who: which[part]}) for part, answers in baselines.answers.items()}


def _judge_base(wanted: _Wanted, problem: Problem) -> tuple[Baselines, BaseCheckRecord]:
    """Take the baselines; before the one that trains, see that the base knows its classes."""
    taken = _baselines(wanted, problem)
    checked = _check_base(taken, wanted, problem)
    return _add_finetuned(taken, wanted, problem), checked


def _check_base(baselines: Baselines, wanted: _Wanted, problem: Problem) -> BaseCheckRecord:
    """See that the base knows its classes before hours of work, and what other preprocessing would give.

    Raises:
        DataError: it is near chance, or does better with other preprocessing, and that is not accepted.
    """
    task, network = problem.task, wanted.opened.base.network
    images = len(task.test)
    full, restricted = (round(taken.top1 * images) for taken in (baselines.base_full_head, baselines.base_restricted))
    seen = Sureness("test", images, full, restricted, task.arguments["base_outputs"], len(task.classes))
    with problem.stopwatch.stage("check"):
        answers = ask(network, task, problem.passes, problem.cache, problem.identity)
    assert wanted.opened.assumed is not None, "there are images"
    return judge_base(
        answers, seen, task, problem.progress, wanted.request, order_assumed=wanted.opened.assumed.order_assumed
    )


def _judge(network: nn.Module, baselines: Baselines, wanted: _Wanted, problem: Problem) -> _Judged:
    """Measure a derived model on the images that nothing was trained on."""
    task, columns, passes = problem.task, problem.columns, problem.passes
    with problem.stopwatch.stage("evaluation"):
        accuracy = accuracy_of(network, task.test, columns, task.class_names, passes, "test the model")
        chosen_on = accuracy_on_validation(problem, network)
    rule, rejected = None, None
    if wanted.rejection is not None:
        with problem.stopwatch.stage("rejection"):
            rule, rejected = calibrate_rejection(network, columns, wanted.rejection, passes)
    measured = replace(accuracy.record(), rejection=rejected)
    return _Judged(
        Accuracies(baselines.base_full_head, baselines.base_restricted, baselines.base_finetuned, measured),
        ValidationRecord(
            chosen_on.images,
            baselines.right_on_validation,
            sum(chosen_on.restricted),
            baselines.finetuned_right_on_validation,
        ),
        rule,
        _with_answers(baselines, "derived", accuracy, chosen_on),
    )


def _base_accuracy(base: nn.Module, problem: Problem, part: Split) -> Accuracy:
    """Accuracy of the base on a part of the images; the same for every derivation from it."""
    task, names = problem.task, problem.task.class_names
    key = {**problem.identity, "test": part.content_sha256(), "precision": problem.training.precision}

    def take() -> dict[str, Tensor]:
        seen = accuracy_of(base, part, task.base_columns, names, problem.passes, "baselines")
        assert seen.which is not None
        return {
            "counts": torch.tensor([seen.total, seen.restricted, seen.full]),
            "answers": torch.tensor(seen.answers),
            "which": torch.tensor(seen.which.flags()),
        }

    taken = problem.cache.tensors("baselines", {**key, "with": "which"}, take)
    return from_counts(names, taken["counts"], taken["answers"], taken["which"])


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
        BudgetError: the method cannot meet it.
    """
    geometry = load_family(base.spec.family).geometry(network)
    table = None if request.cost_table is None else load_cost_table(request.cost_table)
    if table is not None:
        table.check(base.spec.family, base.spec.blocks, geometry, policy)
    budget = make_budget(base.spec.macs, base.spec.params, **request.budget(), table=table)
    refuse_silent(method, method.search_space(network, config, policy), budget.prices)
    budget = replace(budget, at_least=request.at_least, at_least_embed=request.at_least_embed)
    method.check(config, Target(network, budget, policy, images))
    return budget


@takes_options(DeriveRequest)
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
    request, progress, training = request.on_its_base(), progress or Silent(), request.training
    assert request.base is not None
    earlier = ModelFolder(Path(request.base)).plan()  # refuses one of a newer version, before anything takes its time
    refuse_training(request)
    method = find_method(request.method)
    config = method.make_config(request.settings)
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    found = open_network(request.base, **request.opening(), progress=progress)
    if isinstance(found, Model):
        method.check_base(found, config, request)
    task, rejection = _open_images(found, request, progress)
    opened = open_for(found, request, request.head, task, progress)
    if opened.fitted is not None and request.derive_from == "base":
        progress.note(
            "the head is of features that never saw these classes; --derive-from better trains the base first"
        )
    refuse_base(method, config, opened.network, policy)
    budget = _budget(opened.base, opened.network, len(task.train), policy, request, method, config)
    if training.steps is None:
        usual = method.default_steps(config, budget.rate, len(task.train), training.batch_size)
        training = replace(training, steps=usual)
    # A base knows its classes, whatever the method: so it trains gently, and is one baseline for all methods.
    base_steps = _base_steps(request, training.steps, len(task.train))
    base_training = fill(replace(training, steps=base_steps, teacher="none"), gentle=True)
    training = fill(training, gentle=method.gentle, imitates_base=method.imitates_base)
    if request.unlabelled is not None:
        refuse_untaught(training)
    wanted = _Wanted(request, opened, earlier, method, config, budget, policy, training, base_training, rejection)
    with unfinished(request, wanted.resolved(), opened.passes.compute) as folder:
        return _carry_out(wanted, opened.problem(budget, policy, training, base_training, folder))


def _base_steps(request: DeriveRequest, steps: int | None, images: int) -> int | None:
    """How long the base trains where it is fine-tuned: as long as the model, which takes `steps`.

    A base that is cut trains for as long as was asked for, or else by one rule, whatever the method and the budget: all
    that are derived from it share it, those that are not trained themselves, too.
    """
    if request.base_steps is not None:
        return request.base_steps
    if request.derive_from == "base":
        return steps
    return request.training.steps or usual_steps(images, request.training.batch_size)


def _open_images(
    base: Model | Headless, request: DeriveRequest, progress: Progress
) -> tuple[Task, RejectionImages | None]:
    """Open the task's images, and those that tell when an image is called `other`, if that is asked for."""
    if request.data is None:
        assert isinstance(base, Model) and request.base is not None, "a super-network has a head"
        return without_images(known_classes(request.base, base.spec, request.classes), base.preprocessing), None
    task = open_task_for(base, request, progress, request.unlabelled)
    rejection = None if request.reject is None else find_rejection_images(request.reject, task, progress)
    if rejection is not None and task.unlabelled is not None:
        foreign = (rejection.foreign_validation, rejection.foreign_test)
        task = replace(task, unlabelled=without(task.unlabelled, foreign, progress))
    return task, rejection


def _carry_out(wanted: _Wanted, problem: Problem) -> Derivation:
    """Take the baselines, let the method work, measure what it made, and write the model folder."""
    seen = problem.task.has_images
    torch.manual_seed(problem.training.seed)
    with resumable(problem.folder, is_main=problem.compute.is_main):
        baselines, checked = _judge_base(wanted, problem) if seen else (None, None)
        is_trained = baselines is not None and baselines.base_finetuned is not None
        start, found = start_from(wanted.request.derive_from, problem, is_trained=is_trained)
        torch.manual_seed(problem.training.seed)  # the method draws the same whether or not baselines were worked out
        derived = wanted.method.derive(start, wanted.config)
        judged = _UNSEEN if baselines is None else _judge(derived.network, baselines, wanted, problem)
    network = derived.network.cpu().eval()
    base, opened = wanted.opened.base.spec, wanted.opened
    spec = replace(derived_spec(base, network, opened.head, opened.task.classes), rejection=judged.rule)
    cost = problem.budget.cost(spec.blocks, load_family(spec.family).geometry(network))
    assert problem.budget.holds(cost)
    record = wanted.record(
        accuracy=judged.accuracy,
        checked=checked,
        validation=judged.validation,
        answers=judged.answers,
        budget=problem.budget.record(cost),
        processes=problem.compute.accelerator.num_processes,
        seconds=problem.stopwatch.seconds,
        start=found,
        base_training=training_record(problem.base_training) if judged.accuracy.base_finetuned else None,
        facts=Facts.of(derived.facts),
    )
    model, out = Model(network, spec), wanted.request.out
    write_model(
        model,
        wanted.request,
        problem,
        card=model_card(out.name, spec, record, load_family(spec.family).plain_loader(network)),
        derivation=record,
        plan=PlanRecord((*(wanted.earlier.steps if wanted.earlier else ()), derived.plan.record(wanted.method.name))),
        history=problem.history.lines if seen else None,
    )
    if problem.compute.is_main:
        record = ModelFolder(out).derivation() or record  # with the hash of the weights
    return Derivation(out, model, record, problem.compute.is_main)
