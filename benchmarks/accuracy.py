"""Accuracy of every method side by side, and of forge with each of its steps taken away.

    python benchmarks/accuracy.py                 # everything that is not in results/accuracy.json yet
    python benchmarks/accuracy.py --only main     # one table; forge, curve, skd, digits
    python benchmarks/accuracy.py --method nuwa   # one method
    python benchmarks/accuracy.py --jobs 2        # two derivations side by side, one thread each
    python benchmarks/accuracy.py --base fashion  # main and forge on photographs, in results/accuracy_fashion.json
    python benchmarks/accuracy.py --base fine     # the same on the harder base, in results/accuracy_fine.json

Sub-tasks of 6, 12 and 18 of the 24 rendered classes, and of 5 and 10 digits. Every method that trains sees the same
number of images, and all land on the same MACs. Everything is chosen on the validation part, which is held out of the
training images; accuracy is reported on `val/`, which no derivation ever sees. Each result is written as soon as it is
there, so that an interrupted benchmark goes on where it was; the most telling rows come first.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

RESULTS = Path(__file__).parent / "results"
TABLES = ("main", "forge", "curve", "skd", "digits")
TASK_SIZES = (6, 12, 18)
OTHER_SIZES = {"fine": (12, 24, 36), "fashion": (3, 5, 10)}  # of the sub-tasks on the other bases; digits have a table
RATES = (0.4, 0.6, 0.8, 0.9)
HIGHEST = 0.95  # of forge alone: the others end before
SEEDS = (42, 43, 44)
STEPS, BATCH, LR = 200, 48, 3e-4
BASELINE_RATE = 0.8  # the fine-tuned base does not depend on the rate: it is taken once, beside this one
PUBLISHED_RATE = 0.9  # the same in published.py, whose other rates come after it

Options = dict[str, Any]

# Name in the tables: method, its options, steps.
METHODS: dict[str, tuple[str, Options, int]] = {
    "forge": ("forge", {}, STEPS),
    "forge, closed form": ("forge", {}, 0),
    "vulcan": ("vulcan", {}, STEPS),
    "vulcan + teacher": ("vulcan", {"teacher": "restricted", "token_weight": 1.0}, STEPS),  # forge's distillation
    "nuwa": ("nuwa", {}, 0),
    "nuwa, fine-tuned": ("nuwa", {}, STEPS),
}

# Each takes one step of forge away, or puts another in its place; forge itself is in the table "main".
FORGE: dict[str, Options] = {
    "allocation=uniform": {"allocation": "uniform"},
    "allocation=vulcan": {"allocation": "vulcan"},
    "sensitivity=none": {"sensitivity": "none"},
    "sequential=false": {"sequential": False},
    "align=false": {"align": False},
    "refit_head=false": {"refit_head": False},
    "teacher=none": {"teacher": "none"},
    "teacher=finetuned": {"teacher": "finetuned"},
    "drop_heads=false": {"drop_heads": False},
    "drop_blocks=false": {"drop_blocks": False},
    "cut_embedding=false": {"cut_embedding": False},
    "drop_sites=false": {"drop_sites": False},
    "neither dropped": {"drop_heads": False, "drop_blocks": False, "drop_sites": False},
}
FORGE_SHAPES = ("paper", "free")  # beside fused, the default
NARROW = ("fused4", "paper")  # shapes of forge where `fused` is too wide for the other methods
FORGE_TASK, FORGE_RATES = 12, (0.8, 0.9)
TRAINING_ONLY = ("teacher=none", "teacher=finetuned")  # say nothing of the closed form

CURVE_TASK, CURVE_RATE, CURVE_STEPS = 12, 0.8, (10, 21, 50, 100)  # and STEPS, which is in the table "main"
CURVE = [name for name, (_, _, steps) in METHODS.items() if steps]

DIGITS_SIZES, DIGITS_RATES = (5, 10), (0.8, 0.6)
DIGITS_STEPS, DIGITS_BATCH = 100, 32
DIGITS_METHODS = ("forge", "forge, closed form", "vulcan", "vulcan + teacher", "nuwa")

SKD_RATES, SKD_STEPS = (0.25, 0.5, 0.75), 50  # steps of a slice, where it is trained at all
# Steps and options of the super-network that is sliced; with no steps, the base is only brought into WPAC's order.
SKD: dict[str, tuple[int, Options]] = {
    "super-network": (STEPS, {}),
    "super-network + teacher": (STEPS, {"teacher": "restricted"}),
    "WPAC only": (0, {}),
}
# What a step of the training drops (dropout.py); PIAD is named, so that its network is trained beside the others.
DROPOUTS: dict[str, Options] = {
    "no dropout": {"dropout": "none"},
    "channel dropout 0.5": {"dropout": "channel", "dropout_rate": 0.5},
    "weighted channel dropout 0.2": {"dropout": "weighted", "dropout_rate": 0.2},
    "LayerDrop 0.2": {"dropout": "layer", "dropout_rate": 0.2},
    "PIAD": {"dropout": "piad"},
    "channel dropout 0.2": {"dropout": "channel", "dropout_rate": 0.2},
    "weighted channel dropout 0.5": {"dropout": "weighted", "dropout_rate": 0.5},
    "LayerDrop 0.5": {"dropout": "layer", "dropout_rate": 0.5},
}
# Options of the super-network that a case slices, by its variant up to a comma.
SUPERNETS: dict[str, Options] = {**{name: options for name, (_, options) in SKD.items()}, **DROPOUTS}


@dataclass(frozen=True)
class Case:
    """One derivation."""

    table: str  # one of TABLES, or the name of another script that has such rows
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
    data: str = "rendered"  # rendered, digits, fine, fashion or demo; or the name of a user's folder
    supernet_steps: int | None = None  # of the super-network that the case slices
    classes: tuple[str, ...] | None = None  # of the sub-task, where a user names them; None: drawn by their number
    derive_from: str = "base"  # or, of the base as it is and after training, the better

    def settings(self) -> dict[str, Any]:
        """Its fields, but for those that are younger than most rows and have their default, so that keys stay."""
        young = ("classes", "derive_from")
        defaults = {field.name: field.default for field in fields(self) if field.name in young}
        return {name: value for name, value in asdict(self).items() if name not in young or value != defaults[name]}

    def key(self, base_sha256: str) -> str:
        """What identifies a result: another base or another setting is another result."""
        return hashlib.sha256(json.dumps([self.settings(), base_sha256], sort_keys=True).encode()).hexdigest()[:16]

    @property
    def takes_finetuned_base(self) -> bool:
        """Once per task and seed."""
        if self.table == "published":
            return self.variant == "forge" and self.rate == PUBLISHED_RATE
        if self.table in ("dimensions", "rivals"):
            return self.variant == "forge" and self.steps > 0 and self.rate == BASELINE_RATE
        return self.table in ("main", "digits") and self.variant == "vulcan" and self.rate == BASELINE_RATE


def shape_at(rate: float, keeps_everything: bool) -> str:
    """Choose the shape: with every head and block kept, `fused` ends at rate 0.892 of this base."""
    return "paper" if keeps_everything and rate > 0.89 else "fused"


def _main_cases(seeds: Iterable[int], rates: Iterable[float], variants: Iterable[str]) -> Iterator[Case]:
    for rate in rates:
        for seed in seeds:
            for task in TASK_SIZES:
                for variant in variants:
                    method, options, steps = METHODS[variant]
                    shape = shape_at(rate, method != "forge")
                    yield Case("main", task, rate, seed, variant, method, options, shape, steps)
                    if method == "forge" and shape != shape_at(rate, True):  # and with narrower heads, as the others
                        for narrow in NARROW:
                            yield Case("main", task, rate, seed, f"{variant}, {narrow}", method, options, narrow, steps)


def _highest_cases(seeds: Iterable[int]) -> Iterator[Case]:
    forges = [name for name, (method, _, _) in METHODS.items() if method == "forge"]
    for case in _main_cases(seeds, [HIGHEST], forges):
        yield case
        if case.shape == "fused" and not case.steps and case.seed == SEEDS[0]:
            yield replace(case, table="forge", variant="cut_embedding=false", options=FORGE["cut_embedding=false"])


def _forge_cases(tasks: Iterable[int], steps: int) -> Iterator[Case]:
    for rate in FORGE_RATES:
        for task in tasks:
            for variant, options in FORGE.items():
                if steps == 0 and variant in TRAINING_ONLY:
                    continue
                keeps = "allocation" in options or FORGE["neither dropped"].items() <= options.items()
                shape = shape_at(rate, keeps)
                yield Case("forge", task, rate, SEEDS[0], variant, "forge", options, shape, steps)
            for shape in FORGE_SHAPES:
                yield Case("forge", task, rate, SEEDS[0], f"shape={shape}", "forge", {}, shape, steps)


def _curve_cases() -> Iterator[Case]:
    for steps in CURVE_STEPS:
        for variant in CURVE:
            method, options, _ = METHODS[variant]
            yield Case("curve", CURVE_TASK, CURVE_RATE, SEEDS[0], variant, method, options, steps=steps)


def _digits_cases() -> Iterator[Case]:
    for seed in SEEDS:
        for rate in DIGITS_RATES:
            for task in DIGITS_SIZES:
                for variant in DIGITS_METHODS:
                    method, options, steps = METHODS[variant]
                    case = Case("digits", task, rate, seed, variant, method, options, data="digits")
                    yield replace(case, steps=DIGITS_STEPS if steps else 0, batch_size=DIGITS_BATCH)


def _skd_cases(tasks: Iterable[int]) -> Iterator[Case]:
    for task in tasks:
        for rate in SKD_RATES:
            for name, (supernet_steps, _) in SKD.items():
                for steps, told in ((0, ""), (SKD_STEPS, f", {SKD_STEPS} steps")):
                    case = Case("skd", task, rate, SEEDS[0], name + told, "skd", steps=steps)
                    yield replace(case, supernet_steps=supernet_steps)


def _beside_skd_cases() -> Iterator[Case]:
    """Vulcan at the rates of the slices."""
    for rate in SKD_RATES:
        for task in TASK_SIZES:
            yield Case("skd", task, rate, SEEDS[0], "vulcan", "vulcan")


def cases() -> Iterator[Case]:
    """Every derivation, in the order in which a reader would miss it."""
    first, *others = SEEDS
    taught, tuned = "vulcan + teacher", "nuwa, fine-tuned"
    most = [name for name in METHODS if name != taught]
    judged = [name for name in METHODS if name != tuned]  # all that a target is about
    yield from _main_cases([first], (0.8, 0.9), METHODS)
    yield from _main_cases([first], (0.6, 0.4), most)
    yield from _highest_cases([first])
    yield from _forge_cases(TASK_SIZES, 0)
    yield from _curve_cases()
    yield from _main_cases(others, (0.8, 0.9), judged)
    yield from _highest_cases(others)
    yield from _digits_cases()
    yield from _skd_cases([FORGE_TASK])
    yield from _main_cases([first], (0.6, 0.4), [taught])
    yield from _forge_cases([FORGE_TASK], STEPS)
    yield from _skd_cases(size for size in TASK_SIZES if size != FORGE_TASK)
    yield from _main_cases(others, (0.6, 0.4), [name for name in judged if name != taught])
    yield from _main_cases(others, (0.6, 0.4), [taught])
    yield from _main_cases(others, RATES, [tuned])
    yield from _beside_skd_cases()


Base = Literal["rendered", "fine", "fashion"]


def on_base(wanted: Iterable[Case], base: Base) -> list[Case]:
    """The same cases on another base, whose sub-tasks have other sizes."""
    sizes = dict(zip(TASK_SIZES, OTHER_SIZES.get(base, TASK_SIZES), strict=True))
    return [replace(case, data=base, task=sizes[case.task]) for case in wanted]


def cases_on(base: Base) -> list[Case]:
    """The cases of a base. On another than the first: every method, and forge without its steps, at each size."""
    if base == "rendered":
        return list(cases())
    return on_base((case for case in cases() if case.table in ("main", "forge")), base)


def records_of(name: str, base: Base) -> Path:
    """The file of a benchmark's rows on this base."""
    return RESULTS / (f"{name}.json" if base == "rendered" else f"{name}_{base}.json")


