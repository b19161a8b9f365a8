"""Purification's masks: which neurons they keep, what gradients they pass on, and which anchor is the best."""

import pytest
import torch

from edgevit.derivation.methods.nuwa.purify import _Best, _Binarised, masks_applied


@pytest.mark.parametrize(("beta", "kept"), [(5.0, 12), (0.0, 6), (-1.0, 4), (-20.0, 1)])
def test_a_mask_keeps_as_many_of_its_largest_entries_as_its_scalar_says(beta, kept):
    mask = torch.arange(12.0, requires_grad=True)
    binary = _Binarised.apply(mask, torch.tensor(beta, requires_grad=True))
    assert binary.tolist() == [0.0] * (12 - kept) + [1.0] * kept


def test_gradients_go_straight_through_to_the_mask_and_summed_over_the_kept_to_the_scalar():
    mask, beta = torch.arange(4.0, requires_grad=True), torch.tensor(0.0, requires_grad=True)
    slope = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.autograd.backward((_Binarised.apply(mask, beta) * slope).sum())
    assert mask.grad.tolist() == slope.tolist() and float(beta.grad) == 7.0


def test_a_masked_neuron_no_longer_reaches_the_output(small_vit):
    network, images = small_vit(), torch.randn(2, 3, 32, 32)
    masks = [torch.ones(256), (torch.arange(256) % 2).float()]
    with torch.no_grad():
        with masks_applied(network, masks):
            seen = network(images)
        whole = network(images)
        network.read()[1].ffn.w2[:, ::2] = 0
        torch.testing.assert_close(seen, network(images))
    assert not torch.allclose(seen, whole)


def test_of_equally_good_anchors_the_one_with_fewer_neurons_is_kept():
    best = _Best(-1.0, [])
    for accuracy, neurons in ((0.5, 8), (0.5, 6), (0.4, 2), (0.5, 7)):
        best.offer(accuracy, [torch.ones(neurons)])
    assert best.accuracy == 0.5 and len(best.masks[0]) == 6
