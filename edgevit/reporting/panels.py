"""Gather one row for every model at every place, below the baselines, in panels of what is comparable."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from edgevit.agent.records import Run
from edgevit.board.comparison import BUSY, Comparison, compare_within, decisive, make_row
from edgevit.board.gates import Gate, verdicts_of
from edgevit.data.neighbours import hint_in
from edgevit.errors import RunsError
from edgevit.records.derivation import DerivationRecord
from edgevit.records.model import ModelSpec
from edgevit.records.names import onnx_name
from edgevit.reporting.axes import AccuracyTask, BaseIdentity, LatencyPlace, places, task_of
from edgevit.reporting.choice import BASELINES, IMPORTED, READY_MADE, Entry, Panel
from edgevit.reporting.gather import Evidence, GatheredModel, Skipped
from edgevit.reporting.record import Kind

# Name of the head of a baseline's folder; other baselines have no folder.
_HEADS: dict[Kind, str] = {"full head": "full", "restricted": "subset"}


def panels(evidence: Evidence, gates: Sequence[Gate] = ()) -> list[Panel]:
    """Group all models by what is comparable.

    The task of most measured models comes first, and of its bases the most accurate. Panels without a choice are made
    only if there are no others.
    """
    every = _every_panel(evidence, gates)
    return [panel for panel in every if panel.is_useful] or every


def not_shown(evidence: Evidence, shown: Sequence[Panel]) -> list[Skipped]:
    """List the models that are in no panel."""
    tasks = {panel.task.key for panel in shown if panel.task is not None}
    names = {entry.model for panel in shown for entry in panel.entries}
    left_out = {
        model.name: Skipped(str(model.folder.path), _why_not_shown(model, models))
        for task, models in _tasks(evidence.models)
        if task.key not in tasks
        for model in models
        if model.name not in names
    }
    return [*left_out.values()]  # once each: a model without a base is beside the models of several


def _why_not_shown(model: GatheredModel, models: Sequence[GatheredModel]) -> str:
    """Why no panel has a model, which would stand beside these."""
    if all(map(_is_base, models)):
        return "no model here was derived from it"
    record = model.derivation
    if record is not None and (record.similarity is not None or record.map is not None):
        return "compared with its base alone, and not measured; give its folder alone, or measure it"
    return "neither judged nor measured"


def _every_panel(evidence: Evidence, gates: Sequence[Gate]) -> list[Panel]:
    measured_places = places(evidence.runs)
    in_folders = {digest for model in evidence.models for digest in model.files}
    measured = {run.model_sha256 for run in evidence.runs}
    tasks = _in_order(_tasks(evidence.models), measured)
    panels: list[Panel] = []
    for task, models in tasks:
        bases = [t.base for t, _ in tasks if t.base is not None and t.images_key == task.images_key]
        base = "" if task.base is None else task.base.difference(bases)
        for place in _places_of(models, measured_places) or (None,):
            entries = tuple(_judged(entry, place, gates) for entry in _entries(models, place))
            panels.append(Panel(task, place, entries, is_of_bases=all(map(_is_base, models)), base=base))
    panels = [replace(panel, other_base=_more_accurate_base(panel, panels)) for panel in panels]
    for place in measured_places:
        if strays := tuple(_judged(entry, place, gates) for entry in _without_folder(place, in_folders)):
            panels.append(Panel(None, place, strays))
    return panels


def _in_order(
    tasks: Sequence[tuple[AccuracyTask, list[GatheredModel]]], measured: Set[str]
) -> list[tuple[AccuracyTask, list[GatheredModel]]]:
    """Order tasks by the number of measured models, then by measured bases and their accuracy."""
    counts = [sum(not measured.isdisjoint(model.files) for model in models) for _, models in tasks]
    of_images: Counter[tuple[object, ...]] = Counter()
    for (task, _), count in zip(tasks, counts, strict=True):
        of_images[task.images_key] += count

    def rank(numbered: tuple[int, tuple[AccuracyTask, list[GatheredModel]]]) -> tuple[float, ...]:
        number, (task, models) = numbered
        top1 = _judged_baseline(_derivations(models), "restricted").get("top1", 0.0)
        return -of_images[task.images_key], not counts[number], -top1

    return [pair for _, pair in sorted(enumerate(tasks), key=rank)]


def _places_of(models: Sequence[GatheredModel], measured_places: Sequence[LatencyPlace]) -> list[LatencyPlace]:
    """The places at which the models were measured, or else their bases."""
    for some in ([model for model in models if not _is_base(model)], models):
        files = {digest for model in some for digest in model.files}
        if measured := [place for place in measured_places if place.runs_of(files)]:
            return measured
    return []


def _more_accurate_base(panel: Panel, panels: Sequence[Panel]) -> str:
    """Name a more accurate base on the same images, with its accuracy; empty if there is none."""
    key, goal = panel.task and panel.task.images_key, panel.goal
    bases = [p for p in panels if p.base and p.task and p.task.images_key == key and p.goal is not None]
    best = max(bases, key=lambda p: p.goal or 0, default=None)
    if best is None or not panel.base or goal is None or best.goal is None or best.goal <= goal:
        return ""
    return f"{best.base}: {100 * best.goal:.2f} %"


def _tasks(models: Sequence[GatheredModel]) -> list[tuple[AccuracyTask, list[GatheredModel]]]:
    """Group models by task and base, with the folders of the base; bases without models are a task of their own.

    A model without a base, such as an imported file, joins every base that has models on the same images.
    """
    by_task: dict[tuple[object, ...], tuple[AccuracyTask, list[GatheredModel]]] = {}
    bases = [model for model in models if _is_base(model)]
    for model in models:
        if not _is_base(model):
            task = task_of(model)
            by_task.setdefault(task.key, (task, []))[1].append(model)
    for key, (task, baseless) in list(by_task.items()):
        of_images = [models for t, models in by_task.values() if t.base and t.images_key == task.images_key]
        if task.base is None and of_images:
            del by_task[key]
            for group in of_images:
                group += baseless
    used: set[int] = set()
    for task, group in by_task.values():
        for base in bases:
            assert base.document is not None
            of_classes = base.document.head == "full" or set(base.class_names) == set(task.classes)
            if task.base is not None and of_classes and BaseIdentity.of(base.document).is_of(task.base):
                group.append(base)
                used.add(id(base))
    for base in bases:
        if id(base) not in used:
            task = AccuracyTask(base.class_names, None)
            by_task.setdefault(("base", *task.key), (task, []))[1].append(base)
    return list(by_task.values())


def _is_base(model: GatheredModel) -> bool:
    return model.document is not None and model.derivation is None and not model.folder.is_supernet


def _derivations(models: Sequence[GatheredModel]) -> list[DerivationRecord]:
    return [m.derivation for m in models if m.derivation is not None and m.document is not None]


def _entries(models: Sequence[GatheredModel], place: LatencyPlace | None) -> Iterator[Entry]:
    """The entries of one task and base: baselines, then models; bases alone are entries like models."""
    bases, derived = ([model for model in models if _is_base(model) is is_base] for is_base in (True, False))
    records = _derivations(derived)
    if not records:
        for model in (*bases, *derived):
            yield from _of_model(model, "model", model.name, place, ())
        return
    document = next(m.document for m in derived if m.document is not None)
    baselines: list[Entry] = []
    reference: list[Run] = []
    kinds: dict[Kind, str] = {"full head": "base"} if document.output_kind != "logits" else BASELINES
    for kind, title in kinds.items():
        folders = [base for base in bases if base.document is not None and _HEADS.get(kind) == base.document.head]
        folders.sort(key=lambda base: -len(_runs_of(base, place)))  # each sweep has a folder of its base
        judged = _judged_baseline(records, kind)
        baselines += _of_baseline(folders[0] if folders else None, kind, title, place, document, judged)
        if kind == "restricted" or not reference:
            reference = [run for base in folders for run in _runs_of(base, place)] or reference
    yield from (_with_ratio(entry, reference) for entry in baselines)
    for model in derived:
        if model.imported is None:
            yield from _of_model(model, "model", model.name, place, reference)
        else:
            yield from _of_model(model, READY_MADE, model.imported.file, place, reference)


def _runs_of(model: GatheredModel, place: LatencyPlace | None) -> list[Run]:
    return place.runs_of(model.files) if place is not None else []


def _judged_baseline(records: Sequence[DerivationRecord], kind: Kind) -> dict[str, Any]:
    """The accuracy of a baseline by the derivations; of several fine-tuned bases, the most accurate."""
    name = {"full head": "base_full_head", "restricted": "base_restricted", "fine-tuned": "base_finetuned"}[kind]
    stated = [
        (derivation, accuracy) for derivation in records if (accuracy := getattr(derivation.accuracy, name)) is not None
    ]
    if not stated:
        return {}
    derivation, accuracy = max(stated, key=lambda pair: pair[1].top1)
    judged = {"top1": accuracy.top1, "images": accuracy.images, "judged": "torch"}
    if kind == "fine-tuned":
        judged["is_cut"] = any(record.start is not None and record.start.network == "finetuned" for record in records)
    if (validation := derivation.validation) is not None and (right := getattr(validation, name, None)) is not None:
        judged["validation"] = (right, validation.images)
    judged["answers"] = {part: getattr(record, name, None) for part, record in (derivation.answers or {}).items()}
    return judged


def _of_baseline(
    folder: GatheredModel | None,
    kind: Kind,
    title: str,
    place: LatencyPlace | None,
    document: ModelSpec,
    judged: Mapping[str, Any],
) -> Iterator[Entry]:
    if folder is None:
        base = document.base
        yield Entry(kind=kind, title=title, model=None, macs=base.macs, params=base.params, embed=base.embed, **judged)
        return
    for entry in _of_model(folder, kind, title, place, ()):
        yield replace(entry, **judged)


def _of_model(
    model: GatheredModel, kind: Kind, title: str, place: LatencyPlace | None, reference: Sequence[Run]
) -> Iterator[Entry]:
    """One entry for each measured file of a model, or one without figures."""
    derivation, document = model.derivation, model.document
    similarity = derivation.similarity if derivation else None
    counted = document or model.imported
    boxes = derivation.boxes if derivation else None
    entry = Entry(
        kind=kind,
        title=title,
        model=model.name,
        method=derivation.format_method() if derivation else READY_MADE if kind == READY_MADE else None,
        rate=document.rate if document is not None and kind == "model" else None,
        seed=derivation.training.seed if derivation and derivation.training else None,
        steps=derivation.facts.steps if derivation else None,
        validation=_on_validation(model),
        answers=model.answers,
        macs=counted.macs if counted is not None else None,
        params=counted.params if counted is not None else None,
        embed=document.embed if document is not None else None,
        file_bytes=_bytes(model, place),
        hint=None if derivation is None else hint_in(derivation),
        cosine=similarity.cosine if similarity else None,
        neighbours=similarity.same_neighbours if similarity else None,
        agreement=derivation.map.agreement if derivation and derivation.map else None,
        precision_of_boxes=boxes.derived.boxes.ap if boxes and boxes.derived else None,
        score=model.targets.score if model.targets else None,
        error=model.targets.error if model.targets else None,
        knn=model.probes.get("knn"),
        linear=model.probes.get("linear"),
        **_accuracy(model, None),  # type: ignore[arg-type]
    )
    by_file: dict[str, list[Run]] = {}
    for run in _runs_of(model, place):
        by_file.setdefault(run.model_sha256, []).append(run)
    if not by_file:
        yield entry
    for digest, runs in by_file.items():
        of_file = replace(entry, file_bytes=model.files[digest], **_accuracy(model, digest))  # type: ignore[arg-type]
        yield _with_ratio(_with_runs(of_file, runs, several=len(by_file) > 1), reference)


def _on_validation(model: GatheredModel) -> tuple[int, int] | None:
    """How many validation images the model classifies correctly, and of how many."""
    if model.derivation is not None and (validation := model.derivation.validation) is not None:
        return validation.derived, validation.images
    right = model.answers.get("validation")
    return None if right is None else (right.right, right.images)


def _bytes(model: GatheredModel, place: LatencyPlace | None) -> int | None:
    """Bytes of the file of an unmeasured model that corresponds to the measured files of others."""
    if place is not None:
        exported = {} if model.export is None else model.export.files
        sizes = [exported[name].bytes for name in place.file_names if name in exported]
        return sizes[0] if len(sizes) == 1 else None
    file = model.folder.imported_onnx if model.imported is not None else model.folder.weights_file
    return file.stat().st_size if file.is_file() else None


def _accuracy(model: GatheredModel, digest: str | None) -> dict[str, object]:
    """The accuracy of the file if it was judged on the same images, else of the network in torch."""
    whole: dict[str, object] = {}
    if model.derivation is not None and (accuracy := model.derivation.accuracy.derived) is not None:
        whole = {"top1": accuracy.top1, "images": accuracy.images, "judged": "torch"}
    elif model.imported is not None and (test := model.imported.answers.get("test")) is not None:
        whole = {"top1": test.right / test.images, "images": test.images, "judged": IMPORTED}
    for engine in model.engines:
        judged = engine.accuracy
        if judged is None or judged.board is None or engine.sha256 != digest:
            continue
        if _same_images(judged.part, judged.images, whole):
            return {"top1": judged.board, "images": judged.images, "judged": engine.file}
    export = model.export
    if (
        export is not None
        and (check := export.accuracy) is not None
        and check.torch is not None
        and _same_images(check.part, check.images, whole)
    ):
        for label, file_check in check.files.items():
            name = onnx_name(label)
            if digest is not None and name in export.files and export.files[name].sha256 == digest:
                return {"top1": file_check.top1, "images": check.images, "judged": name}
        if not whole:  # an imported file, which only its export has judged
            return {"top1": check.torch, "images": check.images, "judged": IMPORTED}
    return whole


def _same_images(part: str, images: int, whole: Mapping[str, object]) -> bool:
    return part == "test" and whole.get("images", images) == images


def _without_folder(place: LatencyPlace, digests: set[str]) -> Iterator[Entry]:
    """Entries of runs without a model folder, or whose file has changed."""
    lost: dict[tuple[str, str], list[Run]] = {}
    for run in place.runs:
        if run.model_sha256 not in digests:
            lost.setdefault((run.label, run.model_sha256), []).append(run)
    for (label, _), runs in lost.items():
        yield _with_runs(Entry(kind="gone", title=label, model=None), runs, several=False)


def _with_runs(entry: Entry, runs: Sequence[Run], *, several: bool) -> Entry:
    """The entry with the medians of its runs."""
    rows = [make_row(run) for run in runs]
    first = runs[0]

    def middle(name: str) -> float | None:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        return statistics.median(values) if values else None

    return replace(
        entry,
        title=f"{entry.title}, {first.precision or first.model}" if several else entry.title,
        file=first.model,
        precision=first.precision,
        repeats=len(runs),
        p50_ms=middle("p50_ms"),
        p50_least_ms=min(row.p50_ms for row in rows),
        p50_most_ms=max(row.p50_ms for row in rows),
        p99_ms=middle("p99_ms"),
        images_per_s=middle("images_per_s"),
        power_w=middle("power_w"),
        energy_mj=middle("energy_mj"),
        memory_mib=middle("memory_mib"),
        busy=any(run.is_busy() for run in runs),
        void=tuple(dict.fromkeys(reason for run in runs for reason in run.void())),
        runs=tuple(runs),
    )


def _with_ratio(entry: Entry, reference: Sequence[Run]) -> Entry:
    """Add the ratio of the latency to that of the base, in the session that has most runs of both.

    Of equal sessions the latest counts. A void run, or a busy machine without turns, gives no ratio.
    """
    if entry.runs and entry.kind != "model" and entry.runs[0] in reference:
        return replace(entry, ratio=1.0)
    comparison = _compared(reference, entry.runs)
    if comparison is None or comparison.outcome in ("void", BUSY):
        return entry
    return replace(
        entry,
        ratio=comparison.ratio,
        ratio_low=comparison.low,
        ratio_high=comparison.high,
        ratio_of=comparison.figure,
        in_turns=comparison.rounds is not None,
    )


def _compared(before: Sequence[Run], after: Sequence[Run]) -> Comparison | None:
    if not before or not after or before[0].model_sha256 == after[0].model_sha256:
        return None
    sessions = {run.session for run in after} - {None}
    if shared := [run for run in before if run.session in sessions]:  # a base has many runs, of which few are shared
        created: dict[str, list[str]] = {session: [] for session in sorted({str(run.session) for run in shared})}
        for run in (*shared, *after):
            if run.session in created:
                created[run.session].append(run.created)
        session = max(created, key=lambda s: (len(created[s]), max(created[s])))
        before, after = ([run for run in side if run.session == session] for side in (shared, after))
    try:
        return next(iter(decisive(compare_within([*before, *after]))), None)
    except RunsError:
        return None


def _judged(entry: Entry, place: LatencyPlace | None, gates: Sequence[Gate]) -> Entry:
    """Add the verdicts of the gates that apply at the place; without a place, all gates apply."""
    applicable = tuple(gate for gate in gates if place is None or gate.batch in (None, place.batch))
    verdicts = verdicts_of(applicable, entry.runs) if entry.runs else ()
    states = [verdict.state for verdict in verdicts]
    passed, failed = states.count("pass"), states.count("fail")
    return replace(entry, gates=applicable, verdicts=verdicts, gates_passed=passed, gates_failed=failed)