def task_classes(names: Sequence[str], size: int) -> list[str]:
    """The sub-task of this size: drawn once, by a seed that is its size."""
    return sorted(random.Random(size).sample(sorted(names), size))


# -- data and bases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a data set and its base are, and where derivations of them run."""

    data: Path
    start: Options  # of `edgevit.derive`: base, checkpoint, model_args, preprocessing, base_classes
    classes: tuple[str, ...]  # all that the base and the folder have
    base_sha256: str
    base_top1: float | None  # on all classes; None: of a user's base, which is not asked for all of them
    cache: Path  # of super-networks, and of what derivations share
    device: str = "cpu"  # where torch computes: a row is known by what it is of, not by where it came about


def _ensure_digits(progress: Any) -> tuple[Path, Path]:
    """Return the digits as an image folder and their base.

    As a folder the test part is the same whatever the seed, so that it never holds an image the base learnt from.
    """
    from base import CACHE, DIGITS_ARGS, DIGITS_RECIPE, ensure_base, read_digits
    from dataset import complete_folder
    from PIL import Image

    from edgevit.data.task import open_task

    plain = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
    plain |= {"input_size": [3, 32, 32], "crop_mode": "center"}
    task = open_task("digits", None, preprocessing=plain, base_outputs=10)
    rows = {"train": [*task.train.references, *task.validation.references], "val": list(task.test.references)}
    images = read_digits([int(str(r)) for r in rows["train"]], [int(str(r)) for r in rows["val"]])
    base = ensure_base(images, DIGITS_ARGS, DIGITS_RECIPE, progress=progress)
    folder = CACHE / f"digits-{base.name.removeprefix('base-')}"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            parts = {"train": (images.train, images.train_labels), "val": (images.val, images.val_labels)}
            for part, (pixels, labels) in parts.items():
                for name in images.classes:
                    (partial / part / name).mkdir(parents=True)
                for i, (picture, label) in enumerate(zip(pixels.permute(0, 2, 3, 1).numpy(), labels, strict=True)):
                    Image.fromarray(picture).save(partial / part / images.classes[int(label)] / f"{i:05d}.png")
    return folder, base


