"""`edgevit.sweep`: derive at several rates, and compare accuracy, or likeness, and latency with the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from edgevit.board.bench import bench
from edgevit.board.comparison import compare_within, decisive
from edgevit.board.request import BenchRequest, Conditions
from edgevit.data.loading import workers_for
from edgevit.data.sources import has_masks
from edgevit.data.task import Split, Task, open_unlabelled_task, reopen, with_labels
from edgevit.derivation.cache import shared_cache
from edgevit.derivation.request import OUTPUTS, BaseRequest, DeriveRequest, puts_out_features
from edgevit.derivation.session.base import base as write_base
from edgevit.derivation.session.derive import derive_first
from edgevit.derivation.session.in_memory import IN_MEMORY, as_files
from edgevit.derivation.session.resolved import versions
from edgevit.errors import BudgetError, DataError, EdgeVitError, SweepError
from edgevit.exporting.current import current_export
from edgevit.exporting.imported.ready_made import DerivedModels, check_ready_made, judge_ready_made
from edgevit.exporting.probes import Labelled, probe_parts, read_features
from edgevit.exporting.request import OUTPUT_KINDS, FilesRequest, ready_made_files
from edgevit.exporting.session import find_runtime
from edgevit.exporting.targets import Targets, find_targets, judge_maps
from edgevit.jobs.folder import working_in
from edgevit.jobs.runners import Job, Results, run_here
from edgevit.jobs.sweep.record import BASE, RECORD, FinetunedBase, Latency, Sweep, SweepPoint, read_sweep, write_sweep
from edgevit.jobs.sweep.request import SweepRequest
from edgevit.network.device import find_device
from edgevit.network.folder import load
from edgevit.network.model import Headless
from edgevit.network.opening import open_network
from edgevit.network.output import Map
from edgevit.progress import Progress, Silent, WithoutRepeats
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DerivationRecord, JudgedPart
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import differences, first_few, has_state
from edgevit.records.writing import write_whole, writing
from edgevit.request import takes_options

_RUNS = "runs.jsonl"
ROUNDS = 8  # an interval needs 6
# Size of one run. Every model is measured in each round, so few samples are enough for their ratios.
CONDITIONS = Conditions(samples=100, duration_s=0.5, warmup_seconds=0.2)

_FIRST_RATE = ": it takes longest, because the statistics of the base are measured once, for all rates"
_ON_TOP = "exports, probes and latencies come on top of the time that derivations take"


@dataclass(frozen=True)
class _Work:
    """A sweep in progress."""

    request: SweepRequest
    progress: Progress

    @property
    def out(self) -> Path:
        return self.request.out

    @property
    def is_of_classes(self) -> bool:
        return self.request.output == OUTPUTS[0]

    def write_base(self, classes: Sequence[str]) -> None:
        """Write the base, restricted to the classes of the models, or with their output."""
        if not (self.out / BASE).is_dir():
            request = self.request
            shared = (
                "data", "output", "head_blocks", "training", "validation_fraction", "group_by", "skip_bad_images",
                "cache",
            )  # fmt: skip
            options = {**request.opening(), **{name: getattr(request, name) for name in shared}, "checked": True}
            chosen = classes if self.is_of_classes else None
            write_base(BaseRequest(name=request.base, out=self.out / BASE, classes=chosen, **options), self.progress)

    def point(self, folder: str, rate: float | None, derivation: DerivationRecord, part: JudgedPart) -> SweepPoint:
        """Export a model for the measurement, and return its point; `derivation` has the base's accuracy."""
        model, model_name = self.out / folder, "base_restricted" if rate is None else "derived"
        self.progress.note(f"{folder}: export")
        current_export(FilesRequest(model=model, fp16=False, accuracy=False), self.progress)
        spec = ModelFolder(model).document()
        costs = (spec.macs, spec.params)
        if self.is_of_classes:
            counts, judged = _counts(derivation, model_name, part), _judged(derivation, model_name)
            return SweepPoint(
                folder, rate, *counts, *costs, judged=judged, weights_sha256=spec.weights_sha256
            )  # fmt: skip
        assert derivation.data is not None
        point = SweepPoint(folder, rate, None, derivation.data.images.test, *costs, weights_sha256=spec.weights_sha256)
        if rate is not None:
            point = replace(point, similarity=derivation.similarity, map=derivation.map, boxes=derivation.boxes)
        elif (boxes := derivation.boxes) is not None:
            point = replace(point, boxes=replace(boxes, error=0.0, derived=boxes.base))
        if not self.request.probe:
            return point
        probes = self._probed(model, with_labels(reopen(derivation.data, spec.preprocessing)))
        judged = probes[self.request.probe[0]]
        return replace(point, right=judged[part].right, images=judged[part].images, judged=judged, probes=probes)

    def _probed(self, model: Path, task: Task) -> dict[str, dict[JudgedPart, RightImages]]:
        """Fit the probes to the features of training images, and judge them on the other parts."""
        training = self.request.training
        device = find_device(training.device)
        network, size = load(model).to(device), training.batch
        workers = workers_for(training.workers, device.type, size)

        def read(images: Split) -> Labelled:
            with self.progress.stage("features", len(images), "image") as stage:
                return read_features(lambda batch: network(batch.to(device)), images, size, workers, stage.update)

        return probe_parts(self.request.probe, task, read)

    def scored(self, point: SweepPoint, targets: Targets) -> SweepPoint:
        """The point with the score of its maps against their targets; raises as `judge_maps` does."""
        network, device = load(self.out / point.folder), find_device(self.request.training.device)
        output, module = network.output, network.module if hasattr(network.module, "score") else None
        assert isinstance(output, Map)
        network.to(device)
        score = judge_maps(
            lambda images: network(images.to(device)), output, targets, module, owner=point.folder,
            batch_size=self.request.training.batch, progress=self.progress,
        )  # fmt: skip
        return replace(point, targets=score)


