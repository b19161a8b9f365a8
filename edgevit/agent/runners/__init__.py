"""One file per way of running a model; its name is what `--runner` takes. Each defines

    REQUIRES = ("numpy", "onnxruntime")  # imported before the load clock starts

    @contextmanager
    def open_runner(model: str, batch: int, *, threads: int | None = None) -> Iterator[Loaded]:
        yield Loaded(infer, provider, environment)

and, where the runtime has a profiler, `open_profiler`, which yields `Profiled` and takes the same arguments.

Where it matters that other models are open in the same process, `open_runner` also takes `beside`, which is then True
and no option that a person gives; it raises `AloneError` where this runtime cannot do it.

Keyword arguments are the runner's options. A runner never times itself: `measure.py` does, the same way for all; only
what a GPU's own clock says of an inference comes from the runner. Heavy imports go inside the function, so that the
host can list runners and their options. Raise `RunnerError` for what the person who asked can put right.
"""

from __future__ import annotations

import inspect
import pkgutil
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Protocol, Sequence

if TYPE_CHECKING:
    from ..layers import Layer

_SHARED = "shared"


class RunnerError(Exception):
    """The model cannot be run as asked; the message says what to try and needs no traceback."""


class AloneError(RunnerError):
    """Models cannot be open in one process without one slowing the others, on this machine or as asked."""


class CaptureError(RunnerError):
    """The work cannot be captured into a graph; it can still be enqueued."""


class Lane(Protocol):
    """One of several streams that work side by side."""

    def enqueue(self) -> object:
        """Start one batch."""

    def wait(self) -> object:
        """Return when the batch that was started last is complete."""


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to run."""

    infer: Callable[[], object]  # runs one batch, and returns only when its output is complete
    provider: str | None  # what the model runs on, as the runtime reports it
    environment: dict[str, str]  # versions and settings that must match for two runs to be compared
    # Called once, after the first inference: what can be prepared only then. Adds what it returns to the environment.
    settle: Callable[[], dict[str, str]] = dict
    # GPU time, by the GPU's own clock, of the batch that `infer` has just run; None: it has no such clock.
    gpu_ns: Callable[[], int] | None = None
    # Lanes that are all kept busy to measure throughput; fewer than two: `infer` is repeated.
    lanes: Sequence[Lane] = ()
    # Sets the images, float32 [B, 3, H, W], of the next `infer`; None: the input cannot be set.
    feed: Callable[[Any], None] | None = None
    # Durations of the parts of the last `infer`, by the GPU's clock: "copy in", "inference", "copy out"; None: unknown.
    parts_ns: Callable[[], Dict[str, int]] | None = None
    # Device memory of weights and activations, by the runtime's own account; None: not stated.
    engine_bytes: int | None = None


@dataclass(frozen=True)
class Profiled:
    """A model that runs with the runtime's own profiler, which slows it: its times are never those of a plain run."""

    infer: Callable[[], object]  # runs one batch, and returns only when its output is complete
    gather: Callable[[], object]  # reads the profiler after each inference that counts, outside of its time
    # Returns the layers with the times of the last inferences, given their number; called once, last.
    layers: Callable[[int], list[Layer]]
    provider: str | None
    environment: dict[str, str]
    gpu_ns: Callable[[], int] | None = None


def runner_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def import_runner(name: str) -> ModuleType:
    """Return the runner's file, with what it requires not imported yet."""
    if name not in runner_names():
        raise RunnerError(f"no runner {name!r}; known: {', '.join(runner_names())}")
    return import_module(f".{name}", __name__)


def has_profiler(name: str) -> bool:
    return hasattr(import_runner(name), "open_profiler")


def runner_options(name: str) -> list[str]:
    return list(option_types(name))


def option_types(name: str) -> Dict[str, str]:
    """The options of a runner with their types as its file writes them, such as `int | None`."""
    _model, _batch, *options = inspect.signature(import_runner(name).open_runner).parameters.values()
    return {option.name: str(option.annotation) for option in options if option.name != _SHARED}


@contextmanager
def open_shared(runner: ModuleType, model: str, batch: int, options: Dict[str, Any], label: str) -> Iterator[Loaded]:
    """Open one of several models of a process; an error names its label.

    Raises:
        AloneError, RunnerError: as their names say.
    """
    shared = {_SHARED: True} if _SHARED in inspect.signature(runner.open_runner).parameters else {}
    with ExitStack() as opened:
        try:
            loaded = opened.enter_context(runner.open_runner(model, batch, **options, **shared))
        except AloneError:
            raise
        except RunnerError as error:
            raise RunnerError(f"{label}: {error}") from error
        yield loaded
