"""Choose the network to cut: the base as it is, or after training on the classes.

A method that imitates its base cannot exceed it. Where the base has yet to learn the classes, such as one whose
classifier was fitted to frozen features, training it before it is cut keeps what the labels add.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgevit.derivation.problem import Problem, finetuned_base
from edgevit.network.model import tensors_sha256
from edgevit.network.network import Network
from edgevit.records.derivation import StartRecord
from edgevit.train.detections import box_precision
from edgevit.train.ridge import sharpen

# What a few hundred images bear: on 385 drawings DINOv2 has 65 % by it, and 54 with a fitted head alone.
TRAIN_FIRST = "--derive-from better --base-steps 100 --batch-size 32 --lr 1e-5"


def start_from(
    option: str, problem: Problem, *, is_trained: bool, head_fitted: bool = False
) -> tuple[Problem, StartRecord | None]:
    """Return the problem with the chosen network, and the record of the choice; None where the base is cut as it is.

    Args:
        option: `base`, `finetuned`, or `better`: the one with less loss on the validation part, each at its best
            temperature.
        is_trained: whether the base is trained in any case, so that a hint about cutting it can be given.
        head_fitted: whether its head was fitted to features that have not learnt the classes, which is hinted at.
    """
    if option == "base" and not is_trained:
        if head_fitted:
            problem.progress.note(
                f"the base's features have not learnt the classes; {TRAIN_FIRST} trains it before it is cut, and "
                "takes that if it has less loss on the validation images"
            )
        return problem, None
    network = finetuned_base(problem)
    losses = [loss_on_validation(problem, candidate) for candidate in (problem.network, network)]
    # The mean over processes, so that all of them decide alike in spite of rounding.
    before, after = problem.compute.mean(torch.tensor(losses, device=problem.compute.device)).tolist()
    steps = problem.base_training.steps or 0
    if option == "base":
        if after < before:
            problem.progress.note(
                f"{steps} steps on the classes took the base's loss on the validation images from {before:.4g} to "
                f"{after:.4g}; --derive-from better would cut it after them"
            )
        return problem, None
    finetuned = option == "finetuned" or after < before
    record = StartRecord("finetuned" if finetuned else "base", steps, before, after)
    if not finetuned:
        return problem, record
    identity = {**problem.identity, "state": tensors_sha256(network.state_dict())}
    return replace(problem, network=network, identity=identity), record


def loss_on_validation(problem: Problem, network: Network) -> float:
    """Cross-entropy of the labels among the target classes, in nats: the mean over the validation part.

    The logits are scaled by the network's best temperature: a base trained with smoothed labels is underconfident, and
    more confidence alone is no reason to prefer a network. Of a detector it is 1 minus the average precision of boxes.
    """
    if problem.task.objects is not None:
        return 1 - box_precision(network.to(problem.compute.device), problem.task)
    batches: list[tuple[Tensor, Tensor]] = []

    def add_batch(logits: Tensor, labels: Tensor) -> None:
        batches.append((network.output.of(logits).double().cpu(), labels.cpu()))

    replace(problem.passes, shared=False).run(network, problem.task.validation, add_batch, mixed=True)
    outputs, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    each = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    return sharpen(outputs, labels, each)[0]
