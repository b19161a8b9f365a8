"""Derive small class-specific Vision Transformers, export them, and measure them.

The same from Python as from the command line. Heavy packages are imported at first use:

    import edgevit
    task = {"checkpoint": "base.safetensors", "data": "/data/imagenet", "classes": "classes.txt"}
    edgevit.sweep("deit_base_patch16_224", **task, out="runs/s")              # compare rates
    edgevit.derive("deit_base_patch16_224", **task, rate=0.6, out="runs/t1")
    edgevit.meet("deit_base_patch16_224", **task, ms=5, out="runs/t2")        # a measured budget
    edgevit.base("deit_base_patch16_224", **task, out="runs/base")            # unpruned
    edgevit.supernet("deit_base_patch16_224", **task, out="runs/net")         # slices of every size
    model = edgevit.load("runs/t1")            # a torch module, with .transform and .classes
    model.predict(["photo.jpg"])               # [Prediction(name="crane", probabilities={"crane": 0.98, ...}, ...)]
    edgevit.evaluate("runs/t1", data="/data/imagenet")
    edgevit.export("runs/base"), edgevit.export("runs/t1")
    edgevit.package("runs/t1", triton=True, out="served")
    runs = edgevit.bench("runs/t1", batches=(1, 8)).runs
    runs = edgevit.bench_in_turns(["runs/base", "runs/t1"]).runs  # comparable on a busy machine, too

Words that edgevit uses in its own sense:

    base            the network that is cut; restricted: with the outputs of the target classes alone
    task            the target classes and their images: training, validation and test part
    budget          how much may remain: a rate, MACs, parameters, milliseconds or millijoules
    family          what edgevit knows of one kind of network
    site            the attention or the FFN of a block; part: its weights; axis: a size of it that can shrink
    plan            which blocks, heads, widths and neurons stay; realise: build the slim network of a plan
    shape policy    the widths that hardware runs fast; plans are rounded to them
    super-network   a base trained for all sizes (`edgevit supernet`); slice: a model that is cut out of it
    cost table      time or energy of each site at each size, measured on stacks of equal blocks
    board           a Jetson, reached over SSH; profile: its description; device: where torch computes
    agent           the program that measures on a board; runner: runs a model; meter: measures beside it
    run             one measurement: raw samples and environment; gate: a limit that decides whether it passes
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Here, as the agent is a part of this package, under Python 3.8, too, and imports nothing else of it.
__version__ = "0.1.0"

# What the package gives at its top. `python docs/made_signatures.py` writes it to __init__.pyi, for type checkers.
_MODULES = {
    "BaseRequest": "edgevit.derivation.request",
    "BenchRequest": "edgevit.board.request",
    "CharacterizeRequest": "edgevit.jobs.suite.request",
    "CompareRequest": "edgevit.reporting.request",
    "Conditions": "edgevit.board.request",
    "CostRequest": "edgevit.latency.cost_request",
    "Derivation": "edgevit.derivation.session.derive",
    "DeriveRequest": "edgevit.derivation.request",
    "EngineOptions": "edgevit.engines.options",
    "EvaluateRequest": "edgevit.engines.request",
    "ExportRequest": "edgevit.engines.request",
    "DeriveManyRequest": "edgevit.jobs.jobs_file",
    "FleetRequest": "edgevit.jobs.fleet.request",
    "MeetRequest": "edgevit.latency.request",
    "MeasurementTarget": "edgevit.latency.target",
    "PackageRequest": "edgevit.serving.request",
    "ReportRequest": "edgevit.reporting.request",
    "SupernetRequest": "edgevit.derivation.supernet_request",
    "SweepRequest": "edgevit.jobs.sweep.request",
    "Training": "edgevit.train.settings",
    "base": "edgevit.derivation.session.base",
    "bench": "edgevit.board.bench",
    "bench_in_turns": "edgevit.board.bench",
    "characterize": "edgevit.jobs.suite.run",
    "compare": "edgevit.reporting.compare",
    "cost": "edgevit.latency.cost",
    "derive": "edgevit.derivation.session.derive",
    "derive_many": "edgevit.jobs.many",
    "evaluate": "edgevit.engines.run",
    "export": "edgevit.engines.run",
    "fleet": "edgevit.jobs.fleet.run",
    "load": "edgevit.network.folder",
    "meet": "edgevit.jobs.budgets.run",
    "package": "edgevit.serving.package",
    "report": "edgevit.reporting.run",
    "supernet": "edgevit.derivation.session.supernet",
    "sweep": "edgevit.jobs.sweep.run",
}

__all__ = ["__version__", *_MODULES]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'edgevit' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
