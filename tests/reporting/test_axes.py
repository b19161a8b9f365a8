"""What may stand on one axis, and what is said of what may not."""

from __future__ import annotations

from dataclasses import replace

from model_folders import some_spec
from some_report import DATA
from some_runs import DENSE, SLIM

from edgevit.agent.records import Run
from edgevit.records.model import TargetClass
from edgevit.reporting.axes import AccuracyTask, BaseIdentity, apart, apart_tasks, places


def at(run: Run, **environment: str) -> Run:
    return replace(run, environment={**run.environment, **environment})


def test_runs_of_one_state_share_a_place_and_others_do_not() -> None:
    runs = [DENSE, SLIM, at(DENSE, power_mode="15W"), replace(DENSE, batch=8), replace(DENSE, streams=2),
            replace(DENSE, period_ns=33_000_000)]  # fmt: skip
    found = places(runs)
    assert [(len(place.runs), place.title) for place in found] == [
        (2, "ARMv8, batch 1"),
        (1, "ARMv8, 15W, batch 1"),
        (1, "ARMv8, batch 1, 2 streams"),
        (1, "ARMv8, batch 1, one per 33 ms"),
        (1, "ARMv8, batch 8"),
    ]
    assert apart(found) == [
        "power mode (unknown, 15W)", "batch (1, 8)", "streams (1, 2)", "use (one after another, one per 33 ms)"
    ]  # fmt: skip


def test_runs_of_one_session_share_a_place_though_their_environments_differ_by_the_model() -> None:
    first, second = replace(DENSE, session="s", round=1), replace(at(SLIM, tactic="b"), session="s", round=1)
    assert [len(place.runs) for place in places([first, second])] == [2]
    assert [len(place.runs) for place in places([first, replace(second, session="t")])] == [1, 1]


def test_places_that_would_have_one_name_are_called_by_what_differs() -> None:
    found = places([at(DENSE, python="3.10"), at(DENSE, python="3.12")])
    assert [place.title for place in found] == ["ARMv8, batch 1, python 3.10", "ARMv8, batch 1, python 3.12"]


def test_tasks_differ_in_classes_images_and_seed() -> None:
    one = AccuracyTask(("cat", "dog"), DATA)
    assert one.title == "2 classes: cat, dog" and one.images == "200 test images of pets, seed 42"
    assert (
        AccuracyTask(("dog", "cat"), replace(DATA, classes=(TargetClass("dog", 5), TargetClass("cat", 3)))).key
        == one.key
    )
    seed, images = (
        AccuracyTask(one.classes, replace(DATA, seed=7)),
        AccuracyTask(one.classes, replace(DATA, fingerprint="0" * 64)),
    )
    assert (
        len({one.key, seed.key, images.key, AccuracyTask(("cat",), DATA).key, AccuracyTask(one.classes, None).key}) == 5
    )
    assert apart_tasks([one, seed]) == ["seed (42, 7), which splits the images"]
    assert apart_tasks([one, images, AccuracyTask(("cat",), None)]) == ["classes", "images"]
    assert AccuracyTask(tuple("abcdefgh"), None).title == "8 classes: a, b, c, d, e, f, and 2 more"


def test_bases_are_told_apart_by_name_and_settings_and_by_their_weights_where_these_do_not_do() -> None:
    small, spec = BaseIdentity.of(some_spec()), some_spec()
    cropped = BaseIdentity.of(some_spec(preprocessing={**spec.preprocessing, "crop_pct": 1.0}))
    trained = BaseIdentity.of(some_spec(base=replace(spec.base, weights_sha256="c" * 64)))
    assert [base.difference([small, cropped]) for base in (small, cropped)] == ["crop pct 0.9", "crop pct 1.0"]
    assert [base.difference([small, trained]) for base in (small, trained)] == ["weights bbbbbb", "weights cccccc"]
    assert [base.difference([small, cropped, trained]) for base in (small, cropped, trained)] == [
        "crop pct 0.9, weights bbbbbb", "crop pct 1.0", "crop pct 0.9, weights cccccc",
    ]  # fmt: skip
    assert small.difference([small]) == ""
    unnamed = BaseIdentity.of(some_spec(classes=()))
    assert unnamed.is_of(small) and not unnamed.is_of(trained) and not cropped.is_of(small)


def test_features_of_other_tokens_or_blocks_are_of_another_base() -> None:
    spec = some_spec(classes=(), output="features")
    earlier = replace(spec, base=replace(spec.base, blocks=spec.base.blocks[:1]))
    bases = [BaseIdentity.of(one) for one in (spec, earlier, replace(spec, tokens="class", depths=(1,)))]
    assert not any(one.is_of(other) for one in bases for other in bases if one is not other)
    assert [base.difference(bases) for base in bases] == [
        "features after block 2", "features after block 1", "features of class after block 1",
    ]  # fmt: skip
