"""NuWa's claims about harmful neurons, its batch of one image and its 128 calibration images.

    python -m benchmarks.papers.nuwa_figures random           # Figure 1: neurons removed at random
    python -m benchmarks.papers.nuwa_figures metrics          # Figure 4: do metrics see which neurons do harm?
    python -m benchmarks.papers.nuwa_figures batch            # images in each step of the purification
    python -m benchmarks.papers.nuwa_figures calibration      # calibration images of the closed form
    python -m benchmarks.papers.nuwa_figures random --data IMAGES --base deit_base_patch16_224 --checkpoint FILE \
        --tasks 25

Rows are in records/nuwa_figures.json. The base answers with the classes of the sub-task.
- `random`: neurons of all FFNs go, drawn for each row. A gain on the test part may be luck: so the draw with the
  highest top-1 on one half of the test images is judged on the other half, too.
- `metrics`: neurons are removed one by one, drawn evenly over the blocks. One does harm if the mean loss of the images
  falls without it; so it is measured on training and on test images, and their rank correlation says how much of it is
  of the sub-task, and how much of the images. Then each metric's rank correlation with the loss that a neuron saves,
  and how many of the tenth that is worst on training images are in the metric's lowest tenth (by chance a tenth).
- `batch`: masks are trained for as many steps of each size; accuracy and the share of neurons are those of the last
  masks, not of the best ones, which the method keeps.
- `calibration`: closed form with neurons by activation as published, and by removal cost, the default.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import edgevit
from benchmarks.derivations import LR, SEEDS, SIZES
from benchmarks.markdown import Row, commits_text, grouped, percent, picked, points, seeds_text, table, wrapped
from benchmarks.sources import Source, add_source, load_rows, record_file, refusals, source_from, store_rows
from edgevit.baselines.common.importance import group_sums, squared_changes, valued, weights_times_gradients
from edgevit.data.task import Split, Task
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.cache import Cache
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.nuwa.purify import masks_applied, purify
from edgevit.derivation.methods.skd.piad import measure_importance
from edgevit.derivation.problem import Problem, Stopwatch
from edgevit.derivation.session.resolved import versions
from edgevit.errors import BudgetError
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network
from edgevit.train.history import History
from edgevit.train.passes import Passes, open_passes
from edgevit.train.settings import Training

PARTS = ("random", "metrics", "batch", "calibration")
SHARES, DRAWS = (0.01, 0.05, 0.1, 0.2, 0.3), 8
JUDGED = 600  # test images of `random`
LOOKED, NEURONS = 128, 16  # images of `metrics`, and neurons of each block
BATCHES, STEPS = (1, 4, 16, 32), 200
CALIBRATION, RATES = (16, 32, 64, 128, 256, 512, 1024), (0.8, 0.6)
TENTH = 0.1


def losses_and_right(network: Network, images: Split, passes: Passes) -> tuple[Tensor, Tensor]:
    """The loss of each image, and whether it is classified correctly: [n] twice."""
    losses, right = list[Tensor](), list[Tensor]()

    def add(logits: Tensor, labels: Tensor) -> None:
        losses.append(F.cross_entropy(logits.double(), labels, reduction="none").cpu())
        right.append((logits.argmax(1) == labels).cpu())

    passes.run(network, images, add)
    return torch.cat(losses), torch.cat(right)


def masks_without(network: Network, removed: Sequence[tuple[int, Tensor]], device: Any) -> list[Tensor]:
    masks = [torch.ones(dims.ffn, device=device) for dims in network.dims]
    for block, neurons in removed:
        masks[block][neurons.to(device)] = 0
    return masks


def random_rows(network: Network, task: Task, passes: Passes, seed: int) -> Iterator[Row]:
    """Top-1 without drawn neurons, on both halves of the test images."""
    images = task.test.subset(JUDGED)
    _, whole = losses_and_right(network, images, passes)
    halves = [slice(0, None, 2), slice(1, None, 2)]
    base = [float(whole[half].double().mean()) for half in halves]
    for share in SHARES:
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(1000 * seed + draw)
            removed = [
                (i, torch.randperm(dims.ffn, generator=generator)[: round(share * dims.ffn)])
                for i, dims in enumerate(network.dims)
            ]
            with masks_applied(network, masks_without(network, removed, passes.compute.device)):
                _, right = losses_and_right(network, images, passes)
            top1 = [float(right[half].double().mean()) for half in halves]
            yield {"share": share, "draw": draw, "top1": top1, "base": base, "images": len(images)}


def metrics_rows(network: Network, task: Task, passes: Passes, seed: int) -> Iterator[Row]:
    """Each metric against the loss that removing one neuron saves."""
    parts = {"train": task.train.subset(LOOKED), "test": task.test.subset(LOOKED)}
    base = {part: losses_and_right(network, images, passes)[0].mean() for part, images in parts.items()}
    generator = torch.Generator().manual_seed(seed)
    chosen = [(i, n) for i, d in enumerate(network.dims)
              for n in torch.randperm(d.ffn, generator=generator)[:NEURONS].tolist()]  # fmt: skip
    costs: dict[str, list[float]] = {part: [] for part in parts}
    for block, neuron in chosen:
        with masks_applied(network, masks_without(network, [(block, torch.tensor([neuron]))], passes.compute.device)):
            for part, images in parts.items():
                costs[part].append(float(losses_and_right(network, images, passes)[0].mean() - base[part]))
    cost = {part: torch.tensor(values) for part, values in costs.items()}
    worst = set(cost["train"].argsort()[: round(TENTH * len(chosen))].tolist())
    shared: Row = {
        "neurons": len(chosen), "harmful": float((cost["train"] < 0).double().mean()),
        "harmful_on_both": float(((cost["train"] < 0) & (cost["test"] < 0)).double().mean()),
        "train_and_test": spearman(cost["train"], cost["test"]),
    }  # fmt: skip
    for name, of_blocks in metrics_of(network, parts["train"], passes).items():
        scores = torch.stack([of_blocks[block][neuron].double().cpu() for block, neuron in chosen])
        lowest = set(scores.argsort()[: len(worst)].tolist())
        found = len(worst & lowest) / len(worst)
        yield {**shared, "metric": name, "rank_correlation": spearman(scores, cost["train"]), "found": found}


def metrics_of(network: Network, images: Split, passes: Passes) -> dict[str, list[Tensor]]:
    """Scores of the neurons of each block by each metric."""
    products = weights_times_gradients(network, images, passes)
    by_weights = {
        "magnitude": group_sums(valued(network, lambda _, weight: weight.detach().square())),
        "Taylor, weights": group_sums(valued(products, lambda _, product: product.detach().abs())),
        "NViT": squared_changes(network, images, passes),
    }
    found = {name: [block["ffn"] for block in scores.blocks] for name, scores in by_weights.items()}
    found["activation"] = [s.magnitude for s in calibrate(network, images, passes)]
    taylor = measure_importance(network, images, passes).taylor
    found["Taylor, activations"] = [taylor[i, "ffn"] for i in range(len(network.dims))]
    return found


def spearman(first: Tensor, second: Tensor) -> float:
    """Rank correlation; equal values have ranks in their order."""
    ranks = [t.argsort(stable=True).argsort().double() for t in (first, second)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def batch_rows(network: Network, task: Task, passes: Passes, training: Training, folder: Path) -> Iterator[Row]:
    """Masks that are trained by steps of different sizes."""
    for size in BATCHES:
        history, began = History(None, []), time.process_time()
        problem = Problem(
            network, task, make_budget(1, 1, rate=0.5), make_policy("paper"), training, training, passes, folder,
            history, Stopwatch(), Cache(None), {},
        )  # fmt: skip
        best = purify(problem, STEPS, size)
        seconds, last = time.process_time() - began, history.lines[-1]
        with masks_applied(network, masks := [mask.to(passes.compute.device) for mask in best]):
            _, right = losses_and_right(network, task.test, passes)
        yield {
            "size": size, "mask_steps": STEPS, "neurons_kept": last["neurons_kept"], "seconds": round(seconds, 2),
            "accuracy_anchor": last["accuracy_anchor"], "validation_images": len(task.validation),
            "best_neurons": mean(float(mask.mean()) for mask in masks), "best_top1": float(right.double().mean()),
            "images": len(task.test),
        }  # fmt: skip


def calibration_rows(source: Source, classes: Sequence[str], training: Training, progress: Any) -> Iterator[Row]:
    """Closed forms from different numbers of calibration images."""
    for rate in RATES:
        for neurons in ("activation", "removal"):
            for count in CALIBRATION:
                with tempfile.TemporaryDirectory() as scratch:
                    try:
                        made = edgevit.derive(
                            **source.start, data=source.data, classes=list(classes), rate=rate, method="nuwa",
                            shape="paper", training=replace(training, steps=0), out=Path(scratch) / "model",
                            cache=source.cache / "shared" / "nuwa", progress=progress,
                            options={"purification": "none", "neurons": neurons, "calibration_images": count},
                        )  # fmt: skip
                    except BudgetError as error:
                        progress.note(f"{rate:g}, {neurons}: {error}")
                        break
                accuracy = made.record.accuracy
                assert accuracy.derived and accuracy.base_restricted and made.record.data
                yield {
                    "rate": rate, "neurons": neurons, "calibration_images": count, "top1": accuracy.derived.top1,
                    "base": accuracy.base_restricted.top1, "images": accuracy.derived.images,
                    "train_images": made.record.data.images.train,
                }  # fmt: skip
                if count >= made.record.data.images.train:
                    break


def measured(source: Source, classes: Sequence[str], part: str, seed: int, device: str, progress: Any) -> Iterator[Row]:
    """Measure the rows of a part, on one sub-task."""
    training = Training(device=device, seed=seed, lr=LR, augment="none")
    if part == "calibration":
        yield from calibration_rows(source, classes, training, progress)
        return
    task, passes = source.task(classes, seed=seed), open_passes(training, progress)
    network = with_classes(source.base, task.base_columns).to(passes.compute.device).eval()
    if part == "batch":
        with tempfile.TemporaryDirectory() as folder:
            yield from batch_rows(network, task, passes, training, Path(folder))
    else:
        yield from {"random": random_rows, "metrics": metrics_rows}[part](network, task, passes, seed)


# -- tables ------------------------------------------------------------------------------------------------------------


def section(rows: Sequence[Row]) -> str:
    """Format the sections of README.md."""
    parts = []
    tables = {"random": _random, "metrics": _metrics, "batch": _batch, "calibration": _calibration}
    for (part, source), group in sorted(grouped(rows, "part", "source").items(), key=lambda g: PARTS.index(g[0][0])):
        title, text, body = tables[part](group)
        task = f"{source}, {group[0]['task']} classes, {seeds_text(group)}. "
        parts.append(f"## {title}: {source}\n\n{wrapped(task + text + ' ' + commits_text(group))}\n{body}")
    return "\n".join(parts)


def _random(rows: Sequence[Row]) -> tuple[str, str, str]:
    lines = []
    for (share,), group in grouped(rows, "share").items():
        gains = [[t - b for t, b in zip(row["top1"], row["base"], strict=True)] for row in group]
        whole = [mean(pair) for pair in gains]
        chosen = []
        for (_,), of_seed in grouped(group, "seed").items():
            best = max(of_seed, key=lambda row: row["top1"][0])
            chosen.append((best["top1"][0] - best["base"][0], best["top1"][1] - best["base"][1]))
        better = sum(gain > 0 for gain in whole)
        lines.append(
            [
                f"{share:g}",
                points(whole),
                f"{better} of {len(whole)}",
                *(points(side) for side in zip(*chosen, strict=True)),
            ]
        )
    head = ["neurons gone", "points to the base", "draws above it", "best draw, half that chose it", "other half"]
    text = (
        f"Neurons drawn from every FFN, {DRAWS} draws for each seed, {rows[0]['images']} test images; mean and range."
    )
    return "Neurons removed at random (NuWa's Figure 1)", text, table(head, lines)


def _metrics(rows: Sequence[Row]) -> tuple[str, str, str]:
    def two(values: Sequence[float]) -> str:
        return f"{mean(values):+.2f} ({min(values):+.2f} to {max(values):+.2f})"

    lines = [
        [name, two([row["rank_correlation"] for row in group]), percent([row["found"] for row in group])]
        for (name,), group in grouped(rows, "metric").items()
    ]
    one = [group[0] for group in grouped(rows, "seed").values()]
    text = (
        f"{one[0]['neurons']} neurons removed one by one. Without {percent([row['harmful'] for row in one])} % of them "
        f"the loss on {LOOKED} training images falls; without {percent([row['harmful_on_both'] for row in one])} % it "
        "falls on test images, too. Rank correlation of what a neuron costs on training and on test images: "
        f"{two([row['train_and_test'] for row in one])}."
    )
    head = ["metric", "rank correlation with the cost", "of the worst tenth in its lowest tenth, %"]
    return "Do metrics see which neurons do harm? (NuWa's Figure 4)", text, table(head, lines)


def _batch(rows: Sequence[Row]) -> tuple[str, str, str]:
    lines = []
    for (size,), group in grouped(rows, "size").items():
        names = ("neurons_kept", "accuracy_anchor", "best_neurons", "best_top1")
        cells = [percent([row[name] for row in group]) for name in names]
        lines.append([str(size), *cells, f"{mean(row['seconds'] for row in group):.1f}"])
    head = [
        "images of a step",
        "neurons kept, %",
        "validation top-1, %",
        "best: neurons, %",
        "best: test top-1, %",
        "s",
    ]
    text = (
        f"{rows[0]['mask_steps']} steps of each; the last masks, then the best on the validation part; seconds of the "
        "processor."
    )
    return "Images in each step of the purification (NuWa)", text, table(head, lines)


def _calibration(rows: Sequence[Row]) -> tuple[str, str, str]:
    counts = sorted({row["calibration_images"] for row in rows})
    lines = []
    for (rate, neurons), group in grouped(rows, "rate", "neurons").items():
        cells = [percent([row["top1"] for row in picked(group, calibration_images=count)]) for count in counts]
        lines.append([f"{rate:g} gone, neurons by {neurons}", *cells])
    text = f"Closed form, nothing trained; base, restricted: {percent(sorted({row['base'] for row in rows}))} %."
    return "Calibration images of NuWa's closed form", text, table(["", *map(str, counts)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    add_source(parser, ("fashion", "fine", "rendered", "demo"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "nuwa_figures", options.ours)
    rows = load_rows(file)
    with refusals():
        source = source_from(options, progress)
        sizes = options.tasks or (SIZES[options.base][1:2] if options.data is None else None)
        for classes in source.sub_tasks(sizes, options.classes)[:1]:
            for seed in SEEDS[: options.seeds]:
                of = {"part": options.part, "source": source.label, "base_sha256": source.sha256, "seed": seed}
                of |= {"task": len(classes), "classes": classes}
                if picked([row for row in rows if row["part"] == options.part], **of):
                    continue
                found = islice(measured(source, classes, options.part, seed, options.device, progress), options.rows)
                rows += [{**of, **row, "versions": versions()} for row in found]
                store_rows(file, rows)
    if options.data is not None:
        print(section(picked(rows, part=options.part)))


if __name__ == "__main__":
    main()
