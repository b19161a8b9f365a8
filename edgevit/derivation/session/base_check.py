"""Check on validation images that the base knows its classes, with its preprocessing and with similar ones.

A base whose outputs are in another order than assumed, or that was trained with other preprocessing, still gives
outputs, and a derived model is only as good as these. So either stops the work, unless the user accepts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from edgevit.data.assumptions import CHECK, Assumptions, Sureness, shown
from edgevit.data.decoded import Decoded
from edgevit.data.neighbours import preprocessing_hint
from edgevit.data.task import Split, Task
from edgevit.derivation.request import BaseRequest, Deriving, Request
from edgevit.derivation.session.opening import Opened
from edgevit.derivation.session.start import TRAIN_FIRST
from edgevit.errors import DataError
from edgevit.network.network import Network
from edgevit.progress import Progress
from edgevit.records.derivation import BaseCheckRecord, NeighbourRecord
from edgevit.records.model import reads_texts
from edgevit.train.passes import Passes
from edgevit.train.products import multiplies_bf16

IMAGES = 300  # most validation images that are checked: a difference of 4 points in one direction shows
_NORMALISATIONS = ((IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD), ((0.5,) * 3, (0.5,) * 3), ((0.0,) * 3, (1.0,) * 3))
_LEAST_IMAGES = 5  # fewest images of a class from which the output that answers for it can be told
_AGREEING = 3  # fewest images of a class if one output answers all of them
_UNTAUGHT = (
    "its head was fitted to these images, so the order of its outputs is right, and its features do not tell the "
    "classes apart before they are trained"
)
_TRAIN = f"train it first: edgevit derive {TRAIN_FIRST}, or edgevit base --steps 100 with the same batches and rate"
_ACCEPT_WEAK, _ACCEPT_PREPROCESSING = "--accept-weak-base", "--accept-preprocessing"


@dataclass(frozen=True)
class Neighbour:
    """A preprocessing that differs from the assumed one, and its effect on the base."""

    option: str  # command-line options that select this preprocessing
    preprocessing: Mapping[str, Any]
    gained: int = 0  # number of images that are right with this preprocessing and wrong with the assumed one
    lost: int = 0  # number of images that are wrong with this preprocessing and right with the assumed one


def neighbours(preprocessing: Mapping[str, Any]) -> list[Neighbour]:
    """Other preprocessing that a base may have been trained with: another crop, or another normalisation."""
    if reads_texts(preprocessing):
        return []  # texts have no crop and no normalisation
    crop = 1.0 if preprocessing["crop_pct"] < 1 else 0.875
    neighbours = [Neighbour(f"--crop-pct {crop:g}", {**preprocessing, "crop_pct": crop})]
    now = (tuple(preprocessing["mean"]), tuple(preprocessing["std"]))
    for mean, std in _NORMALISATIONS:
        if (mean, std) != now:
            option = f"--mean {shown(mean)} --std {shown(std)}"
            neighbours.append(Neighbour(option, {**preprocessing, "mean": mean, "std": std}))
    return neighbours


@dataclass(frozen=True)
class Answers:
    """The base's outputs for validation images, and its accuracy under each neighbour."""

    split: Split
    full: tuple[int, ...]  # for each image, the index of its largest output
    restricted: tuple[int, ...]  # for each image, the position of its largest output among the target classes
    neighbours: tuple[Neighbour, ...]

    @property
    def right(self) -> int:
        return sum(a == label for a, label in zip(self.restricted, self.split.labels, strict=True))

    def sureness(self, task: Task) -> Sureness:
        columns = task.base_columns
        full = sum(a == columns[label] for a, label in zip(self.full, self.split.labels, strict=True))
        outputs = task.arguments["base_outputs"]
        return Sureness("validation", len(self.split), full, self.right, outputs, len(columns))

    def exchanged(self, task: Task, *, order_assumed: bool, near_chance: bool) -> list[str]:
        """Describe each class whose images another output than its own answers.

        Exchanged outputs form a ring: b's output answers a's images, and a's output answers b's. Where the task lacks
        b, only half of the ring is visible, and a looks as if it were merely confused with another class. Such a class
        is reported where the order of the outputs was assumed, as is a class whose accuracy is below chance; and as
        are several where they are the majority, and no two of them are answered by one output.
        """
        columns, names = task.base_columns, {c.base_index: c.name for c in task.classes}
        answers: dict[int, Counter[int]] = {}
        right: Counter[int] = Counter()  # among the target classes
        for output, position, label in zip(self.full, self.restricted, self.split.labels, strict=True):
            answers.setdefault(columns[label], Counter())[output] += 1
            right[columns[label]] += position == label
        may_lack = order_assumed and len(columns) < task.arguments["base_outputs"]
        majority, misassigned, messages, judged = {}, {}, {}, 0
        for column, outputs in answers.items():
            (top, count), images = outputs.most_common(1)[0], outputs.total()
            enough = images >= _LEAST_IMAGES
            if not (enough or _AGREEING <= images == count):
                continue
            judged += 1
            if top == column:
                continue
            if most := count > images / 2:
                majority[column] = top
            if enough and may_lack and ((most and top not in columns) or right[column] < images / len(columns)):
                misassigned[column] = top
            share = "most" if most else f"{count} of {images}"
            messages[column] = (
                f"output {top} answers {share} validation images of {names[column]!r}, taken to be output {column}"
            )
        most_moved = order_assumed and len(set(majority.values())) == len(majority) > max(1, judged / 2)
        exchanged = {**(majority if near_chance or most_moved else in_rings(majority)), **misassigned}
        return [messages[column] for column in exchanged]

    def record(self, *, near_chance: bool) -> BaseCheckRecord:
        tried = tuple(NeighbourRecord(n.option, n.gained, n.lost) for n in self.neighbours)
        return BaseCheckRecord(len(self.split), self.right, tried, near_chance)


