"""Which derivations the benchmark of the papers' ablations does, and its tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks import derivations
from benchmarks.derivations import parted
from benchmarks.papers import ablations, lora_memory
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config

CASES = list(ablations.cases())


def row(case: derivations.Case, derived: float) -> dict[str, Any]:
    baselines = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned"), 0.9)
    return {
        **asdict(case),
        "base_sha256": "b",
        "base_top1": 0.9,
        "test_images": 600,
        "macs": 1,
        "params": 1,
        "embed": 64,
        "blocks": [{"ffn": 16}],
        "worst_class": ["a", derived],
        "facts": {},
        "accuracy": {**baselines, "derived": derived},
    }


def test_every_case_is_another_and_has_options_of_its_method() -> None:
    assert len({case.key("b") for _, case in CASES}) == len(CASES)
    for _, case in CASES:
        module = load_method(case.method)
        assert isinstance(make_config(case.method, module.Config, parted(case.options)[1]), module.Config)


def test_what_is_taken_away_is_one_thing_and_all_else_is_as_in_the_first_row() -> None:
    for part in ablations.PARTS:
        found = [case for name, case in CASES if (name, case.task, case.rate, case.seed) == (part, 6, 0.6, 42)]
        first, *others = map(asdict, found)
        for other in others:
            changed = {name for name in first if name not in ("variant", "options") and other[name] != first[name]}
            changed |= {name for name, value in other["options"].items() if first["options"].get(name) != value}
            both = ({"lora_rank", "lr"},)  # of which each is a row with each
            assert changed in both or len(changed) == 1


def test_the_table_has_points_to_the_first_row_of_the_same_task_and_seed() -> None:
    of = {"vulcan": 0.8, "without the collapse of neurons": 0.3}
    rows = [
        row(case, of[case.variant] + (0.1 if case.task == 6 else 0))
        for part, case in CASES
        if part == "vulcan" and case.variant in of and case.rate == 0.6 and case.seed == 42
    ]
    rows = [one for one in rows if (one["variant"], one["task"]) != ("vulcan", 6)]  # not run: nothing to compare with
    told = ablations.section({"rows": {str(n): one for n, one in enumerate(rows)}})
    assert "| vulcan | 80.0 (80.0 to 80.0) |  |" in told
    assert "| without the collapse of neurons | 33.3 (30.0 to 40.0) | -50.0 (-50.0 to -50.0) |" in told
    assert "rate 0.8" not in told and "NuWa's steps" not in told


def test_a_row_that_took_nothing_away_is_named_with_what_the_rows_tell_of_it() -> None:
    rows = []
    for part, case in CASES:
        if part == "nuwa" and case.seed == 42:
            cut = {"random neurons": 0.1, "without least squares": 0.2}.get(case.variant, 0.0)
            one = row(case, 0.9 - cut * (case.rate > 0.3))
            masks = {} if case.variant == "without purification" else {"anchor_neurons": 1.0}
            rows.append({**one, "facts": masks, "blocks": [{"ffn": 16 if case.rate == 0.3 else 8}]})
    told = " ".join(ablations.section({"rows": dict(enumerate(rows))}).split())
    assert "`without purification` at 0.3, 0.6, 0.8 (n = 9); `random neurons` at 0.3 (n = 3);" in told
    assert "`attention alone` at 0.3 (n = 3). Reason: the masks of `nuwa` drop no neuron" in told
    assert "at 0.3 `nuwa` cuts attention alone, and no FFN" in told and "at 0.6 `nuwa`" not in told
    rows = [{**one, "macs": hash(one["variant"])} for one in rows]
    assert "no evidence" not in ablations.section({"rows": dict(enumerate(rows))}), "with other widths they are"


def test_memory_is_shown_where_rows_tell_it() -> None:
    of = [case for part, case in CASES if (part, case.task, case.rate, case.seed) == ("batch size", 6, 0.6, 42)]
    rows = [row(case, 0.8) for case in of]
    older = ablations.section({"rows": dict(enumerate(rows))})
    assert "MiB" not in older and "Memory is the peak" not in older
    rows[0][ablations.PEAK], rows[1][ablations.PEAK] = 598.2, 618.7
    told = ablations.section({"rows": dict(enumerate(rows))})
    assert "|  | rate 0.6 | points | memory, MiB |" in told and "Memory is the peak" in " ".join(told.split())
    assert "| 6 images | 80.0 |  | 598 |" in told and "| 48 images | 80.0 | +0.0 |  |" in told


def test_lora_is_shown_at_the_learning_rate_that_is_best_on_validation_images() -> None:
    route = [[0, 5.0, 0.5], [200, 2.0, 0.25]]
    rows = []
    for part, case in CASES:
        if (part, case.task, case.rate, case.seed) == ("lora", 6, 0.6, 42):
            validation = {"pruned": 0.9 if case.lr == 1e-3 else 0.5}
            one = {**row(case, 0.8 if case.options["lora_rank"] else 0.85), "validation": validation}
            rows.append({**one, ablations.ROUTE: route, ablations.PEAK: 700.2})
    assert {one["options"]["lora_rank"] for one in rows} == {0, 43, 21, 11}
    told = ablations.section({"rows": dict(enumerate(rows))})
    assert "| 6 classes, whole weights | 0.6 | 0.001 | 90.0 | 85.0 |  | 700 |" in told
    assert "| 6 classes, LoRA, rank a third of the width (43) | 0.6 | 0.001 | 90.0 | 80.0 | -5.0 | 700 |" in told
    assert "| 6 classes, LoRA, rank a twelfth (11), rate 0.6 | collapse | 5 | 2 |" in told and "| step 200 |" in told


def test_a_rank_is_the_same_share_of_a_wider_base() -> None:
    ranks = {case.options["lora_rank"] for part, case in ablations.cases(width=768) if part == "lora"}
    assert ranks == {0, 256, 128, 64}


def test_memory_of_lora_is_shown_as_what_training_adds() -> None:
    assert lora_memory.section(None) == ""
    whole, updates = (count * 4 / 2**20 for count in (lora_memory.WEIGHTS, 256 * lora_memory.SIDES))
    rows = [{"rank": 256, "trained": 37_800_000, "peak_mib": 2000 - whole - updates, "before_mib": 1000},
            {"rank": 0, "trained": lora_memory.WEIGHTS, "peak_mib": 3000 - whole, "before_mib": 1000}]  # fmt: skip
    told = lora_memory.section({"rows": rows})
    assert f"| whole weights | 85.8 | {3000 - whole:.0f} | 2000 |  | 1.67 |" in told
    assert f"| LoRA, rank 256 | 37.8 | {2000 - whole - updates:.0f} | 1000 | 50 % | 1.10 |" in told
