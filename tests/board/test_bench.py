"""From a model to runs, through a real agent; with the fake runner where what computes does not matter."""

import hashlib
from datetime import datetime, timezone

import numpy as np
import onnx
import onnxruntime
import pytest
from model_folders import export_of, some_spec, spec_text
from onnx import TensorProto, helper

import edgevit.agent.runners.onnxruntime as runner
from edgevit.agent.runners import RunnerError
from edgevit.board.bench import bench, dated
from edgevit.errors import AgentError, CheckpointError, ExportError, OptionError, UnknownNameError
from edgevit.records.export import ExportedFile
from edgevit.records.model_folder import ModelFolder

pytestmark = pytest.mark.usefixtures("examined_once")
FAST = dict(samples=20, duration_s=0, warmup=2, warmup_seconds=0)


NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SINCE_1970_S = NOW.timestamp() - 400  # how far a board is behind that woke up 400 s ago, without a clock battery


@pytest.mark.parametrize(
    ("created", "ahead_s", "expected"),
    [
        ("2026-11-20T11:58:00+00:00", 1.5, "2026-11-20T11:58:00+00:00"),
        ("1970-01-01T00:05:04+00:00", -SINCE_1970_S, "2026-11-20T11:58:24+00:00"),
        ("2026-11-20T13:58:00+00:00", 7200.0, "2026-11-20T11:58:00+00:00"),
        ("1970-01-01T00:05:04+00:00", 0.5, "2026-11-20T12:00:00+00:00"),  # its clock was set since
        ("2026-11-20T11:58:00+00:00", -SINCE_1970_S, "2026-11-20T12:00:00+00:00"),  # set during the bench
        ("2026-11-20T11:58:00", 0.0, "2026-11-20T12:00:00+00:00"),
        ("yesterday", 0.0, "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T11:58:00+00:00", 1e300, "2026-11-20T12:00:00+00:00"),
    ],
)
def test_a_run_is_dated_by_this_machine_whatever_the_boards_clock_says(created, ahead_s, expected):
    assert dated(created, ahead_s, NOW) == expected


def write_onnx(path, *, shape=("batch", 3, 32, 32), dtype=TensorProto.FLOAT, name="images"):
    """A model that flattens its input and multiplies it by one matrix."""
    width = int(np.prod([size for size in shape[1:] if isinstance(size, int)]))
    weights = helper.make_tensor("w", dtype, [width, 4], np.zeros(width * 4, helper.tensor_dtype_to_np_dtype(dtype)))
    nodes = [helper.make_node("Flatten", [name], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["logits"])]
    inputs = [helper.make_tensor_value_info(name, dtype, shape)]
    outputs = [helper.make_tensor_value_info("logits", dtype, [shape[0], 4])]
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def write_export(folder, *precisions):
    """The part of a model folder that is measured, with any bytes for models."""
    export = ModelFolder(folder).export
    export.path.mkdir(parents=True)
    files = {}
    for precision in precisions:
        content, path = f"weights in {precision}".encode(), export.onnx(precision)
        path.write_bytes(content)
        files[path.name] = ExportedFile(hashlib.sha256(content).hexdigest(), len(content), {})
    export.write_record(export_of(files))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_export(tmp_path / "t1", "fp32", "fp16")


def test_an_onnx_file_is_measured_at_each_batch_size(tmp_path):
    path = write_onnx(tmp_path / "tiny.onnx")
    seen = []
    one, eight = bench(path, batches=(1, 8), threads=1, on_run=seen.append, **FAST).runs
    assert seen == [one, eight]
    assert (one.batch, eight.batch) == (1, 8)
    assert one.label == "tiny"
    assert one.model_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert one.provider == "CPUExecutionProvider"
    assert one.environment["threads"] == "1"
    assert one.environment["onnxruntime"]
    assert one.memory_peak_rss_bytes > 2**20
    assert len(eight.latencies_ns) == 20


def test_memory_of_one_batch_size_is_not_in_the_figures_of_the_next(tmp_path):
    path = write_onnx(tmp_path / "tiny.onnx", shape=("batch", 3, 64, 64))
    large, small = bench(path, batches=(1024, 1), **{**FAST, "samples": 3}).runs
    assert large.memory_peak_rss_bytes - small.memory_peak_rss_bytes > 30 * 2**20


