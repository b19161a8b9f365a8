"""Cases of derivations, and their rows: the accuracy tables run these and store what each gave.

All methods of one table land on the same MACs, and all that train see the same number of images. Choices are made on
the validation part, which is held out of the training images; accuracy is reported on `val/`, which no derivation sees.
A row is stored as soon as it is finished, so an interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

from benchmarks.markdown import Row

SIZES = {"rendered": (6, 12, 18), "demo": (2, 3, 4), "fine": (12, 24, 36), "fashion": (3, 5, 10)}  # of the sub-tasks
SEEDS = (42, 43, 44)
STEPS, BATCH, LR = 200, 48, 3e-4

Options = dict[str, Any]

# Options of the super-network that a case slices, by the variant of the case up to a comma.
SUPERNETS: dict[str, Options] = {
    "WPAC only": {},
    "super-network": {},
    "super-network + teacher": {"teacher": "restricted"},
    "no dropout": {"dropout": "none"},
    "channel dropout 0.5": {"dropout": "channel", "dropout_rate": 0.5},
    "weighted channel dropout 0.2": {"dropout": "weighted", "dropout_rate": 0.2},
    "LayerDrop 0.2": {"dropout": "layer", "dropout_rate": 0.2},
    "PIAD": {"dropout": "piad"},
    "channel dropout 0.2": {"dropout": "channel", "dropout_rate": 0.2},
    "weighted channel dropout 0.5": {"dropout": "weighted", "dropout_rate": 0.5},
    "LayerDrop 0.5": {"dropout": "layer", "dropout_rate": 0.5},
}


@dataclass(frozen=True)
class Case:
    """One derivation."""

    table: str
    task: int  # number of classes
    rate: float
    seed: int
    variant: str  # its name in the table
    method: str
    options: Options = field(default_factory=dict)
    shape: str = "fused"
    steps: int = STEPS
    batch_size: int = BATCH
    lr: float = LR
    schedule: Literal["constant", "cosine"] = "cosine"
    data: str = "rendered"  # rendered, demo, fine or fashion; or the name of a user's folder
    supernet_steps: int | None = None  # of the super-network that the case slices
    classes: tuple[str, ...] | None = None  # of the sub-task, where a user names them; None: drawn by their number
    derive_from: str = "base"  # or `better`: the base before or after training, whichever has the lower loss
    finetune_base: bool = False  # report the fine-tuned base, too; no part of the key

    def settings(self) -> dict[str, Any]:
        """Return the fields that identify a row; newer fields only where they are not the default."""
        newer = ("classes", "derive_from")
        defaults = {field.name: field.default for field in fields(self) if field.name in newer}
        values = {name: value for name, value in asdict(self).items() if name != "finetune_base"}
        return {name: value for name, value in values.items() if name not in newer or value != defaults[name]}

    def key(self, base_sha256: str) -> str:
        """Hash the settings and the base: another base or another setting is another row."""
        return hashlib.sha256(json.dumps([self.settings(), base_sha256], sort_keys=True).encode()).hexdigest()[:16]


def on_base(cases: Iterable[Case], base: str) -> list[Case]:
    """Move cases of the rendered base to another base, whose sub-tasks have other sizes."""
    sizes = dict(zip(SIZES["rendered"], SIZES[base], strict=True))
    return [replace(case, data=base, task=sizes[case.task]) for case in cases]


def task_classes(names: Sequence[str], size: int) -> list[str]:
    """Draw the sub-task of this size, with the size as seed."""
    return sorted(random.Random(size).sample(sorted(names), size))


@dataclass(frozen=True)
class Place:
    """A data set and its base, and where derivations of them run."""

    data: Path
    start: Options  # of `edgevit.derive`: base, checkpoint, model_args, preprocessing, base_classes
    classes: tuple[str, ...]  # all that the base and the folder have
    base_sha256: str
    base_top1: float | None  # on all classes; None for a user's base
    cache: Path  # of super-networks, and of what derivations share
    device: str = "cpu"


# -- one derivation ----------------------------------------------------------------------------------------------------


def run(case: Case, place: Place, threads: int) -> Row | str:
    """Do one derivation; return its row, or the reason why it failed."""
    import torch

    from edgevit.errors import EdgeVitError

    torch.set_num_threads(threads)
    # A cache of the benchmark, not the user's, and one per method: seconds of one method do not depend on another.
    cache = str(place.cache / "shared" / case.method)
    folder = Path(tempfile.mkdtemp())
    try:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=cache):
            return _derive(case, place, folder)
    except EdgeVitError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parted(options: Options) -> tuple[Options, Options]:
    """Part a case's options, as rows state them, into the teacher's and the method's."""
    from edgevit.train.settings import TEACHING

    teacher = {name: value for name, value in options.items() if name in TEACHING}
    return teacher, {name: value for name, value in options.items() if name not in teacher}


