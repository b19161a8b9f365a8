"""Draw Vulcan's own models on the demo's base into papers/drawings/, by product/drawings.py.

    python -m benchmarks.papers.vulcan_drawings               # minutes on one core
    python -m benchmarks.papers.vulcan_drawings --steps 20 --out /tmp/drawings    # a trial

Derives two models of four of the demo's six classes by Vulcan as published, with short training, and draws them beside
the base. The model folders are temporary.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bases import ensure_demo
from benchmarks.papers.published import VULCAN
from benchmarks.product.drawings import drawings, read
from benchmarks.sources import start_of

OUT = Path(__file__).parent / "drawings"
RATES, STEPS, BATCH, LR, EVALUATIONS = (0.6, 0.8), 200, 48, 3e-4, 10
TARGETS = ("plain_square", "plain_star", "striped_square", "striped_star")
COMMAND = "python -m benchmarks.papers.vulcan_drawings"
# What is kept of all that drawings.py makes, with what a reader sees there.
SHOWN = {
    "neurons": "Neurons of each block, of the base and of both models (Vulcan's Figures 19 and 21)",
    "ranks": "Effective ranks of queries with keys and of values with outputs by block, heads together (its Figure 5)",
    "accuracy": "Top-1 on the validation part while it trains, of the network and of what would be left (its Figure 8)",
}
INTRODUCTION = """## Drawings of Vulcan's models

Vulcan as published, {steps} steps of {batch} images on the demo's base, four of its six classes: too short for Vulcan's
accuracy, and enough to see what it does. Made by `{command}`; `drawings.py` draws any model folders.
"""


def section() -> str:
    """Format the section of README.md."""
    pictures = [
        f"{caption}:\n\n![{caption}](drawings/{name}.svg)\n" for name, caption in SHOWN.items() if _file(name).is_file()
    ]
    return "\n".join([INTRODUCTION.format(steps=STEPS, batch=BATCH, command=COMMAND), *pictures]) if pictures else ""


def _file(name: str, out: Path = OUT) -> Path:
    return out / f"{name}.svg"


def make(folder: Path, out: Path, steps: int, progress: Any) -> None:
    """Derive into `folder`, and draw into `out`."""
    from edgevit import base, derive
    from edgevit.train.settings import Training

    data, trained = ensure_demo(progress)
    start = start_of(trained)
    task: dict[str, Any] = {"data": data, "classes": list(TARGETS)}
    base(start["base"], **{k: v for k, v in start.items() if k != "base"}, **task, out=folder / "base")
    for rate in RATES:
        training = Training(
            steps=steps, batch_size=BATCH, lr=LR, schedule="constant", evaluations=EVALUATIONS, early_stop=False
        )
        derive(
            **start, **task, rate=rate, out=folder / f"{rate:g} gone", method="vulcan", options=VULCAN, shape="paper",
            training=training, progress=progress,
        )  # fmt: skip
    out.mkdir(exist_ok=True)
    texts = dict(drawings([read(folder / name) for name in ("base", *(f"{rate:g} gone" for rate in RATES))]))
    for name in SHOWN:
        _file(name, out).write_text(texts[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    from edgevit.cli.console import Console

    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), options.out, options.steps, Console().progress)


if __name__ == "__main__":
    main()
