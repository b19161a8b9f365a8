"""Refuse, before any work, what a method cannot do; the message names the methods that can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgevit.derivation.methods import method_names
from edgevit.errors import CostTableError, OptionError

if TYPE_CHECKING:
    from edgevit.derivation.allocate.policy import Policy
    from edgevit.derivation.allocate.prices import Prices
    from edgevit.derivation.feasibility import SearchSpace
    from edgevit.derivation.method import Method
    from edgevit.network.anatomy import Block
    from edgevit.network.network import Network
    from edgevit.train.settings import Training


def refuse_untaught(training: Training) -> None:
    """Refuse unlabelled images for a training without a teacher.

    Raises:
        OptionError: there is no teacher, or nothing is trained.
    """
    if training.teacher in (None, "none"):
        raise OptionError("unlabelled images need a teacher, and this training has none; add --teacher restricted")
    if training.steps == 0:
        raise OptionError("unlabelled images are for training, and with 0 steps nothing is trained; leave them out")


def refuse_silent(method: Method[Any], cuts: SearchSpace, prices: Prices | None) -> None:
    """Refuse a cost table without measurements of fewer tokens for a method that removes tokens.

    Raises:
        CostTableError: it has none.
    """
    if cuts.tokens and prices is not None and len(prices.token_counts) == 1:
        raise CostTableError(
            f"cost table: it has no measurements of blocks with fewer tokens, and {method.name} is to remove tokens; "
            "measure one that does with `edgevit cost --tokens`"
        )


def missing_site(blocks: Sequence[Block]) -> str:
    """Describe the first block that lacks its attention or its FFN; empty: all have both."""
    for i, block in enumerate(blocks):
        if block.attention is None or block.ffn is None:
            return f"block {i} of this base has no {'attention' if block.attention is None else 'FFN'}"
    return ""


def refuse_base(method: Method[Any], config: Any, network: Network, policy: Policy) -> None:
    """Refuse a base from which attentions, FFNs or tokens were removed before, where the method cannot cut it.

    Raises:
        OptionError: the method, with this config, cannot cut it.
    """

    blocks = network.read()
    if (missing := missing_site(blocks)) and not method.cuts_half_blocks:
        raise OptionError(
            f"{method.name} cuts blocks that have both attention and FFN, and {missing}; derive from the model that it "
            "came from, at the rate of both together, or try --method forge"
        )
    if any(block.tokens for block in blocks):
        _refuse_fewer_tokens(method, config, network, policy)


def _refuse_fewer_tokens(method: Method[Any], config: Any, network: Network, policy: Policy) -> None:
    """Refuse a method that cannot cut a network some of whose blocks pass on fewer tokens."""
    from edgevit.derivation.method import find_method

    if method.search_space(network, config, policy).tokens:
        raise OptionError(
            f"{method.name} removes tokens, and this base has removed some already; derive from the model that it came "
            "from, at the rate of both together"
        )
    methods = map(find_method, method_names())
    others = [m.name for m in methods if m.search_space(network, m.make_config({}), policy).tokens]
    order = f"cut with {method.name} first, then derive from its folder with --method {' or '.join(others)}"
    if method.needs_all_tokens:
        raise OptionError(
            f"{method.name} measures blocks that all tokens pass through, and this base removes tokens; {order}"
        )
    if getattr(config, "sequential", False):
        raise OptionError(
            f"{method.name}.sequential=true compares the model with its base token by token, and this base removes "
            f"tokens; {order}, or use --set {method.name}.sequential=false"
        )
