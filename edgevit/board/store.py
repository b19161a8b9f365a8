"""Which engine of a model folder runs on a board: `export/engines/<fingerprint>/<key>.engine`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from edgevit.board.facts import BoardFacts
from edgevit.board.fingerprint import fingerprint
from edgevit.errors import EngineError
from edgevit.folder.engine import EngineRecord, read_engine
from edgevit.folder.model_folder import ModelFolder, model_of
from edgevit.folder.writing import file_sha256


def _how_to_build(model: Path) -> str:
    return f"run `edgevit export {shlex.quote(str(model))} --trt --board HOST`, or without --board on the board itself"


def _nearest(records: Sequence[EngineRecord], batches: Sequence[int]) -> EngineRecord:
    """The engine whose kernels were chosen nearest to the batches asked for; of equals, the newest."""
    return min(records, key=lambda record: sum(abs(record.batches[1] - batch) for batch in batches))


def _check_unaltered(record: EngineRecord) -> EngineRecord:
    seen = file_sha256(record.path)
    if seen != record.sha256:
        raise EngineError(
            f"{record.path} was altered: its hash is {seen[:12]}, its record says {record.sha256[:12]}; "
            f"build it again with edgevit export ... --trt --rebuild"
        )
    return record


def recorded_engine(path: Path, facts: BoardFacts) -> EngineRecord:
    """Return what is known of this engine, if it is one for the board with these facts.

    Raises:
        EngineError: it was built for another, or altered since.
    """
    record, here = read_engine(path), fingerprint(facts)
    if record.fingerprint != here:
        how = _how_to_build(model_of(path).path)
        raise EngineError(f"{path} was built for {record.fingerprint}, and this is {here}; {how}")
    return _check_unaltered(record)


def find_engine(
    model: Path, facts: BoardFacts, batch: int | Sequence[int], precision: str | None = None
) -> EngineRecord:
    """Return the engine of a model folder that runs on the board with these facts, at every batch size asked for.

    Raises:
        EngineError: there is none, or only one for another board, other weights, or other batches; or it was altered.
    """
    batches = [batch] if isinstance(batch, int) else list(batch)
    here, how = fingerprint(facts), _how_to_build(model)
    folder = ModelFolder(model)
    records = folder.export.engines()
    if not records:
        raise EngineError(f"{model} has no engine; {how}")
    fitting = [record for record in records if record.fingerprint == here]
    if not fitting:
        raise EngineError(f"the engine in {model} was built for {records[0].fingerprint}, and this is {here}; {how}")
    weights = folder.weights_sha256()
    current = [record for record in fitting if record.weights_sha256 == weights]
    if not current:
        raise EngineError(f"the engine in {model} was built from other weights than the model has now; {how}")
    of_precision = [record for record in current if precision in (None, record.precision)]
    if not of_precision:
        there = ", ".join(sorted({record.precision for record in current}))
        raise EngineError(f"the engine in {model} for {here} is {there}, and {precision} was asked for; {how}")
    accepting = [r for r in of_precision if all(r.batches[0] <= b <= r.batches[2] for b in batches)]
    if not accepting:
        seen = of_precision[0].batches
        span = f"--batches {min(seen[0], *batches)},{min(batches)},{max(seen[2], *batches)}"
        raise EngineError(
            f"the engine in {model} for {here} takes {seen[0]} to {seen[2]} images, and "
            f"{', '.join(map(str, batches))} were asked for; {how}, and with {span}"
        )
    return _check_unaltered(_nearest(accepting, batches))
