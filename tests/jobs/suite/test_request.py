"""The options of a suite: known sizes, and a file that can be written."""

from dataclasses import replace
from pathlib import Path

import pytest

from edgevit.errors import EdgeVitError, OptionError, OutputError, UnknownNameError
from edgevit.jobs.suite.request import CharacterizeRequest, read_names


def test_the_whole_and_the_quick_suite_have_their_own_time() -> None:
    assert (CharacterizeRequest().most_minutes, CharacterizeRequest(quick=True).most_minutes) == (35, 5)
    assert CharacterizeRequest(quick=True, minutes=7.0).most_minutes == 7.0
    assert read_names("tiny, base,", {}) == ("tiny", "base")


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"sizes": ()}, OptionError, "no sizes; try --sizes"),
        ({"sizes": ("tiny", "bsae")}, UnknownNameError, "no size 'bsae'.*base"),
        ({"sizes": ("tiny", "base", "tiny")}, OptionError, "--sizes tiny,base,tiny has a size twice"),
        ({"minutes": 0.0}, OptionError, "--minutes 0"),
        ({"rounds": 0}, OptionError, "--rounds 0"),
        ({"threads": 0}, OptionError, "--threads 0"),
        ({"output": Path("/")}, OutputError, "cannot write /"),
        ({"output": Path("/no/such/folder/p.json")}, OutputError, "choose another --output"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, object], error: type[EdgeVitError], said: str) -> None:
    with pytest.raises(error, match=said):
        replace(CharacterizeRequest(), **changed).check()  # type: ignore[arg-type]
