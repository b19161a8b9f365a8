"""timm's Swin on tokens [B, N, d], row by row, as all networks of edgevit have them; timm's is on maps [B, H, W, d].

Names of weights are timm's. Windows and shifts are constant orders of the tokens, for images of one size. Linear layers
are before windows and after them, so that they read every token once, and no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformer, feature_take_indices, get_relative_position_index
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import BlockDims, SiteKind, unpack
from edgevit.network.families.vit.slim import SlimAttention

_APART = -100.0  # added to the logits of tokens that only the shift brings into one window, as timm does


@dataclass(frozen=True)
class Windows:
    """The windows of a grid of tokens, which is shifted, and padded to whole windows."""

    grid: tuple[int, int]  # rows and columns of tokens
    size: tuple[int, int]
    shift: tuple[int, int] = (0, 0)
    pads_first: bool = False  # as transformers does, before the shift; timm does after it

    @property
    def area(self) -> int:
        return prod(self.size)

    @property
    def padded(self) -> tuple[int, int]:
        rows, columns = (-(-side // step) * step for side, step in zip(self.grid, self.size, strict=True))
        return rows, columns

    @property
    def count(self) -> int:
        return prod(self.padded) // self.area

    @property
    def biases(self) -> int:
        """The number of relative positions of two tokens of a window."""
        return prod(2 * side - 1 for side in self.size)

    def _divided(self, places: Tensor) -> Tensor:
        """Values of all places [rows, columns] of the padded grid, by window: [count, area]."""
        (rows, columns), (height, width) = self.size, self.padded
        apart = places.view(height // rows, rows, width // columns, columns)
        return apart.transpose(1, 2).reshape(-1, self.area)

    @cached_property
    def order(self) -> Tensor:
        """The token at each place of each window, N where there is none: [count * area]."""
        tokens, back = torch.arange(prod(self.grid), device="cpu").view(self.grid), (-self.shift[0], -self.shift[1])
        more = [after - side for after, side in zip(self.padded, self.grid, strict=True)]
        if not self.pads_first:
            tokens = tokens.roll(back, (0, 1))
        tokens = F.pad(tokens, (0, more[1], 0, more[0]), value=prod(self.grid))
        return self._divided(tokens.roll(back, (0, 1)) if self.pads_first else tokens).flatten()

    @cached_property
    def places(self) -> Tensor:
        """The place of each token in the windows: [N]."""
        return self.order.argsort(stable=True)[: prod(self.grid)]

    @cached_property
    def apart(self) -> Tensor | None:
        """A mask for the logits, low for tokens that are not neighbours: [count, area, area]; None: no mask."""
        if not any(self.shift):
            return None
        sides = []
        for side, size, shift in zip(self.padded, self.size, self.shift, strict=True):
            at = torch.arange(side, device="cpu")
            sides.append((at >= side - size).long() + (at >= side - shift) if shift else torch.zeros_like(at))
        part = self._divided(3 * sides[0][:, None] + sides[1])
        return torch.where(part[:, None] == part[:, :, None], 0.0, _APART)

    @cached_property
    def relative(self) -> Tensor:
        """The relative position of each pair of tokens of a window: [area * area]."""
        index: Tensor = get_relative_position_index(*self.size, device="cpu")
        return index.flatten()


class WindowAttention(SlimAttention):
    """Attention within windows, with a bias for each relative position; its QK and VO widths may differ.

    A place without a token has a normalised token of zeros: its query, key and value are the biases.
    """

    order: Tensor
    filled: Tensor | None  # factors of the places: 1 with a token, 0 without; None: all places have one
    places: Tensor
    relative: Tensor
    apart: Tensor | None
    # The result of `biases` where it is constant, as in an export; None: it is computed from the table.
    constant: Tensor | None

    def __init__(self, windows: Windows, dim: int, dims: BlockDims, *, qkv_bias: bool) -> None:
        super().__init__(dim, dims, qkv_bias=qkv_bias)
        self.windows = windows
        self.relative_position_bias_table = nn.Parameter(torch.zeros(windows.biases, dims.heads))
        tokens = windows.order.clamp(max=prod(windows.grid) - 1)
        filled = None if windows.padded == windows.grid else (windows.order == tokens).float().unsqueeze(1)
        self.register_buffer("order", tokens, persistent=False)
        self.register_buffer("filled", filled, persistent=False)
        for name in ("places", "relative", "apart"):
            self.register_buffer(name, getattr(windows, name), persistent=False)
        self.register_buffer("constant", None, persistent=False)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise UnsupportedModelError("tokens of windows have no weights")
        w = self.windows
        packed = self.qkv(x).index_select(1, self.order)
        if self.filled is not None:
            packed = packed * self.filled
            if self.qkv.bias is not None:
                packed = packed + self.qkv.bias * (1 - self.filled)
        packed = packed.view(x.shape[0], w.count, w.area, -1)
        # Each [B, windows, area, H, w]: a window is one more image, or with a mask of its own one more head.
        sizes = BlockDims(self.num_heads, self.qk_dim, self.vo_dim, 0)
        first = 0 if self.apart is None else 1
        q, k, v = (part.transpose(2, 3).flatten(first, first + 1) for part in unpack(packed, sizes))
        dropout = self.attn_drop.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.biases().to(packed), dropout_p=dropout)
        y = y.reshape(x.shape[0], w.count, self.num_heads, w.area, self.vo_dim).transpose(2, 3).flatten(1, 2).flatten(2)
        out: Tensor = self.proj_drop(self.proj(y.index_select(1, self.places)))
        return out

    def biases(self) -> Tensor:
        """What is added to the logits: [1, H, area, area], or if windows are shifted [1, windows * H, area, area]."""
        if self.constant is not None:
            return self.constant
        area = self.windows.area
        of_heads = self.relative_position_bias_table[self.relative].transpose(0, 1).reshape(-1, area, area)
        return (of_heads if self.apart is None else (self.apart.unsqueeze(1) + of_heads).flatten(0, 1)).unsqueeze(0)


class WindowBlock(nn.Module):
    """A block of timm's Swin, without its stochastic depth; a removed site has no modules.

    In a narrower embedding it may have linear layers: `narrow` before its sites, and `restore`, to the whole width.
    """

    def __init__(self, block: Any, attn: WindowAttention | None, *, shifted: bool) -> None:
        super().__init__()
        self.shifted = shifted
        self.norm1, self.attn, self.norm2, self.mlp = block.norm1, attn, block.norm2, block.mlp
        self.narrow: nn.Module | None = None
        self.restore: nn.Module | None = None

    def drop(self, kind: SiteKind) -> None:
        """Remove a site."""
        if kind == "attention":
            self.norm1 = self.attn = None
        else:
            self.norm2 = self.mlp = None

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = self.add_sites(x if self.narrow is None else self.narrow(x), attn_mask)
        return x if self.restore is None else self.restore(x)

    def add_sites(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """Add the outputs of the sites to tokens of the embedding's own width."""
        if self.attn is not None:
            x = x + self.attn(self.norm1(x), attn_mask)
        return x if self.mlp is None else x + self.mlp(self.norm2(x))