def open_places(kinds: Iterable[str], progress: Any, device: str = "cpu") -> dict[str, Place]:
    import demo
    from base import ensure_rendered_base
    from fashion import ensure_fashion_base
    from fine import ensure_fine_base

    from edgevit.network.checkpoint import tensors_sha256
    from edgevit.network.weights import read_weights

    places = {}
    for kind in kinds:
        match kind:
            case "rendered":
                data, base = ensure_rendered_base(progress=progress)
            case "digits":
                data, base = _ensure_digits(progress)
            case "demo":
                data, base = demo.ensure_data(progress)
            case "fine":
                data, base = ensure_fine_base(progress=progress)
            case _:
                data, base = ensure_fashion_base(progress=progress)
        facts = json.loads((base / "base.json").read_text())
        sha256 = tensors_sha256(read_weights(base / "base.safetensors"))
        start, classes = base_arguments(base, facts), tuple(facts["classes"])
        places[kind] = Place(data, start, classes, sha256, facts["val_top1"], base.parent, device)
    return places


def base_arguments(base: Path, facts: dict[str, Any]) -> Options:
    return {
        "base": facts["timm_name"],
        "checkpoint": base / "base.safetensors",
        "model_args": facts["model_args"],
        "preprocessing": {"mean": facts["mean"], "std": facts["std"], "crop_pct": 1.0},
    }


