"""Where pictures are in images that are padded."""

from __future__ import annotations

import torch

from edgevit.network.padding import picture_areas

STD = (0.229, 0.224, 0.225)


def test_padding_is_what_lies_around_all_pixels_of_another_colour() -> None:
    images = torch.zeros(5, 3, 64, 64)  # a detector's own padding
    images[0, :, :20] = 4.0
    images[1, :, 10:50, 4] = images[1, :, 12, 60] = 1.0
    images[2] = torch.tensor([0.3, -0.3, 0.5]).view(3, 1, 1) / 255 / torch.tensor(STD).view(3, 1, 1)
    images[2, :, :, 16:48] = -1.0  # between bars of the mean in 8 bits, as timm's transform pads
    images[3] = 1.0
    expected = torch.zeros(5, 64, 64, dtype=torch.bool)
    expected[0, :20] = expected[1, 10:50, 4:61] = expected[2, :, 16:48] = expected[3:] = True
    areas = picture_areas(images, STD)
    assert areas is not None and torch.equal(areas.cells(64, 64), expected), "an image of padding alone is a picture"
    assert picture_areas(images[3:], STD) is None


def test_one_pixel_makes_a_cell_real() -> None:
    images = torch.zeros(1, 3, 64, 64)
    images[0, :, :20] = 4.0
    areas = picture_areas(images, STD)
    assert areas is not None and areas.cells(4, 4).sum(2).tolist() == [[4, 4, 0, 0]]
    sizes = [torch.Size((2, 4, 2)), torch.Size((1, 2, 1))]
    assert [values.tolist() for values in areas.values(sizes)] == [
        [([True] * 4 + [False] * 4) * 2],
        [[True, False]],
    ]
