"""Resolve target classes, given by name, by index in the base or by a file, to the base's outputs."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path

from edgevit.agent.files import open_regular
from edgevit.errors import DataError, UnknownNameError
from edgevit.records.class_names import class_name
from edgevit.records.model import TargetClass

LIMIT_BYTES = 16 << 20  # largest file of class names; those of ImageNet-22k take 1 MB
# An entry of a line: in double quotes (with "" for one), or up to the next comma; then a comma, a comment or the end.
_QUOTED = r'\s*(?:"((?:[^"]|"")*)"|'
_TEXT = re.compile(_QUOTED + r"([^,]*?))\s*(,|$)")
_LINE = re.compile(_QUOTED + r"((?:[^,#]|(?<=\S)#)*?))\s*(,|(?:(?<!\S)#.*)?$)")


def listed(classes: str | Path | Sequence[str | int] | None, names: Collection[str] = ()) -> list[str] | None:
    """Turn an option into a list of entries: from a file, a comma-separated text, or a list; None means all classes.

    In a file, entries are separated by lines and commas, and `#` at a line's start or after a space begins a comment.
    A name that has a comma is one entry if it is in double quotes ("crane, bird"), or if it is a whole line and among
    the `names`.

    Raises:
        DataError: the file is missing, empty or no text.
    """
    if classes is None:
        return None
    if not isinstance(classes, (str, Path)):
        return [class_name(str(entry)) for entry in classes]
    text = str(classes)
    if os.path.isfile(text):  # not Path.is_file, which raises on a list too long for a file name
        lines = _read_text(Path(text)).splitlines()
        entries = [entry for line in lines for entry in _entries(line, _LINE, names)]
    elif stat.S_IFMT(_mode(text)) not in (0, stat.S_IFDIR):
        raise DataError(f"{text} is a pipe or a device; expected a text file of classes: write them to a file first")
    elif text.endswith((".txt", ".csv")) or isinstance(classes, Path):
        raise DataError(f"no class file at {text}; check the path")
    else:
        entries = _entries(class_name(text), _TEXT, names)
    if not entries:
        raise DataError(f"{text!r} lists no classes; give names or indices, one per line or separated by commas")
    return entries


def _mode(path: str) -> int:
    """Return the mode of the file at this path; 0 if there is none."""
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):  # nothing, or a list of classes: too long for a name, or with a null character
        return 0


def _entries(line: str, entry: re.Pattern[str], names: Collection[str]) -> list[str]:
    """Parse the entries of one line."""
    whole = line.strip()
    if whole in names or (whole := _uncommented(line)) in names:
        return [whole]
    texts = [m[1].replace('""', '"') if m[1] is not None else m[2] for m in entry.finditer(line)]
    return [text.strip() for text in texts if text.strip()]


def _uncommented(line: str) -> str:
    return re.split(r"(?<!\S)#", line, maxsplit=1)[0].strip()


def base_list(names: str | Path | Sequence[str] | None, data_names: Collection[str], outputs: int) -> list[str] | None:
    """Read the base's class names from an option, one for each output.

    In a file with as many lines as outputs, each line is one name, with or without commas ("tench, Tinca tinca").
    """
    entries = listed(names, data_names)
    if entries is not None and len(entries) != outputs and isinstance(names, (str, Path)) and os.path.isfile(names):
        lines = [text for line in _read_text(Path(names)).splitlines() if (text := _uncommented(line))]
        return lines if len(lines) == outputs else entries
    return entries


def _read_text(file: Path) -> str:
    try:
        with TextIOWrapper(open_regular(str(file)), encoding="utf-8-sig") as opened:
            text = opened.read(LIMIT_BYTES + 1)  # Windows editors put a mark before the first class
        if len(text) > LIMIT_BYTES:
            raise DataError(f"{file} has more than {LIMIT_BYTES / 1e6:.0f} MB; expected plain text, one class per line")
        return class_name(text)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the class file {file}: {error}; expected plain text, one class per line"
        ) from error


def imagenet_names(outputs: int) -> dict[str, int]:
    """Map synsets and first lemmas to indices, for a classifier of ImageNet's size; empty for any other size."""
    from timm.data import ImageNetInfo

    subsets = {1000: "imagenet-1k", 11221: "imagenet-21k-miil", 21841: "imagenet-22k"}
    if outputs not in subsets:
        return {}
    info = ImageNetInfo(subsets[outputs])
    synsets = info.label_names()
    lemmas = [str(text).split(",")[0].strip() for text in info.label_descriptions(detailed=False)]
    named = {lemma: i for i, lemma in enumerate(lemmas) if lemmas.count(lemma) == 1} if outputs == 1000 else {}
    return {**named, **{synset: i for i, synset in enumerate(synsets)}}


