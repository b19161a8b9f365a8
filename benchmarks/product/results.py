"""Write RESULTS.md from records/*.json: one screen for each question.

python -m benchmarks.product.results
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks.product import (
    accuracy,
    axes,
    backbone,
    budgets,
    cost_tables,
    derivation_cost,
    detection,
    equal_latency,
    fleet,
    hostile,
    int8,
    load,
    ready_made,
    real,
    rivals,
    saliency,
    shapes,
    suite,
    swin,
    transfer,
    turns,
)

FILE = Path(__file__).with_name("RESULTS.md")
HEAD = """# Results

What edgevit is worth to its user: one screen for each question. Every number is made from a record in
`benchmarks/records/` by `python -m benchmarks.product.results`; `make benchmark` measures what is missing. The bases
are small and were trained by the project, but for DINOv2's real weights; there is no ImageNet result, and nothing here
ran on a Jetson. Machines were shared: ratios measured side by side mean more than seconds. Rows name the commits that
made them: but for DINOv2 and Swin, forge's are of the closed form before 6ee354e, which fitted every step to all
images. The tables of the papers are in [benchmarks/papers](../papers/README.md).
"""
SCRIPTS = (
    accuracy, real, backbone, ready_made, saliency, swin, detection, int8, rivals, transfer, shapes, axes, cost_tables,
    budgets, equal_latency, derivation_cost, suite, turns, fleet, hostile, load,
)  # fmt: skip


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def contents(text: str) -> str:
    """List the headings as links."""
    return "".join(f"- [{title}](#{anchor(title)})\n" for title in re.findall(r"^## (.+)$", text, re.MULTILINE))


def write(file: Path, head: str, sections: list[str]) -> None:
    """Write a page of these sections, with a list of its headings."""
    text = "\n".join(section for section in sections if section)
    file.write_text("\n".join([head, contents(text), text]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    write(parser.parse_args().out, HEAD, [script.section() for script in SCRIPTS])


if __name__ == "__main__":
    main()
