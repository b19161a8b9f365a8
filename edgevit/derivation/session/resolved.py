"""A derivation whose request is resolved, and the records of what it does."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgevit.derivation.allocate.budget import Budget
from edgevit.derivation.allocate.policy import Policy
from edgevit.derivation.method import Method
from edgevit.derivation.problem import Problem
from edgevit.derivation.request import DeriveRequest
from edgevit.derivation.session.opening import Opened
from edgevit.derivation.session.rejection import RejectionImages
from edgevit.network.chains import Chains
from edgevit.records.derivation import BaseCheckRecord, DerivationRecord, ShapeRecord, TrainingRecord
from edgevit.records.kinds import plain
from edgevit.records.plan import PlanRecord
from edgevit.train.settings import Training
from edgevit.version import written_by


@dataclass(frozen=True)
class ResolvedDerivation:
    """A request with its names looked up, its defaults filled in, and its base and images open."""

    request: DeriveRequest
    opened: Opened
    earlier: PlanRecord | None  # plans by which the base itself was derived; None: it was not derived
    method: Method[Any]
    config: Any
    budget: Budget
    policy: Policy
    training: Training
    base_training: Training  # training of a copy of the base, where one is fine-tuned
    rejection: RejectionImages | None
    chains: Chains | None = None  # layers behind the backbone that are cut, too; None: they stay
    derivations: int = 1  # number of those of a sweep that begin with this one, which tells how long all take

    def problem(self, folder: Path) -> Problem:
        """The problem for the method; `folder` keeps what must survive an interruption."""
        return self.opened.problem(self.budget, self.policy, self.training, self.base_training, folder)

    def resume_key(self) -> dict[str, Any]:
        """Everything that determines the model: a resumed run must have the same."""
        request, unlabelled = self.request, self.opened.task.unlabelled
        key = {
            **self.opened.resume_key(self.training),
            "base_columns": self.opened.task.base_columns,
            "budget": plain(self.budget.record()),
            "method": self.method.name,
            "options": asdict(self.config),
            "shape": asdict(self.policy),
            "unlabelled": unlabelled and unlabelled.content_sha256(),
            "reject": self.rejection and self.rejection.share,
        }
        if request.derive_from != "base" or request.base_steps is not None:
            key |= {"derive_from": request.derive_from, "base_steps": self.base_training.steps}
        if request.remove_blocks:
            key["remove_blocks"] = request.remove_blocks
        if request.rest_rate:
            key["rest_rate"] = request.rest_rate
        return dict(json.loads(json.dumps(key)))  # as it will be read back

    def record(self, checked: BaseCheckRecord | None, **results: Any) -> DerivationRecord:
        """The record in derivation.json: the request, and `results` by their names there."""
        task, assumed, builder = self.opened.task, self.opened.assumed, self.opened.base.spec.builder
        assumptions = None if assumed is None else assumed.record(checked)
        if assumptions is not None and builder is not None:
            assumptions = replace(assumptions, backbone_alone=builder.backbone_alone)
        return DerivationRecord(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            versions=versions(),
            base=self.opened.base_name,
            method=self.method.name,
            config=asdict(self.config),
            training=training_record(self.training) if task.has_images else None,
            shape=shape_record(self.policy),
            head=self.opened.head,
            data=task.record() if task.has_images else None,
            assumptions=assumptions,
            fitted_head=self.opened.fitted,
            job=self.request.job,
            **results,
        )


def training_record(training: Training) -> TrainingRecord:
    options = asdict(training)
    return TrainingRecord(options.pop("seed"), options.pop("steps"), options)


def shape_record(policy: Policy) -> ShapeRecord:
    options = asdict(policy)
    return ShapeRecord(options.pop("name"), options)


def versions() -> dict[str, str]:
    """The versions that a record states."""
    packages = ("torch", "timm", "accelerate", "scikit-learn", "numpy")
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {"edgevit": written_by(), "python": platform.python_version(), **installed}
