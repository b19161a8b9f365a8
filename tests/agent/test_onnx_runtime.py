"""Which package of ONNX Runtime is installed, told from metadata as pip leaves it."""

import subprocess
import sys

import pytest
from places import ROOT

from edgevit.agent import onnx_runtime
from edgevit.agent.runners import RunnerError
from edgevit.agent.runners.onnxruntime import open_runner


def write_metadata(folder, name, version):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def bare(folder, code):
    """Run code in a Python that has nothing installed but what lies in `folder`."""
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n{code}"
    done = subprocess.run([sys.executable, "-S", "-c", program], text=True, capture_output=True, check=True)
    return done.stdout.strip()


TRY = """
from edgevit.agent import onnx_runtime
from edgevit.agent.runners import RunnerError
try:
    onnx_runtime.import_onnxruntime()
except RunnerError as error:
    print(error)
"""


def test_without_either_the_message_names_both_and_the_extras(tmp_path):
    said = bare(tmp_path, TRY)
    assert said.startswith(f"{sys.executable} cannot import onnxruntime (No module named 'onnxruntime'): neither ")
    assert said.endswith(
        "install onnxruntime (as edgevit[cpu] does), or onnxruntime-gpu (edgevit[gpu]) for an NVIDIA GPU"
    )
    assert "\n" not in said


def test_one_that_is_installed_and_cannot_be_imported_is_to_be_installed_anew(tmp_path):
    write_metadata(tmp_path, "onnxruntime-gpu", "1.22.0")
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libcudart.so.12: cannot open\\nshared object file')")
    said = bare(tmp_path, TRY)
    assert "cannot import onnxruntime (libcudart.so.12: cannot open): onnxruntime-gpu 1.22.0 is installed; `" in said
    assert said.endswith("-m pip install --force-reinstall onnxruntime-gpu`")


def test_what_is_left_when_one_of_two_was_removed_is_not_taken_for_a_runtime(tmp_path):
    write_metadata(tmp_path, "onnxruntime", "1.31.1")
    write_metadata(tmp_path, "onnxruntime-gpu", "1.22.0")
    (tmp_path / "onnxruntime").mkdir()
    said = bare(tmp_path, TRY)
    assert said.startswith(
        f"onnxruntime is not whole in {sys.executable}: onnxruntime 1.31.1 and onnxruntime-gpu 1.22.0 "
    )
    assert "side by side and overwrite one another; `" in said and "uninstall -y onnxruntime onnxruntime-gpu`" in said


def test_a_provider_that_is_missing_says_which_package_is_there(tmp_path, monkeypatch):
    ort = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this ONNX Runtime offers CUDA")
    with (
        pytest.raises(
            RunnerError, match=r"offers .*: onnxruntime \S+ is installed; replace it with onnxruntime-gpu, as"
        ),
        open_runner("any.onnx", 1, provider="cuda"),
    ):
        pass
    monkeypatch.syspath_prepend(write_metadata(tmp_path, "onnxruntime-gpu", "1.22.0"))
    assert onnx_runtime.installed()["onnxruntime-gpu"] == "1.22.0"
    with (
        pytest.raises(
            RunnerError, match=r"onnxruntime-gpu 1.22.0 are installed side by side .* uninstall -y onnxruntime"
        ),
        open_runner("any.onnx", 1, provider="cuda"),
    ):
        pass
