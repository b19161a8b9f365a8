"""The head fitted again: it finds what answers as the base does, and touches nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from small_base import ARGS

from edgevit.data.task import open_task
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.methods.forge.head import Taught, refit_head
from edgevit.network.copies import bare_copy
from edgevit.network.model import describe
from edgevit.network.network import Network
from edgevit.network.output import Logits
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training

PASSES = open_passes(Training(device="cpu"))
COLUMNS = [3, 7, 9]
OUTPUT = Logits(tuple(COLUMNS))


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
@torch.no_grad()
def test_a_spoilt_head_is_mended_in_the_columns_asked_for(name: str) -> None:
    torch.manual_seed(0)
    base = Network(timm.create_model(name, num_classes=10, **ARGS).eval())
    heads = base.classifiers
    for head in heads:
        head.weight.normal_()
    task = open_task("digits", COLUMNS, preprocessing=describe(base, name, {}).preprocessing, base_outputs=10)
    slim = bare_copy(base)
    for head in slim.classifiers:
        head.weight.mul_(0.3)
        head.bias.add_(torch.arange(10.0))
    parts = [task.train.subset(200), task.validation.subset(50)]
    train, judge = (Taught(images, network_outputs(base, images, PASSES)) for images in parts)
    spoilt = {key: value.clone() for key, value in slim.state_dict().items()}

    def loss() -> float:
        return divergence(OUTPUT, judge.outputs, network_outputs(slim, judge.images, PASSES))

    before = loss()
    told = refit_head(slim.with_columns(COLUMNS), train, judge, PASSES)
    assert told == pytest.approx(loss(), rel=1e-3) and told < 0.1 * before
    others = [i for i in range(10) if i not in COLUMNS]
    for key, value in slim.state_dict().items():
        assert torch.equal(value[others], spoilt[key][others]) if key.startswith("head") else True
        assert key.startswith("head") or torch.equal(value, spoilt[key])


@torch.no_grad()
def test_a_head_without_a_bias_stays_without_one(small_vit: Any) -> None:
    base = small_vit().eval()
    base.module.head = torch.nn.Linear(64, 10, bias=False)
    task = open_task("digits", COLUMNS, preprocessing=describe(base, "vit_tiny_patch16_224", {}).preprocessing,
                     base_outputs=10)  # fmt: skip
    slim = bare_copy(base)
    slim.module.head.weight.zero_()
    images = task.train.subset(100)
    taught = Taught(images, network_outputs(base, images, PASSES))
    found = refit_head(slim.with_columns(COLUMNS), taught, taught, PASSES)
    told = divergence(OUTPUT, taught.outputs, network_outputs(slim, images, PASSES))
    assert slim.module.head.bias is None and found == pytest.approx(told, rel=1e-3)
