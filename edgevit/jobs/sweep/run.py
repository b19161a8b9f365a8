"""`edgevit.sweep`: derive at several rates, judge and measure each beside the base, and keep what is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgevit.board.bench import bench_in_turns
from edgevit.board.comparison import compare_within, decisive
from edgevit.board.request import Conditions
from edgevit.derivation.cache import shared_cache
from edgevit.derivation.request import BaseRequest
from edgevit.derivation.session.base import run as write_base
from edgevit.derivation.session.derive import run as derive
from edgevit.derivation.session.derive import versions
from edgevit.errors import BudgetError, DataError, Interrupted, OutputError, SweepError
from edgevit.exporting.current import current_export
from edgevit.exporting.session import find_runtime
from edgevit.jobs.sweep.record import (
    BASE,
    RECORD,
    FinetunedBase,
    Latency,
    Sweep,
    SweepPoint,
    read_sweep,
    write_sweep,
)
from edgevit.jobs.sweep.request import SweepRequest
from edgevit.progress import OnlyOnce, Progress, Silent
from edgevit.records.answers import RightImages
from edgevit.records.derivation import DerivationRecord, JudgedPart
from edgevit.records.lock import alone_in
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import differences, first_few, has_state
from edgevit.records.writing import write_whole, writing
from edgevit.request import as_request, takes_options

RUNS = "runs.jsonl"
ROUNDS = 8  # an interval needs 6
# Of one run. Every model has a run in each of the rounds: so few samples are enough for their ratios.
CONDITIONS = Conditions(samples=100, duration_s=0.5, warmup_seconds=0.2)

FIRST_RATE = ": it takes longest, because what the base says of the task is measured once, for all rates"


@dataclass(frozen=True)
class _Work:
    """One sweep under way."""

    request: SweepRequest
    progress: Progress

    @property
    def out(self) -> Path:
        return self.request.out

    def model(self, rate: float) -> str | None:
        """Derive at this rate unless the model is there; return why there is none."""
        asked = self.request.at(rate)
        if asked.out.is_dir():
            return None
        find_runtime()  # what measures the model, which may take hours
        rates = self.request.rates
        self.progress.note(
            f"rate {rate:g}, {rates.index(rate) + 1} of {len(rates)}{FIRST_RATE if rate == rates[0] else ''}"
        )
        try:
            derive(asked, self.progress)
        except BudgetError as error:
            self.progress.warn(f"rate {rate:g} left out: {error}")
            return f"rate {rate:g}: {error}"
        return None

    def write_base(self, classes: Sequence[str]) -> None:
        """Write the base, restricted to the classes of the models."""
        if not (self.out / BASE).is_dir():
            asked = self.request
            shared = ("data", "training", "validation_fraction", "group_by", "skip_bad_images", "cache")
            given = {**asked.opening(), **{name: getattr(asked, name) for name in shared}, "checked": True}
            write_base(BaseRequest(name=asked.base, out=self.out / BASE, classes=classes, **given), self.progress)

    def made(self, rate: float) -> DerivationRecord:
        """How the model of this rate came to be, and what it was judged on.

        Raises:
            SweepError: an older edgevit derived it, and did not judge it on validation images.
        """
        folder = self.out / f"r{rate:.12g}"
        record = ModelFolder(folder).derivation()
        if record is None or record.data is None or record.validation is None:
            raise SweepError(
                f"{folder} does not say how many validation images are right; remove it to derive it again"
            )
        return record

    def point(self, folder: str, rate: float | None, made: DerivationRecord, part: JudgedPart) -> SweepPoint:
        """Export a model for the measurement, and say what it was judged; of the base, what `made` says."""
        model, who = self.out / folder, "base_restricted" if rate is None else "derived"
        self.progress.note(f"{folder}: export")
        current_export(model, fp16=False, accuracy=False, progress=self.progress)
        spec = ModelFolder(model).document()
        return SweepPoint(
            folder, rate, *_counts(made, who, part), spec.macs, spec.params, judged=_judged(made, who),
            weights_sha256=spec.weights_sha256,
        )  # fmt: skip


def _counts(made: DerivationRecord, who: str, part: JudgedPart) -> tuple[int, int]:
    """How many images of the part are right, and how many there are."""
    if part == "validation":
        assert made.validation is not None
        return getattr(made.validation, who), made.validation.images
    test = getattr(made.accuracy, who)
    return round(test.top1 * test.images), test.images


def _judged(made: DerivationRecord, who: str) -> dict[JudgedPart, RightImages] | None:
    """Which images are right, by part; None: an older edgevit judged it."""
    return None if made.answers is None else {part: getattr(one, who) for part, one in made.answers.items()}


def _finetuned(made: DerivationRecord, part: JudgedPart) -> FinetunedBase | None:
    """The trained base as the derivation of a model judged it; None where none was to be cut."""
    if made.start is None:
        return None
    return FinetunedBase(*_counts(made, "base_finetuned", part), made.start, _judged(made, "base_finetuned"))


@takes_options(SweepRequest)
def sweep(base: str | Path | SweepRequest | None = None, *, progress: Progress | None = None, **options: Any) -> Sweep:
    """Derive in closed form at several rates, and set each model against the base: accuracy, cost and latency.

    `out` gets the models as r0.5 and so on, the base restricted to the classes as base, sweep.json and runs.jsonl. All
    are judged on the `part` of the data that nothing is fitted to: "validation", as `chosen` of the result is a choice,
    or "test", which is the default where the base was probably trained on the validation images. Latency is that of
    their fp32 ONNX files on this machine, in turns. The same call goes on where it was interrupted, also with more
    rates; another `part` derives nothing anew.

    Args:
        base: as for `edgevit.derive`.
        options: the fields of `SweepRequest`. Only the base can be trained, once for all rates, for `base_steps`, where
            `derive_from` asks for it.

    Raises:
        OptionError: also of an option that there is not.
        SweepError: `out` holds a sweep of something else, or one that cannot be read.
        BudgetError: no model can be derived at any of the rates.
        EdgeVitError: whatever else is wrong, in one line.
    """
    return run(as_request(SweepRequest, "base", base, options), progress)


def run(request: SweepRequest, progress: Progress | None = None) -> Sweep:
    """Do what is asked; `sweep` says what is raised."""
    once = tuple(sorted(set(request.rates)))
    request = replace(request, rates=once, training=replace(request.training, steps=0))
    request.check()
    with _opened(request) as record, shared_cache(request.cache) as shared:
        work = _Work(replace(request, cache=shared), OnlyOnce(progress or Silent()))
        try:
            return _measured(_derived(record, work), work)
        except (KeyboardInterrupt, Interrupted) as stop:
            raise Interrupted("stopped; the same command goes on with the rates that are not done") from stop


@contextmanager
def _opened(request: SweepRequest) -> Iterator[Sweep]:
    """Hold the folder for one process, and give the sweep that is there, or a new one where no model is there."""
    out, asked = request.out, request.identity()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with alone_in(out, OutputError(f"another edgevit is working in {out}; wait until it has ended")):
        if not ((out / RECORD).is_file() and any(map(has_state, out.iterdir()))):
            created = datetime.now(timezone.utc).isoformat(timespec="seconds")
            write_sweep(out, Sweep(asked, "validation", created, versions()))
        record = read_sweep(out)
        if changed := differences(record.request, asked):
            raise SweepError(f"{out} holds a sweep of something else: {first_few(changed)}; choose another --out")
        yield record


def _derived(record: Sweep, work: _Work) -> Sweep:
    """See that there is a judged and exported model for every rate, and the base."""
    # A model that replaced the one of its rate is judged as it is now.
    done = {
        point.rate: point
        for point in record.points
        if (work.out / point.folder).is_dir() and point.is_of(ModelFolder(work.out / point.folder))
    }
    whys = []
    for rate in work.request.rates:
        if rate in done:
            continue
        if (why := work.model(rate)) is not None:
            whys.append(why)
            continue
        made = work.made(rate)
        assert made.data is not None
        if None not in done:
            work.write_base([c.name for c in made.data.classes])
            done[None] = work.point(BASE, None, made, record.part)
        done[rate] = work.point(f"r{rate:.12g}", rate, made, record.part)
        known = record.fingerprint or made.data.fingerprint
        earlier = next((ModelFolder(work.out / point.folder).derivation() for point in record.derived), None)
        contents = earlier and earlier.data and earlier.data.contents
        same = made.data.fingerprint == known and contents in (None, {}, made.data.contents)
        if not same or done[rate].images != done[None].images:
            raise DataError(
                f"the images in {work.request.data} are not those the sweep began with; choose another --out"
            )
        ordered = sorted(done.values(), key=lambda point: (point.rate is not None, point.rate or 0))
        finetuned = record.finetuned or _finetuned(made, record.part)
        record = replace(record, points=tuple(ordered), finetuned=finetuned, fingerprint=known)
        record = _on_its_part(record, work.request.part)
        done = {point.rate: point for point in record.points}
        write_sweep(work.out, record)
    if not record.derived:
        raise BudgetError(f"no model can be derived at any of the rates; {whys[-1]}")
    settled = replace(_on_its_part(record, work.request.part), left_out=tuple(whys))
    if settled != record:
        write_sweep(work.out, settled)
    return settled


def _on_its_part(record: Sweep, asked: str | None) -> Sweep:
    """The sweep by the part that is asked for, or else by the one that the base was not trained on.

    Raises:
        SweepError: models are there of an older edgevit, which judged them on the other part alone.
    """
    part: JudgedPart = "test" if asked == "test" or (asked is None and record.recalled()) else "validation"
    settled = record.judged_on(part)
    if asked is not None and settled.part != asked:
        raise SweepError(
            f"models of this sweep were judged on the {settled.part} images alone, by an older edgevit; leave "
            "--split out, or choose another --out"
        )
    return settled


def _measured(record: Sweep, work: _Work) -> Sweep:
    """Measure all models in turns, unless that is done with as many threads."""
    threads = work.request.threads
    if all(point.latency for point in record.points) and record.threads == threads:
        return record
    models = [work.out / point.folder for point in record.points]
    work.progress.note(f"latency of {len(models)} models in turns, {ROUNDS} rounds")
    labels = [point.folder for point in record.points]
    how = replace(CONDITIONS, threads=threads)
    runs = bench_in_turns(models, how, rounds=ROUNDS, labels=labels, progress=work.progress).runs
    with writing(work.out):
        write_whole(work.out / RUNS, "".join(run.to_json() + "\n" for run in runs))
    found = {c.after.split()[0]: c for c in decisive(compare_within(runs))}
    for reason in sorted({reason for c in found.values() for reason in c.void}):
        work.progress.warn(f"latency: {reason}")
    if any(c.figure == "mean" for c in found.values()):
        work.progress.warn("other programs were busy: latencies are means, whose ratios hold all the same")
    first = next(iter(found.values()))
    latencies = {BASE: Latency(first.figure, first.before_value, 1.0, None, None)}
    latencies |= {name: Latency(c.figure, c.after_value, c.ratio, c.low, c.high) for name, c in found.items()}
    points = tuple(replace(point, latency=latencies[point.folder]) for point in record.points)
    record = replace(record, points=points, threads=threads)
    write_sweep(work.out, record)
    return record
