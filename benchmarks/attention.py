"""Attention pruned without training, its factors made for the weights, for the task's tokens, or for these weighted.

    python benchmarks/attention.py                # writes results/attention.json

The form of Table 3 of the SKD super-network paper: QK and VO of every block at 1/4, 2/4 and 3/4 of their width, the FFN
whole, top-1 with nothing trained. Narrower widths, too: this base's attention is of so low a rank that 1/4 costs it
nothing. `class token` is what the paper calls ill-conditioned: moments from one token per image, of fewer images than
features. Rendered data set, base and sub-tasks of accuracy.py; moments of `IMAGES` training images; top-1 on `val/`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from accuracy import TASK_SIZES, task_classes
from base import ensure_rendered_base
from torch import Tensor, nn

from edgevit.data.accuracy import measure_accuracy
from edgevit.data.task import Split, Task, open_task
from edgevit.derive.algebra.attention import attention_spectra, narrow
from edgevit.derive.measure.statistics import calibrate
from edgevit.models.anatomy import Block, attentions
from edgevit.models.checkpoint import Model, open_base
from edgevit.models.classifier import with_classes
from edgevit.models.families import vit
from edgevit.train.passes import observed, open_passes
from edgevit.train.settings import Training

RESULTS = Path(__file__).parent / "results" / "attention.json"
IMAGES, WIDTHS = 128, (4, 8, 16, 32, 48)


def open_all() -> tuple[Model, Path, dict[str, Any]]:
    data, folder = ensure_rendered_base()
    facts = json.loads((folder / "base.json").read_text())
    base = open_base(
        facts["timm_name"], checkpoint=folder / "base.safetensors", model_args=facts["model_args"],
        preprocessing={"mean": facts["mean"], "std": facts["std"], "crop_pct": 1.0},
    )  # fmt: skip
    return base, data, facts


def class_token_moments(network: nn.Module, images: Split) -> list[Tensor]:
    """Second moments of the class token alone: of rank no more than the images."""
    blocks = vit.attention_inputs(network)
    found: list[Tensor] = [torch.empty(0)] * len(blocks)

    def see(i: int, given: Any, _: Tensor) -> None:
        token = given[0][:, 0].double()
        token = torch.cat([token, token.new_ones(len(token), 1)], dim=1)
        found[i] = token.mT @ token / len(token)

    with torch.no_grad(), observed(blocks, see):
        network(next(iter(images.batches(len(images))))[0])
    return found


def moments(network: nn.Module, task: Task, columns: list[int]) -> dict[str, list[Tensor] | None]:
    images, passes = task.train.subset(IMAGES), open_passes(Training(device="cpu"))

    def take(factorisation: Any) -> list[Tensor]:
        taken = calibrate(network, images, passes, factorisation=factorisation, columns=columns)
        return [s.moment for s in taken if s.moment is not None]

    return {
        "weights": None,
        "activations": take("activations"),
        "tokens": take("tokens"),
        "class token": class_token_moments(network, images),
    }


def main() -> None:
    base, data, facts = open_all()
    names: list[str] = facts["classes"]
    rows: list[dict[str, Any]] = []
    for size in TASK_SIZES:
        task = open_task(
            data, task_classes(names, size), preprocessing=base.preprocessing, base_outputs=len(names), base_names=names
        )
        columns = list(range(size))
        network = with_classes(base.network, task.base_columns)
        test = list(task.test.batches(200))

        def top1(model: nn.Module, test: Any = test, columns: Any = columns, names: Any = task.class_names) -> float:
            return measure_accuracy(model, test, columns, names).top1

        rows.append({"task": size, "images": len(task.test), "width": 64, "kind": "base", "top1": top1(network)})
        blocks = vit.read(network)
        parts = attentions(blocks)
        for kind, of in moments(network, task, columns).items():
            spectra = attention_spectra(parts, of)
            for width in WIDTHS:
                with torch.no_grad():
                    slim = narrow(parts, [(width, width)] * len(parts), of, spectra)
                    slim = vit.build(network, [Block(a, b.ffn) for a, b in zip(slim, blocks, strict=True)])
                rows.append({"task": size, "images": len(task.test), "width": width, "kind": kind, "top1": top1(slim)})
                print(rows[-1], flush=True)
    environment = {"torch": torch.__version__, "load_average": os.getloadavg()[0]}
    record = {
        "schema": 1, "base_top1": facts["val_top1"], "calibration_images": IMAGES, "environment": environment,
        "rows": rows,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