def _model(request: DeriveRequest, _: Results, progress: Progress, derivations: int) -> DerivationRecord:
    """Derive at one rate, unless the model exists.

    Args:
        derivations: as for `derive_first`.

    Raises:
        BudgetError: no shape allows so small a model.
        SweepError: an older edgevit derived the model without validation images.
    """
    folder = request.out
    if not folder.is_dir():
        derive_first(request, progress, derivations)
    record = ModelFolder(folder).derivation()
    judged = record and (record.validation or record.similarity or record.map or record.boxes)
    if record is None or record.data is None or judged is None:
        raise SweepError(f"{folder} does not say how many validation images are right; remove it to derive it again")
    return record


def _counts(derivation: DerivationRecord, model_name: str, part: JudgedPart) -> tuple[int, int]:
    """The number of right images of a part, and of all its images."""
    if part == "validation":
        assert derivation.validation is not None
        return getattr(derivation.validation, model_name), derivation.validation.images
    test = getattr(derivation.accuracy, model_name)
    return round(test.top1 * test.images), test.images


def _judged(derivation: DerivationRecord, model_name: str) -> dict[JudgedPart, RightImages] | None:
    """The right images by part; None: an older edgevit did not record them."""
    return (
        None
        if derivation.answers is None
        else {part: getattr(answers, model_name) for part, answers in derivation.answers.items()}
    )


def _finetuned(derivation: DerivationRecord, part: JudgedPart) -> FinetunedBase | None:
    """The trained base as the derivation of a model judged it; None: the base was not trained."""
    if derivation.start is None:
        return None
    return FinetunedBase(
        *_counts(derivation, "base_finetuned", part),
        derivation.start,
        _judged(derivation, "base_finetuned"),
    )


@takes_options(SweepRequest, "base", prepare=as_files, also=IN_MEMORY)
def sweep(request: SweepRequest, progress: Progress | None = None) -> Sweep:
    """Prune at several rates without training, and compare accuracy, cost and latency with the base.

    Features and maps need no labels, and are compared by how like the base's they are; with `probe`, features by
    classifiers that are fitted to them; detectors by what they find, where there are annotations. `out` gets the models
    as r0.5 and so on, the base restricted to the classes as base, sweep.json and runs.jsonl. All are evaluated on a
    `part` of the data that nothing is fitted to: "validation", or "test", which is the default if the base was probably
    trained on the validation images. Latency is that of the fp32 ONNX files on this machine, measured in turns. The
    same call continues an interrupted sweep, also with more rates; another `part` derives nothing again. Only the base
    of a classifier can be trained, once for all rates, if `derive_from` asks for it.

    Raises:
        OptionError: also an unknown option.
        SweepError: `out` holds a sweep of something else, or one that cannot be read.
        BudgetError: no model can be derived at any of the rates.
        EdgeVitError: anything else, in one line.
    """
    once = tuple(sorted(set(request.rates)))
    request = replace(request, rates=once, training=replace(request.training, steps=0))
    request.check()
    with working_in(request.out, "the rates that are not done"), shared_cache(request.cache) as shared:
        work = _Work(replace(request, cache=shared), WithoutRepeats(progress or Silent()))
        # Before derivations of hours.
        _check_beside(request)
        if request.probe:
            _check_labels(request)
        return _measured(_with_ready_made(_with_scores(_derived(_opened(request), work), work), work), work)


