"""What is asked of `sweep`: a frozen record, refused before torch is imported as far as names and numbers can tell."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgevit.data.classes import listed
from edgevit.derive.request import SLICES, DeriveRequest, Request
from edgevit.errors import OptionError, OutputError, UnknownNameError
from edgevit.folder.unfinished import partial_folder
from edgevit.folder.writing import file_sha256, refuse_existing
from edgevit.numbers import check_number
from edgevit.sweep.record import PARTS, RATES, RECORD

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class SweepRequest(Request):
    """What `edgevit.sweep` is asked; the training has no steps."""

    base: str | Path
    data: str | Path
    rates: tuple[float, ...] = RATES
    method: str = "forge"
    part: str = "validation"
    cache: bool | Path = True

    def check(self) -> None:
        """Refuse what cannot be done; see `edgevit.sweep` for what is raised."""
        if not self.rates:
            raise OptionError("no rates; try --rates 0.5,0.8,0.9")
        for rate in self.rates:
            check_number("--rates", rate, "(0, 1)", "0.9 leaves 10 % of the MACs; the base is always beside the models")
        if self.part not in PARTS:
            raise UnknownNameError("part of the data", self.part, PARTS)
        if self.method == SLICES:
            raise OptionError("slices of a super-network need no sweep: `edgevit show NET` draws their accuracy")
        self._refuse_other_folder()
        due = [asked for rate in self.rates if not (asked := self.at(rate)).out.is_dir()]
        for asked in due[:1]:  # they differ in their rates alone
            asked.check()

    def _refuse_other_folder(self) -> None:
        """Raise OutputError where `out` is anything but a sweep, which is gone on with, or an empty folder."""
        if (self.out / RECORD).is_file():
            return
        if not self.out.is_dir():
            refuse_existing(self.out)
        elif any(self.out.iterdir()):
            raise OutputError(f"{self.out} exists and holds no {RECORD}, so it is no sweep; choose another --out")

    def at(self, rate: float) -> DeriveRequest:
        """The derivation at one rate."""
        folder = self.out / f"r{rate:g}"
        shared = {field.name: getattr(self, field.name) for field in fields(Request)}
        going_on = {"out": folder, "resume": partial_folder(folder).is_dir()}
        return DeriveRequest(**{**shared, **going_on}, rate=rate, method=self.method, cache=self.cache)

    def opening(self) -> dict[str, Any]:
        """How the base is opened."""
        names = ("checkpoint", "pretrained", "model_args", "preprocessing", "base_classes")
        return {name: getattr(self, name) for name in names}

    def identity(self) -> dict[str, Any]:
        """What must be the same for a sweep to be gone on with, as plain values."""
        file = Path(self.base) / WEIGHTS if self.checkpoint is None else Path(self.checkpoint)
        told = {
            **self.opening(),
            **{name: getattr(self, name) for name in ("base", "data", "method", "options", "shape", "ffn_multiple")},
            **{name: getattr(self, name) for name in ("skip_bad_images", "validation_fraction")},
            "weights": file_sha256(file) if file.is_file() else None,
            "classes": listed(self.classes),
            "seed": self.training.seed,
        }
        return dict(json.loads(json.dumps(told, default=str)))
