"""Everything that is measured on a base, into one file: as a script, in one of several processes."""

from __future__ import annotations

import sys
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file

from edgevit.baselines.common.importance import squared_changes
from edgevit.data.task import open_task
from edgevit.derivation.measure.sensitivity import measure_sensitivity
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.heart.scores import measure_scores
from edgevit.derivation.methods.skd.piad import measure_importance
from edgevit.network.model import describe
from edgevit.network.network import Network
from edgevit.train.compute import close_compute
from edgevit.train.passes import accuracy_of, open_passes
from edgevit.train.settings import Training


def measure(file: Path) -> None:
    torch.manual_seed(0)
    args = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=2, num_classes=10)
    network = Network(timm.create_model("vit_tiny_patch16_224", **args).eval()).with_columns([1, 4, 7])
    preprocessing = describe(network, "vit_tiny_patch16_224", args).preprocessing
    images = open_task("digits", "1,4,7", preprocessing=preprocessing, base_outputs=10).train.subset(35)  # 18 and 17
    passes = open_passes(Training(device="cpu"))
    found = {}
    for kind in ("activations", "tokens"):
        for i, s in enumerate(calibrate(network, images, passes, factorisation=kind, hidden=True)):
            found |= {f"{kind} {i} {name}": tensor for name, tensor in s.tensors().items()}
    for i, s in enumerate(measure_sensitivity(network, images, passes, stage="")):
        found |= {f"sensitivity {i} {name}": tensor for name, tensor in vars(s).items()}
    importance = measure_importance(network, images, passes, skip=[(0, "ffn")])
    found |= {f"importance {of}": tensor for of, tensor in importance.taylor.items()}
    scores = measure_scores(network, images, passes, probes=2, seed=0)
    found |= {"gates of tokens": scores.placed, **{f"gates of heads {i}": h for i, h in enumerate(scores.heads)}}
    for i, block in enumerate(squared_changes(network, images, passes).blocks):
        found |= {f"squared changes {i} {name}": tensor for name, tensor in block.items()}
    found["losses"] = torch.tensor([importance.loss, importance.skipped[0, "ffn"]])
    found["right"] = torch.tensor(accuracy_of(network, images, ["1", "4", "7"], passes).restricted)
    found["processes"] = torch.tensor(passes.compute.accelerator.num_processes)
    if passes.compute.is_main:
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, file)
    close_compute()


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
