"""trtexec: a script in its place that prints what the real one has printed, and its parser against anything."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standin_board import build, model_for, play

from edgevit.agent import trtexec as module
from edgevit.agent.runners import RunnerError
from edgevit.agent.trtexec import parse_summary, trtexec

# From a user's report (TensorRT 10.2, an x86 GPU), with the banner of the release that JetPack 6 has.
SUMMARY = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v100300] [b30] # /usr/src/tensorrt/bin/trtexec --loadEngine=model.engine
[10/03/2024-10:47:56] [I] === Model Options ===
[10/03/2024-10:47:56] [I] Format: *
[10/03/2024-10:47:59] [I] === Performance summary ===
[10/03/2024-10:47:59] [I] Throughput: 130.298 qps
[10/03/2024-10:47:59] [I] Latency: min = 5.38672 ms, max = 13.3664 ms, mean = 7.60628 ms, median = 7.16092 ms, percentile(90%) = 10.2996 ms, percentile(95%) = 10.8698 ms, percentile(99%) = 12.9675 ms
[10/03/2024-10:47:59] [I] Enqueue Time: min = 2.72876 ms, max = 15.0201 ms, mean = 7.63062 ms, median = 7.86694 ms, percentile(90%) = 10.1792 ms, percentile(95%) = 11.7217 ms, percentile(99%) = 14.1848 ms
[10/03/2024-10:47:59] [I] H2D Latency: min = 0 ms, max = 0 ms, mean = 0 ms, median = 0 ms, percentile(90%) = 0 ms, percentile(95%) = 0 ms, percentile(99%) = 0 ms
[10/03/2024-10:47:59] [I] GPU Compute Time: min = 5.34595 ms, max = 13.3388 ms, mean = 7.58404 ms, median = 7.14139 ms, percentile(90%) = 10.2881 ms, percentile(95%) = 10.8175 ms, percentile(99%) = 12.9485 ms
[10/03/2024-10:47:59] [I] D2H Latency: min = 0.00390625 ms, max = 0.110596 ms, mean = 0.0100141 ms, median = 0.00439453 ms, percentile(90%) = 0.0254517 ms, percentile(95%) = 0.0319824 ms, percentile(99%) = 0.0494995 ms
[10/03/2024-10:47:59] [I] Total Host Walltime: 3.00082 s
[10/03/2024-10:47:59] [I] Total GPU Compute Time: 2.96536 s
[10/03/2024-10:47:59] [W] * Throughput may be bound by Enqueue Time rather than GPU Compute and the GPU may be under-utilized.
&&&& PASSED TensorRT.trtexec [TensorRT v100300] [b30] # /usr/src/tensorrt/bin/trtexec --loadEngine=model.engine
"""  # noqa: E501

