"""Write a folder that an application serves a model from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgevit.errors import ExportError
from edgevit.records.model import reads_texts
from edgevit.records.writing import new_folder
from edgevit.request import takes_options
from edgevit.serving.deepstream import write_deepstream
from edgevit.serving.model import ServedModel, find_served
from edgevit.serving.programs import write_cpp, write_python
from edgevit.serving.request import PackageRequest
from edgevit.serving.triton import write_triton
from edgevit.version import written_by

README = "README.md"
# Titles, and what writes the files and returns the lines on how to run them.
APPLICATIONS: dict[str, tuple[str, Callable[[ServedModel, Path], list[str]]]] = {
    "triton": ("Triton Inference Server", write_triton),
    "deepstream": ("DeepStream", write_deepstream),
    "python": ("Python", write_python),
    "cpp": ("C++", write_cpp),
}


@takes_options(PackageRequest, "model")
def package(request: PackageRequest) -> Path:
    """Write a folder that Triton, DeepStream or a small program serves an exported model from; return it.

    Exactly one of `triton`, `deepstream`, `python` and `cpp` is given.

    Raises:
        OptionError, UnknownNameError: an option is unknown, or nvinfer cannot use the file.
        CheckpointError, ExportError, EngineError: the model is not exported, the file is missing, altered or of another
            model, or the application needs classes that the model does not name.
        OutputError: the folder exists, or cannot be written.
    """
    request.check()
    served = find_served(request.model, request.precision)
    if reads_texts(served.export.preprocessing):
        raise ExportError(f"{request.model} reads texts, and applications read images; give {served.file} to your own")
    title, write_files = APPLICATIONS[request.application()]
    with new_folder(request.out) as temporary:
        lines = write_files(served, temporary)
        (temporary / README).write_text(readme(served, title, lines), encoding="utf-8")
    return request.out


def readme(served: ServedModel, title: str, lines: list[str]) -> str:
    """What the folder is, what it was made of, and how to run it."""
    export = served.export
    source = export.model.file or export.model.timm_name
    form, place = f"operator set {export.opset}", ""
    if served.engine:
        form, place = "an engine", f" It runs on `{served.engine.fingerprint}` alone: that board with that TensorRT."
    parts = [
        f"# {served.name} for {title}",
        f"Made by edgevit {written_by()} of `{served.file.name}` ({served.precision}, {form}, sha256 "
        f"{served.sha256}) of {source}, weights {export.model.weights_sha256}.{place}",
        "Nothing in this folder was run on a board or in its application.",
        "## Run",
        "\n".join(lines),
        "## Images",
        "RGB; 8-bit values are divided by 255, less `mean`, and divided by `std`.",
        "\n".join(f"- {name}: {value}" for name, value in export.preprocessing.items()),
    ]
    if export.rejection is not None:
        parts.append(
            "An image is `other` where the log-sum-exp of the target classes' logits is below "
            f"{export.rejection.threshold:.9g}."
        )
    return "\n\n".join(parts) + "\n"
