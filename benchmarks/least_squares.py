"""What NuWa's closed form costs: least squares beside the pseudo-inverse, and a whole DeiT-Base, first and again.

    python benchmarks/least_squares.py            # writes results/closed_form.json

One FFN of DeiT-Base: 128 images of 197 tokens, 3072 neurons of which 1229 stay. The pseudo-inverse is that of the
(images * tokens) x 1229 matrix, as released; ours sees the neurons batch by batch. Each runs in a process of its own,
so that its peak memory is its own. Features are random, correlated and of a falling spectrum, as real ones are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cost import peak_bytes
from torch import Tensor

RESULTS = Path(__file__).parent / "results" / "closed_form.json"
IMAGES, TOKENS, WIDTH, KEPT, EMBED, BATCH = 128, 197, 3072, 1229, 768, 16
MODEL, RATES = "deit_base_patch16_224", (0.6, 0.4)


def mixing() -> Tensor:
    """[e, e]: neurons share directions whose weight falls to a hundredth."""
    generator = torch.Generator().manual_seed(0)
    falling = torch.logspace(0, -2, WIDTH).unsqueeze(1) / 30
    mix: Tensor = falling * torch.randn(WIDTH, WIDTH, generator=generator)
    return mix


def batches(mix: Tensor) -> Iterator[Tensor]:
    """The neurons [B * N, e] of one batch after the other."""
    for start in range(0, IMAGES, BATCH):
        generator = torch.Generator().manual_seed(1 + start)
        yield torch.nn.functional.gelu(torch.randn(BATCH * TOKENS, WIDTH, generator=generator) @ mix)


def output_weights() -> Tensor:
    weights: Tensor = torch.randn(EMBED, WIDTH, generator=torch.Generator().manual_seed(2)) / WIDTH**0.5
    return weights


def by_pseudo_inverse(mix: Tensor, w2: Tensor, repeats: int) -> tuple[Tensor, list[float]]:
    """W_2' as the released code solves for it: every neuron of every token at once."""
    features = torch.cat(list(batches(mix)))
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        solved = (features @ w2.mT).mT @ torch.linalg.pinv(features[:, :KEPT]).mT
        taken.append(time.perf_counter() - start)
    return solved, taken


def by_moments(mix: Tensor, w2: Tensor, repeats: int) -> tuple[Tensor, list[float]]:
    """W_2' as edgevit solves for it: second moments, batch by batch, then one Cholesky factorisation."""
    from edgevit.derive.least_squares import solve
    from edgevit.derive.statistics import add_outer, symmetric

    taken = []
    for _ in range(repeats):
        second, seconds = torch.zeros(WIDTH, WIDTH, dtype=torch.float64), 0.0
        for features in batches(mix):  # making them is not part of it
            start = time.perf_counter()
            add_outer(second, features)
            seconds += time.perf_counter() - start
        start = time.perf_counter()
        second = symmetric(second)
        solved = solve(second[:KEPT, :KEPT], second[:KEPT] @ w2.double().mT, 1e-9).mT.float()
        taken.append(seconds + time.perf_counter() - start)
    return solved, taken


def one_layer(how: str, out: str, repeats: int) -> None:
    """In a process of its own: seconds, peak memory above what the features' recipe takes, and the solution."""
    mix, w2 = mixing(), output_weights()
    torch.linalg.cholesky(torch.eye(64, dtype=torch.float64))  # libraries load at first use
    before = peak_bytes()
    solved, taken = (by_pseudo_inverse if how == "pseudo-inverse" else by_moments)(mix, w2, repeats)
    torch.save(solved, out)
    print(json.dumps({"seconds": taken, "peak_bytes": peak_bytes() - before}))


def least_squares(folder: Path, repeats: int) -> dict[str, Any]:
    """Both in turns; the solutions compared."""
    found: dict[str, dict[str, Any]] = {}
    for how in ("pseudo-inverse", "moments"):
        found[how] = _in_a_process("--layer", how, folder / f"{how}.pt", repeats)
    first, second = (torch.load(folder / f"{how}.pt") for how in found)
    medians = {how: sorted(of["seconds"])[len(of["seconds"]) // 2] for how, of in found.items()}
    return {
        **found,
        "faster": medians["pseudo-inverse"] / medians["moments"],
        "memory_ratio": found["moments"]["peak_bytes"] / found["pseudo-inverse"]["peak_bytes"],
        "difference": float((first - second).norm() / first.norm()),
    }


def whole_model(images: int) -> dict[str, Any]:
    """Calibration pass of a random DeiT-Base, then the closed form at two rates, the second with a warm cache."""
    import tempfile

    import timm
    from PIL import Image
    from safetensors.torch import save_file

    from edgevit.derive.pipeline import derive
    from edgevit.derive.train import Training

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        save_file(timm.create_model(MODEL, num_classes=2).state_dict(), folder / "base.safetensors")
        for c in ("a", "b"):
            for i in range(images // 2 + 4):
                file = folder / "data" / c / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                noise = torch.randint(0, 255, (224, 224, 3), dtype=torch.uint8).numpy()
                Image.fromarray(noise).save(file)
        runs = []
        for rate in RATES:
            start = time.perf_counter()
            made = derive(
                MODEL, checkpoint=folder / "base.safetensors", data=folder / "data", classes=None, rate=rate,
                out=folder / f"m{rate}", method="nuwa", options={"purification": "none"}, validation_fraction=0.02,
                training=Training(steps=0, batch_size=16, device="cpu"),
            )  # fmt: skip
            total = time.perf_counter() - start
            runs.append({"rate": rate, "total_s": total, "seconds": made.record["seconds"],
                         "reused": made.record["facts"]["reused"]})  # fmt: skip
    return {"model": MODEL, "calibration_images": min(images, 128), "runs": runs, "peak_bytes": peak_bytes()}


def _in_a_process(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, __file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=160, help="of the whole model's task")
    parser.add_argument("--layer", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--whole", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.layer:
        one_layer(arguments.layer[0], arguments.layer[1], int(arguments.layer[2]))
        return
    if arguments.whole:
        print(json.dumps(whole_model(arguments.whole)))
        return
    import tempfile

    environment = {
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "torch": torch.__version__, "python": platform.python_version(), "load_average": os.getloadavg()[0],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        layer = least_squares(Path(folder), arguments.repeats)
    print(json.dumps(layer, indent=1), file=sys.stderr)
    whole = _in_a_process("--whole", arguments.images)
    record = {"schema": 1, "environment": environment, "least_squares": layer, "whole_model": whole}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(whole, indent=1), file=sys.stderr)


if __name__ == "__main__":
    main()
