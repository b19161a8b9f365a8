"""Plans: what they may hold, and that whatever is wrong with one is a line before any job starts."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from small_base import ARGS

from edgevit.errors import JobsError
from edgevit.jobs import jobs_file
from edgevit.jobs.jobs_file import (
    BUDGET_KEYS,
    EXAMPLE,
    METHOD_KEYS,
    OWN_KEYS,
    PLACE_KEYS,
    TASK_KEYS,
    DeriveJob,
    JobsFile,
    read_jobs,
    tasks_side_by_side,
)  # fmt: skip
from edgevit.jobs.many import derive_many
from edgevit.latency.request import MeetRequest
from edgevit.request import options_of
from edgevit.train.settings import Training


def test_as_many_tasks_are_worked_on_as_there_are_workers_and_each_begins_with_one_job(plan: Any) -> None:
    budgets = [{"name": name, "rate": rate} for name, rate in (("half", 0.5), ("less", 0.6))]
    tasks = [{"name": name, "classes": "3,7"} for name in "abc"]
    jobs, _ = read_jobs(plan(budgets=budgets, tasks=tasks, workers=2))
    order = ["a-half", "b-half", "a-less", "b-less", "c-half", "c-less"]
    assert [job.name.removesuffix("-nuwa") for job in jobs] == order
    alone = [job.name.removesuffix("-nuwa") for job in tasks_side_by_side(jobs, 1)]
    assert alone == ["a-half", "a-less", "b-half", "b-less", "c-half", "c-less"]


def test_jobs_say_what_is_asked_for(plan: Any) -> None:
    jobs, _ = read_jobs(plan(budgets=[{"name": "half", "rate": 0.5}, {"name": "tenth", "params": "300k"}], workers=2))
    assert len({job.sha256() for job in jobs}) == 4
    assert jobs[0].arguments["method"] == "nuwa" and jobs[2].arguments["params"] == "300k"


def test_a_job_that_was_done_without_options_that_only_let_it_go_on_is_done(plan: Any) -> None:
    def job(**given: Any) -> DeriveJob:
        return read_jobs(plan(accept_weak_base=None, **given))[0][0]

    strict, lenient = job(), job(skip_bad_images=True, accept_preprocessing=True)
    assert strict.sha256() != lenient.sha256() and lenient.hashes() > {strict.sha256(), lenient.sha256()}
    assert job(skip_bad_images=True).sha256() in lenient.hashes()
    assert strict.hashes() == {strict.sha256()}, "done with them it may be of fewer images"
    assert job(shape="free").sha256() not in lenient.hashes()


JOB = {"name": "one", "task": "odd", "budget": "half", "method": "nuwa"}


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"board": "orin"}, JobsError, "board says how models are measured; derive-many measures nothing"),
        ({"tsks": []}, JobsError, r"jobs.yaml has the unknown key 'tsks'; did you mean 'tasks'"),
        ({"budgets": [{"name": "x", "rat": 0.5}]}, JobsError, r"the unknown key 'budgets.0.rat'; did you mean 'rate'"),
        ({"base": None}, JobsError, r"jobs.yaml lacks base; `edgevit derive-many --example` prints"),
        ({"workers": "two"}, JobsError, "has 'two' as workers, expected a valid integer"),
        ({"tasks": [{"name": "a"}, {"name": "a"}]}, JobsError, "two tasks are named 'a'"),
        ({"jobs": [JOB, JOB]}, JobsError, "two jobs are named 'one'"),
        (
            {"jobs": [{**JOB, "out": "x/y"}, {**JOB, "name": "two", "out": "x/../x/y"}]},
            JobsError,
            "jobs 'one' and 'two' both write x/y",
        ),
        ({"jobs": [{**JOB, "task": "od"}]}, JobsError, "the file of job 'one' has no task 'od'; did you mean 'odd'"),
        ({"data": None}, JobsError, "task 'odd' has no data"),
        ({"training": {"stps": 3}}, JobsError, "no training setting 'stps'; did you mean 'steps'"),
        ({"methods": []}, JobsError, "no methods; give at least one"),
        ({"methods": [{"name": "nuwaa"}]}, JobsError, "did you mean 'nuwa'"),
        ({"methods": [{"name": "nuwa", "options": {"purificaton": "none"}}]}, JobsError, "'purification'"),
        ({"budgets": [{"name": "x", "rate": 0.5, "macs": "3G"}]}, JobsError, "budget 'x' is rate and macs; give one"),
        ({"budgets": [{"name": "x"}]}, JobsError, "budget 'x' is nothing; give one of rate"),
        (
            {"budgets": [{"name": "x", "fps": 30}]},
            JobsError,
            "budget 'x' is in fps, and has no cost_table",
        ),
        ({"budgets": [{"name": "x", "rate": 1.5}]}, JobsError, r"budget 'x': rate 1.5 is not in \(0, 1\)"),
        ({"training": {"lr": "fast"}}, JobsError, "has 'fast' as training.lr, expected a valid number"),
        ({"training": {"lr": 0}}, JobsError, r"--lr 0 is not in \(0, 1\]"),
        ({"training": {"steps": "3"}}, JobsError, "has '3' as training.steps"),
        ({"training": {"precision": "fp8"}}, JobsError, "has 'fp8' as training.precision, expected 'fp32', 'bf16'"),
        ({"methods": [{"name": "nuwa", "training": {"lr": []}}]}, JobsError, "has a list as training.lr"),
        (
            {"methods": [{"name": "nuwa", "options": {"steps": 0}}]},
            JobsError,
            "steps of method 'nuwa' belongs under training: move it there",
        ),
        (
            {"methods": [{"name": "nuwa", "training": {"purification": "none"}}]},
            JobsError,
            "purification of method 'nuwa' belongs under options: move it there",
        ),
        ({"model_args": {**ARGS, "depth": date(2020, 1, 1)}}, JobsError, "has 2020-01-01 as model_args.depth, a date"),
        ({"preprocessing": {"mean": date(2020, 1, 1)}}, JobsError, "as preprocessing.mean, a date: put it in quotes"),
        (
            {"tasks": [{"name": "../../esc"}]},
            JobsError,
            "'../../esc', one of the tasks, cannot be the name",
        ),
        ({"budgets": [{"name": "a/b", "rate": 0.5}]}, JobsError, "'a/b', one of the budgets, cannot be the name"),
        ({"methods": [{"name": "/", "method": "nuwa"}]}, JobsError, "'/', one of the methods, cannot be the name"),
        ({"jobs": [{**JOB, "name": ".."}]}, JobsError, "'..', one of the jobs, cannot be the name of a folder"),
        ({"jobs": [{**JOB, "name": "jobs"}]}, JobsError, "'jobs', one of the jobs, cannot be the name of a folder"),
        ({"tasks": [{"name": "a\nb"}]}, JobsError, r"'a\\nb', one of the tasks, cannot be the name of a folder"),
        ({"out": "a\0b"}, JobsError, "has a zero byte in out"),
        ({"checkpoint": "x" * 5000, "shape": "round"}, JobsError, "no shape policy 'round'"),
        (
            {"jobs": [{**JOB, "out": "x"}, {**JOB, "name": "two", "out": "x.partial"}]},
            JobsError,
            "jobs 'one' and 'two' both write x; give each its own folder",
        ),
        (
            {"jobs": [{**JOB, "out": "x"}, {**JOB, "name": "two", "out": "x/y"}]},
            JobsError,
            "jobs 'one' and 'two' both write x; give each its own folder",
        ),
    ],
)
def test_a_bad_plan_is_refused_in_one_line_before_any_job_starts(
    plan: Any, tmp_path: Path, changed: Any, error: Any, told: str
) -> None:
    with pytest.raises(error, match=told) as seen:
        derive_many(plan(**changed))
    assert "\n" not in str(seen.value) and [file.name for file in tmp_path.iterdir()] == ["jobs.yaml"]
    assert error is not JobsError or str(tmp_path / "jobs.yaml") in str(seen.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"tasks: [", "is not YAML"),
        (b"", "has nothing, expected an object"),
        (b"- a", "has a list, expected an object"),
        ("out: K\u00f6ln".encode("latin-1"), "is not text in UTF-8"),
        (bytes(range(256)), "is not text in UTF-8"),
        (b"a: " + b"[" * 600 + b"]" * 5000, "is nested too deeply"),
        (b"base: vit\nout: a\nout: b", "the key 'out' is there twice"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_in_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "jobs.yaml").write_bytes(content)
    with pytest.raises(JobsError, match=told) as seen:
        read_jobs(tmp_path / "jobs.yaml")
    assert "\n" not in str(seen.value)
    with pytest.raises(JobsError, match="there is no"):
        read_jobs(tmp_path / "none.yaml")


def test_a_learning_rate_may_be_written_as_in_python(plan: Any, tmp_path: Path) -> None:
    file = plan()
    file.write_text(file.read_text().replace("lr: 0.001", "lr: 1e-4"))
    assert read_jobs(file)[0][0].arguments["training"]["lr"] == 1e-4


def test_the_example_is_printed_reads_as_a_plan_and_has_every_key(tmp_path: Path, edgevit_main: Any) -> None:
    printed = edgevit_main("derive-many", "--example")
    assert printed.code == 0 and printed.out == EXAMPLE.read_text()
    (tmp_path / "jobs.yaml").write_text(printed.out)
    jobs, _ = read_jobs(tmp_path / "jobs.yaml")
    assert len(jobs) == 8 and jobs[0].out == "fleet/birds-small-closed"
    records = (jobs_file.JobsFile, jobs_file.TaskEntry, jobs_file.BudgetEntry, jobs_file.MethodEntry)
    keys = {name for record in records for name in record.model_fields} | {f.name for f in fields(Training)}
    assert [key for key in keys if not re.search(rf"\b{key}:", printed.out)] == []
    # What is commented out shows the defaults; all of them together are a plan, too.
    whole = re.sub(r"(?m)^( *)# ([a-z_]+:|  - |- )", r"\1\2", printed.out)
    (tmp_path / "jobs.yaml").write_text(whole)
    jobs, full = read_jobs(tmp_path / "jobs.yaml")
    assert [job.out for job in jobs] == ["models/birds"]
    defaults = {name: f.default for name, f in jobs_file.JobsFile.model_fields.items() if not f.is_required()}
    assert {n: getattr(full, n) for n in defaults if n not in ("jobs", "training", "data", "checkpoint")} == {
        n: v for n, v in defaults.items() if n not in ("jobs", "training", "data", "checkpoint")
    }
    assert Training(**jobs[0].arguments["training"]) == Training()


def test_a_super_network_is_there_for_the_method_that_slices_one_and_for_no_other(plan: Any, tmp_path: Path) -> None:
    asked = plan(methods=[{"name": "slices", "method": "skd"}])
    with pytest.raises(JobsError, match=r"jobs\.yaml: method 'slices' slices a super-network, and has none: name its"):
        read_jobs(asked)
    with pytest.raises(JobsError, match=r"jobs\.yaml: method 'nuwa' slices no super-network, as skd does; leave net"):
        read_jobs(plan(methods=[{"name": "nuwa", "supernet": "net"}]))
    net = tmp_path / "net"
    net.mkdir()
    (net / "supernet.json").write_text("{}")
    assert read_jobs(plan(base=str(net), methods=[{"name": "skd"}]))


def test_a_file_of_other_content_makes_another_job(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("3, 7")
    asked = plan(tasks=[{"name": "odd", "classes": str(tmp_path / "odd.txt")}], checkpoint=str(tmp_path / "none"))
    before = read_jobs(asked)[0][0].sha256()
    assert read_jobs(asked)[0][0].sha256() == before
    (tmp_path / "odd.txt").write_text("3, 7, 9")
    assert read_jobs(asked)[0][0].sha256() != before


def test_other_weights_in_the_folder_of_the_base_make_another_job(plan: Any, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    methods = [{"name": "nuwa"}, {"name": "skd", "supernet": str(tmp_path / "net")}]
    asked = plan(base=str(tmp_path / "b"), methods=methods)
    seen = [job.sha256() for job in read_jobs(asked)[0]]
    for folder in ("b", "net"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "model.safetensors").write_text("other")
        before, seen = seen, [job.sha256() for job in read_jobs(asked)[0]]
        assert [one != other for one, other in zip(before, seen, strict=True)].count(True) == len(seen) / 2


def test_what_a_plan_lacks_of_the_options_of_derive_is_what_says_where_models_are_measured() -> None:
    known = {*JobsFile.model_fields, *TASK_KEYS, *BUDGET_KEYS, *METHOD_KEYS, *OWN_KEYS}
    lacking = {asked.field for asked in options_of(MeetRequest) if asked.path[0] not in known}
    assert lacking | {"board"} == PLACE_KEYS
