"""`edgevit profiles`: the list, one profile, one's own, and what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgevit.board.profiles import load_profile, profile_names


def test_the_list_has_a_row_for_every_profile(edgevit_main: Any) -> None:
    done = edgevit_main("profiles")
    assert (done.code, done.err) == (0, "")
    rows = {name: next(line for line in done.out.splitlines() if f" {name} " in line) for name in profile_names()}
    for text in ("Jetson Orin NX 16GB", "16", "15 / 19.2", "102.4", "MAXN 10W 15W 25W MAXN_SUPER 40W"):
        assert text in rows["orin-nx-16gb"]
    assert "the board's own table" in rows["agx-orin-industrial"]


def test_one_profile_is_shown_whole(edgevit_main: Any) -> None:
    done = edgevit_main("profiles", "orin-nano-8gb")
    assert (done.code, done.err) == (0, "")
    for text in ("p3767-0003 or p3767-0005", "32 tensor cores x 512 FLOP", "25W (default)", "VDD_IN (0x40)", "10.3.0",
                 "p99<33ms", "not NVIDIA's", "unconfirmed: ", "source of power modes: ", "1020"):  # fmt: skip
        assert text in done.out


def test_json_is_the_profile_itself_and_may_be_edited_into_ones_own(edgevit_main: Any, tmp_path: Path) -> None:
    done = edgevit_main("profiles", "orin-nx-8gb", "--json")
    mine = tmp_path / "mine.yaml"
    mine.write_text(done.out.replace("Jetson Orin NX 8GB", "my robot"))
    shown = edgevit_main("profiles", mine)
    assert shown.code == 0 and "orin-nx-8gb: my robot, part p3767-0001" in shown.out
    listed = json.loads(edgevit_main("profiles", "--json").out)
    assert [entry["name"] for entry in listed] == profile_names()
    assert listed[-1] == load_profile(profile_names()[-1]).model_dump(mode="json")


def test_what_cannot_be_shown_is_one_line(edgevit_main: Any, tmp_path: Path) -> None:
    error = edgevit_main("profiles", "orin-nx-16g").error
    assert error.startswith("error: no profile 'orin-nx-16g'; did you mean 'orin-nx-16gb'")
    (tmp_path / "mine.yaml").write_text("name: mine\nmodul: mine\n")
    assert (
        "mine.yaml has the unknown key 'modul'; did you mean 'module'?"
        in edgevit_main("profiles", tmp_path / "mine.yaml").error
    )
    assert "none.yaml; check the path" in edgevit_main("profiles", tmp_path / "none.yaml", "--json").error
