"""An unfinished folder survives a stop and says how to go on; one that holds no work is no obstacle after an error."""

import pytest

from edgevit.derive.opening import resumable
from edgevit.errors import DataError, Interrupted


@pytest.mark.parametrize(("stop", "said"), [(KeyboardInterrupt(), "stopped"), (Interrupted("at step 3"), "at step 3")])
def test_a_stop_says_how_to_go_on_and_removes_nothing(tmp_path, stop, said):
    (tmp_path / "request.json").write_text("{}")
    with pytest.raises(Interrupted) as error, resumable(tmp_path, is_main=True):
        raise stop
    assert str(error.value) == f"{said}; the same command with --resume goes on from {tmp_path}"
    assert (tmp_path / "request.json").exists()


@pytest.mark.parametrize("is_main", [True, False])
def test_an_error_takes_away_a_folder_without_work_once(tmp_path, is_main):
    folder = tmp_path / "m.partial"
    folder.mkdir()
    (folder / "request.json").write_text("{}")
    with pytest.raises(DataError, match="too few"), resumable(folder, is_main=is_main):
        raise DataError("too few")
    assert folder.exists() != is_main
