"""A model folder and its export: the paths of the files and their records.

    folder = ModelFolder(Path("runs/t1"))
    spec, derivation = folder.spec(), folder.derivation()
    export, engines = folder.export_record(), folder.export.engines()

No other code joins the names of these files to a path, or opens them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError, EdgeVitError, EngineError, ExportError
from edgevit.records import names
from edgevit.records.belonging import weights_fault
from edgevit.records.derivation import DERIVATION_KIND, DerivationRecord
from edgevit.records.engine import LAYERS, EngineRecord, read_engine
from edgevit.records.export import EXPORT_KIND, ExportRecord
from edgevit.records.history import HISTORY_KIND, HistoryLine
from edgevit.records.imported import IMPORTED_KIND, ImportedDocument, read_imported
from edgevit.records.model import MODEL_KIND, ModelDocument, ModelSpec, read_model
from edgevit.records.plan import PLAN_KIND, PlanRecord
from edgevit.records.precisions import FP32
from edgevit.records.supernet import SUPERNET_KIND, SupernetRecord
from edgevit.records.writing import file_sha256, write_whole, writing
from edgevit.version import written_by

_KEY_DIGITS = 16  # digits of the hash that names an engine


@dataclass(frozen=True)
class _Place:
    """An attribute of a folder: the path of the file or folder of this name in it."""

    name: str

    def __get__(self, folder: Any, _: type) -> Path:
        return Path(folder.path, self.name)


@dataclass(frozen=True)
class ExportFolder:
    """`export/` of a model folder: ONNX files, export.json, and engines by board."""

    path: Path

    record_file = _Place(names.EXPORT_RECORD)
    engines_folder = _Place(names.ENGINES)
    whole_detector = _Place(names.WHOLE_DETECTOR)

    def onnx(self, label: str) -> Path:
        """The file of a precision or a variant."""
        return self.path / names.onnx_name(label)

    def onnx_files(self) -> list[Path]:
        return sorted(self.path.glob(names.onnx_name("*")))

    def engine(self, fingerprint: str, key: str) -> Path:
        """The path of the engine of a kind of board with this key."""
        return self.engines_folder / fingerprint / f"{key[:_KEY_DIGITS]}.engine"

    def record(self) -> ExportRecord:
        """Read export.json.

        Raises:
            ExportError: it is missing, damaged or of another schema.
        """
        return EXPORT_KIND.read(self.record_file, folder=self.path)

    def write_record(self, record: ExportRecord) -> None:
        write_whole(self.record_file, EXPORT_KIND.text(record))

    def engines(self) -> list[EngineRecord]:
        """Read the records of all engines, of any board, the newest first.

        Raises:
            EngineError: a record cannot be read.
        """
        return sorted(map(read_engine, self.engine_files()), key=lambda record: record.created, reverse=True)

    def engine_files(self) -> list[Path]:
        """All engines that have a record."""
        records = [file for file in self.engines_folder.glob("*/*.json") if not file.name.endswith(LAYERS)]
        return sorted(engine for file in records if (engine := file.with_suffix(".engine")).is_file())


def export_of(onnx: Path) -> ExportFolder:
    """The export folder of an ONNX file."""
    return ExportFolder(onnx.parent)


@dataclass(frozen=True)
class ModelFolder:
    """The folder that `derive`, `base` and `supernet` write, and `export` of an imported ONNX file."""

    path: Path

    weights_file = _Place(names.WEIGHTS)
    spec_file = _Place(names.SPEC)
    derivation_file = _Place(names.DERIVATION)
    supernet_file = _Place(names.SUPERNET)
    plan_file = _Place(names.PLAN)
    builder_file = _Place(names.BUILDER)
    tokenizer_file = _Place(names.TOKENIZER)
    cost_table_file = _Place(names.COST_TABLE)  # the cost table of a measured budget
    history_file = _Place(names.HISTORY)
    card_file = _Place(names.CARD)
    imported_file = _Place(names.IMPORTED)
    imported_onnx = _Place(names.IMPORTED_ONNX)

    @property
    def export(self) -> ExportFolder:
        return ExportFolder(self.path / names.EXPORT)

    @property
    def is_model(self) -> bool:
        return self.spec_file.is_file()

    @property
    def is_supernet(self) -> bool:
        return self.supernet_file.is_file()

    @property
    def is_imported(self) -> bool:
        """Whether the folder is that of an imported ONNX file, which can be exported but is no base."""
        return self.imported_file.is_file()

    def imported(self) -> ImportedDocument:
        """Read onnx.json.

        Raises:
            CheckpointError: it is missing, damaged, altered or of another schema.
        """
        return read_imported(self.imported_file)

    @property
    def own_precision(self) -> str | None:
        """The precision of an imported file that is exported as it is, as it is not in fp32; None: of other models.

        Raises:
            CheckpointError: as by `imported`.
        """
        precision = self.imported().precision if self.is_imported else FP32.name
        return None if precision == FP32.name else precision

    def weights_sha256(self) -> str:
        """Read the hash of the weights, by which records of exports, engines and runs identify their model.

        Raises:
            CheckpointError: as by `document` and `imported`.
        """
        return self.imported().weights_sha256 if self.is_imported else self.document().weights_sha256

    def _refuse_foreign(self, record: Path, sha256: str, error: type[EdgeVitError], attempt: str) -> None:
        """Raise the error if a record in the folder is of other weights than its model."""
        if not (self.is_model or self.is_imported):
            return
        if fault := weights_fault(record, sha256, self.path, self.weights_sha256()):
            raise error(f"{fault}; {attempt}")

    def export_record(self) -> ExportRecord:
        """Read export.json, which must be of this model.

        Raises:
            ExportError: it is missing, damaged, or of another model.
            CheckpointError: as by `document` and `imported`.
        """
        record = self.export.record()
        attempt = f"export this one again with `edgevit export {shlex.quote(str(self.path))}`"
        self._refuse_foreign(self.export.record_file, record.model.weights_sha256, ExportError, attempt)
        return record

    def engine_record(self, engine: Path) -> EngineRecord:
        """Read the record of an engine of this folder, which must be of this model.

        Raises:
            EngineError: it is missing, damaged, or of another model.
            CheckpointError: as by `document` and `imported`.
        """
        record = read_engine(engine)
        attempt = f"build one of this model with `edgevit export {shlex.quote(str(self.path))} --trt`"
        self._refuse_foreign(engine, record.weights_sha256, EngineError, attempt)
        return record

    def document(self) -> ModelDocument:
        """Read model.json: the model, and the hash of its weights.

        Raises:
            CheckpointError: it is missing, damaged, altered or of another schema.
        """
        return read_model(self.spec_file)

    def spec(self) -> ModelSpec:
        """Read model.json; raises as `document` does."""
        return self.document().spec

    def derivation(self) -> DerivationRecord | None:
        """Read derivation.json; None if it is missing, as in the folder of a base or of a super-network.

        Raises:
            CheckpointError: the file is damaged, of another schema, or of another model.
        """
        if not self.derivation_file.is_file():
            return None
        record = DERIVATION_KIND.read(self.derivation_file)
        if record.weights_sha256 is not None:
            attempt = DERIVATION_KIND.reader.hint
            self._refuse_foreign(self.derivation_file, record.weights_sha256, CheckpointError, attempt)
        return record

    def write_derivation(self, record: DerivationRecord) -> None:
        """Replace derivation.json.

        Raises:
            OutputError: it cannot be written.
        """
        with writing(self.path):
            write_whole(self.derivation_file, DERIVATION_KIND.text(record))

    def plan(self) -> PlanRecord | None:
        """Read plan.json; None if it is missing, as in the folder of a base.

        Raises:
            CheckpointError: the file is damaged, or of another schema.
        """
        return PLAN_KIND.read(self.plan_file) if self.plan_file.is_file() else None

    def history(self) -> list[HistoryLine]:
        """Read the steps of the training; empty without training.

        Raises:
            CheckpointError: a line is damaged, or of another schema.
        """
        if not self.history_file.is_file():
            return []
        lines = HISTORY_KIND.reader.json_lines(self.history_file, dict[str, Any])
        return [HISTORY_KIND.checked(line, str(self.history_file)) for line in lines]

    def supernet(self) -> SupernetRecord:
        """Read supernet.json.

        Raises:
            CheckpointError: the folder is not a super-network, or the file is damaged, altered or of another schema.
        """
        self.refuse_no_supernet()
        record = SUPERNET_KIND.read(self.supernet_file)
        if record.weights_sha256 is not None:
            self._refuse_foreign(self.supernet_file, record.weights_sha256, CheckpointError, SUPERNET_KIND.reader.hint)
        if unit := record.out_of_order(self.spec().blocks):
            raise CheckpointError(f"{self.supernet_file} has {unit} out of order; {SUPERNET_KIND.reader.hint}")
        return record

    def refuse_no_supernet(self) -> None:
        """Raise CheckpointError if the folder is not a super-network."""
        if not self.is_supernet:
            reason = f"no {names.SUPERNET} in it" if self.path.is_dir() else "no such folder"
            raise CheckpointError(f"{self.path} is not a super-network: {reason}; make one with edgevit supernet")

    def write_imported(self, document: ImportedDocument) -> None:
        self.imported_file.write_text(IMPORTED_KIND.text(document), encoding="utf-8")

    def write(
        self,
        spec: ModelSpec,
        *,
        card: str | None = None,
        derivation: DerivationRecord | None = None,
        plan: PlanRecord | None = None,
        supernet: SupernetRecord | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Write all files except the weights, which must exist, to a new folder."""
        edgevit = written_by()
        document = ModelDocument.of(spec, file_sha256(self.weights_file), edgevit)
        texts = {self.spec_file: MODEL_KIND.text(document)}
        if card is not None:
            texts[self.card_file] = card
        if derivation is not None:
            texts[self.derivation_file] = DERIVATION_KIND.text(
                replace(derivation, weights_sha256=document.weights_sha256)
            )
        if plan is not None:
            texts[self.plan_file] = PLAN_KIND.text(replace(plan, edgevit=edgevit))
        if supernet is not None:
            texts[self.supernet_file] = SUPERNET_KIND.text(replace(supernet, weights_sha256=document.weights_sha256))
        if history is not None:
            texts[self.history_file] = "".join(json.dumps(line) + "\n" for line in history)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")


def model_of(engine: Path) -> ModelFolder:
    """The model folder of an engine."""
    return ModelFolder(engine.parent.parent.parent.parent)