OLD_HELP = "  --useCudaGraph  Use CUDA graph ...\n  --streams=N  Instantiate N engines\n"
HELP = "  --useCudaGraph  Use CUDA graph ...\n  --infStreams=N  Instantiate N execution contexts\n"
NEW_HELP = "  --noCudaGraph  Do not use CUDA graph\n  --includeDataTransfers\n  --infStreams=N\n"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Make a board with a trtexec that prints these; return its root and an engine."""

    def make(known: str = HELP, summary: str = SUMMARY, code: int = 0, batches: Any = (1, 4, 8)) -> tuple[str, str]:
        play(monkeypatch, tmp_path / "cache")
        program = tmp_path / "usr/src/tensorrt/bin/trtexec"
        program.parent.mkdir(parents=True)
        (tmp_path / "help").write_text(known)
        (tmp_path / "summary").write_text(summary)
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --help ] && exec cat {tmp_path}/help\ncat {tmp_path}/summary\nexit {code}\n'
        )
        program.chmod(0o755)
        model = model_for("10.3.0", tmp_path, batch=None if batches else 4)
        return str(tmp_path), build(model, batches=batches)["engine"]

    return make


def test_the_summary_is_read_as_it_was_printed() -> None:
    read = parse_summary(SUMMARY)
    assert (read["version"], read["throughput_qps"]) == ("10.3.0", 130.298)
    assert read["latency_ms"] == {
        "min": 5.38672, "max": 13.3664, "mean": 7.60628, "median": 7.16092, "p90": 10.2996, "p95": 10.8698,
        "p99": 12.9675,
    }  # fmt: skip
    assert read["gpu_ms"]["median"] == 7.14139 and read["enqueue_ms"]["mean"] == 7.63062
    assert read["h2d_ms"]["mean"] == 0 and read["d2h_ms"]["max"] == 0.110596
    without = "\n".join(line for line in SUMMARY.splitlines() if "H2D" not in line and "D2H" not in line)
    assert parse_summary(without)["h2d_ms"] is None


@pytest.mark.parametrize(
    ("banner", "version"), [("8502", "8.5.2"), ("8602", "8.6.2"), ("101602", "10.16.2"), ("110100", "11.1.0")]
)
def test_the_version_is_read_from_either_form_of_the_banner(banner: str, version: str) -> None:
    assert parse_summary(SUMMARY.replace("v100300", f"v{banner}"))["version"] == version
    assert parse_summary(SUMMARY.replace("TensorRT v100300", "TensorRT"))["version"] is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Throughput: 130.298 qps", "Throughput: fast", "printed no throughput"),
        ("Throughput: 130.298 qps", "Throughput: 0.00 qps", "printed a throughput of 0; run it again"),
        ("mean = 7.58404 ms", "mean = 0.00 ms", "printed a GPU Compute Time of 0; run it again"),
        ("GPU Compute Time:", "GPU Time:", r"printed no min of 'GPU Compute Time'; this edgevit does not know"),
        ("percentile(99%) = 12.9675 ms", "", r"printed no percentile\(99%\) of 'Latency'"),
        ("H2D Latency: min = 0 ms", "H2D Latency: least = 0 ms", "printed no min of 'H2D Latency'"),
    ],
)
def test_a_summary_of_another_form_is_refused_and_never_zero(old: str, new: str, message: str) -> None:
    assert old in SUMMARY
    with pytest.raises(RunnerError, match=message):
        parse_summary(SUMMARY.replace(old, new))


@given(st.text() | st.lists(st.sampled_from(SUMMARY.splitlines()) | st.text()).map("\n".join))
@example("[I] Throughput: " + "9" * 400 + " qps")
@example(SUMMARY.replace("7.58404", "1e999"))
@example(SUMMARY.replace("5.38672", "٣"))
@example("[I] " * 5000 + "[" * 5000)
def test_no_output_crashes_the_parser(text: str) -> None:
    try:
        read = parse_summary(text)
    except RunnerError as error:
        assert "\n" not in str(error)
    else:
        assert read["throughput_qps"] > 0


@pytest.mark.parametrize(
    ("known", "expected", "absent"),
    [
        (OLD_HELP, ["--useCudaGraph", "--useSpinWait", "--noDataTransfers", "--streams=2"], ["--infStreams=2"]),
        (HELP, ["--useCudaGraph", "--useSpinWait", "--noDataTransfers", "--infStreams=2"], ["--streams=2"]),
        (NEW_HELP, ["--infStreams=2"], ["--useCudaGraph", "--useSpinWait", "--noDataTransfers"]),
    ],
)
def test_each_release_is_asked_for_what_edgevit_measures(
    known: str, expected: list[str], absent: list[str], board: Any
) -> None:
    root, engine = board(known)
    result = trtexec(print, root, engine=engine, batch=4, seconds=1.5, streams=2)
    command = shlex.split(result["command"])
    assert command[0] == f"{root}/usr/src/tensorrt/bin/trtexec"
    assert {f"--loadEngine={engine}", "--duration=1.5", "--shapes=images:4x4x8x8", *expected} <= set(command)
    assert not set(absent) & set(command)
    assert result["gpu_ms"]["mean"] == 7.58404


def test_a_fixed_engine_is_given_no_shapes(board: Any) -> None:
    root, engine = board(batches=None)
    assert "--shapes" not in trtexec(print, root, engine=engine, batch=4, seconds=1)["command"]
    with pytest.raises(RunnerError, match="this engine takes batches of 4, fixed"):
        trtexec(print, root, engine=engine, batch=2, seconds=1)


def test_what_goes_wrong_there_is_one_line(board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunnerError, match=r"no trtexec on this board; `sudo apt install"):
        trtexec(print, str(tmp_path), engine="any", batch=1, seconds=1)
    said = "[10/03/2024-10:47:56] [E] Error[1]: cannot load the engine\n[10/03/2024-10:47:56] [E] second\n"
    root, engine = board(summary=said, code=1)
    with pytest.raises(
        RunnerError, match=r"trtexec failed: Error\[1\]: cannot load the engine; try it there: "
    ) as error:
        trtexec(print, root, engine=engine, batch=4, seconds=1)
    assert "\n" not in str(error.value)
    program = Path(root, "usr/src/tensorrt/bin/trtexec")
    program.write_text(program.read_text().replace(f"cat {root}/summary", "exec sleep 60"))
    monkeypatch.setattr(module, "STARTING_S", 0.2)
    with pytest.raises(RunnerError, match=r"did not end within 0 s"):
        trtexec(print, root, engine=engine, batch=4, seconds=0.1)
    program.write_text("#!/nowhere/sh\n")
    with pytest.raises(RunnerError, match=r"cannot run .*trtexec \(No such file"):
        trtexec(print, root, engine=engine, batch=4, seconds=1)
