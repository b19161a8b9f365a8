"""Detection on COCO2017, as Vulcan (Figure 7) and NuWa report it: person, car and cat; batch 8, learning rate 5e-5.

    python -m benchmarks.papers.coco COCO2017 --checkpoint mask_rcnn.pth --out runs/coco
    python -m benchmarks.papers.coco COCO2017 --checkpoint mask_rcnn.pth --out runs/coco --dry-run
    python -m benchmarks.papers.coco COCO2017 --checkpoint swin_tiny.pth --out runs/heads    # they begin at random
    python -m benchmarks.papers.coco COCO2017 --checkpoint swin_tiny.pth --out runs/fast \\
        --detector benchmarks/papers/coco_network.py:fast_rcnn

COCO2017 has annotations/instances_train2017.json, train2017/ and the same of val2017, on which all are judged. The base
is a Mask R-CNN on a pyramid of Swin-T (`coco_network.py`), or any FILE.py:FUNCTION given with --detector. Vulcan's is
a Fast R-CNN, whose proposals were made before; the one here judges a grid of boxes in their place, and finds less.
--checkpoint has the weights of the base by its own names, or those of its Swin alone, under timm's, Microsoft's or
mmdetection's names, whose heads then begin at random. The base is fine-tuned on the three classes first, as the second
baseline, and is cut after that where its heads were random. vulcan and nuwa then remove the rates of the MACs of the
backbone; what follows it stays. Rates that they cannot reach are told before anything is trained, and in the table.
--dry-run takes a few images of each part and two steps at the least of the rates, so that a path, a weight or a rate
that does not fit shows within minutes. What is done is not repeated. No result of it is recorded here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.markdown import Row, table
from benchmarks.papers import coco_network

CLASSES = ("person", "car", "cat")
RATES = (0.2, 0.4, 0.6, 0.8)
METHODS = ("vulcan", "nuwa")
SHAPE = "paper"  # removes 0.867 of the MACs of Swin-T at 800 px, `fused` 0.781
BATCH, LR, STEPS, SEED = 8, 5e-5, 5000, 1
DRY_IMAGES, DRY_STEPS = 80, 2
SETTINGS = ("data", "detector", "checkpoint", "classes", "steps", "batch_size", "lr")
DETECTOR = f"{coco_network.__file__}:mask_rcnn"


def check_settings(options: argparse.Namespace) -> None:
    """Refuse a folder that was begun with other settings, as its models would be shown for those of this run.

    Raises:
        OutputError: it is one.
    """
    from edgevit.errors import OutputError
    from edgevit.records.unfinished import differences, first_few

    settings, file = {name: str(getattr(options, name)) for name in SETTINGS}, options.out / "settings.json"
    if file.is_file() and (changed := differences(json.loads(file.read_text()), settings)):
        hint = "choose another --out, or remove it"
        raise OutputError(f"{options.out} was begun with other settings: {first_few(changed)}; {hint}")
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings))


def reduced(root: Path, out: Path, classes: Sequence[str], images: int) -> Path:
    """Write a folder with a few images of each part that show a class, as links; without it, if it exists."""
    if out.is_dir():
        return out
    (out / "annotations").mkdir(parents=True)
    for file in sorted((root / "annotations").glob("instances_*.json")):
        part, content = file.stem.removeprefix("instances_"), json.loads(file.read_text())
        chosen = {entry["id"] for entry in content["categories"] if entry["name"] in classes}
        shown = {entry["image_id"] for entry in content["annotations"] if entry["category_id"] in chosen}
        content["images"] = [entry for entry in content["images"] if entry["id"] in shown][:images]
        kept = {entry["id"] for entry in content["images"]}
        content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in kept]
        (out / "annotations" / file.name).write_text(json.dumps(content))
        (out / part).mkdir()
        folder = next(f for f in (root / part, root / "images" / part) if f.is_dir())
        for entry in content["images"]:
            (out / part / entry["file_name"]).symlink_to((folder / entry["file_name"]).resolve())
    return out


def _macs(base: Any, rate: float) -> float:
    """The MACs of backbone and pyramid that are left where so much of the backbone goes."""
    return float(base.spec.macs - rate * (base.spec.macs - base.geometry.head_macs))


def out_of_reach(base: Any, rate: float, method: str) -> str | None:
    """Say why a method cannot remove that share of a backbone's MACs; None: it can."""
    from edgevit.derivation.allocate.budget import make_budget
    from edgevit.derivation.allocate.policy import make_policy
    from edgevit.derivation.feasibility import Target
    from edgevit.derivation.method import find_method
    from edgevit.errors import BudgetError

    chosen, macs = find_method(method), base.spec.macs
    budget = make_budget(macs, base.spec.params, macs=_macs(base, rate))
    try:  # with any number of images, which are counted when they are read
        chosen.check(chosen.make_config({}), Target(base, budget, make_policy(SHAPE), sys.maxsize))
    except BudgetError as error:
        assert error.least is not None
        most = (macs - error.least) / (macs - base.geometry.head_macs)
        return f"{method} at {rate:g}: out of reach, as at most {most:.3f} of the backbone's MACs go in shape {SHAPE!r}"
    return None


