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

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Here, as the agent is a part of this package, under Python 3.8, too, and imports nothing else of it.
__version__ = "0.1.0"

if TYPE_CHECKING:  # what a type checker sees; at run time each is imported when it is first used
    from edgevit.board.bench import bench as bench
    from edgevit.board.bench import bench_in_turns as bench_in_turns
    from edgevit.board.request import BenchRequest as BenchRequest
    from edgevit.board.request import Conditions as Conditions
    from edgevit.derivation.request import BaseRequest as BaseRequest
    from edgevit.derivation.request import DeriveRequest as DeriveRequest
    from edgevit.derivation.request import SupernetRequest as SupernetRequest
    from edgevit.derivation.session.base import base as base
    from edgevit.derivation.session.derive import derive as derive
    from edgevit.derivation.session.supernet import supernet as supernet
    from edgevit.engines.options import EngineOptions as EngineOptions
    from edgevit.engines.request import EvaluateRequest as EvaluateRequest
    from edgevit.engines.request import ExportRequest as ExportRequest
    from edgevit.engines.run import evaluate as evaluate
    from edgevit.engines.run import export as export
    from edgevit.jobs.jobs_file import DeriveManyRequest as DeriveManyRequest
    from edgevit.jobs.many import derive_many as derive_many
    from edgevit.jobs.suite.request import ProveRequest as ProveRequest
    from edgevit.jobs.suite.run import prove as prove
    from edgevit.jobs.sweep.request import SweepRequest as SweepRequest
    from edgevit.jobs.sweep.run import sweep as sweep
    from edgevit.latency.cost import cost as cost
    from edgevit.latency.cost_request import CostRequest as CostRequest
    from edgevit.latency.meet import meet as meet
    from edgevit.latency.request import MeetRequest as MeetRequest
    from edgevit.latency.target import MeasurementTarget as MeasurementTarget
    from edgevit.network.checkpoint import load as load
    from edgevit.reporting.compare import compare as compare
    from edgevit.reporting.request import CompareRequest as CompareRequest
    from edgevit.reporting.request import ReportRequest as ReportRequest
    from edgevit.reporting.run import report as report
    from edgevit.train.settings import Training as Training

_MODULES = {  # of what the package gives at its top
    "BaseRequest": "edgevit.derivation.request",
    "BenchRequest": "edgevit.board.request",
    "CompareRequest": "edgevit.reporting.request",
    "Conditions": "edgevit.board.request",
    "CostRequest": "edgevit.latency.cost_request",
    "DeriveRequest": "edgevit.derivation.request",
    "EngineOptions": "edgevit.engines.options",
    "EvaluateRequest": "edgevit.engines.request",
    "ExportRequest": "edgevit.engines.request",
    "DeriveManyRequest": "edgevit.jobs.jobs_file",
    "MeetRequest": "edgevit.latency.request",
    "MeasurementTarget": "edgevit.latency.target",
    "ProveRequest": "edgevit.jobs.suite.request",
    "ReportRequest": "edgevit.reporting.request",
    "SupernetRequest": "edgevit.derivation.request",
    "SweepRequest": "edgevit.jobs.sweep.request",
    "Training": "edgevit.train.settings",
    "base": "edgevit.derivation.session.base",
    "bench": "edgevit.board.bench",
    "bench_in_turns": "edgevit.board.bench",
    "compare": "edgevit.reporting.compare",
    "cost": "edgevit.latency.cost",
    "derive": "edgevit.derivation.session.derive",
    "derive_many": "edgevit.jobs.many",
    "evaluate": "edgevit.engines.run",
    "export": "edgevit.engines.run",
    "load": "edgevit.network.checkpoint",
    "meet": "edgevit.latency.meet",
    "prove": "edgevit.jobs.suite.run",
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
