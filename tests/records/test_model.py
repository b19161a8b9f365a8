from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_folders import rewrite_spec, some_spec, spec_text

from edgevit.errors import CheckpointError
from edgevit.records.model import ModelDocument, TargetClass, read_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "model.json").write_text(spec_text(some_spec(), "a" * 64))
    return tmp_path / "model.json"


def test_model_json_says_the_model_its_weights_hash_and_who_wrote_it(file: Path) -> None:
    read = read_model(file)
    assert read.spec == some_spec() and type(read.spec) is type(some_spec())
    assert (read.weights_sha256, read.edgevit) == ("a" * 64, "0.1.0")
    assert read == ModelDocument.of(some_spec(), "a" * 64, "0.1.0")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("heads", -1, "has -1 as blocks.0.heads"),
        ("preprocessing", {"input_size": [3, 32, 32]}, "preprocessing, lacks interpolation"),
        ("timm_args", {"num_classes": 3, "depth": 2}, "has 2 classes and 3 outputs"),
        ("timm_args", {"num_classes": 2, "depth": 5}, "has 5 as timm_args.depth and 2 blocks"),
        ("classes", [{"name": "cat", "base_index": 3}] * 2, "has a class twice"),
        ("classes", [{"name": "a", "base_index": 3}, {"name": "b", "base_index": 99}], "beyond the 10 outputs"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(file: Path, field: str, value: Any, told: str) -> None:
    def change(spec: dict[str, Any]) -> None:
        if field == "heads":
            spec["blocks"][0][field] = value
        else:
            spec[field] = value

    rewrite_spec(file.parent, change)
    with pytest.raises(CheckpointError) as refused:
        read_model(file)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_a_model_of_another_schema_is_refused_and_names_who_wrote_it(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 9, "edgevit": "0.4.2 (1301f27+)"}))
    with pytest.raises(CheckpointError) as refused:
        read_model(file)
    assert str(refused.value).endswith(
        "model.json has schema 9, written by edgevit 0.4.2; edgevit 0.1.0 reads schema 1: write it again with this "
        "version, or use edgevit 0.4.2"
    )


def test_with_a_whole_head_classes_are_columns_of_the_base() -> None:
    spec = replace(some_spec(), head="full", timm_args={"num_classes": 10})
    assert spec.class_columns == [3, 5] and spec.fault() is None and spec.output_names is None
    assert some_spec().output_names == ["cat", "dog"]
    assert some_spec(classes=(TargetClass("cat", 3),)).fault() == "has 1 classes and 2 outputs"
