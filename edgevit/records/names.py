"""Names of the files of a model folder. `ModelFolder` and `ExportFolder` have their paths and read them."""

from __future__ import annotations

from pathlib import Path

SPEC = "model.json"
WEIGHTS = "model.safetensors"
DERIVATION = "derivation.json"
SUPERNET = "supernet.json"
HISTORY = "history.jsonl"
CARD = "README.md"
PLAN = "plan.json"
TOKENIZER = "tokenizer.json"  # tokenizer of a network of texts
BUILDER = "builder.py"  # what makes the module, where that is the user's own
COST_TABLE = "costs.yaml"  # cost table by which a budget was met
IMPORTED = "onnx.json"  # description of an imported ONNX file, in place of model.json
IMPORTED_ONNX = "model.onnx"  # the imported ONNX file, in place of model.safetensors

EXPORT = "export"  # a folder in it, with:
EXPORT_RECORD = "export.json"
WHOLE_DETECTOR = "detector.onnx"
ENGINES = "engines"  # a folder in that one, with one for each kind of board

SWEEP = "sweep.json"  # beside model folders

WEIGHTS_ALONE = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz")  # suffixes of files without a graph

MODEL_FOLDER = frozenset(
    {SPEC, WEIGHTS, DERIVATION, SUPERNET, HISTORY, CARD, PLAN, EXPORT, COST_TABLE, BUILDER, TOKENIZER}
)


def suffix_of(file: str | Path) -> str:
    """The suffix of a file name in lower case, as MODEL.ONNX is an ONNX file."""
    return Path(file).suffix.lower()


def onnx_name(label: str) -> str:
    """The name of the exported file of a precision, or of a variant such as "fp32.opset17"."""
    return f"model.{label}.onnx"