# -- one derivation ----------------------------------------------------------------------------------------------------


def run(case: Case, place: Place, threads: int) -> dict[str, Any] | str:
    """Do one derivation; return what is worth keeping of it, or why it could not be done."""
    import torch

    from edgevit.errors import EdgeVitError

    torch.set_num_threads(threads)
    # The benchmark's own cache, not the user's, and one per method: none gets for nothing what another worked out.
    own = str(place.cache / "shared" / case.method)
    folder = Path(tempfile.mkdtemp())
    try:
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=own):
            return _derive(case, place, folder)
    except EdgeVitError as error:
        return str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _training(case: Case, steps: int, device: str) -> Any:
    from edgevit.train.settings import Training

    return Training(
        steps=steps, batch_size=case.batch_size, lr=case.lr, seed=case.seed, device=device, evaluations=5,
        early_stop=False, schedule=case.schedule,
    )  # fmt: skip


def _ensure_supernet(case: Case, place: Place, classes: list[str]) -> Path:
    """Return the super-network of this sub-task; train it if it is not there yet."""
    from edgevit.derivation.supernet import supernet

    steps = case.supernet_steps
    assert steps is not None
    options = SUPERNETS[case.variant.partition(",")[0]]
    how = [case.seed, steps, case.batch_size, case.lr, case.schedule, options]
    known = json.dumps([place.base_sha256, classes, *how])
    folder = place.cache / f"supernet-{hashlib.sha256(known.encode()).hexdigest()[:16]}"
    with open(folder.with_suffix(".lock"), "w") as lock:  # two jobs may want the same one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
                made = Path(scratch) / "net"
                training = _training(case, steps, place.device)
                supernet(**place.start, data=place.data, classes=classes, out=made, training=training, options=options)
                made.rename(folder)
    return folder


