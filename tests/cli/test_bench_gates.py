"""What a CI job sees of a bench: gates, their table, and the exit code; on captured boards, with the fake runner."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("examined_once")
FAST = ["--runner", "fake", "--samples", 20, "--duration", 0.3, "--idle", 0.2, "--warmup-seconds", 0]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "t1.onnx"
    path.write_bytes(b"anything: the fake runner sleeps")
    return path


@pytest.fixture
def orin_nx(board_tree, monkeypatch):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tree))
    return tree


def test_gates_that_hold_are_shown_with_their_margin(orin_nx, model, edgevit_main):
    done = edgevit_main("bench", model, "--gate", "p50<1s", "--gate", "energy<4J", "--gate", "power>1W", *FAST)
    assert done.code == 0, done.err
    rows = {line.split("│")[1].strip(): line for line in done.out.splitlines() if "pass" in line}
    assert set(rows) == {"p50<1s", "energy<4J", "power>1W"}
    assert "+695.6%" in rows["power>1W"]  # 7.96 W against 1 W


def test_a_gate_that_fails_is_exit_code_3_and_everything_is_shown(orin_nx, model, edgevit_main, tmp_path):
    output = tmp_path / "runs.jsonl"
    done = edgevit_main("bench", model, "--gate", "p50<1us", "--gate", "p50<1s", "--output", output, *FAST)
    assert done.code == 3
    assert " fail " in done.out and " pass " in done.out
    assert len(output.read_text().splitlines()) == 1


def test_a_board_that_held_itself_back_voids_the_run(orin_nx, model, edgevit_main):
    device = orin_nx / "sys/class/thermal/cooling_device99"
    device.mkdir()
    (device / "type").write_text("gpu-throttle-alert\n")
    (device / "cur_state").write_text("1\n")
    done = edgevit_main("bench", model, "--gate", "p50<1us", *FAST)
    assert done.code == 4
    assert "VOID: the board held itself back (gpu-throttle-alert at step 1)" in done.err
    assert " void" in done.out and " fail " not in done.out
    assert edgevit_main("bench", model, *FAST).code == 4, "also without a gate"


def test_the_budgets_of_a_profile_are_gates(orin_nx, model, edgevit_main):
    done = edgevit_main("bench", model, "--profile", "orin-nx-16gb", "--json", *FAST)
    answer = json.loads(done.out)
    assert answer["profile"] == "orin-nx-16gb"
    sources = {verdict["gate"]["source"] for verdict in answer["gates"]}
    assert sources == {"profile orin-nx-16gb"}
    assert done.code == (3 if any(verdict["state"] == "fail" for verdict in answer["gates"]) else 0)


def test_the_same_figures_reach_the_machine_that_reads_json(orin_nx, model, edgevit_main):
    answer = json.loads(edgevit_main("bench", model, "--gate", "energy@1<4J", "--json", *FAST).out)
    (run,) = answer["runs"]
    assert run["power_w"] == pytest.approx(7.956, abs=1e-3) and run["rails"] == ["VDD_IN@40"]
    assert answer["gates"][0]["value"] == pytest.approx(run["energy_mj"] / 1e3)
    assert answer["changed"]["power_mode"] == "MAXN_SUPER"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gate", "p99"], "error: gate 'p99' is not of the form METRIC<VALUE"),
        (["--gate", "p99<8"], "error: gate 'p99<8': the unit is missing; try 'p99<8ms'"),
        (["--gate", "p98<8ms"], "error: gate 'p98<8ms': no metric 'p98'; did you mean 'p9"),
        (["--gate", "p99@8<8ms"], "error: gate p99@8<8ms is about batch 8, and 1 are measured; add --batch 8"),
        (["--gate", "gpu_p99<8ms"], "error: gate gpu_p99<8ms: gpu_p99 cannot be measured there"),
    ],
)
def test_a_gate_that_cannot_be_judged_is_refused_before_anything_is_measured(
    orin_nx, model, edgevit_main, tmp_path, arguments, message
):
    output = tmp_path / "runs.jsonl"
    done = edgevit_main("bench", model, "--output", output, "--quiet", *arguments, *FAST)
    assert done.error.startswith(message), done.err
    assert not output.exists() or not output.read_text()


def test_an_energy_gate_needs_a_machine_that_tells_power(model, edgevit_main, board_tree, monkeypatch):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    (tree / "usr/bin/tegrastats").unlink()
    for folder in tree.glob("sys/bus/i2c/drivers/ina3221/*"):
        folder.rename(folder.with_name("gone"))
    monkeypatch.setenv("EDGEVIT_BOARD_ROOT", str(tree))
    done = edgevit_main("bench", model, "--gate", "energy<40mJ", "--quiet", *FAST)
    assert "energy cannot be measured there: it takes power sensors" in done.error