def base_order(data_names: Sequence[str], base_names: Sequence[str] | None, outputs: int) -> Mapping[str, int]:
    """Map each name of a class to its index in the base.

    The order comes from the base (a model folder, or a list from the user), from the data if it has as many classes as
    the base, in sorted order, or from ImageNet's own list.

    Raises:
        DataError: the order of the base's outputs is unknown, or two outputs have one name.
    """
    if base_names is not None:
        if len(base_names) != outputs:
            raise DataError(
                f"{len(base_names)} base class names for a base of {outputs} outputs; give one per output, "
                f"and a name that holds a comma in double quotes"
            )
        _refuse_twins(base_names)
        return {name: i for i, name in enumerate(base_names)}
    if folders_are_imagenet(data_names, outputs):
        return imagenet_names(outputs)
    if len(data_names) == outputs:
        return {name: i for i, name in enumerate(data_names)}
    raise DataError(
        f"the data has {len(data_names)} classes ({_first(data_names)}) and the base {outputs} outputs, "
        f"so it is not known which output is which class; give the base's class names in order with --base-classes "
        f"FILE, or --new-head if it does not know these classes"
    )


def label_names(
    labels: Sequence[str], data_names: Sequence[str], outputs: int, *, whole: bool = True
) -> list[str] | None:
    """Name a base's outputs by the labels in a file beside its weights; None: they are ImageNet's, or there are none.

    Args:
        whole: whether all classes of the data are requested, so that each must have a label.

    Raises:
        DataError: there is not one label for each output, or a class of the data has no label.
    """
    if not labels or _are_imagenets(labels, outputs):
        return None
    if len(labels) != outputs:
        raise DataError(
            f"config.json beside the weights names {len(labels)} outputs ({_first(labels)}), and the base has "
            f"{outputs}; move it away if it is of other weights, or give --base-classes FILE"
        )
    unknown = [name for name in data_names if name not in labels]
    if unknown and whole:
        raise DataError(
            f"config.json beside the weights names the outputs {_first(labels)}, and the data has other classes: "
            f"{_first(unknown)}; rename those folders, choose among the rest with --classes, or give the names of the "
            f"outputs with --base-classes FILE"
        )
    _refuse_twins(labels)
    return list(labels)


def _are_imagenets(labels: Sequence[str], outputs: int) -> bool:
    """Tell whether labels are ImageNet's synsets or words in its own order; some words differ between lists."""
    indices = imagenet_names(outputs)
    if not indices or len(labels) != outputs:
        return False
    return sum(indices.get(text.split(",")[0].strip()) == i for i, text in enumerate(labels)) > 0.9 * outputs


def folders_are_imagenet(data_names: Sequence[str], outputs: int) -> bool:
    """Tell whether all classes are in ImageNet's own list, and in its order if there are as many."""
    indices = imagenet_names(outputs)
    if len(data_names) == outputs:
        return bool(indices) and all(indices.get(name) == i for i, name in enumerate(data_names))
    return bool(indices) and all(name in indices for name in data_names)


def _refuse_twins(base_names: Sequence[str]) -> None:
    for name, count in Counter(base_names).items():
        if count > 1:
            outputs = " and ".join(str(i) for i, label in enumerate(base_names) if label == name)
            raise DataError(
                f"the base's class names give {name!r} to outputs {outputs}, so it is not known which one is meant; "
                f"rename all but one of them, such as {f'{name} 2'!r}, in the list and among the data's folders"
            )