def _derive(case: Case, place: Place, folder: Path) -> dict[str, Any]:
    from training_memory import Watched

    from edgevit.derivation.session import derive
    from edgevit.records.model_folder import ModelFolder

    watched = Watched(place.device)
    classes = list(case.classes or task_classes(place.classes, case.task))
    start = place.start
    if case.supernet_steps is not None:
        accepted = {name: value for name, value in start.items() if name.startswith("accept_")}
        start = {"supernet": _ensure_supernet(case, place, classes), **accepted}
    derivation = derive(
        **start,
        data=place.data,
        classes=classes,
        rate=case.rate,
        out=folder / "model",
        method=case.method,
        options=case.options,
        shape=case.shape,
        training=_training(case, case.steps, place.device),
        finetune_base=case.takes_finetuned_base,
        derive_from=case.derive_from,
        progress=watched,
    )
    history = ModelFolder(folder / "model").history()
    row = _row(case, derivation, history[-1].more if history else {})
    row |= {"base_sha256": place.base_sha256, "base_top1": place.base_top1, **told_device(place.device)}
    row |= told_teacher(row)
    if "lora_rank" in case.options:  # the part of ablations.py that asks what it does to the constraints
        judged = [line for line in history if "accuracy_trained" in line.more and "loss_collapse" in line.more]
        row["constraint_by_step"] = [[j.step, j.more["loss_collapse"], j.more["loss_rank"]] for j in judged]
    if watched.peak_mib is not None:
        row["training_memory_peak_mib"] = round(watched.peak_mib, 1)
    if "supernet" in start:
        row["supernet_seconds"] = ModelFolder(start["supernet"]).supernet().seconds
    return row


