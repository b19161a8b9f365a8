"""What an interruption leaves: damaged, foreign, or worked in by somebody else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from small_base import derive, press_ctrl_c_in_step, write_checkpoint

from edgevit.errors import Interrupted, OptionError, OutputError, UnfinishedError
from edgevit.records.lock import alone_in
from edgevit.records.unfinished import open_partial, partial_folder
from edgevit.version import written_by

FILES = [
    "request.json",
    "baselines.json",
    "history.jsonl",
    "plan.json",
    "plan.safetensors",
    "train/progress.json",
    "train/constraint.safetensors",
    "train/optimizer.bin",
    "train/model.safetensors",
    "train/random_states_0.pkl",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def interrupted(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vulcan derivation that Ctrl-C stopped in training."""
    out = tmp_path_factory.mktemp("interrupted") / "m"
    with pytest.MonkeyPatch.context() as patch:
        press_ctrl_c_in_step(3, patch)
        with pytest.raises(Interrupted):
            derive(base, out)
    return partial_folder(out)


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


DAMAGE = {
    "half": half,
    "empty": lambda content: b"",
    "garbage": lambda content: b"\x93\x00garbage\xff" * 9 + b"}\n",
}


@pytest.mark.quick("*-half")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_state_is_one_line_that_says_how_to_begin_anew(
    base: Path, interrupted: Path, tmp_path: Path, name: str, damage: str
) -> None:
    out = tmp_path / "m"
    folder = shutil.copytree(interrupted, partial_folder(out))
    assert {file for file in FILES if not (folder / file).is_file()} == set()
    (folder / name).write_bytes(DAMAGE[damage]((folder / name).read_bytes()))
    if name == "history.jsonl" and damage != "garbage":  # lines that are missing were never written
        derive(base, out, resume=True)
        return
    with pytest.raises(UnfinishedError, match="remove that folder, and give the command without --resume"):
        derive(base, out, resume=True)
    assert not out.exists()


def test_every_file_of_a_state_says_which_edgevit_wrote_it(interrupted: Path) -> None:
    told = {file: file.read_text() for file in interrupted.rglob("*.json")}
    lines = (interrupted / "history.jsonl").read_text().splitlines()
    assert {file.name for file in told} == {"request.json", "baselines.json", "plan.json", "progress.json"} and lines
    for text in (*told.values(), *lines):
        said = json.loads(text)
        assert (said["schema"], said["edgevit"]) == (1, written_by())


@pytest.mark.parametrize("name", ["train/model.safetensors", "train/optimizer.bin", "train/random_states_0.pkl"])
def test_an_altered_state_is_never_gone_on_with(base: Path, interrupted: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(interrupted, partial_folder(tmp_path / "m"))
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UnfinishedError, match=r"was altered after it was written; remove that folder"):
        derive(base, tmp_path / "m", resume=True)


