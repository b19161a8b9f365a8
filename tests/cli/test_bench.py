import json
import re
from pathlib import Path

import pytest
import typer
from model_folders import derivation_of, some_spec, spec_text
from some_runs import DENSE

from edgevit.agent.records import Run
from edgevit.board.comparison import load_runs
from edgevit.board.request import BenchRequest, Conditions
from edgevit.cli.app import app
from edgevit.cli.bench import next_command, page_command
from edgevit.records.derivation import DERIVATION_KIND
from edgevit.reporting.request import JudgingRequest

pytestmark = pytest.mark.usefixtures("examined_once")
FAST = ["--runner", "fake", "--samples", "20", "--duration", "0", "--warmup-seconds", "0"]


@pytest.fixture
def run_bench(edgevit_main):
    return lambda *arguments: edgevit_main("bench", *arguments)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "t1.onnx"
    path.write_bytes(b"anything: the fake runner sleeps")
    return path


def test_it_prints_a_row_per_batch_size_and_warnings_on_stderr(run_bench, model):
    result = run_bench(model, "--batch", 1, "--batch", 8, *FAST)
    assert result.code == 0, result.err
    assert "t1 on fake" in result.out
    for heading in ("p50 ms", "p90 ms", "p99 ms", "images/s", "peak RSS MiB", "load ms", "first ms"):
        assert heading in result.out
    assert "spread: standard deviation over mean; peak RSS: memory of the process" in result.out
    assert result.out.splitlines()[-1].startswith(f"Next: edgevit bench {model} OTHER")
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("│")] == ["1", "8"]
    assert "warning: batch 1: p99 of 20 samples" in result.err
    assert "warning: batch 8: the window lasted" in result.err


def test_runs_are_appended_raw(run_bench, model, tmp_path):
    output = tmp_path / "runs.jsonl"
    for batch in (1, 2):
        assert run_bench(model, "--batch", batch, "--output", output, *FAST).code == 0
    assert [run.batch for run in load_runs(output)] == [1, 2]


def test_json_is_all_there_is_on_stdout(run_bench, model):
    result = run_bench(model, "--json", *FAST)
    answer = json.loads(result.out)
    assert answer["runs"][0]["label"] == "t1"
    assert answer["runs"][0]["samples"] == 20
    assert answer["runs"][0]["p50_ms"] >= 2
    assert answer["comparisons"] == []


def test_runs_are_compared_with_earlier_ones(run_bench, model, tmp_path):
    output = tmp_path / "runs.jsonl"
    run_bench(model, "--output", output, *FAST)
    result = run_bench(model, "--compare", output, *FAST)
    assert result.code == 0, result.err
    assert "below 1 is better" in result.out


