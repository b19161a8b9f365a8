"""Published figures are found by the name of a board's profile."""

from edgevit.jobs.suite.published import published_for


def test_they_are_found_by_the_profile_of_a_board() -> None:
    assert [figure.ms for figure in published_for("orin-nx-16gb")] == [45.45, 21.81, 15.06]
    lab = [figure for figure in published_for("orin-nano-8gb") if "AI Lab" in figure.source]
    assert len(lab) == 2 and all("neither batch, precision nor power mode named" in f.conditions for f in lab)
    assert published_for(None) == () == published_for("orin-nano-4gb")
