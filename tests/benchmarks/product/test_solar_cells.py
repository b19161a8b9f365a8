"""Solar cells: those of one module are in one fold, and a defective cell is one that experts hold for defective."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from benchmarks.product import solar_cells

MODULE = 12  # cells, of a small package


def test_neighbours_of_one_kind_are_in_one_fold_and_each_fold_has_both_kinds() -> None:
    kinds = ["mono"] * 60 + ["poly"] * 120
    folds = solar_cells.folds_of(kinds)
    for start in range(0, len(kinds), MODULE):
        assert len(set(folds[start : start + MODULE])) == 1
    for fold in range(solar_cells.FOLDS):
        of_fold = [kind for kind, tested_in in zip(kinds, folds, strict=True) if tested_in == fold]
        assert of_fold == ["mono"] * 12 + ["poly"] * 24


def test_a_fold_tests_its_cells_and_trains_on_all_others(tmp_path: Path) -> None:
    certainties = ["0.0", "0.3333333333333333", "0.6666666666666666", "1.0"] * 15
    package = tmp_path / "real-cells"
    (package / "images").mkdir(parents=True)
    lines = [f"images/cell{i:04}.png  {share}   mono" for i, share in enumerate(certainties)]
    (package / "labels.csv").write_text("\n".join(lines) + "\n")
    for i in range(len(certainties)):
        Image.new("L", (300, 300), i).save(package / "images" / f"cell{i:04}.png")
    folder = solar_cells.ensure_fold(1, tmp_path)
    images = {part: sorted(file.name for file in (folder / part).rglob("*.png")) for part in ("train", "val")}
    assert images["val"] == [f"cell{i:04}.png" for i in range(MODULE, 2 * MODULE)]
    assert len(images["train"]) == len(certainties) - MODULE
    defective = sorted(int(file.stem[4:]) for file in (folder / "val" / "defective").iterdir())
    assert defective == [i for i in range(MODULE, 2 * MODULE) if i % 4 >= 2]
    with Image.open(folder / "val" / "defective" / "cell0014.png") as picture:
        assert picture.getpixel((0, 0)) == 14


@pytest.mark.parametrize("fold", range(solar_cells.FOLDS))
def test_no_fold_is_empty_with_the_runs_of_the_package(fold: int) -> None:
    runs = (60, 300, 180, 360, 714, 530, 72, 180, 48, 180)
    kinds = [("mono", "poly")[number % 2] for number, length in enumerate(runs) for _ in range(length)]
    assert 515 <= solar_cells.folds_of(kinds).count(fold) <= 535
