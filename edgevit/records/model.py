"""model.json: the description of a model, without its weights and its derivation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field

from edgevit.errors import CheckpointError
from edgevit.records.class_names import ClassName
from edgevit.records.documents import Reader
from edgevit.records.kinds import RecordKind
from edgevit.records.reading import Exif, reading_settings, transform_settings
from edgevit.text import format_count

if TYPE_CHECKING:
    from torch import Tensor

HINT = "copy the folder again, or derive the model again"
READER = Reader(CheckpointError, HINT)

_Score = Literal["logsumexp"]
SCORE: _Score = "logsumexp"
Head = Literal["subset", "full"]
# Boxes are found by the pyramid that a detector's network gives. The last three: of maps.
OutputKind = Literal["logits", "features", "boxes", "foreground", "classes", "values"]
# What the head reads of the tokens after the last norm: some of them one by one, or the class token and the mean of the
# patches side by side.
TokenOutput = Literal["class", "patches", "class,patches", "class,mean"]
Size = Annotated[int, Field(gt=0, lt=2**31)]
Dimension = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(gt=0, lt=2**63)]
_Three = Field(min_length=3, max_length=3)
Index = Annotated[int, Field(ge=0, lt=2**31)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


SiteKind = Literal["attention", "ffn"]
SizeAxis = Literal["heads", "qk", "vo", "ffn"]
# The axes of each kind of site: what its size is made of. A block has one site of each kind, or lacks it.
SITE_AXES: Mapping[SiteKind, tuple[SizeAxis, ...]] = {"attention": ("heads", "qk", "vo"), "ffn": ("ffn",)}

HEAD_WIDTHS: tuple[SizeAxis, ...] = ("qk", "vo")
WIDTHS: tuple[SizeAxis, ...] = (*HEAD_WIDTHS, "ffn")  # axes along which sizes change in steps


def axis_name(axis: SizeAxis) -> str:
    """The name of an axis, for people."""
    return axis if axis == "heads" else axis.upper()


@dataclass(frozen=True)
class BlockDims:
    """The sizes of one block that pruning changes, by axis; those of a removed attention or FFN are zero."""

    heads: Dimension
    qk: Dimension  # width of a query and of a key, per head
    vo: Dimension  # width of a value, per head
    ffn: Dimension
    # Tokens that it passes on, with class, distillation and register tokens; 0: all of its input.
    tokens: Dimension = 0
    merged: bool = False  # whether one of the tokens passed on is the mean of the dropped tokens
    stage: Dimension = 0  # number of the network's stage, whose blocks have one embedding width
    shifted: bool = False  # whether its windows are those of the other blocks, moved by half
    # Windows of equally many tokens, within which tokens attend to one another; 1: to all. Swin's are of its stage.
    windows: Size = 1

    def __getitem__(self, axis: SizeAxis) -> int:
        size: int = getattr(self, axis)
        return size

    @property
    def sizes(self) -> dict[SizeAxis, int]:
        """The sizes that determine the shapes of its weights."""
        return {axis: self[axis] for axes in SITE_AXES.values() for axis in axes}

    @property
    def sites(self) -> list[SiteKind]:
        """Kinds of the block's sites: attention, FFN, or both."""
        return [kind for kind in SITE_AXES if self.has(kind)]

    def has(self, kind: SiteKind) -> bool:
        return self[SITE_AXES[kind][0]] > 0

    def size_text(self, kind: SiteKind) -> str:
        """The size of a site, for people: 3 heads of 64 and 32, or 128 neurons."""
        return f"{self.heads} heads of {self.qk} and {self.vo}" if kind == "attention" else f"{self.ffn} neurons"

    def features(self, kind: SiteKind) -> int:
        """How many values a site computes of each token: queries and values, or neurons."""
        return self.heads * (self.qk + self.vo) if kind == "attention" else self.ffn

    def with_sizes(self, sizes: Mapping[SizeAxis, int]) -> BlockDims:
        """A copy with other sizes along some axes."""
        changes: dict[str, Any] = {axis: size for axis, size in sizes.items()}
        return replace(self, **changes)

    def without(self, kind: SiteKind) -> BlockDims:
        """A copy without a site."""
        return self.with_sizes(dict.fromkeys(SITE_AXES[kind], 0))

    @property
    def head_widths(self) -> tuple[int, int]:
        """The QK and VO widths."""
        return self.qk, self.vo

    def with_head_width(self, width: int) -> BlockDims:
        """A copy with QK and VO of this width."""
        return self.with_sizes(dict.fromkeys(HEAD_WIDTHS, width))

    @property
    def head_width(self) -> int:
        """The wider of its QK and VO widths."""
        return max(self.qk, self.vo)

    @property
    def fusable(self) -> bool:
        """Whether NVIDIA's compiler fuses this attention; measured in docs/decisions/001-fusable-shapes.md."""
        return self.heads >= 2 and self.qk == self.vo and self.qk % 4 == 0 and self.qk >= 12


