"""Calls of public functions: mypy accepts the right ones and refuses the wrong ones, whose `type: ignore` is used.

Read by mypy (`files` in pyproject.toml), and run by nobody.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

import edgevit


def right(module: nn.Module, request: edgevit.DeriveRequest) -> None:
    derivation: edgevit.Derivation = edgevit.derive(module, data="photos", rate=0.5, lr=1e-4, out=Path("runs/t1"))
    edgevit.derive(request)
    edgevit.derive(base="vit", data=[1], out="out", training=edgevit.Training(steps=5), cache="folder")
    edgevit.sweep("vit", data="photos", rates=(0.5, 0.7), out="runs/s")
    edgevit.bench("runs/t1", edgevit.Conditions(), repeat=3)
    edgevit.bench_in_turns(["runs/base", Path("runs/t1")], rounds=8, batches=(1, 8))
    edgevit.evaluate("runs/t1", "photos", classes=["cat", "dog"])
    print(derivation.top1, edgevit.export("runs/t1", precision="int8").engine, edgevit.load("runs/t1").classes)


def wrong() -> None:
    edgevit.derive("vit", rat=0.5)  # type: ignore[call-arg]
    edgevit.derive("vit", steps="many")  # type: ignore[arg-type]
    edgevit.derive(3)  # type: ignore[arg-type]
    edgevit.meet("vit", repeats=3)  # type: ignore[call-arg]
    edgevit.export("runs/t1", preset="int8")  # type: ignore[call-arg]
    edgevit.bench("runs/t1", batch=(1, 8))  # type: ignore[call-arg]
    edgevit.fleet("plan.yaml", worker=2)  # type: ignore[call-arg]
