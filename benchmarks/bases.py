"""Train the base models of the benchmarks and of the demo from scratch, and cache them by content hash.

    python -m benchmarks.bases fashion    # render or read the images, train the base, or find both; print where

`records/bases/` keeps the bases of the records, because no two machines train the same weights: `rendered` (24 rendered
classes), `fine` (48 rendered classes with smaller differences, 65 tokens), `fashion` (Fashion-MNIST), and `swin`, a
small Swin on the 24 rendered classes that `product/swin.py` trains. The base learns from other images than its user
has. Delete a kept base to train it again; rows of two bases are never mixed.

Fashion-MNIST is read from Debian's package (`sudo apt install dataset-fashion-mnist`). Its base learns from the first
54,000 training images; the user has the other 6,000 and the 10,000 test images.

All data sets fit in memory as bytes, so training needs no loader: a batch is an index into a tensor.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import images as rendering
from edgevit.data.sources import Part
from edgevit.data.sources.idx import Idx, open_source
from edgevit.progress import Progress, Silent, Stage

CACHE = Path(__file__).parent / "cache"
BASES = Path(__file__).parent / "records" / "bases"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package
TIMM_NAME = "vit_tiny_patch16_224"


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
    lr: float = 7e-4  # the highest, after the warm-up
    warmup: float = 0.1  # share of all steps
    weight_decay: float = 0.05
    label_smoothing: float = 0.1
    shift_px: int = 4  # images move by up to this much each way, their edges repeated
    gradient_norm: float = 1.0  # gradients are clipped to this norm
    seed: int = 0
    bf16: bool = False  # products of the forward and the backward pass
    mirrored: bool = False  # half of the images; a mirrored digit or polygon is another class


RENDERED_ARGS = {"img_size": 48, "patch_size": 8, "embed_dim": 192, "depth": 6, "num_heads": 3}
RENDERED_RECIPE = Recipe()
RENDERED_PER_CLASS = 1200  # images that the base learns from; its user has 400 others of each class
FINE_ARGS = {"img_size": 48, "patch_size": 6, "embed_dim": 192, "depth": 6, "num_heads": 3}  # 64 patches
FINE_RECIPE = Recipe(epochs=8, batch_size=64, lr=1e-3, shift_px=3, bf16=True)
FASHION_ARGS = {"img_size": 28, "patch_size": 4, "embed_dim": 128, "depth": 6, "num_heads": 2}  # 49 patches
FASHION_RECIPES = (  # 90.2 % of the test images after the first, 90.6 after the second, 91.5 after the third
    Recipe(epochs=14, batch_size=64, lr=1e-3, shift_px=1, bf16=True),
    Recipe(epochs=6, batch_size=64, lr=3e-4, shift_px=1, bf16=True, mirrored=True, seed=1),
    Recipe(epochs=10, batch_size=64, lr=5e-4, shift_px=1, bf16=True, mirrored=True, seed=2),
)
FASHION_LEARNT = 54_000  # training images that the base learns from
# `demo` is trained where it is needed. `make demo` takes `rendered`, which is kept.
DEMO_CLASSES = tuple(
    f"{texture}_{shape}" for texture in ("plain", "striped") for shape in ("square", "star", "triangle")
)
DEMO_SIZE = 40
DEMO_SCENE = replace(rendering.SCENE, bars=1, neighbours=1)  # easier than the benchmark's: the base has two minutes
DEMO_ARGS = {"img_size": DEMO_SIZE, "patch_size": 8, "embed_dim": 192, "depth": 4, "num_heads": 3}
DEMO_RECIPE = Recipe(epochs=12)


def read_folder(root: Path | str) -> Images:
    """Read an image folder with train/ and val/ whose images all have one size; classes are in order of name."""
    classes = tuple(sorted(folder.name for folder in (Path(root) / "train").iterdir()))

    def part(name: str) -> tuple[Tensor, Tensor]:
        files = [(file, label) for label, c in enumerate(classes) for file in sorted((Path(root) / name / c).iterdir())]
        pictures = np.stack([np.asarray(Image.open(file).convert("RGB")) for file, _ in files])
        labels = torch.tensor([label for _, label in files])
        return torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous(), labels

    return Images(*part("train"), *part("val"), classes)


# -- training ----------------------------------------------------------------------------------------------------------


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
    ids = {id(p) for p in decayed}
    constant = [p for p in model.parameters() if id(p) not in ids]  # biases, norms, positions, class token
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": constant, "weight_decay": 0.0}]
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
        if recipe.mirrored:
            batch = torch.where(torch.rand(len(batch), 1, 1, 1, generator=generator) < 0.5, batch.flip(-1), batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
            logits = model(batch)
        targets = images.train_labels[rows]
        loss = functional.cross_entropy(logits.float(), targets, label_smoothing=recipe.label_smoothing)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm)
        optimiser.step()
        scheduler.step()
        stage.update(step, loss=loss.item())
        if step % per_epoch == 0:
            stage.update(step, accuracy=top1(predict(model, images.val), images.val_labels))


def train_base(
    folder: Path, images: Images, model_args: Mapping[str, Any], *recipes: Recipe, progress: Progress | None = None
) -> float:
    """Train a timm model from scratch by one recipe after the other; write base.safetensors and base.json to `folder`.

    Returns its top-1 on `val`. The same arguments give the same weights on one machine with the same number of threads.
    """
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):  # the caller's random state does not change
        torch.manual_seed(recipes[0].seed)
        model = timm.create_model(TIMM_NAME, num_classes=len(images.classes), **model_args)
        for recipe in recipes:
            steps = recipe.epochs * math.ceil(len(images.train) / recipe.batch_size)
            with (progress or Silent()).stage("base", steps, "step") as stage:
                _train(model, images, recipe, stage, steps)
    accuracy = top1(predict(model, images.val), images.val_labels)
    card = {
        "timm_name": TIMM_NAME,
        "model_args": dict(model_args),
        "num_classes": len(images.classes),
        "classes": list(images.classes),
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "recipes": [asdict(recipe) for recipe in recipes],
        "val_top1": accuracy,
        "seconds": round(time.perf_counter() - started, 1),
    }
    with rendering.complete_folder(folder) as partial:
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


def ensure_base(
    images: Images,
    model_args: Mapping[str, Any],
    *recipes: Recipe,
    cache: Path = CACHE,
    progress: Progress | None = None,
) -> Path:
    """Return the folder of the base that these arguments and this file give; train it if it is not in the cache."""
    folder = cache / f"base-{_key(images, dict(model_args), [asdict(recipe) for recipe in recipes])}"
    if not folder.is_dir():
        train_base(folder, images, model_args, *recipes, progress=progress)
    return folder


# -- the bases ---------------------------------------------------------------------------------------------------------


def ensure_rendered(
    progress: Progress | None = None, model_args: Mapping[str, Any] = RENDERED_ARGS
) -> tuple[Path, Path]:
    """Return the folder of the user's images of 24 classes, and the folder of the base."""
    root = rendering.ensure(CACHE, progress=progress)
    if model_args == RENDERED_ARGS and (BASES / "rendered").is_dir():
        return root, BASES / "rendered"
    more = rendering.ensure(CACHE, train_per_class=RENDERED_PER_CLASS, val_per_class=1, seed=1, progress=progress)
    return root, ensure_base(_learnt(more, root), model_args, RENDERED_RECIPE, progress=progress)


