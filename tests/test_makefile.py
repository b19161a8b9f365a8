"""What `make` says and does before pip runs: real make, with programs that answer as a certain Python would."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from places import ROOT

TOOLS = ("sh", "test", "touch", "rm", "mkdir", "cp", "chmod")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")

# Answers -c as Python {version}; "makes" an environment whose python is itself; and writes down what pip is asked.
STANDIN = """#!/bin/sh
case "$1 $2" in
"-m venv") shift 2; echo "venv $*" >> {log}; mkdir -p .venv/bin; cp {itself} .venv/bin/python ;;
"-m pip") shift 2; echo "pip $*" >> {log}
  case "$*" in *" uv")
    printf '#!/bin/sh\\necho "uv $*" >> {log}\\n{uv}\\n' > .venv/bin/uv; chmod +x .venv/bin/uv ;;
  esac ;;
"-m compileall") ;;
*) exec {real} -c 'import sys; sys.version_info = {version}; sys.modules.update({modules}); exec(sys.argv[1])' "$2" ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def add_python(project, name, version, *, venv=True, uv="true"):
    modules = "" if venv else "ensurepip=None"
    file = project / "bin" / name
    text = STANDIN.format(
        log=project / "log", itself=file, real=sys.executable, version=version, modules=modules, uv=uv
    )
    file.write_text(text)
    file.chmod(0o755)


def make(project, *arguments):
    of_make = ("PYTHON", "PIP_ARGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # these tests may run below make themselves
    environment = {k: v for k, v in os.environ.items() if k not in of_make}
    environment["PATH"] = str(project / "bin")
    command = [shutil.which("make"), ".venv/ready", *arguments]
    return subprocess.run(command, cwd=project, env=environment, text=True, capture_output=True)


@pytest.mark.parametrize(
    ("version", "venv", "said"),
    [
        ((3, 9), True, "edgevit needs Python 3.10 to 3.14, and mypython is 3.9; try: make PYTHON=/path/to/python3.12"),
        ((2, 7), True, "edgevit needs Python 3.10 to 3.14, and mypython is 2.7; try: make PYTHON=/path/to/python3.12"),
        (
            (3, 15),
            True,
            "edgevit needs Python 3.10 to 3.14, and mypython is 3.15; try: make PYTHON=/path/to/python3.12",
        ),
        ((3, 11), False, "mypython has no venv; try: sudo apt install python3.11-venv"),
        (None, True, "there is no mypython; try: make PYTHON=/path/to/python3.12"),
    ],
)
def test_a_given_python_that_does_not_fit_is_refused_before_anything_is_made(project, version, venv, said):
    if version:
        add_python(project, "mypython", version, venv=venv)
    done = make(project, "PYTHON=mypython")
    first, last = done.stderr.splitlines()
    assert (done.returncode, done.stdout, first) == (2, "", said) and last.startswith("make: ***")
    assert not (project / "log").exists() and not (project / ".venv").exists()


def test_without_a_fitting_python_the_guess_says_what_to_do(project):
    add_python(project, "python3", (3, 8))
    add_python(project, "python3.12", (3, 12), venv=False)
    done = make(project)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[0] == (
        "edgevit needs Python 3.10 to 3.14 with venv, and none is on the PATH; "
        "try: sudo apt install python3-venv, or make PYTHON=/path/to/python3.12"
    )


def test_the_guess_takes_a_python_that_fits(project):
    add_python(project, "python3", (3, 8))
    add_python(project, "python3.13", (3, 13))
    done = make(project)
    assert done.returncode == 0, done.stderr
    assert (project / ".venv/bin/python").read_text() == (project / "bin/python3.13").read_text()


def test_installing_says_how_much_it_is_and_what_comes_next(project):
    add_python(project, "mypython", (3, 12))
    done = make(project, "PYTHON=mypython", "PIP_ARGS=--extra-index-url https://example.org/cpu")
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert "about 6 GB" in before and "a few minutes" in before
    assert after == "installed; next: . .venv/bin/activate && edgevit --help"
    made, installer, asked = (project / "log").read_text().splitlines()
    assert made == "venv --clear .venv" and installer.startswith("pip install") and asked.startswith("uv pip install")
    assert asked.endswith("-c constraints.txt --extra-index-url https://example.org/cpu -e .[cpu,test]")
    again = make(project, "PYTHON=mypython")
    assert again.returncode == 0 and len((project / "log").read_text().splitlines()) == 3


def test_where_uv_fails_pip_installs_the_same(project):
    add_python(project, "mypython", (3, 12), uv="exit 2")
    done = make(project, "PYTHON=mypython", "PIP_ARGS=--no-index")
    assert done.returncode == 0, done.stderr
    *_, by_uv, by_pip = (project / "log").read_text().splitlines()
    assert by_uv.startswith("uv pip install") and by_pip.startswith("pip install")
    assert all(asked.endswith("-c constraints.txt --no-index -e .[cpu,test]") for asked in (by_uv, by_pip))


def test_python_3_10_is_not_held_to_versions_that_need_3_11(project):
    add_python(project, "mypython", (3, 10))
    assert make(project, "PYTHON=mypython").returncode == 0
    assert "constraints.txt" not in (project / "log").read_text()


def test_another_version_that_is_given_makes_the_environment_anew(project):
    for minor in (12, 13):
        add_python(project, f"python3.{minor}", (3, minor))
        assert make(project, f"PYTHON=python3.{minor}").returncode == 0
    assert (project / "log").read_text().count("venv --clear .venv") == 2
    assert (project / ".venv/bin/python").read_text() == (project / "bin/python3.13").read_text()
    assert make(project).returncode == 0
    assert (project / "log").read_text().count("-e .[cpu,test]") == 2, "a guess leaves it as it is"


def test_new_requirements_are_installed_into_the_same_environment(project):
    add_python(project, "python3.12", (3, 12))
    assert make(project).returncode == 0
    os.utime(project / "pyproject.toml", (time.time() + 10,) * 2)
    assert make(project).returncode == 0
    assert [line.split()[0] for line in (project / "log").read_text().splitlines()] == ["venv", *("pip", "uv") * 2]