@pytest.mark.quick("1", "10")
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_the_input_has_the_type_that_the_model_declares(tmp_path, dtype):
    (run,) = bench(write_onnx(tmp_path / "tiny.onnx", dtype=dtype), **FAST).runs
    assert len(run.latencies_ns) == 20


def test_a_fixed_batch_must_be_the_one_asked_for(tmp_path):
    path = write_onnx(tmp_path / "tiny.onnx", shape=(4, 3, 32, 32))
    assert bench(path, batches=(4,), **FAST).runs
    with pytest.raises(
        AgentError,
        match=r"at batch 1 on this machine: batch 1 was asked .* fixed batch of 4; try `edgevit export --batch",
    ):
        bench(path, **FAST)


def test_only_the_first_axis_may_be_dynamic(tmp_path):
    path = write_onnx(tmp_path / "tiny.onnx", shape=("batch", 3, 32, "width"))
    with pytest.raises(AgentError, match=r"'images' has the shape \['batch', 3, 32, 'width'\]; only its first"):
        bench(path, **FAST)


def test_a_provider_that_this_machine_lacks_is_an_error(tmp_path):
    path = write_onnx(tmp_path / "tiny.onnx")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime offers CUDA")
    with pytest.raises(
        AgentError, match=r"'cuda' is CUDAExecutionProvider, but .* offers .*: onnxruntime \S+ is i.*onnxruntime-gpu"
    ):
        bench(path, provider="cuda", **FAST)