class Merging(nn.Module):
    """Join four neighbouring tokens to one, twice as wide; `narrow` is as in a block."""

    def __init__(self, merging: Any, grid: Sequence[int]) -> None:
        super().__init__()
        self.norm, self.reduction, self.grid = merging.norm, merging.reduction, tuple(grid)
        self.narrow: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.grid
        x = x if self.narrow is None else self.narrow(x)
        x = x.view(x.shape[0], rows, columns, -1)
        if rows % 2 or columns % 2:
            x = F.pad(x, (0, 0, 0, columns % 2, 0, rows % 2))
        x = x.view(x.shape[0], (rows + 1) // 2, 2, (columns + 1) // 2, 2, -1)
        merged: Tensor = self.reduction(self.norm(x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)))
        return merged


class SwinStage(nn.Module):
    """Blocks of one width and one grid of tokens, after the layer that merges those of the stage before.

    In the first stage that layer is the identity, or of a narrower embedding a linear layer.
    """

    def __init__(self, stage: Any, windows: Windows, dim: int) -> None:
        super().__init__()
        self.windows, self.dim = windows, dim
        # As in transformers' SwinBackbone: a single window is shifted, too, and it may be larger than the grid.
        self.always_partitions = any(block.always_partition for block in stage.blocks)
        merges = hasattr(stage.downsample, "reduction")
        self.downsample: nn.Module = Merging(stage.downsample, stage.input_resolution) if merges else nn.Identity()
        self.blocks = nn.Sequential(*stage.blocks)

    @property
    def shift(self) -> tuple[int, int]:
        """Shift of the windows in every second block, in tokens: half a window; 0 along a side of one window alone."""
        sides = zip(self.windows.grid, self.windows.size, strict=True)
        rows, columns = (0 if side <= size and not self.always_partitions else size // 2 for side, size in sides)
        return rows, columns

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.downsample(x))
        return x


class TokenSwin(SwinTransformer):  # type: ignore[misc]
    """timm's SwinTransformer of these modules."""

    def last_tokens(self, x: Tensor) -> Tensor:
        """The tokens [B, N, d] after the last norm."""
        tokens: Tensor = self.norm(self.layers(self.patch_embed(x)))
        return tokens

    def forward_features(self, x: Tensor) -> Tensor:
        """These as a map [B, H, W, d], as timm's Swin returns them: a head of the user's may read it."""
        grid: tuple[int, int] = self.layers[-1].windows.grid
        features: Tensor = torch.unflatten(self.last_tokens(x), 1, grid)
        return features

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.last_tokens(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps [B, d, H, W] of some stages, after the last tokens unless left out, with timm's signature."""
        assert output_fmt == "NCHW", "as in timm"
        chosen, last = feature_take_indices(len(self.layers), indices)
        tokens, maps = self.patch_embed(x), list[Tensor]()
        for number, stage in enumerate(self.layers[: last + 1] if stop_early else self.layers):
            tokens = stage(tokens)
            if number in chosen:
                of_map = self.norm(tokens) if norm and number == len(self.layers) - 1 else tokens
                maps.append(of_map.transpose(1, 2).unflatten(2, stage.windows.grid))
        return maps if intermediates_only else (self.norm(tokens).unflatten(1, stage.windows.grid), maps)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        outputs: Tensor = self.head(x.unsqueeze(1) if x.ndim == 3 else x, pre_logits=pre_logits)
        return outputs
