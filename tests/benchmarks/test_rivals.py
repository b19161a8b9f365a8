"""The tables of rivals: a reader finds a rival by the name that another paper gives it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any

import base
import fashion
import fine
import older
import pytest
import rivals
import timm

from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.derivation.reach import Asked
from edgevit.errors import BudgetError
from edgevit.network.families import family_of

MODELS: dict[str, dict[str, Any]] = {
    "rendered": base.RENDERED_ARGS, "fine": fine.FINE_ARGS, "fashion": fashion.FASHION_ARGS,
}  # fmt: skip


def row(part: str, name: str, **changed: Any) -> dict[str, Any]:
    case = next(case for of, case in rivals.cases() if (of, case.variant) == (part, name))
    baselines = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned"), 0.9)
    more = {"base_sha256": "b", "base_top1": 0.9, "test_images": 600, "accuracy": {**baselines, "derived": 0.8}}
    return {**asdict(case), **more, "rate_reached": case.rate + 0.001, **changed}


def test_nuwa_s_numerical_is_found_where_nothing_is_trained_and_there_alone() -> None:
    rows = [row(part, name) for part in ("cut", "distilled") for name in ("forge", "magnitude")]
    text = rivals.section({"rows": dict(enumerate(rows))}, rivals.FASHION)
    cut, distilled = text.split("### Distilled")
    assert '| 6 classes, magnitude (NuWa\'s "numerical") | 80.0 |' in cut and "rival that trains nothing" in cut
    assert "numerical" not in distilled and "| 6 classes, magnitude |" in distilled
    options = {case.variant: (case.method, case.options) for part, case in rivals.cases() if part == "cut"}
    assert options["magnitude"] == ("magnitude", {}), "magnitude as it is by default, as its docstring says"


def section(*rows: dict[str, Any]) -> str:
    return rivals.section({"rows": dict(enumerate(rows))}, rivals.RENDERED)


def test_what_is_trained_is_said_to_be_short_and_with_rules_of_its_own() -> None:
    text = section(*(row("distilled", name) for name in ("forge", "corp", "nvit"))).replace("\n", " ")
    assert "200 steps at one learning rate, 0.0003, which was tuned for none of them" in text and "alike" not in text
    assert "corp and forge warm up for a tenth of the steps" in text
    assert "forge warms up" in section(row("distilled", "forge")) and "none warms" in section(row("labels", "nvit"))
    assert "warm" not in section(row("cut", "forge"))


def test_a_method_that_cuts_more_than_was_asked_is_named() -> None:
    beyond = [row("cut", "dcvit", rate_reached=rivals.RATES[0] + more) for more in (0.007, 0.0065)]
    told = section(*beyond, row("cut", "forge"))
    assert "equal MACs (dcvit cuts up to 0.007 of the base's MACs more): mean" in told.replace("\n", " ")
    assert "equal MACs: mean" in section(row("cut", "forge")).replace("\n", " ")


def test_rows_of_forge_of_another_commit_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(older, "commit_today", lambda: "bbb")
    old, new = ({"versions": {"edgevit": f"0.1.0 ({commit})"}} for commit in ("aaa+", "bbb"))
    told = section(row("cut", "forge", **old), row("cut", "nvit", **new))
    assert "**Forge's rows here are of other code (aaa) than the newest of [Photographs] (bbb).**" in told
    assert "**Some of forge's rows here are" in section(row("cut", "forge", **old), row("cut", "forge", **new))
    assert "of other code" not in section(row("cut", "nvit", **old), row("cut", "forge", **new))
    assert "of other code" not in section(row("cut", "forge"), row("cut", "nvit", **new)), "nothing is known of forge's"


def test_lower_rates_are_run_where_they_are_asked_for() -> None:
    assert {case.rate for _, case in rivals.cases()} == set(rivals.RATES)
    lower = [case for _, case in rivals.cases((4,), rivals.LOWER)]
    assert {case.rate for case in lower} == {0.2, 0.4, 0.6} and {case.shape for case in lower} == {"fused"}
    text = section(*(row("cut", "forge", rate=rate) for rate in (0.9, 0.4)))
    assert "MACs gone | 0.4 | 0.9 |" in text and "0.8 |" not in text, "rates without a row have no column"


@pytest.mark.parametrize("name", MODELS)
def test_every_rival_reaches_the_lower_rates(name: str) -> None:
    network = timm.create_model(base.TIMM_NAME, num_classes=10, **MODELS[name])
    family = family_of(network)
    dims, geometry = [block.dims for block in family.read(network)], family.geometry(network)
    reached = set()
    for part, case in rivals.cases((4,), rivals.LOWER):
        if part == "cut" and case.seed == 42:
            module = load_method(case.method)
            budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=case.rate)
            config = make_config(case.method, module.Config, case.options)
            with suppress(BudgetError):
                module.METHOD.check(config, Asked(network, budget, make_policy(case.shape), 1000))
                reached.add((case.variant, case.rate))
    assert reached == {(variant, rate) for variant in rivals.METHODS for rate in rivals.LOWER}


def test_a_user_s_rows_have_a_title_and_tables_of_their_own() -> None:
    mine = [row(part, name, data="animals", base_top1=None) for part in rivals.PARTS for name in ("forge", "wanda")]
    told = rivals.section({"rows": dict(enumerate(mine))}, rivals.YOURS)
    assert told.startswith("## Rivals on `animals`\n") and "top-1" not in told.partition("|")[0]
    assert "ImageNet" not in told and "| 6 classes, wanda | 80.0 |" in told
    assert rivals.section({"rows": {}}, rivals.YOURS) == ""
