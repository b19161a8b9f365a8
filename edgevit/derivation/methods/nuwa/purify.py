"""Self-knowledge purification (NuWa): which FFN neurons the target classes are better off without.

The base is frozen. In every block a mask M [e], all ones at first, multiplies the neurons before W_2, and a scalar beta
says how many of them count: the binary mask keeps the ceil(e * sigmoid(beta)) largest entries of M. Both are trained on
the task loss alone, straight through the binarisation. As released, weight decay acts on both: it is what draws beta
from 5 (99 % kept) towards 0 (half), against the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.derivation.problem import Problem
from edgevit.network.anatomy import ffns
from edgevit.network.families import family_of
from edgevit.train.order import sample_order
from edgevit.train.passes import accuracy_of, weights_frozen


@dataclass(frozen=True)
class Purification:
    """How masks are trained."""

    steps: int
    batch_size: int
    mask_lr: float
    beta_lr: float
    weight_decay: float
    evaluations: int = 10


class _Binarised(torch.autograd.Function):
    """The largest entries of M as ones, the rest zeros; the gradient goes straight through to M, and summed to beta."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor, beta: Tensor) -> Tensor:
        kept = ceil(len(mask) * float(torch.sigmoid(beta)))
        binary = torch.zeros_like(mask)
        binary[torch.argsort(mask, descending=True, stable=True)[:kept]] = 1
        ctx.save_for_backward(binary)
        return binary

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grads
        (binary,) = ctx.saved_tensors
        return grad, (grad * binary).sum()


@contextmanager
def masks_applied(network: nn.Module, masks: Sequence[Tensor]) -> Iterator[None]:
    """Multiply every block's FFN neurons by its mask [e] in each forward pass."""
    with ExitStack() as stack:
        for module, mask in zip(family_of(network).ffn_outputs(network), masks, strict=True):
            if module is not None:
                hook = module.register_forward_pre_hook(lambda _, given, mask=mask: (given[0] * mask,))
                stack.callback(hook.remove)
        yield


class _Masks:
    """The masks and scalars of all blocks, and their optimiser."""

    def __init__(self, problem: Problem, how: Purification) -> None:
        blocks, device = family_of(problem.network).read(problem.network), problem.compute.device
        self.compute = problem.compute
        self.masks = [torch.ones(f.neurons, device=device, requires_grad=True) for f in ffns(blocks)]
        self.betas = [torch.full((), 5.0, device=device, requires_grad=True) for _ in blocks]
        groups = [{"params": self.masks, "lr": how.mask_lr}, {"params": self.betas, "lr": how.beta_lr}]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=how.weight_decay)

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
    """The anchor so far: best on the validation part; of equals, the one with fewer neurons."""

    accuracy: float
    masks: list[Tensor]

    def offer(self, accuracy: float, masks: list[Tensor]) -> None:
        def neurons(of: list[Tensor]) -> float:
            return sum(float(m.sum()) for m in of)

        if (accuracy, -neurons(masks)) > (self.accuracy, -neurons(self.masks)):
            self.accuracy, self.masks = accuracy, masks


def purify(problem: Problem, how: Purification) -> list[Tensor]:
    """Train masks and return those of the anchor, the best on the validation part: [e] of ones and zeros per block.

    Ones everywhere, the base itself, is the first candidate.
    """
    network, task, compute = problem.network.to(problem.compute.device), problem.task, problem.compute
    training = replace(problem.training, batch_size=how.batch_size, grad_accum=1)
    accelerator = compute.accelerator
    order = sample_order(len(task.train), training, 0, how.steps, accelerator.process_index, accelerator.num_processes)
    batches = task.train.training_batches(order, training.augment, compute.workers)
    target = torch.as_tensor(problem.columns, device=compute.device)
    state = _Masks(problem, how)
    every = max(how.steps // how.evaluations, 1)
    best = _Best(-1.0, [])

    def look(step: int, binary: list[Tensor], **figures: float) -> float:
        with masks_applied(network, binary):
            accuracy = accuracy_of(network, task.validation, problem.columns, task.class_names, problem.passes).top1
        best.offer(accuracy, binary)
        kept = sum(float(b.mean()) for b in binary) / len(binary)
        if compute.is_main:
            problem.history.add(stage="purify", step=step, accuracy_anchor=accuracy, neurons_kept=kept, **figures)
        return accuracy

    if compute.is_main:
        problem.history.rewind("purify", -1)  # an interrupted one begins anew
    network.eval()
    look(0, [torch.ones_like(mask).detach() for mask in state.masks])
    with weights_frozen(network), problem.progress.stage("masks of neurons", how.steps, "step") as stage:
        for step, (images, labels) in enumerate(batches, 1):
            with masks_applied(network, state.binary()):
                logits = network(images.to(compute.device))
            loss = F.cross_entropy(logits.float(), target[labels.to(compute.device)])
            state.step(loss)
            looked = {}
            if step % every == 0 or step == how.steps:
                with torch.no_grad():
                    binary = state.binary()
                looked["accuracy_anchor"] = look(step, binary, loss_task=float(loss.detach()))
            stage.update(step, **looked)
    return [mask.cpu() for mask in best.masks]
