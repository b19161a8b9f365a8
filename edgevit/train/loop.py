"""The training loop that every method shares, on accelerate: one process or several, fp32, bf16 or fp16, resumable.

The images of every step, and their augmentation, are a function of seed and step alone: not of the number of workers,
of processes, of accumulated micro-batches, or of interruptions. `batch_size` counts the images of one optimiser step
over all of them, whether or not their class is known.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edgevit.data.task import Split, Task
from edgevit.errors import Interrupted, OptionError, TrainingError, UnfinishedError
from edgevit.folder.unfinished import MEND, STATE
from edgevit.folder.writing import file_sha256, sync, writing
from edgevit.signals import StopAsked, stop_when_asked
from edgevit.train.compute import Compute
from edgevit.train.distil import Distillation, Lesson
from edgevit.train.history import History, score
from edgevit.train.order import sample_order, unlabelled_share
from edgevit.train.passes import Passes, evaluate
from edgevit.train.settings import Training
from edgevit.train.state import reading_state

Keep = Literal["last", "best"]

MET = 0.002  # trained and pruned accuracy count as met within this
PROGRESS = "progress.json"
IGNORED = -100  # the target that cross_entropy passes over
RATE_OF_LOSS = 1e-3  # highest learning rate at a loss of 1 against the teacher, where the rate goes by the loss
PATIENCE = 3  # evaluations in which they must have met, and the best not improved, before training stops


class Constraint(Protocol):
    """What a method adds to the task loss, and what its pruned model would be if training ended now."""

    def watch(self) -> AbstractContextManager[None]:
        """Observe the network while it trains."""

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        """The addition to the loss, once per optimiser step, and figures for the history."""

    def after_step(self) -> None:
        """Called once the optimiser has stepped."""

    def pruned(self) -> nn.Module:
        """The slim model that surgery would make now."""

    def state(self) -> dict[str, Tensor]:
        """Everything that resuming needs."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` gave."""


def learning_rate(training: Training, step: int, steps: int) -> float:
    warmup = training.warmup_steps or 0
    if step < warmup:
        return training.lr * (step + 1) / warmup
    if training.schedule == "constant":
        return training.lr
    share = (step - warmup) / max(steps - warmup, 1)
    return training.lr * 0.5 * (1 + math.cos(math.pi * share))


def highest_rate(loss: float) -> float:
    """The learning rate at which Adam can do no more harm than there is to mend, for a loss against the teacher.

    Adam's first steps move every weight by the learning rate, however small the gradient. Near the teacher the loss is
    quadratic: such a step adds an amount that grows with the rate's square, so the rate goes by the root of the loss.
    """
    return RATE_OF_LOSS * math.sqrt(loss)


@dataclass
class Meeting:
    """Watches trained and pruned accuracy until they have met and the pruned one no longer improves."""

    best: float = -1.0
    since_best: int = 0
    met: int = 0

    def add(self, trained: float, pruned: float) -> bool:
        """Take one evaluation; return whether training may stop."""
        self.since_best = 0 if pruned > self.best else self.since_best + 1
        self.best = max(self.best, pruned)
        self.met = self.met + 1 if abs(trained - pruned) <= MET else 0
        return self.met >= PATIENCE and self.since_best >= PATIENCE


@dataclass
class Best:
    """Watches one figure of a model; of equal states the earlier, which has trained less, is the best."""

    score: float | None = None  # the higher the better
    step: int = 0
    since: int = 0  # evaluations since then

    def add(self, score: float, step: int) -> bool:
        """Take one evaluation; return whether it is the best so far."""
        is_best = self.score is None or score > self.score
        if is_best:
            self.score, self.step = score, step
        self.since = 0 if is_best else self.since + 1
        return is_best


@dataclass(frozen=True)
class _Saved:
    """progress.json of a saved state: how far it is, and what lies beside it."""

    step: int
    meeting: Meeting
    best: Best
    highest_lr: float
    files: dict[str, str]  # sha256 by path within the state's folder


