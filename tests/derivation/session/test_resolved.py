"""A resumed run must have what determines the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file
from small_base import derive as derive_small

from edgevit.errors import Interrupted, OptionError


def test_resuming_with_other_unlabelled_images_is_refused(
    digits_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgevit.derivation.session import derive as session

    def stop(*given: Any) -> None:
        raise Interrupted("stopped")

    (tmp_path / "more").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "a.png")
    given: Any = {"unlabelled": tmp_path / "more", "training": {"teacher": "restricted"}, "method": "vulcan"}
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(session, "evaluate_base", stop)
        derive_small(digits_checkpoint, tmp_path / "m", **given)
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "b.png")
    with pytest.raises(OptionError, match=r"cannot resume .* with other options: the content of unlabelled differs"):
        derive_small(digits_checkpoint, tmp_path / "m", resume=True, **given)
    (tmp_path / "more" / "b.png").unlink()
    derive_small(digits_checkpoint, tmp_path / "m", resume=True, **given)
    assert load_file(tmp_path / "m" / "model.safetensors")
