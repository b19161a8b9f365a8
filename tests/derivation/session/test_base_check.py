"""A base that does not know its classes stops the work, and so does one that does better with other preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from recorded_progress import RecordedProgress
from safetensors.torch import load_file, save_file
from small_base import ARGS, NAME, write_checkpoint

import edgevit
from edgevit.data.neighbours import hint_in
from edgevit.data.task import open_task
from edgevit.derivation.session.base_check import Answers, in_rings, neighbours
from edgevit.errors import DataError
from edgevit.jobs.sweep.record import Sweep, SweepPoint, write_sweep
from edgevit.records.model_folder import ModelFolder
from edgevit.train.settings import Training

DIGITS = [str(i) for i in range(10)]
PREPROCESSING = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, "interpolation": "bicubic"}


def derive(checkpoint: Path, out: Path, progress: RecordedProgress | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"data": "digits", "classes": "3,5,8", "rate": 0.4, "training": Training(device="cpu")}
    given |= {"method": "nuwa", "options": {"purification": "none"}}  # the quickest: the check comes before it
    return edgevit.derive(
        NAME, checkpoint=checkpoint, model_args=ARGS, out=out, progress=progress, **{**given, **options}
    )


def write_base(checkpoint: Path, out: Path, progress: RecordedProgress | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"model_args": ARGS, "training": Training(device="cpu"), **options}
    return edgevit.base(NAME, checkpoint=checkpoint, out=out, progress=progress, **given)


# -- a base that does not know its classes -----------------------------------------------------------------------------


def test_names_in_reverse_stop_the_work(digits_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refusal:
        derive(digits_checkpoint, tmp_path / "m", base_classes=DIGITS[::-1])
    said = str(refusal.value)
    assert "where chance is 10.0% and 33.3%" in said and "check the order of its outputs (--base-classes)" in said
    assert "output 3 answers most validation images of '3', taken to be output 6" in said
    assert "--accept-weak-base" in said and "\n" not in said
    assert list(tmp_path.iterdir()) == [], "nothing is left to be removed"


def test_names_in_reverse_are_gone_on_with_if_asked(digits_checkpoint: Path, tmp_path: Path) -> None:
    told = RecordedProgress()
    made = derive(digits_checkpoint, tmp_path / "m", told, base_classes=DIGITS[::-1], accept_weak_base=True)
    assert made.record.assumptions.base_check.near_chance is True
    assert any("where chance is 10.0%" in warning for warning in told.warnings)


def test_a_supernetwork_is_not_trained_from_such_a_base(digits_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"validation images, where chance is 10.0%.*--accept-weak-base"):
        edgevit.supernet(
            NAME, checkpoint=digits_checkpoint, model_args=ARGS, out=tmp_path / "n", data="digits",
            rate=0.5, base_classes=DIGITS[::-1], training=Training(device="cpu", steps=2),
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_was_fitted_here_is_not_doubted_for_its_order_and_may_be_weak_where_the_base_is_trained(
    tmp_path: Path,
) -> None:
    generator = np.random.default_rng(0)
    for name in ("defective", "functional"):
        (tmp_path / "noise" / name).mkdir(parents=True)
        for i in range(100):  # nothing in them tells the classes apart
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "noise" / name / f"{i}.png")
    options: dict[str, Any] = {"new_head": True, "data": tmp_path / "noise", "preprocessing": PREPROCESSING}
    state = write_checkpoint(tmp_path)
    with pytest.raises(DataError) as refusal:
        write_base(state, tmp_path / "m", **options)
    said = str(refusal.value)
    assert "validation images, where chance is 50.0%; its head was fitted to these images" in said
    assert "edgevit base --steps 100" in said and said.endswith("--accept-weak-base") and "--base-classes" not in said
    told = RecordedProgress()
    write_base(state, tmp_path / "m", told, **options, training=Training(device="cpu", steps=1))
    assert any(warning.endswith("classes apart before they are trained") for warning in told.warnings)


@pytest.mark.slow
def test_two_names_exchanged_are_told_of(digits_checkpoint: Path, tmp_path: Path) -> None:
    told, names = RecordedProgress(), [*DIGITS]
    names[3], names[6] = "6", "3"
    derive(digits_checkpoint, tmp_path / "m", told, base_classes=names, classes=None)
    (warning,) = [warning for warning in told.warnings if "check the order of the base's outputs" in warning]
    assert "output 3 answers most validation images of '3', taken to be output 6, and output 6 answers " in warning


@pytest.fixture(scope="module")
def exchanged(digits_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base with its outputs 3 and 6 exchanged, and 0 and 1."""
    state = load_file(digits_checkpoint)
    order = [1, 0, 2, 6, 4, 5, 3, 7, 8, 9]
    state |= {name: state[name][order].contiguous() for name in ("head.weight", "head.bias")}
    file = tmp_path_factory.mktemp("exchanged") / "base.safetensors"
    save_file(state, file)
    return file


