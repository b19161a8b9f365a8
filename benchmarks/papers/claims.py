"""What the papers claim, judged at this scale: a section of README.md from the records at published length.

Each claim is set against the baseline of its paper, and against ours, which is harder to beat: the base restricted to
the classes of the sub-task.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import BASELINES, Row, grouped, of_newest_base, picked, points, table
from benchmarks.papers import published

OURS = "base_restricted"
RECORDS = ("fashion", "fine", "demo", "rendered")  # photographs first
NOTHING = "no row"

Place = tuple[int, int]  # number of classes of the sub-task, and seed


@dataclass(frozen=True)
class Claim:
    """A paper's claim that `ours` is above this share of `theirs`, a way of published.py or a baseline."""

    text: str
    ours: tuple[str, ...]  # the ways that may be meant
    theirs: str
    share: float = 1.0

    @property
    def of_base(self) -> bool:
        return self.theirs in BASELINES

    def against(self, baseline: str) -> str:
        name = BASELINES.get(baseline, baseline)
        whose = (" (the paper's)" if baseline == self.theirs else " (ours)") if self.of_base else ""
        return ("" if self.share == 1 else f"{100 * self.share:g} % of ") + name + whose


VULCANS = ("vulcan, as published", "vulcan + teacher")
CLAIMS = (
    Claim(
        "NuWa, nothing trained, is above the base (96.1 for 81.1 at 0.4, 91.4 at 0.6)",
        ("nuwa, as published",), "base_full_head"
    ),
    Claim(
        "NuWa, nothing trained, has 99 % of what X-Pruner has, which trains (at 0.4)",
        ("nuwa, as published",), "xpruner", share=0.99,
    ),
    Claim(
        "NuWa gains by light fine-tuning (0.6 points at 0.4, 4.5 at 0.6)",
        ("nuwa, fine-tuned",), "nuwa, as published"
    ),
    Claim(
        "Vulcan is above the base (by 13 points at 0.2, 11 at 0.6; of few classes at 0.9, too)",
        ("vulcan, as published",), "base_full_head"
    ),
    Claim(
        "Vulcan keeps 93.3 % of what the fine-tuned base has (at 0.8)",
        ("vulcan, as published",), "base_finetuned", share=0.933,
    ),
    *(
        Claim(f"Vulcan is above {name} (at 0.2 to 0.8)", VULCANS, way)
        for name, way in (
            ("Random", "random"), ("NViT", "nvit"), ("X-Pruner", "xpruner"), ("DC-ViT", "dcvit"), ("MDP", "mdp"),
        )
    ),
    Claim(
        "SKD: a slice that is not fine-tuned has 99.5 % of what the base has (81.4 of 81.8 at 0.2)",
        ("super-network",), "base_full_head", share=0.995,
    ),
    Claim("SKD: such a slice is above DC-ViT (at 0.2)", ("super-network",), "dcvit"),
    Claim(
        "SKD: training makes slices better than the transformed base has",
        ("super-network",), "WPAC only"
    ),
    Claim(
        "SKD: slices need no fine-tuning", ("super-network",), "super-network, fine-tuned"
    ),
    Claim("HEART, fine-tuned, is above the base (20/20 to 50/50 of tokens and heads)", ("heart",), "base_full_head"),
)  # fmt: skip

TEXT = (
    "From the rows at published length. The papers compare with the base with its full head, which may answer with a "
    "class outside the sub-task, or with the base after fine-tuning; our baseline is the base restricted to the "
    "classes of the sub-task. Cells are points above the baseline: mean, range, and in how many of n pairs of sub-task "
    "and seed the claim holds; `{nothing}` where nothing was run. Numbers in the claims are the papers', on their own "
    "data. Vulcan's rivals learn from a teacher here, so Vulcan has a row with a teacher, too. NuWa, fine-tuned, also "
    "has a teacher, and this project's choices of neurons and widths. The base is fine-tuned for as long as models of "
    "the highest rate are trained. A claim that does not hold here is not refuted: these bases are small and know the "
    "classes well, so a smaller model has little to gain; and their user has fewer images than they learnt from, so "
    "training on those costs the unpruned base accuracy, too."
)

# -- at published length -----------------------------------------------------------------------------------------------


