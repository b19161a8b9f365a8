"""Pictures as a network reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from detectors import write_detectors
from PIL import Image
from torchvision.transforms.functional import to_tensor

from edgevit.data.transforms import evaluation_transform
from edgevit.network.opening import open_network


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One of images of several sizes, whose network reads 64 x 64."""
    return open_network(f"{write_detectors(tmp_path_factory.mktemp('mine'))}:any_size")


@pytest.mark.parametrize("size", [(80, 40), (48, 96), (200, 150), (31, 97), (64, 64), (5, 7), (400, 2)], ids=str)
def test_pictures_are_prepared_as_by_a_detectors_own_transform(detector: Any, size: tuple[int, int]) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8))
    expected = detector.module.detector.transform([to_tensor(picture)])[0].tensors[0]
    for prepared in (evaluation_transform(detector.preprocessing)(picture), detector.transform(picture)):
        torch.testing.assert_close(prepared, expected, rtol=0, atol=1e-4)
        assert torch.equal(prepared == 0, expected == 0), "the padding"


def test_other_crop_modes_are_timms(detector: Any) -> None:
    settings = {**detector.preprocessing, "crop_mode": "border"}
    bars = evaluation_transform(settings)(Image.new("RGB", (64, 32), "white")).amax((0, 2)) < 1
    assert bars.tolist() == [True] * 16 + [False] * 32 + [True] * 16
