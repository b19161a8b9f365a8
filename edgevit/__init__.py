"""Derive small class-specific Vision Transformers, export them, and measure them.

The same from Python as from the command line; everything heavy is imported at first use:

    import edgevit
    edgevit.sweep("deit_base_patch16_224", data="/data/imagenet", classes="classes.txt", out="runs/s")  # which rate?
    edgevit.derive("deit_base_patch16_224", data="/data/imagenet", classes="classes.txt", rate=0.6, out="runs/t1")
    edgevit.base("deit_base_patch16_224", data="/data/imagenet", classes="classes.txt", out="runs/base")  # unpruned
    edgevit.supernet("deit_base_patch16_224", data="/data/imagenet", out="runs/net")  # slices of every size
    model = edgevit.load("runs/t1")            # a torch module, with .transform and .classes beside it
    model.predict(["photo.jpg"])               # [Prediction(name="crane", probabilities={"crane": 0.98, ...}, ...)]
    edgevit.evaluate("runs/t1", data="/data/imagenet")
    edgevit.export("runs/t1")
    runs = edgevit.bench("runs/t1", batches=(1, 8)).runs
    runs = edgevit.bench_in_turns(["runs/base", "runs/t1"]).runs  # against each other, also on a busy machine
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = (
    "0.1.0"  # here: the agent is a part of this package, under Python 3.8, too, and imports nothing else of it
)

__all__ = [
    "__version__",
    "base",
    "bench",
    "bench_in_turns",
    "derive",
    "evaluate",
    "export",
    "load",
    "supernet",
    "sweep",
]

# `derive`, `export` and `sweep` are packages that can be called: see docs/decisions/002-callable-packages.md.
_WHERE = {
    "base": "edgevit.derive.base",
    "bench": "edgevit.board.bench",
    "bench_in_turns": "edgevit.board.bench",
    "evaluate": "edgevit.export.evaluate",
    "load": "edgevit.models.checkpoint",
    "supernet": "edgevit.derive.supernet",
}


def __getattr__(name: str) -> Any:
    if name in ("derive", "export", "sweep"):
        return import_module(f"edgevit.{name}")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'edgevit' has no attribute {name!r}")
