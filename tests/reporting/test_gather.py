"""What is found below folders, and what of it is left out by name."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from some_layers import PROFILE
from some_report import write_everything
from some_runs import DENSE

from edgevit.board.layers import line_of
from edgevit.errors import OptionError, RunsError
from edgevit.jobs.fleet.states import JOB_KIND, JobRecord
from edgevit.records.model_folder import ModelFolder
from edgevit.reporting.gather import gather


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    return write_everything(tmp_path)


def test_models_runs_and_profiles_are_found_and_what_is_broken_is_named(everything: Path) -> None:
    found = gather([everything])
    assert [model.name for model in found.models] == ["base", "t1", "t2"]
    assert (len(found.runs), len(found.profiles)) == (31, 1)
    left = {Path(one.source).relative_to(everything).as_posix(): one.reason for one in found.skipped}
    assert set(left) == {
        "other.jsonl, line 1",
        "runs.jsonl, line 33",
        "runs/spoilt/model.json",
        "runs/t1/history.jsonl, line 21",
    }
    assert left["other.jsonl, line 1"].startswith("schema 99, written by an unknown version; this edgevit reads")
    assert left["runs.jsonl, line 33"].startswith("is not JSON") and len(found.models[1].history) == 20


def test_what_is_given_twice_is_read_once(everything: Path) -> None:
    shutil.copy(everything / "runs.jsonl", everything / "copy.jsonl")
    found = gather([everything, everything / "runs", everything / "runs.jsonl"])
    assert (len(found.models), len(found.runs), len(found.profiles)) == (3, 31, 1)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_a_model_behind_a_link_is_found_and_no_circle_is_walked(
    everything: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    apart = tmp_path_factory.mktemp("apart")
    (apart / "linked").symlink_to(everything / "runs" / "t1")
    (apart / "circle").symlink_to(apart)
    (apart / "nowhere").symlink_to(apart / "gone")
    assert [model.name for model in gather([apart]).models] == ["linked"]
    assert len(gather([apart, everything]).models) == 3, "once, by whichever way"


def test_models_of_one_name_are_told_apart_by_the_folders_above(everything: Path) -> None:
    shutil.copytree(everything / "runs", everything / "again")
    assert [m.name for m in gather([everything]).models if m.name.endswith("t1")] == ["again/t1", "runs/t1"]


def test_a_damaged_record_leaves_the_rest_of_its_model(everything: Path) -> None:
    (everything / "runs/t1/derivation.json").write_text('{"schema": 7}')
    (everything / "runs/t2/export/export.json").write_text("")
    found = gather([everything])
    one, two = found.models[1:]
    assert one.document is not None and one.derivation is None and one.export is not None
    assert two.derivation is not None and two.export is None
    named = [Path(skipped.source).name for skipped in found.skipped]
    assert "derivation.json" in named and "export.json" in named


def test_the_export_of_another_model_is_left_out_and_both_are_named(everything: Path) -> None:
    export = ModelFolder(everything / "runs/t2").export
    record = export.record()
    export.write_record(replace(record, model=replace(record.model, weights_sha256="b" * 64)))
    found = gather([everything])
    assert found.models[2].export is None and not found.models[2].files
    left = [one for one in found.skipped if one.source == str(export.record_file)]
    assert [one.reason.partition(":")[0] for one in left] == [
        f"is of other weights ({'b' * 12}) than {everything / 'runs/t2'} has ({'a' * 12})"
    ]


def test_a_file_of_lines_that_is_not_of_edgevit_is_passed_over_unless_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"hello": 1}\nnot JSON\n')
    (tmp_path / "runs.jsonl").write_text(DENSE.to_json())
    assert gather([tmp_path]).skipped == []
    assert len(gather([tmp_path, tmp_path / "mine.jsonl"]).skipped) == 0  # once seen, as any other file there
    assert len(gather([tmp_path / "mine.jsonl", tmp_path]).skipped) == 2
    (tmp_path / "empty.jsonl").touch()
    assert [one.reason for one in gather([tmp_path / "empty.jsonl", tmp_path]).skipped] == ["holds no run"]


def test_a_run_that_was_cut_off_is_named_also_where_it_is_alone_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(DENSE.to_json())
    for name, line in (("run", DENSE.to_json()), ("layers", line_of(PROFILE)), ("mine", '{"hello": "world"}')):
        (tmp_path / f"{name}.jsonl").write_text(line[:15])
    (tmp_path / "theirs.jsonl").write_text('{"batch": 1}\n{"batch": 2')
    named = [Path(one.source).name for one in gather([tmp_path]).skipped]
    assert named == ["layers.jsonl, line 1", "run.jsonl, line 1"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(DENSE.to_json())
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert len(gather([tmp_path]).runs) == 1
    with pytest.raises(OptionError, match=r"pipe\.jsonl is neither a folder nor a \.jsonl file"):
        gather([tmp_path / "pipe.jsonl"])


def test_a_plan_stands_for_its_folder_and_its_jobs_that_failed_are_told_of(everything: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(f"out: {everything}\n")
    for name, state in (("failed", "failed"), ("done", "done")):
        record = JobRecord(name, "0" * 64, state, "no shape fits", versions={"edgevit": "0.1.0"})  # type: ignore[arg-type]
        (everything / "jobs" / name).mkdir(parents=True)
        (everything / "jobs" / name / "job.json").write_text(JOB_KIND.text(record))
    (everything / "job.json").write_text('{"job": "of another program"}')
    found = gather([plan])
    assert [model.name for model in found.models] == ["base", "t1", "t2"]
    jobs = [(one.source, one.reason) for one in found.skipped if "job" in one.source]
    assert jobs == [(f"{everything / 'jobs' / 'failed' / 'job.json'}, job failed", "failed: no shape fits")]
    plan.write_text("tasks: []\n")
    with pytest.raises(RunsError, match=r"plan\.yaml has no out, the folder of its models"):
        gather([plan])


def test_models_of_a_sweep_whose_folders_are_gone_are_named(everything: Path, tmp_path: Path) -> None:
    shutil.copytree(everything / "runs" / "t1", tmp_path / "r0.5")
    points = [{"folder": name, "rate": rate} for name, rate in (("base", None), ("r0.5", 0.5), ("r0.9", 0.9))]
    (tmp_path / "sweep.json").write_text(json.dumps({"schema": 1, "request": {}, "points": points}))
    told = {one.source.rpartition(", ")[2]: one.reason for one in gather([tmp_path]).skipped}
    assert told["base"] == f"its folder {tmp_path / 'base'} is gone" and "r0.9" in told and "r0.5" not in told
    for of_others in (
        {"points": points},
        {"request": {}, "points": {"folder": "r0.9"}},
        {"request": {}, "points": [1]},
    ):
        (tmp_path / "sweep.json").write_text(json.dumps(of_others))
        assert not any("sweep.json" in one.source for one in gather([tmp_path]).skipped)


def test_what_cannot_be_reported_on_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing to report in .*: no model folder and no run"):
        gather([tmp_path])
    with pytest.raises(OptionError, match=r"no .*missing; give folders of models"):
        gather([tmp_path / "missing"])
    (tmp_path / "x.json").write_text(json.dumps({}))
    with pytest.raises(OptionError, match=r"neither a folder nor a \.jsonl file"):
        gather([tmp_path / "x.json"])
    (tmp_path / "y.jsonl").write_text("{")
    with pytest.raises(OptionError, match=r"nothing to report .*; 1 left out, such as .*y\.jsonl, line 1: \w"):
        gather([tmp_path / "y.jsonl"])
