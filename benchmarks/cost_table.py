"""Write what each module of a base takes at each width on this machine: the file that `--ms` goes by.

    python benchmarks/cost_table.py                                   # of the rendered data set's base
    python benchmarks/cost_table.py --model deit_small_patch16_224 --model-args '{}' --step 64 --out deit_small.yaml
    edgevit derive ... --ms 2.0 --cost-table deit_small.yaml --method METHOD    # one that can: see --help

Attention, FFN and the rest of the model are timed in turns in one process and one thread, in CPU time: a neighbour on a
shared machine interrupts long runs and not short ones. A module's figure is its median; what takes less although it is
wider (noise, or a width that the kernels like) is raised to what the narrower one takes, since a table must not fall.
Random weights: time depends on shapes. The table says what it was measured on and is good for nothing else: of a board,
measure on the board.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import timm
import torch
import yaml
from base import RENDERED_ARGS, TIMM_NAME
from torch import Tensor, nn

from edgevit.derive.allocate.cost_table import load_cost_table
from edgevit.derive.allocate.policy import POLICIES
from edgevit.models.anatomy import BlockDims
from edgevit.models.families import family_of, name_of, vit

RESULTS = Path(__file__).parent / "results" / "cost_table.yaml"


def attention_sizes(base: BlockDims) -> list[tuple[int, int]]:
    """Heads and widths that shape `fused` may ask for, with any number of heads."""
    policy = POLICIES["fused"]
    widths = {*range(policy.head_minimum, base.qk, policy.head_step), base.qk}
    return [(heads, width) for heads in range(1, base.heads + 1) for width in sorted(widths)]


def ffn_widths(base: BlockDims, step: int) -> list[int]:
    return sorted({POLICIES["fused"].ffn_minimum, *range(step, base.ffn, step), base.ffn})


def modules(name: str, args: Mapping[str, Any], dims: BlockDims) -> tuple[nn.Module, nn.Module]:
    """Attention and FFN of one block of the base at other dimensions."""
    network: Any = timm.create_model(name, **{**args, "depth": 1})
    vit.resize(network, [dims])
    network = network.to_empty(device="cpu").eval()
    for parameter in network.parameters():
        parameter.normal_(0, 0.02)
    return network.blocks[0].attn, network.blocks[0].mlp


class Pass(nn.Module):
    """Give back the tokens as they are."""

    def forward(self, tokens: Tensor, **_: Any) -> Tensor:
        return tokens


def rest(name: str, args: Mapping[str, Any]) -> nn.Module:
    """A model without its attention and FFNs: what they do not change."""
    network: Any = timm.create_model(name, **args).eval()
    for block in network.blocks:
        block.attn, block.mlp = Pass(), Pass()
    return network  # type: ignore[no-any-return]


def run_of(module: nn.Module, inputs: Tensor) -> Callable[[], Any]:
    return lambda: module(inputs)


def interleave(runs: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """CPU time of every run in every round, after two that are not counted; in ms.

    Each round has its own order: what follows a large run finds the caches cold.
    """
    taken: list[list[float]] = [[] for _ in runs]
    order, random = list(range(len(runs))), Random(0)
    for _ in range(rounds + 2):
        random.shuffle(order)
        for i in order:
            begun = time.thread_time_ns()
            runs[i]()
            taken[i].append((time.thread_time_ns() - begun) / 1e6)
    return [of_run[2:] for of_run in taken]


def raised(sizes: Sequence[Sequence[int]], ms: Sequence[float]) -> list[float]:
    """The running maximum: nothing takes less than what has no more heads and is no wider."""
    grid = np.array(sizes)
    no_more = (grid[:, None] <= grid[None]).all(2)  # [n, n]
    return [round(float(m), 4) for m in np.where(no_more, np.array(ms)[:, None], 0).max(0)]


@torch.inference_mode()
def measure(name: str, args: Mapping[str, Any], step: int, batch: int, rounds: int) -> tuple[dict[str, Any], float]:
    """Return the table and what the whole base took, in ms, timed beside its parts."""
    whole: Any = timm.create_model(name, **args).eval()
    base, geometry = vit.read(whole)[0].dims, vit.geometry(whole)
    attentions, ffns = attention_sizes(base), ffn_widths(base, step)
    tokens = torch.randn(batch, geometry.tokens, geometry.embed)
    images = torch.randn(batch, whole.patch_embed.proj.in_channels, *whole.patch_embed.img_size)
    timed = [run_of(whole, images), run_of(rest(name, args), images)]
    for heads, width in attentions:
        timed.append(run_of(modules(name, args, BlockDims(heads, width, width, base.ffn))[0], tokens))
    for width in ffns:
        timed.append(run_of(modules(name, args, BlockDims(base.heads, base.qk, base.vo, width))[1], tokens))
    ms = [statistics.median(latencies) for latencies in interleave(timed, rounds)]
    of_attention, of_ffn = ms[2 : 2 + len(attentions)], ms[2 + len(attentions) :]
    table = {
        "schema": 1,
        "measured_on": f"{processor()}, torch {torch.__version__} eager fp32, 1 thread, "
        f"batch {batch}; CPU time, medians of {rounds} rounds, load average {os.getloadavg()[0]:.1f}",
        "base": {
            "family": name_of(family_of(whole)),
            "embed": geometry.embed,
            "tokens": geometry.tokens,
            "patch_values": geometry.patch_values,
            "depth": len(whole.blocks),
        },
        "fixed_ms": round(ms[1], 4),
        "blocks": [
            {
                "base": {"heads": base.heads, "qk": base.qk, "vo": base.vo, "ffn": base.ffn},
                "attention": [
                    {"heads": heads, "width": width, "ms": m}
                    for (heads, width), m in zip(attentions, raised(attentions, of_attention), strict=True)
                ],
                "ffn": [
                    {"width": width, "ms": m}
                    for width, m in zip(ffns, raised([(w,) for w in ffns], of_ffn), strict=True)
                ],
            }
        ],
    }
    return table, ms[0]


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=TIMM_NAME)
    parser.add_argument("--model-args", type=json.loads, default=RENDERED_ARGS, help="JSON")
    parser.add_argument("--step", type=int, default=32, help="between the FFN widths that are timed")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table, whole_ms = measure(arguments.model, arguments.model_args, arguments.step, arguments.batch, arguments.rounds)
    arguments.out.write_text(yaml.safe_dump(table, default_flow_style=None, sort_keys=False, width=120))
    told = load_cost_table(arguments.out).in_quantity("ms").base
    print(f"the base: {told:.3f} ms by the table, {whole_ms:.3f} ms as a whole", file=sys.stderr)


if __name__ == "__main__":
    main()
