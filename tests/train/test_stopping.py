"""When training may stop, and which state was the best."""

from __future__ import annotations

from edgevit.train.stopping import Best, Meeting


def test_trained_and_pruned_have_met_only_after_both_conditions_hold_for_long_enough():
    meeting = Meeting()
    assert not any(meeting.add(0.9, pruned) for pruned in (0.1, 0.5, 0.88))  # apart
    assert not any(meeting.add(0.9, 0.9) for _ in range(3))  # met, but just improved
    assert meeting.add(0.9, 0.9)
    assert not meeting.add(0.9, 0.91)  # apart again


def test_of_equally_good_states_the_earlier_is_the_best() -> None:
    best = Best()
    assert [best.add(a, step) for step, a in enumerate((0.5, 0.5, 0.7, 0.7, 0.6))] == [True, False, True, False, False]
    assert (best.step, best.since) == (2, 2)


def test_a_later_state_that_is_about_as_good_is_kept_if_it_is_better_than_the_first() -> None:
    best, losses = Best(), (0.040, 0.028, 0.034, 0.0293, 0.0295)
    assert [best.add(-a, step, 0.05) for step, a in enumerate(losses)] == [True, True, False, True, False]
    assert (best.step, best.since, best.score) == (3, 3, -0.028)
    closed_form = Best()
    assert [closed_form.add(-a, step, 0.05) for step, a in enumerate((0.040, 0.041, 0.0399))] == [True, False, True]
    assert closed_form.step == 2
