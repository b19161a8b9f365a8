"""What every derivation begins with, and how it ends when it is stopped: a super-network's too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from edgevit.data.assumptions import Assumptions, assumptions
from edgevit.data.task import Task
from edgevit.derive.cache import Cache
from edgevit.derive.head import with_fitted_head
from edgevit.derive.request import Request
from edgevit.errors import EdgeVitError, Interrupted, UnknownNameError
from edgevit.folder.derivation import FittedHead
from edgevit.folder.model import ClassLabel
from edgevit.folder.unfinished import remove_cheap
from edgevit.models.checkpoint import Headless, Model
from edgevit.models.classifier import with_classes
from edgevit.train.passes import Passes
from edgevit.train.settings import Training


@dataclass(frozen=True)
class Opened:
    """A base with its classifier as asked, and the images of its task."""

    base_name: str
    base: Model
    fitted: FittedHead | None  # how its head was fitted, where it had none
    task: Task
    assumed: Assumptions
    passes: Passes
    head: str
    network: nn.Module  # the base's, its classifier already as asked
    columns: list[int]  # for each target class, its column in the network's logits
    labels: tuple[ClassLabel, ...]  # the target classes, as model.json has them

    def resolved(self, training: Training) -> dict[str, Any]:
        """What an unfinished run must have in common with the one that goes on with it."""
        return {
            "base": self.base.spec.base.weights_sha256,
            "data": self.task.fingerprint(),
            "classes": self.task.class_names,
            "preprocessing": self.base.preprocessing,
            "head": self.head,
            "training": {k: v for k, v in asdict(training).items() if k not in ("device", "workers")},
        }


def open_for(
    found: Model | Headless, base: str | Path, request: Request, head: str, task: Task, passes: Passes, cache: Cache
) -> Opened:
    """Give the base its classifier, fitted to the task's images where it has none, and say what is assumed of it.

    Raises:
        UnknownNameError: there is no such head.
        DataError: no head can be fitted to these images.
    """
    model, fitted = with_fitted_head(found, task, passes, cache)
    assumed = assumptions(
        base, task, pretrained=request.pretrained, base_classes=request.base_classes, given=request.preprocessing,
        fitted=fitted is not None,
    )  # fmt: skip
    for line in assumed.lines():
        passes.progress.note(line)
    if head not in ("subset", "full"):
        raise UnknownNameError("head", head, ["subset", "full"])
    labels = tuple(ClassLabel(c.name, c.base_index) for c in task.classes)
    network, columns = model.network, task.base_columns
    if head == "subset":
        network, columns = with_classes(model.network, columns), list(range(len(columns)))
    return Opened(str(base), model, fitted, task, assumed, passes, head, network, columns, labels)


@contextmanager
def resumable(folder: Path, *, is_main: bool) -> Iterator[None]:
    """Say how an unfinished run is gone on with when it is stopped; take away what took no work when it fails.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, Interrupted) as stop:
        what = str(stop) or "stopped"
        raise Interrupted(f"{what}; the same command with --resume goes on from {folder}") from stop
    except EdgeVitError:
        if is_main:
            remove_cheap(folder)
        raise
