"""Attention pruned without training, its factors made for the weights, for the task's tokens, or for these weighted.

    python -m benchmarks.papers.attention                     # writes records/attention.json
    python -m benchmarks.papers.attention --base fashion      # writes records/attention_fashion.json
    python -m benchmarks.papers.attention --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs
    python -m benchmarks.papers.attention criteria            # writes records/criteria.json; other bases: sources.py
    python -m benchmarks.papers.attention criteria --base swin        # a small Swin, as the paper's Table 3 has one
    python -m benchmarks.papers.attention criteria --data IMAGES --base swin_tiny_patch4_window7_224 --checkpoint FILE

Tables 3 and 6 of the SKD super-network paper: QK and VO of every block at 1/4, 2/4 and 3/4 of their width, the FFN
whole, top-1 with nothing trained. Narrower widths, too: this base's attention is of so low a rank that 1/4 costs it
nothing. Table 6 is at half of the width and chooses tokens: the class token, 1, 2 or 5 of each image at random, all of
them, all at a weight of 0.01, all by their importance. Moments of one token per image, of fewer images than features,
have no full rank, and the paper's decomposition fails on some (`Ill-Cond.`); here a floor decides where tokens do not.
A moment is a weighted mean, in which a weight that all tokens share cancels: `x 0.01` is all tokens once more.
Random tokens are drawn once per image, the same in all blocks, `DRAWS` times. Sub-tasks of accuracy.py or a user's;
moments of `IMAGES` training images; top-1 on the test part. Each run writes its record anew.

`criteria` sets WPAC, and the singular values of the weights, against five criteria that score each dimension by itself:
those of the SKD paper's Table 3, chance among them; and against three more, as Vulcan's Figure 4 does. Whole heads
against dimensions are Vulcan's Table 6. With g the gradient of an image's loss by a factor on a dimension, of its
queries or of its values, and h its second derivative, a dimension is worth |E g| (Taylor, first order), |E g - h / 2|
(second order) or h / 2 (Hessian diagonal). h is taken as E g^2, the empirical Fisher information. Magnitude is the sum
of squares of the weights that go with it. A head is worth (E g)^2 of a factor on all that it puts out. All blocks and
heads keep as many dimensions, and all blocks as many heads. Nothing is trained. WPAC alone makes up for the mean of the
values that go, which is part of it here. The paper has a Swin, too: of one, NISP is left out.

Vulcan names the three of Figure 4 and does not say how they score a dimension of a head. Here:
- NISP hands the importance of the last responses back through |W|, without images. What it starts from is alike for all
  logits of the task, in place of NISP's ranking of features; a norm's gain counts as a part of the weights behind it;
  a residual sum hands on what it gets; attention rows sum to one, so that values get what tokens get. NISP knows no
  product of two responses: here the weight behind a query's dimension is the key that it meets, as large as the sum
  of |W_K| of that dimension, and the other way round, and logits get what their head's values get. Nothing goes on
  through queries and keys.
- S2ViTE's saliency is of first order: the sum of |w g| over the weights of a dimension, g of the mean loss. (Of a
  factor on the whole structure, as S2ViTE scores heads, it is `Taylor, first order`.)
- NViT: the square of the sum of w g over these weights, g of the loss of a few images at a time, as in `methods/nvit`.
"""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.derivations import SIZES, device_field
from benchmarks.markdown import Row, grouped, percent, picked, table
from benchmarks.sources import (
    OURS,
    SWIN,
    Source,
    add_source,
    load_rows,
    predictor,
    record_file,
    refusals,
    source_from,
    store_rows,
)
from edgevit.baselines.common.importance import (
    group_sums,
    squared_changes,
    valued,
    weights_times_gradients,
)
from edgevit.data.task import Split, Task
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.solve.attention import attention_spectra, narrow
from edgevit.errors import OptionError
from edgevit.network.accuracy import measure_accuracy
from edgevit.network.anatomy import Attention, Block, attentions, unpack
from edgevit.network.classifier import with_classes
from edgevit.network.families import vit
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.records.writing import write_whole
from edgevit.train.passes import Passes, open_passes
from edgevit.train.settings import Training

