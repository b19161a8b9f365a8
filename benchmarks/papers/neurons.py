"""Which images move each neuron most, before and after derivation, and how many neurons answer to the target classes.

    python -m benchmarks.papers.neurons                     # every row that records/neurons.json does not have
    python -m benchmarks.papers.neurons --base demo --seeds 1 --steps 60 --sheet sheets
    python -m benchmarks.papers.neurons --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs

Vulcan's Figures 3, 11 and 13 to 18: a neuron's activations after the non-linearity are summed over the patch tokens of
an image; the 25 images with the highest sums are what it answers to. Images are the test part of all classes. The
paper's Figure 11 counts by eye the neurons that recognise dogs; here a neuron answers to the target classes if all of
its 25 images are of these. `--sheet` writes pages of such images for a few neurons of each block; models that have a
row are derived again for it.
"""

from __future__ import annotations

import argparse
import base64
import io
import random
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import edgevit
from benchmarks.derivations import BATCH, LR, SEEDS, STEPS, device_field
from benchmarks.markdown import Row, grouped, picked, seeds_text, table
from benchmarks.sources import Source, add_source, load_rows, record_file, refusals, source_from, store_rows
from edgevit.data.task import Split
from edgevit.derivation.session.resolved import versions
from edgevit.errors import DataError
from edgevit.network.network import Network
from edgevit.train.passes import Passes, open_passes
from edgevit.train.settings import Training

IMAGES = 25  # that move a neuron most
MOST = 0.8  # of a neuron's images: the share from which it answers mostly to the target classes
METHODS = ("vulcan", "forge")
RATE = 0.6  # as in the paper's figure
SHOWN, PIXELS = 4, 48  # neurons of a block on the sheet, and the size of a picture there


@dataclass
class Highest:
    """The images that move each neuron of a block most, of those seen so far. Shapes: k images, e neurons."""

    values: Tensor  # [k, e], descending
    images: Tensor  # [k, e], their positions; -1 where there were fewer than k

    @classmethod
    def of(cls, neurons: int, count: int = IMAGES) -> Highest:
        return cls(torch.full((count, neurons), -torch.inf), torch.full((count, neurons), -1))

    def see(self, sums: Tensor, first: int) -> None:
        """Add images by their activations [B, e], the first of them at position `first`."""
        positions = torch.arange(first, first + len(sums))[:, None].expand_as(sums)
        values, images = torch.cat([self.values, sums]), torch.cat([self.images, positions])
        self.values, order = values.topk(len(self.values), dim=0)
        self.images = images.gather(0, order)

    def share(self, labels: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each neuron's images in the target classes: [e]. Shapes: labels [N], targets [T]."""
        return torch.isin(labels[self.images], targets).double().mean(0)


def highest(network: Network, images: Split, passes: Passes) -> list[Highest | None]:
    """What moves the neurons of each block most; None of a block without an FFN.

    Raises:
        DataError: there are fewer images than are kept of a neuron.
    """
    if len(images) < IMAGES:
        raise DataError(f"there are {len(images)} test images, and {IMAGES} are kept of each neuron; give more")
    geometry = network.geometry
    prefix = geometry.tokens - geometry.patches
    blocks = list(network.dims)
    by_block = [Highest.of(dims.ffn) if dims.has("ffn") else None for dims in blocks]
    position = 0

    def see(i: int, inputs: Any, _: Tensor) -> None:
        of_block = by_block[i]
        assert of_block is not None
        of_block.see(inputs[0][:, prefix:].sum(1).float().cpu(), position)

    def count(logits: Tensor, _: Tensor) -> None:
        nonlocal position
        position += len(logits)

    with torch.no_grad():
        passes.run(network, images, count, [(network.ffn_outputs, see)], stage="neurons")
    return by_block


def block_counts(
    neurons_of_block: Sequence[Highest | None], labels: Sequence[int], targets: Sequence[int]
) -> list[dict[str, Any] | None]:
    """Count, for each block, the neurons that answer to the target classes, only or mostly."""
    label_tensor, target_tensor = torch.tensor(labels), torch.tensor(targets)

    def block(of: Highest) -> dict[str, Any]:
        share = of.share(label_tensor, target_tensor)
        only, mostly = int((share == 1).sum()), int((share >= MOST).sum())
        return {"neurons": len(share), "only": only, "mostly": mostly, "mean_share": float(share.mean())}

    return [None if of is None else block(of) for of in neurons_of_block]


# -- a page of pictures ------------------------------------------------------------------------------------------------


def sheet(title: str, models: dict[str, Sequence[Highest | None]], images: Split, targets: Sequence[int]) -> str:
    """Write a page with the images of a few neurons of each block."""
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title>",
        "<style>body{font:13px sans-serif}img{margin:1px;border:2px solid #ccc}img.t{border-color:#0072b2}</style>",
        f"<h1>{escape(title)}</h1><p>The {IMAGES} images that move a neuron most. Blue: of the target classes.</p>",
    ]
    pictures: dict[int, str] = {}
    labels, row_keys = torch.tensor(images.labels), torch.tensor(targets)
    for name, blocks in models.items():
        parts.append(f"<h2>{escape(name)}</h2>")
        for i, block in enumerate(blocks):
            if block is None:
                continue
            share = block.share(labels, row_keys)
            for neuron in chosen(share, seed=i):
                parts.append(f"<p>block {i}, neuron {neuron}: {share[neuron]:.0%} of the target classes<br>")
                parts += [_picture(images, p, pictures, targets) for p in block.images[:, neuron].tolist()]
    return "\n".join(parts) + "\n"


