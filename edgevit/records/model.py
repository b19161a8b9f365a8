"""model.json: everything about a model but its weights and how it came to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from edgevit.errors import CheckpointError
from edgevit.records.class_names import ClassName
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.records.reading import Exif, reading_settings, transform_settings

if TYPE_CHECKING:
    from torch import Tensor

MEND = "copy the folder again, or derive the model again"
READER = Reader(CheckpointError, MEND)

Score = Literal["logsumexp"]
SCORE: Score = "logsumexp"
Head = Literal["subset", "full"]
Size = Annotated[int, Field(gt=0, lt=2**31)]
Dimension = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(gt=0, lt=2**63)]
Three = Field(min_length=3, max_length=3)
Index = Annotated[int, Field(ge=0, lt=2**31)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class BlockDims:
    """What pruning changes in one block; the sizes of an attention or an FFN that is gone are zero."""

    heads: Dimension
    qk: Dimension  # width of a query and of a key, per head
    vo: Dimension  # width of a value, per head
    ffn: Dimension
    # Tokens that it passes on, class, distillation and register tokens among them; 0: all that it is given.
    tokens: Dimension = 0
    merged: bool = False  # whether one of these is the mean of those that leave

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that show in the shapes of its weights."""
        return {"heads": self.heads, "qk": self.qk, "vo": self.vo, "ffn": self.ffn}

    @property
    def has_attention(self) -> bool:
        return self.heads > 0

    @property
    def has_ffn(self) -> bool:
        return self.ffn > 0

    @property
    def fusable(self) -> bool:
        """Whether NVIDIA's compiler fuses this attention: measured, see docs/decisions/001-fusable-shapes.md."""
        return self.heads >= 2 and self.qk == self.vo and self.qk % 4 == 0 and self.qk >= 12


def scores(logits: Tensor) -> Tensor:
    """How well each image fits the target classes as a whole: [B] from their logits [B, C]."""
    return logits.float().logsumexp(1)


@dataclass(frozen=True)
class Rejection:
    """The rule that goes with a model; its logits are what they are without it."""

    score: Score
    threshold: float  # an image whose score is below it is called `other`
    share: Annotated[float, Field(gt=0, lt=1)]  # of images of the target classes that are expected to be, wrongly

    def rejects(self, logits: Tensor) -> Tensor:
        """Whether each image is called `other`: bool [B] from the target classes' logits [B, C]."""
        return ~(scores(logits) >= self.threshold)  # not a number is no class either


@dataclass(frozen=True)
class TargetClass:
    """A target class."""

    name: ClassName
    base_index: Index  # row of the base's classifier


@dataclass(frozen=True)
class BaseFacts:
    """The model that this one was derived from, or the model itself if it is a base."""

    weights_sha256: Sha256  # of the tensors, not of a file
    blocks: Annotated[tuple[BlockDims, ...], Field(min_length=1)]
    macs: Count
    params: Count
    outputs: Size  # classes of its classifier
    embed: Size | None = None  # width of its embedding; None: that of the model


