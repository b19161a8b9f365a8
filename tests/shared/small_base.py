"""A small random ViT with a checkpoint on disk, and derivations from it that take a second."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import some_tables
import timm
import torch
from safetensors.torch import save_file
from some_tables import rows
from torch import Tensor

import edgevit
import edgevit.train.loop as loop
from edgevit.data import task
from edgevit.data.sources.digits import Digits
from edgevit.data.transforms import TransformedImages
from edgevit.train.settings import Training

ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
NAME = "vit_tiny_patch16_224"
TYPED = [NAME, *(part for name, value in ARGS.items() for part in ("--model-arg", f"{name}={value}"))]
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}
DEVICE = os.environ.get("EDGEVIT_TEST_DEVICE", "cpu")  # `make gpu` says cuda
QUICK = {"steps": 6, "batch_size": 24, "device": DEVICE, "evaluations": 2, "lr": 1e-3, "early_stop": False}
PLAN = {  # of two tasks, without training
    "base": NAME,
    "model_args": ARGS,
    "preprocessing": PREPROCESSING,
    "data": "digits",
    "accept_weak_base": True,  # it is random
    "training": {**QUICK, "steps": 0},
    "tasks": [{"name": "odd", "classes": ["3", "7", "9"]}, {"name": "even", "classes": "2,4"}],
    "budgets": [{"name": "half", "rate": 0.5}],
    "methods": [{"name": "nuwa", "options": {"purification": "none"}}],
}


def assert_same_weights(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """To the last bit; on a GPU, which adds up in no fixed order, within the few steps that Adam takes here."""
    assert a.keys() == b.keys()
    for name in a:
        if DEVICE == "cpu":
            assert torch.equal(a[name], b[name]), name
        else:
            torch.testing.assert_close(a[name].cpu(), b[name].cpu(), rtol=1e-2, atol=1e-2, msg=name)


references = Digits.references
read_image = TransformedImages.__getitem__
digits: dict[tuple[Any, ...], Tensor] = {}
SMALL = 3 * 32 * 32


def made_once(make: Any) -> Any:
    made: dict[str, Any] = {}

    def one_transform(preprocessing: Any, *augment: Any) -> Any:
        how = repr((sorted(preprocessing.items()), augment))
        return made.get(how) or made.setdefault(how, make(preprocessing, *augment))

    return one_transform


def read_once(self: Any, key: Any) -> tuple[Tensor, int]:
    """Hundreds of derivations read the same digits, each for a sixth of its time, and augment them by equal seeds."""
    if not isinstance(self.source, Digits):
        return read_image(self, key)
    position, *seed = [key] if isinstance(key, int) else key
    known = (self.references[position], id(self.transform), *seed)
    if known not in digits:
        image = read_image(self, key)[0]
        if seed and (image.numel() > SMALL or len(digits) > 20_000):  # up to 250 MB
            return image, self.labels[position]
        digits[known] = image
    return digits[known].clone(), self.labels[position]


task.evaluation_transform = made_once(task.evaluation_transform)
task.training_transform = made_once(task.training_transform)
TransformedImages.__getitem__ = read_once  # type: ignore[method-assign]


def a_third(self: Any, part: Any, class_name: str) -> list[Any]:
    return references(self, part, class_name)[::3]


@contextmanager
def fewer_digits() -> Iterator[None]:
    """A third of the digits, where it matters that there are images, and not how many: every derivation judges by all.

    To read, to see and to judge by them is up to a third of a small derivation.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Digits, "references", a_third)
        yield


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def outputs(network: Any, size: int = 32) -> Tensor:
    with torch.inference_mode():
        return network(images(size))


def write_checkpoint(folder: Path, **more: Any) -> Path:
    torch.manual_seed(0)
    network = timm.create_model(NAME, num_classes=10, **{**ARGS, **more})
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, folder / "base.safetensors")
    return folder / "base.safetensors"


def write_cost_table(folder: Path, narrower: Sequence[int] = ()) -> Path:
    """Made-up milliseconds of the small base, which takes 2.76; in a block that has both sites 0.25 for it alone.

    At a narrower embedding, of the widths that are asked for, everything takes its share of that.
    """

    attention = {(h, w): 0.02 * h * w / 16 for h in (1, 2) for w in (16, 24, 32)}
    ffn = {w: w / 256 for w in range(8, 257, 8)}
    costs = [{"part": "cut", "tokens": n, "ms": 0.01} for n in (16, 8)]
    for embed in (64, *narrower):
        share = embed / 64
        for tokens in (17, 16, 8):
            of = share if tokens == 17 else round(share * tokens / 17, 6)
            fixed, block = (0.1 * share, share * 0.25) if tokens == 17 else (None, None)
            at = {"embed": embed} if tokens == 17 else {"embed": embed, "tokens": tokens}
            sites = ({size: of * ms for size, ms in site.items()} for site in (attention, ffn))
            costs += rows(fixed, *sites, block=block, **at)
    table = some_tables.table(costs)
    (folder / "table.json").write_text(json.dumps(table))
    return folder / "table.json"


def derive(checkpoint: Path, out: Path, *, training: dict[str, Any] | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"classes": "3,7,9", "rate": 0.5, "data": "digits", "model_args": ARGS}
    given |= {"method": "vulcan", "accept_weak_base": True, "accept_preprocessing": True}  # it is random
    if options.get("method") == "skd":
        return _slice(checkpoint, out, Training(**{**QUICK, "steps": 0, **(training or {})}), {**given, **options})
    return edgevit.derive(
        NAME,
        checkpoint=checkpoint,
        preprocessing=PREPROCESSING,
        out=out,
        training=Training(**{**QUICK, **(training or {})}),
        **{**given, **options},
    )


def make_supernet(checkpoint: Path, out: Path, *, training: dict[str, Any] | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"rate": 0.5, "data": "digits", "model_args": ARGS, "preprocessing": PREPROCESSING}
    given["accept_weak_base"] = True
    few = {"proxy_images": 32, "updates": 2, "points": 3}
    return edgevit.supernet(
        NAME,
        checkpoint=checkpoint,
        out=out,
        training=Training(**{**QUICK, **(training or {})}),
        options={**few, **options.pop("options", {})},
        **{**given, **options},
    )


def press_ctrl_c_in_step(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next training in this step, the first being 0, and no training after it."""
    step, pressed = loop._Run.step, []

    def step_then_ctrl_c(self: Any, batches: Any, now: int) -> dict[str, float]:
        figures = step(self, batches, now)
        if now == number and not pressed:
            pressed.append(now)
            os.kill(os.getpid(), signal.SIGINT)
        return figures

    monkeypatch.setattr(loop._Run, "step", step_then_ctrl_c)


def _slice(checkpoint: Path, out: Path, training: Training, given: dict[str, Any]) -> Any:
    """A slice of one super-network for all of a checkpoint's tests."""
    net = checkpoint.with_name("supernet")
    if not net.exists():
        make_supernet(checkpoint, net)
    given.pop("model_args")
    return edgevit.derive(supernet=net, out=out, training=training, **given)
