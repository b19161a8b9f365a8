"""Does a change of the code change any result? Every method on small bases, to the last bit, against a record.

    python -m benchmarks.product.same_results            # write records/same_results.json
    python -m benchmarks.product.same_results --check    # derive again, name each case that differs, exit 1 if any does
    python -m benchmarks.product.same_results --check --base "class token" --method forge    # one base and method

Every method, shape policy and head on six small bases with random weights (class token, distillation token, registers,
LayerScale, no biases, residual after the norm). A case holds the hash of the derived weights, the widths of every
block, tokens, embedding, MACs, parameters, and the answers to one image. Bits repeat on one processor with one version
of torch, which the record names; on another machine write a record with the older code first, to a file of its own.

Methods in `ANYWHERE` have the recorded widths and costs on any processor, and the recorded answers up to rounding; the
test derives by these. Between an Intel Xeon and an AMD EPYC widths differed in 28 of 48 cases of NuWa, 44 of forge and
8 of SKD, and in none of any other method.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

import edgevit
from benchmarks.markdown import RECORDS
from edgevit.network.model import tensors_sha256
from edgevit.train.settings import Training
from edgevit.version import processor

RECORD = RECORDS / "same_results.json"
SMALL = {"img_size": 16, "patch_size": 4, "embed_dim": 96, "depth": 3, "num_heads": 3}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": ("vit_tiny_patch16_224", {}),
    "distillation token": ("deit_tiny_distilled_patch16_224", {}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 4, "no_embed_class": True}),
    "LayerScale": ("deit3_small_patch16_224", {"init_values": 0.1}),
    "no biases": ("vit_tiny_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "residual after the norm": ("vit_base_patch16_rpn_224", {"init_values": 0.1}),
}
SHAPES, HEADS = ("fused", "fused4", "paper", "free"), ("subset", "full")
# Forge as it was when the record was begun, as far as options go: it multiplied in fp32, measured losses on the images
# of the gradients, left the embedding and whole sites alone, aligned nothing and kept the head.
NEVER = {"cut_tokens": "never"}  # as when the record was made
BEFORE = {
    "bf16": False, "measured_images": 48, "cut_embedding": False, "drop_sites": False, "align": False,
    "refit_head": False,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "vulcan": {"steps": 3, "options": {"calibration_images": 96}},
    "vulcan, moments": {"steps": 3, "options": {"calibration_images": 96, "factorisation": "tokens"}},
    "nuwa": {"steps": 2, "options": {"calibration_images": 96, "purification_steps": 4}},
    "forge": {"steps": 3, "options": {"calibration_images": 96, "sensitivity_images": 48, **NEVER}},
    "forge, as before": {
        "steps": 3,
        "options": {"calibration_images": 96, "sensitivity_images": 48, **BEFORE, **NEVER},
    },
    "skd": {"steps": 2, "options": {}},
    "heart": {"steps": 2, "options": {"calibration_images": 16, "probes": 2}},
    "corp": {"steps": 2, "options": {"calibration_images": 96}},
    "dcvit": {"steps": 2, "options": {"calibration_images": 32}},
    "magnitude": {"steps": 2, "options": {}},
    "mdp": {"steps": 2, "options": {"calibration_images": 96}},
    "nvit": {"steps": 2, "options": {"calibration_images": 96}},
    "random": {"steps": 2, "options": {}},
    "taylor": {"steps": 2, "options": {"calibration_images": 96}},
    "torch_pruning": {"steps": 2, "options": {"calibration_images": 96}},
    "wanda": {"steps": 2, "options": {"calibration_images": 96}},
    "xpruner": {"steps": 2, "options": {"calibration_images": 32, "mask_passes": 2}},
}
# Forge's is high enough for heads and blocks to go, heart's low enough for tokens and heads alone; 0.5 for the others.
RATES = {"forge": 0.7, "heart": 0.3}
# Of these the widths do not hang on the last bits of sums, on "class token" with fused shapes; one per kind of code.
ANYWHERE = ("vulcan", "skd", "heart", "corp", "dcvit", "mdp", "taylor", "xpruner")
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0, "interpolation": "bicubic"}


def write_base(name: str, args: dict[str, Any], file: Path) -> Path:
    """Write random weights; also random biases and norms, which timm would start at 0 or 1."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=10, **args)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, file)
    return file


