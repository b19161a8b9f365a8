"""One row for every model at every place, in panels of what is comparable."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from counting import calls
from model_folders import some_spec
from some_report import (
    BASE,
    CLASSES,
    DATA,
    GOOD,
    NANO,
    NX,
    POOR,
    accuracies,
    accuracy,
    by_title,
    derived,
    turns,
    write_everything,
    write_folder,
)
from some_runs import MS

from benchmarks.product import load
from edgevit.records.derivation import (
    DERIVATION_KIND,
    Accuracies,
    AccuracyRecord,
    MapRecord,
    StartRecord,
)
from edgevit.records.engine import EngineRecord
from edgevit.records.export import ExportedFile
from edgevit.records.imported import ImportedDocument
from edgevit.records.model import TargetClass
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.gather import Evidence, gather
from edgevit.reporting.page import as_html
from edgevit.reporting.panels import not_shown, panels
from edgevit.reporting.tables import as_markdown, notes, split_reasons
from edgevit.reporting.views import model_view, tabs


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return gather([write_everything(tmp_path_factory.mktemp("everything"))])


def test_each_place_is_a_panel_with_three_baselines_on_top(found: Evidence) -> None:
    nano, nx, gone = panels(found)
    assert [panel.place and panel.place.title for panel in (nano, nx, gone)] == [
        "Nano, 25W, TensorRT 10.3.0, batch 1", *["NX, 15W, TensorRT 10.3.0, batch 1"] * 2,
    ]  # fmt: skip
    full, restricted, finetuned = nano.entries[:3]
    assert [entry.is_baseline for entry in nano.entries] == [True] * 3 + [False] * 2
    assert (full.top1, restricted.top1, finetuned.top1) == (0.9, BASE.top1, None)
    assert (full.p50_ms, restricted.p50_ms, restricted.ratio) == (None, pytest.approx(8.009), 1.0)
    assert (gone.task, [entry.title for entry in gone.entries]) == (None, ["lost"])


def test_figures_are_medians_of_the_runs_and_the_ratio_is_of_the_rounds(found: Evidence) -> None:
    t1 = by_title(panels(found)[0])["t1"]
    assert (t1.repeats, t1.p50_ms, t1.macs, t1.method) == (6, pytest.approx(3.009), 500_000, "nuwa")
    assert t1.ratio == pytest.approx(3.009 / 8.009, rel=1e-3) and t1.ratio_of == "p50"
    assert t1.energy_mj is not None and t1.file_bytes == 2000


def test_of_sessions_with_as_many_runs_the_latest_gives_the_ratio(found: Evidence) -> None:
    first = [run for run in found.runs if run.session == "s1"]
    for session, day, factor in (("a", 2, 2), ("z", 2, 3), ("z", 0, 4)):
        again = [
            replace(run, session=session, created=f"2030-01-0{day}" if day else "2000-01-01",
                    latencies_ns=tuple(factor * n for n in run.latencies_ns) if run.label == "t1" else run.latencies_ns)
            for run in first
        ]  # fmt: skip
        ratio = by_title(panels(replace(found, runs=[*first, *again]))[0])["t1"].ratio
        assert ratio == pytest.approx(3.009 / 8.009 * (factor if day else 1), rel=1e-3)


def test_the_accuracy_is_that_of_the_very_file_where_it_was_judged_on_the_same_images(found: Evidence) -> None:
    nano, nx, _ = panels(found)
    onnx, engine = by_title(nano)["t1"], by_title(nx)["t1"]
    assert (onnx.top1, onnx.judged) == (pytest.approx(0.945), "model.fp16.onnx")
    assert (engine.top1, engine.judged) == (0.94, found.models[1].engines[0].file)
    unmeasured = by_title(nx)["t2"]
    assert (unmeasured.top1, unmeasured.judged, unmeasured.p50_ms) == (0.7, "torch", None)

    def on_fewer(record: EngineRecord) -> EngineRecord:
        assert record.accuracy is not None
        return replace(record, accuracy=replace(record.accuracy, images=50))

    t1 = replace(found.models[1], engines=tuple(map(on_fewer, found.models[1].engines)))
    other = by_title(panels(replace(found, models=[found.models[0], t1]))[1])["t1"]
    assert (other.top1, other.judged) == (GOOD.top1, "torch")


def test_the_files_of_two_precisions_are_two_points_with_their_own_accuracies(found: Evidence) -> None:
    base, t1 = found.models[:2]
    assert t1.export is not None and t1.export.accuracy is not None
    judged = t1.export.accuracy
    int8 = replace(judged.files["fp16"], top1=0.93)
    export = replace(
        t1.export,
        files={**t1.export.files, "model.int8.onnx": ExportedFile("8" * 64, 700, None)},
        parity={**t1.export.parity, "int8": t1.export.parity["fp16"]},
        accuracy=replace(judged, files={**judged.files, "int8": int8}),
    )
    faster = [
        replace(run, model="model.int8.onnx", model_sha256="8" * 64, precision="int8",
                latencies_ns=tuple(n // 2 for n in run.latencies_ns))
        for run in found.runs if run.label == "t1"
    ]  # fmt: skip
    both = replace(found, models=[base, replace(t1, export=export), *found.models[2:]], runs=[*found.runs, *faster])
    nano = by_title(panels(both)[0])
    assert (nano["t1, fp16"].top1, nano["t1, int8"].top1) == (pytest.approx(0.945), 0.93)
    assert nano["t1, int8"].p50_ms == pytest.approx(3.009 / 2) and nano["t1, int8"].file_bytes == 700
    assert nano["t1, fp16"].file_bytes == 2000


def test_weights_are_not_set_beside_files_that_were_measured(found: Evidence) -> None:
    """A model that was not measured there stands by the exported file of the same name, if it has that."""
    some = [replace(run, model="model.fp16.onnx") for run in found.runs if run.session == "s1" and run.label != "t2"]
    assert by_title(panels(replace(found, runs=some))[0])["t2"].file_bytes == 2000
    engine = by_title(panels(found)[1])
    assert engine["t1"].file_bytes == 64 and engine["t2"].file_bytes is None
    assert by_title(panels(replace(found, runs=[]))[0])["t2"].file_bytes == 3000


def test_tasks_and_seeds_are_kept_apart_with_the_base_in_each(tmp_path: Path) -> None:
    write_folder(tmp_path / "base")
    for seed in (42, 7):
        write_folder(tmp_path / f"s{seed}", derivation=derived(GOOD, data=replace(DATA, seed=seed)))
    made = panels(gather([tmp_path]))
    assert [[entry.title for entry in panel.models] for panel in made] == [["s42"], ["s7"]]
    assert all(panel.baselines[1].model == "base" and panel.place is None for panel in made)
    assert made[0].recommended() == made[0].models[0]  # by its MACs, as nothing was measured


PREPROCESSING = some_spec().preprocessing
OTHERS = {
    "weights": ({"base": replace(some_spec().base, weights_sha256="c" * 64)}, "weights bbbbbb", "weights cccccc"),
    "name": ({"base": replace(some_spec().base, weights_sha256="c" * 64), "timm_name": "vit_small_patch16_224"},
             "vit_tiny_patch16_224", "vit_small_patch16_224"),
    "preprocessing": ({"preprocessing": {**PREPROCESSING, "crop_pct": 1.0}}, "crop pct 0.9", "crop pct 1.0"),
    "classes": ({"classes": (TargetClass("cat", 4), TargetClass("dog", 5))}, "outputs 3, 5", "outputs 4, 5"),
}  # fmt: skip


@pytest.mark.parametrize("differing", list(OTHERS))
def test_models_are_judged_against_their_own_base_alone(tmp_path: Path, differing: str) -> None:
    """Two sweeps of the same classes and images, measured in one place."""
    spec, words, other_words = OTHERS[differing]
    weak = replace(accuracies(POOR), base_restricted=accuracy(0.72, 52, 92))
    for name, ms, told, fields in (("a", 8, weak, {}), ("b", 4, accuracies(GOOD), spec)):
        runs = turns(write_folder(tmp_path / name / "base", label=f"{name}0", **fields), "base", ms, NANO, name)
        made = derived(GOOD, accuracy=told)
        runs += turns(
            write_folder(tmp_path / name / "small", label=name, derivation=made, **fields), "s", ms / 4, NANO, name
        )
        (tmp_path / name / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    made = panels(found := gather([tmp_path]))
    assert [(panel.base, panel.goal) for panel in made] == [(other_words, 0.96), (words, 0.72)], "the best base first"
    for panel, name, ms in zip(made, "ba", (4, 8), strict=True):
        assert [entry.model for entry in panel.entries if entry.model] == [f"{name}/base", f"{name}/small"]
        base, small = (entry for entry in panel.entries if entry.runs)
        assert (base.p50_ms, base.ratio, small.ratio) == (pytest.approx(ms, rel=0.01), 1, pytest.approx(0.25, rel=0.02))
        assert panel.recommended() is small, "each is as good as its own base"
    assert [any(f"({other_words}: 96.00 %)" in note for note in notes(panel)) for panel in made] == [False, True]
    assert split_reasons(made) == [
        f"2 bases are kept apart, as models are judged against their own: {other_words}; {words}."
    ]
    assert tabs(made) == [other_words, words] and other_words in as_html(made, found)
    assert f"base: {words}" in as_markdown(made, [])


def test_two_sweeps_of_one_base_share_its_baselines_and_each_has_its_own_rounds(tmp_path: Path) -> None:
    for name, ms in (("a", 8), ("b", 4)):
        runs = turns(write_folder(tmp_path / name / "base", label=f"{name}0"), "base", ms, NANO, name)
        runs += turns(
            write_folder(tmp_path / name / "small", label=name, derivation=derived(GOOD)), "s", ms / 4, NANO, name
        )
        (tmp_path / name / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    (panel,) = panels(gather([tmp_path]))
    assert [entry.kind for entry in panel.baselines] == ["full head", "restricted", "fine-tuned"] and not panel.base
    assert [entry.ratio for entry in panel.models] == [pytest.approx(0.25, rel=0.02)] * 2


def test_panels_that_nobody_can_choose_by_are_not_made(tmp_path: Path) -> None:
    small = turns(write_folder(tmp_path / "small", derivation=derived(GOOD)), "small", 2, NANO, "s")
    sha = write_folder(tmp_path / "base")
    other = replace(some_spec().base, weights_sha256="c" * 64)
    alone = turns(write_folder(tmp_path / "alone" / "base", label="alone", base=other), "alone", 5, NX, "t")
    write_folder(tmp_path / "unknown")
    unjudged = derived(GOOD, data=None, accuracy=Accuracies(None, None, None, None))
    (tmp_path / "unknown" / "derivation.json").write_text(DERIVATION_KIND.text(unjudged))
    write_folder(tmp_path / "alike")
    alike = replace(unjudged, map=MapRecord(4, 0.1, 0.9, 0.1))
    (tmp_path / "alike" / "derivation.json").write_text(DERIVATION_KIND.text(alike))
    runs = [*small, *turns(sha, "base", 8, NANO, "s"), *turns(sha, "base", 8, NX, "u")]
    for folder, lines in ((tmp_path, runs), (tmp_path / "alone", alone)):
        (folder / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in lines))
    made = panels(found := gather([tmp_path]))
    assert [panel.place and panel.place.environment["board"] for panel in made] == ["Nano"], "NX has bases alone"
    left_out = {Path(one.source).relative_to(tmp_path): one.reason for one in not_shown(found, made)}
    assert left_out == {
        Path("alone/base"): "no model here was derived from it", Path("unknown"): "neither judged nor measured",
        Path("alike"): "compared with its base alone, and not measured; give its folder alone, or measure it",
    }  # fmt: skip
    (panel,) = made = panels(found := gather([tmp_path / "alone"]))
    assert panel.is_of_bases and panel.models[0].p50_ms and not not_shown(found, made), "where there is nothing else"


def test_the_task_of_most_measured_models_is_first(found: Evidence, tmp_path: Path) -> None:
    write_folder(tmp_path / "a", derivation=derived(GOOD, data=replace(DATA, seed=7)))
    apart = panels(replace(found, models=[*gather([tmp_path]).models, *found.models]))
    assert [[entry.title for entry in panel.models] for panel in apart[:2]] == [["t1", "t2"]] * 2


def test_of_bases_that_were_fine_tuned_by_other_steps_the_most_accurate_is_the_baseline(tmp_path: Path) -> None:
    for name, top1 in (("a", 0.7), ("b", 0.93), ("c", None)):
        finetuned = None if top1 is None else AccuracyRecord(top1, 200)
        write_folder(
            tmp_path / name, derivation=derived(GOOD, accuracy=replace(accuracies(GOOD), base_finetuned=finetuned))
        )
    (panel,) = panels(gather([tmp_path]))
    assert [(entry.kind, entry.top1) for entry in panel.baselines][2] == ("fine-tuned", 0.93)


def test_what_cut_the_base_and_whether_it_was_trained_first_tells_models_apart(tmp_path: Path) -> None:
    started = {name: StartRecord(name, 30, 0.5, 0.4) for name in ("base", "finetuned")}
    write_folder(tmp_path / "a", derivation=derived(GOOD, start=started["base"]))
    write_folder(tmp_path / "b", derivation=derived(GOOD, start=started["finetuned"]))
    found = gather([tmp_path])
    (panel,) = panels(found)
    ways = ["nuwa", "base trained, then nuwa"]
    assert [entry.method for entry in panel.models] == ways
    view = model_view(found.models[1], "m0", found, [panel])
    assert ("method", ways[1]) in view["provenance"] and "by nuwa for" in view["summary"]


def test_a_base_alone_is_a_model_whose_accuracy_is_not_known(tmp_path: Path) -> None:
    write_folder(tmp_path / "base")
    (panel,) = panels(gather([tmp_path]))
    assert [(entry.kind, entry.top1) for entry in panel.entries] == [("model", None)] and panel.recommended() is None


def test_runs_of_a_folder_that_is_gone_or_was_made_anew_are_not_its(tmp_path: Path) -> None:
    sha = write_folder(tmp_path / "t1", derivation=derived(GOOD))
    runs = turns(sha, "t1", 3, NANO, "s")
    (tmp_path / "runs.jsonl").write_text("".join(run.to_json() + "\n" for run in runs))
    (panel,) = panels(gather([tmp_path]))
    assert [entry.p50_ms for entry in panel.models] == [pytest.approx(runs[0].p50_ns() / MS)]
    shutil.rmtree(tmp_path / "t1")
    (panel,) = panels(gather([tmp_path]))
    assert [(entry.kind, entry.title) for entry in panel.entries] == [("gone", "t1")]


def test_a_model_that_came_as_an_onnx_file_is_judged_by_its_export(tmp_path: Path) -> None:
    write_folder(tmp_path / "o", derivation=derived(GOOD))
    for name in ("model.json", "derivation.json"):
        (tmp_path / "o" / name).unlink()
    (tmp_path / "o" / "model.onnx").write_bytes(b"x" * 70)
    preprocessing = some_spec().preprocessing
    document = ImportedDocument(
        file="other.onnx", file_sha256="0" * 64, weights_sha256="a" * 64, batch=1, opset=20, outputs=10, norms=(),
        blocks=(), classes=CLASSES, preprocessing=preprocessing, seed=42, validation_fraction=0.1, data=DATA,
        edgevit="0.1.0",
    )  # fmt: skip
    ModelFolder(tmp_path / "o").write_imported(document)
    (panel,) = panels(found := gather([tmp_path]))
    (entry,) = panel.entries
    assert (entry.top1, entry.judged, entry.macs, entry.file_bytes) == (GOOD.top1, "the imported file", None, 70)
    assert panel.task is not None and panel.task.classes == ("cat", "dog")
    assert model_view(found.models[0], "m0", found, [panel])["exported_beside"] == "the imported file"


@pytest.mark.slow
def test_twice_as_many_models_or_runs_take_twice_the_work(tmp_path: Path) -> None:
    def work(models: int, repeats: int) -> int:
        root = tmp_path / f"{models} {repeats}"
        root.mkdir()
        load.write_models(root, models, repeats, steps=1, samples=20)
        found = gather([root])

        def views() -> None:
            made = panels(found)
            for model in found.models:
                model_view(model, "m", found, made)

        return calls(views)

    work(1, 1)  # what is loaded once per process
    once = work(12, 2)
    assert work(24, 2) < 2.3 * once and work(12, 4) < 2.3 * once
