"""What every method makes of small bases, to the last bit: a record to hold a restructuring of the code against.

    python benchmarks/same_results.py                write benchmarks/results/same_results.json
    python benchmarks/same_results.py --check        derive again, name every case that differs, exit 1 if any does
    python benchmarks/same_results.py --check --base "class token"     those of one base alone

Every method, shape policy and head on six small bases with random weights (class token, distillation token, registers,
LayerScale, no biases, residual after the norm): the hash of the derived weights, the widths of every block, MACs and
parameters. Bits are the same on one processor with one version of torch, which the record names; on another, write it
with the older code first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

import edgevit
from edgevit.cost.place import processor
from edgevit.models.checkpoint import tensors_sha256
from edgevit.train.settings import Training

RECORD = Path(__file__).parent / "results" / "same_results.json"
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 96, "depth": 3, "num_heads": 3}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distillation token": ("deit_tiny_distilled_patch16_224", {}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4, "no_embed_class": True}),
    "LayerScale": ("deit3_small_patch16_224", {"init_values": 0.1}),
    "no biases": ("vit_tiny_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "residual after the norm": ("vit_base_patch16_rpn_224", {"init_values": 0.1}),
}
SHAPES = ("fused", "fused4", "paper", "free")
BEFORE = {"cut_embedding": False, "drop_sites": False, "align": False, "refit_head": False}
METHODS: dict[str, dict[str, Any]] = {
    "vulcan": {"steps": 3, "options": {"calibration_images": 96}},
    "vulcan, moments": {"steps": 3, "options": {"calibration_images": 96, "factorisation": "tokens"}},
    "nuwa": {"steps": 2, "options": {"calibration_images": 96, "purification_steps": 4}},
    # As it was before it could narrow the embedding, leave out attention or FFN alone, align and fit the head again.
    "forge": {"steps": 3, "options": {"calibration_images": 96, "sensitivity_images": 48, **BEFORE}},
    "skd": {"steps": 2, "options": {}},
}
RATES = {"forge": 0.7}  # high enough for heads and blocks to go; 0.5 for the others
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}


def write_base(name: str, args: dict[str, Any], file: Path) -> Path:
    """Random weights, biases included, that timm alone would start at 0 or 1."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=10, **args)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, file)
    return file


def training(steps: int) -> Training:
    return Training(steps=steps, batch_size=64, device="cpu", evaluations=1, lr=1e-3, early_stop=False, workers=0)


def cases(scratch: Path, bases: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Derive every case, and tell what came of it."""
    for base in bases:
        name, more = BASES[base]
        args = {**SMALL, **more}
        file = write_base(name, args, scratch / f"{base}.safetensors")
        opened: dict[str, Any] = {"checkpoint": file, "model_args": args, "preprocessing": PREPROCESSING}
        net = scratch / f"{base} net"
        few = {"proxy_images": 96, "updates": 2, "points": 2}
        common: dict[str, Any] = {"data": "digits", "accept_weak_base": True}
        edgevit.supernet(name, out=net, rate=0.6, options=few, training=training(4), **opened, **common)
        for method, how in METHODS.items():
            for shape in SHAPES:
                for head in ("subset", "full"):
                    case = f"{base}; {method}; {shape}; {head}"
                    given: dict[str, Any] = {"classes": "3,7,9", "head": head, "shape": shape, "cache": False, **common}
                    given |= {"rate": RATES.get(method, 0.5), "training": training(how["steps"])}
                    given |= {"options": how["options"], "out": scratch / case.replace("; ", "-")}
                    if method == "skd":
                        made = edgevit.derive(supernet=net, method=method, **given)
                    else:
                        made = edgevit.derive(name, method=method.partition(",")[0], **given, **opened)
                    yield case, told(made.model)


def told(model: Any) -> dict[str, Any]:
    blocks = [[b["heads"], b["qk"], b["vo"], b["ffn"]] for b in map(asdict, model.spec.blocks)]
    weights = tensors_sha256(model.network.state_dict())
    return {"weights": weights, "blocks": blocks, "macs": model.spec.macs, "params": model.spec.params}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    parser.add_argument("--base", choices=BASES, help="derive from this base alone; with --check")
    parser.add_argument("--record", type=Path, default=RECORD)
    asked = parser.parse_args()
    if asked.base and not asked.check:
        parser.error("--base is for --check: a record holds all bases")
    torch.set_num_threads(1)
    here = {"torch": torch.__version__, "timm": timm.__version__, "processor": processor()}
    kept = json.loads(asked.record.read_text()) if asked.check else {}
    if asked.check and kept["made_with"] != here:
        sys.exit(f"the record was made with {kept['made_with']}, and this is {here}: write it anew with the older code")
    found, differing = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        for case, seen in cases(Path(scratch), [asked.base] if asked.base else list(BASES)):
            found[case] = seen
            if asked.check and seen != kept["cases"][case]:
                was = kept["cases"][case]
                differing.append(f"{case}: {[name for name in seen if seen[name] != was[name]]}")
                print(differing[-1], flush=True)
    if asked.check:
        print(f"{len(found)} cases, {len(differing)} differ")
        sys.exit(1 if differing else 0)
    asked.record.write_text(json.dumps({"made_with": here, "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
