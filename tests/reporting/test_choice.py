"""Which model is to be taken, and what of it is known where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from some_report import (
    BASE,
    GOOD,
    POOR,
    accuracies,
    accuracy,
    by_title,
    derived,
    write_everything,
    write_folder,
)

from edgevit.board.gates import parse_gate
from edgevit.records.answers import PartAnswers, RightImages
from edgevit.records.derivation import (
    AccuracyRecord,
    StartRecord,
    ValidationRecord,
)
from edgevit.reporting.choice import AXES, Panel, are_level, cost_on_axis
from edgevit.reporting.gather import Evidence, GatheredModel, gather
from edgevit.reporting.panels import panels
from edgevit.reporting.tables import answer, heading, notes
from edgevit.reporting.views import panel_data


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather([write_everything(tmp_path_factory.mktemp("everything"))])


def test_the_fastest_that_is_as_accurate_as_the_base_is_taken(found: Evidence) -> None:
    nano = panels(found)[0]
    assert nano.goal == BASE.top1 and [entry.title for entry in nano.reaching()] == ["t1"]
    taken = nano.recommended()
    assert taken is not None and taken.title == "t1"
    assert [axis.name for axis in nano.axes] == [axis.name for axis in AXES]


def test_a_model_that_fails_a_gate_or_is_void_is_not_taken(found: Evidence) -> None:
    assert panels(found, [parse_gate("p99<2ms")])[0].recommended() is None
    nano = panels(found, [parse_gate("p99<4ms"), parse_gate("p99@8<1ms")])[0]
    t1 = by_title(nano)["t1"]
    assert nano.recommended() is t1 and (t1.gates_passed, t1.gates_failed) == (1, 0)
    moved = [replace(run, power_mode_after="MAXN") if run.label == "t1" else run for run in found.runs]
    void = panels(replace(found, runs=moved))[0]
    entry = by_title(void)["t1"]
    assert entry.void and entry.ratio is None and void.recommended() is None
    assert [cost_on_axis(entry, axis) for axis in AXES][:2] == [None, None] and cost_on_axis(entry, AXES[5]) == 500_000


def test_a_model_that_is_accurate_and_not_taken_is_not_called_inaccurate(found: Evidence) -> None:
    """Because it was not measured where another was, all its runs are void, or a gate fails."""
    poor = panels(replace(found, runs=[run for run in found.runs if run.label != "t1"]))[0]
    assert [e.title for e in poor.reaching()] == ["t1"] and poor.recommended() is None
    assert heading(poor) == "No model that is as accurate as the base has a figure for latency, p50"
    assert answer(poor).endswith("has 96.00 %. Measure t1, too, in turns with the base.")
    axes = {axis["name"]: axis["none"] for axis in panel_data(poor, {})["axes"]}
    assert axes["energy_mj"] == "No model that is as accurate as the base has a figure for energy of an image"
    moved = [replace(run, power_mode_after="MAXN") for run in found.runs]
    void = panels(replace(found, runs=moved))[0]
    assert heading(void) == "Every model that is as accurate as the base was measured in void runs"
    assert answer(void).endswith("has 96.00 %. What speaks against t1 is stated below the table.")
    failing = panels(found, [parse_gate("p99<1ms")])[0]
    assert answer(failing).endswith("has 96.00 %. What speaks against t1 is stated below the table.")
    baseless = replace(void, entries=tuple(void.models))
    assert heading(baseless) == "Every model was measured in void runs"
    assert "there is no base to set it against" in answer(baseless)


def test_what_was_not_measured_passes_no_gate(found: Evidence) -> None:
    without = [replace(run, power=None) if run.label == "t1" else run for run in found.runs]
    nano = panels(replace(found, runs=without), [parse_gate("energy<1J"), parse_gate("p99<4ms")])[0]
    t1 = by_title(nano)["t1"]
    assert [verdict.state for verdict in t1.verdicts] == ["not measured", "pass"] and t1.gates_failed == 0
    assert nano.recommended() is None and nano.reaching() == []
    assert heading(nano) == "No model that is as accurate as the base passes the gates"
    assert "t1 is not known to keep to energy<1J, which was not measured" in notes(nano)
    assert panel_data(nano, {})["none_reaching"] == heading(nano)
    some = [run for run in without if run.label != "t1" or run.round == 1] + [r for r in found.runs if r.round == 2]
    assert panels(replace(found, runs=some), [parse_gate("energy<1J")])[0].recommended() is None, "one of two runs has"


def test_a_model_without_a_run_passes_no_gate(found: Evidence) -> None:
    for runs in ([run for run in found.runs if run.label != "t1"], []):
        unmeasured = replace(found, runs=runs)
        assert [e.title for e in panels(unmeasured)[0].reaching()] == ["t1"], "nothing was asked"
        panel = panels(unmeasured, [parse_gate("p99<1s")])[0]
        assert by_title(panel)["t1"].verdicts == () and panel.reaching() == []
        assert {entry["title"]: entry["free"] for entry in panel_data(panel, {})["entries"]}["t1"] is False


def test_on_a_busy_machine_the_ratio_decides(found: Evidence) -> None:
    busy = [replace(run, cpu_busy_ns=30 * 10**9, cpu_own_ns=10**9) for run in found.runs]
    assert panels(replace(found, runs=busy))[0].axes[0].name == "ratio"


def test_on_a_busy_machine_ratios_of_runs_that_were_not_in_turns_are_not_said_to_hold(found: Evidence) -> None:
    busy = [replace(run, cpu_busy_ns=30 * 10**9, cpu_own_ns=10**9) for run in found.runs]

    def apart(*labels: str) -> Panel:
        alone = [replace(run, session=None, round=None) if run.label in labels else run for run in busy]
        return panels(replace(found, runs=alone))[0]

    none, some = apart("base", "t1", "t2"), apart("t2")
    assert by_title(none)["t1"].ratio is by_title(some)["t2"].ratio is None and by_title(some)["t1"].ratio is not None
    assert none.axes[0].name == some.axes[0].name == "p50_ms"
    assert "no ratio to the base is of rounds: measure models and base in turns" in notes(none)[0]
    assert notes(some)[0].endswith("ratios to the base are of rounds (of means), and hold, but for t2, measured apart.")


def test_a_void_run_does_not_make_the_milliseconds_of_a_busy_machine_decide(found: Evidence) -> None:
    busy = {"cpu_busy_ns": 30 * 10**9, "cpu_own_ns": 10**9}
    runs = [replace(r, **busy, throttled=("thermal",) if r.label == "t2" else ()) for r in found.runs]
    nano = panels(replace(found, runs=runs))[0]
    assert by_title(nano)["t2"].void and nano.axes[0].name == "ratio"
    assert notes(nano)[0].endswith("; ratios to the base are of rounds (of means), and hold.")


def test_on_a_machine_whose_speed_changes_the_ratio_decides(found: Evidence) -> None:
    steady = panels(found)[0]
    assert steady.spread < 1.1 and steady.axes[0].name == "p50_ms"
    slowed = [
        replace(run, latencies_ns=tuple(n * (2 + (run.round or 0) % 2) // 2 for n in run.latencies_ns))
        for run in found.runs
    ]
    shaken = panels(replace(found, runs=slowed))[0]
    assert shaken.spread > 1.4 and shaken.axes[0].name == "ratio"
    told = next(note for note in notes(shaken) if note.startswith("The machine's speed changed"))
    assert (
        f"lie {shaken.spread:.2g} times apart" in told
        and "ratios to the base are of rounds (of p50s), and hold" in told
    )
    assert by_title(shaken)["t1"].ratio == pytest.approx(by_title(steady)["t1"].ratio, rel=0.02)


@pytest.mark.parametrize(("network", "taken"), [("finetuned", "b"), ("base", "a")])
@pytest.mark.parametrize("known", [True, False])
def test_models_of_a_trained_base_are_to_be_as_good_as_that(
    tmp_path: Path, network: Any, taken: str, known: bool
) -> None:
    """The smaller one only reaches the base as it was, on the validation images as on the test images."""
    finetuned, start = AccuracyRecord(0.99, 200), StartRecord(network, 30, 0.5, 0.4)
    for name, top1, right, macs in (("a", GOOD, 181, 5 * 10**5), ("b", accuracy(0.98, 97, 99), 196, 10**6)):
        told = replace(accuracies(top1), base_finetuned=finetuned)
        validation = ValidationRecord(200, 180, right, 198 if known else None)
        made = derived(top1, accuracy=told, start=start, validation=validation)
        write_folder(tmp_path / name, derivation=made, macs=macs)
    (panel,) = panels(gather([tmp_path]))
    chosen = panel.recommended()
    assert chosen is not None and chosen.title == taken
    assert panel.part == ("validation" if known or network == "base" else "test")
    told = "base trained on the classes has 99.00 %"
    assert (told if network == "finetuned" else "base restricted to the classes has 96.00 %") in answer(panel)


def test_models_are_chosen_on_validation_images_where_all_were_judged_on_them(tmp_path: Path) -> None:
    write_folder(tmp_path / "base")
    for name, right, seen in (("small", 80, GOOD), ("large", 95, POOR)):
        write_folder(tmp_path / name, derivation=derived(seen, validation=ValidationRecord(100, 96, right)))
    (panel,) = panels(gather([tmp_path]))
    assert panel.part == "validation" and [entry.title for entry in panel.reaching()] == ["large"]
    assert "by more than chance: on 100 validation images, compared by intervals" in answer(panel)
    assert answer(panel).endswith("On the test images the base restricted to the classes has 96.00 %.")
    write_folder(tmp_path / "older", derivation=derived(GOOD))
    (panel,) = panels(gather([tmp_path]))
    assert panel.part == "test" and [entry.title for entry in panel.reaching()] == ["older", "small"]


def on_images(right: int, total: int, first: int = 0) -> RightImages:
    """So many right images in a row, from the first on."""
    return RightImages.of(first <= i < first + right for i in range(total))


def test_a_cheaper_model_that_loses_a_class_is_named_and_not_recommended(tmp_path: Path) -> None:
    classes = {"cat": 30, "dog": 170}
    for name, cats in (("small", 21), ("large", 29)):
        base, model = (
            RightImages.of([i < n for i in range(30)] + [i < 192 - n for i in range(170)], classes) for n in (30, cats)
        )
        answers = {part: PartAnswers(base, model) for part in ("validation", "test")}
        validation = ValidationRecord(200, 192, 192)
        write_folder(
            tmp_path / name, derivation=derived(GOOD, validation=validation, answers=answers), macs=10**5 * cats
        )
    (panel,) = panels(gather([tmp_path]))
    assert [entry.title for entry in panel.reaching()] == ["large"]
    assert answer(panel).endswith(
        "small costs less and is as accurate on all validation images, but of the 30 of 'cat' it loses 9 and gains 0."
    )


def test_models_are_compared_with_their_base_by_pairs(tmp_path: Path) -> None:
    """Of 100 validation images 6 and 10 that are lost are more than chance, and 5 are not; all reach it on test."""
    for name, first in (("small", 0), ("large", 4)):
        base = {"validation": on_images(100, 100), "test": on_images(192, 200)}
        answers = {
            "validation": PartAnswers(base["validation"], on_images(90 + first, 100)),
            "test": PartAnswers(base["test"], on_images(190, 200)),
        }
        validation = ValidationRecord(100, 100, 90 + first)
        write_folder(
            tmp_path / name, derivation=derived(GOOD, validation=validation, answers=answers), macs=10**5 * (first + 1)
        )
    (panel,) = panels(gather([tmp_path]))
    assert panel.part == "validation" and not panel.recalled
    assert [entry.title for entry in panel.reaching()] == []
    assert heading(panel) == "No model is as accurate as the base on the validation images"
    assert answer(panel).startswith("The most accurate is large with 94.00 % (87.5 to 97.2) on the validation images; ")
    fewer = {part: replace(each, derived=on_images(95, 100)) for part, each in answers.items() if part != "test"}
    chosen = ValidationRecord(100, 100, 95)
    write_folder(
        tmp_path / "third", macs=10**6, derivation=derived(GOOD, validation=chosen, answers={**answers, **fewer})
    )
    (panel,) = panels(gather([tmp_path]))
    taken = panel.recommended()
    assert taken is not None and taken.title == "third", "95 of 100 would not reach 100 % by its interval"
    assert "on 100 validation images it loses 5 right answers of the base and gains 0; a loss of up to" in answer(panel)


def test_a_base_that_was_trained_on_the_validation_images_is_judged_on_the_test_images(tmp_path: Path) -> None:
    """As many do: right on all of them, and on 94.5 % of the test images, where the model has 95 %."""
    answers = {
        "validation": PartAnswers(on_images(120, 120), on_images(108, 120)),
        "test": PartAnswers(on_images(189, 200), on_images(190, 200)),
    }
    told = replace(accuracies(GOOD), base_restricted=accuracy(0.945, 94, 95))
    validation = ValidationRecord(120, 120, 108)
    write_folder(
        tmp_path / "m", derivation=derived(GOOD, accuracy=told, validation=validation, answers=answers), macs=5
    )
    (panel,) = panels(gather([tmp_path]))
    assert panel.part == "test" and heading(panel) == "Take m"
    assert "on 200 test images it loses 0 right answers of the base and gains 1;" in answer(panel)
    assert notes(panel)[-1] == (
        "The base was probably trained on the validation images (100.0% there, 94.5% on test): the test images decide."
    )


def test_a_file_that_was_judged_by_itself_must_hold_on_the_test_images_too(found: Evidence) -> None:
    chosen = ValidationRecord(100, 96, 96)
    models = [m if m.derivation is None else replace(m, derivation=replace(m.derivation, validation=chosen))
              for m in found.models]  # fmt: skip
    nano = panels(replace(found, models=models))[0]
    judged = {entry.title: entry.judged for entry in nano.models}
    assert nano.part == "validation" and judged["t2"] == "model.fp16.onnx", "which is right on 70 % of the test images"
    assert [entry.title for entry in nano.reaching()] == ["t1"]


def level_with_t1(found: Evidence, right: int) -> Panel:
    """The first panel, with t2 as accurate on the test images, at nearly t1's latency, and of `right` of 100."""

    def judged(model: GatheredModel) -> GatheredModel:
        if model.derivation is None or model.export is None:
            return model
        chosen = ValidationRecord(100, 96, 96 if model.name == "t1" else right)
        made = replace(model.derivation, validation=chosen, accuracy=accuracies(GOOD))
        return replace(model, derivation=made, export=replace(model.export, accuracy=None))

    models = list(map(judged, found.models))
    (slow,) = {tuple(run.latencies_ns) for run in found.runs if run.label == "t1" and run.session == "s1"}
    by_round = {n: tuple(round(ns * (0.99 + 0.006 * (n % 3))) for ns in slow) for n in range(1, 7)}
    waves = {n: tuple(round(ns * (0.991 + 0.006 * ((n + 1) % 3))) for ns in slow) for n in range(1, 7)}
    times = {"t1": by_round, "t2": waves}
    runs = [
        replace(run, latencies_ns=times[run.label][run.round or 1], wall_ns=sum(times[run.label][run.round or 1]))
        if run.label in times and run.session == "s1" else run
        for run in found.runs
    ]  # fmt: skip
    return panels(replace(found, models=models, runs=runs))[0]