IMAGES, WIDTHS = 128, (4, 8, 16, 32, 48)
SHARES = (1 / 16, 1 / 8, 0.25, 0.5, 0.75)  # of the dimensions that stay: those of Table 3, and two narrower ones
HEAD_RATES = (0.4, 0.6)  # of the heads that go, as in Vulcan's Table 6; the nearest number of heads
DRAWS = 3  # of random dimensions, and of random tokens
DRAWN, SMALL = (1, 2, 5), 0.01  # random tokens of an image, and the weight of all tokens, in Table 6
WPAC, SVD, HEADS = "WPAC", "SVD of the weights", "whole heads"


def token_moments(network: Network, images: Split, chosen: Tensor, passes: Passes, weight: float = 1.0) -> list[Tensor]:
    """Average [x 1]^T [x 1] over these tokens of each image; the rank is at most their number.

    Shape: chosen [n, x], positions of tokens.
    """
    geometry = network.geometry
    sums = [torch.zeros(geometry.embed + 1, geometry.embed + 1, dtype=torch.float64) for _ in network.read()]
    position = 0

    def see(i: int, layer_inputs: Any, _: Tensor) -> None:
        inputs = layer_inputs[0].cpu().double()  # [B, N, d]
        places = chosen[position : position + len(inputs), :, None].expand(-1, -1, inputs.shape[2])
        tokens = inputs.gather(1, places).flatten(0, 1)
        tokens = torch.cat([tokens, tokens.new_ones(len(tokens), 1)], dim=1)
        sums[i] += weight * (tokens.mT @ tokens)

    def count(logits: Tensor, _: Tensor) -> None:
        nonlocal position
        position += len(logits)

    with torch.no_grad():
        passes.run(network, images, count, [(network.attention_inputs, see)])
    return [total / (weight * chosen.numel()) for total in sums]


def random_tokens(images: int, tokens: int, count: int, seed: int) -> Tensor:
    """Draw so many tokens of each image without replacement, possibly the class token: [n, count]."""
    return torch.rand(images, tokens, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :count]


def moments(
    network: Network, task: Task, columns: list[int], device: str = "cpu"
) -> Iterator[tuple[str, int, list[Tensor] | None]]:
    """Yield each kind of moments with its draw and one moment per block; `network` is not moved."""
    images, passes = task.train.subset(IMAGES), open_passes(Training(device=device))
    looked_at = network if device == "cpu" else deepcopy(network)
    tokens = network.geometry.tokens

    def take(factorisation: Any) -> list[Tensor]:
        statistics = calibrate(looked_at, images, passes, factorisation=factorisation)
        return [s.moment for s in statistics if s.moment is not None]

    def of_places(places: Tensor, weight: float = 1.0) -> list[Tensor]:
        return token_moments(looked_at, images, places, passes, weight)

    yield "weights", 0, None
    yield "activations", 0, take("activations")
    yield "activations x 0.01", 0, of_places(torch.arange(tokens).expand(len(images), -1), SMALL)
    yield "tokens", 0, take("tokens")
    yield "class token", 0, of_places(torch.zeros(len(images), 1, dtype=torch.int64))
    for count in (few for few in DRAWN if few <= tokens):
        for draw in range(DRAWS):
            yield f"random {count}", draw, of_places(random_tokens(len(images), tokens, count, draw))


