"""What is taken for granted of a base: which output is which class, how its images are prepared, that it knows them.

All of it is said before the work begins, with where it comes from, and written beside the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edgevit.data.classes import folders_are_imagenet
from edgevit.data.neighbours import near_chance
from edgevit.data.task import Task
from edgevit.records.derivation import AssumptionsRecord, BaseCheckRecord
from edgevit.records.release import ReleaseFacts, is_release

ClassesFrom = Literal["option", "model folder", "fitted head", "imagenet", "folders", "data", "config.json"]
ORDER: dict[ClassesFrom, str] = {
    "option": "as --base-classes says",
    "model folder": "as the model folder says",
    "config.json": "as config.json beside the weights says",
    "fitted head": "as the head was fitted",
    "imagenet": "as in ImageNet's own list",
    "folders": "assumed from the alphabet of the data's folders: {option} gives another order",
    "data": "assumed from the data's own order: {option} gives another",
}
SettingsFrom = Literal["model folder", "pretrained weights", "timm"]
SETTINGS: dict[str, str] = {
    "option": "given",
    "config.json": "as config.json beside the weights says",
    "preprocessor_config.json": "as preprocessor_config.json beside the weights says",
    "torchvision": "usual of torchvision's weights",
    "model folder": "as the model folder says",
    "pretrained weights": "those of timm's weights for {base}",
    "timm": "assumed, as timm's defaults for {base}",
}
SHOWN = ("crop_pct", "interpolation", "mean", "std")  # of the preprocessing, and what an option can give
CHECK = "check the order of its outputs (--base-classes) and its preprocessing (--mean, --std, --crop-pct)"
NAMED = 5  # classes in a line


@dataclass(frozen=True)
class Assumptions:
    """Which output is which class, which preprocessing, and where each comes from."""

    classes: tuple[tuple[str, int], ...]  # each target class and its output
    outputs: int
    output_names: tuple[str, ...] | None  # of all outputs, in order; None: ImageNet's
    classes_from: ClassesFrom
    preprocessing: Mapping[str, Any]
    origin: Mapping[str, str]  # for each part of it that is shown, one of SETTINGS
    base: str
    contradicts: bool = False  # whether an option names the outputs otherwise than a file beside the weights

    @property
    def order_assumed(self) -> bool:
        """Whether nobody said in which order the outputs are."""
        return self.classes_from in ("folders", "data")

    def lines(self) -> list[str]:
        """What a person is told."""
        order = order_line(self.classes, self.outputs, self.classes_from)
        return [
            f"{order}, and config.json beside the weights names them otherwise" if self.contradicts else order,
            f"preprocessing: {self._preprocessing_line()}",
        ]

    def _preprocessing_line(self) -> str:
        parts: dict[str, list[str]] = {}
        for key in SHOWN:
            parts.setdefault(self.origin[key], []).append(f"{key} {shown(self.preprocessing[key])}")
        ordered = sorted(parts.items(), key=lambda part: list(SETTINGS).index(part[0]))
        return "; ".join(f"{', '.join(texts)}, {SETTINGS[origin].format(base=self.base)}" for origin, texts in ordered)

    def record(self, base_check: BaseCheckRecord | None = None) -> AssumptionsRecord:
        """What derivation.json says of it."""
        return AssumptionsRecord(self.classes_from, self.output_names, dict(self.origin), base_check)


def order_line(
    classes: Sequence[tuple[str, int]], outputs: int, origin: ClassesFrom, option: str = "--base-classes FILE"
) -> str:
    """What a person is told of which output is which class; `option` gives another order than one that is assumed."""
    named = ", ".join(f"{name} is output {index}" for name, index in classes[:NAMED])
    more = f" and {len(classes) - NAMED} more" if len(classes) > NAMED else ""
    return f"classes: {named}{more} of {outputs} outputs, {ORDER[origin].format(option=option)}"


def shown(value: Any) -> str:
    """A setting of the preprocessing as its option takes it: 0.9, or 0.485,0.456,0.406, or 0.5 for three alike."""
    if isinstance(value, (list, tuple)):
        texts = [f"{v:g}" for v in value]
        return texts[0] if len(set(texts)) == 1 else ",".join(texts)
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def assumptions(
    base: str | Path,
    task: Task,
    *,
    pretrained: bool,
    base_classes: object,
    given: Collection[str],
    fitted: bool = False,
    release: ReleaseFacts | None = None,
) -> Assumptions:
    """Gather what is assumed of a base, a timm name or a model folder, on this task.

    Args:
        pretrained, base_classes: as they were asked for.
        given: keys of the preprocessing that options gave.
        fitted: whether the base had no head, and was given one for the task's classes.
        release: what the files beside its weights say.
    """
    source, asked = task.test.source, task.arguments
    names, outputs = asked["base_names"], asked["base_outputs"]
    origin: ClassesFrom = "fitted head" if fitted else "option" if base_classes else "model folder"
    release = release or ReleaseFacts()
    if origin == "model folder" and release.labels and names == list(release.labels):
        origin = "config.json"
    settings: SettingsFrom = "pretrained weights" if pretrained else "timm"
    if Path(base).is_dir() and not is_release(Path(base)):
        settings = "model folder"
    by_file = {key: release.origin.get(key, settings) for key in SHOWN}
    if names is None and folders_are_imagenet(source.class_names, outputs):
        origin = "imagenet"
    elif names is None:
        origin, names = "folders" if source.files else "data", source.class_names
    return Assumptions(
        classes=tuple((c.name, c.base_index) for c in task.classes),
        outputs=outputs,
        output_names=None if names is None else tuple(names),
        classes_from=origin,
        preprocessing=task.test.preprocessing,
        origin={key: "option" if key in given else by_file[key] for key in SHOWN},
        base=str(base),
        contradicts=origin == "option" and bool(release.labels) and list(names or ()) != list(release.labels),
    )


@dataclass(frozen=True)
class Sureness:
    """How many images a base gets right, with every output in the running and among the target classes."""

    part: str
    images: int
    full: int
    restricted: int
    outputs: int
    classes: int

    @property
    def near_chance(self) -> bool:
        return near_chance(self.full, self.images, self.outputs) or near_chance(
            self.restricted, self.images, self.classes
        )

    def told(self) -> str:
        return (
            f"right on {self.full / self.images:.1%} of {self.images} {self.part} images among all "
            f"{self.outputs} outputs and on {self.restricted / self.images:.1%} among the {self.classes} classes, "
            f"where chance is {1 / self.outputs:.1%} and {1 / self.classes:.1%}"
        )