@pytest.mark.parametrize(("right", "best"), [(95, "t1"), (97, "t2")])
def test_of_models_whose_latency_cannot_be_told_apart_the_most_accurate_is_taken(
    found: Evidence, right: int, best: str
) -> None:
    nano = level_with_t1(found, right)
    t1, t2 = (by_title(nano)[title] for title in ("t1", "t2"))
    assert nano.reaching() == [t1, t2] and are_level(t1, t2, AXES[0]) and not are_level(t1, t2, AXES[5])
    taken, cheapest = nano.recommended(), nano.cheapest()
    assert taken is not None and cheapest is not None and taken.title == best
    told = f"{cheapest.title} is less accurate on the validation images, and what it costs less"
    assert (told in answer(nano)) == (taken is not cheapest)


def test_of_models_that_cost_the_same_the_most_accurate_is_taken(tmp_path: Path) -> None:
    for name, right in (("closed", 95), ("trained", 97)):
        chosen = ValidationRecord(100, 96, right)
        write_folder(tmp_path / name, derivation=derived(GOOD, validation=chosen), macs=500_000)
    (panel,) = panels(gather([tmp_path]))
    taken = panel.recommended()
    assert taken is not None and taken.title == "trained"
    assert answer(panel).endswith("closed costs the same, and is less accurate on the validation images.")