def in_rings(answer: Mapping[int, int]) -> dict[int, int]:
    """The outputs that a wrong order may have exchanged: b answers a's images, c answers b's, and a answers c's.

    An output that is merely confused with another, as a shirt with a coat, is in no such ring.
    """

    def returns(start: int) -> bool:
        output: int | None = start
        for _ in answer:
            output = answer.get(output) if output is not None else None
            if output == start:
                return True
        return False

    return {column: output for column, output in answer.items() if returns(column)}


def ask(opened: Opened) -> Answers:
    """Run the whole base on validation images, with its preprocessing and under each neighbour; the cache keeps it.

    Neighbours are tried only where the preprocessing is assumed.

    Whatever the training's precision, the base multiplies in bf16 where the processor has it, as right answers are only
    counted and compared; elsewhere in fp32. Every process does all of it.

    Raises:
        DataError: its outputs are not finite.
    """
    base, task, passes, assumed = opened.base, opened.task, opened.passes, opened.assumed
    split = task.validation.subset(IMAGES)
    tried = neighbours(split.preprocessing) if assumed is not None and assumed.preprocessing_assumed else []
    splits = [split, *(replace(split, preprocessing=n.preprocessing) for n in tried)]
    tried_with = [dict(s.preprocessing) for s in splits]
    key = {**opened.identity(), "images": split.content_sha256(), "tried": tried_with, "bf16": multiplies_bf16()}

    def measure() -> dict[str, Tensor]:
        alone = replace(passes, shared=False)
        once = replace(alone, decoded=Decoded(0))  # no other pass needs images as the neighbours prepare them
        with passes.progress.stage("check the base", len(splits) * len(split), "image") as stage:
            rows = []
            for i, under in enumerate(splits):
                rows.append(_answers(base.with_columns(task.base_columns), under, once if i else alone))
                stage.update((i + 1) * len(split))
        return {"answers": torch.stack(rows)}

    answers = opened.cache.tensors("answers", key, measure)["answers"]  # [1 + neighbours, 2, N]
    labels = torch.tensor(split.labels)
    right = answers[:, 1] == labels
    judged = [
        replace(n, gained=int((now & ~right[0]).sum()), lost=int((right[0] & ~now).sum()))
        for n, now in zip(tried, right[1:], strict=True)
    ]
    full, restricted = (tuple(int(a) for a in row) for row in answers[0].tolist())
    return Answers(split, full, restricted, tuple(judged))


def _answers(base: Network, split: Split, passes: Passes) -> Tensor:
    """The largest output of each image, and the largest among the target classes: [2, N]."""
    batches = []

    def add_batch(logits: Tensor, _: Tensor) -> None:
        if not torch.isfinite(logits).all():
            raise DataError(
                "the base's answers to validation images are no finite numbers; check its weights, --mean and --std"
            )
        logits = logits.float()
        batches.append(torch.stack([logits.argmax(1), base.output.answers(logits)]).cpu())

    passes.run(base, split, add_batch, quick=True)
    return torch.cat(batches, 1)


def judge_base(
    answers: Answers, sureness: Sureness, task: Task, progress: Progress, request: Request | BaseRequest, *,
    assumed: Assumptions,
) -> BaseCheckRecord:  # fmt: skip
    """Refuse a base near chance, in an order that several classes contradict, or better with other preprocessing.

    `request` may accept each of them. A base whose head was fitted here may be near chance where the request trains it.

    Raises:
        DataError: the base is refused; the message names the option that accepts it.
    """
    near = sureness.near_chance
    record = answers.record(near_chance=near)
    hint = preprocessing_hint(record, len(task.classes))
    fitted = assumed.classes_from == "fitted head"
    exchanged = answers.exchanged(task, order_assumed=assumed.order_assumed, near_chance=near)
    order = ", and ".join(exchanged[:2])
    # One class may be taken for another by a base that knows it badly; an order that was guessed and contradicts
    # several is a wrong guess, and every name in the model would be.
    is_misread = assumed.order_assumed and len(exchanged) > 1
    doubts = [hint] if hint else []
    trains = fitted and _trains_base(request)
    if near and fitted:
        doubts = [f"the base is {sureness.text()}", _UNTAUGHT, *([] if trains else [_TRAIN])]
    elif near:
        doubts = [f"the base is {sureness.text()}", *doubts, *([order] if order else []), CHECK]
    elif order:
        doubts.append(f"{order}; check the order of the base's outputs, and give it with --base-classes FILE")
    due = {
        _ACCEPT_WEAK: (near or is_misread) and not (request.accept_weak_base or trains),
        _ACCEPT_PREPROCESSING: hint is not None and not request.accept_preprocessing,
    }
    if refused := [option for option, is_due in due.items() if is_due]:
        raise DataError(f"{'; '.join(doubts)}, or go on as it is with {' '.join(refused)}")
    if doubts:
        progress.warn("; ".join(doubts))
    return record


def _trains_base(request: Request | BaseRequest) -> bool:
    """Whether a request trains the base on the classes before anything is made of it."""
    if isinstance(request, BaseRequest):
        return bool(request.training.steps)
    return isinstance(request, Deriving) and request.derive_from != "base"


def check_opened(opened: Opened, request: Request | BaseRequest, progress: Progress) -> BaseCheckRecord:
    """Check an open base on validation images, before anything is derived from it.

    Raises:
        DataError: as `judge_base` says.
    """
    task, answers = opened.task, ask(opened)
    assert opened.assumed is not None, "there are images"
    return judge_base(answers, answers.sureness(task), task, progress, request, assumed=opened.assumed)
