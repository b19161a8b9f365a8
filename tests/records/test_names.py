from __future__ import annotations

import ast

from places import ROOT, nodes_of

from edgevit.records import names
from edgevit.records.names import MODEL_FOLDER, onnx_name

# Names that only `edgevit.folder` may join to a path; others ask `ModelFolder` and `ExportFolder`.
FILES = {
    name: value
    for name, value in vars(names).items()
    if isinstance(value, str) and value.endswith((".json", ".jsonl", ".safetensors"))
}
UNFINISHED = {"HISTORY", "PLAN"}  # files of an unfinished derivation are called so, too, and that is no model folder


def test_an_exported_file_is_named_by_its_precision_or_variant() -> None:
    assert (onnx_name("fp32"), onnx_name("fp16.norms32")) == ("model.fp32.onnx", "model.fp16.norms32.onnx")


def test_a_model_folder_holds_nothing_else() -> None:
    assert {
        "model.json",
        "model.safetensors",
        "README.md",
        "export",
    } <= MODEL_FOLDER and "notes.txt" not in MODEL_FOLDER


def named(node: ast.AST) -> str | None:
    """The file of a model folder that a piece of code names, as a string or by `names`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return next((file for file in FILES.values() if node.value.rpartition("/")[2] == file), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        right = ast.unparse(node.right).rpartition(".")[2]
        return FILES[right] if right in FILES.keys() - UNFINISHED else None
    return None


def test_nobody_else_names_a_file_of_a_model_folder() -> None:
    """Who opened model.json or derivation.json by itself would read it by string, and past its schema and its seal."""
    assert {"SPEC", "DERIVATION", "PLAN", "HISTORY", "EXPORT_RECORD", "SUPERNET"} <= FILES.keys()
    code = [*(ROOT / "edgevit").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    own = ROOT / "edgevit" / "records"
    found = {
        (str(file.relative_to(ROOT)), name)
        for file in code
        if own not in file.parents
        if any(word in file.read_text("utf-8") for word in (*FILES.keys() - UNFINISHED, *FILES.values()))
        for node in nodes_of(file)
        if (name := named(node)) is not None
    }
    assert found == set()
