"""Cost tables of a few sizes, written shortly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rows(
    fixed: Any,
    attention: Mapping[tuple[int, int], Any],
    ffn: Mapping[int, Any],
    *,
    block: Any = None,
    **at: int,
) -> list[dict[str, Any]]:
    """The rows of a cost table at one embedding and number of tokens; a cost is ms, or a pair of ms and mJ.

    Where `fixed` is None, they are of fewer tokens.
    """

    def figures(cost: Any) -> dict[str, float]:
        return dict(zip(("ms", "mj"), cost, strict=True)) if isinstance(cost, tuple) else {"ms": cost}

    outside = [("fixed", fixed), ("block", block)]
    return [
        *({"part": part, **at, **figures(cost)} for part, cost in outside if cost is not None),
        *({"part": "attention", "heads": h, "width": w, **at, **figures(cost)} for (h, w), cost in attention.items()),
        *({"part": "ffn", "width": width, **at, **figures(cost)} for width, cost in ffn.items()),
    ]


def table(costs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The content of a table of a small base: two blocks with two heads."""
    base = {
        "family": "vit", "embed": 64, "tokens": 17, "patch_values": 192, "depth": 2,
        "blocks": [{"heads": 2, "qk": 32, "vo": 32, "ffn": 256}], **more.pop("base", {}),
    }  # fmt: skip
    return {"schema": 1, "measured_on": "made up for a test", "base": base, "costs": costs, **more}
