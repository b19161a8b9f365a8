from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_models import ARGS, random_base, write_derived

from edgevit.exporting.onnx import export_files
from edgevit.exporting.request import FilesRequest
from edgevit.network.folder import save
from edgevit.network.model import describe
from edgevit.records.export import ExportRecord


@pytest.fixture
def base_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    save(describe(random_base(), "vit_tiny_patch16_224", ARGS), folder)
    return folder


@pytest.fixture
def make_derived(tmp_path: Path) -> Callable[..., Path]:
    return lambda qk, vo, name="derived", **options: write_derived(tmp_path / name, qk, vo, **options)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportRecord]:
    """A model folder with unequal QK and VO widths and its export, to be looked at and not changed."""
    folder = write_derived(tmp_path_factory.mktemp("exported") / "derived", 24, 16, head="full")
    return folder, export_files(FilesRequest(model=folder))
