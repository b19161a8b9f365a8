"""Turn every panel and every model into the texts and rows that fill the page's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgevit.board.comparison import gather_warnings, group, make_row, three_digits
from edgevit.data.neighbours import hint_in
from edgevit.data.shares import share_text
from edgevit.records.derivation import AccuracyRecord, MetRecord
from edgevit.records.model import SITE_AXES, axis_name
from edgevit.reporting.axes import AccuracyTask, LatencyPlace
from edgevit.reporting.choice import Panel, is_eligible
from edgevit.reporting.details import DrawnBlock, blocks, classes, confusion, details
from edgevit.reporting.gather import Evidence, GatheredModel
from edgevit.reporting.tables import (
    answer,
    columns,
    entry_data,
    eyebrow,
    figures,
    heading,
    none_on_axis,
    none_reaching,
    notes,
    on_validation,
    reference_text,
)
from edgevit.text import format_count

_HEAD = ("place", "file", "batch", "p50 ms", "p90 ms", "p99 ms", "spread", "images/s", "W", "mJ/image", "engine MiB",
        "max C", "power mode")  # fmt: skip
_DIGITS = 12  # digits of a hash
_OF_TAB = 6  # digits of a hash that only tells two tasks apart
_OWN = 2  # classes in a tab


def tabs(panels: Sequence[Panel]) -> list[str]:
    """Short titles of panels by their differences."""
    tasks = _apart(
        {id(p.task): [*_task_words(p.task, panels), *[p.base] * bool(p.base)] for p in panels if p.task is not None}
    )
    places = _apart({id(p.place): p.place.title.split(", ") for p in panels if p.place is not None})
    measured = bool(places)
    titles = []
    for panel in panels:
        task = "not found" if panel.task is None else tasks[id(panel.task)]
        place = places[id(panel.place)] if panel.place is not None else "not measured" * measured
        titles.append(" · ".join(filter(None, (task, place))) or (panel.task.title if panel.task else "all"))
    return titles


def _task_words(task: AccuracyTask, panels: Sequence[Panel]) -> list[str]:
    """Words that distinguish a task: own classes, data and seed, then counts and hashes if needed."""
    others = [panel.task for panel in panels if panel.task is not None and panel.task is not task]
    own_names = [
        name for name in task.classes if any(name not in competitor.classes for competitor in others)
    ] or task.classes
    more = ", ..." if len(own_names) > _OWN else ""
    words = [f"{len(task.classes)} classes: {', '.join(own_names[:_OWN])}{more}" if task.classes else task.title]
    if (data := task.data) is None:
        return [*words, task.images]
    words += [Path(data.data).name, f"seed {data.seed}"]
    if any(
        (competitor.title, competitor.data and competitor.data.seed) == (task.title, data.seed) for competitor in others
    ):
        words += [f"{data.images.test} test images", f"images {data.images_sha256[:_OF_TAB]}"]
    return words


def _apart(words: Mapping[int, Sequence[str]]) -> dict[int, str]:
    """Keep the words that not all titles share; all words if none remain."""
    common = set.intersection(*map(set, words.values())) if words else set()
    are_equal = len({tuple(parts) for parts in words.values()}) <= 1
    return {
        key: "" if are_equal else ", ".join(word for word in parts if word not in common) or ", ".join(parts)
        for key, parts in words.items()
    }


def panel_view(panel: Panel, ids: Mapping[str, str]) -> dict[str, object]:
    """A panel for the template; `ids` are the models' places in the page, by name."""
    shown, chosen = columns(panel), panel.recommended()
    rows = [
        {
            "index": i,
            "id": ids.get(entry.model or ""),
            "take": entry is chosen,
            "baseline": entry.is_baseline,
            "cells": [{"value": c.value(entry), "text": c.text(entry), "more": c.more(entry)} for c in shown],
        }
        for i, entry in enumerate(panel.entries)
    ]
    return {
        "eyebrow": eyebrow(panel) if panel.task is not None else ["models that were not found", *eyebrow(panel)],
        "heading": heading(panel),
        "figures": figures(panel),
        "answer": answer(panel),
        "reference": "" if panel.goal is None else reference_text(panel),
        "notes": notes(panel),
        "axes": panel.axes,
        "columns": [column.title for column in shown],
        "baselines": [row for row in rows if row["baseline"]],
        "models": [row for row in rows if not row["baseline"]],
    }


