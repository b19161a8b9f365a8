"""Tables and lines about a model: its blocks, its accuracy next to the baselines, and its budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rich.table import Table

    from edgevit.network.model import Model
    from edgevit.records.derivation import (
        Accuracies,
        AccuracyRecord,
        DerivationRecord,
        FigureRecord,
        MetRecord,
        RejectedRecord,
    )
    from edgevit.records.model import ModelSpec, Rejection

_WORST = 5  # classes that are named
# The figure that decided a budget while other programs were busy.
_BUSY_FIGURES = {"processor": "by processor time, not by the clock", "mean": "by the mean, not by the median"}


def blocks_table(model: Model, record: DerivationRecord | None) -> Table:
    """Dimensions and MACs of each block, next to those of the same block in the base."""
    from rich.table import Table

    from edgevit.records.model import axis_name
    from edgevit.text import format_count

    spec = model.spec
    geometry = model.geometry
    of_base = geometry.of_base(spec.base.embed)
    title = "heads, their widths for queries and keys (QK) and for values (VO), and FFN neurons: now/in the base"
    blocks, base_blocks = geometry.placed(spec.blocks), of_base.placed(spec.base.blocks)
    leave = ["tokens"] * any(block.tokens < block.stage.tokens for block in blocks)  # tokens that reach it
    columns = ("block", *leave, *map(axis_name, spec.blocks[0].sizes), "MACs", "of the base's")
    table = Table(*columns, title=("tokens that reach a block, " if leave else "") + title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"

    def pair(now: int, before: int) -> str:
        return f"{now}/{before}"

    kept_blocks = record.facts.kept_blocks if record else None  # methods that drop none do not say
    for i, now in zip(kept_blocks or range(len(blocks)), blocks, strict=True):
        before = base_blocks[i]
        macs, macs_before = now.cost("macs"), before.cost("macs")
        sizes = [pair(now.tokens, before.tokens)] if leave else []
        sizes += [pair(size, before.dims[axis]) for axis, size in now.dims.sizes.items()]
        table.add_row(str(i), *sizes, format_count(macs), f"{100 * macs / macs_before:.1f} %")
    table.add_section()
    empty = [""] * (len(leave) + len(blocks[0].dims.sizes) - 1)
    total = (
        f"{format_count(spec.params)} parameters",
        *empty,
        format_count(spec.macs),
        f"{100 * (1 - spec.rate):.1f} %",
    )
    table.add_row("all", *total)
    return table


def sizes_lines(spec: ModelSpec) -> Iterator[str]:
    """The sizes of each block, and the cost of the whole, without the network."""
    from edgevit.text import format_count

    for i, block in enumerate(spec.blocks):
        yield f"block {i}: {', '.join(block.size_text(kind) for kind in block.sites)}"
    yield (
        f"{format_count(spec.params)} parameters, {format_count(spec.macs)} MACs, {100 * (1 - spec.rate):.1f} % of the "
        "base's"
    )


def outcome(spec: ModelSpec, record: DerivationRecord) -> Iterator[Table | str]:
    """The accuracy of a derived model, and how its budget was met, as far as they were measured."""
    from edgevit.data.shares import constant_text

    if measured := record.accuracy.derived:
        yield _accuracy_table(spec, record.accuracy)
        yield classes_line(record.accuracy)
        if measured.images_per_class and (constant := constant_text(measured.images_per_class, measured.top1)):
            yield constant
        yield from comparison_lines(record)
        if spec.rejection is not None and measured.rejection is not None:
            yield _rejection_table(spec.rejection, measured.rejection)
    if record.similarity is not None:
        yield f"features: {record.similarity.format()}"
    if record.map is not None:
        yield f"{spec.output_text}: {record.map.format()}"
    if record.boxes is not None:
        yield f"boxes: {record.boxes.format()}"
    yield from (text for text in (spec.rest_text, spec.narrowed_rest_text) if text is not None)
    yield from met_lines(record)


def _accuracy_table(spec: ModelSpec, accuracy: Accuracies) -> Table:
    """Accuracy and cost of the three baselines and the derived model."""
    from rich.table import Table

    from edgevit.data.shares import share_text
    from edgevit.text import format_count

    assert accuracy.derived is not None
    images = accuracy.derived.images
    table = Table("", f"top-1 on {images} test images (95 % interval)", "MACs", "parameters")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, record, macs, params in (
        ("base, full head", accuracy.base_full_head, spec.base.macs, spec.base.params),
        ("base, restricted to the classes", accuracy.base_restricted, spec.base.macs, spec.base.params),
        ("base, fine-tuned on them", accuracy.base_finetuned, spec.base.macs, spec.base.params),
        ("derived", accuracy.derived, spec.macs, spec.params),
    ):
        shown = share_text(record.top1, record.images) if record else "not asked for"
        table.add_row(name, shown, format_count(macs), format_count(params))
    return table


def _rejection_table(rule: Rejection, rejected: Mapping[str, RejectedRecord]) -> Table:
    """The images called `other`, on the calibration part and on the test part."""
    from rich.table import Table

    share = f"{rule.share:.1%} or less of the target classes' images"
    title = f"called other: {rule.score} below {rule.threshold:.4g}, for {share}"
    table = Table("part", "target classes", "called other", "other classes", "called other", title=title)
    table.title_justify = "left"
    for column in table.columns[1:]:
        column.justify = "right"
    for part, record in rejected.items():
        counts = [(record.images, record.other), (record.foreign_images, record.foreign_other)]
        cells = [text for n, others in counts for text in (f"{n} images", f"{others / n:.1%}" if n else "not measured")]
        table.add_row(part, *cells)
    return table


def _measured_classes(accuracy: AccuracyRecord) -> dict[str, float]:
    """Top-1 of the classes that have images."""
    return {name: top1 for name, top1 in (accuracy.per_class or {}).items() if top1 is not None}


def classes_line(accuracy: Accuracies) -> str:
    """The accuracy of each class, or of many those with the largest losses against the restricted base, in points."""
    assert accuracy.base_restricted is not None and accuracy.derived is not None
    before, after = _measured_classes(accuracy.base_restricted), _measured_classes(accuracy.derived)
    if len(after) <= _WORST:
        each = (f"{name} {100 * top1:.1f} % ({100 * before[name]:.1f} %)" for name, top1 in after.items())
        return f"top-1 by class, and in brackets of the restricted base: {', '.join(each)}"
    change = {name: 100 * (after[name] - before[name]) for name in after}
    lost = sorted((points, name) for name, points in change.items() if points < 0)
    if not lost:
        return f"none of the {len(change)} classes is classified worse than by the base restricted to them"
    worst = ", ".join(f"{name} {points:+.1f} to {100 * after[name]:.1f} %" for points, name in lost[:_WORST])
    more = f", and {len(lost) - _WORST} more" if len(lost) > _WORST else ""
    return f"classes that lost most against the restricted base, in points: {worst}{more}; of {len(change)} classes"


def comparison_lines(record: DerivationRecord) -> Iterator[str]:
    """The loss against the base on the test images, and a warning if the base was trained on the validation images."""
    from edgevit.data.pairs import RightCount, loss_of, recalled_text

    test = record.answers and record.answers["test"]
    if test and test.derived is not None:
        loss = loss_of(RightCount.of(test.derived), RightCount.of(test.base_restricted))
        verdict = "may be chance" if loss.may_be_chance else "is more than chance"
        ending = "" if loss.lost == 0 else f"; what it loses {verdict}"  # None: not compared by pairs
        yield f"against the restricted base, {loss.text('test')}{ending}"
    base = record.accuracy.base_restricted
    if base is not None and (validation := record.validation) is not None:
        judged = RightCount(validation.base_restricted, validation.images)
        on_test = RightCount(round(base.top1 * base.images), base.images)
        if (recalled := recalled_text(judged, on_test)) is not None:
            yield f"{recalled}: compare models on the test images, as `edgevit report` does"


def met_lines(record: DerivationRecord) -> list[str]:
    """Describe how a measured budget was met: a line per round, and what the model takes."""
    met = record.met
    if met is None:
        return []
    unit = {"ms": "ms", "mj": "mJ"}[met.quantity]
    rounds = [
        f"round {i}: {r.predicted:.4g} {unit} predicted, {_figure_text(r.measured, unit)} measured"
        for i, r in enumerate(met.rounds, 1)
    ]
    verdict = {"met": "within", "under": "below", "over": "above"}[met.outcome]
    off = abs(met.verified.value / met.budget - 1)
    figure = _BUSY_FIGURES.get(met.figure, met.figure)
    budget = _budget_text(met, unit)
    text = f"{_figure_text(met.verified, unit)} ({figure}), {off:.1%} {verdict} the budget of {budget}"
    ended = "" if met.ended is None or met.outcome == "met" else f"; {met.ended}"
    clock = []
    if met.clock is not None and met.base_clock is not None:
        of_base = f"the base {met.base_clock:.4g} {unit}, against {met.base:.4g} {unit} when its table was measured"
        clock = [f"by the clock in the last measurement: the model {met.clock:.4g} {unit}, {of_base}"]
        if met.figure in _BUSY_FIGURES:
            clock.append(f"other programs were busy: on a quiet machine a larger model may take {budget}")
    return [*rounds, f"the model takes {text}, on {met.table.measured_on}{ended}", *clock]


def _budget_text(met: MetRecord, unit: str) -> str:
    """5 ms; of images per second, 200 fps (5 ms)."""
    limit = f"{met.budget:.4g} {unit}"
    name, _, number = met.option.partition(" ")
    return f"{number} fps ({limit})" if name == "fps" else limit


def _figure_text(figure: FigureRecord, unit: str) -> str:
    """4.91 ms (4.88 to 4.95)."""
    interval = "" if figure.low is None or figure.high is None else f" ({figure.low:.4g} to {figure.high:.4g})"
    return f"{figure.value:.4g} {unit}{interval}"


def met_table(records: Mapping[Path, DerivationRecord]) -> Table:
    """List accuracy and measurement of the models of several budgets."""
    from rich.table import Table

    from edgevit.data.shares import share_text

    met = [record.met for record in records.values() if record.met is not None]
    unit = {"ms": "ms", "mj": "mJ"}[met[0].quantity]
    table = Table("model", title=f"on {met[0].table.measured_on}", title_justify="left")
    for heading in ("budget", f"{unit} (95 % interval)", "of the base's", "rounds", "top-1 (95 % interval)"):
        table.add_column(heading, justify="right")
    for folder, record in records.items():
        if (record_met := record.met) is None:
            continue
        accuracy = record.accuracy.derived
        table.add_row(
            folder.name,
            _budget_text(record_met, unit),
            _figure_text(record_met.verified, unit),
            f"{record_met.verified.value / record_met.base:.2f}",
            str(len(record_met.rounds)),
            share_text(accuracy.top1, accuracy.images) if accuracy else "",
        )
    return table