def resolve(
    entries: Sequence[str] | None, data_names: Sequence[str], order: Mapping[str, int]
) -> tuple[TargetClass, ...]:
    """Find each entry among the data's classes and the base's outputs, in the order of the entries.

    An entry is a name if there is such a name, else an index. If names are numbers, an entry is always a name.

    Raises:
        UnknownNameError: no such class; the message offers the nearest names.
        DataError: a class is listed twice or has no images, there are fewer than two, an entry is a part of a name that
            has a comma, or names are numbers and an entry is not one of them.
    """
    by_index = {order[name]: name for name in data_names if name in order}
    numbers = [name for name in data_names if name.isdecimal()] or [name for name in order if name.isdecimal()]
    targets: list[TargetClass] = []
    for entry in entries if entries is not None else [n for n in data_names if n in order]:
        if entry in order:
            index = order[entry]
        elif entry.isdecimal() and numbers:
            raise DataError(
                f"no class is named {_short(entry)}, and where names are numbers ({', '.join(numbers[:4])}"
                f"{' ...' if len(numbers) > 4 else ''}) indices are not taken; give names alone"
            )
        elif entry.isdecimal() and len(entry) < 10 and int(entry) in by_index:
            index = int(entry)
        elif entry.isdecimal():
            raise DataError(
                f"no class with index {_short(entry)}: the base's classes that have images are {_span(by_index)}"
            )
        else:
            refuse_part_of_a_name(entry, order)
            raise UnknownNameError("class", entry, list(order))
        if index not in by_index:
            raise DataError(f"class {entry!r} has no images in the data; add a folder of that name, or leave it out")
        targets.append(TargetClass(by_index[index], index))
    if entries is None and not targets:
        raise DataError(
            f"none of the data's classes ({_first(data_names)}) is among the base's ({_first(list(order))}); "
            f"check the folder, or give its classes the base's names"
        )
    names = [target.name for target in targets]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"class {twice[0]!r} is listed twice; list each class once")
    if len(targets) < 2:
        raise DataError(
            f"{len(targets)} target class: a classifier needs two or more; add one, or a class of everything else"
        )
    return tuple(targets)


def refuse_part_of_a_name(entry: str, names: Iterable[str]) -> None:
    """Raise DataError if an entry is a part of a name with a comma, which was given without quotes."""
    if parted := [name for name in names if "," in name and entry in map(str.strip, name.split(","))]:
        raise DataError(
            f"no class {entry!r}; put a name that holds a comma in double quotes, as in --classes '\"{parted[0]}\"'"
        )


def refuse_unnamed(data_names: Sequence[str], order: Mapping[str, int]) -> None:
    """Raise DataError if the base names some of the data's classes and not all; for tasks of all classes."""
    unnamed = [name for name in data_names if name not in order]
    if not unnamed or len(unnamed) == len(data_names):  # `resolve` refuses data of which no class is named
        return
    nearest = get_close_matches(unnamed[0], [name for name in order if name not in data_names], n=1)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    count = "1 class" if len(unnamed) == 1 else f"{len(unnamed)} classes"
    raise DataError(
        f"the base does not name {count} of the data: {_first(unnamed)}{hint}; rename folders to the base's names, "
        "or list the classes to use with --classes"
    )


def _first(names: Sequence[str]) -> str:
    return f"{', '.join(map(repr, names[:4]))}{' ...' if len(names) > 4 else ''}"


def _short(entry: str) -> str:
    return entry if len(entry) < 20 else f"of {len(entry)} digits"


def _span(indices: Mapping[int, str]) -> str:
    ordered = sorted(indices)
    whole = ordered == list(range(ordered[0], ordered[-1] + 1)) if ordered else False
    return f"{ordered[0]} to {ordered[-1]}" if whole else ", ".join(map(str, ordered[:20]))