def ensure_fine(progress: Progress | None = None) -> tuple[Path, Path]:
    """Return the folder of the user's images of 48 classes, 200 of each, and the folder of the base."""
    names: dict[str, Any] = {
        "classes": rendering.FINE_CLASSES, "vocabulary": rendering.FINE_CLASSES, "progress": progress,
    }  # fmt: skip
    root = rendering.ensure(CACHE, train_per_class=200, **names)
    if (BASES / "fine").is_dir():
        return root, BASES / "fine"
    more = rendering.ensure(CACHE, train_per_class=RENDERED_PER_CLASS, val_per_class=1, seed=1, **names)
    return root, ensure_base(_learnt(more, root), FINE_ARGS, FINE_RECIPE, progress=progress)


def _learnt(training: Path, user: Path) -> Images:
    """Read what a base learns from, with the test images of its user as `val`."""
    images, test = read_folder(training), read_folder(user)
    return replace(images, val=test.val, val_labels=test.val_labels)


def ensure_demo(progress: Progress | None = None, model_args: Mapping[str, Any] = DEMO_ARGS) -> tuple[Path, Path]:
    """Return the folder of the user's images of the demo's six classes, and the folder of the base."""
    looks: dict[str, Any] = {"classes": DEMO_CLASSES, "size": DEMO_SIZE, "scene": DEMO_SCENE, "progress": progress}
    learnt = rendering.ensure(CACHE, train_per_class=800, val_per_class=150, **looks)
    base = ensure_base(read_folder(learnt), model_args, DEMO_RECIPE, progress=progress)
    return rendering.ensure(CACHE, train_per_class=500, val_per_class=150, seed=1, **looks), base


