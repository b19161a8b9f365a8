"""A base that a function in a Python file of the user builds: FILE.py:FUNCTION."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edgevit.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from torch import nn

_FORM = re.compile(r"(.+\.py):([A-Za-z_]\w*)")


def is_builder(base: object) -> bool:
    """Whether a base is FILE.py:FUNCTION."""
    return _FORM.fullmatch(str(base)) is not None


def _parts(base: object) -> tuple[Path, str]:
    match = _FORM.fullmatch(str(base))
    assert match is not None, "of a builder"
    return Path(match[1]), match[2]


def check_builder(base: object, *, pretrained: bool, model_args: Iterable[str]) -> None:
    """Check that the file defines the function, without running it.

    Raises:
        CheckpointError: it does not, or is no Python.
        OptionError: options are given that the function itself decides.
    """
    file, function = _parts(base)
    if pretrained or [*model_args]:
        raise OptionError(f"{base} builds the network itself; leave --pretrained and --model-arg out")
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}; check the path") from error
    except (SyntaxError, ValueError) as error:
        raise CheckpointError(f"{file} is no Python: {error}; correct it") from error
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function not in names:
        raise CheckpointError(f"{file} defines {', '.join(names) or 'no function'}, and not {function}; give another")


def built(base: object, checkpoint: Path | None) -> nn.Module:
    """Run the function, which takes no arguments, and fill its module with the weights of a checkpoint, if given.

    Raises:
        CheckpointError: it raises, returns no module, or the weights do not fit the module.
    """
    from torch import nn

    from edgevit.network.weights import fill_network, first_line, read_weights

    file, function = _parts(base)
    sys.path.insert(0, str(file.resolve().parent))  # for what it imports beside it
    try:
        module = runpy.run_path(str(file))[function]()
    except (Exception, SystemExit) as error:  # any end of the user's code
        raise CheckpointError(f"{base} raised {type(error).__name__}: {first_line(error, 200)}; correct it") from error
    finally:
        sys.path.pop(0)
    if not isinstance(module, nn.Module):
        raise CheckpointError(f"{base} returns a {type(module).__name__}, expected a torch.nn.Module")
    if checkpoint is not None:
        names, prefix = [*module.state_dict()], ""
        while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
            prefix += names[0].partition(".")[0] + "."  # which reading removes
            names = [name.partition(".")[2] for name in names]
        state = {f"{prefix}{name}": value for name, value in read_weights(checkpoint).items()}
        fill_network(module, state, checkpoint, str(base))
    return module
