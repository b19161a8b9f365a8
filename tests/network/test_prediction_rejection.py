"""The threshold below which an image is called `other`, and what it promises."""

from __future__ import annotations

import math

import pytest
import torch

from edgevit.errors import DataError, OptionError
from edgevit.network.prediction import Rejection, calibrate_rule, check_share, scores


def test_the_threshold_lets_no_more_than_the_share_fall_below_it() -> None:
    logits = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    for share, rejected in ((0.05, 4), (0.1, 9), (0.0099009901, 0), (0.5, 49)):
        rule = calibrate_rule(logits, share)
        assert int(rule.rejects(logits).sum()) == rejected
        assert rule.threshold in scores(logits).tolist()


@pytest.mark.slow
def test_the_promise_holds_on_images_it_was_not_calibrated_on() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(4000, 25, 3, generator=generator)  # 25 images: the plain 5 % quantile rejects 7.7 %
    seen = [calibrate_rule(logits[:24], 0.05).rejects(logits[24:]).float().mean() for logits in drawn]
    assert 0.03 < float(torch.stack(seen).mean()) < 0.05


@pytest.mark.parametrize(("share", "need"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.29, 3), (0.5, 1), (1 / 49, 48)])
def test_too_few_images_are_refused_with_the_number_needed(share: float, need: int) -> None:
    with pytest.raises(
        DataError, match=f"needs {need} validation images of the target classes, and there are {need - 1};"
    ):
        check_share(share, need - 1)
    assert math.isfinite(calibrate_rule(torch.randn(need, 2), share).threshold)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 5.0, math.nan])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(OptionError, match="is not between 0 and 1"):
        check_share(share, 1000)


def test_what_is_no_number_is_other_and_no_ground_for_a_threshold() -> None:
    logits = torch.tensor([[1.0, 2.0], [math.nan, 2.0], [-3.0, -3.0]])
    assert Rejection("logsumexp", 0.0, 0.1).rejects(logits).tolist() == [False, True, True]
    with pytest.raises(DataError, match="not finite"):
        calibrate_rule(torch.full((30, 2), math.nan), 0.1)
