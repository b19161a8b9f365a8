"""Make RESULTS.md from results/*.json: every number in it comes from a record.

python benchmarks/results.py
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ablations
import accuracy_tables
import agnostic
import attention
import axes
import claims
import dimensions
import distillation_tables
import dropout
import efficiency
import embedding
import equal_latency
import first_base
import heart_tables
import kept_drawings
import launch_bound
import lora_memory
import meet
import neurons
import older
import predictions
import prove
import published
import published_curve
import rivals
import summary
import transfer
import turns
from tables import grouped, load, picked, table

HERE = Path(__file__).parent
HEAD = f"""# Results

Made by `python benchmarks/results.py` from `benchmarks/results/*.json`. `make benchmark` measures what is missing on
this machine's processor; to measure a record anew, delete it first. Three things it does not make: what a GPU measured
(its section says so), tables of older code (their headings say so), and the last section. Machines were shared:
ratios measured side by side mean more than seconds.

The newest rows of forge are in {older.NEWEST}.
Other sections may have forge of older code; where their records tell, the section says so at its beginning.

{older.LINKS}
"""
CLOSED_FORM = """## Cost of NuWa's closed form

{machine}, {threads} thread(s), torch {torch}; load average {load_average:.1f} at the start. Random weights and
features.
"""
SHAPES = """## Shapes: latency beside MACs

{cpu}, {cores} cores; load average {load:.1f} at the start.
Random weights; each derived model and its dense base are measured in turns in one process. `fused` and `paper` have
equal MACs, `padded` is `paper` with the smaller of QK and VO zero-padded. Latency ratio to dense, with half the
distance between its quartiles. Fused attention blocks: TensorRT-RTX for SM 8.6, a proxy for Orin and not Orin. A CPU
does not fuse attention: what the shapes cost on a board is not in this table.
"""


SHAPES_CUDA = """## Shapes on a GPU: latency beside MACs