@dataclass
class _Run:
    """One training under way; exists so that its parts fit in one glance each."""

    network: nn.Module
    task: Task
    columns: Sequence[int]  # of each class
    training: Training
    steps: int
    passes: Passes
    constraint: Constraint | None
    lesson: Lesson | None
    unlabelled: Split | None
    keep: Keep
    folder: Path | None
    stage: str
    history: History

    def __post_init__(self) -> None:
        # The last entry is that of UNLABELLED = -1: cross_entropy passes over it.
        self.compute = self.passes.compute
        self.target = torch.as_tensor([*self.columns, IGNORED], device=self.compute.device)
        size, more = self.training.batch_size, len(self.unlabelled or ())
        labelled = 1 - unlabelled_share(len(self.task.train), more, size) / size
        micro_batch = size // (self.training.grad_accum * self.compute.accelerator.num_processes)
        self.labelled = micro_batch * labelled  # images of a micro-batch, on average
        optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=self.training.lr, weight_decay=self.training.weight_decay
        )
        self.model, self.optimizer = self.compute.accelerator.prepare(self.network, optimizer)
        self.meeting, self.best = Meeting(), Best()
        self.highest_lr = self.training.lr  # lowered where it goes by the loss
        self.taught = torch.empty(0)  # the teacher's logits for this process's validation images
        self.best_state: dict[str, Tensor] = {}  # on the CPU: the network's, and the constraint's

    # -- saved state ---------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Write the state beside the old one and swap them, so that a crash leaves one that is whole."""
        if self.folder is None:
            return
        new, old = (self.folder.with_name(self.folder.name + end) for end in (".new", ".old"))
        if self.compute.is_main:
            shutil.rmtree(new, ignore_errors=True)
        self.compute.wait()
        with writing(self.folder):
            self.compute.accelerator.save_state(str(new))
        self.compute.wait()
        if self.compute.is_main:
            with writing(self.folder):
                if self.constraint is not None:
                    save_file(self.constraint.state(), new / "constraint.safetensors")
                if self.best_state:
                    save_file(self.best_state, new / "best.safetensors")
                files = {str(file.relative_to(new)): file_sha256(file) for file in new.rglob("*") if file.is_file()}
                told = asdict(_Saved(step, self.meeting, self.best, self.highest_lr, files))
                (new / PROGRESS).write_text(json.dumps(told))
                sync(new)
                shutil.rmtree(old, ignore_errors=True)
                if self.folder.is_dir():
                    self.folder.rename(old)  # a kill between the two renames leaves this one
                new.rename(self.folder)
                shutil.rmtree(old, ignore_errors=True)
        self.compute.wait()

    def restore(self) -> int:
        """Take up a saved state; return the step to go on from, 0 if there is none."""
        if self.folder is None:
            return 0
        old = self.folder.with_name(self.folder.name + ".old")
        folder = old if old.is_dir() and not self.folder.is_dir() else self.folder
        if not folder.is_dir():
            return 0
        saved = STATE.json(folder / PROGRESS, _Saved)
        for name, expected in saved.files.items():
            if not (folder / name).is_file() or file_sha256(folder / name) != expected:
                raise UnfinishedError(f"{folder / name} is gone or was altered after it was written; {MEND}")
        with reading_state(folder):
            self.compute.accelerator.load_state(str(folder))
            if self.constraint is not None:
                self.constraint.load_state(load_file(folder / "constraint.safetensors"))
            if self.keep == "best":
                self.best_state = load_file(folder / "best.safetensors")
        self.meeting, self.best, self.highest_lr = saved.meeting, saved.best, saved.highest_lr
        return saved.step

    def batches(self, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's micro-batches from a step on."""
        accelerator, train, training = self.compute.accelerator, self.task.train, self.training
        rank, world = accelerator.process_index, accelerator.num_processes
        order = sample_order(len(train), training, first, self.steps, rank, world, len(self.unlabelled or ()))
        return train.training_batches(order, training.augment, training.workers, self.unlabelled)

    # -- one step ------------------------------------------------------------------------------------------------------

    def step(self, batches: Iterator[tuple[Tensor, Tensor]], step: int) -> dict[str, float]:
        accelerator = self.compute.accelerator
        lr = learning_rate(replace(self.training, lr=self.highest_lr), step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        means: dict[str, float] = {}
        figures: dict[str, float] = {}
        for _ in range(self.training.grad_accum):
            images, labels = next(batches)
            with accelerator.accumulate(self.model):
                loss, losses = self.losses(images.to(self.compute.device), labels.to(self.compute.device))
                for name, value in losses.items():
                    mean = float(self.compute.mean(value.detach()))
                    means[name] = means.get(name, 0.0) + mean / self.training.grad_accum
                if self.constraint is not None and accelerator.sync_gradients:
                    penalty, figures = self.constraint.penalty()
                    loss = loss + penalty * self.training.grad_accum  # accumulate() divides by it
                accelerator.backward(loss)
                if self.training.clip_norm and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
        if self.constraint is not None:
            self.constraint.after_step()
        if not all(map(math.isfinite, (*means.values(), *figures.values()))):
            raise TrainingError(
                f"the loss is {means['loss_task']:g} at step {step + 1} of {self.stage}, no longer a number; "
                f"try a lower --lr, or --precision bf16 instead of fp16"
            )
        return {**means, **figures, "lr": lr}

    def losses(self, images: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a micro-batch, and its parts: of the labels, and of the teacher."""
        logits = self.model(images)
        # The mean over the labelled images of the whole step, however many of them this process has.
        loss = F.cross_entropy(logits.float(), self.target[labels], reduction="sum") / self.labelled
        if self.lesson is None:
            return loss, {"loss_task": loss}
        with self.compute.accelerator.autocast():
            parts = {"loss_task": loss, **self.lesson.losses(images, logits)}
        return self.lesson.total(parts), parts

    # -- looking on ----------------------------------------------------------------------------------------------------

    def look(self, step: int) -> dict[str, float]:
        """Judge the model in training, and the one that surgery would make now, on the validation part."""

        def accuracy(network: nn.Module) -> float:
            return evaluate(network, self.task.validation, self.columns, self.task.class_names, self.passes).top1

        figures, slim = {"accuracy_trained": accuracy(self.network)}, self.network
        if self.constraint is not None:
            slim = self.constraint.pruned()
            figures["accuracy_pruned"] = accuracy(slim)
        if self.keep == "best":
            if self.lesson is not None:
                figures["loss_validation"] = self.validation_loss(slim)
                if step == 0 and self.training.lr_by_loss:
                    self.highest_lr = min(self.training.lr, highest_rate(figures["loss_validation"]))
            if self.best.add(score(figures), step):
                self.best_state = self.state()
            figures["kept_step"] = self.best.step
        return figures

    def validation_loss(self, network: nn.Module) -> float:
        """The loss against the teacher on the validation part."""
        assert self.lesson is not None
        lesson, total, done = self.lesson, torch.zeros(2, device=self.compute.device), 0
        if not len(self.taught):
            answers: list[Tensor] = []
            self.passes.run(lesson.teacher, self.task.validation, lambda a, _: answers.append(a.float()), mixed=True)
            self.taught = torch.cat(answers)

        def see(logits: Tensor, labels: Tensor) -> None:
            nonlocal done
            taught = self.taught[done : (done := done + len(labels))]
            total[0] += lesson.teacher_loss(logits.float(), taught) * len(labels)
            total[1] += len(labels)

        self.passes.run(network, self.task.validation, see, mixed=True)
        loss, images = self.compute.sum(total).tolist()
        return float(loss / max(images, 1))

    def has_ended(self, looked: dict[str, float]) -> str | None:
        """Why training may stop here, or None. A cosine that is cut off has not yet done what it is there for."""
        if not self.training.early_stop or self.training.schedule == "cosine":
            return None
        if "accuracy_pruned" in looked:
            has_met = self.meeting.add(looked["accuracy_trained"], looked["accuracy_pruned"])
            return "trained and pruned accuracy have met" if has_met else None
        is_over = self.keep == "best" and self.best.since >= PATIENCE
        return f"no state was better {PATIENCE} times in a row" if is_over else None

    def state(self) -> dict[str, Tensor]:
        """A copy of the network's state, and of the constraint's."""
        parts = {"network": self.network.state_dict(), "constraint": self.constraint.state() if self.constraint else {}}
        copied = {f"{p}.{n}": t.detach().cpu().clone() for p, tensors in parts.items() for n, t in tensors.items()}
        return {name: tensor.contiguous() for name, tensor in copied.items()}  # as safetensors wants them

    def take_best(self) -> None:
        """Put back the best state that was seen."""
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "constraint": {}}
        for name, tensor in self.best_state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        self.network.load_state_dict(parts["network"])
        if self.constraint is not None:
            self.constraint.load_state(parts["constraint"])

    def asked_to_stop(self, stop: StopAsked) -> bool:
        """Whether any process was; all must stop after the same step."""
        if self.compute.accelerator.num_processes == 1:
            return stop.asked
        flag = torch.tensor(float(stop.asked), device=self.compute.device)
        return bool(self.compute.sum(flag) > 0)


def train(
    network: nn.Module,
    task: Task,
    columns: Sequence[int],
    training: Training,
    *,
    steps: int,
    passes: Passes,
    history: History,
    stage: str = "train",
    constraint: Constraint | None = None,
    distillation: Distillation | None = None,
    unlabelled: Split | None = None,
    keep: Keep = "last",
    folder: Path | None = None,
) -> int:
    """Train `network` in place on the task's training part; return the number of steps done.

    Args:
        columns: for each target class, its column in the logits.
        distillation: a teacher, which sees the images that the network sees, augmented alike.
        unlabelled: images that only the teacher judges; they take up to half of every batch.
        keep: what the network holds in the end: its last state, or the best on the validation part among all
            evaluations, that before the first step included: the one of the lowest loss against the teacher, or of the
            highest accuracy where there is none (`history.outcome(stage)` says which).
        folder: where the state is kept; one that is there is taken up.

    Raises:
        Interrupted: Ctrl-C; the state is saved.
        OptionError: the teacher does not fit the network, or unlabelled images have none.
        TrainingError: the loss is no longer a number.
    """
    compute, progress = passes.compute, passes.progress
    network.to(compute.device).eval()
    lesson = _lesson(distillation, network, task, columns, compute)
    if unlabelled is not None and lesson is None:
        raise OptionError("unlabelled images need a teacher that says what they show; give one, or leave them out")
    network.train()
    run = _Run(
        network, task, columns, training, steps, passes, constraint, lesson, unlabelled, keep, folder, stage, history
    )
    first = run.restore()
    history.rewind(stage, first if first else -1)  # a run without a saved state begins anew, step 0 included
    batches = run.batches(first)
    every, log_every = max(math.ceil(steps / training.evaluations), 1), max(steps // 200, 1)
    done = first
    with ExitStack() as stack:
        shown, stop = stack.enter_context(progress.stage(stage, steps, "step")), stack.enter_context(stop_when_asked())
        for watched in (constraint, lesson):
            if watched is not None:
                stack.enter_context(watched.watch())
        if first == 0 and (constraint is not None or keep == "best") and steps > 0:
            _note(history, compute, stage=stage, step=0, **run.look(0))
        started = time.monotonic()
        for step in range(first, steps):
            figures = run.step(batches, step)
            done = step + 1
            looked = run.look(done) if done % every == 0 or done == steps else {}
            if looked or done % log_every == 0:
                speed = (done - first) * training.batch_size / (time.monotonic() - started)
                _note(history, compute, stage=stage, step=done, **figures, **looked, images_per_s=round(speed, 2))
            losses = {name: value for name, value in figures.items() if name.startswith("loss_")}
            shown.update(done, **losses, **looked)
            ended = run.has_ended(looked) if looked else None
            stopping = run.asked_to_stop(stop)
            if stopping or (looked and not ended and done < steps):
                run.save(done)
            if stopping:
                raise Interrupted(f"stopped at step {done} of {steps} of {stage}; the state is saved")
            if ended:
                progress.note(f"{stage}: {ended} after {done} of {steps} steps")
                break
    compute.accelerator.free_memory()
    if run.best_state:
        run.take_best()
        outcome = history.outcome(stage)
        if outcome is not None:  # the first of several processes speaks
            progress.note(outcome.told("distillation" if lesson is not None else "training"))
    network.eval()
    return done


def _lesson(
    distillation: Distillation | None, network: nn.Module, task: Task, columns: Sequence[int], compute: Compute
) -> Lesson | None:
    if distillation is None:
        return None
    distillation.teacher.to(compute.device)
    lesson = Lesson(distillation, network, columns)
    lesson.check(torch.zeros(1, *task.train.preprocessing["input_size"], device=compute.device))
    return lesson


def _note(history: History, compute: Compute, **figures: Any) -> None:
    if compute.is_main:
        history.add(**figures)
