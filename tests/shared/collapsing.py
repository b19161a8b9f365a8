"""Two steps of Vulcan's constraint as published, written to a file: a script, in one of several processes."""

from __future__ import annotations

import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from edgevit.derivation.methods.vulcan.method import Config, Redundancy
from edgevit.derivation.plan import AttentionPlan, BlockPlan, FfnPlan, Plan
from edgevit.network.network import Network
from edgevit.train.compute import close_compute, open_compute
from edgevit.train.settings import Training


def collapse(file: Path) -> None:
    """Write the state of the constraint after two steps of this process's images."""
    torch.manual_seed(0)
    args = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=10)
    network = Network(timm.create_model("vit_tiny_patch16_224", **args).train())
    images, compute = torch.randn(8, 3, 32, 32), open_compute(Training(device="cpu", batch_size=8))
    ffn = FfnPlan(torch.arange(200), torch.arange(256) % 200)
    plan = Plan(tuple(BlockPlan(i, AttentionPlan((0, 1), (16, 24)), ffn) for i in range(2)))
    constraint = Redundancy(network, plan, Config(as_published=True), compute)
    with constraint.watch():
        for _ in range(2):
            network(compute.share_rows(images))
            constraint.penalty()
            constraint.after_step()
    rank = compute.accelerator.process_index
    several = compute.accelerator.num_processes > 1
    save_file(constraint.state(), file.with_suffix(f".{rank}") if several else file)
    close_compute()


if __name__ == "__main__":
    collapse(Path(sys.argv[1]))