def panel_data(panel: Panel, ids: Mapping[str, str]) -> dict[str, object]:
    """A panel for the script: what it draws and chooses by."""
    reaching = panel.reaching()
    entries = []
    for entry in panel.entries:
        values = entry_data(entry)
        if entry.void:  # it is drawn on no axis of measured figures
            values |= dict.fromkeys(("p50_ms", "p99_ms", "ratio", "energy_mj", "memory_mib"))
        low, high = entry.interval or (None, None)
        values |= {"low": low, "high": high, "id": ids.get(entry.model or ""), "baseline": entry.is_baseline}
        values |= {"reaching": entry in reaching, "free": not entry.is_baseline and is_eligible(entry)}
        values |= {"merit": panel.merit(entry)}
        entries.append({name: value for name, value in values.items() if value not in (None, [], ())})
    axes = [
        {"name": a.name, "title": a.title, "unit": a.unit, "by_ratio": a.by_ratio, "none": none_on_axis(panel, a)}
        for a in panel.axes
    ]
    none = none_reaching(panel)
    return {
        "goal": panel.goal,
        "judged_on": on_validation(panel),
        "none_reaching": none,
        "axes": axes,
        "entries": entries,
    }


def model_view(model: GatheredModel, name: str, evidence: Evidence, panels: Sequence[Panel]) -> dict[str, object]:
    """A model for the template, and under `drawn` what the script draws of it."""
    compared = list({id(panel.place): panel.place for panel in panels if panel.place is not None}.values())
    drawn, confused = details(model, evidence, compared), confusion(model)
    return {
        "id": name,
        "name": model.name,
        "where": str(model.folder.path),
        "summary": _summary(model),
        "hint": None if model.derivation is None else hint_in(model.derivation),
        "drawn": drawn,
        "blocks": _block_table(blocks(model)),
        "classes": _class_rows(model),
        "confused": [list(map(str, pair.values())) for pair in (confused["pairs"] if confused else [])],
        "trained": model.derivation.format_training() if model.derivation is not None else "",
        "measured": _measured(model, compared),
        "warnings": _warnings(model, compared),
        "gates": _gates(model, panels),
        "engines": _engines(model),
        "attempts": [
            [engine.precision_level, attempt.precision_level, f"{attempt.seconds:.0f} s", attempt.failure or "-"]
            for engine in model.engines
            for attempt in engine.attempts
        ],
        "exported": _exported(model),
        "exported_beside": "torch" if model.imported is None else "the imported file",
        "provenance": _provenance(model),
    }


def _summary(model: GatheredModel) -> str:
    """The model in a sentence."""
    document, derivation, imported = model.document, model.derivation, model.imported
    if imported is not None:
        return f"{imported.file}, an ONNX file that edgevit did not make, with {imported.output_text}."
    assert document is not None
    if model.folder.is_supernet:
        return (
            f"{document.timm_name} with {document.outputs} outputs, a super-network: `edgevit show` lists its slices, "
            "and `edgevit derive --method skd --supernet` cuts a model out of it."
        )
    if derivation is None:
        outputs = f"with {document.outputs} outputs" if document.outputs else "without a classifier"
        return f"{document.timm_name} {outputs}, nothing else removed: a base."
    judged = derivation.accuracy.derived
    accuracy = (
        f" top-1 {share_text(judged.top1, judged.images)} in torch on {judged.images} test images." if judged else ""
    )
    return (
        f"{document.timm_name} without {100 * document.rate:.1f} % of its MACs, by {derivation.method} for "
        f"{derivation.budget.option}.{accuracy}{_rejecting(judged)} {format_count(document.macs)} MACs, "
        f"{format_count(document.params)} parameters."
        + ("" if (embed := document.narrowed) is None else f" The embedding has {embed[0]} of {embed[1]} channels.")
        + ("" if (cut := document.narrowed_rest_text) is None else f" {cut[0].upper()}{cut[1:]}.")
    )


