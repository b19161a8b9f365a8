from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_base import fewer_digits

from edgevit.data.task import open_task
from edgevit.network.model import describe


@pytest.fixture(scope="module")
def few_digits(digits_checkpoint: Path) -> Iterator[None]:
    """That base has seen all of them, whichever test comes first."""
    with fewer_digits():
        yield


@pytest.fixture(scope="module")
def task(small_vit: Any) -> Any:
    """Three of the digits."""
    preprocessing = describe(small_vit(), "vit_tiny_patch16_224", {}).preprocessing
    return open_task("digits", "3,7,9", preprocessing=preprocessing, base_outputs=10)


@pytest.fixture(scope="module")
def network(small_vit: Any) -> Any:
    """A small random ViT whose modules put out enough to be felt."""
    made = small_vit()
    with torch.no_grad():
        for block in made.module.blocks:
            block.attn.proj.weight.mul_(3)
            block.mlp.fc2.weight.mul_(3)
        made.module.head.weight.mul_(5)
    return made.eval()
