"""Two models on the same images: the exact test, and what loss cannot be excluded."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from edgevit.data.pairs import RightCount, better_by_chance, loss_of, recalled_text
from edgevit.records.answers import RightImages


def pair(images: int, both: int, lost: int, gained: int) -> tuple[RightCount, RightCount]:
    """A model and its base: so many images are right by both, by the base alone, and by the model alone."""
    neither = images - both - lost - gained
    counts = ((both, 1, 1), (lost, 0, 1), (gained, 1, 0), (neither, 0, 0))
    flags = [[bool(one[who]) for one in counts for _ in range(one[0])] for who in (1, 2)]
    model, base = (RightCount.of(RightImages.of(each)) for each in flags)
    return model, base


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (5, 0), (7, 3), (30, 18), (3, 40), (1000, 900)])
def test_a_gain_is_judged_as_the_exact_binomial_test_does(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost, alternative="greater").pvalue if gained + lost else 1.0
    assert better_by_chance(gained, lost) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("images", "both", "lost", "gained", "may_be_chance"),
    [
        (300, 250, 10, 6, True), (300, 240, 20, 6, False), (120, 120, 0, 0, True), (300, 240, 6, 20, True),
        (1000, 780, 5, 0, True), (1000, 780, 6, 0, False),
    ],
)  # fmt: skip
def test_a_model_is_worse_where_it_loses_more_answers_than_chance_would(
    images: int, both: int, lost: int, gained: int, may_be_chance: bool
) -> None:
    loss = loss_of(*pair(images, both, lost, gained))
    assert (loss.lost, loss.gained, loss.may_be_chance) == (lost, gained, may_be_chance)
    assert loss.share == pytest.approx((lost - gained) / images) and loss.most > loss.share


@pytest.mark.parametrize(
    ("images", "lost", "gained", "most"),
    [(300, 0, 0, 0.918), (300, 10, 6, 4.068), (3000, 100, 60, 2.157), (50, 5, 1, 18.15)],
)
def test_few_images_leave_a_larger_loss_that_cannot_be_excluded(
    images: int, lost: int, gained: int, most: float
) -> None:
    """Of Bonett and Price (2012): (lost - gained) / (n + 2) + 1.96 sqrt((p + q - (p - q)^2) / (n + 2))."""
    loss = loss_of(*pair(images, 0, lost, gained))
    assert 100 * loss.most == pytest.approx(most, abs=0.05)
    assert f"on {images} test images it loses {lost} right answers of the base and gains {gained}; a loss of up to" in (
        loss.text("test")
    )


@pytest.mark.parametrize(
    ("lost", "classes", "may_be_chance"),
    [(7, {"crack": 30, "whole": 270}, False), (6, {"crack": 30, "whole": 270}, True), (7, None, True),
     (7, {"crack": 30, "dust": 90, "dirt": 90, "whole": 90}, True)],
)  # fmt: skip
def test_a_class_of_few_images_may_be_lost_while_the_accuracy_of_all_stays(
    lost: int, classes: dict[str, int] | None, may_be_chance: bool
) -> None:
    """The model misses cracks that the base finds, and is right on as many other images. Seven of seven: 1 in 128."""
    of_base = [True] * 30 + [i >= 10 for i in range(270)]
    of_model = [i >= lost for i in range(30)] + [i >= 10 - lost for i in range(270)]
    loss = loss_of(*(RightCount.of(RightImages.of(flags, classes)) for flags in (of_model, of_base)))
    assert (loss.lost, loss.gained, loss.may_be_chance) == (lost, lost, may_be_chance)
    text = f"and gains {lost}, of the 30 of 'crack' it loses {lost} and gains 0; a loss of up to"
    assert (text in loss.text("test")) == (not may_be_chance)
    assert (loss.worst_alone is not None) == (not may_be_chance)


def test_without_a_record_of_which_images_are_right_the_interval_of_the_share_decides() -> None:
    base = RightCount(270, 300)
    worse, level, better = (loss_of(RightCount(right, 300), base) for right in (257, 262, 271))
    assert [one.may_be_chance for one in (worse, level, better)] == [False, True, True]
    assert level.lost is None and level.most == pytest.approx(0.9 - 0.8309, abs=1e-4)
    assert "compared by intervals" in level.text("validation")
    model, _ = pair(300, 262, 0, 0)
    assert loss_of(model, base).lost is None and loss_of(RightCount(120, 120), RightCount(120, 120)).may_be_chance


@pytest.mark.parametrize(
    ("validation", "test", "recalled"),
    [((260, 300), (788, 1000), True), ((120, 120), (378, 400), True), ((245, 300), (788, 1000), False),
     ((95, 100), (96, 100), False), ((120, 120), (400, 400), False)],
)  # fmt: skip
def test_a_base_that_is_better_on_validation_images_was_probably_trained_on_them(
    validation: tuple[int, int], test: tuple[int, int], recalled: bool
) -> None:
    text = recalled_text(RightCount(*validation), RightCount(*test))
    assert (text is not None) is recalled
    if validation == (260, 300):
        assert text == "the base was probably trained on the validation images (86.7% there, 78.8% on test)"
    assert recalled_text(None, RightCount(*test)) is None
