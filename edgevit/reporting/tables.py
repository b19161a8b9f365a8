"""The tables of a report, one for each panel: as the page shows them, and as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from edgevit.board.comparison import three_digits
from edgevit.board.gates import Verdict
from edgevit.data.shares import share_text
from edgevit.jobs.fleet.costs import FleetCost
from edgevit.reporting.axes import apart, apart_tasks
from edgevit.reporting.choice import READY_MADE, UNSTEADY, Axis, Entry, Panel, cost_on_axis, is_eligible
from edgevit.reporting.details import drawable
from edgevit.reporting.gather import Skipped
from edgevit.reporting.record import REPORT_KIND, EntryRecord, PanelRecord, ReportRecord
from edgevit.text import format_count, printable
from edgevit.version import written_by

_FIGURE_NAMES = {"p50": "of p50s", "mean": "of means", "processor": "of processor time"}
MANY = 5  # models of which one is chosen by the images on which its accuracy is reported
_PIPE = str.maketrans({"|": "\\|", "\n": " "})
_TAG = re.compile("<(?=[a-zA-Z/!?])")  # as which Markdown takes a name like <b>, and shows nothing
_FORMULAS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # with these a spreadsheet begins one, full-width characters too


@dataclass(frozen=True)
class Column:
    """A column of the table. `value` is the sort key; None for an empty cell."""

    title: str
    value: Callable[[Entry], float | str | None]
    text: Callable[[Entry], str]
    more: Callable[[Entry], str] = lambda _: ""  # text in small type after the cell's
    only_if_it_varies: bool = False


def _digits(name: str) -> Callable[[Entry], str]:
    return lambda entry: three_digits(getattr(entry, name))


def _count(name: str) -> Callable[[Entry], str]:
    return lambda entry: "-" if getattr(entry, name) is None else format_count(getattr(entry, name))


def _top1(entry: Entry) -> tuple[str, str]:
    """Format an accuracy with its interval; say so if a baseline was not requested."""
    if entry.top1 is None or entry.images is None:
        return ("not asked for" if entry.is_baseline else "-"), ""
    share, _, interval = share_text(entry.top1, entry.images).partition(" (")
    return share, f"({interval}"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None or low == high else f"({three_digits(low)} to {three_digits(high)})"


def _gates(entry: Entry) -> str:
    if not entry.verdicts:
        return "-"
    return f"{entry.gates_passed} of {len(entry.verdicts)} pass"


def _latency_more(entry: Entry) -> str:
    return "void" if entry.void else _between(entry.p50_least_ms, entry.p50_most_ms)


def _field(name: str) -> Callable[[Entry], Any]:
    return lambda entry: getattr(entry, name)


COLUMNS = (
    Column("model", lambda e: e.title, lambda e: e.title),
    Column("top-1", _field("top1"), lambda e: _top1(e)[0], lambda e: _top1(e)[1]),
    Column("cosine", _field("cosine"), lambda e: "-" if e.cosine is None else f"{e.cosine:.4f}"),
    Column("neighbours", _field("neighbours"), lambda e: "-" if e.neighbours is None else f"{e.neighbours:.1%}"),
    Column("k-NN", _field("knn"), lambda e: "-" if e.knn is None else f"{e.knn:.2%}"),
    Column("linear probe", _field("linear"), lambda e: "-" if e.linear is None else f"{e.linear:.2%}"),
    Column("like the base's", _field("agreement"), lambda e: "-" if e.agreement is None else f"{e.agreement:.1%}"),
    Column("by masks", _field("score"), _digits("score")),
    Column("mean error", _field("error"), _digits("error")),
    Column(
        "AP of boxes",
        _field("precision_of_boxes"),
        lambda e: "-" if e.precision_of_boxes is None else f"{e.precision_of_boxes:.1%}",
    ),
    Column("p50 ms", _field("p50_ms"), _digits("p50_ms"), _latency_more),
    Column("of the base's", _field("ratio"), _digits("ratio"), lambda e: _between(e.ratio_low, e.ratio_high)),
    Column("p99 ms", _field("p99_ms"), _digits("p99_ms")),
    Column("images/s", _field("images_per_s"), _digits("images_per_s")),
    Column("mJ/image", _field("energy_mj"), _digits("energy_mj")),
    Column("W", _field("power_w"), _digits("power_w")),
    Column("memory MiB", _field("memory_mib"), _digits("memory_mib")),
    Column("MACs", _field("macs"), _count("macs")),
    Column("parameters", _field("params"), _count("params")),
    Column("embedding", _field("embed"), lambda e: "-" if e.embed is None else str(e.embed), only_if_it_varies=True),
    Column(
        "file MB",
        _field("file_bytes"),
        lambda e: three_digits(None if e.file_bytes is None else e.file_bytes / 1e6),
    ),
    Column("method", _field("method"), lambda e: e.method or "-"),
    Column("seed", _field("seed"), lambda e: "-" if e.seed is None else str(e.seed)),
    Column("gates", lambda e: e.gates_failed if e.verdicts else None, _gates),
)


def columns(panel: Panel) -> list[Column]:
    """The columns with figures; some columns only if their figures differ."""
    values_of = [(column, {column.value(entry) for entry in panel.entries} - {None}) for column in COLUMNS]
    return [column for column, values in values_of if len(values) > column.only_if_it_varies]


def heading(panel: Panel) -> str:
    """The answer in a few words."""
    if panel.task is None:
        return "Measured, but not found"
    if (chosen := panel.recommended()) is not None:
        return f"Take {chosen.title}" if panel.goal is not None else f"{chosen.title} is the {panel.axes[0].best}"
    if any(entry.top1 is not None for entry in panel.models):
        return none_reaching(panel)
    if panel.is_of_features:
        return "Smaller backbones, and how like their base's the features are"
    if any(entry.agreement is not None for entry in panel.models):
        return "Smaller networks, and how like their base's the maps are"
    if any(entry.precision_of_boxes is not None for entry in panel.models):
        return "Smaller detectors, and the average precision of their boxes"
    return "How accurate these models are is not known"


def none_reaching(panel: Panel) -> str:
    """Explain why no model is recommended."""
    if not (accurate := panel.accurate()):
        return f"No model is as accurate as the base{on_validation(panel)}"
    if panel.reaching():
        return none_on_axis(panel, panel.axes[0])
    if all(entry.void for entry in accurate):
        return f"Every model{_as_accurate(panel)} was measured in void runs"
    return f"No model{_as_accurate(panel)} passes the gates"


def on_validation(panel: Panel) -> str:
    """Name the images that decide, if they are not those of the table."""
    return " on the validation images" if panel.part == "validation" else ""


def none_on_axis(panel: Panel, axis: Axis) -> str:
    """Say that no eligible model has a figure on an axis."""
    return f"No model{_as_accurate(panel)} has a figure for {axis.title}"


def _as_accurate(panel: Panel) -> str:
    return "" if panel.goal is None else " that is as accurate as the base"


def answer(panel: Panel) -> str:
    """The answer in a few sentences."""
    derived, sentences = panel.derived(), [_recommendation(panel)]
    for entry in panel.models if derived is not None else ():
        if entry.kind == READY_MADE and derived is not None and panel.outdoes(entry, derived):
            sentences.append(_outdone(panel, entry, derived))
    if (refused := panel.worse_in_a_class()) is not None:
        loss = panel.loss(refused, panel.part)
        assert loss is not None and loss.worst_alone is not None
        sentences.append(
            f"{refused.title} costs less and is as accurate on all {panel.part} images, but {loss.worst_alone.text()}."
        )
    return " ".join(sentences)


def _outdone(panel: Panel, ready_made: Entry, derived: Entry) -> str:
    """Say by which figures a derived model is still better than a ready-made one that is as accurate and cheaper."""
    axis, *others = panel.axes
    costs = " against ".join(three_digits(cost_on_axis(entry, axis)) for entry in (ready_made, derived))
    pairs = [(axis.title, cost_on_axis(derived, axis), cost_on_axis(ready_made, axis)) for axis in others]
    fewer = [title for title, of_derived, cost in pairs if of_derived is not None and cost and of_derived < cost]
    return (
        f"{ready_made.title} is ready-made, at least as accurate as {derived.title} ({_judged(panel, ready_made)} "
        f"against {_judged(panel, derived)}) and costs no more ({axis.title} {f'{costs} {axis.unit}'.strip()}): "
        f"deriving pays {f'only for {_some(fewer)}' if fewer else 'in none of these figures'}."
    )


def _recommendation(panel: Panel) -> str:
    if panel.task is None:
        return (
            "The folders of these models were not given, are gone, cannot be read, or hold other files by now, so "
            "their accuracy is not known."
        )
    chosen, goal = panel.recommended(), panel.goal
    base = reference_text(panel)
    if chosen is None:
        best = max((e for e in panel.models if e.top1 is not None), key=panel.merit, default=None)
        if best is None and panel.is_of_features:
            return (
                "Features have no accuracy: `edgevit evaluate MODEL --data IMAGES --probe knn,linear` tells what they "
                "are worth on labelled images."
            )
        if best is None and any(entry.agreement is not None for entry in panel.models):
            return "Maps are judged against their base's, on the test images of the derivation."
        if best is None and any(entry.precision_of_boxes is not None for entry in panel.models):
            return "Average precision is of the test images of the derivation, where that of the base is recorded, too."
        if best is None:
            return "Derive models with --data and --classes, so that they are judged on test images."
        of_base = None if panel.reference is None else panel.reference.on(panel.part)
        against = "there is no base to set it against" if of_base is None else f"{base} has {100 * of_base.top1:.2f} %"
        return f"The most accurate is {best.title} with {_judged(panel, best)}; {against}. {_advice(panel)}"
    if goal is None:
        return f"top-1 {_accuracy_text(chosen)}. There is no base to set it against."
    loss = panel.loss(chosen, panel.part)
    compared = "" if loss is None else f": {loss.text(panel.part)}"
    has = f"{base} has {100 * goal:.2f} %.{_level(panel)}"
    return (
        f"{_rank_text(panel)} whose accuracy is not below that of the base by more than chance{compared}. "
        f"{f'On the test images {has}' if panel.part == 'validation' else has[0].upper() + has[1:]}"
    )


def _rank_text(panel: Panel) -> str:
    """Describe the rank of the recommended model among those of known cost."""
    axis, models = panel.axes[0], len(panel.models)
    priced = sum(cost_on_axis(entry, axis) is not None for entry in panel.models)
    if models == 1:
        return "The only model,"
    if priced == 1:
        return f"Of {models} models the only one with a figure for {axis.title},"
    with_figure = "" if priced == models else f", of which {priced} have a figure for {axis.title},"
    return f"Of {models} models{with_figure} the {axis.best}"


def _advice(panel: Panel) -> str:
    """Advise what to do if no model is recommended."""
    if not (accurate := panel.accurate()):
        return "Fewer MACs may be removed, or more images and --steps given."
    if panel.reaching():
        return f"Measure {_some([e.title for e in accurate if is_eligible(e)])}, too, in turns with the base."
    return f"What speaks against {_some([e.title for e in accurate])} is stated below the table."


def reference_text(panel: Panel) -> str:
    """Name the reference."""
    restriction = "trained on" if panel.reference is not None and panel.reference.is_cut else "restricted to"
    return f"the base {restriction} the classes"


def _level(panel: Panel) -> str:
    """Explain why the recommended model is not the cheapest."""
    chosen, cheapest = panel.recommended(), panel.cheapest()
    if chosen is None or cheapest is None or chosen is cheapest:
        return ""
    axis = panel.axes[0]
    least, cost = (cost_on_axis(entry, axis) for entry in (cheapest, chosen))
    on = on_validation(panel)
    if least == cost:
        return f" {cheapest.title} costs the same, and is less accurate{on}."
    amounts = f"{three_digits(least)} against {three_digits(cost)} {axis.unit}".strip()
    return f" {cheapest.title} is less accurate{on}, and what it costs less ({amounts}) is within what runs differ by."


@dataclass(frozen=True)
class KeyFigure:
    """A number in large type."""

    name: str
    value: str
    more: str


def figures(panel: Panel) -> list[KeyFigure]:
    """Accuracy and costs of the recommended model."""
    if (chosen := panel.recommended()) is None:
        return []
    share, interval = _top1(chosen)
    shown = [KeyFigure("top-1", share, interval)]
    if chosen.ratio is not None:
        shown.append(
            KeyFigure(
                "of the base's latency", three_digits(chosen.ratio), _between(chosen.ratio_low, chosen.ratio_high)
            )
        )
    if chosen.p50_ms is not None:
        shown.append(
            KeyFigure("p50", f"{three_digits(chosen.p50_ms)} ms", _between(chosen.p50_least_ms, chosen.p50_most_ms))
        )
    if chosen.energy_mj is not None:
        shown.append(KeyFigure("energy of an image", f"{three_digits(chosen.energy_mj)} mJ", ""))
    if chosen.rate is not None and chosen.macs is not None:
        shown.append(KeyFigure("of the base's MACs", f"{100 * (1 - chosen.rate):.3g} %", format_count(chosen.macs)))
    if chosen.file_bytes is not None:
        params = "" if chosen.params is None else f"{format_count(chosen.params)} parameters"
        shown.append(KeyFigure("size", f"{three_digits(chosen.file_bytes / 1e6)} MB", params))
    return shown


def _accuracy_text(entry: Entry) -> str:
    return " ".join(_top1(entry))


def _judged(panel: Panel, entry: Entry) -> str:
    """The accuracy of an entry on the images that decide."""
    judged = entry.on(panel.part)
    return "-" if judged is None else f"{share_text(judged.top1, judged.images)}{on_validation(panel)}"


def notes(panel: Panel) -> list[str]:
    """Caveats of a panel."""
    lines = []
    for hint in dict.fromkeys(entry.hint for entry in panel.models if entry.hint is not None):
        models = [entry.title for entry in panel.models if entry.hint == hint]
        lines.append(f"The base of {_some(models)} was perhaps not read as it was trained: {hint}.")
    data = panel.task.data if panel.task is not None else None
    if data is not None and (count := data.copies.get("test")):
        count_text = "1 is a training image" if count == 1 else f"{count} are training images"
        lines.append(
            f"Of the {data.images.test} test images {count_text}, too, byte for byte: accuracy on such images does not "
            "tell how new images do."
        )
    if busy := [entry.title for entry in panel.entries if entry.busy]:
        lines.append(
            f"Other programs were busy when {_some(busy)} {'was' if len(busy) == 1 else 'were'} measured: "
            f"milliseconds are a busy machine's{_valid_ratios(panel)}."
        )
    elif panel.spread > UNSTEADY:
        lines.append(
            f"The machine's speed changed meanwhile: the p50s of one model lie {panel.spread:.2g} times apart (of the "
            f"median model){_valid_ratios(panel)}."
        )
    if panel.other_base:
        lines.append(f"Another base is right on more of these images ({panel.other_base}); its models are apart.")
    lines += [f"{entry.title} is void, and on no axis of what was measured: {reason}" for entry in panel.entries
             for reason in entry.void]  # fmt: skip
    lines += [
        f"{entry.title} fails {verdict.gate}{_failing_value(verdict)}"
        for entry in panel.models for verdict in entry.verdicts
        if verdict.state == "fail"
    ]  # fmt: skip
    lines += [
        f"{entry.title} is not known to keep to {verdict.gate}, which was not measured"
        for entry in panel.models for verdict in entry.verdicts if verdict.state == "not measured"
    ]  # fmt: skip
    if panel.place is not None and (unmeasured := [e.title for e in panel.models if not e.runs and panel.task]):
        lines.append(f"Not measured here: {_some(unmeasured)}.")
    if panel.place is None and panel.task is not None:
        lines.append("Nothing was measured: `edgevit bench BASE MODEL ... --output runs.jsonl` measures them in turns.")
    if panel.recalled:
        lines.append(f"{panel.recalled[0].upper()}{panel.recalled[1:]}: the test images decide.")
    if panel.part == "test" and len([e for e in panel.models if e.top1 is not None]) > MANY:
        lines.append(
            "One is chosen here by the test images on which it is reported: the more models, the more of its accuracy "
            "may be luck."
        )
    return lines


def _failing_value(verdict: Verdict) -> str:
    """The value that failed a gate: that of the worst run, while the table has the median."""
    if verdict.value is None:
        return ""
    worst = f" in the worst of {verdict.repeats} runs" if verdict.repeats > 1 else ""
    return f": {verdict.value:.5g} {verdict.gate.unit}{worst}"


def _valid_ratios(panel: Panel) -> str:
    """Say which ratios are valid on a busy machine, and of which figures."""
    held = [entry for entry in panel.models if entry.in_turns]
    if panel.task is None:  # whose bases are not known either
        return ""
    if not held:
        return "; no ratio to the base is of rounds: measure models and base in turns, by one `edgevit bench`"
    figures = " and ".join(sorted({_FIGURE_NAMES[entry.ratio_of or "p50"] for entry in held}))
    others = [entry.title for entry in panel.models if entry.runs and not entry.in_turns and not entry.void]
    but = f", but for {_some(others)}, measured apart" if others else ""
    return f"; ratios to the base are of rounds ({figures}), and hold{but}"


def _some(names: Sequence[str], most: int = 4) -> str:
    """List the first few names and the number of others."""
    once = list(dict.fromkeys(names))
    shown = ("; " if any("," in name for name in once[:most]) else ", ").join(once[:most])
    return shown + (f" and {len(once) - most} more" if len(once) > most else "")


def split_reasons(panels: Sequence[Panel]) -> list[str]:
    """Explain why there are several panels."""
    tasks = list({panel.task.images_key: panel.task for panel in panels if panel.task is not None}.values())
    bases = list(dict.fromkeys(panel.base for panel in panels if panel.base))
    compared = {id(panel.place): panel.place for panel in panels if panel.place is not None}
    lines = []
    if len(tasks) > 1 and (differences := apart_tasks(tasks)):
        lines.append(
            f"{len(tasks)} tasks are kept apart, as accuracies do not compare: they differ in {'; '.join(differences)}."
        )
    if bases:
        lines.append(f"{len(bases)} bases are kept apart, as models are judged against their own: {'; '.join(bases)}.")
    if len(compared) > 1 and (differences := apart(list(compared.values()))):
        lines.append(
            f"{len(compared)} places of measurement are kept apart, as latencies do not compare: they differ in "
            f"{'; '.join(differences)}."
        )
    return lines


def eyebrow(panel: Panel) -> list[str]:
    """The task and place of a panel."""
    task = [] if panel.task is None else [panel.task.title, panel.task.images]
    base = [f"base: {panel.base}"] if panel.base else []
    return [*task, *base, *([] if panel.place is None else [panel.place.title])]


def as_markdown(panels: Sequence[Panel], skipped: Sequence[Skipped], costs: Sequence[FleetCost] = ()) -> str:
    """Every panel as a heading, its answer and its table; then what the fleets took."""
    parts = []
    for panel in panels:
        shown, chosen = columns(panel), panel.recommended()
        rows = [
            [f"{column.text(entry)} {column.more(entry)}".strip().translate(_PIPE) for column in shown]
            for entry in panel.entries
        ]
        for row, entry in zip(rows, panel.entries, strict=True):
            row[0] = f"**{row[0]}**" if entry is chosen else row[0]
        table = _markdown_table([column.title for column in shown], rows)
        key_figures = [f"{figure.name} {figure.value} {figure.more}".strip() for figure in figures(panel)]
        parts += [f"## {heading(panel)}", " · ".join(eyebrow(panel)), "; ".join(key_figures), answer(panel), table]
        parts += ["\n".join(f"- {note}" for note in notes(panel))]
    parts += split_reasons(panels)
    for cost in costs:
        parts.append(f"## What the fleet in {cost.out} took")
        parts += [_markdown_table(head, rows) for head, rows in cost.tables()]
        parts.append(cost.text())
    if skipped:
        parts += ["Left out:", "\n".join(f"- {item.source}: {item.reason}" for item in skipped)]
    whole = "\n\n".join(part for part in parts if part)
    return _TAG.sub("&lt;", printable(whole, keep="\n")) + "\n"


def _markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_csv(panels: Sequence[Panel]) -> str:
    """All entries in one table, with the task and the place that each is of."""
    text = io.StringIO()
    names = [field.name for field in fields(EntryRecord)]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["task", "images", "place", "take", "base", *names])
    for panel in panels:
        task, chosen = panel.task, panel.recommended()
        place = [task.title if task else "", task.images if task else "", panel.place.title if panel.place else ""]
        for entry in panel.entries:
            values = entry_data(entry)
            cells = [*place, "yes" if entry is chosen else "", panel.base, *[values[name] for name in names]]
            writer.writerow(map(_cell, cells))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Format a cell; escape text that a spreadsheet would run as a formula, such as `=cmd|...`."""
    words = "; ".join(map(str, value)) if isinstance(value, tuple) else value
    if not isinstance(words, str):
        return words
    shown = printable(words, keep="\n\t")
    return f"'{shown}" if words.lstrip().startswith(_FORMULAS) else shown


