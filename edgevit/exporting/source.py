"""Sources of ONNX files and engines: the network of a model folder, or an imported ONNX file.

Checks, variants and engines use a `Source` without knowing which it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import onnx_ir as ir
from torch import Tensor

from edgevit.exporting.gates import HEAD_OPERATORS, OPERATORS, TEXT_OPERATORS
from edgevit.exporting.graph import save_graph, trace
from edgevit.exporting.halving import convert
from edgevit.exporting.images import Subject, data_record, subject_of
from edgevit.exporting.precision import check_range, norm_names
from edgevit.exporting.session import OUTPUT_KIND
from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.device import find_device
from edgevit.network.folder import load
from edgevit.network.model import Model
from edgevit.network.network import Network
from edgevit.records.export import Batch, ExportedModel, Padding, Range
from edgevit.records.model_folder import ModelFolder
from edgevit.version import written_by

Predict = Callable[[Tensor], Tensor]  # outputs [B, ...] of images [B, C, H, W]
_MULTIPLE, _LEAST = 8, 16  # other fusable widths cost an extra copy: docs/decisions/001-fusable-shapes.md


@dataclass(frozen=True)
class Form:
    """Precision, batch and opset of a file."""

    precision: str  # precision of images, outputs and all modules but `fp32_modules`
    batch: Batch
    opset: int
    fp32_modules: tuple[str, ...] = ()  # names of the modules of an fp16 file that are in fp32


class Source(Protocol):
    """A model that can be written as ONNX files, with nodes named by module: `blocks.3.norm1`."""

    @property
    def subject(self) -> Subject:
        """The classes, preprocessing and images of the model."""

    @property
    def described(self) -> ExportedModel:
        """Description of the model in export.json, with the hash that identifies it in records of engines."""

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the layer normalisations, in which fp16 loses most."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, in order."""

    @property
    def has_attention(self) -> tuple[bool, ...]:
        """Whether each block has an attention."""

    @property
    def fusable(self) -> tuple[bool, ...]:
        """Whether each block has an attention of dimensions that NVIDIA's compiler fuses."""

    @property
    def operators(self) -> frozenset[str] | None:
        """Operators of the exported files; None: those of a decomposed Vision Transformer."""

    def predictor(self, device: str) -> Predict:
        """The function that computes the model in fp32 on a device."""

    def check_range(self, images: Tensor) -> Range:
        """Measure on images [B, C, H, W] what overflows in fp16; see `precision.check_range`."""

    def padded(self) -> tuple[Source, Padding]:
        """A source of the same function whose heads are padded so that they fuse, and a record of the padding."""

    @property
    def origin(self) -> dict[str, str]:
        """Metadata about the base of the model, for the files."""

    def graph(self, batch: Batch, opset: int) -> ir.Model:
        """A new graph in fp32 with nodes named by module.

        Raises:
            ExportError: it cannot be written in this form.
        """

    def write(self, path: Path, form: Form, metadata: Mapping[str, str]) -> None:
        """Write an ONNX file with nodes named by module.

        Raises:
            ExportError: it cannot be written in this form.
        """


def input_size(source: Source) -> tuple[int, ...]:
    """The sizes of one input: channels, height and width of an image, or the tokens of a text."""
    return tuple(source.subject.preprocessing["input_size"])


def usage_metadata(source: Source) -> dict[str, str]:
    """Metadata that applications and `evaluate` need: JSON values, and plain strings."""
    subject = source.subject
    split = {"seed": subject.seed, "validation_fraction": subject.validation_fraction, "group_by": subject.group_by}
    rule = {} if subject.rejection is None else {"rejection": json.dumps(asdict(subject.rejection))}
    kind = {} if subject.output_kind == "logits" else {OUTPUT_KIND: json.dumps(subject.output_kind)}
    return {
        **rule,
        **kind,
        "class_names": json.dumps(subject.class_names),
        "class_columns": json.dumps(subject.class_columns),
        "preprocessing": json.dumps(subject.preprocessing),
        "split": json.dumps(split),
        "weights_sha256": source.described.weights_sha256,
        "edgevit_version": written_by(),
    }


