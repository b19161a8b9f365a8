"""What the figures of a board say, in sentences: do fused shapes pay, what does a missed fusion cost, how far is it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgevit.agent.doubts import DOUBTS
from edgevit.agent.records import Run
from edgevit.board.comparison import Comparison, compare_within, decisive
from edgevit.errors import RunsError
from edgevit.jobs.suite.record import Figure, MeasuredNetwork, Proof

LITTLE = 0.03  # a ratio nearer to 1 decides nothing


def answers(proof: Proof, largest: str) -> tuple[str, ...]:
    """All that can be said; what was not measured is left out, and of void runs nothing is concluded."""
    runs = proof.measurements()
    return (
        *_pays(runs, largest),
        *_missed(proof, runs, largest),
        *_mixes(proof, largest),
        *_tokens(runs, largest),
        *_roofline(proof),
        *_graphs(runs),
    )


def against(runs: Sequence[Run], first: str, other: str) -> list[Comparison]:
    """The second network against the first, at each batch size that both were measured at in the same rounds."""
    both = [run for name in (first, other) for run in runs if run.label == name]
    sessions = {run.session for run in both if run.label == other}
    together = [run for run in both if run.session in sessions]
    if {run.label for run in together} != {first, other}:
        return []
    try:
        return decisive(compare_within(together))
    except RunsError:
        return []


def _told(c: Comparison) -> str:
    few = "" if c.rounds is None else f" ({c.rounds} rounds)"
    interval = few if c.low is None or c.high is None else f" ({c.low:.2f} to {c.high:.2f})"
    return f"{c.ratio:.2f}{interval} of its time at batch {c.batch}{' (VOID)' if c.void else ''}"


def _pays(runs: Sequence[Run], largest: str) -> Iterator[str]:
    for rate in ("0.8", "0.6"):
        found = against(runs, f"{largest} {rate} paper", f"{largest} {rate} fused")
        if not found:
            continue
        told = ", ".join(map(_told, found))
        # At batch 8 there are too few rounds for an interval: what was found there may speak against, and not for it.
        few = [c for c in found if c.outcome == "too few rounds"]
        judged = [c for c in found if c not in few] or few
        if why := next((c.void[0] if c.void else c.outcome for c in judged if c.low is None), None):
            yield f"Whether fused shapes pay with {rate} of the MACs gone is not judged ({why}): {told}."
            continue
        sure = [c for c in judged if c.high is not None and c.low is not None and not c.low <= 1 <= c.high]
        if sure and all(c.ratio < 1 - LITTLE for c in sure) and all(c.ratio < 1 + LITTLE for c in few):
            says = "Fused shapes pay"
        elif sure and all(c.ratio > 1 + LITTLE for c in sure) and all(c.ratio > 1 - LITTLE for c in few):
            says = "Fused shapes do not pay"
        else:
            says = "Fused shapes make no clear difference"
        yield f"{says} with {rate} of the MACs gone: against paper shapes of as many MACs, {told}."


def _missed(proof: Proof, runs: Sequence[Run], largest: str) -> Iterator[str]:
    padded = against(runs, f"{largest} 0.8 paper", f"{largest} 0.8 padded")
    if padded:
        told = ", ".join(map(_told, padded))
        yield f"Padding the heads of paper shapes until attention fuses takes {told}."
    widths = {int(one.name.rpartition(" ")[2]): one for one in proof.measured if one.question == "head widths"}
    built = {width: one for width, one in sorted(widths.items()) if one.fused is not None}
    if built:
        told = ", ".join(f"{width}: {one.fused} of {len(one.blocks)}" for width, one in built.items())
        yield f"Attention blocks that run as one kernel, by the width of heads: {told}."
    for narrow, wide in ((12, 16), (20, 24)):
        found = against(runs, f"{largest} heads of {wide}", f"{largest} heads of {narrow}")
        if found:
            yield f"Heads of {narrow} take, of heads of {wide}: {', '.join(map(_told, found))}."


def _mixes(proof: Proof, largest: str) -> Iterator[str]:
    rivals = [one for one in proof.measured if one.name.startswith(f"{largest} 0.8 ") and one.figures]
    for batch in sorted({figure.batch for one in rivals for figure in one.figures}):
        told_of = {one.name: figure for one in rivals if (figure := _at(one, batch)) and not figure.void}
        ratios = {name: figure.ratio for name, figure in told_of.items() if figure.ratio is not None}
        if len(ratios) > 1:
            name = min(ratios, key=ratios.__getitem__)
            told = f"{name}: {ratios[name]:.2f} of dense"
            yield f"Of the ways to leave about 0.2 of the MACs the fastest at batch {batch} is {told}."


def _tokens(runs: Sequence[Run], largest: str) -> Iterator[str]:
    if found := against(runs, f"{largest} 196 tokens", f"{largest} 192 tokens"):
        yield f"192 tokens take, of 196 tokens: {', '.join(map(_told, found))}; their MACs are 0.98."
    if found := against(runs, largest, f"{largest} 192 tokens behind block 1"):
        yield f"Where 192 of 197 tokens are left behind block 1, dense takes {', '.join(map(_told, found))}."


def _roofline(proof: Proof) -> Iterator[str]:
    figures = [(one.name, figure) for one in proof.measured for figure in one.figures]
    shares = [(name, figure) for name, figure in figures if figure.roofline_share and not figure.void]
    if not shares:
        return
    for batch in sorted({figure.batch for _, figure in shares}):
        told = [(figure.roofline_share or 0.0, name) for name, figure in shares if figure.batch == batch]
        (most, best), (least, worst) = max(told), min(told)
        reached = f"{least:.0%} ({worst}) to {most:.0%} ({best})"
        yield f"At batch {batch} the networks reach {reached} of what the board can do at most."


def _at(one: MeasuredNetwork, batch: int) -> Figure | None:
    return next((figure for figure in one.figures if figure.batch == batch), None)


def _graphs(runs: Sequence[Run]) -> Iterator[str]:
    without = sorted({doubt for run in runs if (doubt := DOUBTS["no graph"](run)) is not None})
    yield from (f"{doubt[0].upper()}{doubt[1:]}." for doubt in without)