@pytest.mark.slow
def test_a_comparison_across_environments_is_refused_after_the_runs_are_kept(run_bench, model, tmp_path):
    earlier, output = tmp_path / "earlier.jsonl", tmp_path / "runs.jsonl"
    run_bench(model, "--output", earlier, *FAST)
    record = json.loads(earlier.read_text())
    record["environment"]["kernel"] = "Linux 1.0"
    earlier.write_text(json.dumps(record))
    result = run_bench(model, "--compare", earlier, "--output", output, *FAST)
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("error: not comparable: kernel was 'Linux 1.0', now ")
    assert "t1 on fake" in result.out
    assert len(load_runs(output)) == 1
    forced = run_bench(model, "--compare", earlier, "--force", *FAST)
    assert forced.code == 0
    assert "warning: environments differ in kernel" in forced.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/nothing"], "error: no model at "),
        (["{folder}"], "error: {folder} has no export/model.fp32.onnx: run `edgevit export {folder}` first"),
        (["{model}", "--runner", "fak"], "error: no runner 'fak'; did you mean 'fake'?"),
        (["{model}", "--provider", "cud"], "error: no provider 'cud'; did you mean 'cuda'"),
        (["{model}", "--batch", "0"], "error: --batch 0 is not in [1, 100000]"),
        (["{model}"], "error: cannot measure {model} at batch 1 on this machine: ONNX Runtime cannot load it: "),
        (["{model}", "--output", "{folder}"], "error: cannot write runs to {folder}: Is a directory"),
        (["{model}", "--output", "{folder}/no/runs.jsonl"], "error: cannot write runs to "),
        (["{model}", "--compare", "{folder}/no.jsonl"], "error: there is no {folder}/no.jsonl; check the path"),
        (["{model}", "--compare", "{model}"], "error: {model}, line 1 is not JSON"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(run_bench, model, tmp_path, arguments, message):
    fill = {"folder": tmp_path, "model": model}
    result = run_bench("--quiet", *(argument.format(**fill) for argument in arguments))
    assert result.code == 1
    (line,) = result.err.strip().splitlines()
    assert line.startswith(message.format(**fill))
    assert result.out == ""


def test_a_full_disk_loses_no_figures(run_bench, model, tmp_path):
    full = tmp_path / "runs.jsonl"
    full.symlink_to("/dev/full")
    result = run_bench(model, "--output", full, *FAST)
    assert result.code == 1
    assert "No space left on device" in result.err
    assert "t1 on fake" in result.out
    full.unlink()
    again = run_bench(model, "--output", full, *FAST)
    assert again.code == 0 and "nobody has seen its result: collecting that one" in again.err
    rows = [[line for line in told.out.splitlines() if "│" in line] for told in (result, again)]
    assert rows[0] == rows[1] and len(load_runs(full)) == 1
    assert "collecting" not in run_bench(model, "--output", full, *FAST).err and len(load_runs(full)) == 2


@pytest.mark.quick("cut_off1")
@pytest.mark.parametrize("cut_off", [DENSE.to_json()[:40], DENSE.to_json()])
def test_a_run_behind_a_line_that_a_kill_cut_off_has_a_line_of_its_own(run_bench, model, tmp_path, cut_off):
    path = tmp_path / "runs.jsonl"
    path.write_text(cut_off)
    result = run_bench(model, "--output", path, *FAST, "--repeat", 2)
    assert result.code == 0, result.err
    lines = path.read_text().splitlines()
    assert lines[0] == cut_off and [Run.from_json(line).label for line in lines[1:]] == ["t1", "t1"]


@pytest.mark.parametrize("name", ["classes.txt", "classes.layers.txt"])
def test_nothing_is_appended_to_a_file_of_something_else_nor_measured_for_it(run_bench, model, tmp_path, name):
    output, foreign = tmp_path / "classes.txt", tmp_path / name
    foreign.write_text("cat\ndog\n")
    refused = run_bench(model, "--output", output, "--layers", *FAST)
    lines = "profiled layers" if "layers" in name else "runs"
    assert (
        refused.error == f"error: {foreign} is no file of {lines}, so nothing is added to it; choose another --output"
    )
    assert foreign.read_text() == "cat\ndog\n" and refused.out == ""


def test_several_models_are_one_table_of_ratios_to_the_first(run_bench, model, tmp_path):
    other, output = tmp_path / "t2.onnx", tmp_path / "runs.jsonl"
    other.write_bytes(b"anything else")
    gates = ("--gate", "p50>1us", "--gate", "p50<1us")
    result = run_bench(model, other, "--repeat", 2, "--output", output, *gates, *FAST)
    assert result.code == 3, result.err  # one gate fails
    assert "in turns, 2 rounds" in result.out and "ratio to t1" in result.out
    assert "an interval needs 6 rounds: try --repeat 10" in result.out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.out.splitlines() if "│" in line]
    assert [row[:2] for row in rows[:2]] == [["t1", "1"], ["t2", "1"]]
    assert rows[0][4:] == ["", "", ""] and float(rows[1][4]) > 0 and rows[1][5:] == ["-", ""]
    assert [(row[0], row[-1]) for row in rows[2:]] == [("t1", "pass"), ("t2", "pass"), ("t1", "fail"), ("t2", "fail")]
    assert result.out.splitlines()[-1].startswith(f"Next: edgevit compare {output}")
    assert f"One page of it all: edgevit report {output} --gate 'p50>1us' --gate 'p50<1us'\n" in result.out
    assert [(run.label, run.round) for run in load_runs(output)][:2] == [("t1", 1), ("t2", 1)]


def test_runs_that_are_not_kept_name_the_option_that_keeps_them_and_no_file(run_bench, model):
    result = run_bench(model, *FAST)
    assert "These runs are not in a file: --output runs.jsonl writes them to one" in result.out
    assert "edgevit report" not in result.out


def test_the_command_of_a_page_repeats_gates_and_names_the_file_of_layers(tmp_path):
    output = tmp_path / "runs.jsonl"
    request = BenchRequest(models=[tmp_path / "t1.onnx"], conditions=Conditions(layers=True))
    judging = JudgingRequest(gate=["p99<8ms", "energy<40mJ"], output=output)
    gates = "--gate 'p99<8ms' --gate 'energy<40mJ'"
    assert page_command(request, judging).endswith(f"report {output} {tmp_path / 'runs.layers.jsonl'} {gates}")


