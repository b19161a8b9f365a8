"""Test workers share the rewriting of assertions, which pytest keeps beside the tests: a fresh clone has none yet.

It takes 5 s of processor time. What does it is private to pytest: where it has another form, each worker rewrites all.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest


def share_rewriting(config: pytest.Config) -> None:
    """Rewrite this worker's share of the test files, then what the others have not come to."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    from _pytest.assertion import rewrite

    files = sorted(file for given in config.args for file in Path(given).rglob("test_*.py"))
    own, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    shares = [files[(own + i) % count :: count] for i in range(count)]
    with suppress(AttributeError, TypeError, SyntaxError):
        state = config.stash[rewrite.assertstate_key]
        for file in [*shares[0], *(file for share in shares[1:] for file in reversed(share))]:
            file = file.absolute()
            folder = rewrite.get_cache_dir(file)
            kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
            if not kept.exists() and rewrite.try_makedirs(folder):
                source, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, source, kept)