def derive(options: argparse.Namespace, data: Path, base: Any, rate: float, method: str) -> Row:
    """Derive one detector, unless it is there; return what it, its base and the fine-tuned base find."""
    import edgevit
    from edgevit.records.model_folder import ModelFolder
    from edgevit.train.settings import Training

    folder = options.out / f"{method}-{rate:g}"
    if not folder.is_dir():
        settings = {"purification_steps": options.steps} if method == "nuwa" and options.dry_run else {}
        edgevit.derive(
            options.detector, checkpoint=options.checkpoint, data=data, classes=list(options.classes), output="boxes",
            method=method, macs=_macs(base, rate), shape=SHAPE, out=folder, options=settings,
            finetune_base=True, base_steps=options.steps,
            derive_from="finetuned" if base.spec.builder.backbone_alone else "base",
            training=Training(
                steps=options.steps if method == "vulcan" else 0, batch_size=options.batch_size, lr=options.lr,
                augment="flip", seed=SEED, device=options.device, evaluations=1,
            ),
        )  # fmt: skip
    record = ModelFolder(folder).derivation()
    assert record is not None and record.boxes is not None
    found = {"base": record.boxes.base, "base, fine-tuned": record.boxes.base_finetuned, method: record.boxes.derived}
    return {name: of for name, of in found.items() if of is not None}


def _line(rate: str, name: str, found: Any) -> list[str]:
    masks = "" if found.masks is None else f"{100 * found.masks.ap:.1f}"
    per_class = ["" if ap is None else f"{100 * ap:.1f}" for ap in found.boxes.per_class.values()]
    return [rate, name, f"{100 * found.boxes.ap:.1f}", masks, *per_class]


def run(options: argparse.Namespace) -> str:
    """Derive all detectors that are missing, and return the table.

    Raises:
        EdgeVitError: the data or the weights do not fit.
    """
    from edgevit.errors import DataError
    from edgevit.network.opening import open_network
    from edgevit.numbers import check_number

    data: Path = options.data
    for rate in options.rates:
        check_number("--rates", rate, "(0, 1)", "the papers have 0.2 to 0.8")
    if not (data / "annotations").is_dir():
        raise DataError(f"{data} has no annotations/, which COCO2017 has; unpack annotations_trainval2017.zip there")
    if options.dry_run:
        options.out, options.steps = options.out / "dry-run", DRY_STEPS  # its models are not those of the run
    check_settings(options)
    base: Any = open_network(options.detector, checkpoint=options.checkpoint)
    cases = list(product(sorted(options.rates), METHODS))
    reasons = {case: reason for case in cases if (reason := out_of_reach(base, *case))}
    for reason in reasons.values():
        print(reason, file=sys.stderr, flush=True)
    due = [case for case in cases if case not in reasons]
    if options.dry_run:
        data, due = reduced(data, options.out / "few", options.classes, DRY_IMAGES), due[: len(METHODS)]
    lines, classes = list[list[str]](), list[str]()
    for rate, method in due:
        for name, found in derive(options, data, base, rate, method).items():
            classes = [*found.boxes.per_class]
            line = _line(f"{rate:g}" if name == method else "0", name, found)
            lines += [] if line in lines else [line]
    lines += [[f"{rate:g}", method, "out of reach", "", *("" for _ in classes)] for rate, method in reasons]
    shown = table(["MACs gone", "method", "AP of boxes", "AP of masks", *classes], sorted(lines))
    return "\n".join([shown, *reasons.values()])


def main() -> None:
    from edgevit.errors import EdgeVitError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="COCO2017")
    parser.add_argument("--checkpoint", type=Path, required=True, help="weights of the whole detector, or of its Swin")
    parser.add_argument("--detector", default=DETECTOR, metavar="FILE.py:FUNCTION")
    parser.add_argument("--classes", type=lambda text: tuple(text.split(",")), default=CLASSES)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="shares of the backbone's MACs")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the fine-tuned base, and of vulcan")
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dry-run", action="store_true", help="a few images, two steps, all rates checked")
    parser.add_argument("--device", default="auto")
    try:
        print(run(parser.parse_args()))
    except EdgeVitError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
