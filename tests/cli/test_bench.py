import json
import subprocess
import sys

import pytest

from edgevit.report.runs import load_runs

FAST = ["--runner", "fake", "--samples", "20", "--duration", "0"]

# The command alone, so that these tests need no other command; errors are printed as the whole CLI prints them.
PROGRAM = """
import sys, typer
from edgevit.cli import bench
from edgevit.errors import EdgeVitError
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(bench.main)
try:
    app()
except EdgeVitError as error:
    sys.exit(f"error: {error}")
"""


def run_bench(*arguments):
    return subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], text=True, capture_output=True)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "t1.onnx"
    path.write_bytes(b"anything: the fake runner sleeps")
    return path


def test_it_prints_a_row_per_batch_size_and_warnings_on_stderr(model):
    result = run_bench(model, "--batch", 1, "--batch", 8, *FAST)
    assert result.returncode == 0, result.stderr
    assert "t1 on fake" in result.stdout
    for heading in ("p50 ms", "p90 ms", "p99 ms", "images/s", "peak RSS MiB", "load ms", "first ms"):
        assert heading in result.stdout
    assert [line.split()[1] for line in result.stdout.splitlines() if line.startswith("│")] == ["1", "8"]
    assert "warning: batch 1: p99 of 20 samples" in result.stderr
    assert "warning: batch 8: the window lasted" in result.stderr


def test_runs_are_appended_raw(model, tmp_path):
    output = tmp_path / "runs.jsonl"
    for batch in (1, 2):
        assert run_bench(model, "--batch", batch, "--output", output, *FAST).returncode == 0
    assert [run.batch for run in load_runs(output)] == [1, 2]


def test_json_is_all_there_is_on_stdout(model):
    result = run_bench(model, "--json", *FAST)
    answer = json.loads(result.stdout)
    assert answer["runs"][0]["label"] == "t1"
    assert answer["runs"][0]["samples"] == 20
    assert answer["runs"][0]["p50_ms"] >= 2
    assert answer["comparisons"] == []


def test_runs_are_compared_with_earlier_ones(model, tmp_path):
    output = tmp_path / "runs.jsonl"
    run_bench(model, "--output", output, *FAST)
    result = run_bench(model, "--compare", output, *FAST)
    assert result.returncode == 0, result.stderr
    assert "below 1 is faster" in result.stdout


def test_a_comparison_across_environments_is_refused_after_the_runs_are_kept(model, tmp_path):
    earlier, output = tmp_path / "earlier.jsonl", tmp_path / "runs.jsonl"
    run_bench(model, "--output", earlier, *FAST)
    record = json.loads(earlier.read_text())
    record["environment"]["kernel"] = "Linux 1.0"
    earlier.write_text(json.dumps(record))
    result = run_bench(model, "--compare", earlier, "--output", output, *FAST)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: not comparable: kernel was 'Linux 1.0', now ")
    assert "t1 on fake" in result.stdout
    assert len(load_runs(output)) == 1
    forced = run_bench(model, "--compare", earlier, "--force", *FAST)
    assert forced.returncode == 0
    assert "environments differ" in forced.stdout
    assert "warning: environments differ in kernel" in forced.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/nothing"], "error: no model at "),
        (["{folder}"], "error: {folder} has no export/model.fp32.onnx: run `edgevit export {folder}` first"),
        (["{model}", "--runner", "fak"], "error: no runner 'fak'; did you mean 'fake'?"),
        (["{model}", "--provider", "cud"], "error: no provider 'cud'; did you mean 'cuda'"),
        (["{model}", "--batch", "0"], "error: --batch is 0: it must be at least 1"),
        (["{model}"], "error: cannot measure {model} at batch 1: ONNX Runtime cannot load it: "),
        (["{model}", "--output", "{folder}"], "error: cannot write runs to {folder}: Is a directory"),
        (["{model}", "--output", "{folder}/no/runs.jsonl"], "error: cannot write runs to "),
        (["{model}", "--compare", "{folder}/no.jsonl"], "error: cannot read runs from "),
        (["{model}", "--compare", "{model}"], "error: {model}, line 1: not JSON"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(model, tmp_path, arguments, message):
    fill = {"folder": tmp_path, "model": model}
    result = run_bench("--quiet", *(argument.format(**fill) for argument in arguments))
    assert result.returncode == 1
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(message.format(**fill))
    assert result.stdout == ""


def test_a_full_disk_loses_no_figures(model, tmp_path):
    full = tmp_path / "runs.jsonl"
    full.symlink_to("/dev/full")
    result = run_bench(model, "--output", full, *FAST)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert "t1 on fake" in result.stdout
