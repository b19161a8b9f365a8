"""Programs of the board, real ones and those of a captured tree."""

import os

import pytest

from edgevit.agent.kernel import find_program, read_text, run_program


@pytest.fixture
def root(tmp_path):
    for path, script in {
        "usr/sbin/nvpmodel": 'echo "NV Power Mode: MODE_30W"; echo "NVPM WARN" >&2',
        "usr/bin/nvpmodel": "echo another",
        "bin/failing": "echo half; exit 3",
        "bin/asking": 'read answer || echo "nobody answers"',
        "bin/slow": "sleep 5",
        "bin/leaving": "sleep 5 & echo done",
        "bin/localised": 'echo "$LC_ALL"',
        "usr/src/tensorrt/bin/trtexec": "echo TensorRT",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / path).chmod(0o755)
    (tmp_path / "bin" / "text").write_text("not a program")
    return str(tmp_path)


def test_programs_are_those_of_the_tree_and_not_of_this_machine(root):
    assert find_program(root, "nvpmodel") == f"{root}/usr/sbin/nvpmodel"
    assert find_program(root, "trtexec") == f"{root}/usr/src/tensorrt/bin/trtexec"
    assert find_program(root, "text") is None
    assert find_program(root, "ls") is None
    assert find_program("/", "ls")


def test_what_a_program_prints_is_returned(root):
    assert run_program(root, "nvpmodel", "-q") == "NV Power Mode: MODE_30W\n"
    assert run_program(root, "asking") == "nobody answers\n"
    assert run_program(root, "localised") == "C\n"


@pytest.mark.parametrize("name", ["absent", "failing", "slow"])
def test_a_program_that_gives_no_answer_is_none(root, name):
    assert run_program(root, name, timeout_s=0.2) is None


def test_a_child_that_a_program_leaves_behind_is_not_waited_for(root):
    assert run_program(root, "leaving", timeout_s=2) == "done\n"


def test_a_driver_that_has_no_value_now_is_no_value(tmp_path):
    os.mkfifo(tmp_path / "temp")
    writer = os.open(tmp_path / "temp", os.O_RDWR)  # as long as it is open and writes nothing, reading says EAGAIN
    try:
        assert read_text(str(tmp_path), "temp") is None
        os.write(writer, b"48468\n")
        assert read_text(str(tmp_path), "temp") == "48468"
    finally:
        os.close(writer)