def _rejecting(accuracy: AccuracyRecord | None) -> str:
    """Describe how often a model answers `other`; top-1 counts its classes alone."""
    if accuracy is None or accuracy.rejection is None or (rejected := accuracy.rejection.get("test")) is None:
        return ""
    foreign = (
        f", and on {rejected.foreign_other} of {rejected.foreign_images} of others" if rejected.foreign_images else ""
    )
    return (
        f" It may answer other, which top-1 leaves aside: on {rejected.other} of {rejected.images} test images of its "
        f"classes, so that {rejected.right} are right{foreign}."
    )


def _block_table(drawn: Sequence[DrawnBlock]) -> dict[str, object]:
    """Sizes of every block and of the base's, with the tokens that each pruning block passes on."""
    leave = any(block["now"] and block["now"]["tokens"] for block in drawn)
    axes = [axis for of_site in SITE_AXES.values() for axis in of_site]
    rows = []
    for block in drawn:
        now, base = block["now"], block["base"]
        sizes = [f"{now[axis] if now else 0} of {base[axis]}" for axis in axes]
        tokens = f"{now['tokens']}{', merged' * now['merged']}" if now and now["tokens"] else "-"
        rows.append([str(block["block"]), *sizes, *[tokens] * leave])
    return {"head": ["block", *map(axis_name, axes), *["tokens"] * leave], "rows": rows}


def _class_rows(model: GatheredModel) -> list[list[str]]:
    rows = []
    for row in classes(model):
        base, top1 = row["base"], row["top1"]
        change = "-" if base is None else f"{100 * (top1 - base):+.1f}"
        rows.append([row["name"], f"{100 * top1:.1f} %", "-" if base is None else f"{100 * base:.1f} %", change])
    return rows


def _measured(model: GatheredModel, compared: Sequence[LatencyPlace]) -> dict[str, object]:
    """Every run, without the columns that none of them has."""
    rows = []
    for place in compared:
        for run in place.runs_of(model.files):
            row = make_row(run)
            figures = [row.p50_ms, row.p90_ms, row.p99_ms]
            more = [row.images_per_s, row.power_w, row.energy_mj, row.memory_engine_mib, row.temperature_max_c]
            cells = [place.title, run.model, str(row.batch), *map(three_digits, figures), f"{row.spread:.1%}"]
            rows.append([*cells, *map(three_digits, more), row.power_mode or "-"])
    used = [i for i in range(len(_HEAD)) if any(row[i] != "-" for row in rows)]
    return {"head": [_HEAD[i] for i in used], "rows": [[row[i] for i in used] for row in rows]}


def _warnings(model: GatheredModel, compared: Sequence[LatencyPlace]) -> list[str]:
    """Warnings about the runs, by place and conditions."""
    warnings = []
    for place in compared:
        for comparable in group(place.runs_of(model.files)):
            subject = f"{place.title}, {comparable[0].model}"
            warnings += [f"{subject}: void: {reason}" for run in comparable for reason in run.void()]
            warnings += gather_warnings(comparable, subject)
    return list(dict.fromkeys(warnings))


def _gates(model: GatheredModel, panels: Sequence[Panel]) -> list[list[str]]:
    rows = []
    for panel in panels:
        for entry in panel.entries:
            for verdict in entry.verdicts if entry.model == model.name and panel.place is not None else ():
                value = "-" if verdict.value is None else f"{three_digits(verdict.value)} {verdict.gate.unit}"
                margin = "-" if verdict.margin is None else f"{verdict.margin:+.1%}"
                cells = [str(verdict.gate), panel.place.title if panel.place else "", value, margin, verdict.state]
                if cells not in rows:  # a base stands in several panels
                    rows.append(cells)
    return rows


