"""A model derived for its classes, against one model for all classes, and against a small model of as many MACs.

    python -m benchmarks.papers.agnostic                      # every row that records/agnostic.json does not have
    python -m benchmarks.papers.agnostic --base demo --seeds 1 --steps 60
    python -m benchmarks.papers.agnostic --data IMAGES --base vit_base_patch16_224 --checkpoint B.safetensors \
        --small vit_small_patch16_224 --small-checkpoint S.safetensors --tasks 25

Vulcan's Figure 6: a model pruned for all classes is judged on sub-tasks, beside models that the same method derived for
these at the same rate. The paper judges it with its full head; the table also has the argmax over the sub-task alone,
which costs nothing and is the fairer rival.

Vulcan's Table 4: a small architecture, here the base at half its width, is trained on the sub-task from random weights,
and from weights that know all classes; beside it is a model derived from the base at the same MACs. Every model sees
the same images in the same number of steps; the small one from random weights also trains five times as long.

Accuracy is on the test part, which no derivation and no training sees.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import timm
import torch

import edgevit
from benchmarks.derivations import BATCH, LR, SEEDS, STEPS, device_field
from benchmarks.markdown import Row, grouped, percent, picked, points, seeds_text, table
from benchmarks.sources import (
    Source,
    add_source,
    load_rows,
    predictor,
    record_file,
    refusals,
    smaller,
    source_from,
    store_rows,
)
from edgevit.derivation.session.resolved import versions
from edgevit.errors import BudgetError
from edgevit.network.accuracy import Accuracy, measure_accuracy
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.train.history import History
from edgevit.train.loop import train
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

RATES = (0.6, 0.8)
METHODS = ("vulcan", "forge")
LONG = 5  # times the steps of the others
SCRATCH, SCRATCH_LONG, KNOWING = "small, random weights", f"small, random weights, {LONG} times", "small, all classes"


@dataclass(frozen=True)
class ModelCase:
    """One model to make, and where it is judged."""

    kind: str  # specific, agnostic, or one of the small ones
    method: str  # or "" of a small one
    rate: float  # of the base's MACs
    classes: tuple[str, ...]  # of the sub-task
    seed: int
    steps: int

    def key(self, base_sha256: str) -> list[Any]:
        return json.loads(json.dumps([*asdict(self).values(), base_sha256]))  # type: ignore[no-any-return]


def model_cases(
    tasks: Sequence[Sequence[str]], seeds: Sequence[int], steps: int, small_rate: float | None, methods: Sequence[str]
) -> Iterator[ModelCase]:
    """Yield every model, the most telling first."""
    for seed in seeds:
        for classes in map(tuple, tasks):
            for method in methods:
                for rate in RATES:
                    yield ModelCase("specific", method, rate, classes, seed, steps)
                    yield ModelCase("agnostic", method, rate, classes, seed, steps)
                if small_rate is not None:
                    yield ModelCase("specific", method, small_rate, classes, seed, steps)
            if small_rate is not None:
                for kind in (SCRATCH, KNOWING, SCRATCH_LONG):
                    length = LONG * steps if kind == SCRATCH_LONG else steps
                    yield ModelCase(kind, "", small_rate, classes, seed, length)


class Maker:
    """Makes the models; one model for all classes serves every sub-task."""

    def __init__(self, source: Source, small: Source | None, folder: Path, device: str = "cpu") -> None:
        self.source, self.small, self.folder, self.device = source, small, folder, device
        self.for_all = cache(self._for_all)

    def training(self, seed: int, steps: int) -> Training:
        return Training(steps=steps, batch_size=BATCH, lr=LR, seed=seed, device=self.device, evaluations=2)

    def derive(self, method: str, rate: float, classes: Sequence[str], seed: int, steps: int) -> edgevit.Derivation:
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            return edgevit.derive(
                **self.source.start, data=self.source.data, classes=list(classes), rate=rate, method=method,
                training=self.training(seed, steps), cache=self.source.cache, out=Path(scratch) / "model",
            )  # fmt: skip

    def _for_all(self, method: str, rate: float, seed: int, steps: int) -> edgevit.Derivation:
        return self.derive(method, rate, self.source.classes, seed, steps)

    def row(self, case: ModelCase) -> Row:
        """What came of it.

        Raises:
            BudgetError: the rate cannot be reached.
        """
        if case.kind == "specific":
            derivation = self.derive(case.method, case.rate, case.classes, case.seed, case.steps)
            accuracy = derivation.record.accuracy
            assert accuracy.derived and accuracy.base_restricted and accuracy.base_full_head
            return {
                "top1": accuracy.derived.top1, "macs": derivation.model.spec.macs, "images": accuracy.derived.images,
                "base_restricted": accuracy.base_restricted.top1, "base_full_head": accuracy.base_full_head.top1,
            }  # fmt: skip
        if case.kind == "agnostic":
            model = self.for_all(case.method, case.rate, case.seed, case.steps).model
            judged = self.judge(model, self.source, case, model.spec.class_names)
            return {
                "top1": judged.top1,
                "top1_full": judged.top1_full,
                "macs": model.spec.macs,
                "images": judged.images,
            }
        assert self.small is not None
        network = small_network(self.small, case)
        task, training = (
            self.small.task(case.classes, seed=case.seed),
            self.training(case.seed, case.steps),
        )
        train(network, task, training, open_passes(training), History(None))
        judged = self.judge(network.eval(), self.small, case, task.class_names)
        return {"top1": judged.top1, "macs": self.small.base.spec.macs, "images": judged.images}

    def judge(self, network: Network, source: Source, case: ModelCase, outputs: Sequence[str]) -> Accuracy:
        """Measure a network with these outputs on the sub-task's test images."""
        task = source.task(case.classes, seed=case.seed)
        output = Logits(tuple(list(outputs).index(name) for name in task.class_names))
        return measure_accuracy(predictor(network, self.device), task.test.batches(200), output, task.class_names)


