"""Derived models and their base on images of another distribution: ImageNet-V2 and ImageNet-R (Vulcan's Table 12).

    python -m benchmarks.papers.imagenet_shifts runs/t1_0.6 runs/t1_0.8 --data imagenetv2-matched-frequency-format-val \
        imagenet-r --base deit_base_patch16_224 --checkpoint FILE

All images of the sub-task's classes are judged. ImageNet-V2 calls its folders 0 to 999: a number is the output of the
base. ImageNet-R has folders by WordNet id, as ImageNet has, and 200 of the 1000 classes: the table says how many of the
sub-task's classes it has. Models answer with a class of their sub-task. The base is judged with its full head, as in
the paper, and restricted to the sub-task. The paper's base has 0 to 2.4 % there, which a wrong order of folders
explains.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import edgevit
from benchmarks.markdown import table
from benchmarks.sources import add_device, open_base, predictor, refusals
from edgevit.data.sources import ImageSource, open_source
from edgevit.data.task import Split
from edgevit.errors import DataError, OptionError
from edgevit.network.accuracy import Accuracy, measure_accuracy
from edgevit.network.model import Model
from edgevit.network.output import Logits

BATCH = 64


def folders_of(model: Model, source: ImageSource, data: Path) -> dict[str, str]:
    """Map the model's classes to the folders of `data` that have their images.

    Raises:
        DataError: it has none of them.
    """
    available = set(source.class_names)
    by_number = all(name.isdecimal() for name in available)
    found = {c.name: str(c.base_index) if by_number else c.name for c in model.spec.classes}
    found = {name: folder for name, folder in found.items() if folder in available}
    if not found:
        raise DataError(
            f"{data} has no folder of the model's classes, such as {model.spec.class_names[0]!r}; give a folder of "
            "class folders by these names, or by the numbers of the base's outputs"
        )
    return found


def judged(
    network: Model,
    source: ImageSource,
    folders: Mapping[str, str],
    names: Sequence[str],
    columns: Sequence[int],
    device: str,
) -> Accuracy:
    """Measure a network on all images of these folders; `columns` are those of the sub-task's classes `names`."""
    labelled = [(r, names.index(name)) for name, folder in folders.items() for r in source.references("train", folder)]
    references, labels = zip(*labelled, strict=True)
    images = Split(source, references, labels, network.preprocessing)
    return measure_accuracy(predictor(network, device), images.batches(BATCH), Logits(tuple(columns)), names)


def lines_of(models: Sequence[Path], data: Path, base: Model | None, device: str) -> list[list[str]]:
    """The rows of a table: each model on one data set, and the base with the classes of the first."""
    source, lines = open_source(str(data)), []
    for i, folder in enumerate(models):
        model = edgevit.load(folder)
        names = model.spec.class_names
        folders = folders_of(model, source, data)
        of = f"{data.name}, {len(folders)} of {len(names)} classes"
        if i == 0 and base is not None:
            columns = [c.base_index for c in model.spec.classes]
            if max(columns) >= base.spec.outputs:
                raise OptionError(
                    f"the base has {base.spec.outputs} outputs, and {folder} is of output {max(columns)}; give its base"
                )
            found = judged(base, source, folders, names, columns, device)
            lines.append(["base", of, str(found.images), f"{100 * found.top1_full:.2f}", f"{100 * found.top1:.2f}"])
        found = judged(model, source, folders, names, model.spec.class_columns, device)
        lines.append([folder.name, of, str(found.images), "", f"{100 * found.top1:.2f}"])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="model folders of one sub-task")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="folders of class folders")
    parser.add_argument("--base", help="their base: a timm name or a model folder")
    parser.add_argument("--checkpoint", type=Path, help="weights of --base")
    add_device(parser)
    options = parser.parse_args()
    with refusals():
        base = None if options.base is None else open_base(options.base, checkpoint=options.checkpoint)
        lines = [line for data in options.data for line in lines_of(options.models, data, base, options.device)]
    print(table(["model", "images", "number", "full head, %", "restricted, %"], lines))


if __name__ == "__main__":
    main()
