"""Windows as orders of tokens, compared with timm's partition of maps."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from family_examples import SWIN
from timm.models.swin_transformer import SwinTransformerBlock, window_partition, window_reverse

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.swin import interchange
from edgevit.network.families.swin.modules import Windows

GRIDS = [((8, 8), (4, 4), (2, 2)), ((10, 7), (3, 4), (1, 2)), ((6, 3), (4, 3), (2, 0)), ((5, 5), (3, 3), (0, 0))]


@pytest.mark.parametrize(("grid", "size", "shift"), GRIDS)
def test_tokens_come_into_windows_and_back_as_in_timm(grid: Any, size: Any, shift: Any) -> None:
    windows, count = Windows(grid, size, shift), grid[0] * grid[1]
    tokens = torch.arange(1.0, count + 1)
    placed = torch.cat([tokens, torch.zeros(1)])[windows.order].view(windows.count, windows.area)
    rolled = tokens.view(1, *grid, 1).roll((-shift[0], -shift[1]), (1, 2))
    rows, columns = windows.padded
    padded = F.pad(rolled, (0, 0, 0, columns - grid[1], 0, rows - grid[0]))
    assert torch.equal(placed, window_partition(padded, size).flatten(1))
    back = window_reverse(placed.view(-1, *size, 1), size, rows, columns)[:, : grid[0], : grid[1]]
    assert torch.equal(back.roll(shift, (1, 2)).flatten(), tokens)
    assert torch.equal(placed.flatten()[windows.places], tokens)


@pytest.mark.parametrize(("grid", "size", "shift"), [*GRIDS, ((4, 4), (7, 7), (3, 3))])
def test_a_grid_is_padded_before_the_shift_as_in_transformers(grid: Any, size: Any, shift: Any) -> None:
    windows = Windows(grid, size, shift, pads_first=True)
    tokens, more = (
        torch.arange(1.0, grid[0] * grid[1] + 1),
        [p - side for p, side in zip(windows.padded, grid, strict=True)],
    )
    padded = F.pad(tokens.view(1, *grid, 1), (0, 0, 0, more[1], 0, more[0])).roll((-shift[0], -shift[1]), (1, 2))
    placed = torch.cat([tokens, torch.zeros(1)])[windows.order].view(windows.count, windows.area)
    assert torch.equal(placed, window_partition(padded, size).flatten(1))
    assert torch.equal(placed.flatten()[windows.places], tokens)


@pytest.mark.parametrize(("grid", "size", "shift"), GRIDS)
def test_tokens_that_are_no_neighbours_are_kept_apart_as_in_timm(grid: Any, size: Any, shift: Any) -> None:
    block = SwinTransformerBlock(8, grid, num_heads=1, window_size=size, shift_size=shift)
    assert (block.window_size, block.shift_size) == (size, shift)
    apart = Windows(grid, size, shift).apart
    if block.attn_mask is None:
        assert apart is None
    else:
        assert apart is not None and torch.equal(apart, block.attn_mask)
    assert Windows(grid, size, shift).biases == len(block.attn.relative_position_bias_table)


@pytest.mark.parametrize("options", [{}, {"indices": [1], "norm": True}, {"indices": [0], "stop_early": True}])
def test_maps_of_stages_are_timms(options: dict[str, Any]) -> None:
    model = timm.create_model(SWIN, img_size=(40, 48), window_size=4, embed_dim=16, depths=(2, 1), num_heads=(2, 2))
    images = torch.rand(2, 3, 40, 48)
    with torch.inference_mode():
        expected = model.eval().forward_intermediates(images, intermediates_only=True, **options)
        of_head = model.forward_features(images)
        adopted = interchange.adopted(model)
        maps = adopted.forward_intermediates(images, intermediates_only=True, **options)
        torch.testing.assert_close(maps, expected)
        torch.testing.assert_close(adopted.forward_features(images), of_head)
        torch.testing.assert_close(adopted.forward_intermediates(images)[0], of_head)


def test_tokens_of_windows_have_no_weights(small_vit: Any) -> None:
    network = small_vit(SWIN)
    with pytest.raises(UnsupportedModelError, match="no weights"):
        network.module.layers[0].blocks[0](torch.zeros(1, 64, 64), torch.zeros(1, 1, 1, 64))
