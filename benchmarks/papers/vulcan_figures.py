"""Vulcan's figures of convergence, its normalisations, and the cost of its two constraints.

    python -m benchmarks.papers.vulcan_figures scratch          # Figure 12: distilled from scratch, or pruned at random
    python -m benchmarks.papers.vulcan_figures normalisations   # Figures 19 and 20: four ways to compare activations
    python -m benchmarks.papers.vulcan_figures collapse         # Figure 10: collapse of weights, or of activations
    python -m benchmarks.papers.vulcan_figures cost             # Tables 14 to 16: seconds of both constraints by step
    python -m benchmarks.papers.vulcan_figures collapse --data IMAGES --base deit_base_patch16_224 --checkpoint FILE \
        --tasks 25 --steps 4000

Rows are in records/vulcan_figures.json; each has the accuracy on validation images by step, and top-1 on the test part.
Shape `paper`, learning rate constant, and Vulcan as published but for the length. What edgevit has no option for is put
in its place here:
- `scratch` draws the weights of the network that `random` leaves anew. Both imitate the base by their logits alone.
- `normalisations` are the z-score, min-max, L2 norm and, as `uniform`, the rank of a neuron in its block.
- `collapse` of activations compares what neurons put out for the images of a step, summed over tokens, in place of rows
  of W_1 and b_1.
- `cost` is of forward and backward pass of each constraint alone, of the processor or of a GPU that is waited for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn

import edgevit
from benchmarks.derivations import BATCH, LR, SEEDS, device_field
from benchmarks.markdown import Row, commits_text, grouped, percent, picked, seeds_text, table, wrapped
from benchmarks.papers.published import VULCAN
from benchmarks.product.budgets import MODELS, start_from
from benchmarks.sources import Source, add_source, load_rows, record_file, refusals, source_from, store_rows
from edgevit.baselines.common import ranked
from edgevit.derivation.allocate import widths
from edgevit.derivation.measure.statistics import token_sum
from edgevit.derivation.methods.vulcan import method as vulcan
from edgevit.derivation.realise import realise
from edgevit.errors import BudgetError
from edgevit.network.anatomy import Block
from edgevit.network.network import Network
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

PARTS = ("scratch", "normalisations", "collapse", "cost")
RATES: Mapping[str, tuple[float, ...]] = {
    "scratch": (0.8, 0.4, 0.6, 0.2), "normalisations": (0.6,), "collapse": (0.6,), "cost": (0.2, 0.4, 0.6, 0.8),
}  # fmt: skip
SHORT = 60  # steps of the rows here
COST_STEPS = 8  # of which the first is not counted
SIZED = "deit_tiny", "deit_small", "deit_base"  # of Table 16
EVALUATIONS = 5
TINY = 1e-12


def drawn_anew(network: Network, plan: Any) -> Network:
    """Realise a plan, and draw all weights as a ViT that is trained from scratch begins."""
    slim = realise(network, plan)
    for module in slim.module.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name == "bias":
                nn.init.zeros_(parameter)
            else:
                nn.init.trunc_normal_(parameter, std=0.02)
    return slim


def min_max(activation: Tensor) -> Tensor:
    least, most = activation.aminmax()
    shares: Tensor = (activation - least) / (most - least).clamp_min(TINY)
    return shares


def by_norm(activation: Tensor) -> Tensor:
    shares: Tensor = activation / torch.linalg.vector_norm(activation).clamp_min(TINY)
    return shares


def by_rank(activation: Tensor) -> Tensor:
    """Give all blocks the same scores, so that all lose as many neurons."""
    return activation.argsort(stable=True).argsort().to(activation) / len(activation)


NORMALISATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "z-score": widths.z_scores, "min-max": min_max, "L2": by_norm, "uniform": by_rank,
}  # fmt: skip


class ActivationCollapse(vulcan.Redundancy):
    """Draws the activations of a cluster's neurons to its anchor's (Eq. 4, with a in place of n)."""

    def _observe(self, index: int, inputs: Any, output: Tensor) -> None:
        if self.network.training:
            self.__dict__.setdefault("summed", {})[index] = token_sum(inputs[0].float())
        super()._observe(index, inputs, output)

    def _collapse(self, blocks: Sequence[Block], numbers: Sequence[int]) -> Tensor:
        total = torch.zeros(2, device=self.compute.device)
        for i in numbers:
            activation = self.__dict__["summed"][i]
            apart = activation - activation[self.clusters[i].anchor_of]
            total = total + torch.stack([apart.abs().sum(), apart.square().sum()]) / self.divisors[i]
        return total


class Timed(vulcan.Redundancy):
    """Times forward and backward pass of each constraint before every step."""

    seconds: ClassVar[list[tuple[float, float]]] = []  # of collapse and rank, by step

    def penalty(self) -> tuple[Tensor, dict[str, float]]:
        found = super().penalty()
        blocks, numbers = self.network.read(), range(len(self.plan.blocks))
        weights = [p for p in self.network.parameters() if p.requires_grad]
        both = []
        for part in (self._collapse, self._tails):
            began = self._clock()
            torch.autograd.grad(part(blocks, numbers).sum(), weights, allow_unused=True)
            both.append(self._clock() - began)
        Timed.seconds.append((both[0], both[1]))
        return found

    def _clock(self) -> float:
        if self.compute.device.type == "cuda":
            torch.cuda.synchronize(self.compute.device)
            return time.perf_counter()
        return time.process_time()


def variants(part: str) -> Mapping[str, tuple[str, Callable[[], Any] | None]]:
    """The variants of a part: method, and what to put in place."""
    if part == "scratch":
        anew = partial(mock.patch.object, ranked, "realise", drawn_anew)
        return {"pruned at random": ("random", None), "the same sizes from scratch": ("random", anew)}
    if part == "normalisations":
        return {
            name: ("vulcan", partial(mock.patch.object, widths, "z_scores", scores))
            for name, scores in NORMALISATIONS.items()
        }
    if part == "collapse":
        other = partial(mock.patch.object, vulcan, "Redundancy", ActivationCollapse)
        return {"of weights": ("vulcan", None), "of activations": ("vulcan", other)}
    return {"both constraints": ("vulcan", partial(mock.patch.object, vulcan, "Redundancy", Timed))}


def derived_row(start: Mapping[str, Any], key: Row, options: argparse.Namespace, progress: Any) -> Row:
    """Derive one model and return what it gave."""
    method, patch = variants(key["part"])[key["variant"]]
    taught: dict[str, Any] = {"teacher": "restricted", "teacher_weight": 1.0, "token_weight": 0.0}
    training = Training(
        steps=key["steps"], batch_size=key["batch_size"], lr=LR, seed=key["seed"], schedule="constant",
        early_stop=False, device=options.device, evaluations=EVALUATIONS,
        **(taught if key["part"] == "scratch" else {}),
    )  # fmt: skip
    Timed.seconds.clear()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        if patch is not None:
            stack.enter_context(patch())
        made = edgevit.derive(
            **start, rate=key["rate"], method=method, shape="paper", options=VULCAN if method == "vulcan" else {},
            training=training, out=Path(scratch) / "model", progress=progress,
        )  # fmt: skip
        lines = [line for line in ModelFolder(made.folder).history() if "accuracy_trained" in line.more]
    accuracy = made.record.accuracy
    assert accuracy.derived and accuracy.base_restricted
    pruned = [line.more.get("accuracy_pruned", line.more["accuracy_trained"]) for line in lines]
    row: Row = {
        "top1": accuracy.derived.top1, "base": accuracy.base_restricted.top1, "images": accuracy.derived.images,
        "curve": [[line.step, top1] for line, top1 in zip(lines, pruned, strict=True)],
        "macs": made.model.spec.macs, "ffn": [block.ffn for block in made.model.spec.blocks],
        "versions": made.record.versions, **device_field(options.device),
    }  # fmt: skip
    if key["part"] == "cost":
        for name, seconds in zip(("ccnc_s", "tnnr_s"), zip(*Timed.seconds[1:], strict=True), strict=True):
            row[name] = median(seconds)
    return row


def keys(part: str, tasks: Sequence[Sequence[str]], seeds: Sequence[int], steps: int) -> Iterator[Row]:
    """Yield the key of every row of a part, on one source."""
    for seed in seeds if part != "cost" else seeds[:1]:
        for classes in tasks if part == "cost" else tasks[:1]:
            for rate in RATES[part]:
                for name in variants(part):
                    length = COST_STEPS if part == "cost" else steps
                    yield {
                        "part": part, "variant": name, "rate": rate, "seed": seed, "steps": length,
                        "batch_size": BATCH, "task": len(classes), "classes": list(classes),
                    }  # fmt: skip


# -- tables ------------------------------------------------------------------------------------------------------------

TITLES = {
    "scratch": "Distilled from scratch, or pruned at random (Vulcan's Figure 12)",
    "normalisations": "Four normalisations of activations (Vulcan's Figures 19 and 20)",
    "collapse": "Collapse of weights, or of activations (Vulcan's Figure 10)",
    "cost": "Seconds of both constraints in a step (Vulcan's Tables 14 to 16)",
}


def section(rows: Sequence[Row]) -> str:
    """Format the sections of README.md."""
    parts = []
    for (part, source), group in grouped(rows, "part", "source").items():
        first = group[0]
        size = f"{first['task']} classes, {seeds_text(group)}, {first['steps']} steps of {first['batch_size']} images"
        head = f"{source}, {size}, shape `paper`. {commits_text(group)}"
        if part == "cost":
            head = (
                f"{source}, as published, batches of {first['batch_size']}; milliseconds of the processor for forward "
                f"and backward pass of each constraint, median of {first['steps'] - 1} steps. {commits_text(group)}"
            )
            lines = [
                [f"{row['task']} classes", f"{row['rate']:g}", *(f"{1e3 * row[n]:.1f}" for n in ("ccnc_s", "tnnr_s"))]
                for row in group
            ]
            body = table(["sub-task", "MACs gone", "CCNC, ms", "TNNR, ms"], lines)
        else:
            body = _curves(group)
            head += " Mean top-1, %, on validation images by step, as it would be pruned there, then on the test part."
        parts.append(f"## {TITLES[part]}: {source}\n\n{wrapped(head)}\n{body}")
    return "\n".join(parts)


def _curves(rows: Sequence[Row]) -> str:
    steps = sorted({step for row in rows for step, _ in row["curve"]})
    shown = [step for i, step in enumerate(steps) if i % 2 or step in (0, steps[-1])]
    lines = []
    for (rate, variant), group in grouped(rows, "rate", "variant").items():
        of_step = [[top1 for row in group for step, top1 in row["curve"] if step == at] for at in shown]
        cells = [f"{100 * sum(values) / len(values):.1f}" if values else "" for values in of_step]
        sizes = ", ".join(str(width) for width in group[0]["ffn"])
        lines.append([f"{rate:g}, {variant}", *cells, percent([row["top1"] for row in group]), sizes])
    titles = ["MACs gone, variant", *(f"step {step}" for step in shown), "test", "neurons of each block"]
    return table(titles, lines) + wrapped(f"Base, restricted: {percent([rows[0]['base']])} %.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    add_source(parser, ("fashion", "fine", "rendered", "demo"))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--steps", type=int, default=SHORT, help="the papers train some thousands")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[], help=f"of Table 16: {', '.join(SIZED)}")
    options = parser.parse_args()
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "vulcan_figures", options.ours)
    rows = load_rows(file)

    def complete(source: str, sha256: str, start: Mapping[str, Any], due: Iterator[Row]) -> None:
        for key in due:
            of = {"source": source, "base_sha256": sha256, **key}
            if any(of.items() <= row.items() for row in rows):
                continue
            try:
                row = derived_row({**start, "classes": key["classes"]}, key, options, progress)
            except BudgetError as error:
                progress.note(f"{key['variant']}, {key['rate']:g}: {error}")
                continue
            rows.append({**of, **row})
            store_rows(file, rows)
            progress.note(f"{key['variant']}, {key['rate']:g}, seed {key['seed']}: {row['top1']:.3f}")

    with refusals():
        if options.models:
            for name in options.models:
                with tempfile.TemporaryDirectory() as folder:
                    of = start_from(name, Path(folder))
                    key = next(keys("cost", [["a", "b"]], SEEDS, 0)) | {"rate": 0.6, "batch_size": 2, "steps": 4}
                    start = {"base": of.name, "checkpoint": of.checkpoint, "data": of.data, **of.more}
                    accepted = {"accept_weak_base": True, "accept_preprocessing": True}
                    complete(f"{name}, random weights", "", {**start, **accepted}, iter([key]))
        else:
            source: Source = source_from(options, progress)
            tasks = source.sub_tasks(options.tasks, options.classes)
            start = {**source.start, "data": source.data, "cache": source.cache / "shared" / "vulcan"}
            due = keys(options.part, tasks, SEEDS[: options.seeds], options.steps)
            complete(source.label, source.sha256, start, islice(due, options.rows))
    if options.data is not None:
        print(section(picked(rows, part=options.part)))


if __name__ == "__main__":
    main()