def _training(case: Case, steps: int, device: str, options: Options) -> tuple[Any, Options]:
    """Return the training and the method's options."""
    from edgevit.train.settings import Training

    teacher, own = parted(options)
    training = Training(
        steps=steps, batch_size=case.batch_size, lr=case.lr, seed=case.seed, device=device, evaluations=5,
        early_stop=False, schedule=case.schedule, **teacher,
    )  # fmt: skip
    return training, own


def _ensure_supernet(case: Case, place: Place, classes: list[str]) -> Path:
    """Return the super-network of this sub-task; train it if it is not in the cache."""
    from edgevit import supernet

    steps = case.supernet_steps
    assert steps is not None
    options = SUPERNETS[case.variant.partition(",")[0]]
    settings = [place.base_sha256, classes, case.seed, steps, case.batch_size, case.lr, case.schedule, options]
    folder = place.cache / f"supernet-{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]}"
    with open(folder.with_suffix(".lock"), "w") as lock:  # for jobs that run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
                out = Path(scratch) / "net"
                training, own = _training(case, steps, place.device, options)
                supernet(**place.start, data=place.data, classes=classes, out=out, training=training, options=own)
                out.rename(folder)
    return folder


def _derive(case: Case, place: Place, folder: Path) -> Row:
    from benchmarks.training_memory import Watched
    from edgevit import derive
    from edgevit.records.model_folder import ModelFolder

    watched = Watched(place.device)
    classes = list(case.classes or task_classes(place.classes, case.task))
    start = place.start
    if case.supernet_steps is not None:
        accepted = {name: value for name, value in start.items() if name.startswith("accept_")}
        start = {"supernet": _ensure_supernet(case, place, classes), **accepted}
    training, options = _training(case, case.steps, place.device, case.options)
    derivation = derive(
        **start,
        data=place.data,
        classes=classes,
        rate=case.rate,
        out=folder / "model",
        method=case.method,
        options=options,
        shape=case.shape,
        training=training,
        finetune_base=case.finetune_base,
        derive_from=case.derive_from,
        progress=watched,
    )
    history = ModelFolder(folder / "model").history()
    row = _row(case, derivation, history[-1].more if history else {})
    row |= {"base_sha256": place.base_sha256, "base_top1": place.base_top1, **device_field(place.device)}
    row |= _teacher_field(row)
    if "lora_rank" in case.options:  # for ablations.py, which shows both constraints by step
        lines = [line for line in history if "accuracy_trained" in line.more and "loss_collapse" in line.more]
        row["constraint_by_step"] = [[line.step, line.more["loss_collapse"], line.more["loss_rank"]] for line in lines]
    if watched.peak_mib is not None:
        row["training_memory_peak_mib"] = round(watched.peak_mib, 1)
    if "supernet" in start:
        row["supernet_seconds"] = ModelFolder(start["supernet"]).supernet().seconds
    return row


