"""From a model folder to a gated bench on a board: every command of docs/boards.md, over real SSH.

The far side is a captured Orin NX with the stand-in TensorRT, which runs engines with ONNX Runtime: it shows that the
commands fit together, and nothing of TensorRT, of an Orin or of its speed.
"""

import json
import shlex

import pytest
from places import STANDINS

from edgevit.agent.records import PARTS
from edgevit.board.comparison import load_runs
from edgevit.board.layers import load_profiles
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")
SUMMARY = """\
[I] === Performance summary ===
[I] Throughput: 498.03 qps
[I] Latency: min = 1.9 ms, max = 2.6 ms, mean = 2.0 ms, median = 2.0 ms, percentile(90%) = 2.1 ms, percentile(95%) = 2.2 ms, percentile(99%) = 2.4 ms
[I] Enqueue Time: min = 0.01 ms, max = 0.1 ms, mean = 0.02 ms, median = 0.02 ms, percentile(90%) = 0.03 ms, percentile(95%) = 0.03 ms, percentile(99%) = 0.05 ms
[I] H2D Latency: min = 0 ms, max = 0 ms, mean = 0 ms, median = 0 ms, percentile(90%) = 0 ms, percentile(95%) = 0 ms, percentile(99%) = 0 ms
[I] GPU Compute Time: min = 1.9 ms, max = 2.6 ms, mean = 2.0 ms, median = 2.0 ms, percentile(90%) = 2.1 ms, percentile(95%) = 2.2 ms, percentile(99%) = 2.4 ms
[I] D2H Latency: min = 0 ms, max = 0 ms, mean = 0 ms, median = 0 ms, percentile(90%) = 0 ms, percentile(95%) = 0 ms, percentile(99%) = 0 ms
[I] Total Host Walltime: 3.0 s
&&&& PASSED TensorRT.trtexec [TensorRT v100300]
"""  # noqa: E501


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    from small_models import write_derived

    from edgevit.engines.run import export

    folder = write_derived(tmp_path_factory.mktemp("whole") / "t1", 16, 16, depth=2)
    export(folder, accuracy=False)
    return folder


