"""What the server of forks.py imports before it forks."""

from __future__ import annotations

from edgevit.imports import importing

with importing():
    import accelerate  # noqa: F401
    import sklearn.datasets  # noqa: F401

    import edgevit.cli.app
    import edgevit.jobs.many  # noqa: F401
