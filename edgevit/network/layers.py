"""The layers of a network: the modules of each block and of both ends, as its forward pass uses them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from edgevit.network.anatomy import Attention, Block, Ffn, Part, Site


@dataclass(frozen=True)
class SoftGates:
    """Soft gates of one block, for tokens and heads that are removed gradually."""

    log_gates: Tensor  # [B, N] logarithms of the tokens' gates, added to the logits of attention
    heads: Tensor  # [H] factors of the heads' outputs


@dataclass(frozen=True)
class SiteLayer(Generic[Part]):
    """An attention or FFN: it adds after(output(... readers ... (before(x)))) to the tokens x [B, N, d]."""

    site: Site  # the site's block, kind and frozen axes
    before: nn.Module  # the norm of the tokens before the site; the identity if the norm follows
    module: nn.Module  # the attention or FFN itself: from the output of `before` to that of `output`
    readers: tuple[nn.Linear, ...]  # the linear layers that read the output of `before`
    # The last linear layer: from heads [B, N, H * v], head by head, or neurons [B, N, e], to [B, N, d].
    output: nn.Linear
    # Modules between `output` and the sum with the tokens: a norm, LayerScale, stochastic depth.
    after: tuple[nn.Module, ...]
    # Factor [d] or 1.0 of the output before it is added to the tokens; None: a norm follows.
    scale: Tensor | float | None
    # Returns the weights as views of the live parameters, so that a regulariser can train through them.
    read: Callable[[], Part]
    # The tokens after it, of those before it and what it adds, where a norm reads their sum; None: the sum.
    joined: Callable[[Tensor, Tensor], Tensor] | None = field(default=None, kw_only=True)

    def past(self, tokens: Tensor, output: Tensor) -> Tensor:
        """The tokens after it, of those before it and this output of `output`."""
        added = self.added(output)
        return tokens + added if self.joined is None else self.joined(tokens, added)

    def added(self, output: Tensor) -> Tensor:
        """The tensor added to the tokens for this output of `output`."""
        for module in self.after:
            output = module(output)
        return output


@final
@dataclass(frozen=True)
class AttentionLayer(SiteLayer[Attention]):
    """An attention; `projection` computes its queries, keys and values, packed as for `anatomy.unpack`."""

    # The scores [B, N] by which it ranks tokens, of its input [B, N, d]; gates None: all are open.
    token_scores: Callable[[Tensor, SoftGates | None], Tensor]
    # The module that packs queries, keys and values of separate readers; None: one reader computes all.
    packed: nn.Module | None = None

    @property
    def projection(self) -> nn.Module:
        return self.readers[0] if self.packed is None else self.packed


@final
@dataclass(frozen=True)
class FfnLayer(SiteLayer[Ffn]):
    """An FFN."""


@dataclass(frozen=True)
class BlockLayers:
    """The layers of one block; None: removed."""

    # Block from tokens [B, N, d] to as many or fewer; `attn_mask` is added to the logits of its attention.
    module: nn.Module
    attention: AttentionLayer | None
    ffn: FfnLayer | None
    tokens: int = 0  # number of tokens passed on; 0: all of the input
    merged: bool = False
    stage: int = 0
    shifted: bool = False
    windows: int = 1
    # What the tokens of the block before pass first: where a stage begins, the layers that merge them.
    entry: tuple[nn.Module, ...] = ()
    # In a narrower embedding: from its tokens to those of the whole width, which the module puts out for a head.
    restore: nn.Linear | None = None
    # Adds the sites to the tokens, without `entry` and `restore`; None: `module` does no more than that.
    sites: Callable[[Tensor], Tensor] | None = None

    def enter(self, tokens: Tensor) -> Tensor:
        """The tokens that it gets, of those that the block before passes on."""
        for module in self.entry:
            tokens = module(tokens)
        return tokens

    def run(self, tokens: Tensor) -> Tensor:
        """The tokens after it, of those that `enter` gives."""
        after: Tensor = self.module(tokens) if self.sites is None else self.sites(tokens)
        return after

    def put_out(self, tokens: Tensor) -> Tensor:
        """The tokens that its module puts out, of those that `run` gives."""
        return tokens if self.restore is None else self.restore(tokens)

    def read(self) -> Block:
        """Return the block's weights, as views of the live parameters."""
        attention, ffn = self.attention and self.attention.read(), self.ffn and self.ffn.read()
        return Block(attention, ffn, self.tokens, self.merged, self.stage, self.shifted, self.windows)


@dataclass(frozen=True)
class TokenNorm:
    """A LayerNorm that reads tokens."""

    module: nn.Module
    basis: int  # number of the basis of these tokens (`Geometry.bases`)
    stage: int  # number of the stage whose tokens follow from those that it puts out
    joined: int = 1  # number of tokens that it reads side by side


@dataclass(frozen=True)
class Ends:
    """What a network has before its first block and after its last."""

    input_size: tuple[int, ...]  # channels, height and width of images; number of tokens of texts
    final: nn.Module  # the module whose output is the normalised tokens before pooling
    norm: nn.Module | None  # the last norm, of tokens [B, N, d] or of pooled tokens [B, d]; None: there is none
    reads_mean: bool  # whether the head reads nothing of the patches but their mean
    # Linear layers with one row per class; empty: the outputs are pooled features [B, d].
    classifiers: tuple[nn.Linear, ...]
    # Modules whose tokens [B, N, d], in the basis of the base, a head of the user's reads: blocks.
    read: tuple[nn.Module, ...] = ()
    entries: tuple[TokenNorm, ...] = ()  # the norms before linear layers that make the tokens of a stage
    pads: bool = False  # whether tokens may be padding: such tokens are zeros, and all modules compute zeros of them


class _EndOfPass(Exception):
    """Ends a forward pass early."""


def first_input(module: nn.Module, forward: Callable[[], Any]) -> Tensor:
    """The first input of a module in this forward pass, which ends there."""
    captured: list[Tensor] = []

    def end(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        captured.append(inputs[0])
        raise _EndOfPass

    hook = module.register_forward_pre_hook(end)
    try:
        with suppress(_EndOfPass):
            forward()
    finally:
        hook.remove()
    return captured[0]


def odd_linear(*sites: nn.Module) -> str | None:
    """The reason why the weights of linear layers do not say what they compute, as of one with LoRA's, or None."""
    for site in sites:
        for name in ("qkv", "proj", "fc1", "fc1_g", "fc1_x", "fc2"):
            kind: Any = type(getattr(site, name, None))
            if issubclass(kind, nn.Module) and kind.forward is not nn.Linear.forward:
                return (
                    f"its {name} is {kind.__module__}.{kind.__name__}, expected torch.nn.Linear; merge adapters such "
                    "as LoRA's into its layers"
                )
    return None


@torch.no_grad()
def counted_macs(module: nn.Module, run: Callable[[], object]) -> int:
    """Count the MACs of a run of a module, or of parts of it, as torch counts them."""
    # Fused kernels of nn.MultiheadAttention and nn.TransformerEncoderLayer count as nothing. And torch hooks the
    # gradient of a parameter that a layer is called on, which fails as there are none.
    fast = torch.backends.mha.get_fastpath_enabled()
    with_gradients = [p for p in module.parameters() if p.requires_grad]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        module.requires_grad_(False)
        with FlopCounterMode(display=False) as counter:
            run()
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for parameter in with_gradients:
            parameter.requires_grad_()
    return int(counter.get_total_flops()) // 2
