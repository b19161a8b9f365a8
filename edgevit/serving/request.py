"""The request of `edgevit package`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

from edgevit.errors import CheckpointError, OptionError, UnknownNameError
from edgevit.records.names import suffix_of
from edgevit.records.precisions import MIXED, PRECISIONS
from edgevit.records.writing import refuse_existing
from edgevit.request import FILES, MODEL, OUTPUT, Option

NAMES = ("triton", "deepstream", "python", "cpp")


@dataclass(frozen=True, kw_only=True)
class PackageRequest:
    """The request of `edgevit.package`."""

    model: Annotated[Path, Option("Model folder that was exported, or an engine in it.", None, metavar="MODEL")]
    triton: Annotated[bool, Option("Write a model repository for Triton Inference Server.", MODEL, common=True)] = False
    deepstream: Annotated[
        bool,
        Option("Write a configuration of DeepStream's nvinfer, and its ONNX file.", MODEL, common=True),
    ] = False
    python: Annotated[bool, Option("Write a Python program that needs no edgevit.", MODEL, common=True)] = False
    cpp: Annotated[bool, Option("Write a C++ program for TensorRT.", MODEL, common=True)] = False
    precision: Annotated[
        str | None,
        Option("Precision of the ONNX file: fp32, fp16 or int8.  [default: fp16]", FILES, common=True),
    ] = None
    out: Annotated[Path, Option("Folder to write. It must not exist yet.", OUTPUT, metavar="FOLDER", common=True)]

    def application(self) -> str:
        """Return what the folder is for.

        Raises:
            OptionError: none or several flags are given.
        """
        flags = [f"--{name}" for name in NAMES if getattr(self, name)]
        if len(flags) != 1:
            choices = ", ".join(f"--{name}" for name in NAMES)
            raise OptionError(f"a package is for one of {choices}, not {' and '.join(flags) or 'none'}")
        return flags[0].removeprefix("--")

    @property
    def of_engine(self) -> bool:
        """Whether the model is an engine."""
        return suffix_of(self.model) == ".engine"

    def check(self) -> None:
        """Check the request; raises as `edgevit.package` does."""
        self.application()
        if self.precision is not None and self.precision not in (*PRECISIONS, MIXED):
            raise UnknownNameError("precision", self.precision, (*PRECISIONS, MIXED))
        if self.of_engine and not self.model.is_file():
            raise CheckpointError(f"there is no {self.model}; `edgevit export MODEL --trt` builds an engine")
        if not self.of_engine and not self.model.is_dir():
            export = (
                f"; `edgevit export {quote(str(self.model))}` makes one of it"
                if suffix_of(self.model) == ".onnx"
                else ""
            )
            raise CheckpointError(f"{self.model} is not a model folder{export}")
        refuse_existing(self.out)
