"""Decide what may share an axis: accuracies of one task and base, and latencies of one place.

A task is a set of classes, images, split and seed. A base is a set of weights with its preprocessing and the output of
each class, or its features; its models are judged against it alone. A place is one machine in one state (`comparable`
in agent/records.py, or runs of one session) at one batch size, number of streams and use. Each combination has its own
plot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edgevit.agent.records import CLOSED_LOOP, Run
from edgevit.records.derivation import DataRecord
from edgevit.records.model import ModelSpec
from edgevit.reporting.gather import GatheredModel

_NAMED = 6  # classes in a title, or outputs of them
_OF_WEIGHTS = 6  # digits of a hash, which tell two bases apart
# What a place is called by, as far as its runs have it: the first of each group.
_CALLED = (("module", "board", "gpu", "cpu", "machine"), ("power_mode",), ("tensorrt", "onnxruntime"), ("clocks",))
_RUNTIMES = {"tensorrt": "TensorRT", "onnxruntime": "ONNX Runtime"}
_CLOCKS = {"locked": "clocks locked"}


@dataclass(frozen=True)
class BaseIdentity:
    """The identity of a base."""

    name: str  # timm's name of the base
    weights_sha256: str
    preprocessing: tuple[tuple[str, str], ...]  # settings in words, as pairs of name and value
    outputs: frozenset[tuple[str, int]]  # pairs of a named class and the index of its output
    features: str = ""  # its features in words, of which tokens and after which blocks; empty: it puts out others

    @classmethod
    def of(cls, document: ModelSpec) -> BaseIdentity:
        settings = tuple(sorted((name, str(value)) for name, value in document.preprocessing.items()))
        outputs = frozenset((c.name, c.base_index) for c in document.classes)
        features = document.output_text if document.output_kind == "features" else ""
        if features and not document.depths:
            features += f" after block {len(document.base.blocks)}"
        return cls(document.timm_name, document.base.weights_sha256, settings, outputs, features)

    def is_of(self, base: BaseIdentity) -> bool:
        """Whether both are the same base; `base` may name fewer classes, or none."""
        names = {name for name, _ in self.outputs} & {name for name, _ in base.outputs}
        outputs, of_other = ({pair for pair in each.outputs if pair[0] in names} for each in (self, base))
        return (self.weights_sha256, self.preprocessing, self.features, outputs) == (
            base.weights_sha256, base.preprocessing, base.features, of_other
        )  # fmt: skip

    @property
    def words(self) -> list[str]:
        outputs = ", ".join(str(index) for _, index in sorted(self.outputs)[:_NAMED])
        more = ", ..." if len(self.outputs) > _NAMED else ""
        settings = [f"{name.replace('_', ' ')} {value}" for name, value in self.preprocessing]
        weights = f"weights {self.weights_sha256[:_OF_WEIGHTS]}"
        return [self.name, *settings, *filter(None, [self.features]), f"outputs {outputs}{more}", weights]

    def difference(self, bases: Sequence[BaseIdentity]) -> str:
        """Describe how this base differs from others: name, settings, outputs, or the hash of its weights."""
        common = set.intersection(set(self.words), *(set(base.words) for base in bases))
        *words, weights = [word for word in self.words if word not in common or word == self.words[-1]]
        is_enough = words and not any(set(words) <= set(base.words) for base in bases if base != self)
        if weights in common or is_enough:
            return ", ".join(words)
        return ", ".join([*words, weights])


@dataclass(frozen=True)
class AccuracyTask:
    """The classes and images of accuracies, and the base to compare with."""

    classes: tuple[str, ...]
    data: DataRecord | None  # record of the images; None: no images are known
    # Base of the models; None: they have none, because edgevit did not derive them or they are bases.
    base: BaseIdentity | None = None

    @property
    def images_key(self) -> tuple[object, ...]:
        """A key that models judged on the same images share."""
        if self.data is None:
            return (tuple(sorted(self.classes)),)
        return (tuple(sorted(self.classes)), self.data.images_sha256, self.data.seed)

    @property
    def key(self) -> tuple[object, ...]:
        """A key that models of the same base share that were judged on the same images."""
        return (*self.images_key, self.base)

    @property
    def title(self) -> str:
        if not self.classes:
            return "no named classes"
        more = f", and {len(self.classes) - _NAMED} more" if len(self.classes) > _NAMED else ""
        return f"{len(self.classes)} classes: {', '.join(self.classes[:_NAMED])}{more}"

    @property
    def images(self) -> str:
        if self.data is None:
            return "no images"
        return f"{self.data.images.test} test images of {Path(self.data.data).name}, seed {self.data.seed}"


@dataclass(frozen=True)
class LatencyPlace:
    """Where and how latencies were measured, and the runs of it."""

    title: str
    environment: dict[str, str]
    batch: int
    streams: int
    use: str
    runs: tuple[Run, ...]

    def runs_of(self, files: Iterable[str]) -> list[Run]:
        """The runs of files with these hashes, in the order of `runs`."""
        numbered = [pair for digest in files for pair in self._by_file.get(digest, ())]
        return [run for _, run in sorted(numbered, key=lambda pair: pair[0])]

    @cached_property
    def _by_file(self) -> dict[str, list[tuple[int, Run]]]:
        by_file: dict[str, list[tuple[int, Run]]] = {}
        for pair in enumerate(self.runs):
            by_file.setdefault(pair[1].model_sha256, []).append(pair)
        return by_file

    @cached_property
    def file_names(self) -> frozenset[str]:
        """What the files are called that were measured."""
        return frozenset(run.model for run in self.runs)


def task_of(model: GatheredModel) -> AccuracyTask:
    """The classes and images that a model's accuracy was measured on."""
    data = model.derivation.data if model.derivation is not None else None
    if model.imported is not None:
        data = model.imported.data
    return AccuracyTask(model.class_names, data, None if model.document is None else BaseIdentity.of(model.document))


