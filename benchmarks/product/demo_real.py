"""The demo on a real backbone: `make demo-real`.

Downloads DINOv2 ViT-S/14 and the pictures of real.py by name, once, and types what a user types: a base with a fitted
head for twelve kinds of drawn things, trained on them, a sweep over rates, the chosen model distilled, exported, and
measured in turns. The model is distilled on 300 further pictures without labels, too.
The pictures of one of five folds are tested, and those of the others are for training. Images are of 112 px.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.product import demo
from benchmarks.product.real import CLASSES, SIZE, TIMM_NAME, ensure_fold, ensure_pictures, ensure_weights

FOLD = 0
RATES = "0.3,0.5,0.7"
TRAINING = "--steps 100 --batch-size 32 --lr 1e-5 --augment flip"
# The teacher and its tokens alone, on mirrored pictures: 400 pictures cannot teach labels (RECIPE of real.py).
DISTIL = "--steps 150 --batch-size 64 --teacher-weight 1 --token-weight 10 --augment flip --clip-norm 1"


def main() -> None:
    root, started = demo.new_root(__doc__, Path("demo-real")), time.monotonic()
    weights, data, base = ensure_weights(), ensure_fold(FOLD), root / "base"
    opened = f"--model-arg img_size={SIZE} --crop-pct 1"
    demo.edgevit(f"base {TIMM_NAME} --checkpoint {weights} {opened} --data {data} {TRAINING} --out {base}")
    distil = f"{DISTIL} --unlabelled {ensure_pictures() / 'unlabelled'}"
    rows = demo.compare_models(f"{base} --data {data}", RATES, distil, root)
    took = demo.write_record(root, rows, started)
    demo.print_table(rows, f"DINOv2 ViT-S/14 at {SIZE} px, {len(CLASSES)} kinds of drawn animals, food and plants")
    print(f"Everything is in {root}/; a browser shows {root}/report.html.\n\n{took}")


if __name__ == "__main__":
    main()
