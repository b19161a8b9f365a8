"""Choose the recommended model of a panel, whose rows `panels` gathers.

The recommended model is the cheapest one whose loss against the reference may be chance, on all images and on those of
each class. The reference is the base restricted to the classes, or the fine-tuned base where models were cut from it
and it is more accurate. The loss is judged by pairs of answers to the same images, or by intervals where records lack
the answers (edgevit/data/pairs.py). Models are chosen on validation images, and on test images only if the base was
probably trained on the validation images; a file that was judged itself must also pass on the test images. Void runs,
models without an accuracy, and models that fail a gate or were not measured for it are excluded. The cost is the p50,
or the ratio to the base if the machine was busy or changed its speed, else the MACs. Of models of equal cost (equal
MACs, or ratios within their intervals) the most accurate is recommended.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edgevit.agent.records import Run
from edgevit.board.gates import Gate, Verdict
from edgevit.data.pairs import Loss, RightCount, loss_of, recalled_text
from edgevit.data.shares import wilson
from edgevit.records.answers import RightImages
from edgevit.records.derivation import JudgedPart
from edgevit.reporting.axes import AccuracyTask, LatencyPlace
from edgevit.reporting.record import EntryRecord, Kind

# Times that the p50s of one model may lie apart before milliseconds are of the minute they were taken in.
UNSTEADY = 1.1

BASELINES: dict[Kind, str] = {
    "full head": "base, full head",
    "restricted": "base, restricted to the classes",
    "fine-tuned": "base, fine-tuned on them",
}
READY_MADE: Kind = "ready-made"
IMPORTED = "the imported file"
_WHOLE = ("torch", IMPORTED)  # networks, as opposed to their exported files


@dataclass(frozen=True, kw_only=True)
class Entry(EntryRecord):
    """A row of the report, with its runs and verdicts."""

    runs: tuple[Run, ...] = field(default=(), repr=False)
    gates: tuple[Gate, ...] = field(default=(), repr=False)  # gates that the model has to pass
    # Results of these gates for the runs; empty: there are no gates, or no runs.
    verdicts: tuple[Verdict, ...] = field(default=(), repr=False)
    in_turns: bool = False  # whether its latency ratio comes from rounds in which the base was measured, too
    is_cut: bool = False  # whether models were cut from it; for a fine-tuned base only
    # Sentence on preprocessing with which the base is better than with the assumed one; None: no such.
    hint: str | None = None
    # Which images the network classifies correctly, by part; a file of it may differ.
    answers: Mapping[JudgedPart, RightImages | None] = field(default_factory=dict, repr=False)

    def on(self, part: JudgedPart) -> RightCount | None:
        """The accuracy on a part of the images; None if not judged there."""
        if part == "validation":
            right = self.validation
        else:
            right = None if self.top1 is None or not self.images else (round(self.top1 * self.images), self.images)
        of_network = part == "validation" or self.judged in _WHOLE
        return None if right is None else RightCount(*right, self.answers.get(part) if of_network else None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `top1`."""
        if self.top1 is None or not self.images:
            return None
        return wilson(round(self.top1 * self.images), self.images)

    @property
    def passes_gates(self) -> bool:
        """Whether every gate is measured and passes."""
        passed = {verdict.gate for verdict in self.verdicts if verdict.state == "pass"}
        return passed.issuperset(self.gates) and self.gates_passed == len(self.verdicts)

    @property
    def is_baseline(self) -> bool:
        return self.kind in BASELINES


@dataclass(frozen=True)
class Axis:
    """A kind of cost: an axis of the plot."""

    name: str  # name of the field of Entry that the axis shows
    title: str
    unit: str
    best: str  # what to call the model that costs least
    by_ratio: bool = False  # whether the interval of the latency's ratio tells which differences are noise


