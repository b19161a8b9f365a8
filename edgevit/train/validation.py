"""Evaluate the states of a training on the validation part, and hold the best one."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from edgevit.data.task import Task
from edgevit.network.network import Network
from edgevit.train.constraint import Constraint
from edgevit.train.detections import box_precision
from edgevit.train.distil import Lesson
from edgevit.train.history import score
from edgevit.train.passes import Passes, accuracy_of
from edgevit.train.stopping import LATER, Best

Keep = Literal["last", "best"]


class Validation:
    """Evaluates the network in training and its pruned model, and holds the best state, as `Best` says."""

    def __init__(
        self,
        network: Network,
        task: Task,
        passes: Passes,
        *,
        keep: Keep,
        constraint: Constraint | None,
        lesson: Lesson | None,
    ) -> None:
        self.network, self.task, self.passes = network, task, passes
        self.keep, self.constraint, self.lesson = keep, constraint, lesson
        # What a detector learns beside its teacher, and is judged by.
        self.objects = task.objects if lesson is None or lesson.distillation.weight < 1 else None
        self.best = Best()
        self.best_state: dict[str, Tensor] = {}  # on the CPU: the network's, and the constraint's
        self._taught = torch.empty(0)  # the teacher's logits for this process's images

    def look(self, step: int) -> dict[str, float]:
        """Evaluate the network and, with a constraint, the model that pruning would make now."""
        figures = self._accuracy("accuracy_trained", self.network)
        slim = self.network
        if self.constraint is not None:
            slim = self.constraint.pruned()
            figures |= self._accuracy("accuracy_pruned", slim)
        if self.keep == "best":
            if self.lesson is not None and self.objects is None:
                figures["loss_validation"] = self.loss(slim, self.lesson)
            if self.best.add(score(figures), step, LATER if "loss_validation" in figures else 0.0):
                self.best_state = self._state()
            figures["kept_step"] = self.best.step
        return figures

    def _accuracy(self, name: str, network: Network) -> dict[str, float]:
        """The accuracy of a network, or precision of boxes, by the name of the figure; nothing without labels."""
        if self.objects is not None:
            return {name: box_precision(network, self.task)}
        if not self.task.classes:
            return {}
        return {name: accuracy_of(network, self.task.validation, self.task.class_names, self.passes).top1}

    def loss(self, network: Network, lesson: Lesson) -> float:
        """Compute the loss against the teacher."""
        images, total, done = self.task.validation, torch.zeros(2, device=self.passes.compute.device), 0
        if not len(self._taught):
            answers: list[Tensor] = []
            self.passes.run(lesson.teacher, images, lambda logits, _: answers.append(logits.float()), mixed=True)
            self._taught = torch.cat(answers)

        def see(logits: Tensor, labels: Tensor) -> None:
            nonlocal done
            taught = self._taught[done : (done := done + len(labels))]
            total[0] += lesson.teacher_loss(logits.float(), taught) * len(labels)
            total[1] += len(labels)

        self.passes.run(network, images, see, mixed=True)
        loss, count = self.passes.compute.sum(total).tolist()
        return float(max(loss / max(count, 1), 0.0))  # rounding may make the divergence of equal answers negative

    def _state(self) -> dict[str, Tensor]:
        """Copy the states of the network and the constraint."""
        parts = {"network": self.network.state_dict(), "constraint": self.constraint.state() if self.constraint else {}}
        copied = {f"{p}.{n}": t.detach().cpu().clone() for p, tensors in parts.items() for n, t in tensors.items()}
        return {name: tensor.contiguous() for name, tensor in copied.items()}  # for safetensors

    def take_best(self) -> None:
        """Restore the best state."""
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "constraint": {}}
        for name, tensor in self.best_state.items():
            part, _, key = name.partition(".")
            parts[part][key] = tensor
        self.network.load_state_dict(parts["network"])
        if self.constraint is not None:
            self.constraint.load_state(parts["constraint"])
