"""Find preprocessing settings with which a base is significantly more accurate, from the counts in a record."""

from __future__ import annotations

from edgevit.data.pairs import better_by_chance
from edgevit.data.shares import wilson
from edgevit.records.derivation import BaseCheckRecord, DerivationRecord, NeighbourRecord
from edgevit.records.supernet import SupernetRecord

_SIGNIFICANT = 0.05  # significance level of all neighbours together
_ODDS = 1.25  # a base is near chance if its odds of a right answer may be at most this multiple of those of chance


def near_chance(right: int, images: int, choices: int) -> bool:
    """Tell whether the 95 % interval of the accuracy contains about chance.

    With few images the intervals of good models contain it, too: an accuracy above the middle of chance and 1 passes.
    """
    limit = _ODDS / (_ODDS + choices - 1)
    return wilson(right, images)[0] <= limit and right / images < (1 + 1 / choices) / 2


def better_neighbours(check: BaseCheckRecord, classes: int) -> list[NeighbourRecord]:
    """List the settings that are significantly better than the current ones, and above chance; the best first.

    At 300 images, the most that are checked, at least six must be gained, which is two points.
    """

    def is_better(neighbour: NeighbourRecord) -> bool:
        level = _SIGNIFICANT / len(check.neighbours)
        right = check.right + neighbour.gained - neighbour.lost
        return better_by_chance(neighbour.gained, neighbour.lost) < level and not near_chance(
            right, check.images, classes
        )

    return sorted(filter(is_better, check.neighbours), key=lambda n: n.lost - n.gained)


def preprocessing_hint(check: BaseCheckRecord, classes: int) -> str | None:
    """Name the options with which the base is more accurate, in one line; None: there are none."""
    if not (better := better_neighbours(check, classes)):
        return None
    best, *others = better

    def share(right: int) -> str:
        return f"{right / check.images:.1%}"

    alternatives = "".join(f", with {n.option} on {share(check.right + n.gained - n.lost)}" for n in others)
    return (
        f"with {best.option} the base is right on {share(check.right + best.gained - best.lost)} of {check.images} "
        f"validation images{alternatives}, and on {share(check.right)} as it is read now: give that option if it was "
        "trained so"
    )


def hint_in(record: DerivationRecord | SupernetRecord) -> str | None:
    """Return the hint that was accepted when a model was made; None: there was none, or the base was not checked."""
    check = record.assumptions.base_check if record.assumptions is not None else None
    return None if check is None or record.data is None else preprocessing_hint(check, len(record.data.classes))