AXES = (
    Axis("p50_ms", "latency, p50", "ms", "fastest", by_ratio=True),
    Axis("ratio", "latency over the base's", "", "fastest", by_ratio=True),
    Axis("p99_ms", "latency, p99", "ms", "fastest"),
    Axis("energy_mj", "energy of an image", "mJ", "most frugal"),
    Axis("memory_mib", "memory", "MiB", "one that takes least memory"),
    Axis("macs", "MACs of an image", "", "one of fewest MACs"),
    Axis("params", "parameters", "", "one of fewest parameters"),
    Axis("file_bytes", "size of the file", "bytes", "smallest"),
)


@dataclass(frozen=True)
class Panel:
    """The comparable entries: those of one task at one place."""

    # Classes, images and base of the entries; None: the folders of these models were not found.
    task: AccuracyTask | None
    place: LatencyPlace | None  # conditions of the latencies; None: nothing was measured
    entries: tuple[Entry, ...]  # rows of the table, baselines first
    is_of_bases: bool = False  # whether all models are bases, and none was derived from them
    base: str = ""  # the base in words where models of several bases were judged on these images; empty: of one base
    other_base: str = ""  # a more accurate base of another panel with the same images, with its accuracy; empty: none

    @property
    def is_useful(self) -> bool:
        """Whether the panel allows a choice: it has an accuracy, or a measured model that is not a base."""
        return not self.is_of_bases and any(entry.top1 is not None or entry.runs for entry in self.models)

    @property
    def is_of_features(self) -> bool:
        """Whether its models put out features, which have no accuracy."""
        return any(entry.cosine is not None for entry in self.entries)

    @property
    def baselines(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.is_baseline]

    @property
    def models(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.is_baseline]

    @property
    def references(self) -> list[Entry]:
        """Candidates for the reference: restricted bases, and fine-tuned bases that models were cut from."""
        return [e for e in self.entries if e.top1 is not None and (e.kind == "restricted" or e.is_cut)]

    @cached_property
    def reference(self) -> Entry | None:
        """The best of `references`."""
        return max(self.references, key=self.merit, default=None)

    @property
    def goal(self) -> float | None:
        """The accuracy of `reference` on the test images."""
        return None if self.reference is None else self.reference.top1

    @property
    def axes(self) -> list[Axis]:
        """The axes with figures; the first is that by which models are chosen.

        That is the ratio if the machine was disturbed, because a disturbance slows all models of a round alike.
        """
        judged = [e for e in self.models if e.top1 is not None]
        axes = [axis for axis in AXES if any(cost_on_axis(e, axis) is not None for e in judged)]
        in_turns = all(e.in_turns for e in judged if e.p50_ms is not None and not e.void)  # void runs have no ratio
        if (any(e.busy for e in self.entries) or self.spread > UNSTEADY) and in_turns:
            axes.sort(key=lambda axis: axis.name != "ratio")
        return axes

    @property
    def spread(self) -> float:
        """The ratio of the slowest to the fastest p50 of a model's runs, for the median model."""
        ratios = [e.p50_most_ms / e.p50_least_ms for e in self.entries if e.p50_most_ms and e.p50_least_ms]
        return statistics.median(ratios) if ratios else 1.0

    @cached_property
    def recalled(self) -> str | None:
        """A note that the base was probably trained on the validation images; None if not."""
        base = next((entry for entry in self.baselines if entry.kind == "restricted"), None)
        return None if base is None else recalled_text(base.on("validation"), base.on("test"))

    @cached_property
    def part(self) -> JudgedPart:
        """The part of the images that models are chosen by."""
        models = [e for e in self.entries if e.kind in ("model", READY_MADE) and e.top1 is not None]
        judged = [e.validation for e in (*self.references, *models)]
        return "test" if not self.references or None in judged or self.recalled else "validation"

    def reaching(self) -> list[Entry]:
        """The eligible models whose loss against the base may be chance."""
        return [e for e in self.accurate() if is_eligible(e)]

    def accurate(self) -> list[Entry]:
        """The models whose loss against the base may be chance, eligible or not; all, without a base."""
        judged = [e for e in self.models if e.top1 is not None]
        return [e for e in judged if self._reaches(e)] if self.references else judged

    def _reaches(self, entry: Entry) -> bool:
        loss, on_test = self.loss(entry, self.part), self.loss(entry, "test")
        alone = entry.judged not in _WHOLE
        return loss is not None and loss.may_be_chance and not (alone and on_test and not on_test.may_be_chance)

    def loss(self, entry: Entry, part: JudgedPart) -> Loss | None:
        """The loss of a model against the base; None if either was not judged on this part."""
        base = None if self.reference is None else self.reference.on(part)
        model = entry.on(part)
        return None if model is None or base is None else loss_of(model, base)

    def merit(self, entry: Entry) -> float:
        """The accuracy that models are chosen by."""
        judged = entry.on(self.part)
        return judged.top1 if judged is not None else 0.0

    def cheapest(self) -> Entry | None:
        """The cheapest of the models that are as accurate as the base."""
        return next(iter(self._by_cost()), None)

    def recommended(self) -> Entry | None:
        """The most accurate of the models whose cost equals the least within the intervals."""
        by_cost = self._by_cost()
        level = [entry for entry in by_cost if are_level(entry, by_cost[0], self.axes[0])]
        return max(level, key=self.merit, default=None)  # among equals the first, which is cheaper

    def worse_in_a_class(self) -> Entry | None:
        """The most accurate of the models that would be recommended if they did not lose more than chance of a class.

        It costs less than the recommended model, if there is one.
        """
        axis, chosen = next(iter(self.axes), None), self.recommended()
        limit = math.inf if axis is None or chosen is None else cost_on_axis(chosen, axis)
        refused = [
            entry
            for entry in self.models
            if axis is not None and is_eligible(entry) and (loss := self.loss(entry, self.part)) and loss.worst_alone
            and (cost := cost_on_axis(entry, axis)) is not None and limit is not None and cost < limit
        ]  # fmt: skip
        return max(refused, key=self.merit, default=None)

    def derived(self) -> Entry | None:
        """The recommended one of the models that are not ready-made, or else the most accurate."""
        panel = replace(self, entries=tuple(entry for entry in self.entries if entry.kind != READY_MADE))
        judged = [entry for entry in panel.models if entry.top1 is not None]
        return panel.recommended() or max(judged, key=panel.merit, default=None)

    def outdoes(self, entry: Entry, other: Entry) -> bool:
        """Whether a model costs no more than another one, and what it loses against that may be chance."""
        accuracies = entry.on(self.part), other.on(self.part)
        costs = [cost_on_axis(e, axis) for axis in self.axes[:1] for e in (entry, other)]
        if None in accuracies or None in costs or not is_eligible(entry):
            return False
        return costs[0] <= costs[1] and loss_of(*accuracies).may_be_chance  # type: ignore[arg-type,operator]

    def _by_cost(self) -> list[Entry]:
        axis = next(iter(self.axes), None)
        priced = [
            (value, e) for e in self.reaching() if axis is not None and (value := cost_on_axis(e, axis)) is not None
        ]
        return [entry for _, entry in sorted(priced, key=lambda pair: pair[0])]


def cost_on_axis(entry: Entry, axis: Axis) -> float | None:
    """The cost of an entry on an axis; None for void runs."""
    value: float | None = getattr(entry, axis.name)
    measured = axis.name not in ("macs", "params", "file_bytes")
    return None if measured and entry.void else value


def are_level(first: Entry, second: Entry, axis: Axis) -> bool:
    """Whether two costs are equal within their intervals.

    For independent estimates, half of the difference's interval is the root of the sum of squares of the two halves
    that face each other.
    """
    if first is second or not axis.by_ratio:
        return cost_on_axis(first, axis) == cost_on_axis(second, axis)
    if first.ratio is None or second.ratio is None:
        return False
    low, high = sorted((first, second), key=lambda entry: entry.ratio or 0)
    if low.ratio_high is None or high.ratio_low is None or low.ratio is None or high.ratio is None:
        return False
    return high.ratio - low.ratio <= math.hypot(low.ratio_high - low.ratio, high.ratio - high.ratio_low)


def is_eligible(entry: Entry) -> bool:
    """Whether a model may be recommended: judged, not void, and within all gates."""
    return entry.top1 is not None and not entry.void and entry.passes_gates
