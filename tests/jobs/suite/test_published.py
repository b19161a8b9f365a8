"""Published figures are of networks of the suite and of boards that edgevit knows."""

from edgevit.board.profiles import profile_names
from edgevit.jobs.suite.published import PUBLISHED, published_for
from edgevit.jobs.suite.request import SIZES
from edgevit.jobs.suite.suite import suite


def test_they_are_of_networks_that_are_measured() -> None:
    names = {subject.name for subjects in suite(list(SIZES)).values() for subject in subjects} | {"base"}
    assert {one.network for figures in PUBLISHED.values() for one in figures} <= names


def test_they_are_of_boards_that_there_are() -> None:
    for beginning in PUBLISHED:
        assert any(name.startswith(beginning) for name in profile_names())
    assert [one.ms for one in published_for("orin-nx-16gb")] == [45.45, 21.81, 15.06]
    lab = [one for one in published_for("orin-nano-8gb") if "AI Lab" in one.source]
    assert len(lab) == 2 and all("neither batch, precision nor power mode named" in one.conditions for one in lab)
    assert published_for(None) == () == published_for("orin-nano-4gb")