def _check_beside(request: SweepRequest) -> None:
    """Refuse files of --beside that do not give what the base gives, and masks that are missing."""
    files, options = ready_made_files(request.ready_made), dict[str, Any](request.opening())
    if not files:
        return
    if request.output == OUTPUTS[0]:
        for file in files:
            check_ready_made(file, "logits")
        return
    del options["base_classes"]
    base = open_network(request.base, **options)
    is_of_features = puts_out_features(request.output)
    kind = "features" if is_of_features else OUTPUT_KINDS[request.output]
    size, module = base.preprocessing["input_size"], None if isinstance(base, Headless) else base.module
    for file in files:
        check_ready_made(file, kind, size, own_score=hasattr(module, "score"))
    if not is_of_features:
        find_targets(request.data, {})


def _check_labels(request: SweepRequest) -> None:
    """Refuse images of which a part lacks a class; no image is read."""
    options = {name: getattr(request, name) for name in ("validation_fraction", "group_by")}
    seed = request.training.seed
    options |= {"seed": seed, "by_class": True}
    with_labels(open_unlabelled_task(request.data, preprocessing={}, outputs=1, check=(), **options))


def _opened(request: SweepRequest) -> Sweep:
    """Read the sweep in the folder, or begin one if no model is there.

    Raises:
        SweepError: the folder holds a sweep of other options.
    """
    out, identity = request.out, request.identity()
    if not ((out / RECORD).is_file() and any(map(has_state, out.iterdir()))):
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        part: JudgedPart = "validation" if request.output == OUTPUTS[0] or request.probe else "test"
        write_sweep(out, Sweep(identity, part, created, versions()))
    record = read_sweep(out)
    if changed := differences(record.request, identity):
        raise SweepError(f"{out} holds a sweep of something else: {first_few(changed)}; choose another --out")
    return record


def _derived(record: Sweep, work: _Work) -> Sweep:
    """Derive, judge and export the models that are missing, and the base."""
    # A model that replaced the one of its rate is judged again.
    done = {
        point.rate: point
        for point in record.points
        if (work.out / point.folder).is_dir() and point.is_of(ModelFolder(work.out / point.folder))
    }
    reasons, rates = [], work.request.rates
    due = [work.request.at(rate) for rate in rates if rate not in done]
    missing = [asked for asked in due if not asked.out.is_dir()]
    # The first, of the lowest rate, is told how many there are: if it is refused, so are all.
    counts = [len(missing) if asked in missing[:1] else 1 for asked in due]
    jobs = [Job(asked.out.name, asked, partial(_model, derivations=n)) for asked, n in zip(due, counts, strict=True)]
    if missing:
        work.progress.note(_ON_TOP)
    for job, derivation in run_here(jobs, {}, work.progress, refusals=(BudgetError,)):
        rate = job.record.rate
        assert rate is not None
        if derivation is None:
            if not job.record.out.is_dir():
                find_runtime()  # before a derivation of hours: it measures the model
                number = f"rate {rate:g}, {rates.index(rate) + 1} of {len(rates)}"
                work.progress.note(f"{number}{_FIRST_RATE if rate == rates[0] else ''}")
            continue
        if isinstance(derivation, EdgeVitError):
            work.progress.warn(f"rate {rate:g} left out: {derivation}")
            reasons.append(f"rate {rate:g}: {derivation}")
            continue
        assert derivation.data is not None
        if None not in done:
            work.write_base([c.name for c in derivation.data.classes])
            done[None] = work.point(BASE, None, derivation, record.part)
        done[rate] = work.point(job.name, rate, derivation, record.part)
        fingerprint = record.fingerprint or derivation.data.fingerprint
        earlier = next((ModelFolder(work.out / point.folder).derivation() for point in record.derived), None)
        contents = earlier and earlier.data and earlier.data.contents
        is_same_data = derivation.data.fingerprint == fingerprint and contents in (None, {}, derivation.data.contents)
        if not is_same_data or done[rate].images != done[None].images:
            raise DataError(
                f"the images in {work.request.data} are not those the sweep began with; choose another --out"
            )
        ordered = sorted(done.values(), key=lambda point: (point.rate is not None, point.rate or 0))
        finetuned = record.finetuned or _finetuned(derivation, record.part)
        record = replace(record, points=tuple(ordered), finetuned=finetuned, fingerprint=fingerprint)
        record = _on_its_part(record, work.request.part)
        done = {point.rate: point for point in record.points}
        write_sweep(work.out, record)
    if not record.derived:
        raise BudgetError(f"no model can be derived at any of the rates; {reasons[-1]}")
    settled = replace(_on_its_part(record, work.request.part), left_out=tuple(reasons))
    if settled != record:
        write_sweep(work.out, settled)
    return settled


