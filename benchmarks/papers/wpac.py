"""WPAC as printed beside edgevit's, by what tokens are weighted, and by the number of proxy images (SKD, Figures 4, 5).

    python -m benchmarks.papers.wpac --base fashion           # rows that records/wpac.json does not have
    python -m benchmarks.papers.wpac --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --tasks 25

Attention alone is rotated and cut, nothing is trained. `printed` takes the principal components of queries with keys
and of values (Eq. 1 to 10; `--set supernet.as_published=true`); its rows differ in what tokens are weighted by, which
is Figure 4. `ours` decomposes the products of the weights over tokens that are weighted by importance, and moves the
mean of values into the output bias, which is the default. Figure 5 is at 1/32 of the width, by the number
of proxy images, with five draws of these. Top-1 on up to 300 test images, the base restricted to the sub-task.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any, get_args

import torch

from benchmarks.derivations import SIZES, device_field
from benchmarks.markdown import Row, commits_text, grouped, percent, picked, table, wrapped
from benchmarks.sources import Source, add_source, load_rows, predictor, record_file, refusals, source_from, store_rows
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.skd.wpac import Weighting, feature_covariances, rotate, rotate_published
from edgevit.derivation.session.resolved import versions
from edgevit.network.accuracy import measure_accuracy
from edgevit.network.anatomy import Attention, Block, attentions
from edgevit.network.classifier import with_classes
from edgevit.network.output import Logits
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

OURS = "ours"
KINDS = (OURS, *(f"printed, {weighting}" for weighting in get_args(Weighting)))
SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of each head's dimensions that stay
IMAGES = 256  # the proxy of Figure 4; the paper has 1024
NARROW = 1 / 32  # of Figure 5 here: half of the width, as in the paper, costs these bases nothing
JUDGED = 300  # test images
PROXIES, DRAWS = (16, 64, 256), 5  # of Figure 5


def row_keys() -> Iterator[Row]:
    """Yield the key of every row of a sub-task: part, kind, share, proxy images and draw."""
    yield {"part": "base", "kind": "base", "share": 1.0, "proxy": 0, "draw": 0}
    for kind in KINDS:
        for share in SHARES:
            yield {"part": "weighting", "kind": kind, "share": share, "proxy": IMAGES, "draw": 0}
    for proxy in PROXIES:
        for kind in (OURS, "printed, tokens"):
            for draw in range(1, 1 + DRAWS):
                yield {"part": "proxy", "kind": kind, "share": NARROW, "proxy": proxy, "draw": draw}


def measured(source: Source, classes: Sequence[str], done: Sequence[Row], device: str = "cpu") -> Iterator[Row]:
    """Measure every row of one sub-task that is not recorded."""
    task = source.task(classes)
    network = with_classes(source.base, task.base_columns)
    looked_at = network if device == "cpu" else deepcopy(network)
    test, blocks = list(task.test.subset(JUDGED).batches(200)), network.read()
    passes = open_passes(Training(device=device))
    parts, made = attentions(blocks), dict[tuple[Any, ...], list[Attention]]()

    def rotated(kind: str, proxy: int, draw: int) -> list[Attention]:
        """Rotate by so many images: spread evenly, as a derivation takes them, or drawn by the seed `draw`."""
        images = task.train.subset(proxy)
        if draw:
            order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(draw))
            images = task.train.at(order[:proxy].tolist())
        if kind == OURS:
            statistics = calibrate(looked_at, images, passes, factorisation="tokens")
            return rotate(parts, [s.moment for s in statistics if s.moment is not None])
        weighting: Any = kind.removeprefix("printed, ")
        return rotate_published(parts, feature_covariances(looked_at, images, passes, weighting))

    for key in row_keys():
        if picked(done, **key) or (key["part"] == "proxy" and key["proxy"] > len(task.train)):
            continue
        slim = network
        if key["part"] != "base":
            how = (key["kind"], key["proxy"], key["draw"])
            if how not in made:
                made = {how: rotated(*how)}  # the one that follows is of the same images
            widths = [(max(round(key["share"] * p.qk), 1), max(round(key["share"] * p.vo), 1)) for p in parts]
            cut = [part.first(*width) for part, width in zip(made[how], widths, strict=True)]
            with torch.no_grad():
                slim = network.build([Block(a, block.ffn) for a, block in zip(cut, blocks, strict=True)])
        judged = measure_accuracy(predictor(slim, device), test, Logits(tuple(range(len(classes)))), task.class_names)
        yield {**key, "top1": judged.top1, "images": judged.images, "versions": versions(), **device_field(device)}


def section(rows: Sequence[Row]) -> str:
    """Format the section of README.md."""
    if not rows:
        return ""
    parts = [
        "## WPAC as printed and ours: by what tokens are weighted, and the number of proxy images (SKD, Figures 4, 5)\n"
    ]
    for (source, _), group in grouped(rows, "source", "base_sha256").items():
        lines, sizes = [], []
        for (task,), of in grouped(group, "task").items():
            whole = percent([row["top1"] for row in picked(of, part="base")])
            for kind in KINDS:
                cells = [
                    percent([row["top1"] for row in picked(of, part="weighting", kind=kind, share=s)]) for s in SHARES
                ]
                lines.append([f"{task} classes, {kind}", *cells, whole])
            for (kind, share), by_size in grouped(picked(of, part="proxy"), "kind", "share").items():
                cells = [percent([row["top1"] for row in picked(by_size, proxy=size)]) for size in PROXIES]
                sizes.append([f"{task} classes, {kind}, 1/{1 / share:g} of the width", *cells])
        parts += [
            wrapped(
                f"{source}. Attention alone, nothing trained; top-1 by the share of each head's dimensions that stays, "
                f"from {IMAGES} proxy images. `printed` by what tokens are weighted. {commits_text(group)}"
            ),
            table(["", *(f"1/{1 / share:g}" for share in SHARES), "whole"], lines),
            wrapped(f"By the number of proxy images: mean and range of {DRAWS} draws; empty: fewer training images."),
            table(["", *map(str, PROXIES)], sizes),
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, ("fashion", "fine", "rendered", "demo"))
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "wpac", options.ours)
    rows = load_rows(file)
    with refusals():
        source = source_from(options, progress)
        sizes = options.tasks or (SIZES[options.base][1:2] if options.data is None else None)
        for classes in source.sub_tasks(sizes, options.classes):
            of = {"source": source.label, "base_sha256": source.sha256, "task": len(classes), "classes": classes}
            for row in islice(measured(source, classes, picked(rows, **of), options.device), options.rows):
                rows.append({**of, **row})
                store_rows(file, rows)
                progress.note(f"{row['kind']}, {row['share']:g}, {row['proxy']} images: {row['top1']:.3f}")
    if options.data is not None:
        print(section(rows))


if __name__ == "__main__":
    main()
