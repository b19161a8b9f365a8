"""Which derivations the benchmark at published length does, and its tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import timm
from forks import Program
from safetensors.torch import save_file
from small_models import SWIN_ARGS

import edgevit
from benchmarks import bases, derivations
from benchmarks.derivations import parted
from benchmarks.markdown import picked
from benchmarks.papers import published
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import check_policy_reaches, make_policy
from edgevit.derivation.feasibility import Target
from edgevit.derivation.methods import load_method
from edgevit.derivation.options import make_config
from edgevit.errors import BudgetError
from edgevit.network.network import Network
from edgevit.network.opening import network_without_weights

IMAGES = {
    "demo": {4: 1800, 3: 1350, 2: 900},
    "rendered": {12: 2700, 6: 1350, 18: 4050},
    "fine": {12: 2160, 24: 4320, 36: 6480},
    "fashion": {5: 2700, 3: 1620, 10: 5401},
}
MODELS = {
    "demo": (bases.DEMO_ARGS, len(bases.DEMO_CLASSES)),
    "rendered": (bases.RENDERED_ARGS, 24),
    "fine": (bases.FINE_ARGS, 48),
    "fashion": (bases.FASHION_ARGS, 10),
}
ROOT = Path(__file__).parents[3]
SWIN = "swin_tiny_patch4_window7_224"
ANIMALS = ("ant", "bee", "cat", "dog")
KEEP = ("vulcan", "nuwa", "corp", "wanda", "random")  # every head and block, and the embedding


def row(case: derivations.Case, **changed: Any) -> dict[str, Any]:
    accuracies = dict.fromkeys(("base_full_head", "base_restricted", "base_finetuned"), 0.9)
    return {
        **asdict(case), "base_sha256": "b", "base_top1": 0.9, "accuracy": {**accuracies, "derived": 0.8},
        "validation": {"trained": case.lr, "pruned": None}, "images_seen": case.steps * case.batch_size,
        "test_images": 600, "facts": {}, "blocks": [{"heads": 3}], **changed,
    }  # fmt: skip


def cases(name: str, rows: list[dict[str, Any]] | None = None) -> list[derivations.Case]:
    return list(published.cases(name, list(published.WAYS), published.RATES, 3, IMAGES[name], rows or []))


def test_the_length_is_as_many_passes_over_the_images_as_the_paper_has() -> None:
    # 6250 R^2 + 1250 R steps of 256 images, of a task of 32,500: 39.4 passes at a rate of 0.8.
    assert published.length(0.8, 1800) == round(5000 * 256 / 32_500 * 1800 / 48)
    assert published.length(0.9, 1800) > published.length(0.8, 1800)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(published.TASKS))
def test_every_case_is_another_reaches_its_rate_and_has_options_of_its_method(name: str) -> None:
    found = cases(name)
    assert len({case.key("b") for case in found}) == len(found)
    arguments, outputs = MODELS[name]
    network = Network(timm.create_model(bases.TIMM_NAME, num_classes=outputs, **arguments))
    dims, geometry = list(network.dims), network.geometry
    whole = geometry.macs(dims), geometry.params(dims)
    for case in found:
        module = load_method(case.method)
        assert isinstance(make_config(case.method, module.Config, parted(case.options)[1]), module.Config)
        if case.method in KEEP and not case.options.get("cut_embedding"):
            check_policy_reaches(dims, geometry, make_budget(*whole, rate=case.rate), make_policy(case.shape))


@pytest.mark.parametrize(("name", "beyond"), [("demo", [0.8]), ("rendered", []), ("fine", []), ("fashion", [])])
def test_heart_has_the_rates_that_tokens_and_heads_alone_can_reach(name: str, beyond: list[float]) -> None:
    arguments, outputs = MODELS[name]
    network = Network(timm.create_model(bases.TIMM_NAME, num_classes=outputs, **arguments))
    dims, geometry = list(network.dims), network.geometry
    module, refused = load_method("heart"), set()
    found = [case for case in cases(name) if case.variant == "heart"]
    assert {case.rate for case in found} == {0.8, 0.6, 0.4, 0.2} and {case.shape for case in found} == {"paper"}
    for case in found:
        budget = make_budget(geometry.macs(dims), geometry.params(dims), rate=case.rate)
        config = make_config("heart", module.Config, parted(case.options)[1])
        try:
            module.METHOD.check(config, Target(network, budget, make_policy(case.shape), 1000))
        except BudgetError:
            refused.add(case.rate)
    assert sorted(refused) == beyond
    highest = max({0.8, 0.6} - refused)
    assert published.highest_rates(["heart"], network, outputs, 1000) == {"heart": highest}
    tried = list(published.tuning(name, {"heart": highest}, 400, 4))
    assert {case.rate for case in tried} == {highest} and len(tried) == len(published.LRS)


def test_a_learning_rate_is_chosen_at_the_highest_rate_that_a_method_reaches_on_the_base() -> None:
    names = ["forge", "vulcan", "vulcan, as published", "nuwa, as published"]  # the last trains nothing
    on_swin = published.highest_rates(names, network_without_weights(SWIN), 25, 30_000)
    # Where all heads and blocks stay, `paper` ends before 0.9, and `fused`, which vulcan has below 0.9, before 0.8.
    assert on_swin == {"forge": 0.9, "vulcan": 0.6, "vulcan, as published": 0.8}
    arguments, outputs = MODELS["demo"]
    vit = Network(timm.create_model(bases.TIMM_NAME, num_classes=outputs, **arguments))
    assert published.highest_rates(names, vit, 4, 1800) == dict.fromkeys(on_swin, 0.9)


def test_all_that_trains_for_one_rate_and_task_sees_as_many_images_and_one_net_serves_every_rate() -> None:
    found = [case for case in cases("demo") if case.table == published.FULL]
    for task, images in IMAGES["demo"].items():
        for rate in published.RATES:
            steps = {case.steps for case in found if (case.task, case.rate) == (task, rate) and case.steps}
            assert steps == {published.length(rate, images)}
        assert len({case.supernet_steps for case in found if case.task == task and case.supernet_steps}) == 1
    finetuned = [(case.task, case.seed) for case in found if case.finetune_base]
    assert sorted(finetuned) == [(2, 42), (3, 42), (4, 42), (4, 43), (4, 44)]


def test_the_learning_rate_is_that_of_the_best_run_on_the_validation_part() -> None:
    tried = list(published.tuning("demo", {"forge": 0.9}, 400, 4))
    assert [case.lr for case in tried] == list(published.LRS) and {case.steps for case in tried} == {100}
    rows = [row(case, validation={"trained": 0.5, "pruned": case.lr}) for case in tried]
    assert published.chosen_lr(rows, "demo", "forge") == max(published.LRS)
    assert published.chosen_lr(rows, "rendered", "forge") == published.chosen_lr([], "demo", "forge") == 3e-4
    alike = [row(case, validation={"trained": 0.5, "pruned": min(case.lr, 3e-4)}) for case in tried]
    assert published.chosen_lr(alike[::-1], "demo", "forge") == 3e-4, "of equals the middle one, whichever was first"
    assert {case.lr for case in cases("demo", rows) if case.variant == "forge"} == {max(published.LRS)}


@pytest.mark.parametrize(
    ("best", "beyond"),
    [(1e-3, [3e-3]), (3e-3, [3e-3, 1e-2]), (1e-2, [3e-3, 1e-2]), (1e-4, [3e-5]), (1e-5, [1e-5, 3e-5]), (3e-4, [])],
)
def test_beyond_the_outermost_learning_rate_another_is_tried_while_it_is_the_best(
    best: float, beyond: list[float]
) -> None:
    def tried(rows: list[dict[str, Any]]) -> list[derivations.Case]:
        return list(published.tuning("demo", {"mdp": 0.9}, 400, 4, rows))

    rows: list[dict[str, Any]] = []
    while len(cases := tried(rows)) > len(rows):
        rows = [row(case, validation={"trained": -abs(math.log(case.lr / best)), "pruned": None}) for case in cases]
    assert [case.lr for case in cases] == [*published.LRS, *beyond]
    assert published.chosen_lr(rows, "demo", "mdp") == best


def test_it_is_that_of_the_least_loss_there_where_a_loss_is_told_whatever_few_images_make_of_top1() -> None:
    tried = list(published.tuning("demo", {"corp": 0.9}, 400, 4))
    rows = [
        row(case, validation={"trained": top1, "pruned": None}, facts={"loss_validation_trained": loss})
        for case, top1, loss in zip(tried, (0.93, 0.94, 0.93), (0.06, 0.10, 0.05), strict=True)
    ]
    assert published.chosen_lr(rows, "demo", "corp") == tried[2].lr


def test_tables_show_what_is_there() -> None:
    rows = [row(case) for case in cases("demo") if case.variant in ("forge", "vulcan, as published")]
    told = published.section({"rows": dict(enumerate(rows))})
    assert "| 4 classes, forge | 0.0003, not chosen | 80.0 (80.0 to 80.0) |" in told, "of runs of others none is there"
    assert "| 3 classes, forge | 0.0003, not chosen | 80.0 | 80.0 | 80.0 | 80.0 | 80.0 |" in told
    lengths = [round(part * published.length(0.9, 1800)) for part in (*published.PARTS, 1)]
    assert "| top-1, % | " + " | ".join(f"{steps * 48} images" for steps in lengths) + " |" in told
    assert "| vulcan, as published | 80.0 | 80.0 | 80.0 |" in told and "n = 3" in told
    few = [one for one in rows if one["rate"] == 0.9 and one["task"] == 4 and one["table"] == published.FULL]
    few += [row(case) for case in published.tuning("demo", {"forge": 0.9}, 100, 4)]
    told = published.section({"rows": dict(enumerate(few))})
    assert "| 4 classes, forge | 0.0003 | 80.0 (80.0 to 80.0) |\n" in told, (
        "rates of which there is no row have no column"
    )
    assert published.section(None) == published.section({"rows": {}}) == ""


def test_the_baselines_are_of_the_base_and_of_the_longest_fine_tuning() -> None:
    made = cases("fashion")
    forge = {c.rate: c for c in made if (c.variant, c.task, c.seed, c.table) == ("forge", 5, 42, published.FULL)}
    net = next(c for c in made if (c.variant, c.task, c.seed, c.rate) == ("super-network", 5, 42, 0.6))

    def beside(finetuned: float | None, full_head: float = 0.9) -> dict[str, Any]:
        return {"base_full_head": full_head, "base_restricted": 0.9, "base_finetuned": finetuned, "derived": 0.8}

    rows = [
        row(forge[0.9], accuracy=beside(0.93)), row(forge[0.2], accuracy=beside(0.91)),
        row(net, accuracy=beside(None, full_head=0.99)),
    ]  # fmt: skip
    told = published.section({"rows": dict(enumerate(rows))})
    assert "| 5 classes, 600 test images | 90.0 | 90.0 | 93.0 |" in told


def test_a_model_that_kept_no_attention_is_named() -> None:
    rows = [row(case, blocks=[{"heads": int(case.variant == "forge")}]) for case in cases("fashion") if case.steps]
    told = published.section({"rows": dict(enumerate(r for r in rows if r["variant"] in ("forge", "dcvit")))})
    assert "No attention is left" in told and "all images get one answer: dcvit.\n" in " ".join(told.split(" "))
    assert "No attention" not in published.section({"rows": {"a": rows[0]}})


# In a process of its own: a script forks, and a process in which autograd has run must not.
STARTED = """
import pathlib, sys
from benchmarks import bases
bases.CACHE = pathlib.Path(sys.argv.pop(1))
from benchmarks.papers import published
published.main()
"""


@pytest.fixture
def published_on(image_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Program]:
    """Run the first rows on a user's images of four classes, with this base."""
    images = image_folder(tmp_path / "animals", dict.fromkeys(ANIMALS, 9))

    def run(*base: object, rows: int) -> Program:
        given = ["--method", "forge", "vulcan, as published", "--rates", 0.2, "--seeds", 1, "--rows", rows]
        given += ["--classes", "ant,bee", "--accept-weak-base", "--accept-preprocessing"]
        to = ["--results", tmp_path / "rows.json"]
        program = Program("-c", STARTED, tmp_path, "--data", images, "--base", *base, *given, *to, cwd=ROOT)
        assert program.wait() == 0, program.stderr
        return program

    return run