The same comparison by torch {torch} on an {gpu}, whose scaled dot product attention is fused where a kernel of it takes
the shape. `eager` starts every kernel by itself; `cudagraph` starts all of them at once, as engines do. No board: an
Orin has an eighth of its multiprocessors or fewer, and kernels that are small for this GPU are not for that one.
"""


def cost() -> str:
    data = load("cost")
    if data is None:
        return ""
    e = data["environment"]
    parts = [
        "## Cost of Vulcan's parts\n",
        f"Random weights, rate {data['rate']}, fp32, {e['machine']}, {e['threads']} threads, torch {e['torch']}; load "
        f"average {e['load_average']:.1f} at the start. Median of several, smallest and largest in brackets.\n",
    ]
    models = data["models"]
    names = {title for m in models for title in m["rows"]}

    def kind(title: str) -> str:
        return "plain SVDs of d x d" if "plain" in title else title

    order = [kind(t) for t in models[0]["rows"]]
    assert {kind(n) for n in names} == set(order)
    lines = []
    for title in order:
        cells = [title if "plain" not in title else "the same by plain SVDs of d x d"]
        for m in models:
            r = next(v for k, v in m["rows"].items() if kind(k) == title)
            cells.append(f"{r['median_s']:.3g} s ({r['min_s']:.3g} to {r['max_s']:.3g})")
        lines.append(cells)
    parts.append(table(["", *(m["model"] for m in models)], lines))
    lines = [
        [
            m["model"],
            f"{100 * m['ratios']['both regularisers of a training step']:.2f} %",
            f"{m['ratios']['plain SVDs over surgery']:.0f} x",
            f"{m['ratios']['plain SVDs over effective ranks']:.0f} x",
            f"{m['memory']['of_the_weights']:.2f} x",
            f"{m['export']['export_s']:.0f} s, {m['export']['export_peak_bytes'] / 1e9:.2f} GB",
        ]
        for m in models
    ]
    head = [
        "",
        "both regularisers of a training step",
        "surgery faster than plain SVDs",
        "effective ranks faster",
        "peak memory of both regularisers, of the weights",
        "export of the dense model, all checks but accuracy",
    ]
    parts.append(table(head, lines))
    return "\n".join(parts)


def closed_form() -> str:
    data = load("closed_form")
    if data is None:
        return ""
    layer, whole = data["least_squares"], data["whole_model"]
    lines = [
        [
            how,
            f"{of['median_s']:.2f} s",
            *(f"{times:.1f} x" for times in of["faster"].values()),
            f"{of['peak_bytes'] / 1e6:.0f} MB ({of['memory_ratio']:.2f})",
            f"{of['difference']:.0e}",
        ]
        for how, of in layer.items()
    ]
    runs = [
        [
            f"rate {r['rate']}",
            *(f"{r['seconds'].get(stage, 0):.1f} s" for stage in ("statistics", "closed_form")),
            f"{r['total_s']:.1f} s",
            ", ".join(r["reused"]) or "nothing",
        ]
        for r in whole["runs"]
    ]
    head = ["DeiT-Base's FFN, 25216 tokens, 3072 to 1229 neurons", "time", "faster than in fp32", "than in fp64"]
    head += ["peak memory", "off by"]
    return "\n".join(
        [
            CLOSED_FORM.format(**data["environment"]),
            table(head, lines),
            "`regression` knows which neurons stay; `moments` are those of all 3072 and serve every choice of width.\n",
            table([f"{whole['model']}, one after the other", "statistics", "closed form", "in all", "reused"], runs),
        ]
    )


def many() -> str:
    data = load("many")
    if data is None:
        return ""
    lines = [
        [
            f"{v['tasks']} tasks x {len(v['rates'])} rates, purification={name}",
            f"{v['derive_many']['wall_s']:.0f} s, {v['derive_many']['cpu_s']:.0f} s",
            f"{statistics.mean(t['wall_s'] for t in v['separate']):.1f} s, "
            f"{statistics.mean(t['cpu_s'] for t in v['separate']):.1f} s ({len(v['separate'])} runs)",
            f"{v['wall_ratio']:.2f}, {v['cpu_ratio']:.2f}",
        ]
        for name, v in data["variants"].items()
    ]
    head = ["NuWa, one thread; wall clock, CPU", "derive-many", "a separate run", "ratio per derivation"]
    return "\n".join(["## Many derivations from one jobs file\n", table(head, lines)])


def hostile(data: dict[str, Any] | None) -> str:
    if data is None:
        return ""
    lines = [
        [
            f"{title}, {case['rounds']} times",
            ", ".join(f"{codes}: {count} times" for codes, count in sorted(case["exit_codes"].items())),
            f"{case['tracebacks']}, {case['hangs']}",
            f"{case['processes_left']}, {case['files_left']}",
            f"{case['same_weights']} of {case['rounds']}",
        ]
        for title, case in data["cases"].items()
    ]
    told = (
        "Real processes, a small ViT, digits, random moments. Exit codes are of the commands of a round: 0 done, "
        "1 refused in one line, 130 stopped; what was stopped was given again and went on.\n"
    )
    head = [
        "",
        "exit codes",
        "tracebacks, hangs",
        "processes, files left",
        "in the end the weights of an undisturbed run",
    ]
    return "\n".join(["## Two at once, and SIGTERM\n", told, table(head, lines)])


def allocation() -> str:
    data = load("allocation")
    if data is None:
        return ""
    by_bins: dict[int, list[dict[str, float]]] = {}
    for rate in data["rates"]:
        for row in rate["bins"]:
            by_bins.setdefault(row["bins"], []).append(row)
    finest = max(by_bins)
    lines = [
        [f"{bins:,}", f"{max(r['max_s'] for r in rows):.2f} s", f"{100 * max(r['largest_gap'] for r in rows):.2f} %"]
        for bins, rows in sorted(by_bins.items())
    ]
    shapes = [
        [
            of["shape"],
            f"{of['attention_choices']} + {of['ffn_choices']}",
            f"{of['menus_max_s']:.2f} s",
            f"{of['allocate_max_s']:.2f} s",
        ]
        for of in data["shapes"]
    ]
    title = f"## Allocation: ViT-Large, {data['depth']} blocks, rates 0.4 to 0.9, CPU time of one thread\n"
    head = ["shape", "choices of a block that nothing beats", "making the menus, at most", "allocation, at most"]
    by_bins_head = ["bins, shape `fused`", "allocation, at most", f"loss above that of {finest:,} bins"]
    return "\n".join([title, table(head, shapes), table(by_bins_head, lines)])


def supernet() -> str:
    data = load("supernet")
    if data is None:
        return ""
    lines = [
        [
            f"{model['model']}, rate {row['rate']}",
            f"{row['seconds']['slice']['median_s']:.2f} s",
            f"{row['seconds']['derive']['median_s']:.2f} s",
            f"{row['memory']['peak_over_both']:.2f}",
        ]
        for model in data["models"]
        for row in model["rows"]
    ]
    head = ["slice of a super-network", "the slice", "read, hashed, sliced and written", "peak memory, of both models"]
    return "\n".join([f"## Slices of a super-network, {data['environment']['threads']} thread\n", table(head, lines)])


# Of a derivation, all but what judges the base and the model by their answers.
CLOSED_FORM_STAGES = ("sensitivity", "statistics", "closed_form", "embedding", "allocation", "sequential", "head")


def _unjudged_s(run: dict[str, Any]) -> float:
    return float(sum(run["seconds"].get(stage, 0.0) for stage in CLOSED_FORM_STAGES))


def forge() -> str:
    data = load("forge")
    if data is None:
        return ""
    lines, runs = [], data["runs"]
    before = data.get("before")
    shown = [*runs[:2], *([before] if before else [])]
    for name in dict.fromkeys(name for run in shown for name in run["seconds"]):
        cells = [name]
        for run in shown:
            beside = run["beside_passes_s"].get(name)
            cells.append(f"{run['seconds'].get(name, 0.0):.1f} s" + ("" if beside is None else f" ({beside:.1f})"))
        lines.append(cells)
    sums = [sum(run["beside_passes_s"].values()) for run in shown]
    lines.append(["all but passes", *(f"{seconds:.1f} s" for seconds in sums)])
    lines.append(["peak memory", *(f"{run['peak_bytes'] / 1e9:.1f} GB" for run in shown)])
    told = (
        f"{data['model']}, random weights, {data['calibration_images']} calibration images of {data['pixels']} px, "
        f"{data['sensitivity_images']} of them for gradients; {data['threads']} threads, load average "
        f"{data['load_average']:.1f} at the start. A forward pass of the calibration images alone: "
        f"{data['forward_s']:.0f} s. In brackets: without the passes of networks, forward and backward.\n"
    )
    if data.get("clock") != "processor":
        told += "Seconds of stages are by the clock, of which each run had another share of a core.\n"
    else:
        told += "All seconds are of the processor: other programs shared the core.\n"
    if before:
        now_s, then_s = runs[0]["cpu_s"], before["cpu_s"]
        told += f"Processor time of a first budget: {now_s:.0f} s, {now_s / then_s:.2f} of the older {then_s:.0f} s.\n"
    if before and data.get("clock") == "processor":  # by the clock, each had another share of it
        of = [_unjudged_s(run) for run in (runs[0], before)]
        told += (
            f"Without judging base and model by their answers (baselines, check, evaluation): {of[0]:.0f} s, "
            f"{of[0] / of[1]:.2f} of {of[1]:.0f} s.\n"
        )
    fast = [run["gflops"] for run in ([before] if before else []) + runs if "gflops" in run]
    if fast:
        each = ", ".join(f"{seen['MKL']:.0f} and {seen['oneDNN']:.0f}" for seen in fast)
        told += f"GFLOP/s of a wide product by MKL, as the older code has it, and by oneDNN, before each run: {each}.\n"
    told += (
        "docs/decisions/056-thinned-sums.md says how fast wide products were then, and which older times it changes.\n"
    )
    if len(runs) > 2:
        times = sum(run["cpu_s"] for run in runs) / runs[0]["cpu_s"]
        told += f"{len(runs)} budgets, each a command of its own, take {times:.1f} times the first's processor time.\n"
    head = ["stage", *(run["title"] for run in shown)]
    parts = ["## Cost of forge's closed form\n", told, older.stages_told(runs), table(head, lines), forge_on_gpu()]
    return "\n".join(part for part in parts if part)


def forge_on_gpu() -> str:
    data = load("forge_cuda")
    if data is None:
        return ""
    runs = data["runs"]
    stages = dict.fromkeys(name for run in runs for name in run["seconds"])
    lines = [[name, *(f"{run['seconds'].get(name, 0.0):.1f} s" for run in runs)] for name in stages]
    lines.append(["the whole command", *(f"{run['wall_s']:.1f} s" for run in runs)])
    lines.append(["peak memory, of the host", *(f"{run['peak_bytes'] / 1e9:.1f} GB" for run in runs)])
    lines.append(["peak memory, of the GPU", *(f"{run['gpu_peak_bytes'] / 1e9:.1f} GB" for run in runs)])
    told = (
        f"The same on an {data['gpu']}, by the clock; {data['workers']} processes decode images. A forward pass of the "
        f"calibration images alone: {data['forward_s']:.1f} s, in fp32.\n"
    )
    return "\n".join(["### On a GPU\n", told, table(["stage", *(run["title"] for run in runs)], lines)])


def shapes() -> str:
    return "\n".join(filter(None, [_shapes(SHAPES, load("shapes")), _shapes(SHAPES_CUDA, load("shapes_cuda"))]))


def _shapes(head: str, data: dict[str, Any] | None) -> str:
    if data is None:
        return ""
    rows, of = data["rows"], data["environment"]
    parts = [head.format(**of, load=of["load_average"][0])]
    for (runner, batch), group in sorted(grouped(rows, "runner", "batch").items()):
        lines = []
        for (model, rate), forms in grouped((r for r in group if r["shape"] != "dense"), "model", "rate").items():
            dense = [r["latency_ms_median"] for r in picked(group, model=model, rate=rate, shape="dense")]
            cells = [model.split("_patch")[0], f"{rate}", f"{dense[0]:.2f}" if dense else ""]
            for shape in ("paper", "padded", "fused"):
                found = [r for r in forms if r["shape"] == shape]
                cells.append(_shape_cell(found[0]) if found else "")
            lines.append(cells)
        titles = ["", "rate", "dense, ms", "paper", "padded", "fused"]
        parts += [f"### {runner}, batch {batch}\n", table(titles, lines)]
    return "\n".join(parts)


def _shape_cell(row: dict[str, Any]) -> str:
    fused = "" if row["fused"] is None else f", {row['fused']}/{row['blocks']} fused"
    memory = "" if row["memory_peak_bytes"] is None else f", {row['memory_peak_bytes'] / 1e6:.0f} MB"
    ratio = f"{row['latency_ratio']:.3f} of {row['macs_ratio']:.3f} MACs (± {row['latency_ratio_iqr'] / 2:.3f})"
    return f"{ratio}{memory}{fused}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--accuracy", type=Path, default=HERE / "results" / "accuracy.json", help="of a trial")
    given = parser.parse_args()
    data = json.loads(given.accuracy.read_text()) if given.accuracy.is_file() else None
    bases = ("fashion", "fine", "demo", "rendered")
    at_length = [load(f"published{base}") for base in ("_fashion", "_fine", "")]
    parts = {
        "What the papers claim": [claims.section(at_length, data)],
        "What forge loses": [
            dimensions.section(load("dimensions_fashion"), dimensions.FASHION, load("dimensions_fashion_before")),
            accuracy_tables.other_base_section(load("accuracy_fashion"), "photographs"),
            dimensions.section(load("dimensions_fine"), dimensions.FINE, load("dimensions_fine_before")),
            accuracy_tables.other_base_section(load("accuracy_fine"), "the harder base"),
            *(accuracy_tables.attention_table(load(f"attention_{base}")) for base in ("fashion", "fine", "demo")),
            dimensions.section(load("dimensions"), dimensions.RENDERED),
            *(embedding.section(load(f"embedding{base}")) for base in ("_fashion", "_fine", "")),
            launch_bound.section(load("launch_bound")),
            *(distillation_tables.recipes(base) for base in distillation_tables.DATA),
            agnostic.section(load("agnostic")),
            transfer.section(load("transfer")),
        ],
        "Rivals": [
            rivals.section(load("rivals_fashion"), rivals.FASHION),
            rivals.section(load("rivals_fine"), rivals.FINE),
            rivals.section(load("rivals"), rivals.RENDERED),
            *(published.section(record) for record in at_length),
        ],
        "The papers' tables": [
            ablations.section(load("ablations")),
            lora_memory.section(load("lora_memory")),
            *(ablations.section(load(f"ablations_{base}")) for base in bases[1:]),
            *(dropout.section(load(f"dropout{base}")) for base in ("_fashion", "_fine", "_demo", "")),
            *(heart_tables.section(load(f"heart{base}")) for base in ("_fashion", "_fine", "_rendered", "")),
            attention.section(load("criteria")),
            neurons.section(load("neurons")),
            efficiency.section(load("efficiency")),
            kept_drawings.section(),
        ],
        "Latency and budgets": [
            axes.section(load("axes")),
            shapes(),
            meet.section(load("meet")),
            equal_latency.section(load("equal_latency")),
            predictions.section(load("predictions")),
            prove.section(load("prove")),
            turns.section(load("turns")),
        ],
        "What derivations cost": [
            forge(), cost(), closed_form(), allocation(), supernet(), many(), hostile(load("hostile")),
        ],
        "Older": [
            accuracy_tables.section(data, load("attention")),
            distillation_tables.states(),
            first_base.section(),
        ],
    }  # fmt: skip
    there = {title: [section for section in sections if section] for title, sections in parts.items()}
    told = [HEAD, summary.section(), contents(there), *(section for part in there.values() for section in part)]
    given.out.write_text("\n".join(filter(None, told)))
    given.out.with_name(published_curve.FILE.name).write_text(published_curve.drawing(at_length[0]))


def contents(parts: Mapping[str, Sequence[str]]) -> str:
    """The headings of every part, as links."""
    lines = ["## Contents\n"]
    for title, sections in parts.items():
        headings = re.findall(r"^## (.+)$", "\n".join(sections), re.MULTILINE)
        if headings:
            lines += [f"**{title}**\n", *(f"- [{name}](#{older.anchor(name)})" for name in headings), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
