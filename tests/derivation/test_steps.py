"""Steps in a row: read from text, and refused where one cannot come after the other."""

import json

import pytest

from edgevit.derivation.steps import Step, check_steps, read_steps, steps_of
from edgevit.errors import EdgeVitError, OptionError


def test_steps_are_read_in_order():
    assert read_steps("nuwa:0.5, vulcan:0.7") == (Step("nuwa", 0.5), Step("vulcan", 0.7))


def test_a_list_has_texts_and_mappings_with_the_options_of_a_step():
    step = Step("vulcan", 0.7, {"teacher": "none"})
    listed = ["nuwa:0.5", {"method": "vulcan", "rate": 0.7, "options": {"teacher": "none"}}]
    assert steps_of(listed) == steps_of([Step("nuwa", 0.5), step]) == (Step("nuwa", 0.5), step)
    assert read_steps(json.dumps(listed)) == (Step("nuwa", 0.5), step)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([{"nuwa": 0.5}], "a step has the unknown key 'nuwa'"),
        ([{"method": "nuwa", "rat": 0.5}], "a step has the unknown key 'rat'; did you mean 'rate'?"),
        ([{"method": "nuwa"}], "{'method': 'nuwa'} is not METHOD:RATE; try --first nuwa:0.5, or in a file"),
        ([{"method": "nuwa", "rate": None}], "'rate': None} is not METHOD:RATE"),
        ([{"method": "nuwa", "rate": 0.5, "options": "none"}], "options 'none' of a step are no mapping"),
        ([0.5], "0.5 is not METHOD:RATE"),
        ([["nuwa", 0.5]], "['nuwa', 0.5] is not METHOD:RATE"),
    ],
)
def test_a_list_of_what_is_no_step_says_how_one_is_written(listed, said):
    for read in (lambda: steps_of(listed), lambda: read_steps(json.dumps(listed))):
        with pytest.raises(OptionError) as error:
            read()
        assert said in str(error.value) and "\n" not in str(error.value)


def test_a_list_that_is_no_json_is_refused():
    with pytest.raises(OptionError, match=r"--first \[nuwa is no JSON: .*; try --first nuwa:0\.5"):
        read_steps("[nuwa")


@pytest.mark.parametrize("text", ["nuwa", "nuwa:", "nuwa:half", "nuwa:0.5,,forge:0.6"])
def test_what_is_no_step_says_how_one_is_written(text):
    with pytest.raises(OptionError, match=r"is not METHOD:RATE; try --first nuwa:0\.5"):
        read_steps(text)


@pytest.mark.parametrize(
    ("steps", "method", "rate", "said"),
    [
        ([Step("nuwaa", 0.5)], "forge", 0.9, "no method 'nuwaa'; did you mean 'nuwa'"),
        ([Step("nuwa", 1.5)], "forge", 0.9, "--first nuwa"),
        ([Step("nuwa", 0.5, {"rigde": 1})], "forge", 0.9, "rigde"),
        ([Step("skd", 0.5)], "forge", 0.9, "skd cuts a super-network, which no other method makes"),
        ([Step("nuwa", 0.5)], "skd", 0.9, "skd cuts a super-network, which no other method makes"),
        ([Step("nuwa", 0.5)], "forge", 0.4, "forge is to leave 60% of the base after nuwa has left 50%"),
        ([Step("nuwa", 0.6), Step("vulcan", 0.6)], "forge", None, "put vulcan before nuwa, or raise its rate"),
    ],
)
def test_steps_that_cannot_stand_in_a_row_say_why_and_in_which_order_they_can(steps, method, rate, said):
    with pytest.raises(EdgeVitError) as error:
        check_steps(steps, method, rate, measured=None)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_rates_in_macs_do_not_stand_before_a_budget_in_milliseconds():
    with pytest.raises(OptionError, match="--first counts rates in MACs, and --fps what was measured"):
        check_steps([Step("nuwa", 0.5)], "forge", None, measured="fps")
    check_steps([], "forge", None, measured="fps")
