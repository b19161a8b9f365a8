"""The shipped plan is read without torch, and says how often each network is measured."""

from edgevit.board.profiles import profile_names
from edgevit.jobs.suite.plan import shipped_plan


def test_questions_have_rounds_by_batch_size_and_names_that_the_answers_know() -> None:
    plan = shipped_plan()
    first = plan.question("shapes at 0.8")
    assert first.energy and first.rounds_at(6, (1, 8)) == {1: 6, 8: 3} and first.rounds_at(6, (1,)) == {1: 6}
    assert plan.question("head widths").rounds_at(6, (1, 8)) == {1: 2}
    assert plan.question("tokens").rounds_at(1, (1, 8)) == {1: 1}, "every network is measured at least once"
    assert 0 < plan.quick_minutes < plan.minutes
    names = {f"base {network.name}" for question in plan.questions for network in question.networks} | {"base"}
    assert {figure.network for figures in plan.published.values() for figure in figures} <= names
    assert all(any(name.startswith(beginning) for name in profile_names()) for beginning in plan.published)


def test_published_figures_are_found_by_the_profile_of_a_board() -> None:
    plan = shipped_plan()
    assert [figure.ms for figure in plan.published_for("orin-nx-16gb")] == [45.45, 21.81, 15.06]
    lab = [figure for figure in plan.published_for("orin-nano-8gb") if "AI Lab" in figure.source]
    assert len(lab) == 2 and all("neither batch, precision nor power mode named" in f.conditions for f in lab)
    assert plan.published_for(None) == () == plan.published_for("orin-nano-4gb")
