"""What a network puts out, and what follows from that: probes of its curvature, divergences, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from edgevit.errors import UnsupportedModelError
from edgevit.network.padding import PictureAreas
from edgevit.records.model import OutputKind


class Output(Protocol):
    """One kind of output. The curvature of a divergence D at an output z is the Hessian H of D(z, z') at z' = z."""

    @property
    def kind(self) -> OutputKind:
        """Name of this kind in files."""

    @property
    def noun(self) -> str:
        """The name of its values, and of the output tensor of an exported file that has no names for parts of it."""

    def of(self, outputs: Tensor) -> Tensor:
        """The part [B, ...] of a network's outputs [B, ...] that counts."""

    def draws(self, outputs: Tensor, images: int, seed: int) -> Tensor:
        """Random numbers [images, ...] for `probe`, by the outputs [B, ...] of some images."""

    def probe(self, outputs: Tensor, draws: Tensor) -> Tensor:
        """A scalar whose gradients g in the outputs that count have E[g g^T] = H for each image."""

    def divergence(self, reference: Tensor, outputs: Tensor) -> Tensor:
        """The distance of the outputs of a batch from those of a reference: [B], zero where they are equal."""

    def imitation(self, reference: Tensor, outputs: Tensor, temperature: float) -> Tensor:
        """The loss of a batch whose outputs are to become those of a reference: a scalar."""

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How good the outputs of a batch are: [B], from 0 to 1."""

    def answers(self, outputs: Tensor) -> Tensor:
        """The targets with which the outputs [B, ...] themselves have score 1: the score of others is agreement."""


def may_be_varied(output: Output) -> bool:
    """Whether images may be cropped far and coloured: no class or object limits what the base may be asked."""
    return output.kind not in ("logits", "boxes")


@dataclass(frozen=True)
class Logits:
    """Logits [B, outputs], of which those of the target classes count; the divergence is that of their softmax.

    Targets are positions among the target classes: [B].
    """

    kind: ClassVar[OutputKind] = "logits"
    noun: ClassVar[str] = "logits"

    columns: tuple[int, ...]  # column in the logits of each target class

    def of(self, outputs: Tensor) -> Tensor:
        return outputs[:, torch.as_tensor(self.columns, device=outputs.device)]

    def draws(self, outputs: Tensor, images: int, seed: int) -> Tensor:
        """Ones and minus ones [images, classes]."""
        return _random_signs((images, len(self.columns)), seed)

    def probe(self, outputs: Tensor, draws: Tensor) -> Tensor:
        logits = self.of(outputs)
        return (logits * curvature_sample(logits, draws)).sum()

    def divergence(self, reference: Tensor, outputs: Tensor) -> Tensor:
        """KL(reference || outputs) in nats."""
        p, q = (self.of(logits).log_softmax(1) for logits in (reference, outputs))
        return F.kl_div(q, p, log_target=True, reduction="none").sum(1)

    def imitation(self, reference: Tensor, outputs: Tensor, temperature: float) -> Tensor:
        """T^2 KL(reference || outputs) at temperature T (Hinton et al., 2015): T^2 keeps the size of the gradient."""
        p, q = (F.log_softmax(self.of(logits).float() / temperature, dim=1) for logits in (reference, outputs))
        loss: Tensor = temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)
        return loss

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 where the most probable target class is the right one."""
        return (self.answers(outputs) == targets).float()

    def answers(self, outputs: Tensor) -> Tensor:
        return self.of(outputs).argmax(1)


def curvature_sample(logits: Tensor, signs: Tensor) -> Tensor:
    """Zeta [B, C] with E[zeta zeta^T] = diag(p) - p p^T for the softmax p of each row, given random signs [B, C]."""
    root = logits.detach().double().softmax(-1).sqrt()
    signs = signs.to(root)
    zeta: Tensor = root * signs - root.square() * (root * signs).sum(-1, keepdim=True)
    return zeta.to(logits.dtype)


def _random_signs(shape: Sequence[int], seed: int) -> Tensor:
    """Ones and minus ones."""
    return torch.randint(2, tuple(shape), generator=torch.Generator().manual_seed(seed)) * 2 - 1


class _InUnits:
    """Outputs in units of `scale`; the divergence is half the mean squared difference."""

    scale: Tensor | None

    def of(self, outputs: Tensor) -> Tensor:
        return outputs if self.scale is None else outputs / self.scale.to(outputs)

    def draws(self, outputs: Tensor, images: int, seed: int) -> Tensor:
        """Ones and minus ones like the outputs of all images."""
        return _random_signs((images, *outputs.shape[1:]), seed)

    def probe(self, outputs: Tensor, draws: Tensor) -> Tensor:
        """By random cotangents: in units of `scale`, the curvature is the identity over the number of values."""
        probe: Tensor = (self.of(outputs) * draws.to(outputs)).sum() / outputs[0].numel() ** 0.5
        return probe

    def divergence(self, reference: Tensor, outputs: Tensor) -> Tensor:
        return (self.of(outputs) - self.of(reference)).square().flatten(1).mean(1) / 2

    def imitation(self, reference: Tensor, outputs: Tensor, temperature: float) -> Tensor:
        return self.divergence(reference.float(), outputs.float()).mean()


@dataclass(frozen=True)
class Features(_InUnits):
    """Features [B, d], or of tokens [B, N, d], without labels.

    The divergence is half the mean squared difference in units of `scale`, so that no channel of large values decides
    alone; for features that have nothing in common it is about 1. Targets are the features of a reference.
    """

    kind: ClassVar[OutputKind] = "features"
    noun: ClassVar[str] = "features"

    scale: Tensor | None = None  # [d] standard deviation of each channel; None: ones

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cosine to the features of the reference, 0 where it is negative."""
        cosines = F.cosine_similarity(self.of(outputs), self.of(targets), dim=-1)
        return cosines.reshape(len(cosines), -1).mean(1).clamp(0, 1)

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs


@dataclass(frozen=True)
class Map(_InUnits):
    """A map [B, C, H, W]: logits of foreground (C = 1) or of classes at each pixel, or values.

    Values differ in units of `scale`. Targets are maps [B, H, W] of classes or foreground, or [B, C, H, W] of values.
    """

    noun: ClassVar[str] = "maps"

    kind: Literal["foreground", "classes", "values"]
    scale: Tensor | None = None  # [C, 1, 1] standard deviation of the values of each channel; None: ones

    def probe(self, outputs: Tensor, draws: Tensor) -> Tensor:
        if self.kind == "classes":
            logits, signs = (tensor.movedim(1, -1) for tensor in (outputs, draws))
            probe: Tensor = (logits * curvature_sample(logits, signs)).sum() / outputs[0, 0].numel() ** 0.5
            return probe
        if self.kind == "foreground":
            p = outputs.detach().sigmoid()
            draws = draws.to(outputs) * (p * (1 - p)).sqrt()
        return super().probe(outputs, draws)

    def divergence(self, reference: Tensor, outputs: Tensor) -> Tensor:
        """The mean over the pixels: of KL(reference || outputs), or of half the squared error."""
        if self.kind == "values":
            return super().divergence(reference, outputs)
        if self.kind == "classes":
            p, q = reference.log_softmax(1), outputs.log_softmax(1)
            return F.kl_div(q, p, log_target=True, reduction="none").sum(1).flatten(1).mean(1)
        p = reference.sigmoid()
        losses = [F.binary_cross_entropy_with_logits(x, p, reduction="none") for x in (outputs, reference)]
        return (losses[0] - losses[1]).flatten(1).mean(1)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The intersection over union of the foreground, the share of right pixels, or the overlap of values.

        That is 1 - sum |x - y| / sum (|x| + |y|), whatever their unit; of values in [0, 1], Dice's coefficient.
        """
        if self.kind == "classes":
            return (self.answers(outputs) == targets).float().flatten(1).mean(1)
        if self.kind == "values":
            difference, both = (
                (outputs - targets).abs().flatten(1).sum(1),
                (outputs.abs() + targets.abs()).flatten(1).sum(1),
            )
            return 1 - difference / both.clamp_min(torch.finfo(both.dtype).tiny)
        chosen, target = self.answers(outputs).flatten(1), (targets > 0).flatten(1)
        overlap, union = (chosen & target).sum(1), (chosen | target).sum(1)
        return torch.where(union == 0, 1.0, overlap / union.clamp_min(1))  # right to find none where there is none

    def answers(self, outputs: Tensor) -> Tensor:
        if self.kind == "values":
            return outputs
        return outputs.argmax(1) if self.kind == "classes" else outputs[:, 0] > 0

    def shown(self, outputs: Tensor) -> Tensor:
        """The values that an application reads: probabilities of logits."""
        if self.kind == "values":
            return outputs
        return outputs.softmax(1) if self.kind == "classes" else outputs.sigmoid()


@dataclass(frozen=True)
class Levels(Features):
    """The levels of a detector's pyramid, one after the other: [B, values]. In units of `scale` all count alike."""

    kind: ClassVar[OutputKind] = "boxes"
    noun: ClassVar[str] = "levels"

    # [C, H, W] of each level, to tell padding from pictures; empty: padding counts, too.
    sizes: tuple[torch.Size, ...] = ()

    def without_padding(self, outputs: Tensor, areas: PictureAreas) -> Tensor:
        """The outputs [B, values] of images with these areas, and zeros where all pixels are padding."""
        return outputs * torch.cat(areas.values(self.sizes), 1)

    def draws(self, outputs: Tensor, images: int, seed: int) -> Tensor:
        """A seed for each image: a pyramid has too many values for all signs at once."""
        return torch.randint(2**31, (images, 1), generator=torch.Generator().manual_seed(seed))

    def probe(self, outputs: Tensor, draws: Tensor) -> Tensor:
        signs = [_random_signs(outputs.shape[1:], int(of_image)) for of_image in draws]
        return super().probe(outputs, torch.stack(signs))


def output_of(kind: OutputKind, columns: Sequence[int]) -> Output:
    """The output of this kind; `columns` of the target classes are for logits."""
    if kind == "logits":
        return Logits(tuple(columns))
    if kind == "boxes":
        return Levels()
    return Features() if kind == "features" else Map(kind)


def columns_of(output: Output) -> tuple[int, ...]:
    """For each target class, its column in the logits.

    Raises:
        UnsupportedModelError: the output is not logits.
    """
    if not isinstance(output, Logits):
        raise UnsupportedModelError(
            f"this needs logits of classes, and the output is {output.kind}; fit a classifier first"
        )
    return output.columns