def _engines(model: GatheredModel) -> list[list[str]]:
    rows = []
    for engine in model.engines:
        accuracy = engine.accuracy
        shares = ["-", "-"]
        if accuracy is not None:
            boxes = [accuracy.host_detections, accuracy.board_detections]
            judged = zip(boxes, (accuracy.host, accuracy.board), strict=True)
            shares = [f"AP {of.boxes.ap:.1%}" if of else _share(share, accuracy.images) for of, share in judged]
        fused = "-" if engine.fused is None else f"{engine.fused} of {engine.blocks}"
        size = f"{engine.bytes / 1e6:.3g} MB"
        rows.append(
            [
                engine.precision_level,
                engine.fingerprint,
                engine.file,
                size,
                fused,
                *shares,
                f"{engine.build_seconds:.0f} s",
            ]
        )
    return rows


def _share(share: float | None, images: int) -> str:
    return "-" if share is None else share_text(share, images)


def _exported(model: GatheredModel) -> list[list[str]]:
    if (export := model.export) is None:
        return []
    rows = []
    for name, file in export.files.items():
        label = name.removeprefix("model.").removesuffix(".onnx")
        parity = export.parity.get(label)
        judged_file = export.accuracy.files.get(label) if export.accuracy is not None else None
        errors = ["-", "-"] if parity is None else [f"{parity.error:.2g}", f"{parity.tolerance:.2g}"]
        judged = ["-", "-"]
        if judged_file is not None and export.accuracy is not None:
            judged = [_share(judged_file.top1, export.accuracy.images), f"{judged_file.agreement:.2%}"]
        rows.append([name, f"{file.bytes / 1e6:.3g} MB", *errors, *judged])
    return rows


def _provenance(model: GatheredModel) -> list[tuple[str, str]]:
    """How the model was made."""
    document, derivation = model.document, model.derivation
    rows: list[tuple[str, str]] = []
    if derivation is not None:
        rows += [
            ("made", f"{derivation.created} with edgevit {derivation.versions['edgevit']}"),
            ("base", derivation.base),
        ]
        rows += [
            ("method", derivation.format_method()),
            ("budget", derivation.budget.option),
            ("shape", derivation.shape.name),
        ]
        if derivation.data is not None:
            counts = derivation.data.images
            parts = f"{counts.train} training, {counts.validation} validation and {counts.test} test images"
            rows += [("data", derivation.data.data), ("images", f"{parts}, seed {derivation.data.seed}")]
            rows.append(("hash of the images", derivation.data.images_sha256[:_DIGITS]))
        if derivation.similarity is not None:
            rows.append(("features", derivation.similarity.format()))
        if derivation.map is not None:
            rows.append(("map", derivation.map.format()))
        if derivation.boxes is not None:
            rows.append(("boxes", derivation.boxes.format()))
        if derivation.met is not None:
            rows.append(("met by measuring", _met(derivation.met)))
        rows.append(("seconds", ", ".join(f"{name} {s:.3g}" for name, s in derivation.seconds.items())))
    if document is not None:
        rows += [
            ("classes", ", ".join(document.class_names) or ("not named" if document.output_kind == "logits" else "")),
            ("weights", document.weights_sha256[:_DIGITS]),
        ]
        rows.append(("base's weights", document.base.weights_sha256[:_DIGITS]))
    if model.imported is not None:
        rows += [("file", model.imported.file), ("sha256", model.imported.file_sha256[:_DIGITS])]
    return [(name, value) for name, value in rows if value]


def _met(met: MetRecord) -> str:
    return f"{_measured_cost(met)} for a budget of {met.budget:.4g}, in {len(met.rounds)} rounds"


def _measured_cost(met: MetRecord) -> str:
    verified = met.verified
    interval = "" if verified.low is None else f" ({verified.low:.4g} to {verified.high:.4g})"
    return f"{verified.value:.4g} {met.quantity}{interval}"
