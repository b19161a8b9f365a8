"""WPAC changes no logit before anything is dropped, and puts what matters first."""

import pytest
import torch

from edgevit.data.task import open_task
from edgevit.derivation.measure.statistics import calibrate
from edgevit.derivation.methods.skd.piad import cut, measure_importance
from edgevit.derivation.methods.skd.wpac import concentrate, feature_covariances, rotate, rotate_published
from edgevit.derivation.solve.attention import narrow
from edgevit.network.anatomy import Block, BlockDims, attentions
from edgevit.network.model import describe


@pytest.fixture(scope="module")
def task(small_vit):
    return open_task("digits", None, preprocessing=describe(small_vit(), "x", {}).preprocessing, base_outputs=10)


def slim(network):
    """A network whose QK and VO widths differ."""
    return cut(network, [BlockDims(2, 24, 16, 100), BlockDims(2, 16, 32, 256)])


def with_attentions(network, made):
    with torch.no_grad():
        return network.build([Block(a, b.ffn) for a, b in zip(made, network.read(), strict=True)])


VARIANTS = {"plain": {}, "no qkv bias": {"qkv_bias": False}, "scaled": {"init_values": 0.1, "global_pool": "avg"}}


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("variant", [*VARIANTS, "slim"])
def test_logits_are_unchanged_biases_included(small_vit, task, passes, variant, as_published):
    network = slim(small_vit()) if variant == "slim" else small_vit(**VARIANTS[variant])
    images = next(iter(task.validation.batches(32)))[0]
    columns = network.with_columns(list(range(10)))
    made = concentrate(columns, task.train.subset(48), passes, as_published=as_published)
    with torch.no_grad():
        torch.testing.assert_close(made(images), network(images), rtol=1e-5, atol=1e-5)
    before, after = network.read(), made.read()
    assert not torch.allclose(before[0].attention.wq, after[0].attention.wq)
    assert not torch.equal(before[0].ffn.w1, after[0].ffn.w1)


def test_slices_of_untrained_attention_are_the_best_factors_for_the_tokens(small_vit, task, passes):
    network = small_vit()
    taken = calibrate(network, task.train.subset(48), passes, factorisation="tokens")
    moments, parts = [s.moment for s in taken], attentions(network.read())
    dims = [BlockDims(2, 8, 16, 256), BlockDims(2, 24, 8, 256)]
    expected = with_attentions(network, narrow(parts, [(d.qk, d.vo) for d in dims], moments))
    rotated = with_attentions(network, rotate(parts, moments))
    images = next(iter(task.validation.batches(32)))[0]
    with torch.no_grad():
        # Also the means of the values that are dropped: they lie in the output bias from the start.
        torch.testing.assert_close(cut(rotated, dims)(images), expected(images), rtol=1e-4, atol=1e-4)
        assert (expected(images) - network(images)).abs().max() > 1e-2


def test_slices_without_value_biases_lose_no_more_than_the_best_factors(small_vit, task, passes):
    """Eckart and Young: of W_O W_V R, with R R^T the second moment of the tokens, what is left out of its spectrum."""
    network = small_vit(qkv_bias=False)
    with torch.no_grad():
        for block in network.module.blocks:
            block.norm1.bias.normal_(0, 0.5)  # tokens whose mean is not small
    moments = [s.moment for s in calibrate(network, task.train.subset(48), passes, factorisation="activations")]
    parts = attentions(network.read())
    for part, made, moment in zip(parts, rotate(parts, moments), moments, strict=True):
        values, vectors = torch.linalg.eigh(moment[:-1, :-1].double())
        root = vectors * values.clamp_min(0).sqrt()
        whole, slim = (a.wo.detach().double() @ a.wv.detach().double() @ root for a in (part, made.first(32, 8)))
        least = torch.linalg.svdvals(whole)[:, 8:].square().sum()
        lost = (whole - slim).square().sum()
        assert made.bv is None and float(lost) == pytest.approx(float(least), rel=1e-2)


@pytest.mark.parametrize("tokens", [1, 3])
def test_moments_of_fewer_tokens_than_dimensions_leave_the_function_alone(small_vit, tokens):
    network = small_vit()
    x = torch.randn(tokens, 65, dtype=torch.float64)
    x[:, -1] = 1
    rotated = with_attentions(network, rotate(attentions(network.read()), [x.mT @ x / tokens] * 2))
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(rotated(images), network(images), rtol=1e-4, atol=1e-4)


def test_neurons_come_in_falling_order_of_importance(small_vit, task, passes):
    images = task.train.subset(48)
    made = concentrate(small_vit(), images, passes)
    importance = measure_importance(made, images, passes)
    for block in range(2):
        scores = importance.taylor[block, "ffn"]
        assert (scores[1:] <= scores[:-1] * (1 + 1e-4)).all()
        assert scores[0] > 2 * scores[-1] > 0


@pytest.mark.parametrize("weighting", ["tokens", "elements", "dimensions", "alike"])
def test_the_published_components_are_those_of_the_weighted_features(small_vit, task, passes, weighting):
    network = small_vit().with_columns(list(range(10)))
    images, labels = next(iter(task.train.subset(24).batches(24)))
    taken = []
    hook = network.projections[1].register_forward_hook(lambda _, __, output: taken.append(output))
    loss = torch.nn.functional.cross_entropy(network.eval()(images), labels, reduction="sum")
    hook.remove()
    (gradient,) = torch.autograd.grad(loss, taken)
    widths = [(24, 17, 3, 2, 32)] * 2  # images, tokens, kinds, heads, dimensions
    feature, slope = (t.detach().double().reshape(shape) for t, shape in zip((taken[0], gradient), widths, strict=True))
    expected = []
    for kind in range(3):
        x, g = (t[:, :, kind, 1].flatten(0, 1) for t in (feature, slope))  # of the second head
        worth = (x * g).abs()
        weight = {
            "tokens": worth.sum(1, keepdim=True), "elements": worth, "dimensions": worth.sum(0), "alike": 1.0,
        }[weighting]  # fmt: skip
        rows = (x - x.mean(0)) * torch.as_tensor(weight).sqrt()
        expected.append(rows.mT @ rows / (len(rows) - 1))
    of_blocks = feature_covariances(network, task.train.subset(24), passes, weighting)
    for found, wanted in zip(of_blocks[1], (expected[0] + expected[1], expected[2]), strict=True):
        torch.testing.assert_close(found[1], wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    part = attentions(network.read())[1]
    turned = rotate_published([part], of_blocks[1:])[0]
    values, vectors = torch.linalg.eigh(expected[2])
    first = vectors[:, -1].float() @ part.wv[1]
    sign = torch.sign((first * turned.wv[1, 0]).sum())
    torch.testing.assert_close(turned.wv[1, 0], sign * first, rtol=1e-2, atol=1e-3)
    assert values[-1] > values[-2]
