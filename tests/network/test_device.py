"""Where torch computes, by name."""

from __future__ import annotations

import pytest
import torch

from edgevit.errors import OptionError, UnknownNameError
from edgevit.network.device import check_device_name, find_device


def test_a_name_may_hold_an_index() -> None:
    for name in ("auto", "cpu", "cuda", "cuda:1"):
        check_device_name(name)
    for name in ("gpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(UnknownNameError, match="no device"):
            check_device_name(name)


def test_a_device_without_float64_is_refused_by_its_name() -> None:
    for name in ("mps", "mps:0"):
        for refuse in (check_device_name, find_device):
            with pytest.raises(OptionError, match=rf"^device {name}: .*float64.*; try --device cpu$"):
                refuse(name)


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("cpu") == torch.device("cpu")
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_this_machine_lacks_is_refused() -> None:
    with pytest.raises(OptionError, match="this machine has no cuda device that torch can see; try --device cpu"):
        find_device("cuda:1")