def _with_scores(record: Sweep, work: _Work) -> Sweep:
    """Judge maps by the masks of the data, if it has any; if that fails, it is told, unless --beside needs it.

    Raises:
        DataError: masks are missing, or not of the size of the maps.
    """
    models = DerivedModels.of(ModelFolder(work.out / record.derived[0].folder))
    if not work.request.output.startswith("map") or not has_masks(models.data.data):
        return record
    try:
        targets = models.targets(models.preprocessing)
        now = targets.sha256()
        points = tuple(
            point if point.targets and point.targets.targets_sha256 == now else work.scored(point, targets)
            for point in record.points
        )
    except DataError as error:
        if work.request.ready_made:
            raise
        work.progress.warn(f"the models are not judged by masks: {error}")
        return record
    settled = replace(record, points=points)
    if settled != record:
        write_sweep(work.out, settled)
    return settled


def _with_ready_made(record: Sweep, work: _Work) -> Sweep:
    """Judge and export the files of --beside on the images of the models."""
    models = DerivedModels.of(ModelFolder(work.out / record.derived[0].folder), work.request.probe)
    points = {point.folder: point for point in record.ready_made}
    for file in ready_made_files(work.request.ready_made):
        folder = ModelFolder(work.out / file.stem)
        document = judge_ready_made(file, folder, models, work.progress)
        work.progress.note(f"{file.name}: export")
        current_export(FilesRequest(model=folder.path, fp16=False, accuracy=False), work.progress)
        probes = {name: document.probes[name] for name in models.probe} or None
        judged = document.answers or (probes[models.probe[0]] if probes else None)
        answers = judged and judged[record.part]
        right, images = (answers.right, answers.images) if answers else (None, models.data.images.test)
        assert document.macs is not None and document.params is not None
        point = SweepPoint(
            file.stem, None, right, images, document.macs, document.params, judged=judged, probes=probes,
            weights_sha256=document.weights_sha256, targets=document.targets,
        )  # fmt: skip
        earlier = points.get(file.stem)
        if earlier is None or replace(earlier, latency=None) != point:
            points[file.stem] = point
    settled = replace(record, ready_made=tuple(points[name] for name in sorted(points)))
    if settled != record:
        write_sweep(work.out, settled)
    return settled


def _on_its_part(record: Sweep, part_option: str | None) -> Sweep:
    """The sweep on the requested part, or else on the part that the base was not trained on.

    Raises:
        SweepError: an older edgevit judged models on the other part only.
    """
    part: JudgedPart = "test" if part_option == "test" or (part_option is None and record.recalled()) else "validation"
    settled = record.judged_on(part)
    if part_option is not None and settled.part != part_option:
        raise SweepError(
            f"models of this sweep were judged on the {settled.part} images alone, by an older edgevit; leave "
            "--split out, or choose another --out"
        )
    return settled


def _measured(record: Sweep, work: _Work) -> Sweep:
    """Measure all models in turns, unless they were measured with as many threads."""
    threads = work.request.threads
    points = (*record.points, *record.ready_made)
    if all(point.latency for point in points) and record.threads == threads:
        return record
    models = [work.out / point.folder for point in points]
    work.progress.note(f"latency of {len(models)} models in turns, {ROUNDS} rounds")
    labels = [point.folder for point in points]
    conditions = replace(CONDITIONS, threads=threads)
    request = BenchRequest(models=models, conditions=conditions, repeat=ROUNDS, labels=labels)
    runs = bench(request, progress=work.progress).runs
    with writing(work.out):
        write_whole(work.out / _RUNS, "".join(run.to_json() + "\n" for run in runs))
    comparisons = {c.after.rpartition(" ")[0]: c for c in decisive(compare_within(runs))}
    for reason in sorted({reason for c in comparisons.values() for reason in c.void}):
        work.progress.warn(f"latency: {reason}")
    if any(c.figure == "mean" for c in comparisons.values()):
        work.progress.warn("other programs were busy: latencies are means, whose ratios hold all the same")
    first = next(iter(comparisons.values()))
    latencies = {BASE: Latency(first.figure, first.before_value, 1.0, None, None)}
    latencies |= {name: Latency(c.figure, c.after_value, c.ratio, c.low, c.high) for name, c in comparisons.items()}
    measured, ready_made = (
        tuple(replace(point, latency=latencies[point.folder]) for point in some)
        for some in (record.points, record.ready_made)
    )
    record = replace(record, points=measured, ready_made=ready_made, threads=threads)
    write_sweep(work.out, record)
    return record
