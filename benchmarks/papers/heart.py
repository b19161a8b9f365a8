"""HEART's ratios of tokens and heads before and after training, beside random ones and attention's; the cost of scores.

    python -m benchmarks.papers.heart                   # every row that records/heart.json does not have
    python -m benchmarks.papers.heart --cost            # the cost of the scores of DeiT-Small
    python -m benchmarks.papers.heart --part composed   # beside forge, at equal MACs
    python -m benchmarks.papers.heart --part oracle     # heads chosen for each input, in torch
    python -m benchmarks.papers.heart --augment deit    # rows trained by the paper's recipe
    python -m benchmarks.papers.heart --base fine       # 24 of 48 finer classes, in records/heart_fine.json
    python -m benchmarks.papers.heart --data IMAGES --base deit_base_patch16_224 --checkpoint FILE --classes dogs

The base is the demo's (six classes, 25 patches, three heads, so ratios are coarse), another of the project's with the
middle one of its sub-tasks, or a user's with half of its classes unless --classes names them. Every row is a derivation
with `selection=percentile`; rows differ in the source of the scores. "attention" scores tokens by what the blocks'
attention looks at, and heads by the size of their weights. "random" draws both, and draws the tokens again at
inference. "summed over blocks" scores a token by the sum of its scores in all blocks, as the paper's S^agg: then all
blocks lose the same positions, as far as the shares agree. The nine ratios are those of Table 6, too, whose other rows
are citations. Rows at 50/50 also measure the distance from the base by block (layerwise.py).

The part `composed` compares tokens and heads with widths at equal MACs: forge with all tokens, forge with tokens among
its choices, and HEART.

The part `oracle` says what a choice of heads for each input would gain, which no engine can do: every image loses the
heads whose own scores are lowest over all blocks, by its label or by the base's own answer, beside the heads of the
lowest mean scores. Tokens stay, nothing is trained, and a removed head's output is zero.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.derivations import SIZES, device_field
from benchmarks.sources import add_source, record_file, refusals, source_from
from edgevit.data.request import AUGMENTS
from edgevit.derivation.methods.heart.scores import MOST, Gates, gate_losses, measure_scores, twice_differentiable
from edgevit.errors import OptionError
from edgevit.network.classifier import with_classes
from edgevit.network.network import Network
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

if TYPE_CHECKING:
    from benchmarks.sources import Source

BASES = ("demo", "rendered", "fine", "fashion")
LAYERWISE = (0.5, 0.5)  # of the paper's Figures 4 and 5
# Of tokens, of heads: all of the paper's tables; 80/80 and 80/20 last, of which little is left of a small base.
RATIOS = ((0.2, 0.2), (0.4, 0.4), (0.6, 0.6), (0.2, 0.8), (0.4, 0.6), (0.6, 0.4), LAYERWISE, (0.8, 0.8), (0.8, 0.2))
SUMMED = "heart, summed over blocks"
VARIANTS = ("heart, alike", "heart, by sensitivity", SUMMED, "attention", "random")
SEEDS = (42, 43, 44)
# With a teacher: labels alone made none of the first rows better in so few steps.
TRAINING: dict[str, Any] = {"steps": 60, "batch_size": 48, "lr": 3e-4, "evaluations": 3, "teacher": "restricted"}
ORACLE_RATIOS, ORACLE_IMAGES = (0.2, 0.4, 0.6), 120  # of heads; test images
CHOICES = ("once for all", "by each image's label", "by the base's answer")
COMPOSED_RATES = (0.5,)  # which HEART reaches alone, too
COSTS = {"a training step": 32, "scores": 8}  # images of each


@dataclass(frozen=True)
class Place:
    """The source of the rows, and where they are computed."""

    source: Source
    classes: list[str] | None  # of the sub-task; None: all
    scratch: Path  # of what rows share: scores by where they come from, and what the base answers
    device: str = "cpu"
    steps: int = TRAINING["steps"]
    augment: str = "crop"


def attention_scores(network: Any, images: Any, passes: Any, **_: Any) -> Any:
    """Score tokens by the mean attention that they get, and heads by the size of their weights."""
    from edgevit.derivation.methods.heart.scores import HessianScores
    from edgevit.network.anatomy import attentions

    geometry, blocks = network.geometry, network.read()
    prefix, sums = geometry.tokens - geometry.patches, [torch.zeros(0)] * (len(blocks) - 1)

    def see(i: int, inputs: Any, _: Tensor) -> None:
        looked_at = network.token_scores(i, inputs[0])[:, prefix:].double().sort(1).values.sum(0)
        sums[i] = looked_at + sums[i] if len(sums[i]) else looked_at

    passes.run(network, images, lambda *_: None, [(network.attention_inputs[:-1], see)])
    ranked = torch.stack(sums).cpu() / len(images)
    heads = tuple((a.wo @ a.wv).flatten(1).norm(dim=1).double().detach().cpu() for a in attentions(blocks))
    return HessianScores(ranked, ranked.clone(), heads, torch.zeros(len(ranked)))


def summed_scores(network: Any, images: Any, passes: Any, **options: Any) -> Any:
    """Score tokens by the sum over all blocks (S^agg), heads as they are."""
    scores = measure_scores(network, images, passes, **options)
    placed, ranked = (t.sum(0, keepdim=True).expand_as(t).clone() for t in (scores.placed, scores.ranked))
    return replace(scores, placed=placed, ranked=ranked)


def random_scores(network: Any, images: Any, passes: Any, *, seed: int, **_: Any) -> Any:
    from edgevit.derivation.methods.heart.scores import HessianScores

    draw = torch.Generator().manual_seed(seed)
    geometry, blocks = network.geometry, network.read()
    ranked = torch.rand(len(blocks) - 1, geometry.patches, generator=draw, dtype=torch.float64)
    heads = tuple(torch.rand(b.dims.heads, generator=draw, dtype=torch.float64) for b in blocks)
    return HessianScores(ranked, ranked.clone(), heads, torch.zeros(len(ranked)))


def random_order(attn: Any, inputs: Tensor, **_: Any) -> Tensor:
    """Draw which tokens are kept, for every image anew."""
    return torch.rand(inputs.shape[:2], device=inputs.device)


@contextmanager
def scored(variant: str) -> Iterator[None]:
    """Replace the scores of the method by those of the variant."""
    method = "edgevit.derivation.methods.heart.method.measure_scores"
    with ExitStack() as stack:
        if variant == SUMMED:
            stack.enter_context(patch(method, summed_scores))
        elif variant == "attention":
            stack.enter_context(patch(method, attention_scores))
        elif variant == "random":
            stack.enter_context(patch(method, random_scores))
            stack.enter_context(patch("edgevit.network.families.vit.tokens.token_scores", random_order))
        yield


def measure(variant: str, ratios: tuple[float, float], seed: int, place: Place) -> dict[str, Any]:
    """Measure the row of these ratios."""
    tokens, heads = ratios
    options = {
        "selection": "percentile", "token_ratio": tokens, "head_ratio": heads,
        "ratios": "uniform" if variant == "heart, alike" else "sensitivity",
    }  # fmt: skip
    scores = variant if variant == SUMMED else variant.partition(",")[0]
    cache = place.scratch / scores  # the cache does not know of the patches
    look = partial(by_block, place) if ratios == LAYERWISE else None
    with scored(variant):
        row, derived = before_and_after(seed, place, look, method="heart", rate=0.01, options=options, cache=cache)
    facts = derived.record.facts.more
    row |= {"reaching": facts["tokens"], "spearman": facts["spearman"]}
    row["heads_left"] = [len(heads_of_block) for heads_of_block in facts["kept_heads"]]
    return {"variant": variant, "tokens": tokens, "heads": heads, "seed": seed, **row}


def by_block(place: Place, network: Network) -> dict[str, list[float]]:
    """Measure the distance of the model from its base in each block."""
    from benchmarks.papers.layerwise import IMAGES, compared

    test = place.source.task(place.classes).test.subset(IMAGES)
    images, _ = next(test.batches(IMAGES))
    return compared(place.source.base, network, images, place.device)


def before_and_after(
    seed: int, place: Place, look: Callable[[Network], Any] | None = None, **request: Any
) -> tuple[dict[str, Any], Any]:
    """Derive without and with training; return top-1 of both and of the restricted base, and the second derivation.

    `look` is applied to both models, and gives the row's `layers`.
    """
    import edgevit

    training = {name: value for name, value in TRAINING.items() if name != "steps"}
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, steps in (("before", 0), ("after", place.steps)):
            derived = edgevit.derive(
                **place.source.start, data=place.source.data, classes=place.classes, shape="free",
                out=Path(folder) / name, **request,
                training=Training(
                    **training, steps=steps, seed=seed, device=place.device, augment=place.augment,  # type: ignore[arg-type]
                ),
            )  # fmt: skip
            accuracy = derived.record.accuracy
            assert accuracy.derived is not None
            row[name] = accuracy.derived.top1
            if look is not None:
                row.setdefault("layers", {})[name] = look(derived.model)
    assert accuracy.derived is not None and accuracy.base_restricted is not None
    row |= {"base": accuracy.base_restricted.top1, "macs_left": 1 - derived.model.spec.rate}
    return {**row, "images": accuracy.derived.images, "edgevit": derived.record.versions["edgevit"]}, derived


# -- beside widths -----------------------------------------------------------------------------------------------------


def composed() -> dict[str, dict[str, Any]]:
    """Return what each variant passes to `edgevit.derive`, without the rate."""
    heart = {"method": "heart"}
    return {
        "forge": {"method": "forge", "options": {"cut_tokens": "never"}},
        "forge, tokens too": {"method": "forge", "options": {"cut_tokens": "predicted"}},
        "heart": heart,
    }


def measure_composed(variant: str, rate: float, seed: int, place: Place) -> dict[str, Any]:
    """Measure a row of the part `composed`, with the sizes that were left."""
    row, derived = before_and_after(seed, place, rate=rate, cache=place.scratch / "composed", **composed()[variant])
    spec = derived.model.spec
    row |= {"passed_on": [b.tokens for b in spec.blocks], "heads_left": [b.heads for b in spec.blocks]}
    row |= {"ffn": [b.ffn for b in spec.blocks], "embed": spec.embed}
    return {"variant": variant, "rate": rate, "seed": seed, **row}


# -- heads for each input ----------------------------------------------------------------------------------------------


def measure_oracle(ratio: float, seed: int, place: Place) -> dict[str, Any]:
    """Measure top-1 without this share of all heads, chosen in each way."""
    task = place.source.task(place.classes, seed=seed)
    network = with_classes(place.source.base, task.base_columns).eval().to(place.device)
    passes = open_passes(Training(device=place.device, seed=seed))
    means = torch.cat([s for s in measure_scores(network, task.train.subset(32), passes, probes=8, seed=seed).heads])
    images, right = task.test.subset(ORACLE_IMAGES), dict.fromkeys(("base", *CHOICES), 0)
    draw = torch.Generator().manual_seed(seed)
    for batch, labels in images.batches(MOST):
        batch, labels = batch.to(place.device), labels.to(place.device)
        with torch.no_grad():
            answers = network(batch).argmax(1)
        right["base"] += int((answers == labels).sum())
        by_choice = {
            CHOICES[0]: means.expand(len(batch), -1), CHOICES[1]: own_head_scores(network, batch, labels, draw),
            CHOICES[2]: own_head_scores(network, batch, answers, draw),
        }  # fmt: skip
        for choice, scores in by_choice.items():
            right[choice] += int((without_heads(network, batch, scores, ratio).argmax(1) == labels).sum())
    top1 = {name: count / len(images) for name, count in right.items()}
    return {"ratio": ratio, "seed": seed, "heads": len(means), "images": len(images), **top1}


def own_head_scores(network: Network, images: Tensor, labels: Tensor, draw: torch.Generator) -> Tensor:
    """The scores of the heads of all blocks for each image: [B, heads]."""
    with twice_differentiable(network):
        gates = Gates.open_(network, images)
        signs = [(torch.randint(2, gates.values.shape, generator=draw) * 2 - 1).to(gates.values) for _ in range(8)]
        loss = F.cross_entropy(gates.logits(images).float(), labels, reduction="sum")
        return torch.cat(gates.parts(gate_losses(loss, gates.values, signs))[1], 1).double().cpu()


@torch.no_grad()
def without_heads(network: Network, images: Tensor, scores: Tensor, ratio: float) -> Tensor:
    """The logits without the heads of the lowest scores [B, heads] of each image; a block may lose all."""
    gates = Gates.open_(network, images)
    lowest = scores.argsort(1)[:, : round(ratio * scores.shape[1])].to(images.device)
    first = gates.values.shape[1] - scores.shape[1]  # after the gates of tokens
    gates.values = gates.values.detach().scatter(1, first + lowest, 0.0)
    return gates.logits(images)


# -- cost --------------------------------------------------------------------------------------------------------------


def cost_of(name: str, images: int) -> dict[str, float]:
    """Measure processor seconds per image and peak memory of scores, or of a forward and backward pass."""
    import timm
    import torch.nn.functional as F

    from edgevit.derivation.methods.heart.method import Config
    from edgevit.derivation.methods.heart.scores import Gates, gate_losses, twice_differentiable

    torch.set_num_threads(1)
    network = Network(timm.create_model("deit_small_patch16_224", num_classes=10).eval())
    batch, labels = torch.randn(images, 3, 224, 224), torch.zeros(images, dtype=torch.int64)
    before, started = _peak_bytes(), time.process_time()
    if name == "scores":
        with twice_differentiable(network):
            gates = Gates.open_(network, batch)
            loss = F.cross_entropy(gates.logits(batch), labels, reduction="sum")
            signs = [torch.randint(2, gates.values.shape) * 2.0 - 1 for _ in range(Config().probes)]
            gate_losses(loss, gates.values, signs)
    else:
        torch.autograd.backward(F.cross_entropy(network(batch), labels))
    return {"cpu_s_per_image": (time.process_time() - started) / images, "bytes": _peak_bytes() - before}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def costs() -> dict[str, Any]:
    """Measure both costs for DeiT-Small's shapes, on one thread, in processes of their own."""
    from edgevit.derivation.methods.heart.method import Config

    record: dict[str, Any] = {"probes": Config().probes}
    for name, images in COSTS.items():
        command = [sys.executable, "-m", "benchmarks.papers.heart", "--one", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        record[name] = {"images": images, **json.loads(done.stdout)}
    return record


def environment() -> dict[str, Any]:
    return {"machine": platform.machine(), "torch": torch.__version__, "load_average": os.getloadavg()[0]}


def file_of(options: argparse.Namespace) -> Path:
    """Return the file of a base's rows."""
    return record_file(options, "heart", BASES[:1])


def sub_task(source: Source, options: argparse.Namespace) -> list[str] | None:
    """The one that rows are of; None: all classes, those of the demo's base.

    Raises:
        OptionError: several are asked for.
        UnknownNameError, DataError: as `Source.sub_tasks` says.
    """
    if options.tasks is None and options.classes is None and options.data is None:
        sizes = SIZES[options.base]
        return None if options.base == "demo" else source.sub_tasks([sizes[1]], None)[0]
    if options.tasks is not None and len(options.tasks) > 1:
        raise OptionError(f"rows are of one sub-task, and {len(options.tasks)} were asked for; give --tasks NUMBER")
    half = [max(len(source.classes) // 2, 2)]
    return source.sub_tasks(options.tasks or half, options.classes)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_source(parser, BASES)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--steps", type=int, default=TRAINING["steps"], help="another number for a trial")
    parser.add_argument("--part", choices=("ratios", "composed", "oracle"), default="ratios")
    parser.add_argument("--augment", choices=AUGMENTS, default="crop", help="of the training; deit is the paper's")
    parser.add_argument("--cost", action="store_true", help="the cost of the scores alone")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(cost_of(options.one, COSTS[options.one])))
        return
    results = file_of(options)
    record = json.loads(results.read_text()) if results.is_file() else {"schema": 1, "rows": [], "cost": None}
    record["base"] = options.data.name if options.data else options.base
    record |= {"environment": environment(), "training": {**TRAINING, "steps": options.steps}}

    def write() -> None:
        results.write_text(json.dumps(record, indent=1) + "\n")

    if options.cost:
        record["cost"] = costs()
        write()
        return
    with tempfile.TemporaryDirectory() as scratch:
        add_rows(record, options, Path(scratch), write)
    if options.data is not None:
        from benchmarks.papers.heart_tables import section

        print(section(record))


def add_rows(record: dict[str, Any], options: argparse.Namespace, scratch: Path, write: Callable[[], None]) -> None:
    """Make the rows of a part that the record lacks, and write the record after each."""
    from edgevit.cli.console import Console

    with refusals():
        source = source_from(options, Console().progress)
        place = Place(source, sub_task(source, options), scratch, options.device, options.steps, options.augment)
    of: dict[str, Any] = {"base_sha256": source.sha256}  # another machine may train another one
    if options.augment != "crop":
        of["augment"] = options.augment
    if options.data is not None or options.tasks is not None or options.classes is not None:
        of["classes"] = place.classes
    rows = record.setdefault("rows" if options.part == "ratios" else options.part, [])
    for key, make in islice(row_makers(options.part, SEEDS[: options.seeds]), options.rows):
        same_task = [row for row in rows if all(row.get(n) == of.get(n) for n in ("classes", "augment"))]
        if any(row.items() >= {**key, **of}.items() for row in same_task):
            continue
        with refusals():
            rows.append({**make(place=place), **of, **device_field(options.device)})
        write()
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)


def row_makers(part: str, seeds: Sequence[int]) -> Iterator[tuple[dict[str, Any], Callable[..., dict[str, Any]]]]:
    """Yield the key of each row of a part with the function that makes it."""
    for seed in seeds:
        if part == "composed":
            for rate in COMPOSED_RATES:
                for variant in composed():
                    key: dict[str, Any] = {"variant": variant, "rate": rate, "seed": seed}
                    yield key, partial(measure_composed, **key)
            continue
        if part == "oracle":
            for ratio in ORACLE_RATIOS:
                yield {"ratio": ratio, "seed": seed}, partial(measure_oracle, ratio, seed)
            continue
        for tokens, heads in RATIOS:
            for variant in VARIANTS:
                key = {"variant": variant, "tokens": tokens, "heads": heads, "seed": seed}
                yield key, partial(measure, variant, (tokens, heads), seed)


if __name__ == "__main__":
    main()
