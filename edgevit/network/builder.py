"""A base that a function in a Python file of the user builds: FILE.py:FUNCTION.

A model folder of a network with a head of the user's keeps that file. To open it is to run the file, so that is done
only on a machine where the same file was given as a base before, or on request.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from edgevit.errors import CheckpointError, OptionError, UnsupportedModelError
from edgevit.records.writing import cache_folder

if TYPE_CHECKING:
    from torch import nn

_FORM = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Builder:
    """A function, or a class that needs no arguments, in a file of Python that needs no others beside it."""

    code: bytes
    function: str

    @property
    def sha256(self) -> str:
        return sha256(self.code).hexdigest()

    @classmethod
    def at(cls, file: Path, function: str) -> Builder:
        """Read the file of a module that it has just made, and remember that it may be run.

        Raises:
            UnsupportedModelError: it imports files beside it, or cannot be read.
        """
        try:
            builder = cls(file.read_bytes(), function)
        except OSError as error:
            raise UnsupportedModelError(
                f"cannot read {file}, which made this module: {error.strerror}; give FILE.py:FUNCTION"
            ) from error
        imported = {name for node in ast.walk(ast.parse(builder.code)) for name in _imports(node)}
        folder = file.resolve().parent
        if neighbours := sorted(
            name for name in imported if {folder / name, folder / f"{name}.py"} & {*folder.iterdir()}
        ):
            raise UnsupportedModelError(
                f"{file} imports {neighbours[0]} beside it, and a model folder keeps one file: put what makes the "
                "network into one file, or install it as a package"
            )
        mark = _trust_mark(builder.sha256, function)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        return builder


def _imports(node: ast.AST) -> list[str]:
    """The first names of the modules that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [str(node.module).partition(".")[0]] if isinstance(node, ast.ImportFrom) else []


def _trust_mark(digest: str, function: str) -> Path:
    """The empty file that says that a function in a file of this hash may be run."""
    return cache_folder("builders") / f"{digest}-{function}"


def refuse_unknown(file: Path, digest: str, function: str) -> None:
    """Refuse to run a file of a model folder that has not been a base on this machine.

    Raises:
        CheckpointError: it has not.
    """
    if not _trust_mark(digest, function).is_file():
        raise CheckpointError(
            f"{file.parent} makes its network by code that has not been run on this machine; read {file}, and if you "
            f"trust it, run once in Python: edgevit.load({str(file.parent)!r}, run_code=True)"
        )


def is_builder(base: object) -> bool:
    """Whether a base is FILE.py:FUNCTION."""
    return _FORM.fullmatch(str(base)) is not None


def builder_parts(base: object) -> tuple[Path, str]:
    match = _FORM.fullmatch(str(base))
    assert match is not None, "of a builder"
    return Path(match[1]), match[2]


def check_builder(base: object, *, pretrained: bool, model_args: Iterable[str]) -> None:
    """Check that the file defines the function, without running it.

    Raises:
        CheckpointError: it does not, or is no Python.
        OptionError: options are given that the function itself decides.
    """
    file, function = builder_parts(base)
    if pretrained or [*model_args]:
        raise OptionError(f"{base} builds the network itself; leave --pretrained and --model-arg out")
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}; check the path") from error
    except (SyntaxError, ValueError) as error:
        raise CheckpointError(f"{file} is no Python: {error}; correct it") from error
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    if function not in names:
        raise CheckpointError(f"{file} defines {', '.join(names) or 'no function'}, and not {function}; give another")


_RUNNING: list[bytes] = []  # the files that are run now


@contextmanager
def _once(file: Path) -> Iterator[None]:
    """Refuse a file that would run itself, as a script that derives from a class in it would."""
    code = file.read_bytes()
    if code in _RUNNING:
        raise RuntimeError(f"{file} opens itself; put what is not a definition under `if __name__ == '__main__':`")
    _RUNNING.append(code)
    try:
        yield
    finally:
        _RUNNING.pop()


def built(base: object) -> nn.Module:
    """Run the function, which takes no arguments; weights that it makes with torch at random are always the same.

    Raises:
        CheckpointError: it raises, or returns no module.
    """
    import torch
    from torch import nn

    from edgevit.network.weights import first_line

    file, function = builder_parts(base)
    sys.path.insert(0, str(file.resolve().parent))  # for what it imports beside it
    try:
        with _once(file), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = runpy.run_path(str(file))[function]()
    except (Exception, SystemExit) as error:  # any end of the user's code
        raise CheckpointError(f"{base} raised {type(error).__name__}: {first_line(error, 200)}; correct it") from error
    finally:
        sys.path.pop(0)
    if not isinstance(module, nn.Module):
        raise CheckpointError(f"{base} returns a {type(module).__name__}, expected a torch.nn.Module")
    return module
