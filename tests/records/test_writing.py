from __future__ import annotations

from pathlib import Path

import pytest

from edgevit.errors import OutputError
from edgevit.records.unfinished import partial_folder
from edgevit.records.writing import refuse_existing, refuse_unwritable, replaced_folder, write_whole


def test_a_file_is_written_over_what_a_killed_process_left_and_through_no_link(tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "results.json"
    victim.write_text("precious")
    (tmp_path / "results.json.tmp").symlink_to(victim)
    write_whole(file, "new")
    (tmp_path / "results.json.tmp").write_text("half")
    write_whole(file, "newer")
    assert (victim.read_text(), file.read_text()) == ("precious", "newer")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["results.json", "victim"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to("/dev/full")  # whoever is root would lose the device itself
    with pytest.raises(OSError, match="No space left"):
        write_whole(device, "x")
    assert device.is_char_device() and [f.name for f in tmp_path.iterdir()] == ["device"]


def test_a_link_to_nothing_is_refused_as_an_output(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "none")
    with pytest.raises(OutputError, match="out is a link to nothing; choose another --out, or remove it"):
        refuse_existing(tmp_path / "out")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="root may write everywhere else")
@pytest.mark.parametrize("out", [".", "..", "a/..", "/"])
def test_an_output_without_a_name_is_refused(out: str) -> None:
    for refuse in (partial_folder, lambda folder: refuse_existing(folder, overwrite=True)):
        with pytest.raises(OutputError, match=rf"^--out {out} does not end in the name of a folder; give one, such as"):
            refuse(Path(out))


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"^cannot write /proc/runs/t1: .*; free some space or choose another place$"):
        refuse_existing(Path("/proc/runs/t1"))
    refuse_existing(tmp_path / "runs" / "t1")
    assert not list(tmp_path.iterdir())


def test_an_output_is_tried_before_the_work_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("kept")
    for name in ("t.json", "new.json"):
        refuse_unwritable(tmp_path / name)
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {"t.json": "kept"}
    for file in (tmp_path, tmp_path / "none" / "t.json", tmp_path / "t.json" / "t.json"):
        with pytest.raises(OutputError, match="it is a folder, or its folder is missing; choose another --output"):
            refuse_unwritable(file)
    with pytest.raises(OutputError, match=r"cannot write .*: File name too long"):
        refuse_unwritable(tmp_path / ("t" * 255))


def test_what_is_to_be_kept_of_a_replaced_folder_outlives_ctrl_c_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename, renamed = tmp_path / "export", Path.rename, list[Path]()

    def replace(interrupted_after: int) -> None:
        def interrupted(path: Path, target: Path) -> Path:
            renamed.append(path)
            moved = rename(path, target)
            if len(renamed) == interrupted_after:
                raise KeyboardInterrupt
            return moved

        renamed.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", interrupted)
            with replaced_folder(folder, lambda: None, keep="engines") as temporary:
                (temporary / "new").touch()

    (folder / "engines").mkdir(parents=True)
    (folder / "engines" / "board.engine").write_text("took minutes")
    for moment in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            replace(interrupted_after=moment)
        assert [file.name for file in tmp_path.iterdir()] == ["export"]
        assert (folder / "engines" / "board.engine").read_text() == "took minutes"
    replace(interrupted_after=0)
    assert sorted(file.name for file in folder.iterdir()) == ["engines", "new"]
