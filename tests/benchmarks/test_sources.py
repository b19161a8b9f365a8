"""Where a figure's base and images come from, and what is refused in one line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
from forks import Program
from safetensors.torch import save_file
from small_base import ARGS, NAME, PREPROCESSING, write_checkpoint

import edgevit
from benchmarks import sources
from benchmarks.derivations import Case, store
from edgevit.errors import DataError, OptionError, UnknownNameError, UnsupportedModelError
from edgevit.progress import Silent

ROOT = Path(__file__).parents[2]
CLASSES = {"ant": 9, "bee": 9, "cat": 9, "dog": 9}


@pytest.fixture
def images(image_folder: Callable[..., Path], tmp_path: Path) -> Path:
    return image_folder(tmp_path / "animals", CLASSES)


def asked(*arguments: str | Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sources.add_source(parser)
    return parser.parse_args([str(argument) for argument in arguments])


def test_a_user_s_base_and_images_are_taken_by_name(images: Path) -> None:
    given = asked("--data", images, "--base", "vit_tiny_patch16_224", "--checkpoint", "x.safetensors")
    found = sources.source_from(given, Silent())
    assert found.classes == tuple(CLASSES)
    assert found.start == {"base": "vit_tiny_patch16_224", "checkpoint": Path("x.safetensors")}
    assert sources.record_file(given, "neurons").name == "neurons_animals.json"
    assert sources.record_file(asked(), "neurons").name == "neurons.json"
    for more, name in (((), "dropout"), (("--base", "demo"), "dropout_demo"), (("--data", images), "dropout_animals")):
        assert sources.record_file(asked(*more), "dropout", sources.OURS[:1]).name == f"{name}.json"


def test_a_base_without_a_classifier_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    assert sources.open_base(NAME, checkpoint=checkpoint, model_args=ARGS).spec.outputs == 10
    with pytest.raises(UnsupportedModelError, match="has no classifier; `edgevit base` fits one"):
        sources.open_base(NAME, checkpoint=checkpoint, model_args={**ARGS, "num_classes": 0})


def test_sub_tasks_are_drawn_or_named(images: Path) -> None:
    found = sources.Source("mine", images, {}, tuple(CLASSES))
    assert [len(classes) for classes in found.sub_tasks(None, None)] == [2, 3]
    assert found.sub_tasks([2], None) == found.sub_tasks([2], None)
    assert found.sub_tasks(None, "dog, ant") == [["ant", "dog"]]


def test_a_folder_without_the_classes_of_a_figure_is_refused_in_one_line(images: Path) -> None:
    found = sources.Source("mine", images, {}, tuple(CLASSES))
    with pytest.raises(UnknownNameError, match=r"no class in .*animals 'dogg'; did you mean 'dog'"):
        found.sub_tasks(None, "dogg")
    with pytest.raises(DataError, match=r"up to 3 of the 4 classes in .*, not of 4") as refused:
        found.sub_tasks([2, 4], None, most=3)
    with pytest.raises(SystemExit, match="give --tasks up to 3"), sources.refusals():
        raise refused.value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--base", "vit_tiny_patch16_224"), "has no images; give --data"),
        (("--data", "."), "--base rendered does not know the images of --data; give --base NAME"),
        (("--checkpoint", "x"), "are of a base of yours, not of rendered"),
    ],
)
def test_options_that_contradict_one_another_are_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        sources.source_from(asked(*arguments), Silent())


def test_rows_of_a_user_s_folder_are_of_its_own_sub_tasks(images: Path, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path)
    edgevit.base(
        NAME, checkpoint=checkpoint, model_args=ARGS, preprocessing=PREPROCESSING, base_classes=list("0123456789"),
        out=tmp_path / "base",
    )  # fmt: skip
    known = ("--data", images, "--base", tmp_path / "base", "--base-classes", "ant,bee,cat,dog,e,f,g,h,i,j")
    drawn = sources.select(asked(*known, "--tasks", "3", "2"), Silent())
    assert (drawn.name, drawn.sizes, drawn.classes) == ("animals", (3, 2), None)
    assert set(drawn.train_images()) == {3, 2} and drawn.place.classes == tuple(CLASSES)
    named = sources.select(asked(*known, "--classes", "dog,ant"), Silent())
    case = Case("ablations", 2, 0.6, 42, "vulcan", "vulcan")
    (mine,), (other,) = named.of([case]), drawn.of([case])
    assert mine.classes == ("ant", "dog") and mine.data == "animals" and other.classes is None
    rows = {"a": {"task": 2, "classes": ["ant", "dog"]}, "b": {"task": 2}, "c": {"task": 4}}
    store(tmp_path / "rows.json", rows)
    assert [*named.rows(tmp_path / "rows.json")] == ["a"] and [*drawn.rows(tmp_path / "rows.json")] == ["b"]


def test_rows_that_would_be_called_as_the_project_s_are_refused(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    mine = image_folder(tmp_path / "fashion", CLASSES)
    with pytest.raises(OptionError, match="would be called fashion, as those of the project's own"):
        sources.select(asked("--data", mine, "--base", "vit_tiny_patch16_224"), Silent())
    with pytest.raises(OptionError, match="--classes goes with --data"):
        sources.select(asked("--classes", "a,b"), Silent())


# Scripts with their part, how many rows are made, and options that make them quick; with no row a script stops when its
# source is open. More --rows than rows: the others are out of reach of so small a base.
TRIALS: dict[str, tuple[int, list[str]]] = {
    "papers.ablations": (1, ["--only", "vulcan", "--steps", "1"]),
    "papers.agnostic": (1, ["--methods", "forge", "--steps", "1", "--seeds", "1"]),
    "papers.attention moments": (2, []),
    "papers.attention criteria": (2, []),
    "papers.depth": (4, ["--steps", "1", "--seeds", "1", "--rate", "0.4", "--blocks", "1", "--rounds", "1"]),
    "papers.dropout": (0, []),  # a super-network is cut to a quarter of the MACs, which test_vit does not reach
    "papers.heart --part ratios": (1, ["--steps", "1", "--seeds", "1"]),
    "papers.heart --augment deit": (1, ["--steps", "1", "--seeds", "1"]),
    "papers.heart --part composed": (1, ["--steps", "1", "--seeds", "1"]),
    "papers.heart --part oracle": (1, ["--seeds", "1"]),
    "papers.neurons": (1, ["--methods", "forge", "--steps", "1", "--seeds", "1"]),
    "papers.nuwa_figures random": (2, ["--seeds", "1"]),
    "papers.nuwa_figures metrics": (2, ["--seeds", "1"]),
    "papers.nuwa_figures batch": (1, ["--seeds", "1"]),
    "papers.nuwa_figures calibration": (1, ["--seeds", "1"]),
    "papers.published": (
        2,
        ["--method", "forge", "--rates", "0.2", "--seeds", "1", "--rows", "1"],
    ),  # a learning rate, too
    "papers.slices": (0, []),
    "papers.vulcan_figures scratch": (2, ["--steps", "2", "--seeds", "1", "--rows", "4"]),
    "papers.vulcan_figures normalisations": (2, ["--steps", "2", "--seeds", "1"]),
    "papers.vulcan_figures collapse": (2, ["--steps", "2", "--seeds", "1"]),
    "papers.vulcan_figures cost": (1, []),
    "papers.wpac": (2, []),
    "product.rivals": (0, []),
    "product.transfer": (1, ["--variants", "forge", "--steps", "1"]),  # a fitted head
}


# In a process of its own: a script forks, and a process in which autograd has run must not.
STARTED = """
import importlib, pathlib, sys
from benchmarks import bases
bases.CACHE = pathlib.Path(sys.argv.pop(1))
importlib.import_module(sys.argv.pop(1)).main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", TRIALS)
def test_a_script_makes_its_first_row_of_a_base_that_is_given_by_its_name(
    script: str, image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    counts = dict.fromkeys(CLASSES, 36) if script == "papers.neurons" else CLASSES  # 25 test images of each neuron
    images = image_folder(tmp_path / "animals", counts)
    network = timm.create_model("test_vit", num_classes=len(CLASSES))
    save_file(network.state_dict(), tmp_path / "base.safetensors")
    file, (count, quick) = tmp_path / "rows.json", TRIALS[script]
    module, *part = script.split()
    options = ["--data", str(images), "--base", "test_vit", "--checkpoint", str(tmp_path / "base.safetensors")]
    options += ["--classes", "ant,bee", "--accept-weak-base", "--accept-preprocessing", "--rows", str(count)]
    given = [*part, *options, *quick, "--results", file]
    program = Program("-c", STARTED, tmp_path, f"benchmarks.{module}", *given, cwd=ROOT)
    assert program.wait() == 0, program.stderr
    record = json.loads(file.read_text()) if count else {}
    assert len(record.get(part[-1] if "--part" in part and part[-1] in record else "rows", ())) == count, program.stderr
