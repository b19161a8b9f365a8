"""The search of sites: what lies near a set of them, and where it ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import some_tables
import timm
import torch
from small_base import ARGS, NAME, derive

from edgevit.data.task import Split
from edgevit.derivation.allocate.embedding import candidate_widths
from edgevit.derivation.measure import divergence
from edgevit.derivation.methods.forge import solve
from edgevit.derivation.methods.forge.search import AT_ONCE, ROUNDS, Sites, near, priced, search
from edgevit.network.anatomy import BlockDims
from edgevit.network.cost import Geometry
from edgevit.network.network import Network
from edgevit.progress import Silent


@dataclass(frozen=True)
class Plan:
    stay: Sites
    width: int | None = None


ALL: Sites = ((True, True), (True, True), (True, True))
PRICES = [(3.0, 1.0), (0.1, 0.2), (0.5, 0.4)]


def test_the_sets_near_one_differ_in_a_site_or_two_and_the_cheapest_change_comes_first() -> None:
    stay: Sites = ((True, True), (False, True), (True, False))
    found = near(stay, PRICES)
    flat = [site for block in stay for site in block]
    differing = [sum(a != b for a, b in zip(flat, [s for b in one for s in b], strict=True)) for one in found]
    assert len(set(found)) == len(found) == 4 * 2 + 2 + 4 and set(differing) == {1, 2}
    assert found[0] == ((True, True), (False, True), (True, True)), "a site comes back"
    assert found[1] == ((True, True), (False, False), (True, True)), "the cheapest one goes for it"


def of_sites(*there: int) -> Sites:
    flat = [i in there for i in range(6)]
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def test_it_goes_from_plan_to_plan_until_none_near_is_better() -> None:
    """The best three of six sites are the last, whatever their prices say."""
    asked: list[int] = []

    def judge(plans: Sequence[Plan]) -> list[float]:
        asked.append(len(plans))
        flat = [[i for i, there in enumerate(s for block in plan.stay for s in block) if there] for plan in plans]
        return [1.0 + sum(5 - i for i in there) for there in flat]

    def forced(stay: Sites, width: int | None) -> Plan | None:
        return Plan(stay, width) if sum(map(sum, stay)) == 3 else None

    best, solved = search([Plan(of_sites(0, 1, 2), 64), Plan(of_sites(0, 1, 3), 64)], forced, judge, PRICES, Silent())
    assert best == Plan(of_sites(3, 4, 5), 64) and solved == sum(asked)
    assert asked[0] == 2 and len(asked) <= 1 + ROUNDS and max(asked) <= AT_ONCE
    alone, _ = search([Plan(of_sites(3, 4, 5))], lambda *_: None, judge, PRICES, Silent())
    assert alone == Plan(of_sites(3, 4, 5)), "the budget allows no other"


def test_what_goes_is_priced_block_by_block() -> None:
    def block(whole: float, *sites: float) -> SimpleNamespace:
        return SimpleNamespace(block_loss=torch.tensor([whole]), site_losses=torch.tensor(sites))

    known: Any = [block(5.0, 1.0, 2.0), block(7.0, 3.0, 4.0), block(9.0, inf, inf)]
    assert priced(known, ((True, True), (True, False), (False, True))) == 4.0
    assert priced(known, ((False, False), (False, True), (False, False))) == 5.0 + 3.0 + 9.0


FIXED, ALIKE = 1 / 7, 0.9  # share of the base that no site takes; share of a site that no width changes
KERNELS = {"attention": 4, "ffn": 3}


def launch_bound_table(blocks: Sequence[BlockDims], geometry: Geometry) -> dict[str, Any]:
    """Return a cost table by which a narrower site is hardly faster, of a base of alike blocks that takes 1 ms."""
    first, whole = blocks[0], (1 - FIXED) / len(blocks) / sum(KERNELS.values())

    def priced(site: str, share: float) -> float:
        return round(KERNELS[site] * whole * (ALIKE + (1 - ALIKE) * share), 9)

    def listed(narrower: float, embed: int) -> list[dict[str, Any]]:
        pairs = [(h, w) for h in range(1, first.heads + 1) for w in range(16, first.qk + 1, 8)]
        attention = {(h, w): priced("attention", narrower * h * w / (first.heads * first.qk)) for h, w in pairs}
        ffn = {w: priced("ffn", narrower * w / first.ffn) for w in range(8, first.ffn + 1, 8)}
        return some_tables.rows(FIXED, attention, ffn, embed=embed)

    sizes = {"heads": first.heads, "qk": first.qk, "vo": first.vo, "ffn": first.ffn}
    base = {
        "embed": geometry.embed, "tokens": geometry.tokens, "depth": len(blocks),
        "patch_values": geometry.patch_values, "blocks": [sizes],
    }  # fmt: skip
    widths = [width for width in candidate_widths(geometry.embed, 16) if width <= geometry.embed]
    costs = [row for width in widths for row in listed(width / geometry.embed, width)]
    return some_tables.table(costs, base=base)


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    """By which only fewer sites are faster."""
    network = Network(timm.create_model(NAME, num_classes=10, **ARGS))
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(launch_bound_table(list(network.dims), network.geometry)))
    return file


@pytest.mark.slow
def test_few_of_many_validation_images_judge_the_plans_of_a_search(
    tmp_path: Path, digits_checkpoint: Path, few_digits: object, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def network_outputs(network: torch.nn.Module, images: Split, *rest: Any, **options: Any) -> torch.Tensor:
        seen.append(len(images))
        return divergence.network_outputs(network, images, *rest, **options)

    monkeypatch.setattr(solve, "network_outputs", network_outputs)
    monkeypatch.setattr(solve, "JUDGED_TOKENS", 5 * 17)  # tokens of an image
    made = derive(
        digits_checkpoint, tmp_path / "m", method="forge", rate=None, ms=0.55, cost_table=costs, training={"steps": 0},
        options={"calibration_images": 48},
    )  # fmt: skip
    judged = seen.count(5)
    assert judged >= made.record.facts.more["plans_solved"] and seen[:judged] == [5] * judged
    assert min(seen[judged:]) > 5, "all of them judge what is tried in the end"


@pytest.mark.slow
@pytest.mark.parametrize("searched", [True, False])
def test_where_many_sites_go_it_is_tried_and_kept_if_it_is_nearer_to_the_base(
    tmp_path: Path, digits_checkpoint: Path, few_digits: object, costs: Path, searched: bool
) -> None:
    made = derive(
        digits_checkpoint, tmp_path / "m", method="forge", rate=None, ms=0.55, cost_table=costs, training={"steps": 0},
        options={"search_sites": searched, "calibration_images": 48},
    )  # fmt: skip
    facts = made.record.facts.more
    left = sum(block.has("attention") + block.has("ffn") for block in made.model.spec.blocks)
    assert 0 < left < 4 and made.record.budget.reached <= 0.55
    assert ("plans_solved" in facts) == searched
    for step in facts["tried"].values():
        assert step["kept"] == (step["after"] < step["before"])
