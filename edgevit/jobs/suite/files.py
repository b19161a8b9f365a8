"""Put the networks of a suite on the machine that runs them: as ONNX files here, as engines on a board."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgevit.board.connection import THIS_MACHINE, Board
from edgevit.board.facts import TensorRT
from edgevit.board.models import Measurable
from edgevit.engines.unjudged import Placed, place_unjudged
from edgevit.exporting.graph import write_onnx
from edgevit.jobs.suite.request import BATCHES
from edgevit.jobs.suite.suite import SuiteNetwork
from edgevit.network.network import Network
from edgevit.progress import Progress
from edgevit.records.precisions import FP32


@dataclass(frozen=True)
class Prepared:
    """A network on the machine that runs it, or without an engine there."""

    network: SuiteNetwork
    precision: str
    placed: Placed

    @property
    def measurable(self) -> Measurable | None:
        if self.placed.refused:
            return None
        return Measurable(self.placed.path, self.placed.sha256, self.precision, self.network.name)


@dataclass
class NetworkFiles:
    """The files of a suite."""

    board: Board
    tensorrt: TensorRT
    scratch: Path
    progress: Progress
    largest: str  # size of the dense network from which others are cut
    weights: Network | None = None  # the largest dense network with trained weights; None: all weights are random
    engines: dict[str, str] = field(default_factory=dict)  # path of each engine on the board, by name of its network

    def prepare(self, network: SuiteNetwork) -> Prepared:
        """Write a network, and build its engine if it runs on a board."""
        builds = self.board.host != THIS_MACHINE
        precision = network.precision if builds else FP32.name
        placed = place_unjudged(
            self.board,
            self.scratch / f"{network.name.replace(' ', '-').replace(',', '')}.onnx",
            partial(self._write, network),
            precision=precision,
            progress=self.progress,
            tensorrt=self.tensorrt if builds else None,
            name=network.name,
            batches=(1, 1, max(BATCHES)),
        )
        if builds and not placed.refused:
            self.engines[network.name] = str(placed.path)
        return Prepared(network, precision, placed)

    def discard(self, but: str | None = None) -> None:
        """Remove the engines of all networks but one from the board, where there is little room."""
        if paths := [path for name, path in self.engines.items() if name != but]:
            self.board.call("discard", paths=paths)
        self.engines = {name: path for name, path in self.engines.items() if name == but}

    def network(self, network: SuiteNetwork) -> Network:
        """Make a network, with the weights of the checkpoint where it can have them."""
        return network.network(self.weights if network.is_cut_from(self.largest) else None)

    def _write(self, network: SuiteNetwork, file: Path, precision: str, opset: int) -> None:
        with self.progress.stage(f"write {network.name}"):
            module = self.network(network)
            size, metadata = module.input_size, {"network": network.name}
            write_onnx(
                module, file, input_size=size, precision=precision, batch="dynamic", opset=opset, metadata=metadata
            )
