"""Figures in docs/which-method.md are those of the records."""

from __future__ import annotations

from statistics import mean

import pytest
from places import ROOT

from benchmarks.derivations import STEPS
from benchmarks.markdown import Row, derived, load, of_newest_base, picked
from benchmarks.papers import published

PAGE = " ".join((ROOT / "docs" / "which-method.md").read_text().split())


def rows(name: str) -> list[Row]:
    record = load(name)
    assert record is not None
    found = record["rows"]
    return of_newest_base(found.values()) if isinstance(found, dict) else found


def between(first: str, last: str) -> str:
    return PAGE[PAGE.index(first) : PAGE.index(last)]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("accuracy_fashion", "photographs of clothes (Fashion-MNIST)"),
        ("accuracy_fine", "48 finer rendered classes"),
        ("accuracy", "24 rendered classes"),
    ],
)
def test_what_forge_loses_is_what_the_records_say(name: str, title: str) -> None:
    cells = []
    for rate in (0.9, 0.95):
        for steps in (0, STEPS):
            found = [row["accuracy"] for row in picked(rows(name), rate=rate, steps=steps, options={})]
            assert len(found) == 9, "three tasks, three seeds"
            lost = mean(100 * (one["base_restricted"] - one["derived"]) for one in found)
            cells.append(f"{round(lost, 1) + 0.0:.1f}")
    assert f"| {title} | {' | '.join(cells)} |" in PAGE


def test_what_rivals_have_at_published_length_is_what_the_records_say() -> None:
    section = between("On photographs of five kinds of clothes", "These runs are of several commits")
    full = picked(rows("published_fashion"), table=published.FULL, rate=published.PUBLISHED_RATE)
    names = {
        "forge": ["forge"], "NuWa": ["nuwa, fine-tuned"],
        "`corp`, `wanda` and Vulcan": ["corp", "wanda", "vulcan + teacher"],
        "`mdp` and `random`": ["mdp", "random"], "`nvit`": ["nvit"], "`taylor`": ["taylor"],
        "`torch_pruning` and `magnitude` of all dimensions": ["torch-pruning", "magnitude, all dimensions"],
        "As published, Vulcan has": ["vulcan, as published"], "and NuWa": ["nuwa, as published"],
    }  # fmt: skip
    for text, variants in names.items():
        for variant in variants:
            found = picked(full, task=5, variant=variant)
            assert len(found) == 3 and f"{text} {100 * mean(derived(found)):.1f}" in section, variant
    single = {
        "NuWa has": (3, "nuwa, fine-tuned"), "forge": (3, "forge"),
        "ten forge has": (10, "forge"), "`random`": (10, "random"), "and NuWa": (10, "nuwa, fine-tuned"),
    }  # fmt: skip
    for text, (task, variant) in single.items():
        (found,) = picked(full, task=task, variant=variant)
        assert f"{text} {100 * found['accuracy']['derived']:.1f}" in section, variant
    closed = picked(rows("accuracy_fashion"), task=5, rate=0.9, steps=0, options={})
    assert f"nothing trained, has {100 * mean(derived(closed)):.1f}, too" in section


def test_what_a_better_base_adds_is_what_the_record_says() -> None:
    of = {name: 100 * mean(derived(picked(rows("transfer"), variant=name))) for name in ("forge", "forge, better base")}
    assert f"{of['forge']:.1f} % top-1 without this and {of['forge, better base']:.1f} % with it" in PAGE


def test_latency_on_gpus_is_what_the_records_say() -> None:
    section = between("Fewer MACs need not be fewer milliseconds", "`--ms` measures before it chooses")
    graphs = [row for row in rows("axes") if (row.get("asked"), row["model"]) == ("graphs, cuda, fp16", "deit_tiny")]
    share = {row["axis"]: f"{row['ratio']:.2f}" for row in graphs if (row["rate"], row.get("batch")) == (0.8, 1)}
    assert f"takes {share['widths']} of its time if they went from widths" in section
    assert f"and {share['depth']} if whole blocks went" in section
    depth = picked(rows("efficiency"), part="depth")
    (alone,), (many,) = (picked(depth, batch=batch, of=[0.8]) for batch in (1, 64))
    (base,) = picked(depth, batch=1, of=[])
    assert 0.95 < alone["ratio"] < 1 and alone["p50_ms"] > base["p50_ms"], "turns and medians do not agree"
    assert f"is no faster than its base on one image, and takes {many['ratio']:.2f} of its time on 64" in section
