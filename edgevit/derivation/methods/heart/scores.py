"""Score each token and each head by its loss, from the Hessian of gates (HEART-ViT, Eq. 3 to 8).

A gate of value 1 multiplies each token that a block puts out, and each head's output: t' = g t, h' = a h. The output is
linear in the gate, so d2L/dg2 = t' H_t t exactly (Eq. 4, 6, 7), and the scores are the diagonal of the gates' Hessian.
With random signs s, the mean of s * (H s) is that diagonal, because the cross terms cancel. Each image has its own
gates, so one double backward pass serves a batch.

LayerNorm restores the size of a token that a gate makes smaller. So before the last block a token's gate changes
nothing, and its score is zero.

Shapes: B images, L blocks, N tokens, M of them that may be removed, H_l heads of block l, G = (L - 1) N + sum of H_l
gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from edgevit.data.task import Split
from edgevit.errors import DataError
from edgevit.network.network import Network
from edgevit.train.passes import Passes, observed, weights_frozen

MOST = 8  # images of one double backward pass, which takes several times the memory of a training step


@dataclass(frozen=True)
class HessianScores:
    """The loss in nats of each token after each block but the last, and of each head: means over the images."""

    ranked: Tensor  # [L - 1, M] loss of the token with the least attention in the block, the second least, and so on
    placed: Tensor  # [L - 1, M] loss of the token at each position of the image (Eq. 5)
    heads: tuple[Tensor, ...]  # [H_l] loss of each head, per block; empty in a block without attention
    spearman: Tensor  # [L - 1] rank correlation of attention and Hessian score, the mean over the images

    def tensors(self) -> dict[str, Tensor]:
        named = {name: getattr(self, name) for name in ("ranked", "placed", "spearman")}
        return named | {f"heads.{i:03}": scores for i, scores in enumerate(self.heads)}

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> HessianScores:
        heads = tuple(tensors[name] for name in sorted(tensors) if name.startswith("heads."))
        return cls(tensors["ranked"], tensors["placed"], heads, tensors["spearman"])

    def standard_heads(self) -> list[Tensor]:
        """Standardise the heads' scores by the mean and deviation of all tokens and heads of a block (Eq. 8)."""
        standard = []
        for i, of_heads in enumerate(self.heads):
            of_tokens = self.placed[i] if i < len(self.placed) else self.placed.new_zeros(0)
            scores = torch.cat([of_tokens, of_heads])
            mean, deviation = (scores.mean(), scores.std(correction=0)) if len(scores) else (0.0, scores.new_ones(()))
            standard.append((of_heads - mean) / deviation.clamp_min(torch.finfo(scores.dtype).tiny))
        return standard


