"""Make the slim network of a network and a plan: `realise`, or `leave_tokens` for the tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from edgevit.derivation.plan import AttentionPlan, BlockPlan, EmbedPlan, FfnPlan, Plan
from edgevit.derivation.solve.attention import keep_heads, narrow
from edgevit.errors import PlanError
from edgevit.network.anatomy import Attention, Block, Decoder, Ffn
from edgevit.network.copies import bare_copy
from edgevit.network.cost import Geometry
from edgevit.network.network import Network


@torch.no_grad()
def realise(network: Network, plan: Plan) -> Network:
    """Return the slim network of a plan; the network itself is not changed.

    Weights in the plan are used as they are; the other parts are factorised, merged or dropped here.

    Raises:
        PlanError: the plan does not fit the network.
    """
    blocks = network.read()
    plan.check(blocks)
    if plan.embed is not None:
        plan.embed.check(network.geometry.bases)
    old = [blocks[i] for i in plan.kept_blocks]
    _check_tokens(plan, old, network.geometry)
    attentions = _attentions([b.attention for b in old], [b.attention for b in plan.blocks])
    ffns = [_ffn(b.ffn, planned.ffn) for b, planned in zip(old, plan.blocks, strict=True)]
    if len(old) < len(blocks):
        network = bare_copy(network)
        network.keep_blocks(plan.kept_blocks)
    parts = zip(attentions, ffns, plan.blocks, strict=True)
    slim = network.build([Block(a, f, planned.tokens, planned.merged) for a, f, planned in parts])
    return slim if plan.embed is None else narrow_embedding(slim, replace(plan.embed, decoders=_decoders(plan, blocks)))


@torch.no_grad()
def leave_tokens(network: Network, plan: Plan) -> Network:
    """Remove the plan's tokens in a network that was realised with all tokens.

    A method that solves weights token by token, for all tokens, realises its plan in these two steps.

    Raises:
        PlanError: the network does not follow the plan, or the tokens cannot be removed as planned.
    """
    if not any(block.tokens for block in plan.blocks):
        return network
    blocks = network.read()
    sizes = [[replace(part.dims, tokens=0, merged=False) for part in parts] for parts in (blocks, plan.blocks)]
    if sizes[0] != sizes[1]:
        raise PlanError(f"tokens are to leave a network of the blocks {sizes[0]}, expected the plan's: {sizes[1]}")
    _check_tokens(plan, blocks, network.geometry)
    pairs = zip(blocks, plan.blocks, strict=True)
    return network.build([replace(b, tokens=planned.tokens, merged=planned.merged) for b, planned in pairs])


def _check_tokens(plan: Plan, blocks: Sequence[Block], geometry: Geometry) -> None:
    """Check that each block passes on fewer tokens than reach it, among them at least one that may be removed.

    Args:
        blocks: those that the plan keeps, before tokens are removed.
    """
    reaching, prefix = geometry.tokens, geometry.tokens - geometry.patches
    for planned, block in zip(plan.blocks, blocks, strict=True):
        passed = planned.tokens or block.tokens
        least = prefix + 1 + int(planned.merged)
        if passed and not least <= passed < reaching:
            raise PlanError(
                f"the plan of block {planned.block} has {passed} tokens to pass on, expected {least} to "
                f"{reaching - 1}: {reaching} reach it, and {prefix} of them always stay"
            )
        reaching = passed or reaching


def _decoders(plan: Plan, blocks: Sequence[Block]) -> tuple[Decoder, ...] | None:
    """The decoders of the norms that the plan keeps; `blocks` are those of the whole network."""
    if plan.embed is None or plan.embed.decoders is None:
        return None
    planned, decoders = {block.block: block for block in plan.blocks}, iter(plan.embed.decoders)
    chosen = []
    for i, block in enumerate(blocks):
        of_block = planned.get(i, BlockPlan(i, None, None))
        for part, site in ((block.attention, of_block.attention), (block.ffn, of_block.ffn)):
            if part is not None and (decode := next(decoders)) and site is not None:
                chosen.append(decode)
    return (*chosen, *decoders)


def narrow_embedding(network: Network, plan: EmbedPlan) -> Network:
    """Copy a network and narrow its embedding as planned.

    Raises:
        PlanError: the plan does not fit the network, or its embedding cannot be narrowed.
    """
    geometry = network.geometry
    if geometry.fixed_embed is not None:
        raise PlanError(f"the plan narrows the embedding, and it stays as it is: {geometry.fixed_embed}")
    plan.check(geometry.bases)
    assert plan.encoders is not None
    device = next(network.parameters()).device
    decoders = None if plan.decoders is None else [decode.to(device) for decode in plan.decoders]
    return network.with_embedding([encode.to(device) for encode in plan.encoders], decoders)


def _attentions(parts: Sequence[Attention | None], plans: Sequence[AttentionPlan | None]) -> list[Attention | None]:
    """The planned attentions; those without weights are factorised in one call."""
    attentions = [None if plan is None else plan.weights for plan in plans]
    open_ = [(i, part, plan) for i, (part, plan) in enumerate(zip(parts, plans, strict=True))
             if part is not None and plan is not None and plan.weights is None]  # fmt: skip
    if not open_:
        return attentions
    moments = [plan.moment for *_, plan in open_ if plan.moment is not None]
    if moments and len(moments) < len(open_):
        raise PlanError(
            "the plan has moments of some attentions, expected them of all that bring no weights, or of none"
        )
    fewer = []
    for _, part, plan in open_:
        # The mean output of dropped heads can be compensated only where the inputs' mean is known.
        reduced = part.keep(plan.heads) if plan.moment is None else keep_heads(part, plan.heads, plan.moment)
        fewer.append(part if len(plan.heads) == part.heads else reduced)
    widths = [plan.widths for *_, plan in open_]
    for (i, *_), slim in zip(open_, narrow(fewer, widths, moments or None), strict=True):
        attentions[i] = slim
    return attentions


def _ffn(part: Ffn | None, plan: FfnPlan | None) -> Ffn | None:
    if part is None or plan is None:
        return None
    if plan.weights is not None:
        return plan.weights
    neurons = plan.neurons.to(part.w1.device)
    return part.keep(neurons) if plan.labels is None else part.merged(plan.labels.to(part.w1.device), neurons)