def told_device(device: str) -> dict[str, str]:
    """What a row says of where it ran: nothing of the CPU, where all the first rows ran."""
    return {} if device == "cpu" else {"device": device}


def told_teacher(row: dict[str, Any]) -> dict[str, bool]:
    """Whether the products of a row's teacher were in bf16, as on a processor that has them; nothing without one."""
    from edgevit.train.products import multiplies_bf16

    return {"teacher_bf16": "device" not in row and multiplies_bf16()} if "loss_teacher" in row["last_losses"] else {}


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where torch computes")


def _row(case: Case, derivation: Any, last: dict[str, Any]) -> dict[str, Any]:
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


def load(file: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads(file.read_text())["rows"]) if file.is_file() else {}


def store(file: Path, rows: dict[str, dict[str, Any]]) -> None:
    file.parent.mkdir(exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({"schema": 2, "rows": rows}, indent=1) + "\n")
    temporary.rename(file)


def run_all(due: dict[str, Case], places: dict[str, Place], file: Path, jobs: int, progress: Any) -> list[str]:
    """Do what is due, storing each row as it comes; return what could not be done."""
    import torch

    rows, failed = load(file), []
    threads = 1 if jobs > 1 else torch.get_num_threads()
    with ProcessPoolExecutor(jobs) as pool, progress.stage("accuracy", len(due), "derivation") as stage:
        running = {pool.submit(run, case, places[case.data], threads): key for key, case in due.items()}
        for done, future in enumerate(as_completed(running), 1):
            key, row = running[future], future.result()
            case = due[key]
            shown = f"{case.table} {case.task} classes, rate {case.rate}, {case.variant}, seed {case.seed}"
            if isinstance(row, str):
                failed.append(f"{shown}: {row}")
                progress.note(failed[-1])
            else:
                rows[key] = row
                store(file, rows)
                progress.note(f"{shown}: {100 * row['accuracy']['derived']:.2f} %")
            stage.update(done)
    return failed


def complete(wanted: Iterable[Case], places: dict[str, Place], file: Path, jobs: int, progress: Any) -> list[str]:
    """Do what is wanted and not in the file yet; return what could not be done. A rate out of reach is a result."""
    rows = load(file)
    keyed = {case.key(places[case.data].base_sha256): case for case in wanted}
    due = {key: case for key, case in keyed.items() if key not in rows}
    print(f"{len(keyed)} cases, {len(due)} to do", file=sys.stderr)
    failed = run_all(due, places, file, jobs, progress)
    for line in failed:
        print(f"could not be done: {line}", file=sys.stderr)
    return failed


def shortened(case: Case, steps: int) -> Case:
    """The case with so many steps wherever it trains."""
    supernet_steps = case.supernet_steps and steps
    return replace(case, steps=case.steps and steps, supernet_steps=supernet_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=("rendered", *OTHER_SIZES), default="rendered")
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--method", choices=sorted({case.method for case in cases()}))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--jobs", type=int, default=1, help="derivations side by side, one thread each if more than 1")
    parser.add_argument("--results", type=Path, help="file of the rows; another one for a trial")
    parser.add_argument("--steps", type=int, help="of every case that trains: for a trial")
    add_device(parser)
    given = parser.parse_args()
    from edgevit.cli.console import Console

    progress = Console().progress
    results = given.results or records_of("accuracy", given.base)
    wanted = [
        shortened(case, given.steps) if given.steps else case
        for case in cases_on(given.base)
        if case.seed in SEEDS[: given.seeds]
        and given.only in (None, case.table)
        and given.method in (None, case.method)
    ]
    places = open_places(dict.fromkeys(case.data for case in wanted), progress, given.device)
    sys.exit(1 if complete(wanted, places, results, given.jobs, progress) else 0)


if __name__ == "__main__":
    main()
