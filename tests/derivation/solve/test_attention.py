"""Factors of attention: no worse than any others of their rank in the norm they are made for, and always finite."""

import pytest
import timm
import torch

from edgevit.derivation.solve.attention import narrow
from edgevit.network.network import Network

KINDS = {"vit": {}, "no qkv bias": {"qkv_bias": False}}


def random_attention(kind):
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 2, "mlp_ratio": 2.0}
    model = Network(timm.create_model("vit_tiny_patch16_224", **sizes, num_classes=7, **KINDS[kind]).eval())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # biases start at zero, where mistakes do not show
    return model.read()[0].attention


MOMENTS = {"one token": 1, "class tokens of 5 images": 5, "fewer tokens than features": 40, "all tokens": 900}


@pytest.mark.parametrize("tokens", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_any_rank_give_finite_factors_no_worse_in_their_own_norm(kind, tokens):
    part = random_attention(kind)
    x = torch.randn(tokens, 64, dtype=torch.float64) @ torch.randn(64, 64, dtype=torch.float64) / 8 + 0.5
    ones = torch.cat([x, x.new_ones(tokens, 1)], dim=1)
    moment = ones.mT @ ones / tokens
    errors = {}
    with torch.no_grad():
        for name, moments in (("weights", None), ("activations", [moment])):
            (slim,) = narrow([part], [(8, 8)], moments)
            assert all(torch.isfinite(t).all() for t in vars(slim).values() if t is not None)
            errors[name] = attention_errors(part, slim, x)
    for plain, aware in zip(errors["weights"], errors["activations"], strict=True):
        assert aware <= plain * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_inputs_are_zero_the_weights_decide(kind):
    part = random_attention(kind)
    moment = torch.zeros(65, 65, dtype=torch.float64)
    moment[-1, -1] = 1  # of the one beside the tokens
    with torch.no_grad():
        (slim,), (plain,) = narrow([part], [(32, 8)], [moment]), narrow([part], [(32, 8)])
        torch.testing.assert_close(slim.wq.mT @ slim.wk, part.wq.mT @ part.wk, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(slim.wo @ slim.wv, plain.wo @ plain.wv, atol=1e-4, rtol=1e-4)


def attention_errors(part, slim, x):
    """Mean square error of the logits, less what a query's keys share, and of the outputs of every head together."""
    centred = x - x.mean(0)

    def logits(b):
        q = torch.einsum("td,hqd->htq", x, b.wq.double()) + (0 if b.bq is None else b.bq.double()[:, None])
        return q @ torch.einsum("td,hqd->htq", centred, b.wk.double()).mT / b.wq.shape[1] ** 0.5

    def outputs(b):
        return torch.einsum("td,hvd,hov->hto", x, b.wv.double(), b.wo.double())

    lost = outputs(part) - outputs(slim)
    lost = lost - lost.mean(1, keepdim=True)  # the mean is in the output bias
    return float((logits(part) - logits(slim)).square().mean()), float(lost.square().sum())
