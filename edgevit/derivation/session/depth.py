"""Remove whole blocks from a network that a method derived, and train it again (Vulcan, Table 18).

The paper evaluates Vulcan's network on up to 5000 training images without each of its blocks, removes the block without
which accuracy is highest, and repeats this for the network that is left. Then it distils from the fine-tuned base.
Here any method may come first, and the training afterwards is the derivation's own, teacher included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch

from edgevit.data.task import Split
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Derived, Problem, distillation_for, train_for
from edgevit.errors import OptionError
from edgevit.network.copies import bare_copy
from edgevit.network.dense import DenseFamily
from edgevit.network.network import Network
from edgevit.train.passes import Passes

_JUDGED = 5000  # training images, at most, on which blocks are judged
_STAGE = "train after blocks"


def _removable_blocks(network: Network) -> list[int]:
    """The blocks that may go: not the last of a stage, none that passes on fewer tokens or is frozen."""
    stages = Counter(dims.stage for dims in network.dims)
    return [
        i
        for i, dims in enumerate(network.dims)
        if stages[dims.stage] > 1 and not dims.tokens and "site" not in network.geometry.frozen(i)
    ]


def check_removal(network: Network, count: int) -> None:
    """Refuse to remove more blocks than the base can spare.

    Raises:
        OptionError: it has too few, or its head reads several of them.
    """
    if network.ends.read and isinstance(network.family, DenseFamily):
        raise OptionError(
            f"--remove-blocks {count}: the head of this base reads several blocks; derive from the base without "
            "a head, which then gets one of the last block alone"
        )
    stages = [dims.stage for dims in network.dims]
    by_stage = Counter(stages[i] for i in _removable_blocks(network))
    spare = sum(min(removable, stages.count(stage) - 1) for stage, removable in by_stage.items())
    if count > spare:
        raise OptionError(
            f"--remove-blocks {count}: the base has {len(stages)} blocks, of which {spare} can be removed; give "
            f"{spare or 'a deeper base'}"
        )


def without_blocks(network: Network, removed: Iterable[int]) -> Network:
    """Copy a network without these of its blocks."""
    copy, indices = bare_copy(network), set(removed)
    copy.keep_blocks([i for i in range(len(network.dims)) if i not in indices])
    return copy


def least_missed_blocks(network: Network, images: Split, count: int, passes: Passes) -> list[int]:
    """Choose `count` blocks one after the other, each the one without which most images are classified correctly.

    Of equal ones it is the one with the lower cross-entropy. Every choice is made anew without the blocks that went
    before.

    Fewer are chosen where the network has no more to spare.
    """
    chosen = list[int]()
    with passes.progress.stage("choose blocks", count, "block") as stage:
        for _ in range(count):
            remaining = [i for i in range(len(network.dims)) if i not in chosen]
            places = [remaining[i] for i in _removable_blocks(without_blocks(network, chosen))]
            if not places:
                passes.progress.warn(f"only {len(chosen)} of {count} blocks can be removed, as the method left few")
                break
            scores = {i: _score(without_blocks(network, [*chosen, i]), images, passes) for i in places}
            chosen.append(max(places, key=lambda i: scores[i]))
            stage.update(len(chosen))
    return chosen


def _score(network: Network, images: Split, passes: Passes) -> tuple[int, float]:
    """Count the images that are classified correctly, and sum the logarithms of their classes' probabilities."""
    sums = torch.zeros(2, dtype=torch.float64, device=passes.compute.device)

    def add(logits: torch.Tensor, labels: torch.Tensor) -> None:
        probabilities = network.output.of(logits.double()).log_softmax(1)
        sums[0] += (probabilities.argmax(1) == labels).sum()
        sums[1] += probabilities.gather(1, labels[:, None]).sum()

    passes.run(network, images, add)
    right, likelihood = passes.compute.sum(sums).tolist()
    return round(right), likelihood


def shorten(derived: Derived, problem: Problem, teacher: Network, count: int) -> Derived:
    """Remove blocks from what a method made of the problem's network, and train the rest for the problem's steps.

    Args:
        teacher: the problem's network as it was before the method, which may have trained it.
    """
    images = problem.task.train.subset(_JUDGED)
    with problem.stopwatch.stage("depth"):
        removed = least_missed_blocks(derived.network, images, count, problem.passes)
    network = without_blocks(derived.network, removed)
    plan = Plan(tuple(b for i, b in enumerate(derived.plan.blocks) if i not in removed), derived.plan.embed)
    problem = replace(problem, network=teacher)
    distillation = distillation_for(problem, plan.embed)
    done = train_for(problem, network, stage=_STAGE, distillation=distillation, keep="best", folder="train-depth")
    facts = {
        **derived.facts,
        "kept_blocks": plan.kept_blocks,
        "blocks_removed": [derived.plan.blocks[i].block for i in removed],  # in this order
        "steps_after_removal": done,
    }
    return Derived(network, plan, facts)