def scores(logits: Tensor) -> Tensor:
    """The score of each image for the target classes together: [B] from their logits [B, C]."""
    return logits.float().logsumexp(1)


@dataclass(frozen=True)
class Rejection:
    """The rule by which a model classifies images as `other`; it does not change the logits."""

    score: _Score
    threshold: float  # an image with a lower score is classified as `other`
    share: Annotated[float, Field(gt=0, lt=1)]  # expected share of target images that are wrongly classified as `other`

    def rejects(self, logits: Tensor) -> Tensor:
        """Whether each image is classified as `other`: bool [B] from the logits [B, C] of the target classes."""
        return ~(scores(logits) >= self.threshold)  # true of NaN, too


@dataclass(frozen=True)
class TargetClass:
    """A target class."""

    name: ClassName
    base_index: Index  # row of the base's classifier


@dataclass(frozen=True)
class BaseFacts:
    """The base of a model, which is the model itself where it was not derived."""

    weights_sha256: Sha256  # hash of the weights as tensors, not of a file
    blocks: Annotated[tuple[BlockDims, ...], Field(min_length=1)]
    macs: Count
    params: Count
    outputs: Dimension  # number of classes of the base's classifier; 0: it has none
    embed: Size | None = None  # width of the base's embedding; None: equal to that of the model


@dataclass(frozen=True)
class BuilderFacts:
    """What makes the module of a network with a head of the user's: builder.py in the folder."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
    network: str  # the name of the network within the module
    sha256: Sha256  # hash of builder.py
    # The blocks, from 0, whose tokens alone of the network the head reads; none: not known.
    read: tuple[Index, ...] = ()
    # Whether weights were given of the network alone, so that the rest is as the function makes it.
    backbone_alone: bool = False

    @property
    def alone_text(self) -> str:
        """Describe what has weights where the network alone has, as a sentence without a stop."""
        return f"the weights are of {self.network} alone; the rest begins as {self.function} makes it"


@dataclass(frozen=True)
class DetectorRest:
    """What follows the pyramid of a detector."""

    macs: Count  # MACs of one image after the pyramid
    proposals: Index  # most proposals whose boxes are refined; 0: the detector has one stage


@dataclass(frozen=True)
class NarrowedLayer:
    """A layer behind a backbone that lost channels, and the layers that had as many because of it."""

    layer: str  # its name within the module
    between: tuple[str, ...]  # norms, and others that keep channels apart, between it and those that read it
    readers: tuple[str, ...]
    channels: Size  # that remain


@dataclass(frozen=True)
class NarrowedRest:
    """What was removed behind a backbone: from the head of a dense network, or what reads the pyramid of a detector."""

    layers: tuple[NarrowedLayer, ...]
    macs: Count  # MACs of all that is behind the backbone
    base_macs: Count  # those of the base


@dataclass(frozen=True)
class Preprocessing:
    """timm's data config and how files are read. Used for checks: elsewhere it is a dict without default values.

    The crop mode "corner" is of detectors, not of timm.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    input_size: Annotated[tuple[Size, ...], _Three]  # channels, height, width
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]
    mean: Annotated[tuple[float, ...], _Three]
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], _Three]
    crop_pct: Annotated[float, Field(gt=0, le=1)]
    crop_mode: Literal["center", "squash", "border", "corner"]
    exif: Exif = "ignore"
    value_range: Annotated[float, Field(gt=0)] | None = None

    def plain(self) -> dict[str, object]:
        """Return the settings as a dict, without default values of `exif` and `value_range`."""
        settings = asdict(self)
        return {**transform_settings(settings), **reading_settings(settings)}