@dataclass(frozen=True)
class ModelSource:
    """A model folder."""

    model: Model
    subject: Subject
    weights_sha256: str  # hash of model.safetensors
    # The traced graphs, by batch and opset.
    traced: dict[tuple[Batch, int], ir.Model] = field(default_factory=dict, init=False, compare=False)

    @property
    def described(self) -> ExportedModel:
        return ExportedModel(self.model.spec.timm_name, self.weights_sha256)

    @property
    def dims(self) -> tuple[BlockDims, ...]:
        return self.model.dims

    @property
    def norms(self) -> tuple[str, ...]:
        return norm_names(self.model.module)

    @property
    def blocks(self) -> tuple[str, ...]:
        names = {id(module): name for name, module in self.model.module.named_modules()}
        return tuple(names[id(layer)] for layer in self.model.block_modules)

    @property
    def has_attention(self) -> tuple[bool, ...]:
        return tuple(dims.has("attention") for dims in self.dims)

    @property
    def fusable(self) -> tuple[bool, ...]:
        return tuple(dims.fusable for dims in self.dims)

    @property
    def operators(self) -> frozenset[str] | None:
        if self.model.spec.reads_texts:
            return OPERATORS | TEXT_OPERATORS
        return OPERATORS | HEAD_OPERATORS if self.model.spec.builder else None

    def predictor(self, device: str) -> Predict:
        target = find_device(device)
        network = self.model.to(target)
        return lambda images: network(images.to(target))

    def check_range(self, images: Tensor) -> Range:
        return check_range(self.model.module, images)

    def padded(self) -> tuple[ModelSource, Padding]:
        network = pad_heads(self.model)
        padded = replace(self, model=Model(network, self.model.spec, self.model.release))
        before, after = self.model.spec.blocks, padded.dims
        return padded, Padding(
            blocks=sum(old != new for old, new in zip(before, after, strict=True)),
            macs=network.geometry.macs(after),
            widths=tuple(block.head_width for block in after),
        )

    @property
    def origin(self) -> dict[str, str]:
        return {"base": self.model.spec.timm_name, "base_weights_sha256": self.model.spec.base.weights_sha256}

    def graph(self, batch: Batch, opset: int) -> ir.Model:
        if (batch, opset) not in self.traced:
            self.traced[batch, opset] = trace(self.model, input_size=input_size(self), batch=batch, opset=opset)
        return self.traced[batch, opset].clone()

    def write(self, path: Path, form: Form, metadata: Mapping[str, str]) -> None:
        model = self.graph(form.batch, form.opset)
        convert(model.graph, form.precision, form.fp32_modules)
        save_graph(model, path, {**self.origin, **metadata})


def open_model(folder: Path) -> ModelSource:
    """Open a model folder as a source."""
    model = load(folder)
    model.requires_grad_(False)
    weights_sha256 = ModelFolder(folder).document().weights_sha256
    return ModelSource(model, subject_of(model.spec, data_record(folder)), weights_sha256)


def padded_width(dims: BlockDims) -> int:
    """The common width of QK and VO with which a block fuses; a fusable block keeps its width."""
    widest = dims.head_width
    return widest if dims.fusable else max(_LEAST, -(-widest // _MULTIPLE) * _MULTIPLE)


def _pad_block(block: Block) -> Block:
    """A block of the same function whose attention is padded so that it fuses."""
    if block.attention is None:
        return block
    width = padded_width(block.dims)
    return replace(block, attention=block.attention.padded(width, width))


def pad_heads(network: Network) -> Network:
    """Return a copy with zero-padded heads, of a width at which NVIDIA's compiler fuses attention.

    It computes the same; its blocks all have equal QK and VO widths.
    """
    return network.build([_pad_block(block) for block in network.read()]).eval()