def device_field(device: str) -> dict[str, str]:
    """Return a row's field `device`; none on the CPU."""
    return {} if device == "cpu" else {"device": device}


def _teacher_field(row: Row) -> dict[str, bool]:
    """Return whether the teacher's products were in bf16, as on processors that have it; nothing without a teacher."""
    from edgevit.train.products import multiplies_bf16

    return {"teacher_bf16": "device" not in row and multiplies_bf16()} if "loss_teacher" in row["last_losses"] else {}


def _row(case: Case, derivation: Any, last: dict[str, Any]) -> Row:
    from edgevit.records.kinds import plain

    record, spec = derivation.record, derivation.model.spec
    derived, parts = record.accuracy.derived, vars(record.accuracy)
    worst = min(derived.per_class.items(), key=lambda pair: pair[1])
    return {
        **case.settings(),
        "accuracy": {name: part and part.top1 for name, part in parts.items()},
        "worst_class": worst,
        "validation": {"trained": last.get("accuracy_trained"), "pruned": last.get("accuracy_pruned")},
        "facts": plain(record.facts),
        **({} if record.start is None else {"start": plain(record.start)}),
        "last_losses": {name: value for name, value in last.items() if name.startswith(("loss_", "lambda_"))},
        "images_seen": (case.steps + (case.supernet_steps or 0)) * case.batch_size,
        "test_images": derived.images,
        "train_images": record.data.images.train,
        "rate_reached": spec.rate,
        "macs": spec.macs,
        "params": spec.params,
        "embed": spec.embed,
        "blocks": [asdict(b) for b in spec.blocks],
        "seconds": record.seconds,
        "versions": record.versions,
    }


# -- all of them -------------------------------------------------------------------------------------------------------


def load(file: Path) -> dict[str, Row]:
    return dict(json.loads(file.read_text())["rows"]) if file.is_file() else {}


def store(file: Path, rows: dict[str, Row]) -> None:
    file.parent.mkdir(exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"schema": 2, "rows": rows}, indent=1) + "\n")
    temporary.rename(file)


def _run_all(due: dict[str, Case], places: dict[str, Place], file: Path, jobs: int, progress: Any) -> list[str]:
    """Run the cases and store each row as it is finished; return one line for each that failed."""
    import torch

    rows, failed = load(file), []
    threads = 1 if jobs > 1 else torch.get_num_threads()
    with ProcessPoolExecutor(jobs) as pool, progress.stage("accuracy", len(due), "derivation") as stage:
        running = {pool.submit(run, case, places[case.data], threads): key for key, case in due.items()}
        for count, future in enumerate(as_completed(running), 1):
            key, row = running[future], future.result()
            case = due[key]
            name = f"{case.table} {case.task} classes, rate {case.rate}, {case.variant}, seed {case.seed}"
            if isinstance(row, str):
                failed.append(f"{name}: {row}")
                progress.note(failed[-1])
            else:
                rows[key] = row
                store(file, rows)
                progress.note(f"{name}: {100 * row['accuracy']['derived']:.2f} %")
            stage.update(count)
    return failed


def complete(cases: Iterable[Case], places: dict[str, Place], file: Path, jobs: int, progress: Any) -> list[str]:
    """Run the cases that have no row in the file; return one line for each that failed (a rate may be out of reach)."""
    rows = load(file)
    keyed = {case.key(places[case.data].base_sha256): case for case in cases}
    due = {key: case for key, case in keyed.items() if key not in rows}
    print(f"{len(keyed)} cases, {len(due)} to do", file=sys.stderr)
    failed = _run_all(due, places, file, jobs, progress)
    for line in failed:
        print(f"could not be done: {line}", file=sys.stderr)
    return failed


def shortened(case: Case, steps: int) -> Case:
    """Return the case with so many steps wherever it trains."""
    supernet_steps = case.supernet_steps and steps
    return replace(case, steps=case.steps and steps, supernet_steps=supernet_steps)
