"""Distillation: a network learns a teacher's answers beside the labels (Hinton et al., 2015).

Loss = (1 - weight) CE(labels, network) + weight T^2 KL(teacher || network at temperature T) + tokens * token error.

The token error is of the final tokens, and, where that is asked for, the mean of it and of those behind some blocks.

CE is the mean over the labelled images of a step, the others over all of its images, so that images without a known
class can be mixed in. T^2 keeps the teacher's gradient of one size at any temperature.

The teacher multiplies in bf16 on a processor that can, whatever the network trains in: nothing is learnt through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.errors import OptionError
from edgevit.network.anatomy import Decoder, decoder
from edgevit.network.copies import bare_copy
from edgevit.network.families import family_of
from edgevit.train.passes import Observe, observed
from edgevit.train.products import rounded_products
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Depth:
    """A place between two blocks where the tokens of network and teacher are compared."""

    layer: int  # of the network's blocks, the one that puts them out
    taught: int  # of the teacher's
    by_token: Tensor | None = None  # [N] how much each of them counts; None: alike


@dataclass(frozen=True)
class Distillation:
    """A teacher whose answers the network learns."""

    teacher: nn.Module  # frozen, in eval mode; its logits have the same columns as the network's
    weight: float  # share of the teacher in the loss, in [0, 1]
    temperature: float  # T > 0
    tokens: float = 0.0  # weight of the final tokens: their squared error relative to the teacher's square
    # Where the network's embedding is not the teacher's: weight [d, d'] and bias [d] that make its final tokens those.
    back: tuple[Tensor, Tensor] | None = None
    encode: Tensor | None = None  # [d', d] what becomes of the teacher's tokens between blocks; None: they stay
    by_token: Tensor | None = None  # [N] how much each final token counts; None: alike
    depths: tuple[Depth, ...] = ()  # where tokens are compared as well
    # How many tokens, the first ones, are compared; None: all, or where some leave those that always stay.
    compared: int | None = None


def teacher_loss(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """T^2 KL(teacher || network), the mean over the images. Shapes: both [B, C]."""
    log_network, log_teacher = (F.log_softmax(x.float() / temperature, dim=1) for x in (logits, taught))
    return temperature**2 * F.kl_div(log_network, log_teacher, reduction="batchmean", log_target=True)


def token_loss(tokens: Tensor, taught: Tensor, by_token: Tensor | None = None) -> Tensor:
    """Squared error in units of the teacher's square, image by image, then the mean over them. Shapes: both [B, N, d].

    Image by image, so that it is the same however a batch is shared among processes and micro-batches.

    Args:
        by_token: [N] how much each token counts, in either square; None: alike.
    """
    taught = taught.float()
    squares = ((tokens.float() - taught).square(), taught.square())
    if by_token is not None:
        squares = (squares[0] * by_token[:, None], squares[1] * by_token[:, None])
    error, square = (x.flatten(1).mean(1) for x in squares)
    return (error / square.clamp_min(torch.finfo(square.dtype).tiny)).mean()


class Lesson:
    """What the teacher adds to the loss of one network, step by step."""

    def __init__(self, distillation: Distillation, network: nn.Module, columns: Sequence[int]) -> None:
        self.distillation, self.network, self.columns = distillation, network, list(columns)
        self.teacher = distillation.teacher
        self.final: list[Tensor] = [torch.empty(0)] * 2  # final tokens [B, N, d] of network and teacher
        self.middle: list[list[Tensor]] = [[torch.empty(0)] * len(distillation.depths) for _ in range(2)]
        # Where tokens leave, those of one image are compared that always stay: class, distillation, register tokens.
        self.compared = distillation.compared
        if self.compared is None and distillation.tokens > 0:
            self.compared = _always_there(network, self.teacher)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Observe the final tokens, if they are in the loss, while the network trains."""

        def see(index: int, inputs: Any, output: Tensor) -> None:
            self.final[index] = output[:, : self.compared]

        models = (self.network, self.teacher)
        wanted = self.distillation.tokens > 0
        with ExitStack() as stack:
            if wanted:
                stack.enter_context(observed([family_of(m).final_tokens(m) for m in models], see))
                for of, model in enumerate(models):
                    stack.enter_context(observed(self._layers(model, of), self._see_middle(of)))
            yield

    def _layers(self, model: nn.Module, of: int) -> list[nn.Module]:
        layers = family_of(model).layers(model)
        return [layers[depth.taught if of else depth.layer] for depth in self.distillation.depths]

    def _see_middle(self, of: int) -> Observe:
        def see(index: int, inputs: Any, output: Tensor) -> None:
            self.middle[of][index] = output[:, : self.compared]

        return see

    def losses(self, images: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """`loss_teacher`, and `loss_tokens` where it counts, of the batch that the network has just seen."""
        with torch.no_grad(), rounded_products(images.device):
            taught = self.teacher(images)
        losses = {"loss_teacher": self.teacher_loss(logits, taught)}
        if self.distillation.tokens > 0:
            losses["loss_tokens"] = self.token_loss()
        return losses

    def token_loss(self) -> Tensor:
        """The mean over the places where tokens are compared."""
        d = self.distillation
        parts = [token_loss(self.own_tokens(), self.final[1], self._counted(d.by_token))]
        for depth, own, taught in zip(d.depths, *self.middle, strict=True):
            wanted = taught if d.encode is None else taught.float() @ d.encode.to(taught.device, torch.float32).mT
            parts.append(token_loss(own, wanted, self._counted(depth.by_token)))
        return parts[0] if len(parts) == 1 else torch.stack(parts).mean()

    def _counted(self, by_token: Tensor | None) -> Tensor | None:
        return None if by_token is None else by_token[: self.compared].to(self.final[0].device, torch.float32)

    def own_tokens(self) -> Tensor:
        """The network's final tokens in the teacher's embedding: [B, N, d]."""
        tokens, back = self.final[0], self.distillation.back
        return tokens if back is None else F.linear(tokens, *(t.to(tokens) for t in back))

    def teacher_loss(self, logits: Tensor, taught: Tensor) -> Tensor:
        """The teacher's part of the loss, given its own logits. Shapes: both [B, outputs]."""
        columns = torch.as_tensor(self.columns, device=logits.device)
        return teacher_loss(logits[:, columns], taught[:, columns], self.distillation.temperature)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        """The whole loss, from `loss_task` (CE) and what `losses` gave."""
        weight = self.distillation.weight
        loss = (1 - weight) * losses["loss_task"] + weight * losses["loss_teacher"]
        return loss + self.distillation.tokens * losses["loss_tokens"] if "loss_tokens" in losses else loss

    def check(self, images: Tensor) -> None:
        """Let both classify a few images [B, 3, H, W].

        Raises:
            OptionError: the teacher answers with other columns, or tokens of another shape.
        """
        with torch.inference_mode(), self.watch():
            given, taught = (model(images).shape[1] for model in (self.network, self.teacher))
        if given != taught:
            raise OptionError(
                f"the teacher tells {taught} classes apart and the network {given}; give a teacher of the same classes"
            )
        if self.distillation.tokens > 0 and self.compared == 0:
            raise OptionError(
                "tokens leave the network or its teacher, and no token of it always stays to be compared; set "
                "--token-weight 0"
            )
        if self.distillation.tokens > 0 and (own := self.own_tokens()).shape != self.final[1].shape:
            seen, wanted = (list(final.shape[1:]) for final in (own, self.final[1]))
            raise OptionError(
                f"the teacher's final tokens are {wanted} and the network's {seen} (tokens, width); "
                f"set --token-weight 0, or give a teacher of the same width"
            )


def _always_there(*networks: nn.Module) -> int | None:
    """How many tokens, the first ones, all of the networks have of every image; None: all that there are."""
    families = [(family_of(network), network) for network in networks]
    if not any(block.tokens for family, network in families for block in family.read(network)):
        return None
    geometries = [family.geometry(network) for family, network in families]
    return min(geometry.tokens - geometry.patches for geometry in geometries)


def make_distillation(
    base: nn.Module,
    training: Training,
    encode: Tensor | None = None,
    kept: Sequence[int] | None = None,
    by_token: Sequence[Tensor] | None = None,
    decode: Decoder | None = None,
) -> Distillation:
    """Make a teacher of a frozen copy of `base`, for a training that has one.

    Args:
        encode: [d', d], what became of its tokens in the network that is to learn; None: they are alike.
        kept: which of its blocks that network has; None: all.
        by_token: [N] per block, how much the tokens behind it count; None: alike.
        decode: the way back from what the last norm before its head gives; None: that of `encode`.
    """
    teacher = bare_copy(base).eval().requires_grad_(False)
    back = None if encode is None else way_back(teacher, encode, decode)
    count = len(family_of(teacher).layers(teacher))
    depths = middle_depths(range(count) if kept is None else kept, training.token_depths)
    if by_token is not None:
        depths = tuple(replace(depth, by_token=by_token[depth.taught]) for depth in depths)
    last = None if by_token is None else by_token[-1]
    weight, temperature = training.teacher_weight, training.teacher_temperature
    return Distillation(teacher, weight, temperature, training.token_weight or 0.0, back, encode, last, depths)


def middle_depths(kept: Sequence[int], wanted: int) -> tuple[Depth, ...]:
    """Places between blocks, about as far apart from one another; fewer where there are not so many blocks.

    The tokens behind a block that stays are the teacher's where the next one begins: what was between is gone.

    Args:
        kept: of the teacher's blocks, those that the network has.
        wanted: how many places.
    """
    layers = sorted({round(len(kept) * (i + 1) / (wanted + 1)) - 1 for i in range(wanted)} & set(range(len(kept) - 1)))
    return tuple(Depth(layer, kept[layer + 1] - 1) for layer in layers)


def way_back(teacher: nn.Module, encode: Tensor, decode: Decoder | None = None) -> tuple[Tensor, Tensor]:
    """What makes final tokens of an embedding narrowed by `encode` [d', d] the teacher's: weight [d, d'], bias [d].

    The narrow network's last norm has the teacher's weight and bias no more: they went into what reads it.
    """
    family = family_of(teacher)
    norm: Any = family.final_tokens(teacher)
    if decode is None or norm is not family.token_norms(teacher)[-1]:  # that one may normalise pooled tokens
        decode = decoder(encode)
    weight = decode.weight.float().cpu()
    bias = torch.zeros(encode.shape[1]) if decode.bias is None else decode.bias.float().cpu()
    if getattr(norm, "weight", None) is None:  # no norm, or one without a scale
        return weight, bias
    scale = norm.weight.detach().float().cpu()
    shift = 0 if norm.bias is None else norm.bias.detach().float().cpu()
    return scale.unsqueeze(1) * weight, scale * bias + shift
