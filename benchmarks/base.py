"""Train the base models of the benchmarks and of the demo from scratch, and keep them by content hash.

`bases/` keeps the one that records are of, as two machines train no two alike.

Both data sets fit in memory as bytes, so training needs no loader: a batch is an index into a tensor. Images are never
mirrored: a mirrored digit is another digit or none.

    python benchmarks/base.py    # train the base of the rendered data set, or find it in the cache
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dataset
import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from edgevit.progress import Progress, Silent, Stage

CACHE = Path(__file__).parent / "cache"
KEPT = Path(__file__).parent / "bases"  # in the repository: two machines train no two bases alike
TIMM_NAME = "vit_tiny_patch16_224"
RENDERED_ARGS = {"img_size": 48, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}
# Digits have 8 x 8 pixels: each of these 16 patches is 2 x 2 of them, and training is four times as fast as with 64.
DIGITS_ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}


@dataclass(frozen=True)
class Images:
    """A data set in memory: images as bytes [N, 3, size, size], labels as indices into `classes`."""

    train: Tensor
    train_labels: Tensor
    val: Tensor
    val_labels: Tensor
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """How a base is trained; saved with it."""

    epochs: int = 14
    batch_size: int = 48
    lr: float = 7e-4  # at its highest, after the warm-up
    warmup: float = 0.1  # share of all steps
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    shift_px: int = 4  # images move by up to this much each way, their edges repeated
    gradient_norm: float = 1.0  # longer gradients are shortened to this
    seed: int = 0


RENDERED_RECIPE = Recipe()
BASE_PER_CLASS = 1200  # images the base learns from; a user of it has the 400 per class of the data set
DIGITS_RECIPE = Recipe(epochs=24, batch_size=32, lr=1e-3, shift_px=2)


def read_folder(root: Path | str) -> Images:
    """Read an image folder with train/ and val/ whose images all have one size; classes are in order of name."""
    classes = tuple(sorted(folder.name for folder in (Path(root) / "train").iterdir()))

    def part(name: str) -> tuple[Tensor, Tensor]:
        files = [(file, label) for label, c in enumerate(classes) for file in sorted((Path(root) / name / c).iterdir())]
        pictures = np.stack([np.asarray(Image.open(file).convert("RGB")) for file, _ in files])
        labels = torch.tensor([label for _, label in files])
        return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), labels

    return Images(*part("train"), *part("val"), classes)


def read_digits(train: Sequence[int], val: Sequence[int], *, size: int = 32) -> Images:
    """Read scikit-learn's digits, scaled up bicubically; `train` and `val` are indices into its 1797 images."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    small = (pixels.reshape(-1, 8, 8) * (255 / 16) + 0.5).astype(np.uint8)  # they come as 0 to 16
    large = [np.asarray(Image.fromarray(s).resize((size, size), Image.Resampling.BICUBIC)) for s in small]
    images = torch.from_numpy(np.stack(large))[:, None].repeat(1, 3, 1, 1)
    targets = torch.from_numpy(labels).long()
    first, second = torch.tensor(train), torch.tensor(val)
    return Images(images[first], targets[first], images[second], targets[second], tuple("0123456789"))


def normalise(images: Tensor) -> Tensor:
    """Map bytes to [-1, 1]: mean and standard deviation 0.5."""
    return images.float() / 127.5 - 1