@dataclass(frozen=True)
class TimmPreprocessing(Preprocessing):
    """Settings that edgevit did not write: a crop mode of timm's."""

    crop_mode: Literal["center", "squash", "border"]


@dataclass(frozen=True)
class TextPreprocessing:
    """How texts become ids; used as `Preprocessing` is."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    input_size: Annotated[tuple[Size, ...], Field(min_length=1, max_length=1)]  # number of tokens
    tokenizer: Sha256  # hash of tokenizer.json

    def plain(self) -> dict[str, object]:
        return asdict(self)


# The fields of `Preprocessing`, or of `TextPreprocessing`, without default values.
PreprocessingFields = dict[str, Any]


def token_names(tokens: TokenOutput, depths: Sequence[int] = ()) -> tuple[str, ...]:
    """The names of features of tokens in an exported file, in order; `depths` as in `ModelSpec`."""
    names = [
        name for part, name in (("class", "class_token"), ("patches", "patch_tokens")) if part in tokens.split(",")
    ]
    return tuple(f"{name}_{depth}" for depth in depths for name in names) or tuple(names)


def reads_texts(preprocessing: Mapping[str, Any]) -> bool:
    """Whether inputs are ids of tokens, and not images."""
    return "tokenizer" in preprocessing


@dataclass(frozen=True)
class ModelSpec:
    """The content of model.json."""

    timm_name: str
    timm_args: dict[str, Any]  # timm's arguments for the base; `num_classes` is that of this model
    family: str
    blocks: Annotated[tuple[BlockDims, ...], Field(min_length=1)]
    head: Head  # "full" keeps a row for every class of the base
    classes: tuple[TargetClass, ...]  # target classes; with a subset head, in the order of the outputs
    preprocessing: PreprocessingFields
    macs: Count
    params: Count
    base: BaseFacts
    rejection: Rejection | None = None  # rule for images of other classes; None: no image is classified as `other`
    output: OutputKind | None = None  # kind of output; None: logits, or features where there is no classifier
    # What makes a network with a head of the user's, whose output is a map or boxes; None: edgevit makes it.
    builder: BuilderFacts | None = None
    tokens: TokenOutput | None = None  # tokens that the head reads; None: those that timm pools
    depths: tuple[Count, ...] = ()  # blocks, from 1, after which tokens are put out; empty: the last alone
    # Cost of a detector after its pyramid, which `macs` does not count; None: no detector, or not counted.
    rest: DetectorRest | None = None
    narrowed_rest: NarrowedRest | None = None  # layers behind the backbone that were cut, too; None: none
    # Layers that would give a head tokens of the whole width, where the head reads a narrower embedding itself.
    narrow_readers: tuple[NarrowedLayer, ...] = ()

    @property
    def class_names(self) -> list[str]:
        return [c.name for c in self.classes]

    @property
    def reads_texts(self) -> bool:
        return reads_texts(self.preprocessing)

    @property
    def output_names(self) -> list[str] | None:
        """The class of each output, in order; None: not all are known."""
        by_column = dict(zip(self.class_columns, self.class_names, strict=True))
        outputs = range(self.outputs)
        return [by_column[i] for i in outputs] if by_column.keys() == set(outputs) else None

    @property
    def outputs(self) -> int:
        """Number of rows of its classifier; 0: it has none."""
        outputs: int = self.timm_args["num_classes"]
        return outputs

    @property
    def output_kind(self) -> OutputKind:
        return self.output or ("logits" if self.outputs else "features")

    @property
    def own_output(self) -> str:
        """The option --output of a derivation that keeps its output, which is no logits."""
        kind = self.output_kind
        return kind if kind in ("features", "boxes") else "map"

    @property
    def output_text(self) -> str:
        """Name the model's output, for people."""
        kind = self.output_kind
        texts: dict[str, str] = {"logits": "classes", "boxes": "boxes", "features": "features"}
        if self.tokens is not None:
            texts["features"] = f"features of {self.tokens.replace(',', ' and ')}"
        if self.depths:
            texts["features"] += f" after block{'s' * (len(self.depths) > 1)} {', '.join(map(str, self.depths))}"
        return texts.get(kind, f"a map of {kind}")

    @property
    def token_names(self) -> tuple[str, ...]:
        """The names of its features of tokens in an exported file; empty: it has none."""
        if self.tokens is None or self.output_kind != "features":
            return ()
        return token_names(self.tokens, self.depths)

    @property
    def rest_text(self) -> str | None:
        """Describe a detector's MACs behind its pyramid, as a sentence without a stop; None: they are not counted."""
        if self.rest is None:
            return None
        whole, at = self.macs + self.rest.macs, f" at {self.rest.proposals} proposals" if self.rest.proposals else ""
        rest_of_base = self.rest.macs if self.narrowed_rest is None else self.narrowed_rest.base_macs
        before = f", and had {self.base.macs / (self.base.macs + rest_of_base):.0%} in the base"
        return (
            f"backbone and pyramid have {self.macs / whole:.0%} of the detector's {format_count(whole)} MACs{at}"
            f"{before if self.macs < self.base.macs else ''}"
        )

    @property
    def narrowed_rest_text(self) -> str | None:
        """Describe what was removed behind the backbone, as a sentence without a stop; None: nothing was."""
        cut = self.narrowed_rest
        if cut is None or cut.macs == cut.base_macs:
            return None
        noun = "what reads the pyramid" if self.output == "boxes" else "the head"
        return (
            f"{noun} was cut in {len(cut.layers)} of its layers and has {format_count(cut.macs)} of the base's "
            f"{format_count(cut.base_macs)} MACs"
        )

    @property
    def class_columns(self) -> list[int]:
        """The column of each target class in the logits."""
        return list(range(len(self.classes))) if self.head == "subset" else [c.base_index for c in self.classes]

    @property
    def embed(self) -> int | None:
        """Width of its embedding; None: not stated, and equal to that of its base."""
        width, depths = self.timm_args.get("embed_dim"), self.timm_args.get("depths")
        if not isinstance(width, int):
            return self.base.embed if width is None else None
        stages = len(depths) if isinstance(depths, list) else 1 + max(block.stage for block in self.base.blocks)
        return width << (stages - 1)  # timm's argument is that of the first stage, and each next one is twice as wide

    @property
    def narrowed(self) -> tuple[int, int] | None:
        """Widths of its embedding and of its base's, where it is narrower; None: it is not, or they are not stated."""
        width, base_width = self.embed, self.base.embed
        return None if width is None or base_width is None or width == base_width else (width, base_width)

    @property
    def embedding_text(self) -> str | None:
        """Describe how narrow its embedding is; None: as wide as its base's."""
        if self.narrowed is None:
            return None
        width, base_width = self.narrowed
        read = ", which the head reads itself" if self.narrow_readers else ""
        return f"the embedding has {width} channels of the base's {base_width}{read}"

    @property
    def rate(self) -> float:
        """Share of the base's MACs that was removed."""
        return 1 - self.macs / self.base.macs

    def fault(self) -> str | None:
        """Describe a contradiction, as the end of a sentence that starts with the file's name; None: there is none."""
        outputs, names = self.timm_args.get("num_classes"), self.class_names
        if type(outputs) is not int or not (0 < outputs < 2**31 or outputs == self.base.outputs == 0):
            return f"has {outputs!r} as timm_args.num_classes, expected a number of classes"
        if self.timm_args.get("depth", len(self.blocks)) != len(self.blocks):
            return f"has {self.timm_args['depth']!r} as timm_args.depth and {len(self.blocks)} blocks"
        for i, b in enumerate(self.blocks):
            if len({b.heads > 0, b.qk > 0, b.vo > 0}) > 1:
                return f"has {b.heads} heads of widths {b.qk} and {b.vo} in block {i}: expected all 0, or none"
        if (fault := _token_fault(self.blocks)) is not None:
            return fault
        if len(set(names)) < len(names) or len(set(self.class_columns)) < len(names):
            return "has a class twice"
        maps = self.output not in (None, "logits", "features")
        if self.output == "logits" or (self.output is not None and names) or maps != (self.builder is not None):
            return f"has the output {self.output!r} and {len(names)} classes"
        if self.tokens is not None and (self.output == "features") != (self.tokens != "class,mean"):
            return f"has the output {self.output!r} and the tokens {self.tokens!r}"
        last = range(len(self.blocks) - len(self.depths) + 1, len(self.blocks) + 1)
        if self.tokens == "class,mean" and self.depths not in ((), tuple(last)):
            return f"has a head of blocks {', '.join(map(str, self.depths))}, expected the last ones"
        if self.head == "subset" and len(names) != outputs:
            return f"has {len(names)} classes and {outputs} outputs"
        if any(c.base_index >= self.base.outputs for c in self.classes):
            return f"has a class beyond the {self.base.outputs} outputs of its base"
        if self.head == "full" and any(column >= outputs for column in self.class_columns):
            return f"has a class beyond its {outputs} outputs"
        return None


