"""Put the networks of a suite on the machine that runs them: as ONNX files here, as engines on a board."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.facts import TensorRT
from edgevit.board.models import Measurable
from edgevit.engines.unjudged import OPSET, build_unjudged
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.suite.request import BATCHES
from edgevit.jobs.suite.suite import SuiteNetwork
from edgevit.network.network import Network
from edgevit.progress import Progress
from edgevit.records.precisions import FP32
from edgevit.records.writing import file_sha256


@dataclass(frozen=True)
class Prepared:
    """A network on the machine that runs it, or why there is no engine of it."""

    network: SuiteNetwork
    precision: str
    measurable: Measurable | None
    fused: int | None = None  # blocks whose attention is one kernel; None: unknown
    build_s: float | None = None
    refused: str | None = None


@dataclass
class NetworkFiles:
    """The files of a suite."""

    board: Board
    tensorrt: TensorRT
    scratch: Path
    progress: Progress
    largest: str  # size of the dense network that others are cut from
    weights: Network | None = None  # that network with trained weights; None: random weights
    engines: dict[str, str] = field(default_factory=dict)  # paths on the board by network

    def prepare(self, network: SuiteNetwork) -> Prepared:
        """Write a network, and build its engine if it runs on a board."""
        if self.board.host == THIS_MACHINE:
            path = self._written(network, FP32.name, OPSET)
            return Prepared(network, FP32.name, Measurable(path, file_sha256(path), FP32.name, network.name))
        built = build_unjudged(
            self.board,
            self.tensorrt,
            partial(self._written, network),
            name=network.name,
            precision=network.precision,
            batches=(1, 1, max(BATCHES)),
            progress=self.progress,
        )
        measurable = None
        if not built["refused"]:
            self.engines[network.name] = built["engine"]
            measurable = Measurable(Path(built["engine"]), built["sha256"], network.precision, network.name)
        return Prepared(network, network.precision, measurable, built.get("fused"), built["seconds"], built["refused"])

    def discard(self, but: str | None = None) -> None:
        """Remove the engines from the board, where there is little room, but for one network's."""
        if paths := [path for name, path in self.engines.items() if name != but]:
            self.board.call("discard", paths=paths)
        self.engines = {name: path for name, path in self.engines.items() if name == but}

    def network(self, network: SuiteNetwork) -> Network:
        """Make a network, with the weights of the checkpoint where it can have them."""
        return network.network(self.weights if network.is_cut_from(self.largest) else None)

    def _written(self, network: SuiteNetwork, precision: str, opset: int) -> Path:
        path = self.scratch / f"{network.name.replace(' ', '-').replace(',', '')}.onnx"
        if not path.is_file():
            with self.progress.stage(f"write {network.name}"):
                module = self.network(network)
                write_onnx(
                    module,
                    path,
                    input_size=module.input_size,
                    precision=precision,
                    batch="dynamic",
                    opset=opset,
                    metadata={"network": network.name},
                )
        return path
