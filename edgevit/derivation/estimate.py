"""Estimate how long a derivation takes, before it begins.

A few images are timed through the base, and most is counted in passes of one image: forwards, and backwards at twice
their cost. Ordering neurons grows with the widths of FFNs and not with the images: it is counted in products of fp64,
which are timed, too. That excludes other decompositions, and what the cache has. The estimate is good to a factor of
two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch

from edgevit.data.task import Split
from edgevit.derivation.problem import Problem, has_finetuned_base
from edgevit.network.network import Network
from edgevit.progress import rounded_duration
from edgevit.train.compute import Compute

_TIMED = 8  # images; the first batch of them only warms up
_SIDE = 384  # rows and columns of the matrices whose product is timed
_PARTS = ("baselines", "measuring", "training", "rest")
_SHOWN = {"rest": "the layers behind the backbone"}  # names of parts that are not those of the fields


@dataclass(frozen=True)
class Estimate:
    """The estimated seconds of each part of a derivation, or of several."""

    baselines: float
    measuring: float
    training: float
    rest: float = 0.0
    derivations: int = 1

    def text(self) -> str:
        """Describe the sum and the parts for a person, rounded."""
        seconds = {_SHOWN.get(name, name): getattr(self, name) for name in _PARTS}
        shown = ", ".join(f"{rounded_duration(s)} for {name}" for name, s in seconds.items() if s > 0)
        whose = "this derivation takes" if self.derivations == 1 else f"the {self.derivations} derivations take"
        return f"{whose} about {rounded_duration(sum(seconds.values()))}: {shown}; less where the cache has it"


def estimate(
    problem: Problem, config: Any, *, finetune_base: bool, rest: float = 0.0, derivations: int = 1
) -> Estimate:
    """Time a few images through the base, and count the passes of each part.

    Args:
        rest: seconds for the layers behind the backbone.
        derivations: how many there are of this task without training, at one rate each. They share the statistics of
            the base and its training; each of them measures its baselines and solves for its own inputs.
    """
    read, forward = image_seconds(problem.network, problem.task.train, problem.compute)
    task, training, depth = problem.task, problem.training, len(problem.network.block_modules)
    trained = (training.steps or 0) * training.batch
    slim = 1 - problem.budget.rate
    learns_from_it = training.has_teacher and training.teacher == "finetuned"
    trains_base = (finetune_base or learns_from_it) and not has_finetuned_base(problem)
    looks = min(training.evaluations, training.steps or 0) * len(problem.judging_images())
    learning = trained * (read + forward * (3 * slim + training.has_teacher)) + looks * (read + forward * slim)
    # Of the methods' own options: images that moments are taken from and solved for, those that gradients are taken of,
    # and those whose loss is measured with each block changed; and purification's masks, which train the base.
    chosen = {
        "calibration_images": problem.calibration, "sensitivity_images": problem.gradient_images,
        "measured_images": problem.judging_images,
    }  # fmt: skip
    solved, differentiated, measured = (
        len(choose(getattr(config, name))) if hasattr(config, name) else 0 for name, choose in chosen.items()
    )
    masked = getattr(config, "purification_steps", 0) * getattr(config, "purification_batch", 0)
    measuring = solved * (read + 4 * forward) + differentiated * (read + 6 * forward) + measured * 2 * depth * forward
    # Of 512 images of a ViT of 192 x 6 at 64 px, the first rate took 50 s of 52, others 16 of 24.
    measuring += (derivations - 1) * solved * 2 * forward + derivations * masked * (read + 3 * forward)
    of_base = (problem.base_training.steps or 0) * problem.base_training.batch
    whole = derivations * 2 * len(task.test) * (read + forward) + trains_base * of_base * (read + 3 * forward)
    processes = problem.compute.accelerator.num_processes
    ordering = _order_seconds(problem.network, getattr(config, "neuron_orders", 0))  # which each process does
    return Estimate(whole / processes, measuring / processes + ordering, learning / processes, rest, derivations)


def _order_seconds(network: Network, orders: int) -> float:
    """Seconds to order the neurons of all FFNs so many times (`removal_order`), on the processor.

    An FFN of e neurons takes as long as 5.3 to 6.1 e^3 operations of a product of matrices, of e from 1536 to 3072.
    """
    if not orders:
        return 0.0
    matrix, took = torch.ones(_SIDE, _SIDE, dtype=torch.float64), list[float]()
    for _ in range(3):
        began = monotonic()
        torch.mm(matrix, matrix)
        took.append(monotonic() - began)
    operations = orders * sum(6 * dims.ffn**3 for dims in network.dims)
    return operations * min(took) / (2 * _SIDE**3)


def image_seconds(
    network: Network,
    images: Split,
    compute: Compute,
    run: Callable[[Network, torch.Tensor], object] = Network.__call__,
    timed: int = _TIMED,
) -> tuple[float, float]:
    """Time a few images: seconds to read one, and to pass one through a network, which is moved to the device.

    Args:
        run: passes images [B, C, H, W] through the network.
        timed: number of images.
    """
    network = network.to(compute.device).eval()
    parameter = next(network.parameters())

    def pass_through(batch: torch.Tensor) -> float:
        began = monotonic()
        run(network, batch)
        parameter.sum().item()  # which waits for the device
        return monotonic() - began

    began = monotonic()
    batch, _ = next(iter(images.subset(timed).batches(timed)))
    read = monotonic() - began
    with torch.inference_mode(), compute.accelerator.autocast():
        batch = batch.to(compute.device)
        pass_through(batch)
        forward = pass_through(batch)
    return read / len(batch) / max(compute.workers, 1), forward / len(batch)
