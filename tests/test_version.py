"""Records say which edgevit wrote them: the version, and in a checkout of edgevit the commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgevit.version import __version__, commit_of, processor, written_by


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("1")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-qm", "a")
    git(tmp_path, "tag", "v9")
    return tmp_path


def test_a_checkout_is_named_by_its_commit_and_marked_where_files_differ(checkout: Path) -> None:
    short = git(checkout, "rev-parse", "--short", "HEAD").strip()
    assert commit_of(checkout) == short
    (checkout / "a.txt").write_text("2")
    assert commit_of(checkout) == f"{short}+"


def test_a_folder_inside_of_another_checkout_is_none(checkout: Path) -> None:
    (checkout / "site-packages").mkdir()
    assert commit_of(checkout / "site-packages") is None


def test_a_git_hook_does_not_lead_astray(checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> None:
    before = commit_of(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other") / ".git"))
    assert commit_of(checkout) == before is not None


def test_without_git_only_the_version_is_known(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert commit_of(checkout) is None


def test_a_damaged_checkout_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert commit_of(tmp_path) is None


def test_it_begins_with_the_version_and_imports_nothing_heavy() -> None:
    assert written_by().startswith(__version__)
    program = (
        "import sys, edgevit.version as v; v.written_by(); sys.exit('torch' in sys.modules or 'yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_processor_has_a_name_of_one_line() -> None:
    assert processor() and processor() == " ".join(processor().split("\n"))
