"""Draw derived models from their folders: training curves, sizes of blocks, effective ranks; as SVG.

    python -m benchmarks.product.drawings runs/vulcan_0.6 runs/vulcan_0.8 --out drawings
    python -m benchmarks.product.drawings demo/sweep/r0.8 demo/sweep/*-distilled    # after `make demo`

Files in the folder of `--out`:

    accuracy.svg                Vulcan's Figure 8: validation accuracy by step, of the trained network and, where the
                                method measured it, of what would remain of it
    loss_task.svg, lambda_1.svg, ...    each part of the loss by step, and Vulcan's multipliers, as in history.jsonl
    neurons.svg, qk.svg, vo.svg Vulcan's Figures 19 and 21: sizes of every block, all heads together
    ranks.svg                   Vulcan's Figure 5: effective ranks of QK and VO by block, the sum over heads (Eq. 6)

Nothing is measured, and no data set is needed. A drawing without data is not written. Models of different tasks have no
common accuracy or loss axis: these drawings are left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgevit
from benchmarks.line_plot import COLOURS, Panel, Point, line_plot
from benchmarks.sources import refusals
from edgevit.derivation.solve.attention import head_singular_values
from edgevit.derivation.solve.factorise import effective_rank
from edgevit.errors import OptionError
from edgevit.network.anatomy import BlockDims
from edgevit.network.network import Network
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.axes import AccuracyTask, apart_tasks

Lines = dict[str, list[Point]]
BASELINE = "finetune base"  # the stage of history.jsonl that is not the method's own
MOST = len(COLOURS) // 2  # models: each has two lines in accuracy.svg


@dataclass(frozen=True)
class Drawn:
    """One model folder."""

    name: str
    blocks: tuple[BlockDims, ...]
    history: list[dict[str, Any]]  # lines of history.jsonl
    network: Network
    task: AccuracyTask


def read(folder: Path) -> Drawn:
    """Read a model folder.

    Raises:
        CheckpointError: it is no model folder, or was altered.
    """
    model, files = edgevit.load(folder), ModelFolder(folder)
    lines = [{"stage": line.stage, "step": line.step, **line.more} for line in files.history()]
    derivation = files.derivation()
    task = AccuracyTask(tuple(model.spec.class_names), derivation.data if derivation is not None else None)
    return Drawn(folder.name, tuple(model.spec.blocks), lines, model, task)


def curve(history: Sequence[dict[str, Any]], figure: str) -> list[Point]:
    """Return a figure of the method's own training by step; empty for a single value."""
    lines = [line for line in history if line["stage"] != BASELINE and line.get(figure) is not None]
    return [(float(line["step"]), float(line[figure])) for line in lines] if len(lines) > 1 else []


def accuracy(models: Sequence[Drawn]) -> Lines:
    """Return accuracies in percent, of the trained network and of what would remain of it."""
    shown = {"accuracy_trained": "trained", "accuracy_pruned": "what is left"}
    named = [(f"{m.name}, {word}", curve(m.history, figure)) for m in models for figure, word in shown.items()]
    return {name: [(x, 100 * y) for x, y in points] for name, points in named if points}


def losses(models: Sequence[Drawn]) -> dict[str, Lines]:
    """Return every part of the loss by its name, and the multipliers of Vulcan's penalty."""
    shown = ("loss", "lambda_")
    names = sorted({name for m in models for line in m.history for name in line if name.startswith(shown)})
    by_name = {name: {m.name: points for m in models if (points := curve(m.history, name))} for name in names}
    return {name: lines for name, lines in by_name.items() if lines}


SIZES: dict[str, Callable[[BlockDims], int]] = {
    "neurons": lambda dims: dims.ffn,
    "qk": lambda dims: dims.heads * dims.qk,
    "vo": lambda dims: dims.heads * dims.vo,
}


def sizes(models: Sequence[Drawn], kind: str) -> Lines:
    """Return the size of every block from block 1 on; 0 where a site is gone."""
    return {m.name: [(float(i), float(SIZES[kind](d))) for i, d in enumerate(m.blocks, 1)] for m in models}


def ranks(models: Sequence[Drawn]) -> list[Lines]:
    """Return the effective ranks of QK and of VO by block, where a block has an attention."""
    both: list[Lines] = [{}, {}]
    for model in models:
        read = enumerate(model.network.read(), 1)
        attentions = [(float(i), block.attention) for i, block in read if block.attention is not None]
        values = head_singular_values([attention for _, attention in attentions])
        for kind, lines in enumerate(both):
            ranks_of_block = [float(effective_rank(of[kind]).sum()) for of in values]
            lines[model.name] = [(i, rank) for (i, _), rank in zip(attentions, ranks_of_block, strict=True)]
    return both


def tasks_apart(models: Sequence[Drawn]) -> list[str]:
    """Name the differences between the tasks of the models that have a history."""
    return apart_tasks([model.task for model in models if model.history])


def drawings(models: Sequence[Drawn]) -> Iterator[tuple[str, str]]:
    """Yield every drawing with the name of its file."""
    if not tasks_apart(models):
        if lines := accuracy(models):
            yield "accuracy", line_plot([Panel("step", lines)], "top-1, %")
        for name, lines in losses(models).items():
            yield name, line_plot([Panel("step", lines)], name.replace("_", " "))
    for kind in SIZES:
        yield kind, line_plot([Panel("block", sizes(models, kind))], kind)
    if all(any(block.has("attention") for block in m.blocks) for m in models):
        titles = ("block: QK", "block: VO")
        yield "ranks", line_plot([Panel(t, lines) for t, lines in zip(titles, ranks(models), strict=True)], "rank")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, help="model folders")
    parser.add_argument("--out", type=Path, default=Path("drawings"))
    options = parser.parse_args()
    with refusals():
        if len(options.models) > MOST:
            raise OptionError(f"a drawing tells {MOST} models apart, and {len(options.models)} are given; give fewer")
        models = [read(folder) for folder in options.models]
        if differences := tasks_apart(models):
            print(f"no accuracies or losses: the tasks differ in {', '.join(differences)}", file=sys.stderr)
        options.out.mkdir(parents=True, exist_ok=True)
        for name, text in drawings(models):
            (options.out / f"{name}.svg").write_text(text)
            print(options.out / f"{name}.svg", file=sys.stderr)


if __name__ == "__main__":
    main()
