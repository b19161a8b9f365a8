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
