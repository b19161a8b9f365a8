"""What one pass over calibration images of the target classes says about each block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.data.task import Split
from edgevit.models.families import family_of
from edgevit.progress import Progress


@dataclass(frozen=True)
class BlockStatistics:
    """Shapes: e FFN width, d embedding width. fp64, on the CPU."""

    activation: Tensor  # [e] sum over tokens of the FFN after its non-linearity, mean over images (Vulcan, Eq. 17)
    moment: Tensor | None  # [d + 1, d + 1] mean over tokens of [x 1]^T [x 1], x the attention's normalised input


@contextmanager
def observed(modules: Sequence[nn.Module], see: Callable[[int, Any, Tensor], None]) -> Iterator[None]:
    """Call `see(index, inputs, output)` after each forward pass of each module."""
    with ExitStack() as stack:
        for i, module in enumerate(modules):
            hook = module.register_forward_hook(lambda _, inputs, output, i=i: see(i, inputs, output))
            stack.callback(hook.remove)
        yield


def token_sum(activations: Tensor) -> Tensor:
    """FFN activations [B, N, e] to their token sum averaged over the images: [e]."""
    return activations.sum(dim=1).mean(dim=0)


@torch.no_grad()
def calibrate(
    network: nn.Module,
    images: Split,
    *,
    batch_size: int,
    device: torch.device,
    workers: int = 0,
    moments: bool = False,
    progress: Progress,
) -> list[BlockStatistics]:
    """Run the images through the network once; memory does not grow with their number."""
    family = family_of(network)
    blocks = family.read(network)
    activation = [torch.zeros(b.w1.shape[0], dtype=torch.float64, device=device) for b in blocks]
    side = blocks[0].w1.shape[1] + 1
    moment = [torch.zeros(side, side, dtype=torch.float64, device=device) for _ in blocks if moments]

    def see_activation(i: int, _: Any, output: Tensor) -> None:
        activation[i] += output.double().sum(dim=(0, 1))

    def see_input(i: int, inputs: Any, _: Tensor) -> None:
        x = inputs[0].flatten(0, 1).double()
        x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        moment[i].addmm_(x.mT, x)

    network.eval()
    tokens = 0
    with (
        observed(family.ffn_activations(network), see_activation),
        observed(family.attention_inputs(network) if moments else [], see_input),
        progress.stage("statistics", len(images), "image") as stage,
    ):
        done = 0
        for batch, _ in images.batches(batch_size, workers):
            network(batch.to(device))
            done += len(batch)
            stage.update(done)
        tokens = done * family.geometry(network).tokens
    return [
        BlockStatistics((activation[i] / done).cpu(), (moment[i] / tokens).cpu() if moments else None)
        for i in range(len(blocks))
    ]
