"""`edgevit.export` and `edgevit.evaluate` with an engine: what the command line does is one call from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_models import write_derived

import edgevit
from edgevit.records.export import EXPORT_KIND
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")


@pytest.mark.slow
def test_an_engine_is_built_and_judged_from_python(tmp_path: Path, play: Callable[..., None]) -> None:
    play()
    folder = write_derived(tmp_path / "t1", 16, 16, depth=1)
    files = edgevit.export(folder, accuracy=False)
    assert files.engine is None
    made = edgevit.export(folder, accuracy=False, trt=True, batches=(1, 1, 4), max_images=12)
    assert made.engine is not None and made.engine.batches == (1, 1, 4)
    assert [made.engine] == list(ModelFolder(folder).export.engines())
    assert made.files == files.files and EXPORT_KIND.content(made) == EXPORT_KIND.content(files)
    seen = edgevit.evaluate(made.engine.path, max_images=6)
    assert (seen.form, seen.images) == ("engine", 6)
    assert edgevit.evaluate(folder, max_images=6).form == "torch"
