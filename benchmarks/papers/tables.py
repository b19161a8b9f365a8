"""Write README.md from records/*.json: the tables and figures of the papers, as they came out here.

python -m benchmarks.papers.tables
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.markdown import Row, load
from benchmarks.papers import (
    ablations,
    agnostic,
    attention,
    claims,
    costs,
    depth,
    dropout,
    efficiency,
    heart_tables,
    large,
    lora_memory,
    neurons,
    nuwa_figures,
    published,
    published_curve,
    slices,
    text,
    vulcan_drawings,
    vulcan_figures,
    wpac,
)
from benchmarks.product.results import write

FILE = Path(__file__).with_name("README.md")
HEAD = """# The tables of the papers

One script for each table or figure of Vulcan, NuWa, SKD and HEART, on the project's small bases: no ImageNet result.
`python -m benchmarks.papers.NAME --help` says which table it repeats and where it differs. This page is made from
`benchmarks/records/` by `python -m benchmarks.papers.tables`; `make benchmark` measures what is missing. Machines were
shared, so ratios measured side by side mean more than seconds. Rows are of the commits that each section lists: compare
methods within a section, not across.
"""


def _rows(name: str) -> list[Row]:
    record = load(name)
    return record["rows"] if record else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    at_length = [load(f"published{base}") for base in ("_fashion", "_fine", "")]
    sections = [
        claims.section(at_length),
        *(published.section(record) for record in at_length),
        costs.section(at_length[0]),
        *(ablations.section(load(f"ablations{base}")) for base in ("", "_fine", "_rendered", "_demo")),
        lora_memory.section(load("lora_memory")),
        slices.section(load("slices")),
        *(dropout.section(load(f"dropout{base}")) for base in ("_fashion", "_fine", "_demo", "")),
        *(attention.moments_section(load(f"attention{base}")) for base in ("", "_fashion", "_fine", "_demo")),
        attention.criteria_section(load("criteria")),
        wpac.section(_rows("wpac")),
        neurons.section(load("neurons")),
        agnostic.section(load("agnostic")),
        *(heart_tables.section(load(f"heart{base}")) for base in ("_fashion", "_fine", "_rendered", "")),
        depth.section(_rows("depth")),
        efficiency.section(load("efficiency")),
        text.section(_rows("text")),
        vulcan_figures.section(_rows("vulcan_figures")),
        nuwa_figures.section(_rows("nuwa_figures")),
        large.section(_rows("large")),
        vulcan_drawings.section(),
    ]
    write(options.out, HEAD, sections)
    options.out.with_name(published_curve.FILE.name).write_text(published_curve.drawing(at_length[0]))


if __name__ == "__main__":
    main()
