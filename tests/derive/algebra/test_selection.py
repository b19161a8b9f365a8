"""Dimensions that are left out: the function of those that stay is the base's."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from edgevit.derive.algebra.selection import channel_encoder, keep_dimensions
from edgevit.models.anatomy import Attention, decoder

H, Q, V, D = 3, 4, 5, 7


def random_attention(seed: int = 0, *, bias: bool = True) -> Attention:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def of(*shape: int) -> Tensor | None:
        return drawn(*shape) if bias else None

    return Attention(
        drawn(H, Q, D), of(H, Q), drawn(H, Q, D), of(H, Q), drawn(H, V, D), of(H, V), drawn(H, D, V), drawn(D)
    )


def attend(part: Attention, x: Tensor) -> Tensor:
    """The attention's output for tokens x [N, d], as the anatomy's docstring says it."""
    zero = torch.zeros(())

    def rows(weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.einsum("nd,hwd->hnw", x, weight) + (zero if bias is None else bias.unsqueeze(1))

    q, k, v = rows(part.wq, part.bq), rows(part.wk, part.bk), rows(part.wv, part.bv)
    weights = (q @ k.mT / part.qk**0.5).softmax(-1)
    out = torch.einsum("hnv,hdv->nd", weights @ v, part.wo)
    return out if part.bo is None else out + part.bo


def test_what_is_kept_does_what_the_base_does_with_the_rest_at_zero() -> None:
    for bias in (True, False):
        part = random_attention(bias=bias)
        heads, qk, vo = [0, 2], torch.tensor([[1, 3], [0, 2]]), torch.tensor([[0, 1, 4], [2, 3, 4]])
        slim = keep_dimensions(part, heads, qk, vo)
        assert (slim.heads, slim.qk, slim.vo) == (2, 2, 3)
        masked = {name: torch.zeros_like(getattr(part, name)) for name in ("wq", "wk", "wv", "wo")}
        for new, old in enumerate(heads):
            masked["wq"][old, qk[new]], masked["wk"][old, qk[new]] = part.wq[old, qk[new]], part.wk[old, qk[new]]
            masked["wv"][old, vo[new]] = part.wv[old, vo[new]]
            masked["wo"][old][:, vo[new]] = part.wo[old][:, vo[new]]
        biases: dict[str, Tensor] = {}
        for name, kept in (("bq", qk), ("bk", qk), ("bv", vo)):
            if (whole := getattr(part, name)) is not None:
                biases[name] = torch.zeros_like(whole)
                for new, old in enumerate(heads):
                    biases[name][old, kept[new]] = whole[old, kept[new]]
        whole = replace(part, **masked, **biases)
        # A head without queries attends alike to all tokens, but its output weights are zero.
        x = torch.randn(6, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        torch.testing.assert_close(attend(slim, x), attend(whole, x))


def test_everything_kept_is_the_same_attention() -> None:
    part = random_attention()
    everything = keep_dimensions(part, range(H), torch.arange(Q).repeat(H, 1), torch.arange(V).repeat(H, 1))
    for mine, theirs in zip(vars(everything).values(), vars(part).values(), strict=True):
        assert torch.equal(mine, theirs)


def test_readers_of_kept_channels_keep_their_weights_and_a_norm_sees_only_those() -> None:
    channels, width = torch.tensor([0, 3, 5]), 7
    encode = channel_encoder(channels, width)
    reader = torch.randn(4, width, dtype=torch.float64)
    torch.testing.assert_close(reader @ decoder(encode), reader[:, channels])
    x = torch.randn(5, width, dtype=torch.float64)
    normalised = torch.nn.functional.layer_norm(x @ encode.mT, (3,), eps=0.0)
    torch.testing.assert_close(normalised, torch.nn.functional.layer_norm(x[:, channels], (3,), eps=0.0))
