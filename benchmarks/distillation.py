"""Distillation of closed-form weights: what each part of the recipe is worth, from the same weights.

    python benchmarks/distillation.py                      # everything that is not in results/distillation.json yet
    python benchmarks/distillation.py --tasks 12 --seeds 1
    python benchmarks/distillation.py --images 480 --results few.json   # as if there were no more to train on
    python benchmarks/distillation.py --base fashion --rates 0.95   # photographs: results/distillation_fashion.json

Forge's closed form is worked out once per sub-task, rate and seed, as accuracy.py does it; each recipe then trains a
copy of it, for the same steps on the same images. Every look at a model is judged on images that are for this
comparison alone: neither the validation part, by which a state is chosen, nor the test part, which no choice of
defaults may see. So one run serves every rule by which a state could be chosen. They are rendered for it; where nothing
can be rendered, they are a third of the training images, and every recipe does without them. Unlabelled images are
rendered, too, or are those of the other two thirds whose labels are not used (`--images`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from edgevit.data.task import UNLABELLED, Split, Task, open_task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.cache import Cache
from edgevit.derivation.methods.forge import method as forge
from edgevit.derivation.methods.forge.config import Config
from edgevit.derivation.plan import Plan
from edgevit.derivation.problem import Problem, Stopwatch, distillation_for
from edgevit.derivation.session import versions
from edgevit.network.checkpoint import open_base
from edgevit.network.classifier import with_classes
from edgevit.network.copies import bare_copy
from edgevit.progress import Silent
from edgevit.train.distil import teacher_loss
from edgevit.train.history import History
from edgevit.train.loop import train
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training, fill

RESULTS = Path(__file__).parent / "results"
RENDERED = "rendered"
RATES, SEEDS = (0.9, 0.8, 0.95), accuracy.SEEDS
TASKS = {RENDERED: (12, 6), **{base: sizes[:0:-1] for base, sizes in accuracy.OTHER_SIZES.items()}}  # the larger two
FRESH_PER_CLASS, FRESH_SEED = 200, 2
FRESH_SHARE = 3  # of every so many training images one is for judging, where none can be rendered

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


@dataclass(frozen=True)
class Material:
    """A task, images to judge on that are in none of its parts, and more images without labels."""

    task: Task
    judged: Split
    more: Callable[[int], Split]  # so many times as many images as there are to train on


def rendered(place: accuracy.Place, task: Task, known: dict[str, Any], most: int | None) -> Material:
    """Images are rendered to judge on, and without labels."""
    if most is not None:
        task = replace(task, train=task.train.subset(most))
    classes, made = task.class_names, json.loads((place.data / "dataset.json").read_text())
    how = {"classes": made["classes"], "size": made["size"], "scene": dataset.Scene(**made["scene"])}
    apart = dataset.ensure(place.cache, train_per_class=2, val_per_class=FRESH_PER_CLASS, seed=FRESH_SEED, **how)

    def more(times: int) -> Split:
        per_class = times * len(task.train) // len(classes)
        of = {**how, "classes": classes, "seed": UNLABELLED_SEED}
        folder = dataset.ensure(place.cache, train_per_class=per_class, val_per_class=2, **of)
        return unlabelled(open_task(folder, classes, validation_fraction=0.01, **known).train)

    return Material(task, open_task(apart, classes, validation_fraction=0.5, **known).test, more)


def shared_out(task: Task, most: int | None) -> Material:
    """Training images are set aside to judge on, and those beyond `most` have no labels."""
    whole = task.train
    at = [i for i in range(len(whole)) if i % FRESH_SHARE]
    rest = pick(whole, at)
    train = rest if most is None else rest.subset(most)
    used = set(train.references)
    others = pick(rest, [i for i, reference in enumerate(rest.references) if reference not in used])

    def more(times: int) -> Split:
        asked = times * len(train)
        if asked > len(others):
            sys.exit(f"{asked} unlabelled images are needed and {len(others)} are there; lower --images")
        return unlabelled(others.subset(asked))

    return Material(replace(task, train=train), whole.part(0, FRESH_SHARE), more)


def pick(split: Split, at: Sequence[int]) -> Split:
    """The images of these positions."""
    return replace(
        split, references=tuple(split.references[i] for i in at), labels=tuple(split.labels[i] for i in at)
    )  # fmt: skip


def unlabelled(split: Split) -> Split:
    return replace(split, labels=(UNLABELLED,) * len(split))


def starts(
    place: accuracy.Place, base: str, size: int, seed: int, rates: list[float], most: int | None = None
) -> Iterator[tuple[float, Start]]:
    """The closed form at each rate, as `edgevit.derive` works it out; `most`: training images, None for all."""
    names, given = place.classes, place.start
    classes = accuracy.task_classes(names, size)
    opened = open_base(pretrained=False, **given)
    known: dict[str, Any] = {"preprocessing": opened.preprocessing, "base_outputs": len(names), "base_names": names}
    task = open_task(place.data, classes, seed=seed, **known)
    material = rendered(place, task, known, most) if base == RENDERED else shared_out(task, most)
    task = material.task
    images, labels = (torch.cat(part) for part in zip(*material.judged.batches(200), strict=True))
    for rate in rates:
        training = Training(steps=0, batch_size=accuracy.BATCH, seed=seed, device="cpu")
        teacher = with_classes(opened.network, task.base_columns).eval()
        columns, budget = range(len(classes)), make_budget(opened.spec.macs, opened.spec.params, rate=rate)
        identity = {"base": place.base_sha256, "classes": classes, "seed": seed, "images": len(task.train)}
        cache = Cache(place.cache / "shared" / "distillation")
        with tempfile.TemporaryDirectory() as folder:
            problem = Problem(
                teacher, task, columns, budget, make_policy("fused"), training, training, open_passes(training),
                Path(folder), Path(folder, "base"), History(None), Stopwatch(), cache, identity,
            )  # fmt: skip
            closed = forge.derive(problem, Config())
        with torch.inference_mode():
            fresh = Fresh(images, labels, classified(teacher, images))
        yield rate, Start(closed.network, closed.plan, problem, fresh, material.more)


def distil(start: Start, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train a copy of the closed form; return how, and what was seen of it at every look."""
    changes = dict(changes)
    config, times = Config(**changes.pop("config", {})), changes.pop("unlabelled", 0)
    training = Training(
        steps=accuracy.STEPS, batch_size=accuracy.BATCH, lr=accuracy.LR, seed=seed, device="cpu", evaluations=LOOKS
    )
    training = fill(replace(training, **changes), gentle=True)
    problem = replace(start.problem, training=training)
    distillation = distillation_for(problem, config, start.plan.embed, start.plan.kept_blocks)
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
        "fresh_images": len(start.fresh.labels),
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
    parser.add_argument("--base", choices=TASKS, default=RENDERED)
    parser.add_argument("--tasks", type=int, nargs="+", help="numbers of classes; two, unless given")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--recipes", choices=RECIPES, nargs="+", default=list(RECIPES))
    parser.add_argument("--images", type=int, help="training images, of all classes together; all, unless given")
    parser.add_argument("--results", type=Path, help="file of the rows; another one for a trial")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    name = "distillation" if given.base == RENDERED else f"distillation_{given.base}"
    given.results = given.results or RESULTS / f"{name}.json"
    place = accuracy.open_places([given.base], Silent())[given.base]
    rows = load(given.results)
    for size in given.tasks or TASKS[given.base]:
        for seed in SEEDS[: given.seeds]:
            measure(place, size, seed, given, rows)


def measure(place: accuracy.Place, size: int, seed: int, given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Do what is due of one sub-task and seed, storing each row as it comes."""
    mine = [r for r in rows if r.get("images") == given.images]
    done = {(r["task"], r["rate"], r["seed"], r["recipe"], r["base_sha256"]) for r in mine}

    # Where nothing can be rendered, images without labels are those that --images leaves over.
    without = given.base != RENDERED and given.images is None
    recipes = [name for name in given.recipes if not (without and "unlabelled" in RECIPES[name])]

    def due(rate: float) -> list[str]:
        return [name for name in recipes if (size, rate, seed, name, place.base_sha256) not in done]

    rates = [rate for rate in given.rates if due(rate)]
    for rate, start in starts(place, given.base, size, seed, rates, given.images) if rates else ():
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