@pytest.mark.slow
def test_an_assumed_order_that_several_classes_contradict_stops_the_work_though_their_other_halves_are_no_targets(
    exchanged: Path, tmp_path: Path
) -> None:
    told = RecordedProgress()
    with pytest.raises(DataError, match=r"--base-classes FILE, or go on as it is with --accept-weak-base$"):
        derive(exchanged, tmp_path / "m", classes="0,3,5,8")
    made = derive(exchanged, tmp_path / "m", told, classes="0,3,5,8", accept_weak_base=True)
    right = made.record.accuracy.base_restricted.per_class
    assert max(right["0"], right["3"]) < 0.5 < min(right["5"], right["8"])
    (warning,) = [warning for warning in told.warnings if "order of the base's outputs" in warning]
    assert warning == (
        "output 1 answers most validation images of '0', taken to be output 0, and output 6 answers most validation "
        "images of '3', taken to be output 3; check the order of the base's outputs, and give it with "
        "--base-classes FILE"
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", [["1", "0", "2", "6", "4", "5", "3", "7", "8", "9"], DIGITS], ids=["right", "wrong"])
def test_an_order_that_was_given_is_not_doubted_for_a_class_that_is_taken_for_another(
    exchanged: Path, tmp_path: Path, names: list[str]
) -> None:
    told = RecordedProgress()
    derive(exchanged, tmp_path / "m", told, classes="0,3,5,8", base_classes=names)
    assert not [warning for warning in told.warnings if "--base-classes" in warning]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([4] * 6 + [3] * 4, "output 4 answers most validation images of '3', taken to be output 3"),  # 4: no target
        ([5] * 6 + [3] * 4, None),  # taken for another target, and known better than chance
        ([5] * 4 + [4] * 3 + [3] * 3, "output 5 answers 4 of 10 validation images of '3', taken to be output 3"),
        ([3] * 3 + [4] * 2 + [5] * 2 + [6, 7, 8], None),  # no output answers more of its images than its own
        ([4] * 4, None),  # too few images to tell
    ],
)
def test_an_assumed_order_is_doubted_for_outputs_beside_the_task_and_for_classes_known_worse_than_chance(
    seen: list[int], said: str | None
) -> None:
    task = open_task("digits", "3,5,8", preprocessing={**PREPROCESSING, "input_size": (3, 32, 32)}, base_outputs=10)
    part = replace(task.validation, references=task.validation.references[: len(seen)], labels=(0,) * len(seen))
    restricted = tuple(0 if output == 3 else 1 for output in seen)
    answers = Answers(part, tuple(seen), restricted, ())
    assert answers.exchanged(task, order_assumed=True, near_chance=False) == ([said] if said else [])
    assert answers.exchanged(task, order_assumed=False, near_chance=False) == []


@pytest.mark.slow
def test_a_base_without_numbers_is_said_to_be_so(digits_checkpoint: Path, tmp_path: Path) -> None:
    state = load_file(digits_checkpoint)
    state["head.weight"][0] = 3e38  # a number, but sums of it are none
    save_file(state, tmp_path / "inf.safetensors")
    with pytest.raises(DataError, match="no finite numbers; check its weights"):
        derive(tmp_path / "inf.safetensors", tmp_path / "m", accept_weak_base=True)


