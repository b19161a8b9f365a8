"""What the loss loses with each token and each head, by the Hessian of gates (HEART-ViT, Eq. 3 to 8).

Each token that a block puts out, and each head's output, is multiplied by a gate of value 1: t' = g t, h' = a h. Being
linear in its gate, it has d2L/dg2 = t' H_t t exactly (Eq. 4, 6, 7): the scores are the diagonal of the gates' Hessian.
With signs s, s * (H s) has that diagonal as its mean, and cross terms that cancel. The gates are per image, so that one
double backward serves a batch.

LayerNorm gives a token that a gate made smaller its full size back: before the last block a published gate changes
nothing, and its score is zero. `gated="attention"` has gates that later blocks feel: of a token's weight in their
attention.

Shapes: B images, L blocks, N tokens, M of them that may leave, H_l heads of block l, G = (L - 1) N + sum of H_l gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgevit.data.task import Split
from edgevit.errors import DataError
from edgevit.network.families import Family, family_of
from edgevit.train.passes import Passes, observed, weights_frozen

Taylor = Literal["curvature", "full"]
Labels = Literal["true", "predicted"]
Gated = Literal["tokens", "attention"]
MOST = 8  # images of one double backward: it holds several times what a training step does


@dataclass(frozen=True)
class HessianScores:
    """Nats that are lost with each token after each block but the last, and with each head: means over the images."""

    ranked: Tensor  # [L - 1, M]: of the token that the block's attention looks at least, next to least, and so on
    placed: Tensor  # [L - 1, M]: of the token at each place in the image (Eq. 5)
    heads: tuple[Tensor, ...]  # [H_l] per block; empty where attention is gone
    spearman: Tensor  # [L - 1]: rank correlation of what attention looks at with the Hessian's score, image by image

    def tensors(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in ("ranked", "placed", "spearman")}
        return named | {f"heads.{i:03}": scores for i, scores in enumerate(self.heads)}

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> HessianScores:
        heads = tuple(tensors[name] for name in sorted(tensors) if name.startswith("heads."))
        return cls(tensors["ranked"], tensors["placed"], heads, tensors["spearman"])

    def standard_heads(self) -> list[Tensor]:
        """Of the heads, by Eq. 8: minus the mean, over the deviation, of all tokens and heads of a block."""
        found = []
        for i, of_heads in enumerate(self.heads):
            of_tokens = self.placed[i] if i < len(self.placed) else self.placed.new_zeros(0)
            all_ = torch.cat([of_tokens, of_heads])
            mean, deviation = (all_.mean(), all_.std(correction=0)) if len(all_) else (0.0, all_.new_ones(()))
            found.append((of_heads - mean) / deviation.clamp_min(torch.finfo(all_.dtype).tiny))
        return found


@dataclass
class Gates:
    """Gates of one batch, all in one tensor, and what they are of."""

    family: Family
    network: nn.Module
    values: Tensor  # [B, G]
    gated: Gated = "tokens"  # what a token's gate multiplies: the token, or its weight in all later attention
    attention: dict[int, Tensor] = field(default_factory=dict)  # by which blocks rank tokens, [B, N] each

    @classmethod
    def open_(cls, network: nn.Module, images: Tensor, gated: Gated = "tokens") -> Gates:
        family = family_of(network)
        sizes = _sizes(family, network)
        values = torch.ones(len(images), sum(sizes), dtype=images.dtype, device=images.device, requires_grad=True)
        return cls(family, network, values, gated)

    def parts(self, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Of any [B, G]: the tokens' [B, N] per block but the last, and the heads' [B, H_l] per block."""
        split = list(torch.split(values, _sizes(self.family, self.network), dim=1))
        layers = len(self.family.layers(self.network)) - 1
        return split[:layers], split[layers:]

    def logits(self, images: Tensor) -> Tensor:
        """What the network answers through its gates."""
        family, network = self.family, self.network
        tokens, heads = self.parts(self.values)
        blocks = family.read(network)

        def see(i: int, given: Any, _: Tensor) -> None:
            with torch.no_grad():
                self.attention[i] = family.token_scores(network, i, given[0])

        def gate(i: int) -> Any:
            attention = blocks[i].attention
            assert attention is not None
            gates = heads[i].repeat_interleave(attention.vo, 1).unsqueeze(1)
            return lambda _, given: (given[0] * gates,)

        geometry, inputs = family.geometry(network), family.attention_inputs(network)[:-1]
        ranking = [None if "tokens" in geometry.frozen(i) else module for i, module in enumerate(inputs)]
        with ExitStack() as stack:
            stack.enter_context(observed(ranking, see))
            for i, output in enumerate(family.attention_outputs(network)):
                if output is not None:
                    stack.callback(output.register_forward_pre_hook(gate(i)).remove)
            log_gates: Tensor | None = None
            stack.enter_context(family.weighing(network, lambda _: log_gates))
            x = family.first_tokens(network, images)
            layers = family.layers(network)
            for layer, gates in zip(layers, tokens, strict=False):
                x = layer(x)
                if self.gated == "tokens":
                    x = x * gates.unsqueeze(-1)
                else:
                    log_gates = gates.log() if log_gates is None else log_gates + gates.log()
            return family.answers(network, layers[-1](x))


