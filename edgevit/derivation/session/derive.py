"""`edgevit.derive`: open base and images, measure baselines, run a method, evaluate, write the model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgevit.data.in_memory import without_images
from edgevit.data.request import Augment
from edgevit.data.task import Task, without
from edgevit.derivation.allocate.budget import Budget, make_budget
from edgevit.derivation.allocate.cost_table import load_cost_table
from edgevit.derivation.allocate.policy import Policy, make_policy
from edgevit.derivation.compatibility import refuse_base, refuse_silent, refuse_untaught
from edgevit.derivation.estimate import estimate
from edgevit.derivation.feasibility import Target
from edgevit.derivation.method import Method, find_method
from edgevit.derivation.problem import ENOUGH_IMAGES, Problem
from edgevit.derivation.request import BUDGET_NAMES, DeriveRequest
from edgevit.derivation.session.baselines import NO_IMAGES, evaluate_base, evaluate_derived, finetuned_detector
from edgevit.derivation.session.card import model_card
from edgevit.derivation.session.depth import check_removal, shorten
from edgevit.derivation.session.head import plan_narrow_readers, with_narrow_readers
from edgevit.derivation.session.imitation import measure_likeness
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.derivation.session.opening import (
    known_classes,
    open_for,
    open_without_labels,
    resumable,
    unfinished,
    write_model,
)
from edgevit.derivation.session.rejection import RejectionImages, find_rejection_images
from edgevit.derivation.session.resolved import ResolvedDerivation, training_record
from edgevit.derivation.session.rest import RestCutter, check_rest, spec_with_rest
from edgevit.derivation.session.start import start_from
from edgevit.derivation.solve.head import open_task_for
from edgevit.errors import OptionError
from edgevit.network.copies import bare_copy
from edgevit.network.families import architecture
from edgevit.network.model import Headless, Model, derived_spec
from edgevit.network.network import Network
from edgevit.network.opening import open_network
from edgevit.network.output import may_be_varied
from edgevit.progress import Progress, Silent
from edgevit.records.derivation import DerivationRecord, Facts
from edgevit.records.model import BuilderFacts
from edgevit.records.model_folder import ModelFolder
from edgevit.records.plan import PlanRecord
from edgevit.request import takes_options
from edgevit.train.detections import learnt_objects
from edgevit.train.settings import TEACHER_WEIGHT, Training, batch_of_few, fill, usual_steps


@dataclass(frozen=True)
class Derivation:
    """The result of `derive`: what it wrote to `folder`."""

    folder: Path
    model: Model
    record: DerivationRecord
    is_main: bool = True  # False in all but the first of several processes: only that one wrote the folder

    @property
    def top1(self) -> float | None:
        """Accuracy of the model among the target classes on the test images; None: not measured."""
        accuracy = self.record.accuracy.derived
        return None if accuracy is None else accuracy.top1


def _budget(
    base: Model,
    network: Network,
    images: int,
    policy: Policy,
    request: DeriveRequest,
    method: Method[Any],
    config: Any,
) -> Budget:
    """Make the budget for `network`, the base with the requested head, and check that the method can meet it.

    Raises:
        BudgetError: it cannot.
    """
    geometry = network.geometry
    table = None if request.cost_table is None else load_cost_table(request.cost_table)
    if table is not None:
        table.check(base.spec.family, base.spec.blocks, geometry, policy)
    uncut_macs = 0
    if request.budget_of == "whole":
        if base.spec.rest is None:
            reason = "the parts of this detector are not torchvision's" if base.spec.output == "boxes" else "it is none"
            raise OptionError(f"--budget-of whole is for detectors whose MACs are counted, and {reason}; leave it out")
        uncut_macs = base.spec.rest.macs
    budget = make_budget(base.spec.macs, base.spec.params, uncut_macs, **request.budget(), table=table)
    refuse_silent(method, method.search_space(network, config, policy), budget.prices)
    budget = replace(budget, at_least=request.at_least, at_least_embed=request.at_least_embed)
    method.check(config, Target(network, budget, policy, images))
    return budget


def _usual_folder(keywords: Mapping[str, Any]) -> Path:
    """A folder named after the network and the budget, such as runs/vit_small_patch16_224-rate0.6."""
    base = keywords.get("base") or keywords.get("supernet")
    name = architecture(base) if isinstance(base, nn.Module) else Path(str(base)).name.partition(".")[0]
    given = (f"-{budget}{keywords[budget]}" for budget in BUDGET_NAMES if keywords.get(budget) is not None)
    return Path("runs", f"{name}{next(given, '')}")


@takes_options(DeriveRequest, "base", prepare=as_files, also=IN_MEMORY, usual={"out": _usual_folder})
def derive(request: DeriveRequest, progress: Progress | None = None) -> Derivation:
    """Derive a small class-specific model from a base and write it to a folder.

        derive("deit_base_patch16_224", checkpoint="base.safetensors", data="photos", rate=0.6, out="runs/t1")

    `base` is a timm name (with `checkpoint`, or `pretrained`), a model folder or a module; `data` may also be arrays, a
    data set of PIL images or a DataLoader. One of `rate`, `macs`, `params` and `ms` is the budget. `out` is by default
    a new folder runs/NAME-BUDGET. `cache` may be the path of a folder other than the user's.

    Raises:
        OptionError: also for an unknown option.
        EdgeVitError: any other error, in one line; existing files are not touched.
        Interrupted: Ctrl-C; the same call with `resume` continues and ends in the same weights.
    """
    return derive_first(request, progress or Silent())


def derive_first(request: DeriveRequest, progress: Progress, derivations: int = 1) -> Derivation:
    """Derive as the first of so many rates, and tell before how long all of them take; raises as `derive` does."""
    request.check()
    resolved = replace(_resolve(request.on_its_base(), progress), derivations=derivations)
    with unfinished(resolved.request, resolved.resume_key(), resolved.opened.passes.compute) as folder:
        return _carry_out(resolved, resolved.problem(folder))


def _resolve(request: DeriveRequest, progress: Progress) -> ResolvedDerivation:
    """Look up names, open base and images, and refuse what the method cannot do with them."""
    training = request.training
    assert request.base is not None
    earlier = ModelFolder(Path(request.base)).plan()  # refuses a newer version before anything is opened
    method = find_method(request.method)
    config = method.make_config(request.options)
    method.check_training(config, training)
    policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
    base = open_network(request.base, **request.opening(), progress=progress)
    if isinstance(base, Model):
        method.check_base(base, config, request)
    rejection = None
    if not request.puts_out_classes:
        opened = open_without_labels(base, request, progress)
    else:
        task, rejection = _open_images(base, request, progress)
        opened = open_for(base, request, request.head, task, progress)
    task = opened.task
    refuse_base(method, config, opened.network, policy)
    plan_narrow_readers(opened.network, task.train)
    if request.remove_blocks:
        check_removal(opened.network, request.remove_blocks)
    budget = _budget(opened.base, opened.network, len(task.train), policy, request, method, config)
    chains = None
    if request.rest_rate:
        chains = check_rest(opened.base.spec, opened.network, task.train, request.rest_rate, policy)
        names = ", ".join(chain.layer for chain in chains.found)
        progress.note(f"behind the backbone, {len(chains.found)} layers can lose channels: {names}")
    varies, images = may_be_varied(opened.network.output), len(task.train)
    if varies and training.batch_size is None:
        parts = training.grad_accum * opened.passes.compute.accelerator.num_processes
        training = replace(training, batch_size=batch_of_few(images, parts))
    if training.steps is None:
        seen = max(images, ENOUGH_IMAGES) if varies else images
        usual = method.default_steps(config, budget.rate, seen, training.batch)
        training = replace(training, steps=usual)
    # The base starts from good weights, so it trains gently, and is one baseline for all methods.
    base_steps = _base_steps(request, training.steps, len(task.train))
    base_training = fill(replace(training, steps=base_steps, teacher="none"), gentle=True)
    share = TEACHER_WEIGHT if request.puts_out_classes else 1.0  # there are no labels, or none that need be read
    imitates_base = method.imitates_base or not (request.puts_out_classes or request.output == "boxes")
    # A map is judged of whole images: learning those of small crops in other colours made it worse (docs/findings.md).
    augment: Augment = "views" if opened.network.output.kind == "features" else "crop"
    training = fill(training, gentle=method.gentle, imitates_base=imitates_base, teacher_weight=share, augment=augment)
    builder = opened.base.spec.builder
    untrained = builder.alone_text if builder is not None and builder.backbone_alone else None
    if request.output == "boxes" and (untrained or _reads_objects(request, method, config, training)):
        objects = learnt_objects(opened.network, opened.task, untrained)
        opened = replace(opened, task=replace(opened.task, objects=objects))
    if untrained is not None:
        _refuse_random_rest(untrained, request, training, base_training)
    if request.unlabelled is not None and not method.reads_unlabelled:
        refuse_untaught(training)
    return ResolvedDerivation(
        request, opened, earlier, method, config, budget, policy, training, base_training, rejection, chains
    )


def _reads_objects(request: DeriveRequest, method: Method[Any], config: Any, training: Training) -> bool:
    """Whether a detector's own losses are computed: by the method, or in a training."""
    trains_base = request.finetunes_base or (training.has_teacher and training.teacher == "finetuned")
    alone = training.steps != 0 and (not training.has_teacher or training.teacher_weight != 1)
    return method.reads_labels(config) or trains_base or alone


