"""Assumptions about a base: which output is which class, how images are preprocessed, and its accuracy on the task.

They are reported with their origin before the work begins, and recorded with the result.
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
from edgevit.records.model import reads_texts
from edgevit.records.release import ReleaseFacts, is_release

ClassesFrom = Literal["option", "model folder", "fitted head", "imagenet", "folders", "data", "config.json"]
_ORDER: dict[ClassesFrom, str] = {
    "option": "as --base-classes says",
    "model folder": "as the model folder says",
    "config.json": "as config.json beside the weights says",
    "fitted head": "as the head was fitted",
    "imagenet": "as in ImageNet's own list",
    "folders": "assumed from the alphabet of the data's folders: {option} gives another order",
    "data": "assumed from the data's own order: {option} gives another",
}
_SettingsFrom = Literal["model folder", "pretrained weights", "timm"]
_SETTINGS: dict[str, str] = {
    "option": "given",
    "config.json": "as config.json beside the weights says",
    "preprocessor_config.json": "as preprocessor_config.json beside the weights says",
    "processor_config.json": "as processor_config.json beside the weights says",
    "torchvision": "usual of torchvision's weights",
    "model folder": "as the model folder says",
    "detector": "as the detector takes pictures",
    "pretrained weights": "those of timm's weights for {base}",
    "timm": "assumed, as timm's defaults for {base}",
}
# Parts of the preprocessing that are shown, which options can give.
_SHOWN = ("crop_pct", "interpolation", "mean", "std")
CHECK = "check the order of its outputs (--base-classes) and its preprocessing (--mean, --std, --crop-pct)"
_NAMED = 5  # classes in a line


@dataclass(frozen=True)
class Assumptions:
    """Which output is which class, which preprocessing, and where each comes from."""

    classes: tuple[tuple[str, int], ...]  # pairs of a target class and its output
    outputs: int
    output_names: tuple[str, ...] | None  # names of all outputs, in order; None: those of ImageNet
    classes_from: ClassesFrom
    preprocessing: Mapping[str, Any]
    origin: Mapping[str, str]  # where each shown part of the preprocessing comes from, one of SETTINGS
    base: str
    contradicts: bool = False  # whether an option and a file beside the weights name the outputs differently

    @property
    def order_assumed(self) -> bool:
        """Whether neither an option nor a file gives the order of the outputs."""
        return self.classes_from in ("folders", "data")

    @property
    def preprocessing_assumed(self) -> bool:
        """Whether the base may have been trained with other preprocessing; a head that is fitted here was not."""
        return self.classes_from != "fitted head" and {*self.origin.values()} != {"model folder"}

    def lines(self) -> list[str]:
        """Describe them for a person."""
        preprocessing = f"preprocessing: {self._preprocessing_line()}"
        if not self.classes:
            return [preprocessing]
        order = order_line(self.classes, self.outputs, self.classes_from)
        return [
            f"{order}, and config.json beside the weights names them otherwise" if self.contradicts else order,
            preprocessing,
        ]

    def _preprocessing_line(self) -> str:
        if reads_texts(self.preprocessing):
            return f"texts of {self.preprocessing['input_size'][0]} tokens, by the tokenizer beside the weights"
        parts: dict[str, list[str]] = {}
        for key in _SHOWN:
            parts.setdefault(self.origin[key], []).append(f"{key} {shown(self.preprocessing[key])}")
        ordered = sorted(parts.items(), key=lambda part: list(_SETTINGS).index(part[0]))
        return "; ".join(f"{', '.join(texts)}, {_SETTINGS[origin].format(base=self.base)}" for origin, texts in ordered)

    def record(self, base_check: BaseCheckRecord | None = None) -> AssumptionsRecord:
        """Make the record for derivation.json."""
        return AssumptionsRecord(self.classes_from, self.output_names, dict(self.origin), base_check)


def order_line(
    classes: Sequence[tuple[str, int]], outputs: int, origin: ClassesFrom, option: str = "--base-classes FILE"
) -> str:
    """Describe which output is which class, and name the `option` that changes an assumed order."""
    named = ", ".join(f"{name} is output {index}" for name, index in classes[:_NAMED])
    more = f" and {len(classes) - _NAMED} more" if len(classes) > _NAMED else ""
    return f"classes: {named}{more} of {outputs} outputs, {_ORDER[origin].format(option=option)}"


def shown(value: Any) -> str:
    """Format a preprocessing setting as its option takes it: 0.9, or 0.485,0.456,0.406, or 0.5 if all are equal."""
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
    overridden: Collection[str],
    fitted: bool = False,
    release: ReleaseFacts | None = None,
) -> Assumptions:
    """Gather the assumptions about a base, a timm name or a model folder, on this task.

    Args:
        pretrained, base_classes: the options.
        overridden: keys of the preprocessing that options set.
        fitted: whether the base had no head, and one was fitted to the task's classes.
        release: facts from the files beside its weights.
    """
    source, arguments = task.test.source, task.arguments
    names, outputs = arguments["base_names"], arguments["base_outputs"]
    origin: ClassesFrom = "fitted head" if fitted else "option" if base_classes else "model folder"
    release = release or ReleaseFacts()
    if origin == "model folder" and release.labels and names == list(release.labels):
        origin = "config.json"
    settings: _SettingsFrom = "pretrained weights" if pretrained else "timm"
    if Path(base).is_dir() and not is_release(Path(base)):
        settings = "model folder"
    shown_keys = [key for key in _SHOWN if key in task.test.preprocessing]
    by_file = {key: release.origin.get(key, settings) for key in shown_keys}
    if names is None and folders_are_imagenet(source.class_names, outputs):
        origin = "imagenet"
    elif names is None and task.classes:
        origin, names = "folders" if source.files else "data", source.class_names
    return Assumptions(
        classes=tuple((c.name, c.base_index) for c in task.classes),
        outputs=outputs,
        output_names=None if names is None else tuple(names),
        classes_from=origin,
        preprocessing=task.test.preprocessing,
        origin={key: "option" if key in overridden else by_file[key] for key in shown_keys},
        base=f"the network in {base}" if ".py:" in str(base) else str(base),
        contradicts=origin == "option" and bool(release.labels) and list(names or ()) != list(release.labels),
    )


@dataclass(frozen=True)
class Sureness:
    """How many images a base classifies correctly, among all outputs and among the target classes."""

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

    def text(self) -> str:
        right = f"right on {self.full / self.images:.1%} of {self.images} {self.part} images"
        if self.outputs == self.classes:
            return f"{right}, where chance is {1 / self.classes:.1%}"
        return (
            f"{right} among all "
            f"{self.outputs} outputs and on {self.restricted / self.images:.1%} among the {self.classes} classes, "
            f"where chance is {1 / self.outputs:.1%} and {1 / self.classes:.1%}"
        )
