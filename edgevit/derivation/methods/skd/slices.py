"""Slices of a super-network: read their order and accuracies, and cut one of any size.

A super-network is a model folder whose dimensions are in order of importance. Its `supernet.json` lists the units in
the order of dropping, and the accuracy of some slices on the validation part. Following that order meets any budget in
its range, so cutting a slice costs no more than copying its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from edgevit.derivation.allocate.budget import Budget, quantity_name, remainder
from edgevit.derivation.allocate.policy import Policy, Widths, fit
from edgevit.derivation.methods.skd.piad import dims_without, embed_without, slice_plan
from edgevit.derivation.plan import Plan
from edgevit.derivation.realise import realise
from edgevit.derivation.session.opening import known_classes
from edgevit.derivation.solve.factorise import one_thread
from edgevit.errors import BudgetError
from edgevit.network.cost import Quantity
from edgevit.network.network import Network
from edgevit.numbers import check_number, parse_count
from edgevit.records.model import SITE_AXES, WIDTHS, BlockDims, ModelSpec
from edgevit.records.model_folder import ModelFolder
from edgevit.records.supernet import SlicePoint, SupernetRecord, Unit
from edgevit.text import format_count

_Classes = str | Path | Sequence[str | int] | None


@dataclass(frozen=True)
class SuperNet:
    """A super-network in its folder."""

    folder: Path
    record: SupernetRecord
    is_main: bool = True  # False in all but the first of several processes: only that one wrote the folder

    @property
    def order(self) -> tuple[Unit, ...]:
        """The units in the order of dropping."""
        return self.record.order

    @property
    def curve(self) -> tuple[SlicePoint, ...]:
        """The measured slices, from the whole network to the smallest."""
        return self.record.curve

    def slice(self, network: Network, budget: Budget, policy: Policy) -> Network:
        """Cut the slice of this budget."""
        return cut_slice(network, self.order, budget, policy)

    def check(self, spec: ModelSpec, network: Network, classes: _Classes, **size: Any) -> None:
        """Refuse a size or classes that the super-network does not have.

        Args:
            size: rate, macs and params, as for `make_budget`.

        Raises:
            BudgetError: no slice has this size; the message has the range.
            OptionError: it was made for other classes.
        """
        if spec.head == "subset":
            known_classes(self.folder, spec, classes)
        budgets = {name: value for name, value in size.items() if value is not None}
        if len(budgets) != 1:
            return  # `make_budget` refuses it
        ((name, value),) = budgets.items()
        quantity: Quantity = "params" if name == "params" else "macs"
        largest = spec.params if quantity == "params" else spec.macs
        if name == "rate":
            check_number("--rate", value, "(0, 1)", "0.6 leaves 40 % of the network's MACs")
        limit = remainder(largest, value) if name == "rate" else parse_count(value, quantity)
        whole = network.geometry
        least = network.geometry_at(embed_without(whole.embed, self.order)).cost(
            dims_without(spec.blocks, self.order), quantity
        )
        if not least <= limit < largest:
            raise BudgetError(
                f"{name} {value} asks for {format_count(limit)} {quantity_name(quantity)}, and {self.folder} has "
                f"slices of {format_count(least)} (rate {1 - least / largest:.3f}) to just under "
                f"{format_count(largest)} (rate 0); ask for one of these, or make one for smaller slices: "
                "edgevit supernet --smallest-rate"
            )


def plan_of_slice(network: Network, order: Sequence[Unit], budget: Budget, policy: Policy) -> Plan:
    """Make the plan of the slice of this budget.

    Its embedding is that of the first sub-network in the order within the budget, or the next one that the policy
    allows; its widths fill the budget.

    Raises:
        BudgetError: the smallest slice costs more.
    """
    blocks = network.read()
    whole = [b.dims for b in blocks]

    geometry_of = cache(network.geometry_at)

    def fits(count: int, embed: int) -> bool:
        return budget.allows(budget.cost(dims_without(whole, order[:count]), geometry_of(embed)))

    widths = _embeds(order, network.geometry.embed, budget.least_embed, policy.embed_step)
    within = [embed for last, embed in widths if fits(last, embed)]
    if not within:
        smallest, geometry = dims_without(whole, order), geometry_of(widths[-1][1])
        least, parts = budget.cost(smallest, geometry), budget.breakdown(smallest, geometry)
        raise BudgetError(
            f"{budget.option} leaves {budget.text(budget.limit)}, and the smallest slice of this super-network takes "
            f"{budget.text(least)}{parts and f' ({parts})'}; raise the budget, or make one for smaller slices: "
            "edgevit supernet --smallest-rate",
            least=least,
            breakdown=parts,
        )
    for embed in within:
        try:
            chosen = fit(lambda share: _wishes(order, whole, share), whole, geometry_of(embed), budget, policy)
        except BudgetError:
            if embed == within[-1]:
                raise
            continue
        break
    with torch.no_grad():
        return slice_plan(blocks, chosen, embed)


def _embeds(order: Sequence[Unit], embed: int, least: int, multiple: int) -> list[tuple[int, int]]:
    """List the widths of the embedding in the order, each with the number of units dropped before the next one.

    Args:
        least: the narrowest width with known costs.
        multiple: all widths but the widest are multiples of this.
    """
    narrower = ((i, unit.first) for i, unit in enumerate(order) if unit.kind == "embed")
    places = [(i, width) for i, width in narrower if width >= least and width % multiple == 0]
    ends = [*(i for i, _ in places), len(order)]
    return list(zip(ends, [embed, *(width for _, width in places)], strict=True))


def cut_slice(network: Network, order: Sequence[Unit], budget: Budget, policy: Policy) -> Network:
    """Cut the slice of this budget."""
    with one_thread():  # each copy is too short for several threads on a busy machine
        return realise(network, plan_of_slice(network, order, budget, policy))


def _wishes(order: Sequence[Unit], dims: Sequence[BlockDims], share: float) -> Sequence[Widths]:
    """Return the widths after dropping a share of the order's MACs, the last unit in part."""
    due = share * sum(unit.macs for unit in order)
    wishes = [{axis: float(d[axis]) for axis in WIDTHS} for d in dims]
    for unit in order:
        part = min(due / unit.macs, 1.0)
        width, widths = unit.last - part * (unit.last - unit.first), wishes[unit.block]
        if unit.kind != "embed":
            widths |= {axis: min(widths[axis], width) for axis in SITE_AXES[unit.kind] if axis in widths}
        due -= part * unit.macs
        if part < 1:
            break
    return wishes


def read_supernet(folder: str | Path) -> SuperNet:
    """Read the record of a super-network.

    Raises:
        CheckpointError: the folder is not a super-network, or the file is damaged or of another schema.
    """
    return SuperNet(Path(folder), ModelFolder(Path(folder)).supernet())
