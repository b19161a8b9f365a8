"""Distillation of closed-form weights: what each part of the recipe is worth, from the same weights.

    python benchmarks/distillation.py                      # everything that is not in results/distillation.json yet
    python benchmarks/distillation.py --tasks 12 --seeds 1
    python benchmarks/distillation.py --images 480 --results few.json   # as if there were no more to train on

Forge's closed form is worked out once per sub-task, rate and seed, as accuracy.py does it; each recipe then trains a
copy of it, for the same steps on the same images. Every look at a model is judged on images that were rendered for this
comparison alone: neither the validation part, by which a state is chosen, nor the test part, which no choice of
defaults may see. So one run serves every rule by which a state could be chosen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import Any

import accuracy
import dataset
import torch
from torch import Tensor, nn

from edgevit.data.accuracy import count_correct
from edgevit.data.task import Split, open_task
from edgevit.derive.allocate.budget import make_budget
from edgevit.derive.allocate.policy import make_policy
from edgevit.derive.cache import Cache
from edgevit.derive.methods.forge import method as forge
from edgevit.derive.methods.forge.config import Config
from edgevit.derive.plan import Plan
from edgevit.derive.problem import Problem, Stopwatch, distillation_for
from edgevit.derive.session import versions
from edgevit.models.checkpoint import open_base
from edgevit.models.classifier import with_classes
from edgevit.models.copies import bare_copy
from edgevit.progress import Silent
from edgevit.train.distil import teacher_loss
from edgevit.train.history import History
from edgevit.train.loop import train
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training, fill

RESULTS = Path(__file__).parent / "results" / "distillation.json"
TASKS, RATES, SEEDS = (12, 6), (0.9, 0.8, 0.95), accuracy.SEEDS
FRESH_PER_CLASS, FRESH_SEED = 200, 2

BEFORE: dict[str, Any] = {"warmup_steps": 0, "lr_by_loss": False}
# What is changed of forge's own recipe: how it trains, and, under "config", what it compares with the teacher.
RECIPES: dict[str, dict[str, Any]] = {
    "before": BEFORE,
    "gentle": {},  # the method's own rule
    "rate by loss alone": {**BEFORE, "lr_by_loss": True},
    "warm-up alone": {**BEFORE, "warmup_steps": 20},
    "clipping alone": {**BEFORE, "clip_norm": 1.0},
    "gentle, clipping": {"clip_norm": 1.0},
    "gentle, tokens felt": {"config": {"token_weighting": "felt"}},
    "gentle, two depths": {"config": {"token_depths": 2}},
    "gentle, tokens felt, two depths": {"config": {"token_weighting": "felt", "token_depths": 2}},
    "gentle, average": {"average": 0.97},
    "gentle, layer decay": {"layer_decay": 0.8},
    "gentle, unlabelled": {"unlabelled": 1},
    "gentle, unlabelled x4": {"unlabelled": 4},
}
UNLABELLED_SEED = 3
LOOKS = 5


@dataclass(frozen=True)
class Fresh:
    """Images that nothing was trained, calibrated or chosen on, and what the teacher says of them."""

    images: Tensor  # [N, 3, H, W]
    labels: Tensor
    taught: Tensor  # [N, C]

    @torch.inference_mode()
    def judge(self, network: nn.Module) -> dict[str, float]:
        was_training = network.training
        network.eval()
        logits = classified(network, self.images)
        network.train(was_training)
        right = count_correct(logits, self.labels, torch.arange(logits.shape[1]))[1].sum()
        loss = teacher_loss(logits, self.taught, Config().temperature)
        return {"top1": float(right / len(logits)), "loss": float(loss)}


def classified(network: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([network(images[start : start + 200]) for start in range(0, len(images), 200)])


@dataclass
class Onlooker:
    """Judges the network whenever the loop looks at it; as a `Constraint` it asks for nothing."""

    network: nn.Module
    fresh: Fresh
    seen: list[dict[str, float]] = field(default_factory=list)

    def watch(self) -> AbstractContextManager[None]:
        return nullcontext()

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        return torch.zeros(()), {}

    def after_step(self) -> None:
        pass

    def pruned(self) -> nn.Module:
        self.seen.append(self.fresh.judge(self.network))
        return self.network

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


@dataclass(frozen=True)
class Start:
    """A closed form, and what its training needs."""

    slim: nn.Module
    plan: Plan
    problem: Problem  # its network is the teacher
    fresh: Fresh
    more: Callable[[int], Split]  # so many times as many images as there are to train on, of no known class


def starts(
    place: accuracy.Place, size: int, seed: int, rates: list[float], most: int | None = None
) -> Iterator[tuple[float, Start]]:
    """The closed form at each rate, as `edgevit.derive` works it out; `most`: training images, None for all."""
    names, given = place.classes, place.start
    classes = accuracy.task_classes(names, size)
    opened = open_base(pretrained=False, **given)
    known: dict[str, Any] = {"preprocessing": opened.preprocessing, "base_outputs": len(names), "base_names": names}
    task = open_task(place.data, classes, seed=seed, **known)
    if most is not None:
        task = replace(task, train=task.train.subset(most))
    made = json.loads((place.data / "dataset.json").read_text())
    how = {"classes": made["classes"], "size": made["size"], "scene": dataset.Scene(**made["scene"])}
    more = dataset.ensure(place.cache, train_per_class=2, val_per_class=FRESH_PER_CLASS, seed=FRESH_SEED, **how)
    batches = open_task(more, classes, validation_fraction=0.5, **known).test.batches(200)
    images, labels = (torch.cat(part) for part in zip(*batches, strict=True))

    def unlabelled(times: int) -> Split:
        per_class = times * len(task.train) // len(classes)
        of = {**how, "classes": classes, "seed": UNLABELLED_SEED}
        folder = dataset.ensure(place.cache, train_per_class=per_class, val_per_class=2, **of)
        return open_task(folder, classes, validation_fraction=0.01, **known).train

    for rate in rates:
        training = Training(steps=0, batch_size=accuracy.BATCH, seed=seed, device="cpu")
        teacher = with_classes(opened.network, task.base_columns).eval()
        columns, budget = range(len(classes)), make_budget(opened.spec.macs, opened.spec.params, rate=rate)
        identity = {"base": place.base_sha256, "classes": classes, "seed": seed}
        cache = Cache(place.cache / "shared" / "distillation")
        with tempfile.TemporaryDirectory() as folder:
            problem = Problem(
                teacher, task, columns, budget, make_policy("fused"), training, open_passes(training), Path(folder),
                History(None), Stopwatch(), cache, identity,
            )  # fmt: skip
            closed = forge.derive(problem, Config())
        with torch.inference_mode():
            fresh = Fresh(images, labels, classified(teacher, images))
        yield rate, Start(closed.network, closed.plan, problem, fresh, unlabelled)


def distil(start: Start, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train a copy of the closed form; return how, and what was seen of it at every look."""
    changes = dict(changes)
    config, times = Config(**changes.pop("config", {})), changes.pop("unlabelled", 0)
    training = Training(
        steps=accuracy.STEPS, batch_size=accuracy.BATCH, lr=accuracy.LR, seed=seed, device="cpu", evaluations=LOOKS
    )
    training = fill(replace(training, **changes), gentle=True)
    problem = replace(start.problem, training=training)
    distillation = distillation_for(problem, config, start.plan.encode, start.plan.kept_blocks)
    assert distillation is not None
    task = replace(problem.task, unlabelled=start.more(times) if times else None)
    network, history = bare_copy(start.slim), History(None)
    onlooker = Onlooker(network, start.fresh)
    torch.manual_seed(seed)
    began = process_time()
    train(
        network, task, problem.columns, training, open_passes(training), history,
        constraint=onlooker, distillation=distillation, keep="best",
    )  # fmt: skip
    looked = [line for line in history.lines if "loss_validation" in line]
    looks = [
        {
            "step": line["step"],
            "validation": {"top1": line["accuracy_trained"], "loss": line["loss_validation"]},
            "fresh": seen,
        }
        for line, seen in zip(looked, onlooker.seen, strict=True)
    ]
    first = [line["loss_teacher"] for line in history.lines if 1 <= line["step"] <= 20]
    return {
        "embed": start.plan.embed and start.plan.embed.width,  # None: whole
        "training": asdict(training),
        "unlabelled": times,
        "cpu_s": round(process_time() - began, 1),
        "kept": start.fresh.judge(network),
        "lr_highest": max(line["lr"] for line in history.lines if "lr" in line),
        "looks": looks,
        "loss_teacher_first_steps": first,
    }