def shifted(images: Tensor, shift_px: int, generator: torch.Generator) -> Tensor:
    """Move each image by its own random whole number of pixels, repeating its edges."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (shift_px,) * 4, mode="replicate")
    dy, dx = torch.randint(2 * shift_px + 1, (2, count, 1), generator=generator)
    rows, columns = dy + torch.arange(height), dx + torch.arange(width)  # [N, H], [N, W]
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2)  # indexing left the channels last


@torch.inference_mode()
def predict(model: nn.Module, images: Tensor, *, batch_size: int = 256) -> Tensor:
    """Return the logits of the model in evaluation mode, [N, classes]."""
    model.eval()
    starts = range(0, len(images), batch_size)
    return torch.cat([model(normalise(images[start : start + batch_size])) for start in starts])


def top1(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(1) == labels).float().mean().item()


def _batches(count: int, recipe: Recipe, generator: torch.Generator) -> Iterator[Tensor]:
    for _ in range(recipe.epochs):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count, recipe.batch_size):
            yield order[start : start + recipe.batch_size]


def _optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    decayed = [p for name, p in model.named_parameters() if p.ndim == 2 or "patch_embed.proj.weight" in name]
    kept = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in kept]  # biases, norms, positions, class token
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(0.9, 0.99), fused=True)


def _schedule(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """Return the factor on the learning rate at a step: a linear rise, then a cosine down to 0."""
    warmup = max(1, round(recipe.warmup * steps))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor


def _train(model: nn.Module, images: Images, recipe: Recipe, stage: Stage, steps: int) -> None:
    generator = torch.Generator().manual_seed(recipe.seed)
    optimiser = _optimiser(model, recipe)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, _schedule(recipe, steps))
    per_epoch = steps // recipe.epochs
    for step, rows in enumerate(_batches(len(images.train), recipe, generator), start=1):
        model.train()
        batch = normalise(shifted(images.train[rows], recipe.shift_px, generator))
        loss = functional.cross_entropy(model(batch), images.train_labels[rows], label_smoothing=recipe.label_smoothing)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm)
        optimiser.step()
        scheduler.step()
        stage.update(step, loss=loss.item())
        if step % per_epoch == 0:
            stage.update(step, accuracy=top1(predict(model, images.val), images.val_labels))


def train_base(
    folder: Path,
    images: Images,
    model_args: Mapping[str, Any],
    recipe: Recipe,
    *,
    timm_name: str = TIMM_NAME,
    progress: Progress | None = None,
) -> float:
    """Train a timm model from scratch, write base.safetensors and base.json to `folder`; return its top-1 on `val`.

    The same arguments give the same weights on one machine with the same number of threads.
    """
    started = time.perf_counter()
    steps = recipe.epochs * math.ceil(len(images.train) / recipe.batch_size)
    with torch.random.fork_rng(devices=[]):  # the caller's random state is its own
        torch.manual_seed(recipe.seed)
        model = timm.create_model(timm_name, num_classes=len(images.classes), **model_args)
        with (progress or Silent()).stage("base", steps, "step") as stage:
            _train(model, images, recipe, stage, steps)
    accuracy = top1(predict(model, images.val), images.val_labels)
    card = {
        "timm_name": timm_name,
        "model_args": dict(model_args),
        "num_classes": len(images.classes),
        "classes": list(images.classes),
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "recipe": asdict(recipe),
        "val_top1": accuracy,
        "seconds": round(time.perf_counter() - started, 1),
    }
    with dataset.complete_folder(folder) as partial:
        save_file(model.state_dict(), partial / "base.safetensors")
        (partial / "base.json").write_text(json.dumps(card, indent=2) + "\n")
    return accuracy


def _key(images: Images, *settings: object) -> str:
    """Hash what decides the weights: data, settings and the functions that train."""
    training = (normalise, shifted, _batches, _optimiser, _schedule, _train, train_base)
    digest = hashlib.sha256("".join(inspect.getsource(function) for function in training).encode())
    for tensor in (images.train, images.train_labels, images.val, images.val_labels):
        digest.update(tensor.numpy().tobytes())
    digest.update(json.dumps([images.classes, *settings]).encode())
    return digest.hexdigest()[:16]


def bring_kept(cache_dir: Path | str) -> None:
    """Copy the bases that the repository keeps into the cache, where each is found by its key."""
    for folder in sorted(KEPT.glob("base-*")):
        if not (there := Path(cache_dir) / folder.name).is_dir():
            with dataset.complete_folder(there) as partial:
                shutil.copytree(folder, partial, dirs_exist_ok=True)


def ensure_base(
    images: Images,
    model_args: Mapping[str, Any],
    recipe: Recipe,
    *,
    timm_name: str = TIMM_NAME,
    cache_dir: Path | str = CACHE,
    progress: Progress | None = None,
) -> Path:
    """Return the folder of the base that these images, arguments, recipe and this file give; train it if need be."""
    folder = Path(cache_dir) / f"base-{_key(images, timm_name, dict(model_args), asdict(recipe))}"
    if not folder.is_dir():
        train_base(folder, images, model_args, recipe, timm_name=timm_name, progress=progress)
    return folder


def ensure_rendered_base(
    *, model_args: Mapping[str, Any] = RENDERED_ARGS, cache_dir: Path | str = CACHE, progress: Progress | None = None
) -> tuple[Path, Path]:
    """Return the rendered data set's folder and its base's, which was trained on other images of the same classes."""
    bring_kept(cache_dir)
    root = dataset.ensure(cache_dir, progress=progress)
    more = dataset.ensure(cache_dir, train_per_class=BASE_PER_CLASS, val_per_class=1, seed=1, progress=progress)
    images, test = read_folder(more), read_folder(root)
    images = replace(images, val=test.val, val_labels=test.val_labels)
    return root, ensure_base(images, model_args, RENDERED_RECIPE, cache_dir=cache_dir, progress=progress)


if __name__ == "__main__":
    from edgevit.cli.console import Console

    data, base = ensure_rendered_base(progress=Console().progress)
    card = json.loads((base / "base.json").read_text())
    print(f"data  {data}\nbase  {base}\ntop-1 {card['val_top1']:.1%} on val")