def test_a_state_without_a_request_is_nobodys(base: Path, interrupted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(interrupted, partial_folder(tmp_path / "m"))
    (folder / "request.json").unlink()
    with pytest.raises(UnfinishedError, match=r"has no request\.json, so its options are unknown"):
        derive(base, tmp_path / "m", resume=True)


def test_a_kill_between_two_renames_loses_nothing(base: Path, interrupted: Path, tmp_path: Path) -> None:
    whole = derive(base, tmp_path / "whole")
    folder = shutil.copytree(interrupted, partial_folder(tmp_path / "m"))
    (folder / "train").rename(folder / "train.old")
    resumed = derive(base, tmp_path / "m", resume=True)
    before, after = (load_file(made.folder / "model.safetensors") for made in (whole, resumed))
    assert all(before[name].equal(after[name]) for name in before)


def test_a_folder_in_which_another_process_works_is_left_alone(base: Path, interrupted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(interrupted, partial_folder(tmp_path / "m"))
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    for resume in (False, True):
        with alone_in(folder, OutputError("held")), pytest.raises(OutputError, match="another edgevit is working in"):
            derive(base, tmp_path / "m", resume=resume)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def test_a_folder_without_training_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "m.partial"
    folder.mkdir()
    for name in ("request.json", "baselines.json", "history.jsonl"):
        (folder / name).write_text("{")
    asked: dict[str, Any] = {"base": "a"}
    with open_partial(tmp_path / "m", asked, resume=False):
        assert [file.name for file in folder.iterdir()] == ["request.json"]
    with open_partial(tmp_path / "m", asked, resume=True):
        pass
    other = open_partial(tmp_path / "m", {"base": "b"}, resume=True)
    with pytest.raises(OptionError, match="base was a and is b; give the same ones"), other:
        pass
    (folder / "train").mkdir()
    with pytest.raises(OutputError, match="add --resume"), open_partial(tmp_path / "m", asked, resume=False):
        pass


TYPED: dict[str, Any] = {
    "rate": 0.5,
    "training": {"steps": 200, "lr": 1e-4, "workers": 0},
    "model_args": {},
    "out": "m",
}
CAME_TO: dict[str, Any] = {"budget": {"limit": 10, "base": 20}, "images": "0" * 64, "options": {}}


@pytest.mark.parametrize(
    ("typed", "came_to", "told"),
    [
        (
            {"rate": 0.6, "training": {"steps": 100, "lr": 1e-4, "workers": 2}, "out": "n"},
            {"budget": {"limit": 8, "base": 20}},
            "rate was 0.5 and is 0.6, training.steps was 200 and is 100",
        ),
        (
            {"model_args": {"img_size": 64, "depth": 3}, "macs": "1M", "classes": ["a", "b"], "shape": "free"},
            {"budget": {"limit": 8, "base": 20}},
            "classes was not given and is a,b, macs was not given and is 1M, model_args.depth was not given and is 3, "
            "model_args.img_size was not given and is 64, and 1 more",
        ),
        (
            {"training": {"steps": 200, "lr": 1e-4, "workers": 2}},
            {"images": "1" * 64},
            "the content of images differs",
        ),
        ({}, {"budget": {"limit": 8, "base": 20}}, "budget.limit was 10 and is 8"),
    ],
)
def test_what_differs_is_told_by_the_names_of_what_was_typed(
    tmp_path: Path, typed: dict[str, Any], came_to: dict[str, Any], told: str
) -> None:
    out = tmp_path / "m"
    with open_partial(out, CAME_TO, resume=False, request=TYPED):
        pass
    again = open_partial(out, {**CAME_TO, **came_to}, resume=True, request={**TYPED, **typed})
    with pytest.raises(OptionError) as refused, again:
        pass
    assert str(refused.value) == (
        f"cannot resume {out}.partial with other options: {told}; give the same ones, choose another --out, or remove "
        f"{out}.partial"
    )
    with open_partial(out, {**CAME_TO, "extra": [], "later": None}, resume=True, request=TYPED):
        pass


@pytest.mark.parametrize("resume", [False, True])
def test_a_model_that_another_process_made_meanwhile_leaves_no_unfinished_folder(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "m").mkdir()  # since the command looked whether it is there
    with pytest.raises(OutputError, match="exists and is not overwritten"), open_partial(tmp_path / "m", {}, resume):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


ENDING = """
import shutil, sys
from pathlib import Path
from edgevit.records.unfinished import open_partial, partial_folder
from edgevit.errors import OutputError
out = Path(sys.argv[1])
while True:
    try:
        with open_partial(out, {}, resume=False):
            shutil.rmtree(partial_folder(out))
    except OutputError:
        pass
"""


def test_derivations_that_end_just_then_take_no_folder_away_under_ones_hands(tmp_path: Path) -> None:
    out, folder, held = tmp_path / "m", partial_folder(tmp_path / "m"), 0
    with subprocess.Popen([sys.executable, "-c", ENDING, str(out)]) as other:
        try:
            while held < 300:
                with suppress(OutputError), open_partial(out, {}, resume=False):  # the other one may hold it
                    assert [file.name for file in folder.iterdir()] == ["request.json"]
                    shutil.rmtree(folder)
                    held += 1
        finally:
            other.kill()
