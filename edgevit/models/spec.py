"""model.json: everything about a model but its weights and how it came to be.

Schema history: 1  first version
                2  rejection; models of schema 1 are still read: they have none
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from edgevit.errors import CheckpointError
from edgevit.models.blocks import BlockDims
from edgevit.models.rejection import Rejection

SCHEMA = 2

Head = Literal["subset", "full"]


@dataclass(frozen=True)
class ClassLabel:
    """A target class."""

    name: str
    base_index: int  # row of the base's classifier


@dataclass(frozen=True)
class BaseFacts:
    """The model that this one was derived from, or the model itself if it is a base."""

    weights_sha256: str  # of the tensors, not of a file
    blocks: tuple[BlockDims, ...]
    macs: int
    params: int
    outputs: int  # classes of its classifier


@dataclass(frozen=True)
class ModelSpec:
    """What model.json says."""

    timm_name: str
    timm_args: dict[str, Any]  # of the base; `num_classes` is that of this model
    family: str
    blocks: tuple[BlockDims, ...]
    head: Head  # "full" keeps a row for every class of the base
    classes: tuple[ClassLabel, ...]  # target classes; with a subset head, in the order of the outputs
    preprocessing: dict[str, Any]  # timm's data config: input_size, interpolation, mean, std, crop_pct, crop_mode
    macs: int
    params: int
    base: BaseFacts
    rejection: Rejection | None = None  # when an image is called `other`; None: never

    @property
    def class_names(self) -> list[str]:
        return [c.name for c in self.classes]

    @property
    def output_names(self) -> list[str] | None:
        """The class of every output, in order, where all of them are known."""
        by_column = dict(zip(self.class_columns, self.class_names, strict=True))
        outputs = range(self.timm_args["num_classes"])
        return [by_column[i] for i in outputs] if by_column.keys() == set(outputs) else None

    @property
    def class_columns(self) -> list[int]:
        """For each target class, its column in the logits."""
        return list(range(len(self.classes))) if self.head == "subset" else [c.base_index for c in self.classes]

    @property
    def rate(self) -> float:
        """Share of the base's MACs that is gone."""
        return 1 - self.macs / self.base.macs

    @property
    def plain_timm(self) -> bool:
        """Whether every block is timm's own attention."""
        return all(b.qk == b.vo for b in self.blocks)

    def to_json(self, weights_sha256: str) -> str:
        return json.dumps({"schema": SCHEMA, "weights_sha256": weights_sha256, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, data: Any, where: str) -> ModelSpec:
        """Read the parsed model.json.

        Raises:
            CheckpointError: of another schema, or a field is missing.
        """
        if not isinstance(data, dict):
            raise CheckpointError(f"{where} is not a model description but a {type(data).__name__}; derive it again")
        if data.get("schema") not in (1, SCHEMA):
            raise CheckpointError(
                f"{where} has schema {data.get('schema')!r}, this edgevit reads 1 and {SCHEMA}; "
                f"update edgevit, or derive the model again"
            )
        try:
            base, _ = data["base"], data["weights_sha256"]
            rejection = data["rejection"] if data["schema"] == SCHEMA else None
            return cls(
                timm_name=data["timm_name"],
                timm_args=dict(data["timm_args"]),
                family=data["family"],
                blocks=tuple(BlockDims(**b) for b in data["blocks"]),
                head=data["head"],
                classes=tuple(ClassLabel(**c) for c in data["classes"]),
                preprocessing=dict(data["preprocessing"]),
                macs=data["macs"],
                params=data["params"],
                base=BaseFacts(**{**base, "blocks": tuple(BlockDims(**b) for b in base["blocks"])}),
                rejection=Rejection(**rejection) if rejection else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{where} is not a model description: {error}; derive the model again") from error
