"""Distillation: a network learns from a teacher's outputs and from labels (Hinton et al., 2015).

Loss = (1 - weight) CE(labels, network) + weight T^2 KL(teacher || network at temperature T) + tokens * token error.
For features, their squared error is in place of the divergence of classes (`network/output.py`), and for detectors the
sum of their own losses in place of CE.

CE is the mean over the labelled images of a step; the other terms are means over all of its images, so that unlabelled
images can be mixed in. T^2 keeps the size of the teacher's gradient constant over temperatures.

The teacher multiplies in bf16 on processors that support it, whatever the precision of the training: no gradient passes
through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.errors import OptionError
from edgevit.network.anatomy import Decoder, decoder
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.train.passes import observed
from edgevit.train.products import rounded_products
from edgevit.train.settings import TEACHER_WEIGHT, Training


@dataclass(frozen=True)
class Distillation:
    """A teacher, and how the network learns from it."""

    teacher: Network  # frozen network in eval mode, whose logits have the same columns as the network's
    weight: float  # share of the teacher's part of the loss, in [0, 1]
    temperature: float  # temperature T > 0 of both softmaxes
    tokens: float = 0.0  # weight of the final tokens' squared error, relative to the teacher's square
    # Map of the network's final tokens to the teacher's embedding, if that is another: weight [d, d'] and bias [d].
    back: tuple[Tensor, Tensor] | None = None
    # How many tokens are compared, from the first; None: all or, if tokens leave, those that always remain.
    compared: int | None = None


def token_loss(tokens: Tensor, taught: Tensor) -> Tensor:
    """Compute the squared error relative to the teacher's square per image, and average. Shapes: both [B, N, d].

    It is relative per image, so that it does not depend on how processes and micro-batches share a batch.
    """
    taught = taught.float()
    squares = ((tokens.float() - taught).square(), taught.square())
    error, square = (x.flatten(1).mean(1) for x in squares)
    return (error / square.clamp_min(torch.finfo(square.dtype).tiny)).mean()


class Lesson:
    """The terms that a teacher adds to the loss of a network."""

    def __init__(self, distillation: Distillation, network: Network) -> None:
        self.distillation, self.network = distillation, network
        self.teacher = distillation.teacher
        self.final: list[Tensor] = [torch.empty(0)] * 2  # final tokens [B, N, d] of network and teacher
        # If tokens leave, only those that always remain are compared: class, distillation and register tokens.
        self.compared = distillation.compared
        if self.compared is None and distillation.tokens > 0:
            self.compared = _permanent_tokens(network, self.teacher)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observe the tokens of network and teacher within the block, if the loss has a token error."""

        def see(index: int, inputs: Any, output: Tensor) -> None:
            self.final[index] = output[:, : self.compared]

        models = (self.network, self.teacher)
        with ExitStack() as stack:
            if self.distillation.tokens > 0:
                stack.enter_context(observed([m.ends.final for m in models], see))
            yield

    def losses(self, images: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute `loss_teacher` and, if weighted, `loss_tokens`, of the batch that the network has just classified."""
        with torch.no_grad(), rounded_products(images.device):
            taught = self.teacher(images)
        losses = {"loss_teacher": self.teacher_loss(logits, taught)}
        if self.distillation.tokens > 0:
            real = self.network.real_tokens(self.final[0]) if self.network.pads and self.compared is None else None
            tokens = [self.student_tokens(), self.final[1]]
            tokens = tokens if real is None else [x * real.unsqueeze(2) for x in tokens]
            losses["loss_tokens"] = token_loss(*tokens)
        return losses

    def student_tokens(self) -> Tensor:
        """Map the network's final tokens to the teacher's embedding: [B, N, d]."""
        tokens, back = self.final[0], self.distillation.back
        return tokens if back is None else F.linear(tokens, *(t.to(tokens) for t in back))

    def teacher_loss(self, logits: Tensor, taught: Tensor) -> Tensor:
        """Compute the teacher's part of the loss from its outputs. Shapes: both [B, ...]."""
        return self.network.output.imitation(taught, logits, self.distillation.temperature)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """Sum the weighted parts: `loss_task` (CE) and the results of `losses`."""
        weight = self.distillation.weight
        loss = (1 - weight) * losses["loss_task"] + weight * losses["loss_teacher"]
        return loss + self.distillation.tokens * losses["loss_tokens"] if "loss_tokens" in losses else loss

    def check(self, images: Tensor) -> None:
        """Classify a few images [B, 3, H, W] by both, and compare the shapes.

        Raises:
            OptionError: the teacher has other outputs, or tokens of another shape.
        """
        with torch.inference_mode(), self.watch():
            outputs, taught = (model(images).shape[1] for model in (self.network, self.teacher))
        if outputs != taught:
            raise OptionError(
                f"the teacher has {taught} classes and the network {outputs}; give a teacher of the same classes"
            )
        if self.distillation.tokens > 0 and self.compared == 0:
            raise OptionError(
                "tokens leave the network or its teacher, and it has no token that always remains to be compared; set "
                "--token-weight 0"
            )
        if self.distillation.tokens > 0 and (student := self.student_tokens()).shape != self.final[1].shape:
            shape, expected = (list(final.shape[1:]) for final in (student, self.final[1]))
            raise OptionError(
                f"the teacher's final tokens are {expected} and the network's {shape} (tokens, width); "
                f"set --token-weight 0, or give a teacher of the same width"
            )


def _permanent_tokens(*networks: Network) -> int | None:
    """Count the tokens, from the first, that remain in all of the networks; None: all tokens do."""
    if not any(block.tokens for network in networks for block in network.read()):
        return None
    geometries = [network.geometry for network in networks]
    return min(geometry.tokens - geometry.patches for geometry in geometries)


def make_distillation(
    base: Network,
    training: Training,
    encode: Tensor | None = None,
    decode: Decoder | None = None,
) -> Distillation:
    """Make a teacher of a frozen copy of `base`, for a training that has one.

    Args:
        encode: [d', d], the map of its tokens to the embedding of the student; None: they have one embedding.
        decode: the map back from the output of the last norm before its head; None: that of `encode`.
    """
    teacher = bare_copy(base).eval().requires_grad_(False)
    restored = any(teacher.ends.final is module for module in teacher.ends.read)  # by the student itself
    back = None if encode is None or restored else way_back(teacher, encode, decode)
    weight = TEACHER_WEIGHT if training.teacher_weight is None else training.teacher_weight
    temperature = training.teacher_temperature
    return Distillation(teacher, weight, temperature, training.token_weight or 0.0, back)


def way_back(teacher: Network, encode: Tensor, decode: Decoder | None = None) -> tuple[Tensor, Tensor]:
    """Compute the map from final tokens, narrowed by `encode` [d', d], to the teacher's: weight [d, d'], bias [d].

    The narrow network's last norm does not have the teacher's weight and bias: they were merged into its readers.
    """
    norm: Any = teacher.ends.final
    if decode is None or norm is not teacher.token_norms[-1].module:  # the last one may normalise pooled tokens
        decode = decoder(encode)
    weight = decode.weight.float().cpu()
    bias = torch.zeros(encode.shape[1]) if decode.bias is None else decode.bias.float().cpu()
    if getattr(norm, "weight", None) is None:  # no norm, or one without a scale
        return weight, bias
    scale = norm.weight.detach().float().cpu()
    shift = 0 if norm.bias is None else norm.bias.detach().float().cpu()
    return scale.unsqueeze(1) * weight, scale * bias + shift
