"""Answers in sentences: whether fused shapes pay, the cost of a missed fusion, and the share of the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgevit.agent.doubts import DOUBTS
from edgevit.agent.records import Run
from edgevit.board.comparison import Comparison, compare_within, decisive
from edgevit.errors import RunsError
from edgevit.jobs.suite.record import SuiteRecord

SWIN = "swin-tiny"  # size of the one Swin, whose attention adds a bias within windows
LITTLE = 0.03  # a ratio closer to 1 is no difference


def answers(record: SuiteRecord, largest: str) -> tuple[str, ...]:
    """The answers to all questions that were measured; void runs decide nothing."""
    runs = record.measurements()
    return (
        *_pays(runs, largest),
        *_missed(record, runs, largest),
        *_mixes(record, largest),
        *_tokens(runs, largest),
        *_roofline(record),
        *_graphs(runs),
    )


def against(runs: Sequence[Run], first: str, second: str) -> list[Comparison]:
    """Compare a second network with the first, at each batch size at which the same rounds have both."""
    both = [run for name in (first, second) for run in runs if run.label == name]
    sessions = {run.session for run in both if run.label == second}
    together = [run for run in both if run.session in sessions]
    if {run.label for run in together} != {first, second}:
        return []
    try:
        return decisive(compare_within(together))
    except RunsError:
        return []


def _ratio_text(c: Comparison) -> str:
    few = "" if c.rounds is None else f" ({c.rounds} rounds)"
    interval = few if c.low is None or c.high is None else f" ({c.low:.2f} to {c.high:.2f})"
    return f"{c.ratio:.2f}{interval} of its time at batch {c.batch}{' (VOID)' if c.void else ''}"


def _pays(runs: Sequence[Run], largest: str) -> Iterator[str]:
    for size, rate, of in ((largest, "0.8", "MACs"), (largest, "0.6", "MACs"), (SWIN, "0.6", "MACs of a Swin")):
        comparisons = against(runs, f"{size} {rate} paper", f"{size} {rate} fused")
        if not comparisons:
            continue
        ratios = ", ".join(map(_ratio_text, comparisons))
        # At batch 8 there are too few rounds for an interval: they can contradict a result, and cannot confirm it.
        few = [c for c in comparisons if c.outcome == "too few rounds"]
        judged = [c for c in comparisons if c not in few] or few
        if reason := next((c.void[0] if c.void else c.outcome for c in judged if c.low is None), None):
            yield f"Whether fused shapes pay with {rate} of the {of} gone is not judged ({reason}): {ratios}."
            continue
        sure = [c for c in judged if c.high is not None and c.low is not None and not c.low <= 1 <= c.high]
        if sure and all(c.ratio < 1 - LITTLE for c in sure) and all(c.ratio < 1 + LITTLE for c in few):
            verdict = "Fused shapes pay"
        elif sure and all(c.ratio > 1 + LITTLE for c in sure) and all(c.ratio > 1 - LITTLE for c in few):
            verdict = "Fused shapes do not pay"
        else:
            verdict = "Fused shapes make no clear difference"
        yield f"{verdict} with {rate} of the {of} gone: against paper shapes of as many MACs, {ratios}."


def _missed(record: SuiteRecord, runs: Sequence[Run], largest: str) -> Iterator[str]:
    padded = against(runs, f"{largest} 0.8 paper", f"{largest} 0.8 padded")
    if padded:
        counts = ", ".join(map(_ratio_text, padded))
        yield f"Padding the heads of paper shapes until attention fuses takes {counts}."
    widths = {int(n.name.rpartition(" ")[2]): n for n in record.measured if n.question == "head widths"}
    built = {width: n for width, n in sorted(widths.items()) if n.fused is not None}
    if built:
        counts = ", ".join(f"{width}: {n.fused} of {len(n.blocks)}" for width, n in built.items())
        yield f"Attention blocks that run as one kernel, by the width of heads: {counts}."
    for narrow, wide in ((12, 16), (20, 24)):
        comparisons = against(runs, f"{largest} heads of {wide}", f"{largest} heads of {narrow}")
        if comparisons:
            yield f"Heads of {narrow} take, of heads of {wide}: {', '.join(map(_ratio_text, comparisons))}."


def _mixes(record: SuiteRecord, largest: str) -> Iterator[str]:
    rivals = [n for n in record.measured if n.name.startswith(f"{largest} 0.8 ") and n.figures]
    for batch in sorted({figure.batch for n in rivals for figure in n.figures}):
        figures = {n.name: f for n in rivals for f in n.figures if f.batch == batch and not f.void}
        ratios = {name: figure.ratio for name, figure in figures.items() if figure.ratio is not None}
        if len(ratios) > 1:
            name = min(ratios, key=ratios.__getitem__)
            fastest = f"{name}: {ratios[name]:.2f} of dense"
            yield f"Of the ways to leave about 0.2 of the MACs the fastest at batch {batch} is {fastest}."


def _tokens(runs: Sequence[Run], largest: str) -> Iterator[str]:
    if comparisons := against(runs, f"{largest} 196 tokens", f"{largest} 192 tokens"):
        yield f"192 tokens take, of 196 tokens: {', '.join(map(_ratio_text, comparisons))}; their MACs are 0.98."
    if comparisons := against(runs, largest, f"{largest} 192 tokens behind block 1"):
        ratios = ", ".join(map(_ratio_text, comparisons))
        yield f"With 192 of 197 tokens after block 1, the dense network takes {ratios}."


def _roofline(record: SuiteRecord) -> Iterator[str]:
    figures = [(n.name, figure) for n in record.measured for figure in n.figures]
    shares = [(name, figure) for name, figure in figures if figure.roofline_share and not figure.void]
    if not shares:
        return
    for batch in sorted({figure.batch for _, figure in shares}):
        reached_shares = [(figure.roofline_share or 0.0, name) for name, figure in shares if figure.batch == batch]
        (most, best), (least, worst) = max(reached_shares), min(reached_shares)
        reached = f"{least:.0%} ({worst}) to {most:.0%} ({best})"
        yield f"At batch {batch} the networks reach {reached} of what the board can do at most."


def _graphs(runs: Sequence[Run]) -> Iterator[str]:
    without = sorted({doubt for run in runs if (doubt := DOUBTS["no graph"](run)) is not None})
    yield from (f"{doubt[0].upper()}{doubt[1:]}." for doubt in without)
