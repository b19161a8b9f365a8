"""Every error edgevit raises on purpose. The CLI prints the message and exits 1; any other exception is a bug.

EdgeVitError
  UnknownNameError        no method, option, class, runner, device ... of that name; suggests the nearest
  OptionError             an option's value is outside what it may be
  PlanError               a plan that does not fit its network, or that nothing can be made of
  JobsError               a file of many derivations that contradicts itself
  SweepError              a sweep's record that cannot be read, or is of another sweep
  DataError               images or classes are missing, empty, corrupt or ambiguous
  ModelError
    UnsupportedModelError a family that the factorisation would break, or that edgevit cannot read yet
    CheckpointError       weights or a model folder that are missing, truncated, altered or of another architecture
  BudgetError             no shape that the policy allows fits the budget
  CostTableError          a table of measured costs that cannot be read, is not monotone, has holes or is another base's
  TrainingError           the loss is no longer a number
  OutputError             the output exists, or could not be written
  UnfinishedError         the state of an unfinished derivation is damaged, or does not say what it is of
  Interrupted             stopped by Ctrl-C; the message says how to resume
  ExportError             a check of the exported files failed, or the exporter did
  RunsError               records of measurements that cannot be read, or not be compared
  ProfileError            a board profile that cannot be read, or is another board's
  GateError               a gate that cannot be understood, or asks for what this board cannot tell
  EngineError             an engine that could not be built, is wrong, or belongs to another board
  BoardError
    UnreachableError      the agent could not be started on the host
    ConnectionLostError   the connection broke while a job ran; the job goes on and its result is kept
    UnfitBoardError       the board lacks what was asked of it: TensorRT, memory, disk, a power mode
    AgentError            the agent raised; `.remote_traceback` says where
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from edgevit.text import shortened

LONGEST_NAME = 100  # characters of a name that messages show whole
_LONGEST_OWNER = 300  # most characters of what has the names, which may be a path
# Torch's messages when memory runs out.
_ALLOCATION = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)


class EdgeVitError(Exception):
    """Root of the tree."""


class UnknownNameError(EdgeVitError):
    """No such name, or none that this owner has; the message suggests the nearest known ones."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], *, owner: str = "") -> None:
        names = [shortened(str(k), LONGEST_NAME) for k in valid]
        close = _nearest(name, names) if len(name) <= LONGEST_NAME else []  # else it would take minutes
        name = shortened(name, LONGEST_NAME)
        if close:
            hint = f"did you mean {' or '.join(repr(c) for c in close)}?"
        else:
            hint = f"known: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        owner = shortened(owner, _LONGEST_OWNER)
        super().__init__(f"{owner} has no {kind} {name!r}; {hint}" if owner else f"no {kind} {name!r}; {hint}")


def _nearest(name: str, names: list[str]) -> list[str]:
    """Up to three names that are like this one, or begin like it: `vit_tyny` finds `vit_tiny_patch16_224`."""
    begins: dict[str, str] = {}
    for candidate in sorted(names, key=len):
        begins.setdefault(candidate[: len(name)], candidate)
    begun = [begins[prefix] for prefix in get_close_matches(name, begins, n=3, cutoff=0.75)]
    return list(dict.fromkeys([*begun, *get_close_matches(name, names, n=3, cutoff=0.5)]))[:3]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, of the machine or of a GPU."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or _ALLOCATION.search(str(error)) is not None
    return isinstance(error, MemoryError)


class OptionError(EdgeVitError):
    """An option's value is outside what it may be."""


class PlanError(EdgeVitError):
    """A plan that does not fit its network, or that nothing can be made of."""


class JobsError(EdgeVitError):
    """A file of many derivations that contradicts itself."""


class SweepError(EdgeVitError):
    """A sweep's record that cannot be read, or is of another sweep."""


class DataError(EdgeVitError):
    """Images or classes are missing, empty, corrupt or ambiguous."""


class ModelError(EdgeVitError):
    """Something is wrong with a model."""


class UnsupportedModelError(ModelError):
    """A family that the factorisation would break, or that edgevit cannot read yet."""


class CheckpointError(ModelError):
    """Weights or a model folder that are missing, truncated, altered or of another architecture."""


class BudgetError(EdgeVitError):
    """No shape that the policy allows fits the budget.

    Where that is known, `least` is what the smallest costs, and `breakdown` in words what that consists of.
    """

    def __init__(self, message: str, *, least: float | None = None, breakdown: str = "") -> None:
        super().__init__(message)
        self.least, self.breakdown = least, breakdown


class CostTableError(EdgeVitError):
    """A table of measured costs that cannot be read, is not monotone, has holes or is another base's."""


class TrainingError(EdgeVitError):
    """The loss is no longer a number."""


class OutputError(EdgeVitError):
    """The output exists, or could not be written."""


class UnfinishedError(EdgeVitError):
    """The state of an unfinished derivation is damaged, or does not say what it is of."""


class Interrupted(EdgeVitError):
    """Stopped by Ctrl-C; the message says how to resume."""


class ExportError(EdgeVitError):
    """A check of the exported files failed, or the exporter did."""


class RunsError(EdgeVitError):
    """Records of measurements that cannot be read, or not be compared."""


class ProfileError(EdgeVitError):
    """A board profile that cannot be read, or is another board's."""


class GateError(EdgeVitError):
    """A gate that cannot be understood, or asks for what this board cannot tell."""


class EngineError(EdgeVitError):
    """An engine that could not be built, is wrong, or belongs to another board."""


class BoardError(EdgeVitError):
    """Something went wrong on, or on the way to, the machine that runs the agent."""


class UnreachableError(BoardError):
    """The agent could not be started on the host."""


class ConnectionLostError(BoardError):
    """The connection broke while a job ran; the job goes on and its result is kept."""


class UnfitBoardError(BoardError):
    """The board lacks what was asked of it: TensorRT, memory, disk, a power mode."""


class AgentError(BoardError):
    """The agent raised while serving a request."""

    def __init__(self, message: str, *, remote_traceback: str = "") -> None:
        super().__init__(message)
        self.remote_traceback = remote_traceback
