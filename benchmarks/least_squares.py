"""What NuWa's closed form costs: least squares beside the pseudo-inverse, and a whole DeiT-Base, first and again.

    python benchmarks/least_squares.py            # writes results/closed_form.json

One FFN of DeiT-Base: 128 images of 197 tokens, 3072 neurons of which 1229 stay. Solved for are the output weights that
give the FFN's own output from the kept neurons: by the pseudo-inverse of the (images * tokens) x 1229 matrix, in fp32
and in fp64; from the sums of `Regression` over batches of images; and from every neuron's second moments, which serve
all other widths, too. All read the same neurons and outputs from files, which is not timed. Each runs in a process of
its own, so that its peak memory is its own. Features are random, correlated, of a falling spectrum, as real ones are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from cost import peak_bytes
from torch import Tensor

from edgevit.derivation.algebra.least_squares import Regression, solve_ridge
from edgevit.derivation.measure.statistics import add_outer, symmetric

RESULTS = Path(__file__).parent / "results" / "closed_form.json"
IMAGES, TOKENS, WIDTH, KEPT, EMBED, BATCH = 128, 197, 3072, 1229, 768, 8
RIDGE = 1e-9  # to compare solutions with the pseudo-inverse, which has none
MODEL, RATES = "deit_base_patch16_224", (0.6, 0.4)


def write_features(folder: Path) -> None:
    """Neurons h [T, e] that share directions whose weight falls to a hundredth, the kept x [T, r], y = W_2 h [T, d]."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.logspace(0, -2, WIDTH).unsqueeze(1) / 30 * torch.randn(WIDTH, WIDTH, generator=generator)
    w2 = torch.randn(EMBED, WIDTH, generator=generator) / WIDTH**0.5
    torch.save(w2, folder / "w2.pt")
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in ("h", "x", "y")]
        for _ in range(0, IMAGES, BATCH):
            h = torch.nn.functional.gelu(torch.randn(BATCH * TOKENS, WIDTH, generator=generator) @ mix)
            for file, part in zip(files, (h, h[:, :KEPT], h @ w2.mT), strict=True):
                part.contiguous().numpy().tofile(file)


def read(file: Path, columns: int, images: slice = slice(0, IMAGES)) -> Tensor:
    count, start = (images.stop - images.start) * TOKENS * columns, images.start * TOKENS * columns
    return torch.from_numpy(numpy.fromfile(file, numpy.float32, count, offset=4 * start)).view(-1, columns)


def batches(folder: Path, name: str, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, IMAGES, BATCH):
        images = slice(start, start + BATCH)
        yield read(folder / name, columns, images), read(folder / "y", EMBED, images)


class Clock:
    """Seconds spent inside it, over several times."""

    seconds = 0.0

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.start


def by_pseudo_inverse(folder: Path, clock: Clock, kind: torch.dtype = torch.float32) -> Tensor:
    """W_2' from every token at once."""
    x, y = read(folder / "x", KEPT).to(kind), read(folder / "y", EMBED).to(kind)
    with clock:
        found: Tensor = y.mT @ torch.linalg.pinv(x).mT
        return found


def by_regression(folder: Path, clock: Clock) -> Tensor:
    sums = Regression(KEPT, EMBED, torch.device("cpu"))
    for x, y in batches(folder, "x", KEPT):
        with clock:
            sums.add(x, y)
    with clock:
        return sums.solve(RIDGE, bias=False)[0]


def by_moments(folder: Path, clock: Clock) -> Tensor:
    w2 = torch.load(folder / "w2.pt").double()
    second = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for h, _ in batches(folder, "h", WIDTH):
        with clock:
            add_outer(second, h)
    with clock:
        second = symmetric(second)
        lift = RIDGE * float(second.diagonal()[:KEPT].mean())
        return solve_ridge(second[:KEPT, :KEPT], second[:KEPT] @ w2.mT, lift).mT


FP32, FP64 = "pseudo-inverse", "pseudo-inverse in fp64"  # the second as exact as sums in fp64 are
WAYS: dict[str, Callable[[Path, Clock], Tensor]] = {
    FP32: by_pseudo_inverse,
    FP64: partial(by_pseudo_inverse, kind=torch.float64),
    "regression": by_regression,
    "moments": by_moments,
}


def one_layer(how: str, folder: Path, repeats: int) -> None:
    """In a process of its own: seconds, and how far it raises the peak memory of a process that has loaded torch."""
    for kind in (torch.float32, torch.float64):  # libraries load and take their buffers at first use
        some = torch.randn(768, 768, dtype=kind)
        torch.linalg.svd(torch.linalg.cholesky(some @ some.mT + torch.eye(768)))
    before, taken = peak_bytes(), []
    for _ in range(repeats):
        clock = Clock()
        solved = WAYS[how](folder, clock)
        taken.append(clock.seconds)
    torch.save(solved, folder / f"{how}.pt")
    print(json.dumps({"seconds": taken, "peak_bytes": peak_bytes() - before}))


def least_squares(folder: Path, repeats: int) -> dict[str, Any]:
    """One after the other, compared with the pseudo-inverses; what is exact is that in fp64."""
    write_features(folder)
    found: dict[str, dict[str, Any]] = {}
    for how in WAYS:
        found[how] = _in_a_process("--layer", how, folder, repeats)
        found[how]["median_s"] = statistics.median(found[how]["seconds"])
    expected = torch.load(folder / f"{FP64}.pt").double()
    for how, of in found.items():
        apart = torch.load(folder / f"{how}.pt").double() - expected
        of["faster"] = {pinv: found[pinv]["median_s"] / of["median_s"] for pinv in (FP32, FP64)}
        of["memory_ratio"] = of["peak_bytes"] / found[FP32]["peak_bytes"]
        of["difference"] = float(apart.norm() / expected.norm())
    return found


def whole_model(images: int) -> dict[str, Any]:
    """Calibration pass of a random DeiT-Base, then the closed form at two rates, the second with a warm cache."""
    import tempfile

    import timm
    from PIL import Image
    from safetensors.torch import save_file

    from edgevit.derivation.session import derive
    from edgevit.train.settings import Training

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
            runs.append({"rate": rate, "total_s": total, "seconds": made.record.seconds,
                         "reused": made.record.facts.reused})  # fmt: skip
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
        one_layer(arguments.layer[0], Path(arguments.layer[1]), int(arguments.layer[2]))
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
