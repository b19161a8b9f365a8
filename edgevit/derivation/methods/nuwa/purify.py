"""Self-knowledge purification (NuWa): find the FFN neurons that harm the target classes.

The base is frozen. In every block a mask M [e], which starts at ones, multiplies the neurons before W_2. A scalar beta
sets how many entries count: the binary mask keeps the ceil(e * sigmoid(beta)) largest entries of M. Both are trained on
the task loss alone (a detector's own losses), with a straight-through gradient. Weight decay acts on both, as in the
released code: it moves beta from 5 (99 % kept) towards 0 (half), against the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.derivation.problem import Problem
from edgevit.network.anatomy import ffns
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.train.detections import box_precision, detector_loss
from edgevit.train.order import sample_order
from edgevit.train.passes import accuracy_of, weights_frozen

MASK_LR, BETA_LR, WEIGHT_DECAY = 1e-3, 1e-1, 0.05  # settings of AdamW
EVALUATIONS = 10


class _Binarised(torch.autograd.Function):
    """Set the largest entries of M to one and the others to zero; M gets the gradient as it is, beta its sum."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, beta: Tensor) -> Tensor:
        count = ceil(len(mask) * float(torch.sigmoid(beta)))
        binary = torch.zeros_like(mask)
        binary[torch.argsort(mask, descending=True, stable=True)[:count]] = 1
        ctx.save_for_backward(binary)
        return binary

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        (binary,) = ctx.saved_tensors
        return grad, (grad * binary).sum()


@contextmanager
def masks_applied(network: Network, masks: Sequence[Tensor]) -> Iterator[None]:
    """Multiply the FFN neurons of every block by its mask [e] in each forward pass."""
    with ExitStack() as stack:
        for module, mask in zip(network.ffn_outputs, masks, strict=True):
            if module is not None:
                hook = module.register_forward_pre_hook(lambda _, inputs, mask=mask: (inputs[0] * mask,))
                stack.callback(hook.remove)
        yield


class _Masks:
    """The masks and scalars of all blocks with their optimiser."""

    def __init__(self, problem: Problem) -> None:
        blocks, device = problem.network.read(), problem.compute.device
        self.compute = problem.compute
        self.masks = [torch.ones(f.neurons, device=device, requires_grad=True) for f in ffns(blocks)]
        self.betas = [torch.full((), 5.0, device=device, requires_grad=True) for _ in blocks]
        groups = [{"params": self.masks, "lr": MASK_LR}, {"params": self.betas, "lr": BETA_LR}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=WEIGHT_DECAY)

    def binary(self) -> list[Tensor]:
        pairs = zip(self.masks, self.betas, strict=True)
        return [_Binarised.apply(mask, beta) for mask, beta in pairs]

    def step(self, loss: Tensor) -> None:
        torch.autograd.backward(loss)
        for parameter in (*self.masks, *self.betas):
            if parameter.grad is not None:
                parameter.grad = self.compute.mean(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass
class _Best:
    """The best anchor so far on the validation part; of equal ones the one with fewer neurons."""

    accuracy: float
    masks: list[Tensor]

    def offer(self, accuracy: float, masks: list[Tensor]) -> None:
        def neurons(of: list[Tensor]) -> float:
            return sum(float(m.sum()) for m in of)

        if (accuracy, -neurons(masks)) > (self.accuracy, -neurons(self.masks)):
            self.accuracy, self.masks = accuracy, masks


def purify(problem: Problem, steps: int, batch_size: int) -> list[Tensor]:
    """Train masks and return the best on the validation part, the anchor's: [e] of ones and zeros per block.

    The first candidate is the base itself: all ones.
    """
    network, task, compute = problem.network.to(problem.compute.device), problem.task, problem.compute
    training = replace(problem.training, batch_size=batch_size, grad_accum=1)
    accelerator = compute.accelerator
    order = sample_order(len(task.train), training, 0, steps, accelerator.process_index, accelerator.num_processes)
    batches = task.train.training_batches(order, training.augment or "crop", compute.workers, objects=task.objects)
    state = _Masks(problem)
    every = max(steps // EVALUATIONS, 1)
    best = _Best(-1.0, [])

    def evaluate(step: int, binary: list[Tensor], **figures: float) -> float:
        with masks_applied(network, binary):
            if task.objects is not None:
                accuracy = box_precision(network, task)
            else:
                accuracy = accuracy_of(network, task.validation, task.class_names, problem.passes).top1
        best.offer(accuracy, binary)
        share = sum(float(b.mean()) for b in binary) / len(binary)
        if compute.is_main:
            problem.history.add(stage="purify", step=step, accuracy_anchor=accuracy, neurons_kept=share, **figures)
        return accuracy

    if compute.is_main:
        problem.history.rewind("purify", -1)  # an interrupted purification starts again
    network.train(task.objects is not None)  # else a detector computes no losses
    evaluate(0, [torch.ones_like(mask).detach() for mask in state.masks])
    with weights_frozen(network), problem.progress.stage("masks of neurons", steps, "step") as stage:
        for step, (images, labels) in enumerate(batches, 1):
            with masks_applied(network, state.binary()):
                loss = _task_loss(network, images.to(compute.device), labels)
            state.step(loss)
            figures = {}
            if step % every == 0 or step == steps:
                with torch.no_grad():
                    binary = state.binary()
                figures["accuracy_anchor"] = evaluate(step, binary, loss_task=float(loss.detach()))
            stage.update(step, **figures)
    network.eval()
    return [mask.cpu() for mask in best.masks]


def _task_loss(network: Network, images: Tensor, labels: Any) -> Tensor:
    if not isinstance(network.output, Logits):
        return detector_loss(network, images, labels)[1]
    target = torch.as_tensor(network.columns, device=images.device)
    return F.cross_entropy(network(images).float(), target[labels.to(images.device)])
