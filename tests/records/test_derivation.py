from __future__ import annotations

import json
from dataclasses import replace

import pytest
from model_folders import derivation_of, some_spec

from edgevit.errors import CheckpointError
from edgevit.records.derivation import (
    DERIVATION_KIND,
    Accuracies,
    AccuracyRecord,
    Facts,
    RejectedRecord,
    ShapeRecord,
    TrainingRecord,
)
from edgevit.records.model import Rejection

SEEN = AccuracyRecord(0.5, 4, {"cat": 0.5, "dog": None})
OTHER = RejectedRecord(4, 1, 2, 0, 0)


def test_facts_are_those_that_all_methods_tell_and_each_methods_own() -> None:
    facts = Facts.of({"steps": 3, "kept_blocks": [0, 2], "curves": [1, 2]})
    assert facts == Facts(steps=3, kept_blocks=(0, 2), more={"curves": [1, 2]})
    content = DERIVATION_KIND.content(derivation_of(None, facts=facts))
    assert content["facts"]["curves"] == [1, 2] and content["facts"]["steps"] == 3 and "more" not in content["facts"]


def test_a_derivation_reads_back_as_it_was_written() -> None:
    record = derivation_of(
        None,
        facts=Facts(steps=3, more={"purified": True}),
        training=TrainingRecord(42, 3, {"lr": 1e-4}),
        shape=ShapeRecord("fused", {"equal": True}),
        accuracy=Accuracies(AccuracyRecord(0.1, 4), SEEN, None, replace(SEEN, rejection={"test": OTHER})),
    )
    assert DERIVATION_KIND.checked(json.loads(DERIVATION_KIND.text(record)), "it") == record


def test_a_share_above_one_is_one_line() -> None:
    content = DERIVATION_KIND.content(
        derivation_of(None, accuracy=Accuracies(None, replace(SEEN, top1=1.5), None, None))
    )
    with pytest.raises(CheckpointError, match=r"it has 1\.5 as accuracy\.base_restricted\.top1"):
        DERIVATION_KIND.checked(content, "it")


@pytest.mark.parametrize(
    ("record", "spec", "told"),
    [
        (derivation_of(None), some_spec(), None),
        (derivation_of(None, facts=Facts(kept_blocks=(0, 1))), some_spec(), None),
        (derivation_of(None, facts=Facts(kept_blocks=(0, 7))), some_spec(), "facts.kept_blocks"),
        (derivation_of(None, accuracy=Accuracies(None, None, None, SEEN)), some_spec(), "on different classes"),
        (
            derivation_of(None, accuracy=Accuracies(None, SEEN, None, SEEN)),
            some_spec(rejection=Rejection("logsumexp", 1.0, 0.1)),
            "how many images are classified as `other`",
        ),
    ],
)
def test_what_contradicts_the_model_is_said(record, spec, told) -> None:
    fault = record.fault(spec)
    assert fault is None if told is None else told in fault


def test_how_long_a_model_was_trained_is_told_with_which_state_was_kept() -> None:
    assert Facts(steps=5).format_training() == "5 steps"
    kept = {"accuracy_validation_before": 0.5, "accuracy_validation_trained": 0.4}
    assert Facts(steps=5, kept_step=3, **kept).format_training() == "5 steps, best after 3"
    assert "closed-form weights, as 5 steps of training did not help" in Facts(5, kept_step=0, **kept).format_training()
    assert (OTHER.share, OTHER.foreign_share) == (0.25, None)
