"""Peak memory of training a DeiT-Base by Vulcan, whole weights against low-rank updates (Vulcan's Table 17).

    python -m benchmarks.papers.lora_memory    # every row that records/lora_memory.json lacks, two minutes each

Weights are random and images are noise, because memory depends on neither. The rate, the rank and the micro-batch of 4
images are the paper's. A step has 2 of the paper's 64 micro-batches: from the second on, gradients of those before are
held. Each training runs in a process of its own whose C library returns freed memory at once
(MALLOC_MMAP_THRESHOLD_), so that the peak does not depend on what the library keeps.
"""

from __future__ import annotations

import json
import os
import tempfile
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.markdown import RECORDS, table
from benchmarks.training_memory import Watched, hand_back, peak_mib, reset_peak
from edgevit.progress import Stage

NAME, RATE = "deit_base_patch16_224", 0.6
RANKS = (0, 256)
MICRO_BATCH, PARTS, STEPS = 4, 2, 5
IMAGES, TEST_IMAGES = 12, 2  # of each of the two classes
FILE = RECORDS / "lora_memory.json"
WEIGHTS = 85_800_194  # of the base, with two classes
SIDES = 12 * 12_288  # of the matrices that are updated, both of each: numbers of an update per rank
PAPER_GB = {0: 1.67, 256: 1.10}


def _write_noise(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    drawn = np.random.default_rng(0)
    for part, count in (("train", IMAGES), ("val", TEST_IMAGES)):
        for name in ("a", "b"):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = drawn.integers(0, 256, (224, 224, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")


def _write_base(file: Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    network = timm.create_model(NAME, num_classes=2)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, file)


def _held_mib() -> float:
    hand_back()
    reset_peak("cpu")
    return peak_mib("cpu") or 0.0


class _Watched(Watched):
    """Also knows what the process holds before the training."""

    before_mib = 0.0

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Stage]:
        if name == "train":
            self.before_mib = _held_mib()
        with super().stage(name, total, unit) as stage:
            yield stage


def measure(rank: int) -> dict[str, Any]:
    """Train once, in this process."""
    import timm
    import torch

    from edgevit import derive
    from edgevit.derivation.methods.vulcan.lora import low_rank_updates
    from edgevit.network.network import Network
    from edgevit.train.settings import Training

    watched = _Watched("cpu")
    with tempfile.TemporaryDirectory() as scratch:
        place, base = Path(scratch, "noise"), Path(scratch, "base.safetensors")
        _write_noise(place)
        with get_context("spawn").Pool(1) as apart:
            apart.apply(_write_base, (base,))
        training = Training(
            steps=STEPS, batch_size=PARTS * MICRO_BATCH, grad_accum=PARTS, device="cpu", evaluations=1, lr=1e-3,
            schedule="constant", early_stop=False,
        )  # fmt: skip
        derivation = derive(
            NAME, checkpoint=base, model_args={"num_classes": 2}, base_classes=["a", "b"], data=place, rate=RATE,
            out=Path(scratch, "model"), method="vulcan", options={"lora_rank": rank, "calibration_images": 8},
            shape="paper", training=training, accept_weak_base=True, finetune_base=False, cache=False,
            progress=watched,
        )  # fmt: skip
    assert watched.peak_mib is not None, "this system does not tell a process's peak"
    network = Network(timm.create_model(NAME, num_classes=2))
    with low_rank_updates(network, rank, 0):
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    record = derivation.record
    return {
        "base": NAME, "rate": RATE, "rank": rank, "micro_batch": MICRO_BATCH, "parts": PARTS, "steps": STEPS,
        "peak_mib": round(watched.peak_mib, 1), "before_mib": round(watched.before_mib, 1), "trained": trained,
        "seconds": record.seconds, "threads": torch.get_num_threads(), "versions": record.versions,
    }  # fmt: skip


def section(data: dict[str, Any] | None) -> str:
    """Format the section of README.md, below the ablations."""
    rows = [] if data is None else sorted(data["rows"], key=lambda row: row["rank"])
    if not rows:
        return ""
    # Where a training begins, weights and updates are there already, as is what is no part of it.
    held = {row["rank"]: (WEIGHTS + SIDES * row["rank"]) * 4 / 2**20 for row in rows}  # fp32, in MiB
    training = {row["rank"]: row["peak_mib"] - row["before_mib"] + held[row["rank"]] for row in rows}
    lines = []
    for row in rows:
        rank = row["rank"]
        less = f"{100 * (1 - training[rank] / training[0]):.0f} %" if rank and 0 in training else ""
        name = f"LoRA, rank {rank}" if rank else "whole weights"
        papers = f"{PAPER_GB[rank]:.2f}" if rank in PAPER_GB else ""
        lines.append(
            [name, f"{row['trained'] / 1e6:.1f}", f"{row['peak_mib']:.0f}", f"{training[rank]:.0f}", less, papers]
        )
    text = (
        f"Memory of a DeiT-Base's training with LoRA (`lora_memory.py`): rate {RATE:g}, {MICRO_BATCH} images of a "
        f"micro-batch, {PARTS} micro-batches of a step, fp32, on a processor. Weights are random and images are noise, "
        "so there is no accuracy. Peak: of the whole process during the steps, with Python and torch. Training: the "
        "growth since before the training, plus weights and updates once each. The paper does not say what its figure "
        "counts."
    )
    head = ["", "trained numbers, millions", "peak, MiB", "training, MiB", "less", "the paper's, GB"]
    return "\n".join(textwrap.wrap(text, 118)) + "\n\n" + table(head, lines)


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    data: dict[str, Any] = json.loads(FILE.read_text()) if FILE.is_file() else {"schema": 1, "rows": []}
    for rank in RANKS:
        if rank not in [row["rank"] for row in data["rows"]]:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                data["rows"].append(pool.submit(measure, rank).result())
            FILE.write_text(json.dumps(data, indent=1) + "\n")
    print(section(data))


if __name__ == "__main__":
    main()