@dataclass
class Gates:
    """All gates of one batch in one tensor, and the network that they belong to."""

    network: Network
    values: Tensor  # [B, G] values of all gates of each image
    # Scores [B, N] of the tokens, by the number of a block that ranks tokens.
    attention: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def open_(cls, network: Network, images: Tensor) -> Gates:
        sizes = _sizes(network)
        values = torch.ones(len(images), sum(sizes), dtype=images.dtype, device=images.device, requires_grad=True)
        return cls(network, values)

    def parts(self, values: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Split [B, G] into the tokens' [B, N] per block but the last and the heads' [B, H_l] per block."""
        split = list(torch.split(values, _sizes(self.network), dim=1))
        layers = len(self.network.block_modules) - 1
        return split[:layers], split[layers:]

    def logits(self, images: Tensor) -> Tensor:
        """Compute the network's logits with its gates."""
        network = self.network
        tokens, heads = self.parts(self.values)
        blocks = network.read()

        def score_tokens(i: int, inputs: Any, _: Tensor) -> None:
            with torch.no_grad():
                self.attention[i] = network.token_scores(i, inputs[0])

        def gate(i: int) -> Any:
            attention = blocks[i].attention
            assert attention is not None
            gates = heads[i].repeat_interleave(attention.vo, 1).unsqueeze(1)
            return lambda _, inputs: (inputs[0] * gates,)

        geometry, inputs = network.geometry, network.attention_inputs[:-1]
        ranking = [None if "tokens" in geometry.frozen(i) else module for i, module in enumerate(inputs)]
        with ExitStack() as stack:
            stack.enter_context(observed(ranking, score_tokens))
            for i, output in enumerate(network.attention_outputs):
                if output is not None:
                    stack.callback(output.register_forward_pre_hook(gate(i)).remove)
            x = network.first_tokens(images)
            *layers, last = network.blocks
            for layer, gates in zip(layers, tokens, strict=True):
                x = layer.module(layer.enter(x))
                x = x * gates.unsqueeze(-1) if gates.shape[1] else x
            return network.answers(last.module(last.enter(x)))


def _sizes(network: Network) -> list[int]:
    """The numbers of gates: tokens have some if there are as many after each block."""
    blocks, geometry = network.read(), network.geometry
    tokens = geometry.tokens if len(geometry.stages) == 1 else 0
    return [tokens] * (len(blocks) - 1) + [b.attention.heads if b.attention else 0 for b in blocks]


def gate_losses(loss: Tensor, gates: Tensor, signs: Sequence[Tensor]) -> Tensor:
    """Estimate the loss of each gate in nats: half the diagonal of the Hessian (Eq. 3).

    Shapes: loss [], the sum over the images; gates [B, G]; each of the signs [B, G], 1 and -1; to [B, G].
    """
    (gradient,) = torch.autograd.grad(loss, gates, create_graph=True)
    total = torch.zeros_like(gates)
    for i, s in enumerate(signs):
        (product,) = torch.autograd.grad((gradient * s).sum(), gates, retain_graph=i + 1 < len(signs))
        total += s * product
    return total / (2 * len(signs))


@contextmanager
def twice_differentiable(network: Network) -> Iterator[None]:
    """Allow second derivatives, which fused attention lacks, and freeze the weights, which need none."""
    with weights_frozen(network), sdpa_kernel(SDPBackend.MATH):
        yield


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each entry in ascending order along the last axis."""
    return values.argsort(dim=-1, stable=True).argsort(-1).double()


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Compute the rank correlation along the last axis."""
    a, b = (r - r.mean(-1, keepdim=True) for r in (ranks(x), ranks(y)))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt().clamp_min(1)


def measure_scores(network: Network, images: Split, passes: Passes, *, probes: int, seed: int) -> HessianScores:
    """Take the scores of every token and head, means over the images.

    Args:
        probes: draws of signs per image.

    Raises:
        DataError: a score is not finite.
    """
    geometry = network.geometry
    prefix = geometry.tokens - geometry.patches
    index = torch.as_tensor(network.columns, device=passes.compute.device)
    sizes = len(images), probes, sum(_sizes(network))
    drawn = torch.randint(2, sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.int8) * 2 - 1
    rows = iter(passes.compute.share_rows(drawn))  # an image has the same draws in every batch and process
    sums: dict[str, Tensor] = {}

    def add(batch: Tensor, labels: Tensor) -> None:
        gates = Gates.open_(network, batch.detach())
        logits = gates.logits(batch.detach())[:, index].float()
        signs = torch.stack(list(islice(rows, len(batch))), dim=1).to(gates.values).unbind()
        losses = gate_losses(F.cross_entropy(logits, labels, reduction="sum"), gates.values, signs)
        tokens, heads = gates.parts(losses.double())
        attention = [gates.attention.get(i, torch.ones_like(t)) for i, t in enumerate(tokens)]
        of_tokens = _of_batch([t[:, prefix:] for t in tokens], [a[:, prefix:] for a in attention])
        for name, value in (of_tokens | {f"heads.{i:03}": h.sum(0) for i, h in enumerate(heads)}).items():
            sums[name] = sums[name] + value if name in sums else value

    with twice_differentiable(network):
        passes.show(network, images, add, stage="curvature of tokens and heads", gradients=True, most=MOST)
    means = {name: (passes.compute.sum(total) / len(images)).cpu() for name, total in sums.items()}
    if not all(bool(t.isfinite().all()) for t in means.values()):
        raise DataError("the scores of tokens and heads are not finite; check the base's weights, and --mean and --std")
    return HessianScores.of(means)


def _of_batch(tokens: Sequence[Tensor], attention: Sequence[Tensor]) -> dict[str, Tensor]:
    """Sum the tokens' scores over one batch. Shapes: tokens and attention [B, M] per block but the last."""
    if not tokens:
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return {"ranked": empty, "placed": empty, "spearman": torch.zeros(0, dtype=torch.float64)}
    scores, received = torch.stack(list(tokens)), torch.stack(list(attention)).double()  # [L - 1, B, M]
    return {
        "ranked": scores.gather(2, received.argsort(dim=2, stable=True)).sum(1),
        "placed": scores.sum(1),
        "spearman": spearman(received, scores).sum(1),
    }