def _refuse_random_rest(untrained: str, request: DeriveRequest, training: Training, base_training: Training) -> None:
    """Refuse a base with weights of its backbone alone, unless what follows that is trained by a detector's losses.

    The model would imitate its base as well as any other, and find nothing, as does the base.

    Raises:
        OptionError: nothing trains it.
    """
    hint = "train it first"
    if request.output == "boxes":
        learns = training.steps and (not training.has_teacher or training.teacher_weight != 1)
        if learns or (request.derive_from == "finetuned" and base_training.steps):
            return
        hint = "--derive-from finetuned, or --teacher none with --steps"
    raise OptionError(f"{untrained}, and nothing trains it; give the weights of all, or {hint}")


def _rest_is_as_made(base: Network, derived: Network, builder: BuilderFacts) -> bool:
    """Whether a training has left every weight behind the backbone as it was."""
    before, after = base.state_dict(), derived.state_dict()
    rest = [name for name in before if name in after and not name.startswith(f"{builder.network}.")]
    same_shape = [name for name in rest if before[name].shape == after[name].shape]
    return all(torch.equal(before[name].cpu(), after[name].cpu()) for name in same_shape)


def _base_steps(request: DeriveRequest, steps: int | None, images: int) -> int | None:
    """The steps of a base that is fine-tuned: as many as the model's `steps`.

    A base that is cut after training takes the requested steps, or else a number that depends on neither method nor
    budget, so that all derivations share it.
    """
    if request.base_steps is not None:
        return request.base_steps
    if request.derive_from == "base":
        return steps
    return request.training.steps or usual_steps(images, request.training.batch)


