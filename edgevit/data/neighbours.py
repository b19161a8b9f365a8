"""Preprocessing with which a base does better than as it is read, judged by the counts that a record has."""

from __future__ import annotations

from edgevit.data.pairs import better_by_chance
from edgevit.data.shares import wilson
from edgevit.records.derivation import BaseCheckRecord, DerivationRecord, NeighbourRecord
from edgevit.records.supernet import SupernetRecord

SIGNIFICANT = 0.05  # of all neighbours together
ODDS = 1.25  # a base is near chance if its odds of being right may be this many times those of chance, or less


def near_chance(right: int, images: int, choices: int) -> bool:
    """Whether the 95 % interval of the accuracy reaches down to chance, or hardly more.

    Of few images it does even for a good model, which is let pass where it is right on more than half of what chance
    leaves.
    """
    limit = ODDS / (ODDS + choices - 1)
    return wilson(right, images)[0] <= limit and right / images < (1 + 1 / choices) / 2


def better_neighbours(check: BaseCheckRecord, classes: int) -> list[NeighbourRecord]:
    """The neighbours that do better than the base as it is read, by more than chance and above chance; best first.

    At 300 images, the most that are checked, at least six must be gained: a neighbour is never better by less than
    two points.
    """

    def is_better(neighbour: NeighbourRecord) -> bool:
        level = SIGNIFICANT / len(check.neighbours)
        right = check.right + neighbour.gained - neighbour.lost
        return better_by_chance(neighbour.gained, neighbour.lost) < level and not near_chance(
            right, check.images, classes
        )

    return sorted(filter(is_better, check.neighbours), key=lambda n: n.lost - n.gained)


def preprocessing_hint(check: BaseCheckRecord, classes: int) -> str | None:
    """The option with which the base does better, in one line; None: there is none."""
    if not (better := better_neighbours(check, classes)):
        return None
    best, *others = better

    def share(right: int) -> str:
        return f"{right / check.images:.1%}"

    beside = "".join(f", with {n.option} on {share(check.right + n.gained - n.lost)}" for n in others)
    return (
        f"with {best.option} the base is right on {share(check.right + best.gained - best.lost)} of {check.images} "
        f"validation images{beside}, and on {share(check.right)} as it is read now: give that option if it was "
        "trained so"
    )


def hint_in(record: DerivationRecord | SupernetRecord) -> str | None:
    """The hint that was accepted when a model was made; None: there was none, or the base was not checked."""
    check = record.assumptions.base_check if record.assumptions is not None else None
    return None if check is None or record.data is None else preprocessing_hint(check, len(record.data.classes))