def places(runs: Iterable[Run]) -> list[LatencyPlace]:
    """Group runs by place, those with most models first."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    by_session: dict[tuple[object, ...], tuple[object, ...]] = {}
    for run in runs:
        use = (run.batch, run.streams, run.use())
        key: tuple[object, ...] = (tuple(sorted(run.environment.items())), *use)
        if run.session is not None:
            key = by_session.setdefault((run.session, *use), key)
        groups.setdefault(key, []).append(run)
    ordered = sorted(groups.values(), key=lambda group: (-len({run.model_sha256 for run in group}), group[0].batch))
    return [
        LatencyPlace(
            title, members[0].environment, members[0].batch, members[0].streams, members[0].use(), tuple(members)
        )
        for members, title in zip(ordered, _titles([members[0] for members in ordered]), strict=True)
    ]


def apart(places: Sequence[LatencyPlace]) -> list[str]:
    """List the differences between places, such as "power_mode (15W, MAXN)"."""
    differences = []
    names = sorted({name for place in places for name in place.environment})
    for name in names:
        values = list(dict.fromkeys(place.environment.get(name, "unknown") for place in places))
        if len(values) > 1:
            differences.append(f"{name.replace('_', ' ')} ({', '.join(values)})")
    for name in ("batch", "streams", "use"):
        distinct = list(dict.fromkeys(str(getattr(place, name)) for place in places))
        if len(distinct) > 1:
            differences.append(f"{name} ({', '.join(distinct)})")
    return differences


def apart_tasks(tasks: Sequence[AccuracyTask]) -> list[str]:
    """List the differences between tasks."""
    differences = []
    if len({tuple(sorted(task.classes)) for task in tasks}) > 1:
        differences.append("classes")
    data = [task.data for task in tasks if task.data is not None]
    seeds = list(dict.fromkeys(str(data_set.seed) for data_set in data))
    if len(seeds) > 1:
        differences.append(f"seed ({', '.join(seeds)}), which splits the images")
    if len({data_set.images_sha256 for data_set in data}) > 1:
        differences.append("images")
    return differences


def _titles(firsts: Sequence[Run]) -> list[str]:
    """Name places; equal names are extended by all differences."""
    titles = [_title(run) for run in firsts]
    for title in {title for title in titles if titles.count(title) > 1}:
        equal = [i for i, text in enumerate(titles) if text == title]
        names = sorted({name for i in equal for name in firsts[i].environment})
        differing = [name for name in names if len({firsts[i].environment.get(name) for i in equal}) > 1]
        for i in equal:
            differing_values = ", ".join(
                f"{name.replace('_', ' ')} {firsts[i].environment.get(name, 'unknown')}" for name in differing
            )
            titles[i] = f"{title}, {differing_values}"
    return titles


def machine_name(environment: Mapping[str, str]) -> str:
    """Name a machine and its state."""
    words = []
    for group in _CALLED:
        name = next((name for name in group if environment.get(name)), None)
        if name is not None:
            value = environment[name]
            value = f"{_RUNTIMES[name]} {value}" if name in _RUNTIMES else value
            words.append(_CLOCKS.get(value, "") if name == "clocks" else value)
    return ", ".join(word for word in words if word)


def _title(run: Run) -> str:
    words = [machine_name(run.environment), f"batch {run.batch}"]
    words.append(f"{run.streams} streams" if run.streams > 1 else "")
    words.append("" if run.use() == CLOSED_LOOP else run.use())
    return ", ".join(word for word in words if word)