def gains(rows: Sequence[Row], claim: Claim, way: str, baseline: str) -> dict[float, dict[Place, float]]:
    """Compute how far a way is above the claim's share of a baseline or another way, by rate, sub-task and seed."""
    by_rate: dict[float, dict[Place, float]] = {}
    bases = _baseline(rows, baseline) if baseline in BASELINES else None
    for (rate,), group in sorted(grouped(rows, "rate").items()):
        theirs = {_place(row): row["accuracy"]["derived"] for row in picked(group, variant=baseline)}
        ours = {_place(row): row["accuracy"]["derived"] for row in picked(group, variant=way)}
        baselines = theirs if bases is None else bases
        if gained := {
            place: top1 - claim.share * baselines[place] for place, top1 in ours.items() if place in baselines
        }:
            by_rate[rate] = gained
    return by_rate


def _baseline(rows: Iterable[Row], name: str) -> dict[Place, float]:
    """Read a baseline by sub-task and seed, from rows whose base is no super-network."""
    rows_of_base = [row for row in rows if row["supernet_steps"] is None]
    return {_place(row): top1 for row in rows_of_base if (top1 := row["accuracy"][name]) is not None}


def _place(row: Row) -> Place:
    return row["task"], row["seed"]


def _cell(gained: Mapping[Place, float], seeing: bool) -> str:
    if not gained:
        return NOTHING
    values = list(gained.values())
    suffix = "" if seeing else ", which sees no patch"
    return f"{points(values)}; {sum(gain > 0 for gain in values)} of {len(values)}{suffix}"


def _sees(rows: Iterable[Row], variant: str, rate: float) -> bool:
    """Return whether models of another method have any attention left; without it all images get one answer."""
    models = picked(rows, variant=variant, rate=rate)
    return not models or any(block["heads"] for row in models for block in row["blocks"])


def _rates(rows: Iterable[Row]) -> list[float]:
    return sorted({*published.RATES, *(row["rate"] for row in rows)})


def _lines(of_bases: Mapping[str, Sequence[Row]], claim: Claim, rates: Sequence[float]) -> Iterator[list[str]]:
    """Format one line for each base, way and baseline with rows, or one line for all bases where there are none."""
    text = claim.text
    for base, rows in of_bases.items():
        title = published.TITLES.get(base, f"`{base}`")
        for way in claim.ours:
            for baseline in dict.fromkeys((claim.theirs, *([OURS] if claim.of_base else []))):
                if by_rate := gains(rows, claim, way, baseline):
                    sizes = sorted({task for gained in by_rate.values() for task, _ in gained})
                    place = f"{title}, {', '.join(map(str, sizes))} classes"
                    cells = [_cell(by_rate.get(rate, {}), _sees(rows, baseline, rate)) for rate in rates]
                    yield [text, place, way, claim.against(baseline), *cells]
                    text = ""
    if text:
        yield [text, "all", "", "", *[NOTHING] * len(rates)]


def verdicts(of_bases: Mapping[str, Sequence[Row]]) -> str:
    """Count the cases in which claims about a base hold, against the baseline of their paper and against ours."""
    held = {True: 0, False: 0}
    cases = 0
    for claim in (claim for claim in CLAIMS if claim.of_base):
        for rows, way in ((rows, way) for rows in of_bases.values() for way in claim.ours):
            theirs, ours = (gains(rows, claim, way, baseline) for baseline in (claim.theirs, OURS))
            cases += len(theirs)
            for rate in theirs:
                held[True] += statistics.mean(theirs[rate].values()) > 0
                held[False] += statistics.mean(ours[rate].values()) > 0
    return (
        f"There are {cases} cases of a base and a rate with rows. The mean is above the baseline of the paper in "
        f"{held[True]} of them, and above the restricted base in {held[False]}."
    )


# -- all of it ---------------------------------------------------------------------------------------------------------


def section(records: Iterable[dict[str, Any] | None]) -> str:
    """Format the section of README.md from the records at published length; empty without any."""
    rows = [row for data in records if data is not None for row in of_newest_base(data["rows"].values())]
    full = picked(rows, table=published.FULL)
    names = [name for name in (*RECORDS, *dict.fromkeys(row["data"] for row in full)) if picked(full, data=name)]
    of_bases = {name: picked(full, data=name) for name in names}
    if not of_bases:
        return ""
    rates = _rates(full)
    lines: list[list[str]] = []
    for claim in CLAIMS:
        lines += _lines(of_bases, claim, rates)
    paragraphs = [TEXT.format(nothing=NOTHING), verdicts(of_bases)]
    head = ["claim", "images", "method", "against", *(f"{rate:g}" for rate in rates)]
    parts = [
        "## What the papers claim, at this scale\n",
        *("\n".join(textwrap.wrap(paragraph, 118)) + "\n" for paragraph in paragraphs),
        table(head, lines),
    ]
    return "\n".join(parts)