def test_json_of_several_models_holds_every_ratio(run_bench, model, tmp_path):
    other = tmp_path / "t2.onnx"
    other.write_bytes(b"anything else")
    answer = json.loads(run_bench(model, other, "--json", "--repeat", 6, *FAST, "--option", "latency_ms=1").out)
    assert len(answer["runs"]) == 12
    p50, mean = [c for c in answer["in_turns"] if c["figure"] in ("p50", "mean")]
    assert (p50["before"], p50["after"], mean["rounds"]) == ("t1", "t2", 6)
    assert mean["low"] <= mean["ratio"] <= mean["high"]


def test_models_alternate_on_request_and_the_table_says_so(run_bench, model, tmp_path):
    other, output = tmp_path / "t2.onnx", tmp_path / "runs.jsonl"
    other.write_bytes(b"anything else")
    result = run_bench(
        model, other, "--alternate", "--repeat", 2, "--output", output, *FAST, "--option", "latency_ms=1"
    )
    assert result.code == 0, result.err
    assert "in turns, 2 rounds, alternately" in result.out and "as used" not in result.out
    runs = load_runs(output)
    assert [(run.label, run.round, run.beside) for run in runs[:2]] == [("t1", 1, ("t2",)), ("t2", 1, ("t1",))]
    assert len(runs) == 4 and {run.memory_peak_rss_bytes for run in runs} == {None}


@pytest.mark.slow
def test_tables_say_how_a_model_was_used(run_bench, model, tmp_path):
    other, output, closed = tmp_path / "t2.onnx", tmp_path / "runs.jsonl", tmp_path / "closed.jsonl"
    other.write_bytes(b"anything else")
    paced = run_bench(model, "--period-ms", 5, *FAST, "--gate", "p99<1s", "--output", output)
    assert paced.code == 0, paced.err
    for title in ("t1 on fake, one per 5 ms", "t1 as used: one per 5 ms", "gates, one per 5 ms"):
        assert title in paced.out
    turns = run_bench(model, other, "--repeat", 2, "--period-ms", 5, *FAST)
    assert "in turns, 2 rounds, one per 5 ms" in turns.out, turns.err
    assert all(f"{name} as used: one per 5 ms" in turns.out for name in ("t1", "t2"))
    late = run_bench(model, other, "--repeat", 2, "--period-ms", 5, *FAST, "--option", "latency_ms=8")
    assert re.search(r"warning: t2, batch 1: \d+ of \d+ periods were missed; try a longer one", late.err), late.err
    run_bench(model, *FAST, "--output", closed)
    refused = run_bench(model, *FAST, "--period-ms", 5, "--compare", closed)
    assert refused.code == 1
    assert "not comparable: inferences of t1 were one after another, and of t1 one per 5 ms" in refused.err
    gate = run_bench(model, *FAST, "--period-ms", 5, "--gate", "throughput>1/s", "--quiet")
    assert gate.err.startswith("error: gate throughput>1/s: with --period-ms images per second are given")


def test_a_derived_model_is_to_be_set_against_its_base(tmp_path, monkeypatch):
    model, base = tmp_path / "t1", tmp_path / "base"
    for folder in (model, base):
        folder.mkdir()
    (model / "model.json").write_text(spec_text(some_spec(), "0" * 64))
    edgevit = typer.main.get_command(app)
    typed = [str(model), "--layers", "--board", "orin"]
    context = edgevit.commands["bench"].make_context("bench", typed, parent=edgevit.make_context("edgevit", ["bench"]))
    assert next_command(context, [model], None).startswith(f"Next: edgevit bench {model} OTHER"), "it may be a base"
    (model / "derivation.json").write_text(DERIVATION_KIND.text(derivation_of(None)))
    both = f"edgevit bench {base} {model} --board orin --layers sets it against its base"
    assert next_command(context, [model], None).startswith(
        f"Next: edgevit base vit_tiny_patch16_224 --out {base}, with"
    )
    assert f"then {both}" in next_command(context, [model], None)
    (base / "model.json").write_text(spec_text(some_spec(), "0" * 64))
    assert next_command(context, [model], None).startswith(f"Next: {both}")
    monkeypatch.chdir(model)
    here = next_command(context, [Path(".")], None)
    assert here.startswith(f"Next: edgevit bench {base} . --board orin"), "given from within its folder"
