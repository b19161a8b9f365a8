"""Train a base that takes longer than one sitting: after each epoch its state is kept, and a training goes on from it.

A training is one or more courses, each with a recipe of its own, which go on from one another. Every epoch draws its
order and its shifts from a generator of its own, so that a training that was interrupted gives the weights that it
would have given without. Products may be taken in bf16, which is nearly twice as fast on processors that have it;
weights, their updates and all that is reported are in fp32.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import base
import dataset
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from edgevit.progress import Progress, Silent, Stage


@dataclass(frozen=True)
class LongRecipe(base.Recipe):
    """One course; saved with the base."""

    bf16: bool = True  # products of forward and backward pass
    mirrored: bool = False  # half of the images, drawn anew each time


def _epoch(
    model: nn.Module, images: base.Images, recipe: LongRecipe, epoch: int, training: dict[str, Any], stage: Stage
) -> None:
    generator = torch.Generator().manual_seed(1000 * recipe.seed + epoch)
    order = torch.randperm(len(images.train), generator=generator)
    model.train()
    steps = math.ceil(len(order) / recipe.batch_size)
    for step in range(steps):
        rows = order[step * recipe.batch_size : (step + 1) * recipe.batch_size]
        batch = base.normalise(base.shifted(images.train[rows], recipe.shift_px, generator))
        if recipe.mirrored:
            batch = torch.where(torch.rand(len(batch), 1, 1, 1, generator=generator) < 0.5, batch.flip(-1), batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
            logits = model(batch)
        targets = images.train_labels[rows]
        loss = functional.cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
        training["optimiser"].zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm)
        training["optimiser"].step()
        training["schedule"].step()
        stage.update(epoch * steps + step + 1, loss=loss.item())


def _train(model: nn.Module, images: base.Images, recipe: LongRecipe, kept: Path, progress: Progress) -> float:
    """Train from the state in the file `kept`, if there is one; return the processor seconds of all sittings."""
    steps = math.ceil(len(images.train) / recipe.batch_size)
    optimiser = base._optimiser(model, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, base._schedule(recipe, steps * recipe.epochs))
    training: dict[str, Any] = {"optimiser": optimiser, "schedule": schedule}
    first, cpu_seconds = 0, 0.0
    if kept.is_file():
        state = torch.load(kept, weights_only=True)
        first, cpu_seconds = state["epochs"], state["cpu_seconds"]
        model.load_state_dict(state["model"])
        for name, part in training.items():
            part.load_state_dict(state[name])
    with progress.stage("base", steps * recipe.epochs, "step") as stage:
        for epoch in range(first, recipe.epochs):
            started = time.process_time()
            _epoch(model, images, recipe, epoch, training, stage)
            cpu_seconds += time.process_time() - started
            state = {"epochs": epoch + 1, "cpu_seconds": cpu_seconds, "model": model.state_dict()}
            state |= {name: part.state_dict() for name, part in training.items()}
            partial = kept.with_suffix(".partial")
            torch.save(state, partial)
            partial.rename(kept)
    return cpu_seconds


def ensure_long_base(
    images: base.Images,
    model_args: Mapping[str, Any],
    *courses: LongRecipe,
    timm_name: str = base.TIMM_NAME,
    cache_dir: Path | str = base.CACHE,
    progress: Progress | None = None,
) -> Path:
    """Return the folder of the base that these images, arguments, courses and this file give; train it if need be.

    The last course goes on from the base that those before it give.
    """
    *before, recipe = courses
    recipes = [asdict(course) for course in courses]
    key = base._key(images, timm_name, dict(model_args), recipes, dataset.code_of(__file__))
    folder, kept = Path(cache_dir) / f"base-{key}", Path(cache_dir) / f".training-{key}.pt"
    if folder.is_dir():
        return folder
    how: dict[str, Any] = {"timm_name": timm_name, "cache_dir": cache_dir, "progress": progress}
    start = ensure_long_base(images, model_args, *before, **how) if before else None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):  # the caller's random state is its own
        torch.manual_seed(recipe.seed)
        model = timm.create_model(timm_name, num_classes=len(images.classes), **model_args)
        if start is not None:
            model.load_state_dict(load_file(start / "base.safetensors"))
        cpu_seconds = _train(model, images, recipe, kept, progress or Silent())
    card = {
        "timm_name": timm_name,
        "model_args": dict(model_args),
        "num_classes": len(images.classes),
        "classes": list(images.classes),
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "recipes": recipes,
        "train_images": len(images.train),
        "val_images": len(images.val),
        "val_top1": base.top1(base.predict(model, images.val), images.val_labels),
        "cpu_seconds": round(cpu_seconds, 1),  # of the last course
    }
    with dataset.complete_folder(folder) as partial:
        save_file(model.state_dict(), partial / "base.safetensors")
        (partial / "base.json").write_text(json.dumps(card, indent=2) + "\n")
    kept.unlink()
    return folder
