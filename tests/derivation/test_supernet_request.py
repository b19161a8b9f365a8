"""What no super-network can be made of is refused before the base is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgevit.derivation.supernet_request import SupernetRequest
from edgevit.errors import EdgeVitError
from edgevit.train.settings import Training


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate": 2}, "--rate 2"),
        ({"training": Training(teacher="finetuned")}, "--teacher finetuned is for a derivation"),
        ({"options": {"pionts": 5}}, "did you mean .*points"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(EdgeVitError, match=told):
        SupernetRequest(base="vit", data="digits", out=tmp_path / "m", **given).check()
