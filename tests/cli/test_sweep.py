"""`edgevit sweep` and what it prints, as a person types it."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_base import ARGS, fewer_digits
from typer.main import get_command

from edgevit.cli.app import app
from edgevit.cli.console import Console
from edgevit.cli.sweep import show_sweep
from edgevit.jobs.sweep.record import FinetunedBase, Latency, Sweep, SweepPoint, read_sweep, write_sweep
from edgevit.records.answers import RightImages
from edgevit.records.derivation import MapRecord, MapScore, SimilarityRecord, StartRecord
from edgevit.text import format_count

NETWORK = ["vit_tiny_patch16_224", *(w for k, v in ARGS.items() for w in ("--model-arg", f"{k}={v}"))]
TASK = ["--data", "digits", "--classes", "3,5,8"]


@pytest.fixture
def given(digits_checkpoint: Path) -> list[str]:
    return [*NETWORK, "--checkpoint", str(digits_checkpoint)]


def parsed(line: str) -> dict[str, Any]:
    """What typer understands of a printed command."""
    name, *arguments = shlex.split(line.partition("edgevit ")[2])
    with get_command(app).commands[name].make_context(name, arguments) as context:  # type: ignore[attr-defined]
        return {"command": name, **context.params}


def test_a_sweep_ends_with_the_table_the_plot_and_the_command_that_distils(
    given: list[str], edgevit_main: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgevit.board.request import Conditions
    from edgevit.jobs.sweep import run

    monkeypatch.setattr(run, "ROUNDS", 2)
    monkeypatch.setattr(run, "CONDITIONS", Conditions(samples=20, duration_s=0, warmup=1, warmup_seconds=0))
    out = tmp_path / "my sweep"
    method = ["--method", "nuwa", "--set", "nuwa.purification=none", "--device", "cpu", "--threads", "1"]
    start = ["--derive-from", "better", "--base-steps", "30", "--batch-size", "24", "--lr", "3e-3"]
    command = ["sweep", *given, *TASK, *method, *start, "--rates", "0.4", "--out", out]
    with fewer_digits():
        first = edgevit_main(*command)
    assert first.code == 0, first.err
    record = read_sweep(out)
    said = " ".join(first.out.split())
    assert f"{100 * record.points[1].top1:.2f} %" in first.out and "r0.4" in first.out and " ms" in first.out
    assert "on this machine's CPU, 1 thread" in said
    row = next(line for line in first.out.splitlines() if "base, fine-tuned" in line)
    assert f"{100 * record.finetuned.top1:.2f} %" in row and format_count(record.base.macs) in row
    assert f"The models are {record.finetuned.start.format()}" in said and "no training after the cut" in said
    next_ = parsed(next(line for line in first.out.splitlines() if line.startswith("Next: ")))
    names = ("derive_from", "base_steps", "batch_size", "lr", "classes")
    assert tuple(next_[name] for name in names) == ("better", 30, 24, 3e-3, "3,5,8")
    if record.chosen() is None:
        assert (next_["command"], next_["rates"]) == ("sweep", "0.2")
    else:
        assert (next_["command"], next_["rate"], next_["out"]) == ("derive", "0.4", out / "r0.4-distilled")
        assert next_["threads"] is None, "a rate is not met by measuring"
    shown = edgevit_main("show", out)
    assert shown.code == 0 and shown.out.splitlines()[1:3] == first.out.splitlines()[1:3]
    assert "base, fine-tuned" in shown.out
    assert json.loads(edgevit_main("show", out, "--json").out)["finetuned"]["start"]["steps"] == 30
    with fewer_digits():
        again = edgevit_main(*command)
    assert (again.code, again.out) == (0, first.out)


def test_one_that_loses_more_than_chance_is_not_chosen(edgevit_main: Any, tmp_path: Path) -> None:
    points = tuple(
        SweepPoint(f, rate, right, 300, macs, 9)
        for f, rate, right, macs in (("base", None, 270, 9), ("r0.5", 0.5, 9, 4))
    )
    found = Sweep(
        {}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points, ("rate 0.99: too small",)
    )
    write_sweep(tmp_path, found)
    shown = edgevit_main("show", tmp_path)
    said = " ".join(shown.out.split())
    assert (
        "r0.5 is the most accurate, and there is no model whose loss against the base may be chance: on 300 validation "
        "images, compared by intervals, as no record says which of them are right; a loss of up to 88.4 points"
    ) in said
    assert "left out: rate 0.99: too small" in shown.out and "MACs" in shown.out
    finetuned = FinetunedBase(285, 300, StartRecord("finetuned", 30, 0.3, 0.2))
    write_sweep(tmp_path, replace(found, finetuned=finetuned))
    shown = " ".join(edgevit_main("show", tmp_path).out.split())
    assert "there is no model whose loss against the fine-tuned base may be chance" in shown
    assert "The models are pruned from the base after training: 30 steps on the classes" in shown


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        (
            (0.72, 0.51, 0.31),
            "r0.7 is the smallest model with 50% of the same nearest images or more, which does not say",
        ),
        (
            (0.4, 0.3, 0.2),
            "No model has 50% of the same nearest images, and none is proposed; with labels, --probe knn",
        ),
        ((None, None, None), "20 test images are too few to compare their nearest: give 100 or more"),
    ],
)
def test_without_labels_models_are_shown_by_how_like_the_bases_their_features_are(
    edgevit_main: Any, tmp_path: Path, shares: Any, line: str
) -> None:
    points = [SweepPoint("base", None, None, 20, 10, 9)]
    for rate, share in zip((0.5, 0.7, 0.9), shares, strict=True):
        similarity = SimilarityRecord(20, 1 - rate / 10, share)
        points.append(SweepPoint(f"r{rate}", rate, None, 20, round(10 * (1 - rate)), 9, similarity=similarity))
    request = {"output": "features"}
    found = Sweep(request, "test", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, tuple(points))
    write_sweep(tmp_path, found)
    shown = edgevit_main("show", tmp_path)
    said = " ".join(shown.out.split())
    assert line in said and "cosine, same neighbours on 20 test images" in said and "0.9300" in said


def test_a_smaller_model_that_loses_a_class_is_named(edgevit_main: Any, tmp_path: Path) -> None:
    points = []
    for folder, rate, cracks in (("base", None, 30), ("r0.5", 0.5, 29), ("r0.9", 0.9, 18)):
        right = [i < cracks for i in range(30)] + [i < 270 - cracks for i in range(270)]
        which = RightImages.of(right, {"crack": 30, "whole": 270})
        judged = {"validation": which, "test": which}
        points.append(SweepPoint(folder, rate, 270, 300, round(100 * (1 - (rate or 0))), 9, judged=judged))
    write_sweep(tmp_path, Sweep({}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, tuple(points)))
    out = " ".join(edgevit_main("show", tmp_path).out.split())
    assert "r0.5 is the smallest model whose loss against the base may be chance" in out
    assert "r0.9 is as accurate on all of them and smaller, but of the 30 of 'crack' it loses 12 and gains 0" in out


@pytest.mark.parametrize(("on_test", "part"), [((260, 255), "validation"), ((220, 215), "test")])
def test_the_part_that_decides_is_named_and_so_is_a_base_that_was_trained_on_the_validation_images(
    edgevit_main: Any, tmp_path: Path, on_test: tuple[int, int], part: Any
) -> None:
    judged = [
        {"validation": RightImages.of(i < n for i in range(300)), "test": RightImages.of(i < m for i in range(300))}
        for n, m in zip((260, 250), on_test, strict=True)
    ]
    points = tuple(
        SweepPoint(f, rate, 0, 300, macs, 9, judged=each)
        for f, rate, macs, each in zip(("base", "r0.5"), (None, 0.5), (9, 4), judged, strict=True)
    )
    found = Sweep({}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points).judged_on(part)
    write_sweep(tmp_path, found)
    shown = edgevit_main("show", tmp_path)
    out, err = (" ".join(text.split()) for text in (shown.out, shown.err))
    if part == "validation":
        assert "no model whose loss against the base may be chance: on 300 validation images it loses 10 right" in out
        assert "On the 300 test images, which `edgevit report` shows, the base has 86.67% and r0.5 85.00%" in out
        assert not err
    else:
        assert (
            "r0.5 is the smallest model whose loss against the base may be chance: on 300 test images it loses 5" in out
        )
        assert "warning: the base was probably trained on the validation images (86.7% there, 73.3% on test);" in err
        forced = found.judged_on("validation")
        write_sweep(tmp_path, forced)
        assert "judge on test: --split test" in " ".join(edgevit_main("show", tmp_path).err.split())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--rates", "0.5,1.5"], "--rates 1.5 is not in (0, 1)"),
        (["--rates", "half"], "--rates half is not numbers separated by commas"),
        (["--rates", ","], "no rates"),
        (["--rates", "nan"], "--rates nan"),
        (["--split", "train"], "no part of the data 'train'"),
        (["--method", "skd"], "need no sweep"),
        (["--lr", "1e-3"], "--lr is for a base that is trained; give --derive-from better, too"),
        (["--derive-from", "best"], "no network to derive from 'best'; did you mean 'better' or 'base'"),
        (["--classes", "3,elephant"], "elephant"),
    ],
)
def test_what_cannot_be_is_refused(
    given: list[str], edgevit_main: Any, tmp_path: Path, wrong: list[str], told: str
) -> None:
    refused = edgevit_main("sweep", *given, *TASK, "--out", tmp_path / "s", *wrong)
    assert told in refused.error and not (tmp_path / "s").exists()


def test_derive_with_several_rates_names_sweep(given: list[str], edgevit_main: Any, tmp_path: Path) -> None:
    refused = edgevit_main("derive", *given, *TASK, "--rate", "0.5,0.7", "--out", tmp_path / "x")
    assert "several rates: edgevit sweep --rates 0.5,0.7" in refused.error
    with_comma = edgevit_main("derive", *given, *TASK, "--rate", "0,7", "--out", tmp_path / "x")
    assert "--rate 0,7 is not a number; try 0.7" in with_comma.error


def test_a_ready_made_model_has_a_row_and_a_point_and_a_line_where_it_is_better(
    edgevit_main: Any, tmp_path: Path
) -> None:
    points = [
        SweepPoint(folder, rate, right, 300, macs, macs // 20, Latency("p50", ratio, ratio, None, None))
        for folder, rate, right, macs, ratio in (
            ("base", None, 270, 9_000, 1), ("r0.5", 0.5, 268, 4_500, 0.6), ("resnet50", None, 275, 6_000, 0.41)
        )
    ]  # fmt: skip
    versions = {"edgevit": "0.1.0"}
    sweep = Sweep(
        {}, "validation", "2026-01-01T00:00:00+00:00", versions, tuple(points[:2]), ready_made=tuple(points[2:])
    )
    write_sweep(tmp_path, sweep)
    shown = edgevit_main("show", tmp_path).out
    assert "resnet50.onnx, ready-made" in shown
    line = (
        "resnet50.onnx is ready-made, at least as accurate as r0.5 (91.67% against 89.33%) and not slower (0.41 of the "
        "base's latency against 0.60): deriving pays only for MACs and parameters"
    )
    assert line in shown.splitlines()
    write_sweep(tmp_path, replace(sweep, ready_made=(replace(points[2], right=200),)))
    assert "deriving pays" not in edgevit_main("show", tmp_path).out


def test_ready_made_features_and_maps_have_rows_with_the_figures_of_the_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    latency = Latency("p50", 1, 1, None, None)
    base, rival = (
        SweepPoint(folder, None, right, 4, 9_000, 450, latency, probes={"knn": {"validation": which}})
        for folder, right, which in (
            ("base", 3, RightImages.of([1, 1, 1, 0])),
            ("dino", 2, RightImages.of([1, 1, 0, 0])),
        )
    )
    created, versions = "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}
    features = Sweep({"output": "features"}, "validation", created, versions, (base,), ready_made=(rival,))
    show_sweep(Console(), Path("runs/s"), features)
    assert f"dino.onnx, ready-made │ 50.00 % (15.0 to 85.0) │ {format_count(9_000)} │ 450 │" in " ".join(
        capsys.readouterr().out.split()
    )

    small = SweepPoint(
        "r0.5", 0.5, None, 12, 4_500, 225, latency, map=MapRecord(12, 0.1, 0.875, 0.05), targets=MapScore(0.61, 0.04)
    )
    base, rival = (
        SweepPoint(name, None, None, 12, 9_000, 450, latency, targets=MapScore(score, 0.03))
        for name, score in (("base", 0.65), ("unet", 0.71))
    )
    maps = Sweep({"output": "map:foreground"}, "test", created, versions, (base, small), ready_made=(rival,))
    show_sweep(Console(), Path("runs/s"), maps)
    shown = " ".join(capsys.readouterr().out.split())
    assert "agreement, IoU with masks, mean error on 12 test images" in shown
    assert "r0.5 │ 87.5% │ 61.00% │ 0.0400 │" in shown and "unet.onnx, ready-made │ │ 71.00% │ 0.0300 │" in shown
    own = replace(maps, ready_made=(replace(rival, targets=MapScore(-3.25, None, own=True)),))
    show_sweep(Console(), Path("runs/s"), own)
    shown = " ".join(capsys.readouterr().out.split())
    assert "agreement, own score, mean error" in shown and "unet.onnx, ready-made │ │ -3.25 │ - │" in shown


def test_the_table_fits_80_columns_and_says_what_stands_for_the_p50(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Latency("processor", 12.0, 1.0, None, None), Latency("processor", 1.41, 0.117, 0.1123, 0.1222)
    points = (
        SweepPoint("base", None, 270, 300, 1_250_000_000, 5_700_000, of[0]),
        SweepPoint("r0.95", 0.95, 265, 300, 62_500_000, 300_000, of[1]),
    )
    found = Sweep({}, "validation", "2026-01-01T00:00:00+00:00", {"edgevit": "0.1.0"}, points, threads=1)
    for columns, interval in (("80", "│ (0.11 to 0.12) │"), ("130", "0.12 (0.11 to 0.12) │")):
        monkeypatch.setenv("COLUMNS", columns)
        show_sweep(Console(), Path("runs/s"), found)
        out = capsys.readouterr().out
        table = [line for line in out.splitlines() if line.startswith(("┃", "│"))]
        assert len([line for line in table if line.startswith("┃")]) == 1 and len(table[0]) <= int(columns)
        assert any(interval in line for line in table) and not any("…" in line for line in table)
        assert "processor ms: processor time of an inference" in out
