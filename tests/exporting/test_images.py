"""Which images a model is judged on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_progress import RecordedProgress
from small_models import ARGS, random_base

from edgevit.data.task import open_unlabelled_task
from edgevit.errors import DataError, OptionError, UnknownNameError
from edgevit.exporting.images import Subject, open_judging, subject_of
from edgevit.network.model import describe
from edgevit.network.output import Logits
from edgevit.progress import Silent


@pytest.fixture(scope="module")
def base() -> Subject:
    return subject_of(describe(random_base(depth=1), "vit_tiny_patch16_224", {**ARGS, "depth": 1}).spec)


def test_the_columns_are_those_of_the_classes_asked_for(base: Subject) -> None:
    judging = open_judging(base, "digits", classes="8,3", part="validation", progress=Silent())
    assert (judging.class_names, judging.output, judging.data) == (("8", "3"), Logits((8, 3)), "digits")
    few = judging.limited(10)
    assert Counter(few.split.labels) == {0: 5, 1: 5}, "spread evenly over the classes"
    assert judging.limited(None) is judging


def test_the_two_parts_have_no_image_in_common(base: Subject) -> None:
    seen = [set(open_judging(base, "digits", part=part, progress=Silent()).split.references)
            for part in ("validation", "test")]  # fmt: skip
    assert seen[0] and seen[1] and not seen[0] & seen[1]


def test_a_model_that_does_not_say_its_images_needs_some(base: Subject) -> None:
    with pytest.raises(DataError, match="give them with --data"):
        open_judging(base, None, progress=Silent())
    with pytest.raises(UnknownNameError, match="no part of the data 'train'"):
        open_judging(base, "digits", part="train", progress=Silent())


@pytest.fixture(scope="module")
def derived(base: Subject) -> Subject:
    """A model that says that it was derived from two of the digits."""
    own = open_judging(base, "digits", classes="3,5", progress=Silent()).task.record()
    return replace(base, record=own)


def test_classes_are_chosen_among_those_of_given_data(derived: Subject) -> None:
    with pytest.raises(OptionError, match="--classes selects classes of --data"):
        open_judging(derived, None, classes="3", progress=Silent())
    assert open_judging(derived, None, progress=Silent()).class_names == ("3", "5")


def test_classes_of_given_data_that_the_model_does_not_have_are_named(base: Subject) -> None:
    own, told = replace(base, class_names=("5", "3"), class_columns=(5, 3)), RecordedProgress()
    assert open_judging(own, "digits", progress=told).class_names == ("5", "3")
    assert told.notes == ["not used: 8 classes of the data that the model does not have ('0', '1', '2', '4', ...)"]
    told.notes.clear()
    open_judging(own, "digits", classes="3,5", progress=told)
    assert not told.notes


def test_images_of_features_are_split_as_without_classes_unless_these_matter(
    base: Subject, tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    data = image_folder(tmp_path / "photos", {"cat": 12, "dog": 12})
    features = replace(base, output_kind="features")
    plain = open_unlabelled_task(data, preprocessing=base.preprocessing, outputs=1)
    assert open_judging(features, data, progress=Silent()).split.references == plain.test.references
    labelled = open_judging(features, data, labelled=True, progress=Silent())
    assert labelled.class_names == ("cat", "dog") and set(labelled.split.labels) == {0, 1}


def test_what_the_model_asks_for_and_is_not_there_names_the_file_that_says_so(derived: Subject) -> None:
    assert derived.record is not None
    gone = replace(derived, record=replace(derived.record, data="/gone"))
    with pytest.raises(DataError, match=r"derivation\.json of the model says that it was derived from '/gone'"):
        open_judging(gone, None, progress=Silent())
    other = replace(derived, class_names=("3", "crane"), class_columns=(3, 5), origin="model.onnx")
    with pytest.raises(DataError, match=r"crane.*model\.onnx names the classes"):
        open_judging(other, "digits", progress=Silent())