def chosen(share: Tensor, seed: int) -> list[int]:
    """Choose a few neurons: half of them those that answer to the target classes most, half of them drawn."""
    most = share.argsort(descending=True, stable=True)[: SHOWN // 2].tolist()
    others = [neuron for neuron in range(len(share)) if neuron not in most]
    return most + sorted(random.Random(seed).sample(others, min(SHOWN - len(most), len(others))))


def _picture(images: Split, position: int, pictures: dict[int, str], targets: Sequence[int]) -> str:
    if position not in pictures:
        picture, file = images.picture(position), io.BytesIO()
        picture.resize((PIXELS, PIXELS)).save(file, "JPEG", quality=85)
        pictures[position] = base64.b64encode(file.getvalue()).decode()
    kind = " class=t" if images.labels[position] in targets else ""
    return f'<img{kind} src="data:image/jpeg;base64,{pictures[position]}" width={PIXELS} height={PIXELS}>'


# -- tables ------------------------------------------------------------------------------------------------------------


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md."""
    if data is None or not data["rows"]:
        return ""
    parts = ["## What neurons answer to\n"]
    for (title, _), rows in grouped(data["rows"], "source", "base_sha256").items():
        head = (
            f"Base {title}; neurons all of whose {IMAGES} most moving images are of the target classes, of "
            f"{rows[0]['images']} test images of all {rows[0]['all_classes']} classes, by block; mostly: {MOST:.0%} of "
            f"these. {seeds_text(rows)}, one sub-task of each size, {rows[0]['rate']:g} of the MACs gone, "
            f"{rows[0]['steps']} steps. Blocks are numbered as the model has them, without those that a method dropped."
        )
        depth = max(len(row[part]) for row in rows for part in ("before", "after"))
        lines = [line for (_,), group in grouped(rows, "task").items() for line in _lines(group, depth)]
        lined = "\n".join(textwrap.wrap(head, 118))
        parts += [lined + "\n", table(["", "all", "mostly", *(f"block {i}" for i in range(depth))], lines)]
    return "\n".join(parts)


def _lines(rows: Sequence[Row], depth: int) -> Iterator[list[str]]:
    """Of one sub-task: the base, then each method over its seeds."""
    models = {"base": [rows[0]["before"]]}
    models |= {method: [row["after"] for row in of] for (method,), of in grouped(rows, "method").items()}
    for name, of in models.items():
        every = [block for blocks in of for block in blocks]
        by_block = [[blocks[i] if i < len(blocks) else None for blocks in of] for i in range(depth)]
        cells = [_share(every), _share(every, "mostly"), *map(_share, by_block)]
        yield [f"{rows[0]['task']} classes, {name}", *cells]


def _share(blocks: Sequence[dict[str, Any] | None], which: str = "only") -> str:
    """Of all these blocks' neurons together: the share that answers to the target classes, and of how many."""
    present = [block for block in blocks if block is not None]
    neurons = sum(block["neurons"] for block in present)
    return f"{sum(block[which] for block in present) / neurons:.1%} of {neurons}" if neurons else ""


def derived_row(
    source: Source, classes: Sequence[str], method: str, seed: int, options: argparse.Namespace, context: Any
) -> Row:
    """Derive for the classes, and look at the neurons before and after."""
    task, before, passes = context
    targets = [task.class_names.index(name) for name in classes]
    training = Training(steps=options.steps, batch_size=BATCH, lr=LR, seed=seed, device=options.device, evaluations=2)
    with tempfile.TemporaryDirectory() as scratch:
        derivation = edgevit.derive(
            **source.start, data=source.data, classes=list(classes), rate=options.rate, method=method,
            training=training, cache=source.cache, out=Path(scratch) / "model",
        )  # fmt: skip
    after = highest(derivation.model, task.test, passes)
    if options.sheet is not None:
        options.sheet.mkdir(parents=True, exist_ok=True)
        name = f"{len(classes)}_{method}_{seed}"
        page = sheet(f"{method}, {', '.join(classes)}", {"base": before, method: after}, task.test, targets)
        (options.sheet / f"{name}.html").write_text(page)
    accuracy = derivation.record.accuracy.derived
    assert accuracy is not None
    return {
        "images": len(task.test), "top1": accuracy.top1, "rate_reached": derivation.model.spec.rate,
        "before": block_counts(before, task.test.labels, targets),
        "after": block_counts(after, task.test.labels, targets),
    }  # fmt: skip


def row_keys(
    rows: Sequence[Row], tasks: Sequence[Sequence[str]], base_sha256: str, options: argparse.Namespace
) -> Iterator[tuple[Row, bool]]:
    """Yield the key of each row, and whether it is recorded; recorded ones only where --sheet needs their models."""
    for seed in SEEDS[: options.seeds]:
        for classes in tasks:
            for method in options.methods:
                of = {"classes": list(classes), "method": method, "seed": seed, "rate": options.rate}
                of |= {"steps": options.steps, "base_sha256": base_sha256}
                recorded = bool(picked(rows, **of))
                if options.sheet is not None or not recorded:
                    yield of, recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--sheet", type=Path, help="folder of the pages of pictures")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "neurons")
    rows = load_rows(file)
    with refusals():
        source = source_from(options, progress)
        tasks = source.sub_tasks(options.tasks, options.classes, most=len(source.classes) - 1)
        every = source.task()
        passes = open_passes(Training(device=options.device), progress)
        looked = every, highest(source.base, every.test, passes), passes
        for of, recorded in list(islice(row_keys(rows, tasks, source.sha256, options), options.rows)):
            classes, method = of["classes"], of["method"]
            row = derived_row(source, classes, method, of["seed"], options, looked)
            only = sum(block["only"] for block in row["after"] if block)
            progress.note(f"{method}, {len(classes)} classes: {only} neurons answer to these alone")
            if recorded:
                continue
            block_counts = {"source": source.label, "all_classes": len(source.classes), "task": len(classes)}
            rows.append({**block_counts, **of, **device_field(options.device), **row, "versions": versions()})
            store_rows(file, rows)
    if options.data is not None:
        print(section({"rows": rows}))


if __name__ == "__main__":
    main()