def _sizes(family: Family, network: nn.Module) -> list[int]:
    blocks = family.read(network)
    tokens: int = family.geometry(network).tokens
    return [tokens] * (len(blocks) - 1) + [b.attention.heads if b.attention else 0 for b in blocks]


def gate_losses(loss: Tensor, gates: Tensor, signs: Sequence[Tensor], taylor: Taylor) -> Tensor:
    """Nats that are lost with each gate: half the diagonal of the Hessian (Eq. 3), minus the gradient with `full`.

    Shapes: loss [], the sum over the images; gates [B, G]; each of the signs [B, G], 1 and -1; to [B, G].
    """
    (gradient,) = torch.autograd.grad(loss, gates, create_graph=True)
    total = torch.zeros_like(gates)
    for i, s in enumerate(signs):
        (product,) = torch.autograd.grad((gradient * s).sum(), gates, retain_graph=i + 1 < len(signs))
        total += s * product
    half = total / (2 * len(signs))
    return half - gradient.detach() if taylor == "full" else half


@contextmanager
def twice_differentiable(network: nn.Module) -> Iterator[None]:
    """Let second derivatives be taken: fused attention has none, and those in weights nobody asks for."""
    with weights_frozen(network), sdpa_kernel(SDPBackend.MATH):
        yield


def ranks(values: Tensor) -> Tensor:
    """The place of each entry in ascending order along the last axis."""
    return values.argsort(dim=-1, stable=True).argsort(-1).double()


def spearman(one: Tensor, other: Tensor) -> Tensor:
    """Rank correlation along the last axis."""
    a, b = (r - r.mean(-1, keepdim=True) for r in (ranks(one), ranks(other)))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt().clamp_min(1)


def measure_scores(
    network: nn.Module,
    images: Split,
    columns: Sequence[int],
    passes: Passes,
    *,
    probes: int,
    taylor: Taylor,
    labels: Labels,
    gated: Gated,
    seed: int,
) -> HessianScores:
    """Take the scores of every token and head, means over the images.

    Args:
        columns: for each target class, its column in the logits: the loss is the cross entropy among these.
        probes: draws of signs per image.
        labels: of which the loss is: the images' own, or those that the network would give.
        gated: what a token's gate multiplies.

    Raises:
        DataError: one is not finite.
    """
    family = family_of(network)
    geometry = family.geometry(network)
    prefix = geometry.tokens - geometry.patches
    index = torch.as_tensor(columns, device=passes.compute.device)
    sizes = len(images), probes, sum(_sizes(family, network))
    drawn = torch.randint(2, sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1
    rows = iter(passes.compute.share_rows(drawn))  # an image's own, whatever batch or process it is in
    sums: dict[str, Tensor] = {}

    def see(batch: Tensor, given: Tensor) -> None:
        gates = Gates.open_(network, batch.detach(), gated)
        logits = gates.logits(batch.detach())[:, index].float()
        wanted = given if labels == "true" else logits.argmax(1)
        signs = torch.stack(list(islice(rows, len(batch))), dim=1).to(gates.values).unbind()
        lost = gate_losses(F.cross_entropy(logits, wanted, reduction="sum"), gates.values, signs, taylor)
        tokens, heads = gates.parts(lost.double())
        looked_at = [gates.attention.get(i, torch.ones_like(t)) for i, t in enumerate(tokens)]
        taken = _of_batch([t[:, prefix:] for t in tokens], [a[:, prefix:] for a in looked_at])
        for name, value in (taken | {f"heads.{i:03}": h.sum(0) for i, h in enumerate(heads)}).items():
            sums[name] = sums[name] + value if name in sums else value

    with twice_differentiable(network):
        passes.show(network, images, see, stage="curvature of tokens and heads", gradients=True, most=MOST)
    found = {name: (passes.compute.sum(total) / len(images)).cpu() for name, total in sums.items()}
    if not all(bool(t.isfinite().all()) for t in found.values()):
        raise DataError("the scores of tokens and heads are not finite; check the base's weights, and --mean and --std")
    return HessianScores.of(found)


def _of_batch(tokens: Sequence[Tensor], attention: Sequence[Tensor]) -> dict[str, Tensor]:
    """Sums over the images of one batch. Shapes: [B, M] each of tokens and attention, per block but the last."""
    if not tokens:
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return {"ranked": empty, "placed": empty, "spearman": torch.zeros(0, dtype=torch.float64)}
    scores, looked_at = torch.stack(list(tokens)), torch.stack(list(attention)).double()  # [L - 1, B, M]
    return {
        "ranked": scores.gather(2, looked_at.argsort(dim=2, stable=True)).sum(1),
        "placed": scores.sum(1),
        "spearman": spearman(looked_at, scores).sum(1),
    }