@pytest.mark.slow
def test_a_swin_of_the_users_is_opened_by_its_name(published_on: Callable[..., Program], tmp_path: Path) -> None:
    weights = tmp_path / "swin.safetensors"
    save_file(timm.create_model(SWIN, num_classes=len(ANIMALS)).state_dict(), weights)
    program = published_on(SWIN, "--checkpoint", weights, rows=0)  # a row of it takes half a minute
    assert "0 cases, 0 to do" in program.stderr
    with pytest.raises(AssertionError, match="no weights at"):
        published_on(SWIN, "--checkpoint", tmp_path / "other.safetensors", rows=0)


@pytest.mark.slow
def test_a_swin_of_the_users_gets_its_first_rows(published_on: Callable[..., Program], tmp_path: Path) -> None:
    args, weights = {**SWIN_ARGS, "num_classes": len(ANIMALS)}, tmp_path / "swin.safetensors"
    save_file(timm.create_model(SWIN, **args).state_dict(), weights)
    edgevit.base(SWIN, checkpoint=weights, model_args=args, base_classes=list(ANIMALS), out=tmp_path / "base")
    program = published_on(tmp_path / "base", rows=2)
    rows = picked(json.loads((tmp_path / "rows.json").read_text())["rows"].values(), table=published.FULL)
    assert [row["variant"] for row in rows] == ["forge", "vulcan, as published"]
    assert all(0.2 <= row["rate_reached"] < 0.4 and len(row["blocks"]) == 2 for row in rows)
    assert "| 2 classes, vulcan, as published | 0.0003" in program.stdout
