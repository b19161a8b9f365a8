"""Choose the engine of a model folder for a board: `export/engines/<fingerprint>/<key>.engine`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from edgevit.board.facts import BoardFacts
from edgevit.board.fingerprint import fingerprint
from edgevit.errors import EngineError
from edgevit.records.belonging import file_fault, weights_fault
from edgevit.records.engine import EngineRecord
from edgevit.records.model_folder import ModelFolder, model_of


def _build_command(model: Path, facts: BoardFacts) -> str:
    board = "" if facts.host is None else f" --board {shlex.quote(facts.host)}"
    return f"run `edgevit export {shlex.quote(str(model))} --trt{board}`"


def _nearest(records: Sequence[EngineRecord], batches: Sequence[int]) -> EngineRecord:
    """The engine that was tuned for the nearest batch sizes; of equals, the newest."""
    return min(records, key=lambda record: sum(abs(record.batches[1] - batch) for batch in batches))


def check_unaltered(record: EngineRecord) -> EngineRecord:
    """Return the record; EngineError if the engine is not the file that it states."""
    if fault := file_fault(record.path, record.sha256, record.path.with_suffix(".json")):
        raise EngineError(f"{fault}; build it again with edgevit export ... --trt --rebuild")
    return record


def recorded_engine(path: Path, facts: BoardFacts) -> EngineRecord:
    """Return the record of an engine, if it was built for the board with these facts.

    Raises:
        EngineError: it was built for another board, from other weights than those of its folder, or altered since.
    """
    folder, board = model_of(path), fingerprint(facts)
    record = folder.engine_record(path)
    if record.fingerprint != board:
        build = _build_command(folder.path, facts)
        raise EngineError(f"{path} was built for {record.fingerprint}, and this is {board}; {build}")
    return check_unaltered(record)


def find_engine(
    model: Path, facts: BoardFacts, batch: int | Sequence[int], precision: str | None = None
) -> EngineRecord:
    """Return the engine of a model folder that runs on the board with these facts, at every batch size asked for.

    Raises:
        EngineError: there is none, or only one for another board, other weights, or other batches; or it was altered.
    """
    batches = [batch] if isinstance(batch, int) else list(batch)
    board, build = fingerprint(facts), _build_command(model, facts)
    folder = ModelFolder(model)
    records = folder.export.engines()
    if not records:
        raise EngineError(f"{model} has no engine; {build}")
    fitting = [record for record in records if record.fingerprint == board]
    if not fitting:
        raise EngineError(f"the engine in {model} was built for {records[0].fingerprint}, and this is {board}; {build}")
    weights = folder.weights_sha256()
    current = [r for r in fitting if weights_fault(r.path, r.weights_sha256, model, weights) is None]
    if not current:
        raise EngineError(f"the engine in {model} was built from other weights than the model has now; {build}")
    of_precision = [record for record in current if precision in (None, record.precision)]
    if not of_precision:
        names = ", ".join(sorted({record.precision for record in current}))
        raise EngineError(f"the engine in {model} for {board} is {names}, and {precision} was asked for; {build}")
    accepting = [r for r in of_precision if all(r.batches[0] <= b <= r.batches[2] for b in batches)]
    if not accepting:
        others = of_precision[0].batches
        span = f"--batches {min(others[0], *batches)},{min(batches)},{max(others[2], *batches)}"
        raise EngineError(
            f"the engine in {model} for {board} takes {others[0]} to {others[2]} images, and "
            f"{', '.join(map(str, batches))} were asked for; {build}, and with {span}"
        )
    return check_unaltered(_nearest(accepting, batches))
