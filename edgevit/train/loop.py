"""The training loop of all methods, on accelerate: one process or several, fp32, bf16 or fp16, resumable.

The images of a step and their augmentation depend only on seed and step, not on the number of workers, processes or
micro-batches, or on interruptions. `batch_size` counts the images of one optimiser step over all processes and
micro-batches, labelled and unlabelled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.data.task import Split, Task
from edgevit.errors import Interrupted, OptionError, TrainingError
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.signals import StopAsked, stop_when_asked
from edgevit.train.compute import Compute
from edgevit.train.constraint import Constraint
from edgevit.train.detections import detector_loss
from edgevit.train.distil import Distillation, Lesson
from edgevit.train.history import History
from edgevit.train.memory import fitting
from edgevit.train.mixing import Mixing
from edgevit.train.optimizer import highest_rate, learning_rate, make_optimizer
from edgevit.train.order import sample_order, unlabelled_share
from edgevit.train.passes import Passes
from edgevit.train.saved import TrainingPoint, restore, save_point
from edgevit.train.settings import Training
from edgevit.train.stopping import PATIENCE, Meeting
from edgevit.train.validation import Keep, Validation

_IGNORED = -100  # the target that cross_entropy ignores
TRIAL_STEPS = 10  # steps at each learning rate that is tried
_TRIAL_SHARES = (1.0, 0.3, 0.1, 0.03)  # shares of the highest learning rate, in the order in which they are tried
_TOLERATED = 1.25  # the validation loss after the trial, in units of that before it
MANY = 10  # a training of fewer steps than so many trials has no trial


class _Run:
    """One training: its state, its steps and its evaluations."""

    def __init__(
        self,
        validation: Validation,
        training: Training,
        stage: str,
        constraint: Constraint | None,
        unlabelled: Split | None,
        folder: Path | None,
    ) -> None:
        self.validation, self.training, self.stage = validation, training, stage
        self.constraint, self.unlabelled, self.folder = constraint, unlabelled, folder
        self.task, self.lesson, self.compute = validation.task, validation.lesson, validation.passes.compute
        self.steps = training.steps or 0
        self.every = max(math.ceil(self.steps / training.evaluations), 1)  # steps from one evaluation to the next
        # The last entry is the target of UNLABELLED = -1, which cross_entropy ignores.
        output = validation.network.output
        columns = output.columns if isinstance(output, Logits) else ()
        self.target = torch.as_tensor([*columns, _IGNORED], device=self.compute.device)
        size = training.batch
        labelled = 1 - unlabelled_share(len(self.task.train), len(unlabelled or ()), size) / size
        micro_batch = size // (training.grad_accum * self.compute.accelerator.num_processes)
        self.labelled = micro_batch * labelled  # images of a micro-batch, on average
        optimizer = make_optimizer(validation.network, training)
        self.model, self.optimizer = self.compute.accelerator.prepare(validation.network, optimizer)
        self.mixing: Mixing | None = None
        if training.augment == "deit" and self.steps:
            accelerator = self.compute.accelerator
            if unlabelled is not None or not columns:
                raise OptionError("--augment deit mixes labels, and not all images have one; give another --augment")
            self.mixing = Mixing(validation.network, training, accelerator.num_processes, accelerator.process_index)
        self.meeting = Meeting()
        self.highest_lr = training.lr  # `look` may lower it before the first step, by the loss

    # -- saved state ---------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        if self.folder is None:
            return
        parts: dict[str, dict[str, Tensor]] = {}
        if self.constraint is not None:
            parts["constraint"] = self.constraint.state()
        if self.validation.best_state:
            parts["best"] = self.validation.best_state
        save_point(
            self.folder, self.compute, TrainingPoint(step, self.meeting, self.validation.best, self.highest_lr), parts
        )

    def restore(self) -> int:
        """Load a saved state, and return the step to continue from; 0 if there is none."""
        takers: dict[str, Callable[[dict[str, Tensor]], None]] = {}
        if self.constraint is not None:
            takers["constraint"] = self.constraint.load_state
        if self.validation.keep == "best":
            takers["best"] = self.validation.best_state.update
        point = None if self.folder is None else restore(self.folder, self.compute, takers)
        if point is None:
            return 0
        self.meeting, self.validation.best, self.highest_lr = point.meeting, point.best, point.highest_lr
        return point.step

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Have the constraint and the teacher see the passes, and drop residual branches, within the block."""
        with ExitStack() as stack:
            for watched in (self.constraint, self.lesson):
                if watched is not None:
                    stack.enter_context(watched.watch())
            if self.mixing is not None:
                stack.enter_context(self.mixing.dropping())
            yield

    # -- one step ------------------------------------------------------------------------------------------------------

    def batches(self, first: int) -> Iterator[tuple[Tensor, Any]]:
        """Yield this process's micro-batches, beginning with a step."""
        accelerator, train, training = self.compute.accelerator, self.task.train, self.training
        rank, world = accelerator.process_index, accelerator.num_processes
        order = sample_order(len(train), training, first, self.steps, rank, world, len(self.unlabelled or ()))
        objects = self.validation.objects
        return train.training_batches(order, training.augment or "crop", self.compute.workers, self.unlabelled, objects)

    def step(self, batches: Iterator[tuple[Tensor, Any]], step: int, lr: float | None = None) -> dict[str, float]:
        """Do one step of the optimiser; return the losses and the figures of the constraint.

        Args:
            lr: the learning rate; None: that of the schedule.
        """
        accelerator = self.compute.accelerator
        lr = learning_rate(self.training, step, self.highest_lr) if lr is None else lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("share", 1.0)
        means: dict[str, float] = {}
        figures: dict[str, float] = {}
        for accumulated in range(self.training.grad_accum):
            images, labels = next(batches)
            with accelerator.accumulate(self.model):
                number = step * self.training.grad_accum + accumulated
                loss, losses = self.losses(images.to(self.compute.device), labels, number)
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

    def losses(self, images: Tensor, labels: Any, number: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of a micro-batch, of which this is the number, and its parts.

        These are of labels, or of a detector, and of the teacher.
        """
        if self.validation.objects is not None:
            logits, loss = detector_loss(self.model, images, labels)
        elif self.task.classes:
            target = self.target[labels.to(images.device)]
            if self.mixing is not None:
                images, target = self.mixing.mix(images, target, number)
            logits = self.model(images)
            # The mean over the labelled images of the whole step, of which this process has some.
            loss = F.cross_entropy(logits.float(), target, reduction="sum") / self.labelled
        else:
            logits = self.model(images)
            loss = torch.zeros((), device=logits.device)
        if self.lesson is None:
            return loss, {"loss_task": loss}
        with self.compute.accelerator.autocast():
            parts = {"loss_task": loss, **self.lesson.losses(images, logits)}
        return self.lesson.total(parts), parts

    # -- between steps -------------------------------------------------------------------------------------------------

    def look(self, step: int) -> dict[str, float]:
        """Evaluate the state after `step` steps; before the first one, choose the highest learning rate."""
        figures = self.validation.look(step)
        if step == 0 and self.training.lr_by_loss and "loss_validation" in figures:
            loss = figures["loss_validation"]
            self.highest_lr = self._tolerable(min(self.training.lr, highest_rate(loss)), loss)
        return figures

    def _tolerable(self, highest: float, loss: float) -> float:
        """Find the largest rate, from `highest` down, whose first steps leave the validation loss about as it is.

        How far weights may move without harm differs between networks by orders of magnitude. A few steps at each rate
        tell; network and optimiser are restored after them.

        Args:
            loss: before the first step.
        """
        validation, network = self.validation, self.validation.network
        if self.lesson is None or self.constraint is not None or self.steps < MANY * TRIAL_STEPS:
            return highest
        state = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
        for share in _TRIAL_SHARES:
            batches = self.batches(0)
            for step in range(TRIAL_STEPS):
                self.step(batches, step, share * highest)
            after = validation.loss(network, self.lesson)
            network.load_state_dict(state)
            self.optimizer.state.clear()
            if after <= _TOLERATED * loss:
                if share < 1:
                    validation.passes.progress.note(
                        f"{self.stage}: learning rate {share * highest:.2g}; {highest:.2g} raises the loss at once"
                    )
                break
        else:
            validation.passes.progress.warn(
                f"{self.stage}: {TRIAL_STEPS} steps at a learning rate of {share * highest:.2g}, the lowest that is "
                f"tried, raise the loss against the teacher from {loss:.2g} to {after:.2g}, so it is unlikely to help; "
                "try --steps 0, or more images, without labels as --unlabelled"
            )
        return share * highest

    def warn_if_in_vain(self, done: int) -> None:
        """Say halfway through a long training that no state was better than the one before the first step."""
        best = self.validation.best
        halfway = done - self.every < self.steps / 2 <= done < self.steps and self.steps >= MANY * TRIAL_STEPS
        if halfway and self.validation.keep == "best" and best.score is not None and not best.step:
            self.validation.passes.progress.warn(
                f"{self.stage}: after {done} of {self.steps} steps no state is better than the one before them; the "
                "learning rate falls from here on, which may still help"
            )

    def has_ended(self, figures: dict[str, float]) -> str | None:
        """Say why training may stop here; None: it may not. A cosine schedule is never stopped early."""
        if not self.training.early_stop or self.training.schedule == "cosine":
            return None
        if "accuracy_pruned" in figures:
            has_met = self.meeting.add(figures["accuracy_trained"], figures["accuracy_pruned"])
            return "trained and pruned accuracy have met" if has_met else None
        is_over = self.validation.keep == "best" and self.validation.best.since >= PATIENCE
        return f"no state was better {PATIENCE} times in a row" if is_over else None

    def must_stop(self, stop: StopAsked) -> bool:
        """Tell whether any process was interrupted; all must stop after the same step."""
        if self.compute.accelerator.num_processes == 1:
            return stop.pressed
        flag = torch.tensor(float(stop.pressed), device=self.compute.device)
        return bool(self.compute.sum(flag) > 0)


def train(
    network: Network,
    task: Task,
    training: Training,
    passes: Passes,
    history: History,
    *,
    stage: str = "train",
    constraint: Constraint | None = None,
    distillation: Distillation | None = None,
    keep: Keep = "last",
    folder: Path | None = None,
) -> int:
    """Train `network` in place on the task's training part for `training.steps`; return the number of steps done.

    Args:
        distillation: a teacher, which classifies the same augmented images as the network, and the task's unlabelled
            images, if it has some: they take up to half of every batch. A detector learns from the task's objects
            where there is no teacher, or its share of the loss is below 1.
        keep: the state that the network has in the end: the last one, or the best of all evaluations, including the
            one before the first step. The best has the lowest loss against the teacher, or one up to 5 % higher at a
            later step, or without a teacher the highest accuracy, on the validation part (`history.outcome(stage)` says
            which). A detector that learns objects has average precision for accuracy, also with a teacher.
        folder: where the state is saved; a state in it is resumed.

    Raises:
        Interrupted: Ctrl-C; the state is saved.
        OptionError: the teacher does not fit the network, or an image does not fit the memory.
        TrainingError: the loss is not a finite number.
    """
    compute, progress, steps = passes.compute, passes.progress, training.steps or 0
    network.to(compute.device).eval()
    lesson = _lesson(distillation, network, task, compute)
    validation = Validation(network, task, passes, keep=keep, constraint=constraint, lesson=lesson)
    if steps:
        training = fitting(network, training, compute, progress, learns_objects=validation.objects is not None)
    network.train()
    run = _Run(validation, training, stage, constraint, task.unlabelled if lesson else None, folder)
    first = run.restore()
    if compute.is_main:  # a run without a saved state begins anew, including step 0
        history.rewind(stage, first if first else -1)
    batches = run.batches(first)
    log_every = max(steps // 200, 1)
    done = first
    with ExitStack() as stack:
        shown, stop = stack.enter_context(progress.stage(stage, steps, "step")), stack.enter_context(stop_when_asked())
        stack.enter_context(run.prepared())
        stack.enter_context(compute.accumulating(training.grad_accum))
        if first == 0 and (constraint is not None or keep == "best") and steps > 0:
            _note(history, compute, stage=stage, step=0, **run.look(0))
        started = time.monotonic()
        for step in range(first, steps):
            figures = run.step(batches, step)
            done = step + 1
            evaluated = run.look(done) if done % run.every == 0 or done == steps else {}
            if evaluated or done % log_every == 0:
                speed = (done - first) * training.batch / (time.monotonic() - started)
                _note(history, compute, stage=stage, step=done, **figures, **evaluated, images_per_s=round(speed, 2))
            losses = {name: value for name, value in figures.items() if name.startswith("loss_")}
            shown.update(done, **losses, **evaluated)
            if evaluated:
                run.warn_if_in_vain(done)
            ended = run.has_ended(evaluated) if evaluated else None
            stopping = run.must_stop(stop)
            if stopping or (evaluated and not ended and done < steps):
                run.save(done)
            if stopping:
                raise Interrupted(f"stopped at step {done} of {steps} of {stage}; the state is saved")
            if ended:
                progress.note(f"{stage}: {ended} after {done} of {steps} steps")
                break
    compute.accelerator.free_memory()
    if validation.best_state:
        validation.take_best()
        outcome = history.outcome(stage)
        if outcome is not None:  # only the first process has a history
            progress.note(outcome.text("distillation" if lesson is not None else "training"))
    network.eval()
    return done


def _lesson(distillation: Distillation | None, network: Network, task: Task, compute: Compute) -> Lesson | None:
    if distillation is None:
        return None
    distillation.teacher.to(compute.device)
    lesson = Lesson(distillation, network)
    lesson.check(torch.zeros(1, *task.train.preprocessing["input_size"], device=compute.device))
    return lesson


def _note(history: History, compute: Compute, **figures: Any) -> None:
    if compute.is_main:
        history.add(**figures)
