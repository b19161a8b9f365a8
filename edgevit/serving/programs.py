"""The example programs in Python and C++, with the file and the numbers that they need."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from edgevit.errors import ExportError
from edgevit.records.export import EXPORT_KIND
from edgevit.records.model_folder import ModelFolder
from edgevit.records.names import EXPORT
from edgevit.records.precisions import FP32, INT8
from edgevit.serving.model import ServedModel

_EXAMPLES = Path(__file__).with_name("examples")  # deploy/examples
_CLASSIFY = _EXAMPLES / "classify.py"
_CPP_INTERPOLATIONS = ("bilinear", "bicubic")


def write_python(served: ServedModel, folder: Path) -> list[str]:
    """Write classify.py and the part of export/ that it reads; return what the README says of it."""
    served.check_classes("python", "\n")
    shutil.copyfile(_CLASSIFY, folder / _CLASSIFY.name)
    export = folder / EXPORT
    file = export / served.file.relative_to(served.folder / EXPORT)
    file.parent.mkdir(parents=True)
    served.copy(file)
    record = ModelFolder(served.folder).export.record_file
    shutil.copyfile(record, export / record.name)
    return [
        "    python3 classify.py export cat.jpg dog.jpg",
        "    python3 classify.py export --camera csi",
        "",
        f"Needs Python 3.8, numpy, Pillow and {'TensorRT' if served.engine else 'onnxruntime'}; for a camera "
        "OpenCV. It prepares the images itself.",
    ]


def write_cpp(served: ServedModel, folder: Path) -> list[str]:
    """Write classify.cpp with model.txt; return what the README says of it."""
    served.check_classes("cpp", "\n")
    if (interpolation := served.export.preprocessing["interpolation"]) not in _CPP_INTERPOLATIONS:
        raise ExportError(f"{served.folder}: the C++ program does not know {interpolation} interpolation; try --python")
    for file in sorted((_EXAMPLES / "cpp").iterdir()):
        shutil.copyfile(file, folder / file.name)
    try:
        text = runpy.run_path(str(_CLASSIFY))["plain"](EXPORT_KIND.content(served.export))
    except SystemExit as refusal:
        raise ExportError(f"{served.folder}: {refusal.code}; try --python") from refusal
    (folder / "model.txt").write_text(f"{text}\n", encoding="utf-8")
    engine = "model.engine"
    file = folder / (engine if served.engine else "model.onnx")
    served.copy(file)
    # Without it TensorRT 10 refuses INT8, and may compute in fp16 what a file in fp16 keeps in fp32.
    typed = "" if served.precision == FP32.name else " --stronglyTyped"
    build = [] if served.engine else [
        f"    trtexec --onnx={file.name} --saveEngine={engine}{typed}    # on the board, with TensorRT 10 or newer",
    ]  # fmt: skip
    judged = "`edgevit export MODEL --trt`, by TensorRT 8 as well,"
    if served.precision == INT8.name:
        judged = "With all but the linear layers in fp16 and not in fp32, `edgevit export MODEL --trt --precision int8`"
    return [
        *build,
        "    cmake -S . -B build && cmake --build build",
        f"    build/classify model.txt {engine} cat.ppm",
        "",
        "Needs TensorRT 8.5 to 11 and CUDA. It prepares the images itself, which are PPM files.",
        *([f"{judged} builds an engine, and checks its classes."] if build else []),
    ]