def _open_images(
    base: Model | Headless, request: DeriveRequest, progress: Progress
) -> tuple[Task, RejectionImages | None]:
    """Open the task's images, and those for calibrating the rejection rule if one is requested."""
    if request.data is None:
        assert isinstance(base, Model) and request.base is not None, "a super-network has a head"
        return without_images(known_classes(request.base, base.spec, request.classes), base.preprocessing), None
    task = open_task_for(base, request, progress, request.unlabelled)
    rejection = None if request.reject is None else find_rejection_images(request.reject, task, progress)
    if rejection is not None and task.unlabelled is not None:
        foreign = (rejection.foreign_validation, rejection.foreign_test)
        task = replace(task, unlabelled=without(task.unlabelled, foreign, progress))
    return task, rejection


def _carry_out(resolved: ResolvedDerivation, problem: Problem) -> Derivation:
    """Measure the baselines, run the method, evaluate its network, and write the model folder."""
    request, opened, task = resolved.request, resolved.opened, problem.task
    has_labels, likeness = task.has_images and bool(task.classes), dict[str, Any]()
    rest, narrowed_rest = None, None
    if resolved.chains is not None:
        rest = RestCutter(problem, resolved.chains, request.rest_rate)
        problem = replace(problem, before_training=rest.before_training)
    torch.manual_seed(problem.training.seed)
    with resumable(problem.folder, is_main=problem.compute.is_main):
        if not request.puts_out_classes:
            of_rest = 0.0 if rest is None else rest.seconds()
            duration = estimate(
                problem, resolved.config, finetune_base=False, rest=of_rest, derivations=resolved.derivations
            )
            problem.progress.note(duration.text())
        baselines, checked = evaluate_base(resolved, problem) if has_labels else (None, None)
        is_trained = baselines is not None and baselines.base_finetuned is not None
        tuned = None if request.puts_out_classes else finetuned_detector(resolved, problem)
        start, start_record = start_from(
            request.derive_from, problem, is_trained=is_trained, head_fitted=opened.fitted is not None
        )
        if start_record is not None:
            problem.progress.note(start_record.format())
        torch.manual_seed(problem.training.seed)  # the same random numbers whether baselines were measured or read
        # A method that reads labels may train the network of its problem.
        reference = problem.network if task.objects is None else bare_copy(problem.network)
        whole = bare_copy(start.network) if request.remove_blocks else None
        derived = resolved.method.derive(start, resolved.config)
        if whole is not None:
            derived = shorten(derived, start, whole, request.remove_blocks)
        if rest is not None:
            derived, narrowed_rest = rest.finish(derived)
        derived, narrow_readers = with_narrow_readers(derived, problem)
        if narrowed_rest is not None and request.output != "boxes":
            narrowed_rest = replace(narrowed_rest, macs=derived.network.geometry.head_macs)
        results = NO_IMAGES if baselines is None else evaluate_derived(derived.network, baselines, resolved, problem)
        if not request.puts_out_classes:
            imitated = tuned if start_record is not None and start_record.network == "finetuned" else None
            likeness = measure_likeness(reference, derived.network, task, problem.passes, tuned, imitated)
    network = derived.network.cpu().eval()
    spec = derived_spec(opened.base.spec, network, opened.head, opened.task.classes)
    spec = replace(spec, rejection=results.rule)
    if spec.builder is not None and spec.builder.backbone_alone:
        builder = replace(spec.builder, backbone_alone=_rest_is_as_made(reference, network, spec.builder))
        spec = replace(spec, builder=builder)
        if builder.backbone_alone:
            problem.progress.warn(f"{builder.alone_text}: no step of the training was better; try more --steps")
    if narrowed_rest is not None:
        spec = spec_with_rest(spec, narrowed_rest)
    if narrow_readers:
        spec = replace(spec, narrow_readers=narrow_readers)
    cost = problem.budget.cost(spec.blocks, network.geometry)
    assert problem.budget.allows(cost) or narrow_readers is None  # of which a warning tells
    record = resolved.record(
        accuracy=results.accuracy,
        checked=checked,
        validation=results.validation,
        answers=results.answers,
        budget=problem.budget.record(cost),
        processes=problem.compute.accelerator.num_processes,
        seconds=problem.stopwatch.seconds,
        start=start_record,
        base_training=training_record(problem.base_training) if results.accuracy.base_finetuned else None,
        facts=Facts.of(derived.facts),
        **likeness,
    )
    model, out = Model(network, spec), request.out
    earlier = () if resolved.earlier is None else resolved.earlier.steps
    write_model(
        model,
        request,
        problem,
        card=model_card(out.name, spec, record, network.plain_loader()),
        derivation=record,
        plan=PlanRecord((*earlier, derived.plan.record(resolved.method.name))),
        history=problem.history.lines if task.has_images else None,
    )
    if problem.compute.is_main:
        record = ModelFolder(out).derivation() or record  # with the hash of the weights
    return Derivation(out, model, record, problem.compute.is_main)
