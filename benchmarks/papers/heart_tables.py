"""The sections of README.md about tokens and heads, from records/heart*.json."""

from __future__ import annotations

from typing import Any

from benchmarks.markdown import commits_text, grouped, percent, table, wrapped

ORACLE_COLUMNS = ("base", "once for all", "by each image's label", "by the base's answer")  # as heart.py's rows
INTRODUCTION = """## HEART: tokens and heads, before and after training, on {base}

{images} test images, {tokens} tokens, {heads}. Rows are shares of tokens and of heads that are dropped; {steps} steps
of {batch_size} images with the restricted base as teacher. `alike`: the same shares in every block, so that all tokens
leave after the first. The other variants share them out by their scores, so equal shares are not equal MACs. `random`:
tokens and heads are drawn. Mean and range over seeds {seeds}.{coarse}{more}
"""
SMALL = "\nThis is a small base with few tokens; nothing follows for 197 tokens."
BASES = {
    "demo": ("the demo's base", "three heads in each of four blocks"),
    "rendered": ("12 of 24 rendered classes", "three heads in each of six blocks"),
    "fine": ("24 of 48 finer classes", "three heads in each of six blocks"),
    "fashion": ("photographs of five kinds of clothes", "two heads in each of six blocks"),
}
COST = """The scores of DeiT-Small's shapes, on one thread, take {ratio:.1f} times the processor time of a forward and
backward pass per image ({probes} draws of signs), and, for {images} images at a time, {memory:.2f} times the memory of
such a pass of {step} images.
"""
CORRELATION = """Rank correlation, by image, of attention's scores of tokens with the curvature of the loss, per block:
{by_block}.
"""


COMPOSED = """### Beside widths, at equal MACs

The same base, in shape `free`: forge with all tokens, forge with tokens among its choices (`cut_tokens=predicted`),
and HEART alone; {steps} steps. Mean and range over seeds {seeds}.
"""
RECIPE = (
    "The same, trained with `--augment deit`: RandAugment, mixup, CutMix, label smoothing and DropPath; n = {n} seeds."
)
ORACLE = """### Heads chosen for each input

An oracle that no engine can follow: each of {images} test images loses the share of all {heads} heads whose own scores
are lowest, nothing trained, all tokens. Mean and range over seeds {seeds}.
"""
LAYERS = """### Block by block, at 50/50

Distance of tokens from the base's after each block (`layerwise.py`; the paper's Figures 4 and 5): linear CKA of the
mean token and cosine of the class token, before -> after training; the residual ratio of the base -> before -> after.
Mean over seeds {seeds}.
"""


def _oracle(rows: list[dict[str, Any]]) -> str:
    lines = []
    for (ratio,), group in grouped(rows, "ratio").items():
        lines.append([f"{ratio:g} of the heads", *(percent([row[name] for row in group]) for name in ORACLE_COLUMNS)])
    return table(["top-1, %", *ORACLE_COLUMNS], lines)