def test_a_provider_that_falls_back_silently_is_an_error(tmp_path, monkeypatch):
    """As ONNX Runtime's GPU build does on a machine without a driver."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime offers CUDA")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    path = write_onnx(tmp_path / "tiny.onnx")
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(
            RunnerError, match=r"but it runs on CPUExecutionProvider instead: .*; replace it with onnxruntime-gpu"
        ),
        runner.open_runner(str(path), 1, provider="cuda"),
    ):
        pass


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"not a model", "it is no ONNX file, or a part of one"), (b"", "graph")],  # in other words by release
)
def test_a_file_that_is_no_onnx_model_is_an_error(tmp_path, content, told):
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(
        AgentError, match=r"cannot measure .*broken.onnx at batch 1 on this machine: ONNX Runtime cannot load it: .*"
    ) as e:
        bench(path, **FAST)
    assert "\n" not in str(e.value)
    assert told in str(e.value)


@pytest.mark.parametrize("name", ["base.safetensors", "base.pth"])
def test_weights_alone_are_not_measured_and_the_way_to_an_onnx_file_is_told(tmp_path, name):
    (tmp_path / name).write_bytes(b"weights")
    with pytest.raises(
        CheckpointError, match=rf"{name} is not an ONNX file: it holds weights alone; try `edgevit base"
    ):
        bench(tmp_path / name)


def test_a_later_failure_keeps_the_runs_before_it(tmp_path):
    seen = []
    with pytest.raises(AgentError):
        bench(write_onnx(tmp_path / "tiny.onnx", shape=(1, 3, 8, 8)), batches=(1, 2), on_run=seen.append, **FAST)
    assert [run.batch for run in seen] == [1]


def test_a_model_folder_gives_its_export_and_its_name(folder):
    (run,) = bench(folder, runner="fake", **FAST).runs
    assert (run.label, run.model, run.precision) == ("t1", "model.fp32.onnx", "fp32")
    (run,) = bench(folder, runner="fake", precision="fp16", labels=["ours"], options={"latency_ms": 1}, **FAST).runs
    assert (run.label, run.model, run.precision) == ("ours", "model.fp16.onnx", "fp16")


def test_a_gpu_provider_takes_the_fp16_export(folder):
    with pytest.raises(AgentError, match=r"model\.fp16\.onnx at batch 1"):
        bench(folder, provider="tensorrt", **FAST)


def test_a_folder_without_an_export_says_how_to_make_one(tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"has no export/model\.fp32\.onnx: run `edgevit export '/.*'` first"):
        bench(folder)


def test_a_precision_that_was_not_exported_names_those_that_were(tmp_path):
    write_export(tmp_path / "t1", "fp16")
    with pytest.raises(CheckpointError, match=r"model\.fp32\.onnx is missing, and model\.fp16\.onnx is there"):
        bench(tmp_path / "t1")


def test_a_file_that_changed_after_the_export_is_refused(folder):
    path = folder / "export" / "model.fp32.onnx"
    path.write_bytes(b"other weights")
    for model in (folder, path):
        with pytest.raises(CheckpointError, match=r"was altered: its hash is .*; export again"):
            bench(model, runner="fake", **FAST)


def test_the_export_of_another_model_is_refused_and_both_are_named(folder):
    (folder / "model.json").write_text(spec_text(some_spec(), "b" * 64))
    both = rf"export\.json is of other weights \({'a' * 12}\) than {folder} has \({'b' * 12}\)"
    with pytest.raises(ExportError, match=rf"{both}.*; export this one again with `edgevit export {folder}`"):
        bench(folder, runner="fake", **FAST)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"schema": 2, "files": 3}', '{"schema": 2, "files": {"model.fp32.onnx": {}}}', "\xff"]
)
def test_an_export_list_that_cannot_be_read_is_named(folder, text):
    (folder / "export" / "export.json").write_text(text, encoding="latin-1")
    with pytest.raises(ExportError, match=r"export\.json .*; export the model again"):
        bench(folder, runner="fake", **FAST)


@pytest.mark.parametrize("files", [None, {}])
def test_a_file_that_the_export_does_not_list_is_an_incomplete_export(folder, files):
    export = ModelFolder(folder).export
    export.record_file.unlink()
    if files is not None:
        export.write_record(export_of(files))
    with pytest.raises(CheckpointError, match=r"is not listed in .*the export is incomplete"):
        bench(folder, runner="fake", **FAST)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"no model at .*nothing\.onnx: expected a model folder, an ONNX file or an engine"
    ):
        bench(tmp_path / "nothing.onnx")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"runner": "onnxruntim"}, UnknownNameError, "no runner 'onnxruntim'; did you mean 'onnxruntime'"),
        ({"provider": "cudda"}, UnknownNameError, "no provider 'cudda'; did you mean 'cuda'"),
        ({"precision": "fp8"}, UnknownNameError, "no precision 'fp8'; did you mean"),
        (
            {"runner": "fake", "provider": "cpu"},
            OptionError,
            "'fake' has no option 'provider'; its options: latency_ms",
        ),
        ({"options": {"latency_ms": 1}}, OptionError, "'onnxruntime' has no option 'latency_ms'"),
        ({"options": {"provider": "cudda"}}, UnknownNameError, "no provider 'cudda'; did you mean 'cuda'"),
        ({"options": {"transfers": "no"}}, OptionError, "transfers=no is not True or False, as the runner 'onnxrunt"),
        ({"options": {"threads": True}}, OptionError, "threads=True is not a whole number from 1 to 1000"),
        ({"options": {"threads": -1}}, OptionError, "threads=-1 is not a whole number from 1 to 1000"),
        (
            {"runner": "fake", "options": {"latency_ms": -1}},
            OptionError,
            "latency_ms=-1 is not a number of at least 0, as the runner 'fake' takes",
        ),
        ({"batches": ()}, OptionError, "no batch size"),
        ({"batches": (1, 0)}, OptionError, "--batch 0 is not in .1, 100000"),
        ({"threads": 100_000}, OptionError, "--threads 100000 is not in .1, 1000"),
        ({"options": {"threads": 100_000}}, OptionError, "threads=100000 is not a whole number from 1 to 1000"),
        ({"threads": 0}, OptionError, "--threads 0 is not"),
        ({"samples": 0}, OptionError, "--samples 0 is not"),
        ({"samples": 10**12}, OptionError, "--samples 1000000000000 is not in .1, 1000000"),
        ({"duration_s": 1e300}, OptionError, r"--duration 1e\+300 is not in .0, 86400"),
        ({"duration_s": -1.0}, OptionError, "--duration -1 is not"),
        ({"duration_s": float("nan")}, OptionError, "--duration nan is not in .0, 86400"),
        ({"warmup": -1}, OptionError, "--warmup -1 is not"),
    ],
)
def test_a_request_that_makes_no_sense_starts_nothing(folder, monkeypatch, options, error, message):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")  # starting an agent would fail otherwise
    with pytest.raises(error, match=message):
        bench(folder, **options)
