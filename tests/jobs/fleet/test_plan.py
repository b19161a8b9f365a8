"""The graph of jobs that a plan stands for, and what is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from edgevit.errors import JobsError
from edgevit.jobs.fleet.plan import EXAMPLE, FleetJob, PlanFile, on_host, read_plan
from edgevit.jobs.runners import ALL_WORKERS

ORIN = {"name": "orin", "host": "jetson@orin", "profile": "orin-nx-16gb", "power_modes": ["15W", "25W"]}


def test_each_model_is_exported_and_built_judged_and_measured_on_each_board(fleet_plan: Any) -> None:
    plan = read_plan(fleet_plan(boards=[{"name": "here"}, ORIN], precisions=["fp32", "fp16"]))
    model = "odd-tiny-half-nuwa"
    assert [(job.name, *job.needs) for job in plan.jobs] == [
        (model,),
        (f"{model}.export", model),
        (f"{model}.bench@here.fp32", f"{model}.export"),
        (f"{model}.bench@here.fp16", f"{model}.export"),
        (f"{model}.engine@orin", f"{model}.export"),
        (f"{model}.bench@orin.15W", f"{model}.engine@orin"),
        (f"{model}.bench@orin.25W", f"{model}.engine@orin"),
    ]
    assert [job.place for job in plan.jobs] == ["", "", ALL_WORKERS, ALL_WORKERS, "orin", "orin", "orin"]
    assert {job.model for job in plan.jobs} == {plan.out / model}
    assert plan.jobs[2].gates == ("p99<100s",) and len(plan.jobs[-1].gates) > 1, "a profile has budgets of its own"


def test_the_identity_of_a_job_is_what_its_result_depends_on(fleet_plan: Any) -> None:
    def identities(**changed: Any) -> list[str]:
        return [job.sha256 for job in read_plan(fleet_plan(boards=[{"name": "here"}, ORIN], **changed)).jobs]

    derive, export, here, engine, slow, fast = first = identities()
    assert len({*first}) == len(first)
    assert identities(gates=[], workers=3) == first, "what is judged or how many work at a time changes no result"
    assert identities(bench={"samples": 4})[:2] == [derive, export]
    assert not {*identities(bench={"samples": 4})[2:3]} & {here} and identities(bench={"samples": 4})[3] == engine
    assert identities(export={"opset": 18})[0] == derive
    assert not {*identities(export={"opset": 18})[1:]} & {export, here, engine, slow, fast}
    assert not {*identities(budgets=[{"name": "half", "rate": 0.4}])} & {*first}


@pytest.mark.parametrize(
    ("precisions", "options"),
    [(["fp32"], {"fp16": False}), (["fp16"], {"fp16": True}), (["int8"], {"fp16": True, "precision": "int8"})],
)
def test_files_and_engines_are_of_the_precisions(fleet_plan: Any, precisions: list[str], options: Any) -> None:
    _, export, _, engine, *_ = read_plan(fleet_plan(boards=[{"name": "here"}, ORIN], precisions=precisions)).jobs
    assert export.options == {**options, "accuracy": False} and engine.options.items() >= options.items()


def test_a_budget_is_measured_on_its_board(fleet_plan: Any) -> None:
    budgets = [{"name": "live", "fps": 30, "board": "orin"}, {"name": "half", "rate": 0.5}]
    jobs = {
        job.name: job for job in read_plan(fleet_plan(boards=[ORIN], budgets=budgets)).jobs if job.stage == "derive"
    }
    live, half = jobs["odd-tiny-live-nuwa"], jobs["odd-tiny-half-nuwa"]
    assert (live.place, live.options["board"], half.place, half.options) == ("orin", "jetson@orin", "", {})
    assert live.sha256 != live.derivation.sha256() and half.sha256 == half.derivation.sha256()


def test_several_equal_boards_are_one_place_and_more_of_them_change_no_result(fleet_plan: Any) -> None:
    def jobs(*hosts: str) -> tuple[FleetJob, ...]:
        return read_plan(fleet_plan(boards=[{"name": "orins", "hosts": hosts}])).jobs

    _, _, engine, bench = jobs("orin1", "orin2")
    assert (engine.place, bench.place, bench.hosts) == ("orins", "orins", ("orin1", "orin2"))
    assert on_host(bench, "orin2").options["board"] == "orin2" and on_host(bench, "orin2").sha256 == bench.sha256
    assert [job.sha256 for job in jobs("orin3")][2:] == [engine.sha256, bench.sha256]


def test_parts_are_whole_and_together_they_are_all(fleet_plan: Any) -> None:
    budgets = [{"name": f"b{number}", "rate": number / 10} for number in range(1, 6)]
    plan = read_plan(fleet_plan(budgets=budgets))
    parts = [plan.part((number, 2)) for number in (1, 2)]
    assert sorted(job.name for part in parts for job in part) == sorted(job.name for job in plan.jobs)
    assert [len(part) for part in parts] == [9, 6]
    assert all({*job.needs} <= {one.name for one in part} for part in parts for job in part)
    assert plan.part((7, 7)) == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"bords": []}, "unknown key 'bords'; did you mean 'boards'?"),
        ({"boards": [{"name": "orin", "prfile": "orin"}]}, "'boards.0.prfile'; did you mean 'profile'?"),
        ({"boards": [{"name": "here"}, {"name": "here"}]}, "two boards are named 'here'"),
        ({"boards": [{**ORIN, "profile": "orin-nx-17gb"}]}, "orin-nx-16gb"),
        ({"boards": [{**ORIN, "hosts": ["orin1", "orin2"]}]}, "list each once, leave host out"),
        ({"boards": [{"name": "here", "hosts": ["orin1"]}]}, "which is this machine"),
        ({"boards": [{"name": "orin"}, {"name": "two", "hosts": ["orin3", "orin"]}]}, "'orin' and 'two' are both orin"),
        (
            {"boards": [{**ORIN, "power_modes": ["15W", "15W"]}]},
            "two jobs are named 'odd-tiny-half-nuwa.bench@orin.15W'",
        ),
        (
            {"tasks": [{"name": "a-b"}, {"name": "a"}], "bases": [{"name": "c"}, {"name": "b-c"}]},
            "named 'a-b-c-half-nuwa'",
        ),
        ({"boards": None, "gates": ["p99<8ms"]}, "gates p99<8ms are judged on boards: list one"),
        ({"bench": {"sampels": 3}}, "bench has the unknown option 'sampels'; did you mean 'samples'?"),
        ({"export": {"board": "orin"}}, "export has the unknown option 'board'"),
        ({"gates": ["p98<8ms"]}, "no metric 'p98'"),
        ({"budgets": [{"name": "none"}]}, "budget 'none' is nothing"),
        ({"budgets": [{"name": "b", "ms": 3}]}, "budget 'b' is in ms: name the board"),
        ({"budgets": [{"name": "b", "ms": 3, "board": "hree"}]}, "no board 'hree'; did you mean 'here'?"),
        ({"budgets": [{"name": "b", "rate": 0.5, "board": "here"}]}, "names a board, and is not in ms, mj or fps"),
        ({"tasks": []}, "no tasks; give at least one"),
        ({"prices": {"gpu": -1}}, "prices.gpu"),
        ({"prices": {"tpu": 1}}, "'prices.tpu'"),
        ({"threads": 0}, "threads 0 is less than 1"),
        ({"shape": "fussed"}, "no shape policy 'fussed'; did you mean 'fused'"),
        ({"bases": [{"name": "a", "chekpoint": "x"}]}, "did you mean 'checkpoint'?"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_plan_that_cannot_be_is_refused_in_one_line(fleet_plan: Any, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(JobsError) as refused:
        read_plan(fleet_plan(**changed))
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_the_example_is_a_plan_and_names_every_key_of_its_own() -> None:
    text = EXAMPLE.read_text()
    own = {
        "out",
        "bases",
        "tasks",
        "budgets",
        "methods",
        "precisions",
        "boards",
        "gates",
        "export",
        "bench",
        "workers",
        "prices",
    }
    assert own < {*PlanFile.model_fields}
    assert [key for key in (*own, "threads", "data", "training") if f"{key}:" not in text] == []
