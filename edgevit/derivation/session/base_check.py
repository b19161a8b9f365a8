"""Does the base know its classes? Judged on validation images, as it is read and under neighbouring preprocessing.

A base whose outputs are in another order than was assumed, or that was trained with other preprocessing, still gives
answers, and whatever is derived from it is only as good as they are. So either stops the work, unless it is accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from edgevit.data.assumptions import CHECK, Sureness, shown
from edgevit.data.decoded import Decoded
from edgevit.data.neighbours import preprocessing_hint
from edgevit.data.task import Split, Task
from edgevit.derivation.cache import Cache
from edgevit.derivation.request import BaseRequest, Request
from edgevit.derivation.session.opening import Opened
from edgevit.errors import DataError
from edgevit.progress import Progress
from edgevit.records.derivation import BaseCheckRecord, NeighbourRecord
from edgevit.train.passes import Passes
from edgevit.train.products import multiplies_bf16

IMAGES = 300  # of the validation part at most: a difference of 4 points in one direction shows
NORMALISATIONS = ((IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD), ((0.5,) * 3, (0.5,) * 3), ((0.0,) * 3, (1.0,) * 3))
LEAST_IMAGES = 5  # of a class, to say which output answers for it
AGREEING = 3  # or so many, if one output answers all of them
ACCEPT_WEAK, ACCEPT_PREPROCESSING = "--accept-weak-base", "--accept-preprocessing"


@dataclass(frozen=True)
class Neighbour:
    """Other preprocessing than was assumed, and how the base does with it."""

    option: str  # that asks for it
    preprocessing: Mapping[str, Any]
    gained: int = 0  # images that are right with it and wrong as assumed
    lost: int = 0


def neighbours(preprocessing: Mapping[str, Any]) -> list[Neighbour]:
    """What a base may have been trained with instead: without a crop, or with the usual one; normalised otherwise."""
    crop = 1.0 if preprocessing["crop_pct"] < 1 else 0.875
    found = [Neighbour(f"--crop-pct {crop:g}", {**preprocessing, "crop_pct": crop})]
    now = (tuple(preprocessing["mean"]), tuple(preprocessing["std"]))
    for mean, std in NORMALISATIONS:
        if (mean, std) != now:
            option = f"--mean {shown(mean)} --std {shown(std)}"
            found.append(Neighbour(option, {**preprocessing, "mean": mean, "std": std}))
    return found


@dataclass(frozen=True)
class Answers:
    """What the base answers to validation images as it is read, and how it does under each neighbour."""

    split: Split
    full: tuple[int, ...]  # for each image, the output that is largest
    restricted: tuple[int, ...]  # the position of the largest among the target classes
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
        """Say of each class that another output than its own answers for, which one that is.

        An exchange comes back to where it began: a's images are answered by b's output, and b's by a's. Where the task
        lacks b, only a's half of it is seen, and a looks as if it were merely taken for another class. Such a class is
        reported where the order of the outputs was assumed, and so is a class that the base knows worse than chance;
        and so are several where they are most, and no two of them are answered by one output.
        """
        columns, names = task.base_columns, {c.base_index: c.name for c in task.classes}
        answers: dict[int, Counter[int]] = {}
        right: Counter[int] = Counter()  # among the target classes
        for output, position, label in zip(self.full, self.restricted, self.split.labels, strict=True):
            answers.setdefault(columns[label], Counter())[output] += 1
            right[columns[label]] += position == label
        may_lack = order_assumed and len(columns) < task.arguments["base_outputs"]
        majority, astray, told, judged = {}, {}, {}, 0
        for own, seen in answers.items():
            (top, count), images = seen.most_common(1)[0], seen.total()
            enough = images >= LEAST_IMAGES
            if not (enough or AGREEING <= images == count):
                continue
            judged += 1
            if top == own:
                continue
            if most := count > images / 2:
                majority[own] = top
            if enough and may_lack and ((most and top not in columns) or right[own] < images / len(columns)):
                astray[own] = top
            share = "most" if most else f"{count} of {images}"
            told[own] = f"output {top} answers {share} validation images of {names[own]!r}, taken to be output {own}"
        most_moved = order_assumed and len(set(majority.values())) == len(majority) > max(1, judged / 2)
        found = {**(majority if near_chance or most_moved else in_rings(majority)), **astray}
        return [told[own] for own in found]

    def record(self, *, near_chance: bool) -> BaseCheckRecord:
        tried = tuple(NeighbourRecord(n.option, n.gained, n.lost) for n in self.neighbours)
        return BaseCheckRecord(len(self.split), self.right, tried, near_chance)


def in_rings(answer: Mapping[int, int]) -> dict[int, int]:
    """The outputs that a wrong order may have exchanged: a's images are answered with b, b's with c, and c's with a.

    An output that is merely taken for another, as a shirt for a coat, is in no such ring.
    """

    def returns(start: int) -> bool:
        at: int | None = start
        for _ in answer:
            at = answer.get(at) if at is not None else None
            if at == start:
                return True
        return False

    return {own: other for own, other in answer.items() if returns(own)}


def ask(base: nn.Module, task: Task, passes: Passes, cache: Cache, identity: Mapping[str, Any]) -> Answers:
    """Let the whole base answer validation images, as it is read and under each neighbour; kept in the cache.

    Whatever the training's precision, the base multiplies in bf16 where the processor has it, as right answers are only
    counted and compared; elsewhere in fp32. Every process does all of it.

    Raises:
        DataError: its answers are no numbers.
    """
    split = task.validation.subset(IMAGES)
    tried = neighbours(split.preprocessing)
    splits = [split, *(replace(split, preprocessing=n.preprocessing) for n in tried)]
    tried_with = [dict(s.preprocessing) for s in splits]
    key = {**identity, "images": split.content_sha256(), "tried": tried_with, "bf16": multiplies_bf16()}

    def take() -> dict[str, Tensor]:
        alone = replace(passes, shared=False)
        once = replace(alone, decoded=Decoded(0))  # no other pass needs images as the neighbours prepare them
        with passes.progress.stage("check the base", len(splits) * len(split), "image") as stage:
            found = []
            for i, under in enumerate(splits):
                found.append(_answers(base, under, task.base_columns, once if i else alone))
                stage.update((i + 1) * len(split))
        return {"answers": torch.stack(found)}

    answers = cache.tensors("answers", key, take)["answers"]  # [1 + neighbours, 2, N]
    labels = torch.tensor(split.labels)
    right = answers[:, 1] == labels
    judged = [
        replace(n, gained=int((now & ~right[0]).sum()), lost=int((right[0] & ~now).sum()))
        for n, now in zip(tried, right[1:], strict=True)
    ]
    full, restricted = (tuple(int(a) for a in row) for row in answers[0].tolist())
    return Answers(split, full, restricted, tuple(judged))


def _answers(base: nn.Module, split: Split, columns: Sequence[int], passes: Passes) -> Tensor:
    """The largest output of each image, and the largest among the target classes: [2, N]."""
    found = []

    def see(logits: Tensor, _: Tensor) -> None:
        if not torch.isfinite(logits).all():
            raise DataError(
                "the base's answers to validation images are no finite numbers; check its weights, --mean and --std"
            )
        logits = logits.float()
        found.append(torch.stack([logits.argmax(1), logits[:, list(columns)].argmax(1)]).cpu())

    passes.run(base, split, see, quick=True)
    return torch.cat(found, 1)


def judge_base(
    answers: Answers, sureness: Sureness, task: Task, progress: Progress, request: Request | BaseRequest, *,
    order_assumed: bool,
) -> BaseCheckRecord:  # fmt: skip
    """Stop where the base is near chance, where an assumed order of its outputs is contradicted by several classes, or
    where it does better with other preprocessing; unless `request` accepts that.

    Raises:
        DataError: one of them, with the option to give.
    """
    near = sureness.near_chance
    record = answers.record(near_chance=near)
    hint = preprocessing_hint(record, len(task.classes))
    exchanged = answers.exchanged(task, order_assumed=order_assumed, near_chance=near)
    order = ", and ".join(exchanged[:2])
    # One class may be taken for another by a base that knows it badly; an order that was guessed and contradicts
    # several is a wrong guess, and every name in the model would be.
    is_misread = order_assumed and len(exchanged) > 1
    doubts = [hint] if hint else []
    if near:
        doubts = [f"the base is {sureness.text()}", *doubts, *([order] if order else []), CHECK]
    elif order:
        doubts.append(f"{order}; check the order of the base's outputs, and give it with --base-classes FILE")
    due = {
        ACCEPT_WEAK: (near or is_misread) and not request.accept_weak_base,
        ACCEPT_PREPROCESSING: hint is not None and not request.accept_preprocessing,
    }
    if refused := [option for option, is_due in due.items() if is_due]:
        raise DataError(f"{'; '.join(doubts)}, or go on as it is with {' '.join(refused)}")
    if doubts:
        progress.warn("; ".join(doubts))
    return record


def check_opened(opened: Opened, request: Request | BaseRequest, progress: Progress) -> BaseCheckRecord:
    """Check a base that is open with images, before anything is made of it; both answers are from validation images.

    Raises:
        DataError: as `judge_base` says.
    """
    task = opened.task
    answers = ask(opened.base.network, task, opened.passes, opened.cache, opened.identity())
    assert opened.assumed is not None, "there are images"
    return judge_base(
        answers, answers.sureness(task), task, progress, request, order_assumed=opened.assumed.order_assumed
    )
