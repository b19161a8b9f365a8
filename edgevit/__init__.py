"""Derive small class-specific Vision Transformers, export them, and measure them.

The same from Python as from the command line; everything heavy is imported at first use:

    import edgevit
    task = {"checkpoint": "base.safetensors", "data": "/data/imagenet", "classes": "classes.txt"}
    edgevit.sweep("deit_base_patch16_224", **task, out="runs/s")              # which rate?
    edgevit.derive("deit_base_patch16_224", **task, rate=0.6, out="runs/t1")
    edgevit.meet("deit_base_patch16_224", **task, ms=5, out="runs/t2")        # a budget that is measured
    edgevit.base("deit_base_patch16_224", **task, out="runs/base")            # unpruned
    edgevit.supernet("deit_base_patch16_224", **task, out="runs/net")         # slices of every size
    model = edgevit.load("runs/t1")            # a torch module, with .transform and .classes beside it
    model.predict(["photo.jpg"])               # [Prediction(name="crane", probabilities={"crane": 0.98, ...}, ...)]
    edgevit.evaluate("runs/t1", data="/data/imagenet")
    edgevit.export("runs/base"), edgevit.export("runs/t1")
    runs = edgevit.bench("runs/t1", batches=(1, 8)).runs
    runs = edgevit.bench_in_turns(["runs/base", "runs/t1"]).runs  # against each other, also on a busy machine

The words, one for each idea:

    base            the large model that is cut; with all its outputs, or restricted to the target classes
    task            the target classes and their images: training, validation and test part
    budget          how much may be left: a rate, MACs, parameters, milliseconds or millijoules
    request         what a command is asked, as a frozen record: the same from command line, YAML file and Python
    block, site     a block has two sites, its attention and its FFN; either may be gone
    part            the weights of a site, as tensors that methods slice
    axis            along which a model can be made smaller: heads, QK, VO, neurons, a site, a block, width, tokens
    family          what is known of one kind of network: its sites, its weights, what can be observed of it
    pass            images shown to a network once, in batches, with observers
    statistics      what passes over calibration images say of a block: moments, activations, sensitivities
    sensitivity     how much the answers change, in nats, with a token, a dimension or a neuron: how much they *feel* it
    cost table      what each site takes at each size, as measured: of *stacks*, networks of equal blocks, at a *place*
    policy          which widths hardware runs fast; a method's wishes are rounded to them
    method          decides what to keep: a plan; a derivation is one method, or several in a row
    plan            what becomes of each block: heads, widths and neurons that stay, with new weights where there are
    realise         make the slim network of a network and a plan
    narrow          give an axis a smaller width: fewer dimensions of heads, neurons, or channels of the embedding
    rung            one of the few widths of the embedding, or numbers of tokens, among which a method chooses
    anchor          the neuron that stays for a cluster of them, and that the others are drawn to (Vulcan)
    super-network   a base that was trained for every size (`edgevit supernet`); slice: a model that is cut out of it
    derived model   what comes of it: a folder of weights and records that everything else reads
    imported file   an ONNX file that edgevit did not make, in a folder with what it and its owner say of it
    source          what files and engines are written of: a model folder's network, or an imported file
    engine          a derived model compiled by TensorRT for one board
    board           a Jetson, reached over SSH; device: where torch computes; profile: what is known of a kind of board
    agent           the program that runs on a board; runner: what runs a model there; meter: what measures beside it
    run             one measurement, raw samples and environment; gate: the limits that decide whether it passes
    meet            derive for a budget in time or energy: derive, measure and correct the cost table in rounds
    proof           how a suite of networks with random weights runs on a board: what its owner sends back
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Here, as the agent is a part of this package, under Python 3.8, too, and imports nothing else of it.
__version__ = "0.1.0"

if TYPE_CHECKING:  # what a type checker sees; at run time each is imported when it is first used
    import inspect

    from edgevit.board.bench import bench, bench_in_turns
    from edgevit.board.request import BenchRequest, Conditions
    from edgevit.cost.place import Place
    from edgevit.cost.request import CostRequest
    from edgevit.cost.run import cost
    from edgevit.derive.base import base
    from edgevit.derive.jobs_file import DeriveManyRequest
    from edgevit.derive.many import derive_many
    from edgevit.derive.request import BaseRequest, DeriveRequest, SupernetRequest
    from edgevit.derive.session import derive
    from edgevit.derive.supernet import supernet
    from edgevit.engines.options import EngineOptions
    from edgevit.engines.request import EvaluateRequest, ExportRequest
    from edgevit.engines.run import evaluate, export
    from edgevit.meet.request import MeetRequest
    from edgevit.meet.run import meet
    from edgevit.models.checkpoint import load
    from edgevit.prove.request import ProveRequest
    from edgevit.prove.run import prove
    from edgevit.report.compare import compare
    from edgevit.report.request import CompareRequest, ReportRequest
    from edgevit.report.run import report
    from edgevit.sweep.request import SweepRequest
    from edgevit.sweep.run import sweep
    from edgevit.train.settings import Training

__all__ = [
    "BaseRequest",
    "BenchRequest",
    "CompareRequest",
    "Conditions",
    "CostRequest",
    "DeriveManyRequest",
    "DeriveRequest",
    "EngineOptions",
    "EvaluateRequest",
    "ExportRequest",
    "MeetRequest",
    "Place",
    "ProveRequest",
    "ReportRequest",
    "SupernetRequest",
    "SweepRequest",
    "Training",
    "__version__",
    "base",
    "bench",
    "bench_in_turns",
    "compare",
    "cost",
    "derive",
    "derive_many",
    "evaluate",
    "export",
    "load",
    "meet",
    "prove",
    "report",
    "supernet",
    "sweep",
]

_WHERE = {
    "BaseRequest": "edgevit.derive.request",
    "BenchRequest": "edgevit.board.request",
    "CompareRequest": "edgevit.report.request",
    "Conditions": "edgevit.board.request",
    "CostRequest": "edgevit.cost.request",
    "DeriveRequest": "edgevit.derive.request",
    "EngineOptions": "edgevit.engines.options",
    "EvaluateRequest": "edgevit.engines.request",
    "ExportRequest": "edgevit.engines.request",
    "DeriveManyRequest": "edgevit.derive.jobs_file",
    "MeetRequest": "edgevit.meet.request",
    "Place": "edgevit.cost.place",
    "ProveRequest": "edgevit.prove.request",
    "ReportRequest": "edgevit.report.request",
    "SupernetRequest": "edgevit.derive.request",
    "SweepRequest": "edgevit.sweep.request",
    "Training": "edgevit.train.settings",
    "base": "edgevit.derive.base",
    "bench": "edgevit.board.bench",
    "bench_in_turns": "edgevit.board.bench",
    "compare": "edgevit.report.compare",
    "cost": "edgevit.cost.run",
    "derive": "edgevit.derive.session",
    "derive_many": "edgevit.derive.many",
    "evaluate": "edgevit.engines.run",
    "export": "edgevit.engines.run",
    "load": "edgevit.models.checkpoint",
    "meet": "edgevit.meet.run",
    "prove": "edgevit.prove.run",
    "report": "edgevit.report.run",
    "supernet": "edgevit.derive.supernet",
    "sweep": "edgevit.sweep.run",
}
_PACKAGES = ("cost", "derive", "export", "meet", "prove", "report", "sweep")  # that have the name of a function, too


class CallablePackage(ModuleType):
    """A package that is also the public function of its name: see docs/decisions/002-callable-packages.md."""

    @property
    def _function(self) -> Callable[..., Any]:
        return _found(self.__name__.rpartition(".")[2])  # type: ignore[no-any-return]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        from inspect import signature  # slow to import, for every program that begins

        return signature(self._function)


def _found(name: str) -> Any:
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"edgevit.{name}")
    if name in _WHERE:
        return _found(name)
    raise AttributeError(f"module 'edgevit' has no attribute {name!r}")
