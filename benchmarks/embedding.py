"""Was the width that forge chose for the embedding the right one? The closed form at every rung, beside the choice.

    python benchmarks/embedding.py                                     # 12 rendered classes, rates 0.8, 0.9, 0.95
    python benchmarks/embedding.py --classes 6 --rates 0.95 --out trial.json

At each rate forge derives with the ladder as it is, and once with every other width as the only one. What is compared
is the closed form: its top-1 on the validation part, which a choice would go by, and on `val/`, which is only told.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from accuracy import Case, Place, _base_arguments, _training, open_places, task_classes
from tables import table

from edgevit.cli.console import Console
from edgevit.derive.allocate.policy import POLICIES
from edgevit.derive.embedding import ladder
from edgevit.derive.session import derive
from edgevit.errors import BudgetError

RESULTS = Path(__file__).parent / "results" / "embedding.json"


def at(place: Place, classes: list[str], rate: float, seed: int, width: int) -> dict[str, Any]:
    """One closed form with the embedding of this width; 0: of the width that forge chooses."""
    case = Case("main", len(classes), rate, seed, "forge, closed form", "forge", steps=0)
    with tempfile.TemporaryDirectory() as folder:
        made = derive(
            **_base_arguments(place), data=place.data, classes=classes, rate=rate, out=Path(folder) / "model",
            method="forge", options={"embed_width": width}, shape="fused", training=_training(case, 0),
        )  # fmt: skip
    facts, accuracy = made.record.facts.more, made.record.accuracy
    assert accuracy.derived is not None
    return {
        "rate": rate,
        "width": facts["embed"],
        "chosen": not width,
        "predicted_nats": facts["predicted_nats"],
        "validation": facts["accuracy_validation_closed_form"],
        "top1": accuracy.derived.top1,
        "base_top1": accuracy.base_restricted.top1 if accuracy.base_restricted else None,
        "rungs": facts["embed_rungs"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument(
        "--rates", type=lambda text: [float(part) for part in text.split(",")], default=[0.8, 0.9, 0.95]
    )
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    place = open_places(["rendered"], Console().progress)["rendered"]
    os.environ["XDG_CACHE_HOME"] = str(place.base.parent / "shared" / "embedding")
    card = json.loads((place.base / "base.json").read_text())
    classes, whole = task_classes(card["classes"], asked.classes), card["model_args"]["embed_dim"]
    rows: list[dict[str, Any]] = []
    for rate in asked.rates:
        chosen = at(place, classes, rate, asked.seed, 0)
        rows.append(chosen)
        for width in ladder(whole, POLICIES["fused"].embed_step):
            try:
                found = chosen if width == chosen["width"] else at(place, classes, rate, asked.seed, width)
            except BudgetError as error:
                print(f"rate {rate}, width {width}: {error}")
                continue
            rows += [] if found is chosen else [found]
            print(f"rate {rate}, width {width}: validation {found['validation']:.3f}, top-1 {found['top1']:.3f}")
    asked.out.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    cells = [
        [f"{r['rate']}", f"{r['width']}" + ", chosen" * r["chosen"], f"{r['predicted_nats']:.4f}"]
        + [f"{100 * r[name]:.1f}" for name in ("validation", "top1", "base_top1")]
        for r in sorted(rows, key=lambda r: (r["rate"], -r["width"]))
    ]
    print(table(["rate", "width", "predicted nats", "validation", "top-1", "base's"], cells))


if __name__ == "__main__":
    main()
