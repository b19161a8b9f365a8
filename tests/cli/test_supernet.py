"""`edgevit supernet`, its slices and its curve, as a person types them."""

from __future__ import annotations

import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from small_base import ARGS, fewer_digits

BASE = ["vit_tiny_patch16_224", *(f"--model-arg={name}={value}" for name, value in ARGS.items())]
FEW = ["--set", "supernet.proxy_images=32", "--set", "supernet.updates=2", "--set", "supernet.points=4"]
SHORT = ["--steps", "4", "--batch-size", "16", "--lr", "1e-3", "--evaluations", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, digits_checkpoint: Path) -> tuple[Path, str, str]:
    """A super-network that the command made, and what the command printed."""
    from edgevit.cli.app import main

    folder = tmp_path_factory.mktemp("the nets") / "a net"
    command = ["edgevit", "supernet", *BASE, "--checkpoint", digits_checkpoint, "--data", "digits", "--rate", "0.6",
               *FEW, *SHORT, "--out", folder, "-q"]  # fmt: skip
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), fewer_digits():
        patch.setattr(sys, "argv", list(map(str, command)))
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code, err.getvalue()
    return folder, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def net(made: tuple[Path, str, str]) -> Path:
    return made[0]


def test_a_network_is_made_and_says_what_to_do_next(made: tuple[Path, str, str]) -> None:
    folder, out, err = made
    assert err == ""
    assert f"Next: edgevit derive --method skd --supernet '{folder}' --rate 0.3" in out.replace("\n", "")
    names = ["README.md", "history.jsonl", "model.json", "model.safetensors", "supernet.json"]
    assert sorted(f.name for f in folder.iterdir()) == names
    assert [f.name for f in folder.parent.iterdir()] == ["a net"]
    record = json.loads((folder / "supernet.json").read_text())
    assert record["settings"]["options"]["updates"] == 2 and len(record["curve"]) == 4
    assert len(record["data"]["classes"]) == 10
    card = (folder / "README.md").read_text()
    assert (
        "edgevit derive --method skd --supernet 'a net' --rate" in card
        and f"{100 * record['curve'][-1]['top1']:.2f} %" in card
    )


def test_show_lists_the_slices(net: Path, edgevit_main: Any) -> None:
    shown = edgevit_main("show", net)
    assert (shown.code, shown.err) == (0, "")
    record = json.loads((net / "supernet.json").read_text())
    for point in record["curve"][1:]:
        assert re.search(rf"rate {point['rate']:.3f} .*{100 * point['top1']:.2f} %", shown.out)
    assert f"{100 * record['base_top1']:.2f} %" in shown.out and "10 classes, full head" in shown.out
    assert f"slices: edgevit derive --method skd --supernet '{net}' --rate R" in shown.out.replace("\n", "")
    answer = edgevit_main("show", net, "--json")
    assert json.loads(answer.out)["supernet"] == record


def test_a_slice_needs_no_images_and_can_be_shown_and_measured(net: Path, edgevit_main: Any, tmp_path: Path) -> None:
    out = tmp_path / "slice"
    asked = ["--method", "skd", "--supernet", net, "--rate", "0.5", "--classes", "3,5"]
    cut = edgevit_main("derive", *asked, "--out", out)
    assert (cut.code, cut.err) == (0, "")
    assert (
        "fewer MACs" in cut.out
        and f"Next: edgevit evaluate {out} --data digits\n" in cut.out
        and "top-1" not in cut.out
    )
    shown = edgevit_main("show", out)
    assert shown.code == 0 and "2 classes, subset head: 3, 5" in shown.out
    assert "method skd, rate 0.5, shape fused, 0 steps, made" in shown.out and "top-1" not in shown.out
    images = ["--data", "digits", "--device", "cpu"]
    measured = edgevit_main("derive", *asked, *images, "--out", tmp_path / "measured", "-q")
    assert measured.code == 0 and re.search(r"derived .*\d %", measured.out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "skd", "--rate", "0.5"], "--method skd slices a super-network: give it with --supernet NET"),
        (["--supernet", "NET", "--rate", "0.5"], "is for --method skd, and the method is 'forge'"),
        (["--method", "skd", "--supernet", "NET", "--rate", "0.9"], "slices of "),
        (
            ["--method", "skd", "--supernet", "nowhere", "--rate", "0.5"],
            "nowhere is not a super-network: no such",
        ),
        (["--method", "skd", "--supernet", "NET", "--rate", "0.5", "--classes", "zwölf"], "'zwölf' is none of them"),
        (["--method", "skd", "--supernet", "NET", "--rate", "0.5", "--steps", "3"], "--data is missing"),
        (["--method", "skd", "--supernet", "NET"], "a budget is one of --rate"),
        (["--rate", "0.5"], "nothing to derive from: give a BASE"),
    ],
)
def test_what_cannot_be_is_one_line(
    net: Path, edgevit_main: Any, tmp_path: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(net) if a == "NET" else a for a in arguments]
    assert said in edgevit_main("derive", *given, "--out", "m").error
    assert not list(tmp_path.iterdir())


def test_a_damaged_super_network_is_not_shown(net: Path, edgevit_main: Any, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(net, tmp_path / "net")
    (tmp_path / "net" / "supernet.json").write_text('{"schema": 9, "versions": {"edgevit": "0.4.2"}}')
    error = edgevit_main("show", tmp_path / "net").error
    assert "written by edgevit 0.4.2; edgevit 0.1.0 reads schema 1: write it again" in error
