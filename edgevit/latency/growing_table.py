"""The cost table of a base on its target, which rounds extend by more sizes; a table from a file stays as it is."""

from __future__ import annotations

from typing import Any

from edgevit.derivation.allocate.cost_table import CostTable, load_cost_table
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.method import find_method
from edgevit.errors import CostTableError
from edgevit.latency.request import MeetRequest
from edgevit.latency.table import measured_table
from edgevit.latency.target import MeasurementTarget, probe
from edgevit.network.network import Network
from edgevit.progress import Progress
from edgevit.records.model import BlockDims


class GrowingTable:
    """The cost table of a base on its target, with all sizes that have been measured."""

    def __init__(self, network: Network, request: MeetRequest, target: MeasurementTarget, progress: Progress) -> None:
        self.network, self.target, self.progress = network, target, progress
        self.policy = make_policy(request.shape, request.ffn_multiple, request.embed_multiple)
        self.energy = request.quantity == "mj"
        method = find_method(request.method)
        config = method.make_config(request.on_its_base().settings)
        space = method.search_space(self.network, config, self.policy)
        self.tokens = space.tokens
        self.narrower = 0 < space.embed < self.network.geometry.embed
        self.from_file = None if request.cost_table is None else self._checked(load_cost_table(request.cost_table))
        self.extend(())

    def extend(self, sizes: tuple[BlockDims, ...], embed: int | None = None) -> None:
        """Measure these sizes and this embedding, as far as the table lacks them."""
        self.table = self.from_file or measured_table(
            self.network,
            self.target,
            policy=self.policy,
            sizes=sizes,
            embed=embed,
            narrower=self.narrower,
            tokens=self.tokens,
            energy=self.energy,
            progress=self.progress,
        )

    @property
    def origin(self) -> dict[str, Any]:
        """The origin of the table, for records; empty: it has none."""
        origin = self.table.origin
        return {} if origin is None else origin.model_dump(mode="json", exclude_none=True)

    def _checked(self, table: CostTable) -> CostTable:
        """Make sure that a table belongs to this base and this target."""
        geometry, dims = self.network.geometry, list(self.network.dims)
        table.check(self.network.family_name, dims, geometry, self.policy)
        if table.origin is None:
            raise CostTableError(
                "cost table: it does not say where it was measured, so no figure can be set against it; leave it out"
            )
        table.origin.check(probe(self.target, self.progress))
        return table
