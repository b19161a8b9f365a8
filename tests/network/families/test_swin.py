"""timm's Swin: factorised attention in shifted and padded windows, model folders, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_examples import SWIN
from small_models import write_swin

from edgevit.derivation.solve.attention import narrow
from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Attention
from edgevit.network.folder import load
from edgevit.network.network import Network
from edgevit.network.opening import network_without_weights

PADDED = {"img_size": 40, "depths": [2, 2], "window_size": 3}  # grids of 10 and 5: shifted, with places without a token


def images(network: Network) -> torch.Tensor:
    return torch.randn(2, *network.input_size, generator=torch.Generator().manual_seed(1))


def low_rank(part: Attention, width: int) -> Attention:
    """Heads whose products have no more rank than this width, and biases everywhere."""
    generator = torch.Generator().manual_seed(2)

    def thin(rows: torch.Tensor) -> torch.Tensor:
        return torch.randn(*rows.shape[:-1], width, generator=generator) @ rows[..., :width, :] / width**0.5

    assert part.bq is not None
    joint = thin(torch.cat([part.wq, part.bq.unsqueeze(-1)], -1).detach())
    return replace(part, wq=joint[..., :-1], bq=joint[..., -1], wk=thin(part.wk.detach()), wv=thin(part.wv.detach()))


@torch.no_grad()
def test_factors_in_shifted_and_padded_windows_are_exact(small_vit: Any) -> None:
    """The bias of a key drops out and that of a value passes through, for places without a token, too."""
    network = small_vit(SWIN, **PADDED)
    assert all(stage.windows.padded != stage.windows.grid and any(stage.shift) for stage in network.module.layers)
    blocks = [replace(b, attention=low_rank(b.attention, 12)) for b in network.read()]  # type: ignore[arg-type]
    base = network.build(blocks).eval()
    parts = [block.attention for block in base.read() if block.attention is not None]
    slim_parts = narrow(parts, [(12, 12)] * len(parts))
    assert all(part.bk is None and part.bv is None for part in slim_parts)
    slim = base.build([replace(b, attention=a) for b, a in zip(blocks, slim_parts, strict=True)]).eval()
    expected = base(images(base))
    torch.testing.assert_close(slim(images(base)), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@torch.no_grad()
def test_biases_of_relative_positions_go_with_their_head(small_vit: Any) -> None:
    network = small_vit(SWIN, **PADDED)
    blocks = network.read()
    silent = []
    for block in blocks:
        a = block.attention
        assert a is not None
        wo = a.wo.detach().clone()
        wo[0] = 0  # of the head that goes
        silent.append(replace(block, attention=replace(a, wo=wo)))
    kept = [replace(b, attention=b.attention.keep(range(1, b.attention.heads))) for b in silent]  # type: ignore[union-attr]
    # What values of the head add is nothing, as its output weights are zero.
    expected = network.build(silent).eval()(images(network))
    found = network.build(kept).eval()(images(network))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("embed", [None, 96])
@torch.no_grad()
def test_a_folder_has_the_blocks_that_remain_with_their_windows(tmp_path: Path, embed: int | None) -> None:
    """The first block of a stage goes, so that the first one that is left is a shifted one; a stage loses both."""
    sizes: dict[str, Any] = {"depths": [2, 2, 2], "num_heads": [2, 4, 8]}
    folder, network = write_swin(tmp_path / "slim", **sizes, kept=[1, 4, 5], embed=embed)
    model = load(folder)
    assert model.spec.timm_args["depths"] == [1, 0, 2]
    assert [(b.stage, b.shifted) for b in model.spec.blocks] == [(0, True), (2, False), (2, False)]
    narrower = None if embed is None else "the embedding has 96 channels of the base's 256"
    assert model.spec.embedding_text == narrower and model.spec.timm_args["embed_dim"] == (64 if embed is None else 24)
    assert model.spec.blocks[1].qk != model.spec.blocks[1].vo
    expected = network(images(network))
    torch.testing.assert_close(model(images(model)), expected, rtol=0, atol=0)


def test_the_second_version_is_refused_by_name() -> None:
    name = "swinv2_tiny_window8_256"
    with pytest.raises(UnsupportedModelError, match=f"cannot prune {name}: the cosine attention of Swin V2"):
        network_without_weights(name, {"img_size": 32, "window_size": 4})
