"""A base that knows its digits, copies of it that have something to learn again, and what training makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from small_base import ARGS, PREPROCESSING
from torch import Tensor, nn

from edgevit.data.task import Task, open_task
from edgevit.network.copies import bare_copy
from edgevit.network.opening import open_network
from edgevit.network.output import Logits
from edgevit.train.distil import Distillation
from edgevit.train.history import History
from edgevit.train.loop import train
from edgevit.train.passes import accuracy_of, open_passes
from edgevit.train.settings import Training

CLASSES = [3, 7, 9]
QUICK = {"batch_size": 16, "device": "cpu", "lr": 1e-3, "augment": "none", "evaluations": 3}


@dataclass
class Bench:
    """A base that knows its digits, the task of three of them, and unlabelled images of all."""

    base: nn.Module
    task: Task

    def teacher(self, weight: float = 0.9, temperature: float = 2.0, tokens: float = 0.0) -> Distillation:
        return Distillation(bare_copy(self.base).requires_grad_(False), weight, temperature, tokens)

    def spoilt(self, noise: float = 0.05) -> nn.Module:
        """The base with noise on its weights, which has something to learn again."""
        network = bare_copy(self.base)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in network.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * noise)
        return network

    def train(self, network: nn.Module, steps: int, history: Path | None = None, **more: Any) -> History:
        training = Training(**{**QUICK, "steps": steps, **more.pop("training", {})})
        passes, log = open_passes(training, more.pop("progress", None)), History(history)
        task = replace(self.task, unlabelled=more.pop("unlabelled", None))
        train(network.with_columns(CLASSES), task, training, passes, log, **more)
        return log

    def accuracy(self, network: nn.Module) -> float:
        passes = open_passes(Training(**QUICK))
        return accuracy_of(network.with_columns(CLASSES), self.task.validation, self.task.class_names, passes).top1


def open_bench(checkpoint: Path) -> Bench:
    given: Any = {"model_args": ARGS, "preprocessing": PREPROCESSING, "pretrained": False}
    base = open_network("vit_tiny_patch16_224", checkpoint=checkpoint, **given)
    task = open_task("digits", CLASSES, preprocessing=base.preprocessing, base_outputs=10, unlabelled="digits")
    return Bench(base, task)


def kept_step(history: History) -> int:
    outcome = history.outcome("train")
    assert outcome is not None
    return outcome.kept_step


def divergence(teacher: nn.Module, network: nn.Module, images: Tensor) -> float:
    with torch.inference_mode():
        return float(Logits(tuple(CLASSES)).imitation(teacher(images), network(images), 2.0))