@dataclass(frozen=True)
class Preprocessing:
    """timm's data config, and how files are read: a dict everywhere but in a check, which lacks what is the default."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    input_size: Annotated[tuple[Size, ...], Three]  # channels, height, width
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
    mean: Annotated[tuple[float, ...], Three]
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Three]
    crop_pct: Annotated[float, Field(gt=0, le=1)]
    crop_mode: Literal["center", "squash", "border"]
    exif: Exif = "ignore"
    value_range: Annotated[float, Field(gt=0)] | None = None

    def plain(self) -> dict[str, Any]:
        """As a dict, without what is the default of a reading."""
        settings = asdict(self)
        return {**transform_settings(settings), **reading_settings(settings)}


@dataclass(frozen=True)
class ModelSpec:
    """What model.json says."""

    timm_name: str
    timm_args: dict[str, Any]  # of the base; `num_classes` is that of this model
    family: str
    blocks: Annotated[tuple[BlockDims, ...], Field(min_length=1)]
    head: Head  # "full" keeps a row for every class of the base
    classes: tuple[TargetClass, ...]  # target classes; with a subset head, in the order of the outputs
    preprocessing: dict[str, Any]  # what `Preprocessing` has
    macs: Count
    params: Count
    base: BaseFacts
    rejection: Rejection | None = None  # when an image is called `other`; None: never

    @property
    def class_names(self) -> list[str]:
        return [c.name for c in self.classes]

    @property
    def output_names(self) -> list[str] | None:
        """The class of every output, in order, where all of them are known."""
        by_column = dict(zip(self.class_columns, self.class_names, strict=True))
        outputs = range(self.outputs)
        return [by_column[i] for i in outputs] if by_column.keys() == set(outputs) else None

    @property
    def outputs(self) -> int:
        """Rows of its classifier."""
        outputs: int = self.timm_args["num_classes"]
        return outputs

    @property
    def class_columns(self) -> list[int]:
        """For each target class, its column in the logits."""
        return list(range(len(self.classes))) if self.head == "subset" else [c.base_index for c in self.classes]

    @property
    def embed(self) -> int | None:
        """Channels of its embedding; None: not said, and as many as its base has."""
        width = self.timm_args.get("embed_dim", self.base.embed)
        return width if isinstance(width, int) else None

    @property
    def narrowed(self) -> tuple[int, int] | None:
        """Channels of its embedding and of its base's, where it has fewer; None: it has all, or they are not said."""
        now, whole = self.embed, self.base.embed
        return None if now is None or whole is None or now == whole else (now, whole)

    @property
    def embedding_text(self) -> str | None:
        """How narrow its embedding is; None: as wide as its base's."""
        if self.narrowed is None:
            return None
        now, whole = self.narrowed
        return f"the embedding has {now} channels of the base's {whole}"

    @property
    def rate(self) -> float:
        """Share of the base's MACs that is gone."""
        return 1 - self.macs / self.base.macs

    @property
    def plain_timm(self) -> bool:
        """Whether every block is timm's own attention, and every token passes through all of them."""
        return all(b.qk == b.vo and not b.tokens for b in self.blocks)

    def fault(self) -> str | None:
        """What contradicts itself, as the end of a sentence that starts with the file's name; None: nothing."""
        outputs, names = self.timm_args.get("num_classes"), self.class_names
        if type(outputs) is not int or not 0 < outputs < 2**31:
            return f"has {outputs!r} as timm_args.num_classes, expected a number of classes"
        if self.timm_args.get("depth", len(self.blocks)) != len(self.blocks):
            return f"has {self.timm_args['depth']!r} as timm_args.depth and {len(self.blocks)} blocks"
        for i, b in enumerate(self.blocks):
            if len({b.heads > 0, b.qk > 0, b.vo > 0}) > 1:
                return (
                    f"has {b.heads} heads of widths {b.qk} and {b.vo} in block {i}: all are 0 where attention is gone"
                )
        if (told := _token_fault(self.blocks)) is not None:
            return told
        if len(set(names)) < len(names) or len(set(self.class_columns)) < len(names):
            return "has a class twice"
        if self.head == "subset" and len(names) != outputs:
            return f"has {len(names)} classes and {outputs} outputs"
        if any(c.base_index >= self.base.outputs for c in self.classes):
            return f"has a class beyond the {self.base.outputs} outputs of its base"
        if self.head == "full" and any(column >= outputs for column in self.class_columns):
            return f"has a class beyond its {outputs} outputs"
        return None


def _token_fault(blocks: Sequence[BlockDims]) -> str | None:
    """What contradicts itself in the tokens that blocks pass on; None: nothing."""
    least: int | None = None
    for i, block in enumerate(blocks):
        if block.merged and not block.tokens:
            return f"has merged tokens in block {i}, which no token leaves"
        if not block.tokens:
            continue
        if not block.has_attention:
            return f"has tokens leave block {i}, which has no attention to rank them by"
        if least is not None and block.tokens >= least:
            return f"has {block.tokens} tokens pass block {i}, and {least} an earlier one: fewer must pass a later one"
        least = block.tokens
    return None


@dataclass(frozen=True, kw_only=True)
class ModelDocument(ModelSpec):
    """A model's description with what is known once its weights are written."""

    weights_sha256: Sha256  # of model.safetensors
    edgevit: str  # version that wrote the folder

    @classmethod
    def of(cls, spec: ModelSpec, weights_sha256: str, edgevit: str) -> ModelDocument:
        said = {f.name: getattr(spec, f.name) for f in fields(ModelSpec)}
        return cls(**said, weights_sha256=weights_sha256, edgevit=edgevit)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(**{f.name: getattr(self, f.name) for f in fields(ModelSpec)})


MODEL_KIND = RecordKind("model", ModelDocument, READER)


def read_model(file: Path) -> ModelDocument:
    """Read model.json.

    Raises:
        CheckpointError: the file is missing, damaged, altered or of another schema.
    """
    read = MODEL_KIND.read(file)
    READER.checked(read.preprocessing, Preprocessing, f"{file}, preprocessing,")
    if fault := read.fault():
        raise CheckpointError(f"{file} {fault}; {MEND}")
    return read