@pytest.mark.parametrize(
    ("seen", "assumed", "told"),
    [
        ({3: [5] * 3, 5: [8] * 4, 8: [3] * 3}, False, True),
        ({3: [5] * 3, 5: [8] * 4, 8: [3, 3, 8]}, False, False),  # 8 does not tell
        ({3: [5] * 3, 5: [8] * 4, 8: [3, 3, 8]}, True, True),  # but most have moved, each to another output
        ({3: [5] * 3, 5: [5] * 4, 8: [5] * 3}, True, False),  # merely taken for 5
        ({3: [5] * 2, 5: [3] * 2}, True, False),
    ],
)
def test_few_images_of_a_class_tell_of_a_wrong_order_if_they_all_agree(
    seen: dict[int, list[int]], assumed: bool, told: bool
) -> None:
    task = open_task("digits", "3,5,8", preprocessing={**PREPROCESSING, "input_size": (3, 32, 32)}, base_outputs=10)
    labels = tuple(task.base_columns.index(own) for own, outputs in seen.items() for _ in outputs)
    full = tuple(output for outputs in seen.values() for output in outputs)
    part = replace(task.validation, references=task.validation.references[: len(full)], labels=labels)
    answers = Answers(part, full, tuple(map(task.base_columns.index, full)), ())
    assert bool(answers.exchanged(task, order_assumed=assumed, near_chance=False)) is told


def test_a_class_merely_taken_for_another_is_no_exchange() -> None:
    assert in_rings({1: 2, 2: 1, 5: 1, 7: 8, 8: 9, 9: 7}) == {1: 2, 2: 1, 7: 8, 8: 9, 9: 7}
    assert in_rings({1: 2, 3: 2, 4: 3}) == {}


