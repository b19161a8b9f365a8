"""The papers' claims: against which baselines they are judged, and that nothing is said where no row is."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks import derivations, markdown
from benchmarks.papers import claims, published

WHOLE, RESTRICTED, FINETUNED = 0.85, 0.95, 0.92
RATES = sorted(published.RATES)
AT = RATES.index(0.9) - len(RATES)  # of the rate of most rows, from the end of a line


def row(variant: str, derived: float, seed: int = 42, rate: float = 0.9, **changed: Any) -> markdown.Row:
    case = derivations.Case(published.FULL, 5, rate, seed, variant, "forge", data="fashion")
    accuracies = {"base_full_head": WHOLE, "base_restricted": RESTRICTED, "base_finetuned": None, "derived": derived}
    return {**asdict(case), "base_sha256": "b", "accuracy": accuracies, "blocks": [{"heads": 2}], **changed}


def record(*rows: markdown.Row) -> dict[str, Any]:
    return {"rows": dict(enumerate(rows))}


def told(*rows: markdown.Row) -> str:
    return claims.section([record(*rows)])


def lines_of(text: str, *cells: str) -> list[list[str]]:
    """The lines of the table that have these cells, without the claim itself."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in text.splitlines() if "|" in line]
    return [line for line in lines if set(cells) <= set(line)]


def test_a_claim_is_judged_against_the_paper_s_baseline_and_against_the_restricted_base() -> None:
    text = told(row("vulcan, as published", 0.9), row("vulcan, as published", 0.96, seed=43))
    (theirs,) = lines_of(text, "base, full head (the paper's)", "vulcan, as published")
    (ours,) = lines_of(text, "base, restricted (ours)", "vulcan, as published")
    assert theirs[:1] == ["photographs of clothes, 5 classes"] and theirs[AT] == "+8.0 (+5.0 to +11.0); 2 of 2"
    assert ours[AT] == "-2.0 (-5.0 to +1.0); 1 of 2" and ours.count("no row") == len(RATES) - 1
    assert "There are 1 cases of a base and a rate with rows." in " ".join(text.split())
    assert "above the baseline of the paper in 1 of them, and above the restricted base in 0." in " ".join(text.split())


def test_the_fine_tuned_base_is_that_of_the_same_task_and_seed_which_another_row_has() -> None:
    forge = row("forge", 0.94)
    forge["accuracy"]["base_finetuned"] = FINETUNED
    text = told(forge, row("vulcan, as published", 0.9), row("vulcan, as published", 0.5, seed=43))
    (line,) = lines_of(text, "93.3 % of base, fine-tuned (the paper's)")
    assert line[AT] == f"{100 * (0.9 - 0.933 * FINETUNED):+.1f}; 1 of 1", "no base was fine-tuned with seed 43"


def test_a_slice_is_judged_against_the_base_and_not_against_its_network() -> None:
    network = {"base_full_head": 0.5, "base_restricted": 0.5, "base_finetuned": None, "derived": 0.9}
    text = told(row("forge", 0.94), row("super-network", 0.9, supernet_steps=100, accuracy=network))
    (line,) = lines_of(text, "99.5 % of base, restricted (ours)")
    assert line[AT] == f"{100 * (0.9 - 0.995 * RESTRICTED):+.1f}; 0 of 1"


def test_methods_are_compared_on_what_both_were_run_on_and_one_that_is_blind_says_so() -> None:
    rows = [row("vulcan, as published", 0.9), row("dcvit", 0.2, blocks=[{"heads": 0}]), row("dcvit", 0.2, rate=0.2)]
    rows += [row("vulcan, as published", 0.9, seed=43), row("vulcan, as published", 0.9, task=3)]
    (line,) = lines_of(told(*rows), "dcvit", "vulcan, as published")
    assert line[0] == "photographs of clothes, 5 classes" and line[AT] == "+70.0; 1 of 1, which sees no patch"


def test_without_rows_at_published_length_there_is_no_section() -> None:
    assert claims.section([None, None]) == ""


def test_every_claim_is_of_ways_that_are_run() -> None:
    known = {*published.WAYS, *claims.BASELINES, "WPAC only", "super-network, fine-tuned", "heart"}
    for claim in claims.CLAIMS:
        assert {*claim.ours, claim.theirs} <= known