def ensure_fashion(
    progress: Progress | None = None, published: Path = FASHION_MNIST, cache: Path = CACHE
) -> tuple[Path, Path]:
    """Return the folder of the user's part of Fashion-MNIST, and the folder of the base."""
    if not published.is_dir():
        sys.exit(f"Fashion-MNIST is not in {published}; try: sudo apt install dataset-fashion-mnist")
    source = open_source(str(published))
    folder = idx_folder(source, FASHION_LEARNT, cache)
    if (BASES / "fashion").is_dir():
        return folder, BASES / "fashion"
    images = read_idx(source, FASHION_LEARNT)
    return folder, ensure_base(images, FASHION_ARGS, *FASHION_RECIPES, cache=cache, progress=progress)


ENSURE = {"rendered": ensure_rendered, "demo": ensure_demo, "fine": ensure_fine, "fashion": ensure_fashion}


def _tensors(source: Idx, part: Part) -> tuple[Tensor, Tensor]:
    return torch.tensor(source.images[part]), torch.tensor(source.labels[part])


def _idx_bytes(values: Tensor) -> bytes:
    """Write a tensor of bytes in IDX format."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + values.numpy().tobytes()


def idx_folder(source: Idx, learnt: int, cache: Path) -> Path:
    """Return a folder of the training images after the first `learnt`, and of the test images."""
    images, labels = _tensors(source, "train")
    parts = {"train": (images[learnt:], labels[learnt:]), "t10k": _tensors(source, "test")}
    files = {}
    for part, (pictures, answers) in parts.items():
        files[f"{part}-images-idx3-ubyte.gz"] = _idx_bytes(pictures)
        files[f"{part}-labels-idx1-ubyte.gz"] = _idx_bytes(answers)
    folder = cache / f"fashion-{hashlib.sha256(b''.join(files.values())).hexdigest()[:16]}"
    if not folder.is_dir():
        with rendering.complete_folder(folder) as partial:
            for name, content in files.items():
                (partial / name).write_bytes(gzip.compress(content, mtime=0))
    return folder


def read_idx(source: Idx, learnt: int) -> Images:
    """Read the first `learnt` training images, and the test images as `val`."""

    def rgb(grey: Tensor) -> Tensor:
        return grey[:, None].repeat(1, 3, 1, 1)

    (images, labels), (val, val_labels) = _tensors(source, "train"), _tensors(source, "test")
    return Images(rgb(images[:learnt]), labels[:learnt].long(), rgb(val), val_labels.long(), tuple(source.class_names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ENSURE)
    name = parser.parse_args().name
    from edgevit.cli.console import Console

    data, base = ENSURE[name](progress=Console().progress)
    card = json.loads((base / "base.json").read_text())
    print(f"data  {data}\nbase  {base}\ntop-1 {card['val_top1']:.1%} on the test images")


if __name__ == "__main__":
    main()