def _token_fault(blocks: Sequence[BlockDims]) -> str | None:
    """Describe a contradiction in the numbers of tokens; None: there is none."""
    least: int | None = None
    for i, block in enumerate(blocks):
        if block.merged and not block.tokens:
            return f"has merged tokens in block {i}, which drops none"
        if not block.tokens:
            continue
        if not block.has("attention"):
            return f"drops tokens in block {i}, which has no attention to rank them"
        if least is not None and block.tokens >= least:
            return f"has {block.tokens} tokens after block {i}, and {least} after an earlier block: expected fewer"
        least = block.tokens
    return None


@dataclass(frozen=True, kw_only=True)
class ModelDocument(ModelSpec):
    """The description of a model whose weights are written."""

    weights_sha256: Sha256  # hash of model.safetensors
    edgevit: str  # version of edgevit that wrote the folder

    @classmethod
    def of(cls, spec: ModelSpec, weights_sha256: str, edgevit: str) -> ModelDocument:
        values = {f.name: getattr(spec, f.name) for f in fields(ModelSpec)}
        return cls(**values, weights_sha256=weights_sha256, edgevit=edgevit)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(**{f.name: getattr(self, f.name) for f in fields(ModelSpec)})


MODEL_KIND = RecordKind("model", ModelDocument, READER)


def read_model(file: Path) -> ModelDocument:
    """Read model.json.

    Raises:
        CheckpointError: the file is missing, damaged, altered or of another schema.
    """
    document = MODEL_KIND.read(file)
    kind = TextPreprocessing if document.reads_texts else Preprocessing
    READER.checked(document.preprocessing, kind, f"{file}, preprocessing,")
    if fault := document.fault():
        raise CheckpointError(f"{file} {fault}; {HINT}")
    return document
