"""Parquet files for tests, which are skipped without pyarrow."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image


def png(grey: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (grey, grey, grey)).save(stream, "png")
    return stream.getvalue()


def written(file: Path, names: Any = None, named: str = "label", /, **columns: Any) -> Path:
    """Write a Parquet file, with class names of the column `named` as Hugging Face's metadata has them."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    table = arrow.table(columns)
    if names is not None:
        features = {"image": {"_type": "Image"}, named: {"_type": "ClassLabel", "names": names}}
        stated = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({b"huggingface": stated.encode()})
    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, file)
    return file


def records(*greys: int) -> list[dict[str, Any]]:
    return [{"bytes": png(grey), "path": f"{grey}.png"} for grey in greys]
