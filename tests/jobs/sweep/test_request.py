"""What a sweep is asked: one derivation for each rate, which differ in their rates alone."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from edgevit.errors import CheckpointError, EdgeVitError, OptionError, OutputError, UnknownNameError
from edgevit.jobs.sweep.request import SweepRequest
from edgevit.records.unfinished import differences
from edgevit.train.settings import Training


@pytest.fixture
def asked(tmp_path: Path) -> SweepRequest:
    return SweepRequest(base="deit_tiny_patch16_224", data="digits", out=tmp_path / "s", rates=(0.5, 0.8))


def test_each_rate_is_a_derivation_into_a_folder_of_its_own(asked: SweepRequest, tmp_path: Path) -> None:
    half, less = (asked.at(rate) for rate in asked.rates)
    probed = replace(asked, output="features", probe=("knn",)).at(0.5)
    assert probed.by_class and not half.by_class, "each part is to have images of each class"
    close = [asked.at(rate).out for rate in (0.5, 0.50000001)]
    assert len({*close}) == 2, "each rate has its own folder"
    assert (half.out, half.rate, half.base, half.resume) == (tmp_path / "s" / "r0.5", 0.5, asked.base, False)
    assert replace(half, out=less.out, rate=less.rate) == less
    (tmp_path / "s" / "r0.8.partial").mkdir(parents=True)
    assert not asked.at(0.8).resume, "nothing that took long"
    (tmp_path / "s" / "r0.8.partial" / "base").mkdir()
    assert asked.at(0.8).resume, "what was interrupted is gone on with"


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"rates": ()}, OptionError, "no rates; try --rates"),
        ({"rates": (0.5, 1.0)}, OptionError, r"--rates 1 is not in \(0, 1\)"),
        ({"threads": 0}, OptionError, "--threads 0 is"),
        ({"part": "train"}, UnknownNameError, "no part of the data 'train'"),
        ({"method": "skd"}, OptionError, "slices of a super-network need no sweep"),
        ({"derive_from": "finetune", "base_steps": 9}, UnknownNameError, "did you mean 'finetuned'"),
        ({"derive_from": "better", "base_steps": 0}, OptionError, "--base-steps 0 is not in"),
        ({"base_steps": 9}, OptionError, "--base-steps is for a base that is trained; give --derive-from better, too"),
        ({"training": Training(batch_size=8)}, OptionError, "--batch-size is for a base that is trained"),
        ({"output": "boxes", "derive_from": "better"}, OptionError, "a sweep cuts a detector as it is; train it by"),
        ({"output": "boxes", "ready_made": ["m.onnx"]}, OptionError, "--beside is for classifiers, features and maps"),
        ({"output": "boxes", "probe": ("knn",)}, OptionError, "--probe is for --output features"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    asked: SweepRequest, changed: dict[str, object], error: type[EdgeVitError], said: str, digits_checkpoint: Path
) -> None:
    asked = replace(asked, checkpoint=digits_checkpoint)
    with pytest.raises(error, match=said):
        replace(asked, **changed).check()  # type: ignore[arg-type]


def test_a_ready_made_file_has_a_folder_of_its_own(
    asked: SweepRequest, tmp_path: Path, digits_checkpoint: Path
) -> None:
    asked = replace(asked, checkpoint=digits_checkpoint)
    for name in ("base", "r0.5"):
        (tmp_path / f"{name}.onnx").touch()
        with pytest.raises(OptionError, match=f"--beside .*{name} is the folder of another model; rename the file"):
            replace(asked, ready_made=[tmp_path / f"{name}.onnx"]).check()
    with pytest.raises(CheckpointError, match=r"there is no none\.onnx; check the path of --beside"):
        replace(asked, ready_made=[Path("none.onnx")]).check()


def test_a_ready_made_file_needs_what_tells_how_good_features_or_maps_are(
    asked: SweepRequest, tmp_path: Path, digits_checkpoint: Path
) -> None:
    (tmp_path / "m.onnx").touch()
    asked = replace(asked, checkpoint=digits_checkpoint, ready_made=[tmp_path / "m.onnx"])
    with pytest.raises(
        OptionError, match=r"--beside: features of another network .*; give --probe knn,linear, and --dat"
    ):
        replace(asked, output="features:patches").check()
    replace(asked, output="features:patches", probe=("knn",)).check()
    with pytest.raises(OptionError, match=r"compared by target maps, and .*data has none; give --data with images/"):
        replace(asked, output="map", data=tmp_path / "data").check()
    for part in ("images", "masks"):
        (tmp_path / "data" / part).mkdir(parents=True)
    replace(asked, output="map", data=tmp_path / "data").check()


def test_a_folder_that_holds_something_else_is_not_written_to(asked: SweepRequest) -> None:
    asked.out.mkdir()
    (asked.out / "notes.txt").touch()
    with pytest.raises(OutputError, match="so it is no sweep; choose another --out"):
        asked.check()


def test_another_list_of_rates_goes_on_with_the_same_sweep(asked: SweepRequest) -> None:
    assert replace(asked, rates=(0.9,)).identity() == asked.identity()
    assert replace(asked, classes="3,5").identity() != asked.identity()


# Options that may differ where a sweep is continued, and others of the request.
FREE: dict[str, Any] = {
    "accept_preprocessing": True, "accept_weak_base": True, "cache": False, "out": Path("elsewhere"), "part": "test",
    "rates": (0.9,), "ready_made": ("m.onnx",), "threads": 2,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "base": "vit_small_patch16_224", "base_classes": "names.txt", "base_steps": 9, "checkpoint": Path("w.safetensors"),
    "classes": "3,5", "data": "photos", "derive_from": "better", "embed_multiple": 8, "ffn_multiple": 8,
    "group_by": "folder", "head_blocks": 4, "method": "nuwa", "model_args": {"depth": 2}, "new_head": True,
    "options": {"drop_blocks": "no"}, "output": "map", "preprocessing": {"crop_pct": 0.9}, "pretrained": True,
    "probe": ("knn",), "shape": "free", "skip_bad_images": True, "validation_fraction": 0.2,
}  # fmt: skip


def test_every_option_is_one_of_the_sweep_or_may_differ(asked: SweepRequest, tmp_path: Path) -> None:
    given = {**FREE, **OTHERS}
    assert {*given, "training"} == {option.name for option in fields(SweepRequest)}, "also a new one is decided upon"
    same = {name for name, value in given.items() if replace(asked, **{name: value}).identity() == asked.identity()}
    assert same == {*FREE}
    seeded, elsewhere = (
        replace(asked, training=Training(steps=0, **more)) for more in ({"seed": 7}, {"device": "cpu"})
    )
    assert seeded.identity() == {**asked.identity(), "seed": 7} and elsewhere.identity() == asked.identity()


def test_a_sweep_that_was_begun_with_fewer_options_is_continued(asked: SweepRequest) -> None:
    """As sweeps were stored before there were groups, heads of several blocks, and a training of the base."""
    stored = {
        "checkpoint": None, "pretrained": False, "model_args": {"depth": 2}, "preprocessing": {"mean": [0.5, 0.5, 0.5]},
        "base_classes": None, "base": "deit_tiny_patch16_224", "data": "digits", "method": "forge", "options": {},
        "shape": "fused", "ffn_multiple": None, "embed_multiple": None, "skip_bad_images": False,
        "validation_fraction": 0.1, "output": "features", "probe": ["knn"], "weights": None, "classes": ["3", "5"],
        "seed": 42,
    }  # fmt: skip
    now = replace(
        asked, model_args={"depth": 2}, preprocessing={"mean": (0.5,) * 3}, output="features", probe=("knn",),
        classes=["3", "5"],
    )  # fmt: skip
    assert differences(stored, now.identity()) == []


def test_a_sweep_of_the_base_as_it_is_is_told_as_ever(asked: SweepRequest) -> None:
    trained = replace(asked, derive_from="better", base_steps=9, training=Training(lr=1e-3))
    assert trained.identity() == {**asked.identity(), "derive_from": "better", "base_steps": 9, "lr": 1e-3}
    assert (trained.at(0.5).derive_from, trained.at(0.5).base_steps) == ("better", 9)