def moments_rows(source: Source, classes: Sequence[str], device: str = "cpu") -> Iterator[Row]:
    """Every row of one sub-task, its base first.

    Raises:
        OptionError: the base's tokens are not one sequence in all blocks, or it has no class token.
    """
    task = source.task(classes)
    if source.base.family is not vit:
        raise OptionError(f"{source.label} is no plain ViT: there is no class token in every block to take moments of")
    network, columns = with_classes(source.base, task.base_columns), list(range(len(classes)))
    test, blocks = list(task.test.batches(200)), network.read()
    parts = attentions(blocks)
    whole = parts[0].qk
    common = {"task": len(classes), "images": len(task.test), **device_field(device)}

    def top1(model: Network) -> float:
        return measure_accuracy(predictor(model, device), test, Logits(tuple(columns)), task.class_names).top1

    yield {**common, "width": whole, "kind": "base", "draw": 0, "top1": top1(network)}
    for kind, draw, of in moments(network, task, columns, device):
        spectra = attention_spectra(parts, of)
        for width in sorted({*(w for w in WIDTHS if w < whole), whole // 2}):
            with torch.no_grad():
                slim = narrow(parts, [(width, width)] * len(parts), of, spectra)
                network_of_row = network.build([Block(a, b.ffn) for a, b in zip(slim, blocks, strict=True)])
            yield {**common, "width": width, "kind": kind, "draw": draw, "top1": top1(network_of_row)}


def measure_moments(options: argparse.Namespace) -> None:
    """Write a record of all sub-tasks anew."""
    from edgevit.cli.console import Console

    progress, rows = Console().progress, []
    with refusals():
        source = source_from(options, progress)
        sizes = options.tasks or (SIZES.get(options.base, SIZES["rendered"]) if options.data is None else None)
        for classes in source.sub_tasks(sizes, options.classes):
            for row in islice(moments_rows(source, classes, options.device), options.rows):
                rows.append(row)
                progress.note(f"{row['task']} classes, {row['kind']}, width {row['width']}: {row['top1']:.3f}")
    environment = {"torch": torch.__version__, "load_average": os.getloadavg()[0]}
    record = {
        "schema": 1, "source": source.label, "base_sha256": source.sha256, "calibration_images": IMAGES,
        "environment": environment, "rows": rows,
    }  # fmt: skip
    write_whole(moments_file(options), json.dumps(record, indent=1) + "\n")
    if options.data is not None:
        print(moments_section(record))


def moments_file(options: argparse.Namespace) -> Path:
    """Return the file of a base's record; the rendered base has no suffix."""
    return record_file(options, "attention", ("rendered",))


# -- tables ------------------------------------------------------------------------------------------------------------

ATTENTION = """## Attention alone, base {base}: factorised and cut to a width (of {whole}), nothing trained

Factorised by the moments of {images} training images: by none (`weights`), by all tokens, by all tokens weighted by
importance, and by the class token.
"""
SELECTED = """
Token selection as in Table 6 of the SKD paper, at half of the width: so many random tokens of each image (mean and
range over {draws} draws), and all tokens at a weight of 0.01. The weight cancels here, because a moment is a weighted
mean.
"""
KINDS = {
    "weights": "weights",
    "activations": "all tokens",
    "activations x 0.01": "all tokens x 0.01",
    "tokens": "weighted tokens",
    "class token": "class token",
}


def moments_section(data: dict[str, Any] | None) -> str:
    """Format kinds of moments by width, per sub-task, as Tables 3 and 6 of the SKD paper."""
    if data is None:
        return ""
    bases = picked(data["rows"], kind="base")
    widths = sorted({row["width"] for row in data["rows"]} - {row["width"] for row in bases}, reverse=True)
    lines = []
    for (task, kind), group in grouped((r for r in data["rows"] if r["kind"] != "base"), "task", "kind").items():
        whole = [row["top1"] for row in picked(bases, task=task)]
        cut = [percent([row["top1"] for row in picked(group, width=width)]) for width in widths]
        name = KINDS.get(kind) or f"{kind.removeprefix('random ')} random"
        lines.append([f"{task} classes, {name}", percent(whole), *cut])
    if not bases:
        return ""
    title = ATTENTION.format(
        base=data.get("source", "rendered"), whole=bases[0]["width"], images=data["calibration_images"]
    )
    if drawn := [row for row in data["rows"] if row["kind"].startswith("random ")]:
        title += SELECTED.format(draws=1 + max(row["draw"] for row in drawn))
    return title + "\n" + table(["", "whole", *map(str, widths)], lines)


# -- each dimension by itself ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gates:
    """The gradient of each image's loss by a factor on each dimension of one attention, in fp64.

    Shapes: n images, H heads, q and v widths.
    """

    qk: Tensor  # [n, H, q], of a factor on a query's dimension
    vo: Tensor  # [n, H, v], of one on a value's

    def scores(self) -> dict[str, tuple[Tensor, Tensor]]:
        """What dimensions are worth by each criterion: [H, q] and [H, v]."""
        first, second = [[moment(g) for g in (self.qk, self.vo)] for moment in (_mean, _mean_square)]
        pairs = list(zip(first, second, strict=True))
        return {
            "Taylor, first order": _pair([g.abs() for g in first]),
            "Taylor, second order": _pair([(g - h / 2).abs() for g, h in pairs]),
            "Hessian diagonal": _pair([h / 2 for h in second]),
        }

    def heads(self) -> Tensor:
        """What heads are worth: [H]."""
        return self.vo.sum(-1).mean(0).square()


def _mean(gradients: Tensor) -> Tensor:
    return gradients.mean(0)


def _mean_square(gradients: Tensor) -> Tensor:
    return gradients.square().mean(0)


def _pair(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    qk, vo = tensors
    return qk, vo


def gates(network: Network, images: Split, columns: Sequence[int], passes: Passes) -> list[Gates]:
    """Measure the gates of every attention by one forward and backward pass."""
    dims = list(network.dims)
    gates_of_block: list[list[tuple[Tensor, Tensor]]] = [[] for _ in dims]
    target = torch.as_tensor(columns, device=passes.compute.device)

    def see(i: int, _: Any, output: Tensor) -> None:
        def back(gradient: Tensor) -> None:
            (q, _, v), (dq, _, dv) = (unpack(t.detach().double(), dims[i]) for t in (output, gradient))
            gates_of_block[i].append(((q * dq).sum(1), (v * dv).sum(1)))  # over tokens: [B, N, H, w] -> [B, H, w]

        output.register_hook(back)  # type: ignore[no-untyped-call]

    def see_answers(logits: Tensor, labels: Tensor) -> None:
        loss = F.cross_entropy(logits.float(), target[labels], reduction="sum")
        torch.autograd.grad(loss, list(network.parameters()), allow_unused=True)

    passes.run(network, images, see_answers, [(network.projections, see)], gradients=True)
    return [
        Gates(torch.cat([qk for qk, _ in of]).cpu(), torch.cat([vo for _, vo in of]).cpu()) for of in gates_of_block
    ]


@torch.no_grad()
def keep_best(part: Attention, qk: Tensor, vo: Tensor, widths: tuple[int, int]) -> Attention:
    """Keep the dimensions of each head that are worth most. Shapes: qk [H, q], vo [H, v]."""
    best = (scores.topk(width, dim=1).indices for scores, width in zip((qk, vo), widths, strict=True))
    return part.keep(range(part.heads), *best)


def random_scores(parts: Sequence[Attention], seed: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.rand(p.heads, p.qk, generator=draw), torch.rand(p.heads, p.vo, generator=draw)) for p in parts]


@torch.no_grad()
def propagated(network: Network) -> list[tuple[Tensor, Tensor]]:
    """Compute NISP's importance of each block's dimensions: [H, q] and [H, v]."""
    if network.geometry.fixed_channels is None:  # the norms' gains go into the weights
        network = network.with_embedding(torch.eye(network.geometry.embed, dtype=torch.float64))
    worth = torch.stack([head.weight.double().abs().sum(0) for head in network.classifiers]).sum(0)  # [d]
    worths = []
    for block in reversed(network.read()):
        if (f := block.ffn) is not None:
            neurons = worth @ f.w2.double().abs()  # [e]
            worth = worth + sum(neurons @ w.double().abs() for w in (f.w1, f.wg) if w is not None)
        if (a := block.attention) is not None:
            wq, wk, wv, wo = (w.double().abs() for w in (a.wq, a.wk, a.wv, a.wo))
            vo = torch.einsum("d,hdv->hv", worth, wo)
            worths.append((vo.sum(1, keepdim=True) * (wq.sum(-1) + wk.sum(-1)), vo))
            worth = worth + torch.einsum("hv,hvd->d", vo, wv)
    return worths[::-1]


class Cuts:
    """Makes the attentions of one network smaller in every way, for one sub-task."""

    def __init__(self, network: Network, task: Task, device: str = "cpu") -> None:
        self.network, columns = network, list(range(len(task.classes)))
        self.blocks = network.read()
        self.parts = attentions(self.blocks)
        images, passes = task.train.subset(IMAGES), open_passes(Training(device=device))
        looked_at = network if device == "cpu" else deepcopy(network)  # passes take it there; cuts are made here
        self.gates = gates(looked_at, images, columns, passes)
        products = weights_times_gradients(looked_at, images, passes)
        by_weights = {
            "magnitude": group_sums(valued(network, lambda _, weight: weight.square())),
            "S2ViTE": group_sums(valued(products, lambda _, product: product.abs())),
            "NViT": squared_changes(looked_at, images, passes),
        }
        self.scores = {name: [(scores["qk"], scores["vo"]) for scores in of.blocks] for name, of in by_weights.items()}
        if is_uniform(self.parts):
            self.scores["NISP"] = propagated(network)
        for name in self.gates[0].scores():
            self.scores[name] = [of.scores()[name] for of in self.gates]
        statistics = calibrate(looked_at, images, passes, factorisation="tokens")
        self.moments = [s.moment for s in statistics if s.moment is not None]
        self.spectra = {SVD: attention_spectra(self.parts), WPAC: attention_spectra(self.parts, self.moments)}

    def dimensions(self, kind: str, share: float, seed: int = 0) -> Network:
        """Keep this share of the dimensions of each head, at least one."""
        widths = [(max(round(share * p.qk), 1), max(round(share * p.vo), 1)) for p in self.parts]
        if kind in self.spectra:
            slim = narrow(self.parts, widths, self.moments if kind == WPAC else None, self.spectra[kind])
        else:
            scores = random_scores(self.parts, seed) if kind == "random" else self.scores[kind]
            slim = [keep_best(p, *s, w) for p, s, w in zip(self.parts, scores, widths, strict=True)]
        return self._with(slim)

    def heads(self, share: float) -> Network:
        """The network with this share of the heads of each block, at least one: those that are worth most."""
        counts = [max(round(share * part.heads), 1) for part in self.parts]
        heads = [sorted(of.heads().topk(n).indices.tolist()) for of, n in zip(self.gates, counts, strict=True)]
        return self._with([part.keep(of) for part, of in zip(self.parts, heads, strict=True)])

    def network_of_row(self, base: Network, key: Row) -> Network:
        """Build the network that a row describes."""
        if key["kind"] == "base":
            return base
        if key["kind"] == HEADS:
            return self.heads(key["share"])
        return self.dimensions(key["kind"], key["share"], key["seed"])

    def _with(self, slim: Sequence[Attention]) -> Network:
        blocks = [Block(a, block.ffn) for a, block in zip(slim, self.blocks, strict=True)]
        with torch.no_grad():
            return self.network.build(blocks)


FIGURE_4 = ("NISP", "S2ViTE", "NViT")  # of Vulcan
TABLE_3 = ("random", "magnitude", "Taylor, first order", "Taylor, second order", "Hessian diagonal")  # of the SKD paper
CRITERIA = (*TABLE_3, *FIGURE_4, SVD, WPAC)
ORDER = (HEADS, *CRITERIA)  # of a table's lines


def is_uniform(parts: Sequence[Attention]) -> bool:
    """Whether all attentions have one width: NISP does not know how stages of a Swin hand importance on."""
    return len({part.embed for part in parts}) == 1


def row_keys(heads: int, criteria: Sequence[str] = CRITERIA) -> Iterator[Row]:
    """Yield the key of every row of a sub-task, for a base of so many heads per block; share 1 is the base."""
    yield {"part": "base", "kind": "base", "share": 1.0, "seed": 0}
    for share in SHARES:
        for kind in criteria:
            for seed in range(DRAWS if kind == "random" else 1):
                yield {"part": "criteria", "kind": kind, "share": share, "seed": seed}
    for count in sorted({min(max(round((1 - rate) * heads), 1), heads - 1) for rate in HEAD_RATES}):
        for kind in (HEADS, SVD, WPAC):
            yield {"part": "heads", "kind": kind, "share": count / heads, "seed": 0}


def criteria_rows(source: Source, classes: Sequence[str], done: Sequence[Row], device: str = "cpu") -> Iterator[Row]:
    """Measure every row of one sub-task that is not recorded; the base is restricted to the sub-task's classes."""
    parts = attentions(source.base.read())
    criteria = [name for name in CRITERIA if name != "NISP" or is_uniform(parts)]
    due = [key for key in row_keys(parts[0].heads, criteria) if not picked(done, **key)]
    if not due:
        return
    task = source.task(classes)
    network = with_classes(source.base, task.base_columns)
    test, columns = list(task.test.batches(200)), list(range(len(classes)))
    cuts = Cuts(network, task, device)
    for key in due:
        predict = predictor(cuts.network_of_row(network, key), device)
        top1 = measure_accuracy(predict, test, Logits(tuple(columns)), task.class_names).top1
        yield {**key, "images": len(task.test), "top1": top1, **device_field(device)}


def criteria_section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md about criteria."""
    if data is None or not data["rows"]:
        return ""
    parts = ["## Attention: which dimensions stay, and heads against dimensions\n"]
    for (title, _), rows in grouped(data["rows"], "source", "base_sha256").items():
        head = (
            f"Base {title}, {rows[0]['all_classes']} classes; n = 1 sub-task of each size, {DRAWS} draws of random "
            f"dimensions, {IMAGES} calibration images. Top-1 with nothing trained, the FFNs whole; mean and range. "
            "Columns are the share of each head's dimensions that stays, or of the heads. NISP, S2ViTE and NViT are "
            "those of Vulcan's Figure 4, as `attention.py` reads them."
        )
        parts.append("\n".join(textwrap.wrap(head, 118)) + "\n")
        for part in ("criteria", "heads"):
            shares = sorted({row["share"] for row in picked(rows, part=part)})
            lines = []
            groups = grouped(picked(rows, part=part), "task", "kind").items()
            for (task, kind), group in sorted(groups, key=lambda group: (group[0][0], ORDER.index(group[0][1]))):
                whole = [row["top1"] for row in picked(rows, part="base", task=task)]
                cut = [percent([row["top1"] for row in picked(group, share=share)]) for share in shares]
                lines.append([f"{task} classes, {kind}", *cut, percent(whole)])
            parts.append(table(["", *(f"{share:.3g}" for share in shares), "whole"], lines))
    return "\n".join(parts)


def measure_criteria(options: argparse.Namespace) -> None:
    """Measure the rows of every sub-task that are not recorded."""
    from edgevit.cli.console import Console

    progress, file = Console().progress, record_file(options, "criteria", options.ours)
    rows = load_rows(file)
    with refusals():
        source = source_from(options, progress)
        for classes in source.sub_tasks(options.tasks, options.classes):
            of = {"source": source.label, "all_classes": len(source.classes), "base_sha256": source.sha256}
            of |= {"task": len(classes), "classes": classes}
            for row in islice(criteria_rows(source, classes, picked(rows, **of), options.device), options.rows):
                rows.append({**of, **row})
                store_rows(file, rows)
                progress.note(f"{len(classes)} classes, {row['kind']}, {row['share']:.3g}: {row['top1']:.3f}")
    if options.data is not None:
        print(criteria_section({"rows": rows}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("moments", "criteria"), default="moments")
    add_source(parser, (*OURS, SWIN))
    options = parser.parse_args()
    if options.part == "criteria":
        measure_criteria(options)
    else:
        measure_moments(options)


if __name__ == "__main__":
    main()
