"""The network that is cut: the base as it is, or after it was trained on the classes.

A method that imitates its base cannot know more than that does. Where the base has yet to learn the classes, as one
whose classifier was fitted on frozen features, training it first and cutting it then keeps what the labels add.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from edgevit.derivation.problem import Problem, finetuned_base
from edgevit.derivation.solve.head import sharpen
from edgevit.network.checkpoint import tensors_sha256
from edgevit.records.derivation import StartRecord


def start_from(asked: str, problem: Problem, *, is_trained: bool) -> tuple[Problem, StartRecord | None]:
    """The problem with the network that is asked for, and what was found; None where the base was to be cut as it is.

    Args:
        asked: `base`, `finetuned`, or `better`: of the two the one whose loss on the validation part is less,
            each at the temperature that is best for it.
        is_trained: whether the base was trained anyhow, so that it can be said what cutting it might give.
    """
    if asked == "base" and not is_trained:
        return problem, None
    network = finetuned_base(problem)
    losses = [loss_on_validation(problem, one) for one in (problem.network, network)]
    # Every process decides alike, though a device may have rounded otherwise.
    before, after = problem.compute.mean(torch.tensor(losses, device=problem.compute.device)).tolist()
    steps = problem.base_training.steps or 0
    if asked == "base":
        if after < before:
            problem.progress.note(
                f"{steps} steps on the classes took the base's loss on the validation images from {before:.4g} to "
                f"{after:.4g}; --derive-from better would cut it after them"
            )
        return problem, None
    finetuned = asked == "finetuned" or after < before
    found = StartRecord("finetuned" if finetuned else "base", steps, before, after)
    problem.progress.note(found.format())
    if not finetuned:
        return problem, found
    identity = {**problem.identity, "state": tensors_sha256(network.state_dict())}
    return replace(problem, network=network, identity=identity), found


def loss_on_validation(problem: Problem, network: nn.Module) -> float:
    """Cross-entropy of the labels among the target classes, in nats: the mean over the validation part.

    It is that at the temperature which is best for the network: a base that was trained with smoothed labels is less
    sure than it is right, and to become surer is no reason to be cut.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def see(logits: Tensor, labels: Tensor) -> None:
        seen.append((logits[:, list(problem.columns)].double().cpu(), labels.cpu()))

    replace(problem.passes, shared=False).run(network, problem.task.validation, see, mixed=True)
    outputs, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
    each = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    return sharpen(outputs, labels, each)[0]