def training(steps: int) -> Training:
    return Training(steps=steps, batch_size=64, device="cpu", evaluations=1, lr=1e-3, early_stop=False, workers=0)


def cases(
    scratch: Path, bases: Sequence[str], methods: Sequence[str], shapes: Sequence[str] = SHAPES,
    heads: Sequence[str] = HEADS,
) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
    """Derive every case and summarise the model."""
    for base in bases:
        name, more = BASES[base]
        args = {**SMALL, **more}
        file = write_base(name, args, scratch / f"{base}.safetensors")
        opened: dict[str, Any] = {"checkpoint": file, "model_args": args, "preprocessing": PREPROCESSING}
        net = scratch / f"{base} net"
        few = {"proxy_images": 96, "updates": 2, "points": 2}
        common: dict[str, Any] = {"data": "digits", "accept_weak_base": True}
        if "skd" in methods:
            edgevit.supernet(name, out=net, rate=0.6, options=few, training=training(4), **opened, **common)
        for method, shape, head in product(methods, shapes, heads):
            case, of, settings = f"{base}; {method}; {shape}; {head}", method.partition(",")[0], METHODS[method]
            request: dict[str, Any] = {"classes": "3,7,9", "head": head, "shape": shape, **common}
            request["cache"] = scratch / "cache"  # what the base answers is asked once
            request |= {"rate": RATES.get(of, 0.5), "training": training(settings["steps"])}
            request |= {"options": settings["options"], "out": scratch / case.replace("; ", "-")}
            request |= {"supernet": net} if of == "skd" else {"base": name, **opened}
            yield case, summary(edgevit.derive(method=of, **request).model)


def summary(model: Any) -> dict[str, Any]:
    spec, shape = model.spec, (1, *model.preprocessing["input_size"])
    image = (torch.arange(math.prod(shape)) % 97 / 48 - 1).reshape(shape)
    with torch.inference_mode():
        answers = [round(logit, 5) for logit in model(image)[0].tolist()]
    return {
        "weights": tensors_sha256(model.state_dict()),
        "blocks": [[b.heads, b.qk, b.vo, b.ffn] for b in spec.blocks],
        "tokens": [b.tokens for b in spec.blocks],
        "embed": model.geometry.embed,
        "macs": spec.macs,
        "params": spec.params,
        "answers": answers,
    }


def written(environment: Mapping[str, str], cases: Mapping[str, Any]) -> str:
    """Format the record with one line for each case."""
    lines = ",\n".join(f"  {json.dumps(case)}: {json.dumps(result)}" for case, result in cases.items())
    return f'{{"made_with": {json.dumps(environment)},\n "cases": {{\n{lines}\n}}}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the record instead of writing it")
    parser.add_argument("--base", choices=BASES, help="derive from this base alone; with --check or --record")
    parser.add_argument("--method", choices=METHODS, action="append", help="by this method alone; repeatable")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    if (options.base or options.method) and not options.check and options.record == RECORD:
        parser.error("--base and --method are for --check, or for a record elsewhere: this one holds all cases")
    torch.set_num_threads(1)
    machine = {
        "torch": torch.__version__, "timm": timm.__version__, "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    record = json.loads(options.record.read_text()) if options.check else {}
    if options.check and record["made_with"] != machine:
        sys.exit(
            f"the record was made with {record['made_with']}, and this is {machine}: write it anew with the older code"
        )
    results, differing = {}, 0
    with tempfile.TemporaryDirectory() as scratch:
        for case, result in cases(
            Path(scratch), [options.base] if options.base else list(BASES), options.method or [*METHODS]
        ):
            results[case] = result
            if options.check and (names := differences(result, record["cases"].get(case))):
                differing += 1
                print(f"{case}: {names}", flush=True)
    if options.check:
        print(f"{len(results)} cases, {differing} differ")
        sys.exit(1 if differing else 0)
    options.record.write_text(written(machine, results))


def differences(result: Mapping[str, Any], recorded: Mapping[str, Any] | None) -> list[str]:
    if recorded is None:
        return ["not in the record"]
    return [name for name in recorded if result[name] != recorded[name]]


if __name__ == "__main__":
    main()
