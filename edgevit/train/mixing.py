"""DeiT's recipe beside the changes of single images: mixup, CutMix, label smoothing and stochastic depth.

HEART-ViT and the SKD super-network train by it. timm mixes (Zhang et al., 2018; Yun et al., 2019): a micro-batch takes
mixup or CutMix, each half of the time, of every image with the one at its other end. A residual branch is
dropped for some images, the deeper the more often (Huang et al., 2016). All draws depend on seed, step and micro-batch
alone, so that an interrupted training ends in the same weights; another number of micro-batches or processes mixes
other pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from timm.data.mixup import Mixup
from torch import Tensor

from edgevit.errors import OptionError
from edgevit.network.network import Network
from edgevit.train.settings import Training

MIXUP, CUTMIX, SMOOTHING = 0.8, 1.0, 0.1
DEEPEST = 0.1  # the share of images for which the last block's branches are dropped


class Mixing:
    """Mixes the images of micro-batches and drops residual branches while a network trains."""

    def __init__(self, network: Network, training: Training, processes: int, rank: int) -> None:
        if len(network.input_size) == 1:
            raise OptionError("--augment deit mixes images, and this network reads texts; leave it out")
        micro_batches = training.grad_accum * processes
        if training.batch // micro_batches % 2:
            raise OptionError(
                f"--augment deit mixes pairs of images, and a micro-batch has {training.batch // micro_batches}; "
                f"give --batch-size {training.batch + micro_batches}"
            )
        self.network, self.first = network, (training.seed * 1_000_003 + rank) * 1_000_003
        outputs = network.classifiers[0].out_features
        self.mixup = Mixup(MIXUP, CUTMIX, label_smoothing=SMOOTHING, num_classes=outputs)
        self.generator = torch.Generator()

    def mix(self, images: Tensor, target: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Mix the images [B, 3, H, W] of a micro-batch, of which this is the number, and their columns [B].

        Returns images and the probabilities [B, C] of their classes.
        """
        self.generator.manual_seed((self.first + number) % (1 << 63))
        state = np.random.get_state()  # timm draws from it
        np.random.seed((self.first + number) % (1 << 32))
        try:
            mixed, probabilities = self.mixup(images.clone(), target)
        finally:
            np.random.set_state(state)
        return mixed, probabilities

    @contextmanager
    def dropping(self) -> Iterator[None]:
        """Drop residual branches within the block, where the network is in training mode."""
        layers = self.network.layers
        with ExitStack() as stack:
            for i, sites in enumerate(layers):
                rate = DEEPEST * i / max(len(layers) - 1, 1)
                for site in sites if rate else ():
                    if site is not None:
                        hook = (site.output, *site.after)[-1].register_forward_hook(self._dropped(1 - rate))
                        stack.callback(hook.remove)
            yield

    def _dropped(self, keep: float) -> Any:
        def drop(_: Any, __: Any, branch: Tensor) -> Tensor | None:
            if not self.network.training:
                return None
            remains = torch.rand(len(branch), generator=self.generator) < keep
            return branch * (remains / keep).to(branch).view(-1, *[1] * (branch.ndim - 1))

        return drop
