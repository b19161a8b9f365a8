"""The judgement on an engine, in images: what always may differ, what never may, and what a sample cannot show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import write_derived
from torch import Tensor
from torch.nn import functional

from edgevit.board.connection import open_board
from edgevit.engines.gate import EngineVerdict, Sample, images_file, remarks, take_sample, unlabelled_sample
from edgevit.engines.gate import judge as judge_outputs
from edgevit.engines.run import export
from edgevit.errors import OptionError
from edgevit.exporting.images import data_record, open_judging, subject_of
from edgevit.exporting.losses import allowed
from edgevit.exporting.request import GateTolerances
from edgevit.exporting.session import OnnxModel
from edgevit.network.folder import load
from edgevit.network.output import Features, Logits, Map
from edgevit.progress import Silent
from edgevit.records.engine import EngineClassAccuracy

NAMES = ("egret", "heron", "stork", "ibis")
STRICT = GateTolerances()


def sample(*sizes: int, expected: tuple[int, ...] | None = None) -> Sample:
    """So many images of each class, by default all classified rightly in fp32."""
    labels = tuple(label for label, size in enumerate(sizes) for _ in range(size))
    names = NAMES[: len(sizes)]
    columns = tuple(range(len(sizes)))
    return Sample(
        Path("images.f16"), "0" * 64, len(labels), (3, 8, 8), columns, Logits(columns), names, labels,
        torch.tensor(expected or labels), "birds", "validation",
    )  # fmt: skip


def altered(predicted: Tensor | tuple[int, ...], changes: dict[int, int]) -> list[int]:
    """The same, with what the images at these positions are taken for changed."""
    return [changes.get(i, int(seen)) for i, seen in enumerate(predicted)]


def judge(sample: Sample, predicted: Sequence[int] | Tensor, nonfinite: int = 0) -> EngineVerdict:
    """The judgement on an engine whose largest logits are at these positions."""
    logits = functional.one_hot(torch.as_tensor(predicted), len(NAMES)).float()
    return judge_outputs(sample, logits, nonfinite, STRICT)


def test_an_engine_that_agrees_everywhere_is_right() -> None:
    images = sample(100, 100)
    verdict = judge(images, images.expected)
    assert verdict.failure is None
    record = verdict.record(images)
    assert record is not None
    assert (record.host, record.board, record.agreement, record.images) == (1, 1, 1, 200)
    assert record.per_class["heron"] == EngineClassAccuracy(images=100, host=1, board=1)


def test_two_images_may_always_differ_and_a_third_may_not() -> None:
    images = sample(20, 20)
    assert judge(images, altered(images.expected, {0: 1, 1: 1})).failure is None
    assert judge(images, altered(images.expected, {0: 1, 1: 1, 2: 1})).failure == (
        "loses 15% on 'egret' (of 20 images 20 are right in fp32 here, 17 on the board)"
    )


def test_the_class_that_loses_most_is_named() -> None:
    images = sample(100, 40, 100)
    changes = dict.fromkeys(range(100, 112), 0) | dict.fromkeys(range(6), 2)
    failure = judge(images, altered(images.expected, changes)).failure
    assert failure is not None and failure.startswith("loses 30% on 'heron' (of 40 images 40 are right")


def test_a_large_class_over_its_allowance_is_named_before_a_small_one_within_its_own() -> None:
    images = sample(100, 4)
    changes = dict.fromkeys(range(6), 1) | {100: 0, 101: 0}  # 6 % of the large, half of the small
    failure = judge(images, altered(images.expected, changes)).failure
    assert failure is not None and failure.startswith("loses 6% on 'egret'")


def test_a_loss_spread_thinly_over_many_classes_is_found_in_the_whole() -> None:
    images = sample(100, 100, 100, 100)
    changes = {i * 100 + k: (i + 1) % 4 for i in range(4) for k in range(2)}  # 2 of 100 in each, 8 of 400
    failure = judge(images, altered(images.expected, changes)).failure
    assert failure is not None and failure.startswith("loses 2.0% of top-1 on 400 images, worst 2% on 'egret' (")


def test_an_engine_that_errs_both_ways_keeps_its_accuracy_and_is_found_out() -> None:
    labels = sample(50, 50).labels
    expected = tuple(1 - label if i % 10 == 0 else label for i, label in enumerate(labels))
    predicted = [1 - label if i % 10 == 1 else label for i, label in enumerate(labels)]
    verdict = judge(sample(50, 50, expected=expected), predicted)
    assert verdict.failure == ("agrees with fp32 on 80 of 100 images, 98% is required; least on 'egret', 40 of 50")


def test_an_engine_may_be_better_than_fp32_where_it_agrees_enough() -> None:
    labels = sample(50, 50).labels
    expected = tuple(altered(labels, {0: 1, 1: 1}))
    assert judge(sample(50, 50, expected=expected), labels).failure is None


def test_one_logit_that_is_no_number_is_enough() -> None:
    images = sample(50)
    assert judge(images, images.expected, 1).failure == "gives NaN or infinity (1 values)"
    nothing = Sample(Path("x"), "0", 4, (3, 8, 8), None, Logits((0, 1)), (), (), torch.empty(0), "random", "none")
    assert judge(nothing, [0] * 4, 7).failure == "gives NaN or infinity (7 values)"
    assert judge(nothing, [0] * 4).failure is None


@pytest.mark.parametrize(("images", "may_differ"), [(10, 1), (19, 1), (20, 2), (99, 2)])
def test_a_small_sample_has_less_to_spare(images: int, may_differ: int) -> None:
    one = sample(images, 0)
    assert judge(one, altered(one.expected, dict.fromkeys(range(may_differ), 1))).failure is None
    assert judge(one, altered(one.expected, dict.fromkeys(range(may_differ + 1), 1))).failure


def test_too_few_images_give_no_verdict_and_a_loud_warning() -> None:
    few = sample(5, 4)
    verdict = judge(few, [0] * 9)
    assert verdict.failure is None and verdict.record(few) is None
    assert "NOT CHECKED: only 9 images" in remarks(few, STRICT)[0]


def test_a_class_too_small_to_show_a_loss_is_named() -> None:
    assert remarks(sample(50, 50), STRICT) == []
    assert "'heron' has 6 images: an engine that gets 2 of them wrong passes" in remarks(sample(50, 6), STRICT)[0]
    assert "'heron' has 2 images, too few to notice" in remarks(sample(50, 2), STRICT)[0]


def test_an_engine_in_int8_fails_where_it_surely_loses_more_than_is_allowed() -> None:
    few = sample(20, 20)
    undecided = replace(few, probabilities=torch.full((40, 2), 0.5))
    sure = replace(few, probabilities=functional.one_hot(few.expected, 2).float())
    three, nine = ({i: 1 for i in range(count)} for count in (3, 9))
    for images, changes, failure in (
        (undecided, three, None),
        (undecided, nine, "loses 22.5% of top-1 on the board on 40 images, and surely more than 11.5%"),
        (sure, nine, "is expected to lose 22.5% of top-1 on the board on 40 images, and surely more than 11.5%"),
    ):
        logits = functional.one_hot(torch.tensor(altered(images.expected, changes)), 2).float()
        assert judge_outputs(images, logits, 0, STRICT, rounds=True).failure == failure


@given(st.integers(0, 100), st.integers(1, 2000))
def test_a_share_in_per_cent_is_counted_exactly(percent: int, images: int) -> None:
    assert allowed(percent / 100, images, 0) == percent * images // 100


def features_like(fp32: Tensor, count: int = 30) -> Sample:
    """So many images of no class whose features are known."""
    return Sample(
        Path("x"), "0", count, (3, 8, 8), None, Features(), ("a",), (-1,) * count, fp32, "pictures", "validation"
    )  # fmt: skip


def test_features_must_agree_on_average_and_have_no_classes() -> None:
    fp32 = torch.randn(30, 16, generator=torch.Generator().manual_seed(0))
    images = features_like(fp32)
    passed = judge_outputs(images, fp32.half().float(), 0, STRICT)
    record = passed.record(images)
    assert passed.failure is None and record is not None and remarks(images, STRICT) == []
    assert (record.host, record.board, record.worst_class, record.per_class, record.images) == (
        None,
        None,
        None,
        {},
        30,
    )
    assert 0.9999 < record.agreement <= 1
    some = fp32.clone()
    some[:6] *= -1
    failed = judge_outputs(images, some, 0, STRICT)
    assert failed.failure == "agrees with fp32 to 80.00% on 30 images, 98% is required"
    assert judge_outputs(images, some, 0, STRICT, rounds=True).failure == failed.failure
    some[1:] = fp32[1:]
    assert judge_outputs(images, some, 0, STRICT, rounds=True).failure is None, "one image proves nothing"
    assert judge_outputs(images, fp32, 2, STRICT).failure == "gives NaN or infinity (2 values)"


def test_maps_are_judged_by_the_share_of_pixels_or_by_their_overlap() -> None:
    fp32 = torch.randn(30, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    for kind in ("classes", "foreground", "values"):
        output = Map(kind)
        images = replace(features_like(output.answers(fp32)), output=output)
        assert judge_outputs(images, fp32, 0, STRICT).agreement == 1
        failure = judge_outputs(images, -fp32, 0, STRICT).failure
        assert failure is not None and failure.startswith("agrees with fp32 to ")


@pytest.mark.parametrize("bad", [{"drop": -0.1}, {"class_drop": 5}, {"agreement": 98}, {"drop": math.nan}])
def test_tolerances_are_shares(bad: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=r"--engine-[a-z-]+ \S+ is not in \[0, 1\]; give a share between 0 and 1"):
        GateTolerances(**bad)


@pytest.mark.slow
def test_the_sample_is_what_fp32_saw_rounded_once(tmp_path: Path) -> None:
    folder = write_derived(tmp_path / "derived", 16, 16, head="full")
    export(folder, fp16=False, accuracy=False)
    judging = open_judging(
        subject_of(load(folder).spec, data_record(folder)), None, part="validation", progress=Silent()
    ).limited(30)
    taken = take_sample(judging, folder / "export" / "model.fp32.onnx", tmp_path / "images", Silent())
    raw = np.fromfile(taken.path, np.float16).reshape(taken.count, *taken.shape)
    assert (taken.count, taken.shape, taken.columns) == (30, (3, 32, 32), (3, 5, 8))
    assert taken.output == Logits((0, 1, 2)), "of what the board sends"
    images = torch.cat([images for images, _ in judging.split.batches(7)])
    np.testing.assert_array_equal(raw, images.half().numpy())
    logits = OnnxModel(folder / "export" / "model.fp32.onnx").predict(torch.from_numpy(raw.astype(np.float32)))
    assert torch.equal(taken.expected, logits[:, [3, 5, 8]].argmax(1))
    assert taken.probabilities is not None and torch.equal(taken.expected, taken.probabilities.argmax(1))
    assert taken.labels == tuple(judging.split.labels) and set(taken.labels) == {0, 1, 2}
    again = take_sample(judging, folder / "export" / "model.fp32.onnx", tmp_path / "images", Silent())
    assert again.sha256 == taken.sha256


def test_random_images_judge_nothing(tmp_path: Path) -> None:
    images, ids = torch.randn(4, 3, 8, 8), torch.randint(1000, (4, 7))
    sample = unlabelled_sample(images, Features(), tmp_path / "images")
    assert sample.path.stat().st_size == 4 * 3 * 8 * 8 * 2 and not sample.judges
    assert "NOT CHECKED: no images" in remarks(sample, STRICT)[0]
    assert torch.equal(sample.images(), images.half())
    assert torch.equal(unlabelled_sample(ids, Features(), tmp_path / "ids").images(), ids)


def test_who_is_done_with_its_images_leaves_those_of_another_engine_on_the_board(
    tmp_path: Path, play: Callable[..., None]
) -> None:
    images = torch.randn(4, 3, 8, 8)
    one, other = (unlabelled_sample(images, Features(), images_file(tmp_path, key * 64)) for key in "ab")
    assert one.sha256 == other.sha256
    with open_board(None) as board:
        done, needed = (board.put(sample.path, sample.sha256, Silent()) for sample in (one, other))
        board.call("discard", paths=[done])
        assert Path(needed).read_bytes() == other.path.read_bytes() and not Path(done).exists()
