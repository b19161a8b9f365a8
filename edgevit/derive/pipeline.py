"""`edgevit.derive`: open base and data, take the baselines, let a method work, measure, write the model folder."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

import edgevit
from edgevit.data.accuracy import Accuracy
from edgevit.data.classes import listed
from edgevit.data.task import Task, open_task
from edgevit.derive import load_method, surgery
from edgevit.derive.budget import Budget, make_budget
from edgevit.derive.card import model_card
from edgevit.derive.options import make_config
from edgevit.derive.problem import Problem, Stopwatch
from edgevit.derive.shape import Policy, check_reachable, make_policy
from edgevit.derive.train import Compute, History, Training, close_compute, evaluate, open_compute, train
from edgevit.errors import Interrupted, OptionError, OutputError, UnknownNameError
from edgevit.models.checkpoint import Model, derived_spec, open_base, refuse_existing, save, writing
from edgevit.models.families import load_family
from edgevit.models.slim import bare_copy
from edgevit.models.spec import ClassLabel
from edgevit.progress import Progress, Silent

SCHEMA = 1  # of derivation.json; history: 1  first version


@dataclass(frozen=True)
class Derivation:
    """What `derive` gives back: the same that it wrote to `folder`."""

    folder: Path
    model: Model
    record: dict[str, Any]  # derivation.json
    is_main: bool = True  # False in all but the first of several processes: only that one wrote the folder


def _versions() -> dict[str, str]:
    packages = ("torch", "timm", "accelerate", "scikit-learn", "numpy")
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"edgevit": edgevit.__version__, "python": platform.python_version(), **found}


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _open_partial(folder: Path, request: dict[str, Any], resume: bool) -> None:
    """Make the folder for an unfinished run, or check that the one there is of the same request.

    Raises:
        OutputError: one is there and --resume was not given.
        OptionError: it is of another request.
    """
    file = folder / "request.json"
    if folder.exists() and not resume:
        raise OutputError(f"{folder} holds an unfinished derivation; add --resume to go on with it, or remove it")
    if file.is_file():
        before = json.loads(file.read_text())
        changed = sorted(k for k in before.keys() | request.keys() if before.get(k) != request.get(k))
        if changed:
            told = ", ".join(f"{k} was {before.get(k)!r} and is {request.get(k)!r}" for k in changed[:3])
            raise OptionError(f"cannot resume {folder} with other options: {told}; give the same ones, or remove it")
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(request))


def _baselines(base: Model, task: Task, compute: Compute, problem: Problem, finetune: bool) -> dict[str, Any]:
    """The three that a derived model is judged against, on the test part; kept in a file once taken."""
    file = problem.folder / "baselines.json"
    taken: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if "base_full_head" not in taken:
        problem.progress.note(f"baselines on {len(task.test)} test images")
        columns = [base.spec.class_columns[c] for c in task.base_columns] if base.spec.classes else task.base_columns
        with problem.stopwatch.stage("baselines"):
            seen = evaluate(base.network, task.test, columns, task.class_names, compute)
        full = {**seen.to_dict(), "top1": seen.top1_full, "per_class": None}
        taken |= {"base_full_head": full, "base_restricted": seen.to_dict(), "base_finetuned": None}
        _write_json(file, taken, compute)
    if finetune and taken["base_finetuned"] is None:
        with problem.stopwatch.stage("finetune_base"):
            taken["base_finetuned"] = _finetuned(problem, compute).to_dict()
        _write_json(file, taken, compute)
    return taken


def _write_json(file: Path, data: dict[str, Any], compute: Compute) -> None:
    if compute.is_main:
        with writing(file):
            file.write_text(json.dumps(data))


def _finetuned(problem: Problem, compute: Compute) -> Accuracy:
    """Train a copy of the whole base exactly as long as the method trains it, and take its accuracy."""
    network = bare_copy(problem.network)
    steps = problem.training.steps
    assert steps is not None
    train(
        network,
        problem.task,
        problem.columns,
        problem.training,
        steps=steps,
        compute=compute,
        progress=problem.progress,
        history=problem.history,
        stage="finetune base",
        folder=problem.folder / "finetune",
    )
    return evaluate(network, problem.task.test, problem.columns, problem.task.class_names, compute)


def _start(base: Model, task: Task, head: str) -> tuple[nn.Module, list[int], tuple[ClassLabel, ...]]:
    """The network a method starts from, the column of each target class, and the classes as model.json has them."""
    if head not in ("subset", "full"):
        raise UnknownNameError("head", head, ["subset", "full"])
    indices = task.base_columns
    labels = tuple(ClassLabel(c.name, c.base_index) for c in task.classes)
    if head == "full":
        return base.network, indices, labels
    return surgery.with_classes(base.network, indices), list(range(len(indices))), labels


def _budget(base: Model, network: nn.Module, policy: Policy, rate: Any, macs: Any, params: Any) -> Budget:
    budget = make_budget(base.spec.macs, base.spec.params, rate=rate, macs=macs, params=params)
    check_reachable(base.spec.blocks, load_family(base.spec.family).geometry(network), budget, policy)
    return budget


def derive(
    base: str | Path,
    *,
    data: str | Path,
    classes: str | Path | Sequence[str | int] | None,
    out: str | Path,
    rate: float | None = None,
    macs: str | float | None = None,
    params: str | float | None = None,
    method: str = "vulcan",
    options: Mapping[str, Any] | None = None,
    shape: str = "fused",
    ffn_multiple: int | None = None,
    head: str = "subset",
    checkpoint: str | Path | None = None,
    pretrained: bool = False,
    model_args: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    base_classes: str | Path | Sequence[str] | None = None,
    training: Training | None = None,
    finetune_base: bool = False,
    validation_fraction: float = 0.1,
    skip_bad_images: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
) -> Derivation:
    """Derive a small class-specific model from a base and write it to the folder `out`.

    Args:
        base: a timm name (with `checkpoint`, or `pretrained`), or a model folder.
        classes: target classes by name, by index in the base, or a file of either; None keeps all.
        rate, macs, params: the budget; exactly one of them.
        options: of the method, as in its Config.

    Raises:
        EdgeVitError: whatever is wrong, in one line; nothing that was there is touched.
        Interrupted: Ctrl-C; the same call with `resume` goes on and ends in the same weights.
    """
    out, training, progress = Path(out), training or Training(), progress or Silent()
    refuse_existing(out)
    training.check()
    module = load_method(method)
    config = make_config(method, module, options or {})
    policy = make_policy(shape, ffn_multiple)
    opened = open_base(
        base, checkpoint=checkpoint, pretrained=pretrained, model_args=model_args, preprocessing=preprocessing
    )
    names = listed(base_classes) or (opened.classes if opened.spec.head == "subset" else None)
    task = open_task(
        data,
        classes,
        preprocessing=opened.preprocessing,
        base_outputs=opened.spec.timm_args["num_classes"],
        base_names=names,
        validation_fraction=validation_fraction,
        seed=training.seed,
        skip_bad_images=skip_bad_images,
        progress=progress,
    )
    if task.skipped:
        progress.note(f"left out {task.skipped} images that cannot be read")
    network, columns, labels = _start(opened, task, head)
    budget = _budget(opened, network, policy, rate, macs, params)
    if finetune_base and training.steps is None:
        raise OptionError("--finetune-base trains the base as long as the method: say how long with --steps")
    request = {
        "base": opened.spec.base.weights_sha256,
        "data": task.fingerprint(),
        "classes": task.class_names,
        "budget": asdict(budget),
        "method": method,
        "options": asdict(config),
        "shape": asdict(policy),
        "head": head,
        "training": {k: v for k, v in asdict(training).items() if k not in ("device", "workers")},
    }
    folder = _partial(out)
    compute = open_compute(training)
    if compute.is_main:
        _open_partial(folder, request, resume)
    compute.wait()
    torch.manual_seed(training.seed)
    stopwatch = Stopwatch()
    history = History(folder / "history.jsonl")
    problem = Problem(network, task, columns, budget, policy, training, compute, folder, history, progress, stopwatch)
    try:
        baselines = _baselines(opened, task, compute, problem, finetune_base)
        torch.manual_seed(training.seed)  # the method draws the same numbers whether or not baselines were trained
        derived = module.derive(problem, config)
        with stopwatch.stage("evaluation"):
            accuracy = evaluate(derived.network, task.test, columns, task.class_names, compute)
    except (KeyboardInterrupt, Interrupted) as stop:
        what = str(stop) or "stopped"
        raise Interrupted(f"{what}; the same command with --resume goes on from {folder}") from stop
    spec = derived_spec(opened.spec, derived.network.cpu(), head, labels)
    assert (spec.macs if budget.quantity == "macs" else spec.params) <= budget.limit
    record = {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "base": str(base),
        "method": method,
        "config": asdict(config),
        "training": asdict(training),
        "budget": asdict(budget),
        "shape": asdict(policy),
        "head": head,
        "data": task.record(),
        "versions": _versions(),
        "seconds": stopwatch.seconds,
        "facts": derived.facts,
        "accuracy": {**baselines, "derived": accuracy.to_dict()},
    }
    model = Model(derived.network.eval(), spec)
    if compute.is_main:
        lines = "".join(json.dumps(line) + "\n" for line in history.lines)
        extra = {
            "derivation.json": json.dumps(record, indent=2) + "\n",
            "history.jsonl": lines,
            "README.md": model_card(out.name, spec, record),
        }
        save(model, out, extra)
        shutil.rmtree(folder, ignore_errors=True)
    compute.wait()
    close_compute()
    return Derivation(out, model, record, compute.is_main)
