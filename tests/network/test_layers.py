"""Layers of a block that are put together by hand; test_families_protocol.py compares those of each family."""

import torch
from torch import nn

from edgevit.network.anatomy import Ffn, Site
from edgevit.network.layers import BlockLayers, FfnLayer, counted_macs, first_input


def layer(*after: nn.Module) -> FfnLayer:
    first, output = nn.Linear(4, 6), nn.Linear(6, 4)
    return FfnLayer(
        site=Site(0, "ffn"), before=nn.LayerNorm(4), module=nn.Sequential(first, output), readers=(first,),
        output=output, after=after, scale=1.0, read=lambda: Ffn(first.weight, first.bias, output.weight, output.bias),
    )  # fmt: skip


def test_an_output_passes_through_all_modules_after_it_in_order() -> None:
    norm, dropout, x = nn.LayerNorm(4), nn.Dropout(1.0), torch.randn(2, 3, 4)
    norm.weight.data += 1
    norm.bias.data += 1
    assert torch.equal(layer().added(x), x)
    assert torch.equal(layer(norm, dropout.eval()).added(x), norm(x))
    assert not layer(norm, dropout.train()).added(x).any()
    assert layer(dropout, norm).added(x).all(), "the norm's bias comes last"


def test_a_block_has_the_weights_of_the_layers_that_remain_and_its_tokens() -> None:
    ffn = layer()
    block = BlockLayers(ffn.module, None, ffn, tokens=5, merged=True).read()
    assert block.attention is None and block.ffn is not None and block.ffn.w1 is ffn.readers[0].weight
    assert (block.dims.ffn, block.tokens, block.merged) == (6, 5, True)
    assert BlockLayers(ffn.module, None, None).read().ffn is None


def test_a_forward_pass_ends_where_the_asked_module_is_called() -> None:
    first, second, third = nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(5, 1)  # the third does not fit
    x = torch.randn(2, 2)
    captured = first_input(second, lambda: third(second(first(x))))
    assert torch.equal(captured, first(x)) and second(captured).shape == (2, 4)


class Asked(nn.Module):
    """Attention of queries that it has as a parameter, behind a layer that is called on them."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.first = nn.Parameter(torch.randn(1, 5, 8)), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.first.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(tokens)
        found = self.attention(found, found, found)[0]
        return self.first(self.queries) @ found.mT


def test_macs_are_counted_of_fused_attention_and_of_layers_called_on_parameters() -> None:
    module, tokens = Asked().eval(), torch.randn(1, 6, 8)
    attention = 4 * 6 * 8 * 8 + 2 * 6 * 6 * 8
    expected = attention + 2 * 6 * 8 * 16 + attention + 5 * 8 * 8 + 5 * 6 * 8
    assert counted_macs(module, lambda: module(tokens)) == expected
    assert module.queries.requires_grad and not module.first.weight.requires_grad
    assert torch.backends.mha.get_fastpath_enabled()