@pytest.fixture
def orin_nx(sshd, board_tree):
    tree = board_tree("orin-nx-16gb-jetpack6.2")
    trtexec = tree / "usr/src/tensorrt/bin/trtexec"
    trtexec.parent.mkdir(parents=True)
    help_text = "--useCudaGraph --useSpinWait --noDataTransfers"
    ask_mode = f"{tree}/usr/sbin/nvpmodel -q > {tree}/power-mode-of-trtexec"
    trtexec.write_text(
        f'#!/bin/sh\n[ "$1" = --help ] && echo "{help_text}" && exit\n{ask_mode}\ncat <<"EOF"\n{SUMMARY}EOF\n'
    )
    trtexec.chmod(0o755)
    server = sshd(EDGEVIT_BOARD_ROOT=tree, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    server.tree = tree
    server.options = ["--board", server.host, "--ssh-config", server.config]
    return server


@pytest.mark.slow
def test_the_commands_of_the_readme_lead_to_a_gated_bench_and_their_engine_is_refused_on_another_board(
    orin_nx, exported, edgevit_main, tmp_path, image_folder, sshd, board_tree
):
    doctor = edgevit_main("board", orin_nx.host, "--ssh-config", orin_nx.config)
    assert doctor.code == 0, doctor.out + doctor.err
    assert "Orin NX" in doctor.out and "10.3.0" in doctor.out

    missing = edgevit_main("bench", exported, *orin_nx.options, "--quiet")
    assert "has no engine; run `edgevit export" in missing.error

    built = edgevit_main("export", exported, "--trt", "--no-accuracy", *orin_nx.options)
    assert built.code == 0, built.err
    bench = shlex.join(map(str, ("edgevit", "bench", exported, *orin_nx.options)))
    assert built.out.splitlines()[-1] == f"Next: {bench}"
    (record,) = ModelFolder(exported).export.engines()
    assert record.fingerprint.startswith("orin-nx-16gb-l4t36.4.3-trt10.3.0")
    assert record.accuracy.board == record.accuracy.host
    assert record.board.power_mode == "MAXN_SUPER"

    seen = edgevit_main("evaluate", record.path, "--max-images", 30, "--json", *orin_nx.options)
    assert seen.code == 0, seen.err
    assert (json.loads(seen.out)["form"], json.loads(seen.out)["images"]) == ("engine", 30)

    runs = tmp_path / "runs.jsonl"
    gates = ["--gate", "p99<5s", "--gate", "energy<1000J", "--gate", "gpu_p99<5s"]
    shape = ["--batch", 1, "--batch", 8, "--samples", 20, "--duration", 0.5, "--idle", 0.3, "--warmup-seconds", 0]
    mode, more = ["--power-mode", "25W", "--lock-clocks"], ["--cross-check", "--layers", "--output", runs]
    done = edgevit_main("bench", exported, *orin_nx.options, *gates, *shape, *mode, *more)
    assert done.code == 0, done.out + done.err
    told = " ".join(done.out.split())
    assert "where the time goes, profiled, batch 8" in told and "between layers, on the GPU" in told
    assert [found.clock for found in load_profiles(tmp_path / "runs.layers.jsonl")] == ["gpu", "gpu"]
    layers = json.loads(edgevit_main("show", record.path, "--json").out)["layers"]
    assert sum(layer["fused"] for layer in layers) == record.fused == 2
    asked = orin_nx.tree / "power-mode-of-trtexec"
    assert "25W" in asked.read_text(), "trtexec measures the board as the runs did"
    assert done.out.count(" pass ") == 6 and "trtexec on the same engine" in done.out and "498" in done.out
    one, eight = load_runs(runs)
    assert (one.runner, one.precision, one.batch, eight.batch) == ("tensorrt", "fp16", 1, 8)
    assert one.model_sha256 == record.sha256
    assert len(one.gpu_ns) == len(one.latencies_ns) and one.power.total == ("VDD_IN@40",)
    assert one.environment["tensorrt"] == "10.3.0" and one.environment["l4t"] == "36.4.3"

    trtexec = orin_nx.tree / "usr/src/tensorrt/bin/trtexec"
    trtexec.write_text('#!/bin/sh\n[ "$1" = --help ] || { echo "[E] no room"; exit 1; }\n')
    quick = ["--samples", 10, "--duration", 0.2, "--idle", 0.2, "--warmup-seconds", 0]
    streams = edgevit_main("bench", record.path, *orin_nx.options, "--streams", 2, *quick, "--cross-check", "--json")
    assert streams.code == 0 and f"warning: trtexec {record.path.stem}, batch 1: trtexec failed: " in streams.err
    assert [(run["streams"], run["precision"]) for run in json.loads(streams.out)["runs"]] == [(2, record.precision)]

    pictures = image_folder(tmp_path / "pictures", {"a": 3})
    as_used = ["--end-to-end", "--images", pictures, "--period-ms", 50, "--json"]
    used = edgevit_main("bench", exported, *orin_nx.options, *as_used, *quick)
    assert used.code == 0, used.err
    (row,) = json.loads(used.out)["runs"]
    assert row["use"] == "end to end, one per 50 ms" and set(row["parts_ms"]) == set(PARTS)

    compared = edgevit_main("compare", runs, runs)
    assert compared.code == 0 and "cannot be told apart" in compared.out, compared.err

    nano = board_tree("orin-nano-8gb-jetpack6.2.1")
    other = sshd(EDGEVIT_BOARD_ROOT=nano, PYTHONPATH=STANDINS, STANDIN_TENSORRT="10.3.0")
    done = edgevit_main("bench", record.path, "--board", other.host, "--ssh-config", other.config, "--quiet")
    assert "was built for orin-nx-16gb-l4t36.4.3-trt10.3.0" in done.error
    assert "and this is orin-nano-8gb-l4t36.4.4-trt10.3.0" in done.error


@pytest.mark.slow
def test_a_wrong_profile_builds_and_measures_nothing(orin_nx, exported, edgevit_main):
    for command in (["export", exported, "--trt", "--no-accuracy"], ["bench", exported]):
        done = edgevit_main(*command, "--profile", "agx-orin-64gb", "--quiet", *orin_nx.options)
        assert "profile agx-orin-64gb is for" in done.error and "try --profile orin-nx-16gb" in done.error
    assert not list(orin_nx.cache.glob("files/*.engine"))