def as_json(panels: Sequence[Panel], skipped: Sequence[Skipped], costs: Sequence[FleetCost] = ()) -> str:
    return json.dumps(content(panels, skipped, costs), indent=1) + "\n"


def content(panels: Sequence[Panel], skipped: Sequence[Skipped], costs: Sequence[FleetCost] = ()) -> dict[str, Any]:
    """All tables as plain values."""
    whole = ReportRecord(
        edgevit=written_by(),
        panels=tuple(map(_panel_record, panels)),
        split_reasons=tuple(split_reasons(panels)),
        skipped=tuple(skipped),
        costs=tuple(costs),
    )
    return dict(drawable(REPORT_KIND.content(whole)))


def _panel_record(panel: Panel) -> PanelRecord:
    task, place, chosen = panel.task, panel.place, panel.recommended()
    return PanelRecord(
        classes=task.classes if task else None,
        images=task.images if task else None,
        base=panel.base or None,
        place=place.title if place else None,
        environment=place.environment if place else None,
        batch=place.batch if place else None,
        streams=place.streams if place else None,
        use=place.use if place else None,
        take=chosen.title if chosen else None,
        answer=answer(panel),
        notes=tuple(notes(panel)),
        models=tuple(EntryRecord(**entry_data(entry)) for entry in panel.entries),
    )


def entry_data(entry: Entry) -> dict[str, Any]:
    """An entry without its raw runs."""
    return {field.name: getattr(entry, field.name) for field in fields(EntryRecord)}
