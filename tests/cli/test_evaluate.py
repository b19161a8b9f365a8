"""`edgevit evaluate` as a person types it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_base import NAME, TYPED
from small_models import write_derived

from edgevit.cli.evaluate import similarity_line
from edgevit.data.sources import open_source
from edgevit.exporting.evaluate import Evaluation
from edgevit.records.derivation import SimilarityRecord

pytestmark = pytest.mark.usefixtures("examined_once")
DATA = ["--data", "digits", "--classes", "3,5,8"]


def test_evaluate_shows_classes_and_gives_the_same_figures_as_json(edgevit_main: Any, digits_checkpoint: Path) -> None:
    asked = ["evaluate", *TYPED, "--checkpoint", digits_checkpoint, *DATA, "--split", "validation"]
    table = edgevit_main(*asked)
    assert table.code == 0, table.err
    result = json.loads(edgevit_main(*asked, "--json").out)
    assert f"{100 * result['top1']:.2f} % (" in table.out and "choosing among " in table.out
    assert sorted(result["per_class"]) == ["3", "5", "8"]


def test_evaluate_says_what_it_assumes_and_warns(
    edgevit_main: Any, digits_checkpoint: Path, reversed_names: Path
) -> None:
    asked = ["evaluate", *TYPED, "--checkpoint", digits_checkpoint, *DATA, "--device", "cpu"]
    right = edgevit_main(*asked, "--std", "0.5")
    assert right.code == 0 and "warning" not in right.err
    assert "classes: 3 is output 3, " in right.err
    assert "preprocessing: std 0.5, given; crop_pct 0.9, interpolation bicubic, mean 0.5, assumed" in right.err
    wrong = edgevit_main(*asked, "--base-classes", reversed_names, "-q")
    assert wrong.code == 0 and f"warning: {NAME} is right on " in wrong.err and "--base-classes" in wrong.err


def test_an_archive_is_evaluated_as_its_folder_or_refused_in_one_line(
    edgevit_main: Any, digits_checkpoint: Path, tmp_path: Path
) -> None:
    digits = open_source("digits")
    for name in digits.class_names:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for reference in digits.references("train", name)[:8]:
            digits.read(reference).save(tmp_path / "photos" / name / f"{reference}.png")
    archive = Path(shutil.make_archive(str(tmp_path / "photos"), "tar", tmp_path, "photos"))
    asked = ["evaluate", *TYPED, "--checkpoint", digits_checkpoint, "--classes", "3,5,8", "--json"]
    folder, packed = (edgevit_main(*asked, "--data", data) for data in (tmp_path / "photos", archive))
    assert packed.code == 0, packed.err
    assert {**json.loads(packed.out), "data": ""} == {**json.loads(folder.out), "data": ""}
    assert edgevit_main(*asked, "--data", archive, "--classes", "nine").error.startswith("error: no class 'nine'")
    archive.write_bytes(archive.read_bytes()[:5000])
    assert "photos.tar: " in (error := edgevit_main(*asked, "--data", archive).error) and "if it is cut off" in error


@pytest.mark.slow
def test_an_engine_is_evaluated_where_it_runs_with_the_same_table(
    edgevit_main: Any, tmp_path: Path, play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_derived(tmp_path / "t1", 16, 16, depth=1)
    assert edgevit_main("export", folder, "--trt", "--no-accuracy").code == 0
    (engine,) = folder.glob("export/engines/*/*.engine")
    asked = ["evaluate", engine, "--max-images", 30]
    table = edgevit_main(*asked)
    assert table.code == 0, table.err
    result = json.loads(edgevit_main(*asked, "--json").out)
    assert (result["form"], result["images"], sorted(result["per_class"])) == ("engine", 30, ["3", "5", "8"])
    assert f"{100 * result['top1']:.2f} % (" in table.out and "(engine) on 30 test images of digits" in table.out
    monkeypatch.delenv("PYTHONPATH")
    assert "no TensorRT on this machine" in edgevit_main(*asked).error
    assert "--board is for an engine" in edgevit_main("evaluate", folder, "--board", "orin").error


def test_features_are_told_by_their_cosine_and_by_which_images_are_nearest() -> None:
    given = ("m", "torch", "photos", "test", 30, None, None, 0, {}, {})
    record = SimilarityRecord(30, 0.98765, 0.876)
    told = similarity_line(Evaluation(*given, similarity=record), record)
    assert told == (
        "m (torch) on 30 test images of photos: a cosine of 0.9877 to the base's features, and 87.6% of an image's ten "
        "nearest images are the base's"
    )
    few = SimilarityRecord(9, 0.5, None)
    assert similarity_line(Evaluation(*given, similarity=few), few).endswith(
        "a cosine of 0.5000 to the base's features"
    )
