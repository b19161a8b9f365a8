"""Where plans become models, and models figures: the bench of the loop, with all that it has to keep."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.derivation.allocate.cost_table import CostTable
from edgevit.derivation.allocate.prices import Measured as Quantity
from edgevit.derivation.request import BaseRequest, DeriveRequest
from edgevit.derivation.session.base import run as write_base
from edgevit.derivation.session.derive import run as derive
from edgevit.errors import OutputError
from edgevit.latency.growing_table import GrowingTable
from edgevit.latency.paired import PairedBench
from edgevit.latency.request import NONE_MEASURED, MeetRequest
from edgevit.latency.rounds import Candidate, MeasuredFigure, Shape
from edgevit.progress import Progress
from edgevit.records.model_folder import ModelFolder
from edgevit.records.unfinished import has_state, partial_folder
from edgevit.records.writing import write_whole, writing

REFINED = 4  # blocks of a plan whose sizes are measured for the table: each is two more stacks


@dataclass
class CandidateBuilder:
    """One budget's bench. What it makes lies in `folder`: models under rounds/, by what they were made for."""

    request: MeetRequest  # of one budget
    folder: Path
    base: Path  # the folder of the base, restricted to the classes, which is written when they are known
    quantity: Quantity
    costs: GrowingTable
    measuring: PairedBench
    progress: Progress

    @property
    def table(self) -> CostTable:
        return self.costs.table

    def allocate(self, table: CostTable, limit: float, at_least: Shape | None = None) -> Candidate:
        """Derive in closed form."""
        asked_for = f"{table.record().sha256} {limit!r}" + (f" {at_least}" if at_least else "")
        name = hashlib.sha256(asked_for.encode()).hexdigest()[:12]
        file = self._table(name)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(table.content()))
        folder = self.model(name)
        if not folder.is_dir():
            asked = self.derivation(folder, name, limit, at_least)
            closed = replace(asked.training, steps=0)
            # A base that is trained before it is cut is the one that is cut in the end.
            base_steps = None if asked.derive_from == "base" else asked.base_steps or asked.training.steps or None
            asked = replace(asked, unlabelled=None, finetune_base=False, base_steps=base_steps, reject=None)
            derive(replace(asked, training=closed), self.progress)
        return Candidate(shape_in(folder), name)

    def model(self, name: str) -> Path:
        return self.folder / "rounds" / name

    def _table(self, name: str) -> Path:
        """The table as it was corrected for a plan."""
        return self.folder / "tables" / f"{name}.json"

    def derivation(self, out: Path, name: str, limit: float, at_least: Shape | None) -> DeriveRequest:
        """The derivation that is asked for, with a limit by the table of a plan, and what the plan is to contain."""
        budget = {**NONE_MEASURED, self.quantity: limit}
        going_on = {"out": out, "resume": has_state(partial_folder(out)), "overwrite": False}
        grown = None if at_least is None else at_least.by_number
        embed = 0 if at_least is None else at_least.embed or self.table.base.embed
        containing = {"at_least": grown, "at_least_embed": embed}
        return self.request.derivation(**budget, **going_on, **containing, cost_table=self._table(name))

    def measure(self, candidate: Candidate) -> MeasuredFigure:
        """Measure a plan's model in turns with the base."""
        return self.measured(self.model(candidate.name))

    def measured(self, model: Path) -> MeasuredFigure:
        if not self.base.is_dir() or self._is_of_others(model):
            self._write_base(model)
        for folder in (self.base, model):
            self.measuring.ready(folder)
        return self.measuring.measure(self.base, model)

    def refine(self, shape: Shape) -> None:
        """Measure some of these blocks for the table, evenly over their sizes, and the embedding's width."""
        blocks = sorted(set(shape.blocks), key=lambda d: (d.ffn, d.heads * d.qk))
        count = min(REFINED, len(blocks))
        some = tuple(blocks[round(i * (len(blocks) - 1) / max(count - 1, 1))] for i in range(count))
        self.costs.measured(some, shape.embed)

    def _is_of_others(self, model: Path) -> bool:
        """Whether the base that is there has other classes or weights, and so is of an earlier command.

        Raises:
            OutputError: it is, and nothing is to be overwritten.
        """
        of_base, own = (ModelFolder(folder).spec() for folder in (self.base, model))
        if sorted(of_base.class_names) != sorted(own.class_names):
            what = "the base of other classes"
        elif of_base.base.weights_sha256 != own.base.weights_sha256:
            what = "a base of other weights"
        else:
            return False
        if not self.request.overwrite:
            raise OutputError(f"{self.base} is {what}; choose another --out, remove it, or replace it with --overwrite")
        return True

    def _write_base(self, model: Path) -> None:
        asked = self.request
        base = asked.on_its_base().base
        assert base is not None
        shared = ("data", "training", "validation_fraction", "group_by", "skip_bad_images", "cache")
        given: dict[str, Any] = {**asked.opening(), **{name: getattr(asked, name) for name in shared}}
        given |= {"base_classes": asked.base_classes, "classes": ModelFolder(model).spec().class_names}
        given |= {"overwrite": self.base.is_dir(), "checked": True}
        write_base(BaseRequest(name=base, out=self.base, **given), self.progress)


def shape_in(folder: Path) -> Shape:
    """The blocks of a model, which of the base's they are, and its embedding."""
    files = ModelFolder(folder)
    record, spec = files.derivation(), files.spec()
    kept = record.facts.kept_blocks if record is not None else None
    embed = spec.embed if spec.embed != spec.base.embed else None
    return Shape(tuple(spec.blocks), tuple(kept or range(len(spec.blocks))), embed)