def small_network(small: Source, case: ModelCase) -> Network:
    """Build the small model with one output per class; with random weights unless the case is KNOWING."""
    informed = with_classes(small.base, small.task(case.classes, seed=case.seed).base_columns)
    if case.kind == KNOWING:
        return informed
    spec = small.base.spec
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        module = timm.create_model(spec.timm_name, **{**spec.timm_args, "num_classes": len(case.classes)})
    return Network(module)


# -- tables ------------------------------------------------------------------------------------------------------------

SHOWN = {"vulcan": "Vulcan", "forge": "forge"}


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None or not data["rows"]:
        return ""
    parts = ["## For the sub-task, or for all classes\n"]
    for (title, _), rows in grouped(data["rows"], "source", "base_sha256").items():
        parts += [_introduction(title, rows), _agnostic_table(rows)]
        if picked(rows, kind=KNOWING):
            parts.append(_small_table(rows))
    return "\n".join(parts)


def _introduction(title: str, rows: Sequence[Row]) -> str:
    steps = min(row["steps"] for row in rows)
    head = (
        f"Base {title}, {rows[0]['all_classes']} classes. {seeds_text(rows)}, one sub-task of each size; "
        f"{steps} steps of {BATCH} images. Top-1 on the sub-task's test images, of which the smallest has "
        f"{min(row['images'] for row in rows)}."
    )
    return "\n".join(textwrap.wrap(head, 118)) + "\n"


def _agnostic_table(rows: Sequence[Row]) -> str:
    lines = []
    for (method, rate, task), group in grouped(rows, "method", "rate", "task").items():
        specific, agnostic = picked(group, kind="specific"), picked(group, kind="agnostic")
        if not specific or not agnostic:
            continue
        of = {row["seed"]: row["top1"] for row in agnostic}
        apart = [row["top1"] - of[row["seed"]] for row in specific if row["seed"] in of]
        lines.append(
            [
                f"{task} classes, {SHOWN[method]}, {rate:g}",
                percent([row["base_full_head"] for row in specific]),
                percent([row["base_restricted"] for row in specific]),
                percent([row["top1_full"] for row in agnostic]),
                percent([row["top1"] for row in agnostic]),
                percent([row["top1"] for row in specific]),
                points(apart),
            ]
        )
    head = [
        "",
        "base",
        "base, restricted",
        "for all",
        "for all, restricted",
        "for the sub-task",
        "points, the last less the one before",
    ]
    return table(head, lines)


def _small_table(rows: Sequence[Row]) -> str:
    rate = picked(rows, kind=KNOWING)[0]["rate"]
    at = picked(rows, rate=rate)
    lines = []
    for (kind, method), group in grouped(at, "kind", "method").items():
        if kind != "agnostic":
            title = f"{SHOWN[method]}, derived from the base" if method else kind
            macs = f"{min(row['macs'] for row in group) / 1e6:.1f}"
            cells = [percent([row["top1"] for row in picked(group, task=size)]) for size in _sizes(at)]
            lines.append([title, macs, *cells])
    return table([f"{rate:.3f} of the MACs gone", "M MACs", *(f"{size} classes" for size in _sizes(at))], lines)


def _sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["task"] for row in rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser)
    parser.add_argument("--small", help="with --data: a smaller model of yours, by its timm name or folder")
    parser.add_argument("--small-checkpoint", type=Path, help="weights of --small")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "agnostic")
    rows = load_rows(file)
    keys = [row["key"] for row in rows]
    with refusals(), tempfile.TemporaryDirectory() as scratch:
        source = source_from(options, progress)
        tasks = source.sub_tasks(options.tasks, options.classes, most=len(source.classes) - 1)
        small = smaller(options, progress)
        small_rate = None if small is None else 1 - small.base.spec.macs / source.base.spec.macs
        maker = Maker(source, small, Path(scratch), options.device)
        every = model_cases(tasks, SEEDS[: options.seeds], options.steps, small_rate, options.methods)
        for case in islice(every, options.rows):
            if (key := case.key(source.sha256)) in keys:
                continue
            try:
                result = maker.row(case)
            except BudgetError as error:
                progress.note(f"{case.kind} {case.method} {case.rate:.3g}: {error}")
                continue
            on = device_field(options.device)
            fields = {"source": source.label, "all_classes": len(source.classes), "task": len(case.classes)}
            fields |= {"base_sha256": source.sha256, "versions": versions(), "key": key}
            rows.append({**asdict(case), **result, **on, **fields})
            store_rows(file, rows)
            progress.note(
                f"{case.kind} {case.method} {case.rate:.3g}, {len(case.classes)} classes: {result['top1']:.3f}"
            )
    if options.data is not None:
        print(section({"rows": rows}))


if __name__ == "__main__":
    main()
