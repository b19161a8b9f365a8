"""Measure a model folder or an ONNX file: one fresh agent process, and one `Run`, per batch size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgevit.agent.measure import Request
from edgevit.agent.records import Run
from edgevit.agent.runners import runner_names, runner_options
from edgevit.agent.runners.onnxruntime import PROVIDERS
from edgevit.board.client import Agent
from edgevit.errors import AgentError, CheckpointError, OptionError, UnknownNameError
from edgevit.progress import Progress, Silent, Stage

PRECISIONS = ("fp32", "fp16")
EXPORT = "export.json"  # lists the exported files and their hashes


def bench(
    model: str | Path,
    *,
    batches: Sequence[int] = (1,),
    runner: str = "onnxruntime",
    precision: str | None = None,
    provider: str | None = None,
    threads: int | None = None,
    samples: int = 200,
    min_seconds: float = 1.0,
    warmup: int = 10,
    warmup_seconds: float = 0.5,
    label: str | None = None,
    options: Mapping[str, Any] | None = None,
    on_run: Callable[[Run], None] | None = None,
    progress: Progress | None = None,
) -> list[Run]:
    """Measure `model` on this machine at each batch size.

    Of a model folder, the exported ONNX file of `precision` is measured: fp16 on a GPU and fp32 on the CPU, where fp16
    is slower, unless asked otherwise. `label` is what tables call it: the folder's name, or the file's. `options` are
    the runner's own beside `provider` and `threads`. `on_run` gets each run as soon as it is there, so that a later
    failure loses nothing.

    Raises:
        UnknownNameError, OptionError: the request makes no sense; nothing was started.
        CheckpointError: the model is missing, not exported, or not the file that was exported.
        AgentError: it cannot be run as asked.
    """
    given = {"provider": provider, "threads": threads}
    asked = {**{name: value for name, value in given.items() if value is not None}, **(options or {})}
    _check_names(runner, provider, precision, asked)
    _check_numbers(batches, samples, min_seconds, warmup, warmup_seconds, threads)
    folder = Path(model).is_dir()
    if folder and precision is None:
        precision = "fp32" if provider in (None, "cpu") else "fp16"
    path = find_exported(Path(model), precision) if folder else find_file(Path(model))
    request = Request(
        model=str(path.absolute()),
        model_sha256=_verified_sha256(path, must_be_listed=folder),
        label=label or (Path(model).absolute().name if folder else path.stem),
        precision=precision,
        runner=runner,
        batch=1,
        samples=samples,
        min_seconds=min_seconds,
        warmup=warmup,
        warmup_seconds=warmup_seconds,
        options=asked,
    )
    runs = []
    for batch in batches:
        run = _measure(replace(request, batch=batch), progress or Silent())
        if on_run:
            on_run(run)
        runs.append(run)
    return runs


def find_file(model: Path) -> Path:
    if not model.is_file():
        raise CheckpointError(f"no model at {model}: expected a model folder or an ONNX file")
    return model


def find_exported(folder: Path, precision: str | None) -> Path:
    """Return the exported file of that precision in a model folder."""
    path = folder / "export" / f"model.{precision}.onnx"
    if path.is_file():
        return path
    others = sorted(other.name for other in path.parent.glob("model.*.onnx"))
    if others:
        raise CheckpointError(f"{path} is missing, and {', '.join(others)} is there: try another --precision")
    raise CheckpointError(f"{folder} has no {path.relative_to(folder)}: run `edgevit export {folder}` first")


def _measure(request: Request, progress: Progress) -> Run:
    """Use a process of its own, so that no memory or thread of another batch size is left in the figures."""
    with (
        progress.stage(f"bench {request.label}, batch {request.batch}", total=100, unit="%") as stage,
        Agent() as agent,
    ):
        try:
            return Run.from_dict(agent.call("measure", _follow(stage), **asdict(request)))
        except AgentError as error:
            what = f"cannot measure {request.model} at batch {request.batch}"
            raise AgentError(f"{what}: {error}", remote_traceback=error.remote_traceback) from error


def _follow(stage: Stage) -> Callable[[dict[str, Any]], None]:
    def update(progress: dict[str, Any]) -> None:
        if progress["stage"] == "measure":
            stage.update(int(100 * progress["done"]))

    return update


def _check_names(runner: str, provider: str | None, precision: str | None, options: Mapping[str, Any]) -> None:
    if runner not in runner_names():
        raise UnknownNameError("runner", runner, runner_names())
    if provider is not None and provider not in PROVIDERS:
        raise UnknownNameError("provider", provider, PROVIDERS)
    if precision is not None and precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    known = runner_options(runner)
    for name in options:
        if name not in known:
            raise OptionError(f"the runner {runner!r} has no option {name!r}; its options: {', '.join(known)}")


def _check_numbers(
    batches: Sequence[int], samples: int, min_seconds: float, warmup: int, warmup_seconds: float, threads: int | None
) -> None:
    if not batches:
        raise OptionError("no batch size: give at least one --batch")
    limits = [
        *(("batch", batch, 1) for batch in batches),
        ("samples", samples, 1),
        ("threads", 1 if threads is None else threads, 1),
        ("min-seconds", min_seconds, 0),
        ("warmup", warmup, 0),
        ("warmup-seconds", warmup_seconds, 0),
    ]
    for name, value, least in limits:
        if not least <= value < float("inf"):
            raise OptionError(f"--{name} is {value}: it must be at least {least}")


def _verified_sha256(path: Path, *, must_be_listed: bool) -> str:
    """Hash the file; where export.json lists it, it must be the file that was exported."""
    digest = _sha256(path)
    expected = _exported_sha256(path)
    if expected is None and must_be_listed:
        raise CheckpointError(
            f"{path} is not listed in {path.with_name(EXPORT)}: the export is incomplete, export again"
        )
    if expected not in (None, digest):
        raise CheckpointError(
            f"{path} is not the file that was exported: its sha256 is {digest[:12]}..., and {EXPORT} says "
            f"{str(expected)[:12]}...; export again"
        )
    return digest


def _exported_sha256(path: Path) -> str | None:
    listed = path.with_name(EXPORT)
    if not listed.is_file():
        return None
    try:
        entry = json.loads(listed.read_text(encoding="utf-8"))["files"].get(path.name)
        return None if entry is None else str(entry["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{listed} cannot be read ({type(error).__name__}: {error}); export again") from error


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()