def of_newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Select the rows of the base and the sub-task that the last row has."""

    def of(row: dict[str, Any]) -> tuple[Any, ...]:
        return row.get("base_sha256"), row.get("classes"), row.get("augment")

    return [row for row in rows if of(row) == of(rows[-1])]


def section(data: dict[str, Any] | None) -> str:
    if data is None:
        return ""
    usual, training = [row for row in data["rows"] if "augment" not in row], data["training"]
    rows, recipe = of_newest(usual or data["rows"]), of_newest([row for row in data["rows"] if "augment" in row])
    name = data.get("base", "demo")
    base, heads = BASES.get(name) or _of_user(name, rows)
    seeds = sorted({row["seed"] for row in rows})
    parts = []
    if rows:
        parts.append(
            INTRODUCTION.format(
                base=base, heads=heads, images=rows[0]["images"], tokens=rows[0]["reaching"][0],
                steps=training["steps"], batch_size=training["batch_size"], seeds=", ".join(map(str, seeds)),
                coarse=_coarse(rows), more=SMALL if name in BASES else "",
            )
        )  # fmt: skip
        parts += [wrapped(commits_text(rows)), _accuracy(rows)]
        spearman = [row["spearman"] for row in rows if row["variant"].startswith("heart")]
        by_block = ", ".join(f"{sum(of) / len(of):+.2f}" for of in zip(*spearman, strict=True))
        parts.append(CORRELATION.format(by_block=by_block))
        parts += _layers([row for row in rows if "layers" in row])
    if recipe and usual:
        parts += [wrapped(RECIPE.format(n=len({row["seed"] for row in recipe}))), _accuracy(recipe)]
    if composed := of_newest(data.get("composed", [])):
        seeds = sorted({row["seed"] for row in composed})
        text = COMPOSED.format(steps=training["steps"], seeds=", ".join(map(str, seeds)))
        parts += [text, wrapped(commits_text(composed)), _composed(composed)]
    if oracle := of_newest(data.get("oracle", [])):
        seeds = sorted({row["seed"] for row in oracle})
        text = ORACLE.format(images=oracle[0]["images"], heads=oracle[0]["heads"], seeds=", ".join(map(str, seeds)))
        parts += [text, _oracle(oracle)]
    if (cost := data["cost"]) is not None:
        step, scores = cost["a training step"], cost["scores"]
        parts.append(
            COST.format(
                ratio=scores["cpu_s_per_image"] / step["cpu_s_per_image"], memory=scores["bytes"] / step["bytes"],
                step=step["images"], images=scores["images"], probes=cost["probes"],
            )
        )  # fmt: skip
    return "\n".join(parts)


def _of_user(name: str, rows: list[dict[str, Any]]) -> tuple[str, str]:
    classes, blocks = rows[0]["classes"] if rows else (), rows[0]["heads_left"] if rows else ()
    return f"{len(classes)} classes of `{name}`", f"{len(blocks)} blocks"


def _coarse(rows: list[dict[str, Any]]) -> str:
    """Say how many heads of a block `alike` drops at each share; empty without rows."""
    whole = max((heads for row in rows for heads in row.get("heads_left", ())), default=0)
    alike = [row for row in rows if row["variant"] == "heart, alike" and row.get("heads_left")]
    heads_cut = {row["heads"]: whole - row["heads_left"][0] for row in alike}
    if not heads_cut:
        return ""
    shares: dict[int, list[str]] = {}
    for share, heads in sorted(heads_cut.items()):
        shares.setdefault(heads, []).append(f"{100 * share:.0f}")
    counts = ", ".join(f"{heads or 'none'} at {' and '.join(of)} %" for heads, of in shares.items())
    return f"\nA block has {whole} heads and loses whole heads: `alike` drops {counts}."


def _accuracy(rows: list[dict[str, Any]]) -> str:
    lines = []
    ratios = sorted(grouped(rows, "tokens", "heads").items(), key=lambda ratio: (ratio[0][0] != ratio[0][1], ratio[0]))
    for (tokens, heads), of_ratio in ratios:  # equal shares first
        for (variant,), group in grouped(of_ratio, "variant").items():
            lines.append(
                [
                    f"{100 * tokens:.0f}/{100 * heads:.0f}, {variant}",
                    percent([row["macs_left"] for row in group]),
                    percent([row["before"] for row in group]),
                    percent([row["after"] for row in group]),
                    percent([row["base"] for row in group]),
                ]
            )
    return table(["tokens/heads, %", "MACs left, %", "top-1 before, %", "after", "the base, restricted"], lines)


def _layers(rows: list[dict[str, Any]]) -> list[str]:
    """Format the tables by block; empty without rows."""
    if not rows:
        return []

    def means(group: list[dict[str, Any]], state: str, figure: str) -> list[float]:
        return [sum(of) / len(of) for of in zip(*(row["layers"][state][figure] for row in group), strict=True)]

    lines = []
    for (variant,), group in grouped(rows, "variant").items():
        for figure in ("cka", "cosine", "residual"):
            states = [means(group, state, figure) for state in ("before", "after")]
            if figure == "residual":
                states = [means(group, "before", "residual_base"), *states]
            cells = [" -> ".join(f"{value:.3f}" for value in of) for of in zip(*states, strict=True)]
            lines.append([f"{variant}, {figure}", *cells])
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    return [LAYERS.format(seeds=seeds), table(["", *(str(i) for i in range(len(lines[0]) - 1))], lines)]


def _composed(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            f"{rate:g}, {variant}",
            *(percent([row[name] for row in group]) for name in ("macs_left", "before", "after", "base")),
            ", ".join(str(row["embed"]) for row in group),
        ]
        for (rate, variant), group in grouped(rows, "rate", "variant").items()
    ]
    head = ["MACs gone", "MACs left, %", "top-1 before, %", "after", "the base, restricted", "embedding, of each seed"]
    return table(head, lines)