# -- other preprocessing -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose outermost pixels tell their class; of every other one, the middle does, too."""
    root, random = tmp_path_factory.mktemp("framed"), np.random.default_rng(0)
    for label, name in enumerate(("a", "b", "c")):
        (root / name).mkdir()
        for i in range(60):
            pixels = random.integers(90, 160, (32, 32, 3), np.uint8)
            pixels[[0, -1], :, label] = pixels[:, [0, -1], label] = 255
            if i % 2:
                pixels[10:22, 10:22, label] = 255
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def uncropped(framed: Path, tmp_path_factory: pytest.TempPathFactory, small_vit: Callable[..., Any]) -> Path:
    """A base trained on whole images."""
    from edgevit.network.model import describe

    network = small_vit(num_classes=3)
    model = describe(network, NAME, {**ARGS, "num_classes": 3}, {**PREPROCESSING, "crop_pct": 1.0})
    task = open_task(framed, None, preprocessing=model.preprocessing, base_outputs=3)
    images, labels = next(task.train.batches(len(task.train)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    for _ in range(40):
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    file = tmp_path_factory.mktemp("uncropped") / "base.safetensors"
    save_file(network.state_dict(), file)
    return file


HINT = "with --crop-pct 1 the base is right on "


@pytest.mark.slow
def test_a_base_that_is_read_with_a_crop_it_was_not_trained_with_stops_the_work(
    framed: Path, uncropped: Path, tmp_path: Path
) -> None:
    asked = {"data": framed, "classes": None, "validation_fraction": 0.3}
    for write in (derive, write_base):
        with pytest.raises(DataError) as refusal:
            write(uncropped, tmp_path / "m", **asked)
        said = str(refusal.value)
        assert said.startswith(HINT) and "give that option if it was trained so" in said and "\n" not in said
        assert said.endswith("or go on as it is with --accept-preprocessing")
        assert "--accept-weak-base" not in said and list(tmp_path.iterdir()) == []

    accept = {"accept_preprocessing": True}
    cropped = derive(uncropped, tmp_path / "cropped", told := RecordedProgress(), **asked, **accept)
    (warning,) = [warning for warning in told.warnings if "--crop-pct" in warning]
    tried = cropped.record.assumptions.base_check.neighbours
    assert [n.option for n in tried] == [
        "--crop-pct 1", "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225", "--mean 0 --std 1",
    ]  # fmt: skip
    assert tried[0].gained > tried[0].lost + 10
    assert warning == hint_in(cropped.record) and warning.startswith(HINT)
    write_base(uncropped, tmp_path / "base", **asked, **accept)
    for folder in ("cropped", "base"):
        assert f"**Warning:** {warning}." in (tmp_path / folder / "README.md").read_text()

    told, asked = RecordedProgress(), {**asked, "preprocessing": {"crop_pct": 1.0}}
    whole = derive(uncropped, tmp_path / "whole", told, **asked)
    write_base(uncropped, tmp_path / "whole base", told, **asked)
    assert not [warning for warning in told.warnings if "--crop-pct" in warning]
    assert hint_in(whole.record) is None
    assert "**Warning:**" not in (tmp_path / "whole" / "README.md").read_text()
    better, worse = (made.record.accuracy.base_restricted.top1 for made in (whole, cropped))
    assert better > worse + 0.1
    assert whole.record.assumptions.preprocessing_from["crop_pct"] == "option"
    assert cropped.record.assumptions.preprocessing_from["crop_pct"] == "timm"


def test_what_was_accepted_is_repeated_last_and_wherever_the_model_is_shown(
    framed: Path, uncropped: Path, tmp_path: Path, edgevit_main: Any
) -> None:
    base = [NAME, "--checkpoint", uncropped, *(w for k, v in ARGS.items() for w in ("--model-arg", f"{k}={v}"))]
    method = ["--rate", "0.4", "--method", "nuwa", "--set", "nuwa.purification=none", "--device", "cpu"]
    data, out = ["--data", framed, "--validation-fraction", "0.3", "--mean", "0.5"], tmp_path / "m"
    ran = edgevit_main("derive", *base, *data, *method, "--accept-preprocessing", "--out", out)
    assert ran.code == 0, ran.err
    warning = f"warning: {hint_in(ModelFolder(out).derivation())}"
    assert warning.startswith(f"warning: {HINT}") and ran.err.splitlines()[-1] == warning
    next_ = next(line for line in ran.out.splitlines() if "edgevit base" in line)
    assert "--accept-preprocessing" in next_ and "--mean 0.5" in next_
    more = ["--accept-preprocessing", "--skip-bad-images", "--device", "cpu", "--out", tmp_path / "base"]
    wrote = edgevit_main("base", *base, *data, *more)
    assert wrote.out.rstrip().endswith("--skip-bad-images") and warning in wrote.err.splitlines()
    counts = {"right": 1, "images": 2, "macs": 3, "params": 4}
    points = (SweepPoint(folder="base", rate=None, **counts), SweepPoint(folder="m", rate=0.4, **counts))
    write_sweep(tmp_path, Sweep({}, "test", "now", {"edgevit": "0"}, points))
    for shown in (out, tmp_path):
        assert edgevit_main("show", shown).err.splitlines()[-1] == warning
    for form, times in (("md", 1), ("html", 2)):  # of the panel; and of the model
        text = edgevit.report(out, output=tmp_path / f"page.{form}").text
        assert text.count(f"not read as it was trained: {HINT}") == times


@pytest.mark.slow
def test_the_check_is_kept_for_the_next_derivation(
    framed: Path, uncropped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "fresh cache"))
    first, second = RecordedProgress(), RecordedProgress()
    asked = {"data": framed, "classes": None, "validation_fraction": 0.3, "accept_preprocessing": True}
    derive(uncropped, tmp_path / "first", first, **asked)
    write_base(uncropped, tmp_path / "second", second, **asked)
    reused = "reusing answers from the cache"
    assert reused not in first.notes and reused in second.notes
    assert first.warnings == second.warnings
    assert [note for note in first.notes if note.startswith("this derivation takes about ")]  # a search derives often


def test_neighbours_differ_from_what_is_assumed_by_one_thing() -> None:
    found = neighbours(PREPROCESSING)
    assert len({n.option for n in found}) == 3
    for neighbour in found:
        changed = {key for key in PREPROCESSING if neighbour.preprocessing[key] != PREPROCESSING[key]}
        assert changed in ({"crop_pct"}, {"mean", "std"}), neighbour
    assert neighbours({**PREPROCESSING, "crop_pct": 1.0})[0].option == "--crop-pct 0.875"
    imagenet = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    options = [n.option for n in neighbours({**PREPROCESSING, **imagenet})]
    assert options == ["--crop-pct 1", "--mean 0.5 --std 0.5", "--mean 0 --std 1"]
