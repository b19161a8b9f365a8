"""The options of `edgevit fleet`."""

from __future__ import annotations

import pytest

from edgevit.errors import OptionError
from edgevit.jobs.fleet.request import read_part


def test_a_part_is_one_of_several() -> None:
    assert read_part("3/16", {}) == (3, 16)


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/2/3", "-1/2", ""])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not a part such as 3/16"):
        read_part(text, {})
