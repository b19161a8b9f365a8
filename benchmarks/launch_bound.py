"""Where a site costs nearly as much however narrow it is: what forge loses by a budget that only fewer sites can meet.

    python benchmarks/launch_bound.py                         # everything that is not in results/launch_bound.json yet
    python benchmarks/launch_bound.py --only closed --seeds 1 --shares 0.3

A GPU that one image is far from filling takes its time for kernels, not for MACs: on an H200, in CUDA graphs, DeiT-Tiny
takes 0.93 of its time with 80 % of the MACs gone from its widths, and 0.28 with two of its twelve blocks (axes.py
--graphs). The cost table here is made up after that, and of no device: a seventh is fixed, and nine tenths of what a
site takes are the same whatever its widths, four parts of an attention for three of an FFN, as many as they have
kernels. Budgets are shares of what the base takes by it. Photographs of clothes; sub-tasks, seeds and distillation of
dimensions.py.

Beside forge stands what it is without the search of sites (decision 057).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accuracy import BATCH, LR, OTHER_SIZES, SEEDS, STEPS, Place, open_places, task_classes
from older import commits_told
from tables import Row, grouped, percent, picked, points, table

import edgevit
from edgevit.derivation.embedding import ladder
from edgevit.network.anatomy import BlockDims
from edgevit.network.checkpoint import open_base
from edgevit.network.cost import Geometry
from edgevit.network.families import family_of
from edgevit.records.writing import write_whole
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "launch_bound.json"
BASE = "fashion"
SHARES = (0.5, 0.4, 0.3)  # of what the base takes
FIXED, ALIKE = 1 / 7, 0.9
KERNELS = {"attention": 4, "ffn": 3}
VARIANTS: dict[str, dict[str, Any]] = {"forge": {}, "without the search": {"search_sites": False}}
KINDS = {"closed": 0, "trained": STEPS}


def cost_table(blocks: Sequence[BlockDims], geometry: Geometry) -> dict[str, Any]:
    """Of a base whose blocks are alike, which takes 1 ms."""
    first, whole = blocks[0], (1 - FIXED) / len(blocks) / sum(KERNELS.values())

    def priced(site: str, share: float) -> float:
        return round(KERNELS[site] * whole * (ALIKE + (1 - ALIKE) * share), 9)

    def listed(narrower: float) -> dict[str, Any]:
        widths = [(h, w) for h in range(1, first.heads + 1) for w in range(16, first.qk + 1, 8)]
        of = first.heads * first.qk
        return {
            "attention": [
                {"heads": h, "width": w, "ms": priced("attention", narrower * h * w / of)} for h, w in widths
            ],
            "ffn": [{"width": w, "ms": priced("ffn", narrower * w / first.ffn)} for w in range(8, first.ffn + 1, 8)],
            "block_ms": 0.0,
        }

    sizes = {"heads": first.heads, "qk": first.qk, "vo": first.vo, "ffn": first.ffn}
    narrower = [width for width in ladder(geometry.embed, 16) if width < geometry.embed]
    return {
        "schema": 4,
        "measured_on": "no device: made up",
        "fixed_ms": FIXED,
        "base": {
            "family": "vit",
            "embed": geometry.embed,
            "tokens": geometry.tokens,
            "depth": len(blocks),
            "patch_values": geometry.patch_values,
        },
        "blocks": [{"base": sizes, **listed(1.0)}],
        "narrower": [
            {"embed": width, "fixed_ms": FIXED, "blocks": [listed(width / geometry.embed)]} for width in narrower
        ],
    }


def write_table(place: Place, folder: Path) -> Path:
    how = {name: value for name, value in place.start.items() if name != "base_classes"}
    network = open_base(how.pop("base"), **how).network
    family = family_of(network)
    blocks, geometry = [block.dims for block in family.read(network)], family.geometry(network)
    file = folder / "made_up.json"
    file.write_text(json.dumps(cost_table(blocks, geometry)))
    return file


def rows(place: Place, given: argparse.Namespace, done: Sequence[Row]) -> Iterator[Row]:
    known = {(r["task"], r["share"], r["seed"], r["variant"], r["kind"]) for r in done}
    with tempfile.TemporaryDirectory() as scratch:
        costs = write_table(place, Path(scratch))
        for seed in SEEDS[: given.seeds]:
            for task in OTHER_SIZES[BASE]:
                for share in given.shares:
                    for kind in [given.only] if given.only else KINDS:
                        for variant in [given.variant] if given.variant else VARIANTS:
                            if (task, share, seed, variant, kind) not in known:
                                of = {"task": task, "share": share, "seed": seed, "variant": variant, "kind": kind}
                                yield {**of, **derived(place, costs, of, Path(scratch))}


def derived(place: Place, costs: Path, of: Row, scratch: Path) -> Row:
    made = edgevit.derive(
        **place.start, data=place.data, classes=list(task_classes(place.classes, of["task"])),
        ms=of["share"], cost_table=costs, options=VARIANTS[of["variant"]],
        out=scratch / "-".join(map(str, of.values())),
        training=Training(
            steps=KINDS[of["kind"]], batch_size=BATCH, lr=LR, seed=of["seed"], device="cpu", evaluations=5,
            early_stop=False,
        ),
        cache=place.cache / "shared" / "launch_bound",
    )  # fmt: skip
    spec, record = made.model.spec, made.record
    seen, restricted = record.accuracy.derived, record.accuracy.base_restricted
    assert seen is not None and restricted is not None
    return {
        "base_restricted": restricted.top1,
        "derived": seen.top1,
        "ms": record.budget.reached,
        "macs_share": 1 - spec.rate,
        "sites": [sum(block.has_attention for block in spec.blocks), sum(block.has_ffn for block in spec.blocks)],
        "tried": record.facts.more["tried"],
        "base_sha256": place.base_sha256,
        "versions": record.versions,
    }


TEXT = """## Where only fewer sites are faster

