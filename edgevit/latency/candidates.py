"""Build the models of plans, in closed form, and measure them: the bench of the search."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.derivation.request import BaseRequest, DeriveRequest
from edgevit.derivation.session.base import base as write_base
from edgevit.derivation.session.derive import derive
from edgevit.errors import OutputError
from edgevit.latency.paired import PairedBench
from edgevit.latency.request import NONE_MEASURED, MeetRequest
from edgevit.latency.rounds import Candidate, MeasuredFigure, Shape
from edgevit.latency.table import GrowingTable
from edgevit.progress import Progress
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import write_whole, writing

REFINED = 4  # blocks of a plan that are measured for the table: each takes two more stacks


@dataclass
class CandidateBuilder:
    """Builds and measures the plans of one budget; models lie in rounds/ of `folder`, named by table and limit."""

    request: MeetRequest  # request of the one budget whose plans it builds
    folder: Path
    base: Path  # folder of the base restricted to the classes, written as soon as the classes are known
    quantity: Quantity
    costs: GrowingTable
    paired: PairedBench
    progress: Progress

    @property
    def table(self) -> CostTable:
        return self.costs.table

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        """Derive a plan in closed form."""
        key = f"{table.record().sha256} {limit!r}" + (f" {at_least}" if at_least else "")
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        file = self._table(name)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(table.content()))
        folder = self.model(name)
        if not folder.is_dir():
            request = self.derivation(folder, name, limit, at_least)
            closed = replace(request.training, steps=0)
            # A base that is trained before it is cut is the one that the final derivation cuts.
            base_steps = None if request.derive_from == "base" else request.base_steps or request.training.steps or None
            request = replace(request, unlabelled=None, finetune_base=False, base_steps=base_steps, reject=None)
            derive(replace(request, training=closed), self.progress)
        return Candidate(shape_in(folder), name)

    def model(self, name: str) -> Path:
        return self.folder / "rounds" / name

    def _table(self, name: str) -> Path:
        """Return the file of the table that was corrected for a plan."""
        return self.folder / "tables" / f"{name}.json"

    def derivation(self, out: Path, name: str, limit: float, at_least: Shape | None) -> DeriveRequest:
        """Return the request of a plan: the limit by its table, and the plan that it contains."""
        budget = {**NONE_MEASURED, self.quantity: limit}
        resuming = {"out": out, "resume": has_state(partial_folder(out)), "overwrite": False}
        grown = None if at_least is None else at_least.by_number
        embed = 0 if at_least is None else at_least.embed or self.table.base.embed
        containing = {"at_least": grown, "at_least_embed": embed}
        return self.request.derivation(**budget, **resuming, **containing, cost_table=self._table(name))

    def measure(self, candidate: Candidate) -> MeasuredFigure:
        """Measure a plan's model in turns with the base."""
        return self.measured(self.model(candidate.name))

    def measured(self, model: Path) -> MeasuredFigure:
        if not self.base.is_dir() or self._is_of_others(model):
            self._write_base(model)
        for folder in (self.base, model):
            self.paired.prepare(folder)
        return self.paired.measure(self.base, model)

    def refine(self, shape: Shape) -> None:
        """Measure some of these blocks for the table, evenly over stages and sizes, and the embedding's width."""
        different = {replace(dims, shifted=False) for dims in shape.blocks}
        blocks = sorted(different, key=lambda d: (d.stage, d.ffn, d.features("attention")))
        count = min(REFINED, len(blocks))
        some = tuple(blocks[round(i * (len(blocks) - 1) / max(count - 1, 1))] for i in range(count))
        self.costs.extend(some, shape.embed)

    def _is_of_others(self, model: Path) -> bool:
        """Whether the existing base has other classes or weights, and so belongs to an earlier command.

        Raises:
            OutputError: it does, and must not be overwritten.
        """
        base_spec, model_spec = (ModelFolder(folder).spec() for folder in (self.base, model))
        if sorted(base_spec.class_names) != sorted(model_spec.class_names):
            difference = "the base of other classes"
        elif base_spec.base.weights_sha256 != model_spec.base.weights_sha256:
            difference = "a base of other weights"
        else:
            return False
        if not self.request.overwrite:
            raise OutputError(
                f"{self.base} is {difference}; choose another --out, remove it, or replace it with --overwrite"
            )
        return True

    def _write_base(self, model: Path) -> None:
        request = self.request
        base = request.on_its_base().base
        assert base is not None
        shared = (
            "data",
            "training",
            "validation_fraction",
            "group_by",
            "skip_bad_images",
            "cache",
            "base_classes",
            "output",
        )
        options: dict[str, Any] = {**request.opening(), **{name: getattr(request, name) for name in shared}}
        options |= {"classes": ModelFolder(model).spec().class_names or None}
        options |= {"overwrite": self.base.is_dir(), "checked": True, "head_blocks": request.fitted_blocks}
        write_base(BaseRequest(name=base, out=self.base, **options), self.progress)


def shape_in(folder: Path) -> Shape:
    """Return the shape of a model: its blocks, their numbers in the base, and its embedding."""
    files = ModelFolder(folder)
    record, spec = files.derivation(), files.spec()
    numbers = record.facts.kept_blocks if record is not None else None
    embed = spec.embed if spec.embed != spec.base.embed else None
    return Shape(tuple(spec.blocks), tuple(numbers or range(len(spec.blocks))), embed)