def load(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text())["rows"]) if file.is_file() else []


def store(file: Path, rows: list[dict[str, Any]]) -> None:
    temporary = file.with_suffix(".tmp")
    temporary.write_text(
        json.dumps({"schema": 1, "versions": versions(), "fresh_per_class": FRESH_PER_CLASS, "rows": rows}, indent=1)
        + "\n"
    )
    temporary.rename(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, nargs="+", default=list(TASKS))
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--recipes", choices=RECIPES, nargs="+", default=list(RECIPES))
    parser.add_argument("--images", type=int, help="training images, of all classes together; all, unless given")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the rows; another one for a trial")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    place = accuracy.open_places(["rendered"], Silent())["rendered"]
    rows = load(given.results)
    for size in given.tasks:
        for seed in SEEDS[: given.seeds]:
            measure(place, size, seed, given, rows)


def measure(place: accuracy.Place, size: int, seed: int, given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Do what is due of one sub-task and seed, storing each row as it comes."""
    mine = [r for r in rows if r.get("images") == given.images]
    done = {(r["task"], r["rate"], r["seed"], r["recipe"], r["base_sha256"]) for r in mine}

    def due(rate: float) -> list[str]:
        return [name for name in given.recipes if (size, rate, seed, name, place.base_sha256) not in done]

    rates = [rate for rate in given.rates if due(rate)]
    for rate, start in starts(place, size, seed, rates, given.images) if rates else ():
        for name in due(rate):
            row = {"task": size, "rate": rate, "seed": seed, "recipe": name, "base_sha256": place.base_sha256}
            row |= {} if given.images is None else {"images": given.images}
            rows.append({**row, **distil(start, seed, RECIPES[name])})
            store(given.results, rows)
            told = " ".join(
                f"{100 * look['fresh']['top1']:.2f}/{look['fresh']['loss']:.4f}" for look in rows[-1]["looks"]
            )
            print(size, rate, seed, name, told, flush=True)


if __name__ == "__main__":
    main()