Photographs of clothes. Nothing was timed here: a made-up cost table stands for a device on which nine tenths of the
time of an attention or an FFN (a site) do not depend on its widths, as nearly on a GPU that one image is far from
filling. Budgets are shares of the base's time by that table. Top-1 in % on `val/`, and points to the base restricted to
the classes: mean and range over seeds {seeds}, or the first alone where there is no range. Sites: attentions and FFNs
that are left of {sites}, with the first seed.
"""


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None or not data["rows"]:
        return ""
    lines, seeds = [], sorted({row["seed"] for row in data["rows"]})
    by_place = sorted(grouped(data["rows"], "kind", "share", "task").items(), key=lambda pair: pair[0])
    for (kind, share, task), of in by_place:
        cells = [f"{'distilled' if KINDS[kind] else 'closed form'}, {share:g}, {task} classes"]
        for variant in VARIANTS:
            found = picked(of, variant=variant)
            if not found:
                cells += ["", "", ""]
                continue
            left = " + ".join(map(str, min(found, key=lambda row: row["seed"])["sites"]))
            away = [row["derived"] - row["base_restricted"] for row in found]
            cells += [percent([row["derived"] for row in found]), points(away), left]
        lines.append(cells)
    titles = [""] + [cell for variant in VARIANTS for cell in (variant, "points", "sites")]
    head = TEXT.format(seeds=", ".join(map(str, seeds)), sites="6 + 6")
    return "\n".join(
        part
        for part in (
            head,
            commits_told({**row, "method": "forge"} for row in data["rows"]),
            table(titles, lines),
        )
        if part
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of the seeds")
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--variant", choices=VARIANTS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    from edgevit.cli.console import Console

    place = open_places([BASE], Console().progress)[BASE]
    done: list[Row] = json.loads(given.out.read_text())["rows"] if given.out.is_file() else []
    for row in rows(place, given, list(done)):
        done.append(row)
        told = {name: row[name] for name in ("task", "share", "seed", "variant", "kind", "derived", "sites")}
        print(json.dumps(told), flush=True)
        write_whole(given.out, json.dumps({"schema": 1, "rows": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
