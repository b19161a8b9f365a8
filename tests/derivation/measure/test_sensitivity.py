"""What the answers feel is told in nats, for any way in which a little is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from letterboxed import content_of, letterboxed

from edgevit.derivation.measure.sensitivity import Sensitivity, measure_sensitivity
from edgevit.errors import DataError
from edgevit.network.copies import bare_copy
from edgevit.network.network import Network
from edgevit.network.output import Features
from edgevit.train.passes import open_passes
from edgevit.train.settings import Training


def _felt(network: Any, task: Any, restored: Any = None) -> list[Sensitivity]:
    outputs, passes = range(network.module.head.out_features), open_passes(Training(device="cpu"))
    return measure_sensitivity(
        network.with_columns(outputs), task.train.subset(128), passes, restored=restored, stage=""
    )


def _images(task: Any, count: int = 128) -> torch.Tensor:
    return torch.cat([batch for batch, _ in task.train.subset(count).batches(32)])


@pytest.mark.parametrize("restored", [False, True], ids=["", "mean restored"])
@pytest.mark.parametrize("block", [0, 1])
def test_the_predicted_loss_of_a_head_is_what_weakening_it_a_little_costs(
    block: int, restored: bool, network: Any, task: Any
) -> None:
    means = torch.randn(2, 2, 32, generator=torch.Generator().manual_seed(0)) / 4  # of any size: [blocks, H, v]
    felt, images, share = _felt(network, task, list(means) if restored else None), _images(task), 0.05
    for head in range(2):
        weaker = bare_copy(network)
        with torch.no_grad():
            part = weaker.read()[block].attention
            if restored:
                part.bo.add_(share * part.wo[head] @ means[block, head])
            part.wo[head] *= 1 - share
            whole, changed = (F.log_softmax(n(images).double(), 1) for n in (network, weaker))
        measured = float(F.kl_div(changed, whole, log_target=True, reduction="batchmean")) / share**2
        assert float(felt[block].heads[head]) == pytest.approx(measured, rel=0.35)


def test_tokens_that_no_answer_depends_on_weigh_least(network: Any, task: Any) -> None:
    attention, ffn = _felt(network, task)[-1].by_token
    assert attention.argmax() == ffn.argmax() == 0  # after the last block only the class token is read
    torch.testing.assert_close(ffn[1:], torch.full_like(ffn[1:], 0.1))
    torch.testing.assert_close(ffn.mean(), torch.ones_like(ffn.mean()))


class _Recorded:
    """The gradients of what each FFN adds, and which of its tokens are no padding."""

    def __init__(self, network: Any) -> None:
        self.network, self.outputs = network, [torch.empty(0)] * len(network.dims)
        self.gradients: list[list[torch.Tensor]] = [[] for _ in self.outputs]
        self.real: list[list[torch.Tensor]] = [[] for _ in self.outputs]
        self.observers = [(network.ffn_outputs, lambda i, _, output: self.outputs.__setitem__(i, output))]

    def recorded(self) -> list[torch.Tensor]:
        return self.outputs

    def take(self, gradients: list[torch.Tensor]) -> None:
        for i, gradient in enumerate(gradients):
            real = self.network.real_tokens(gradient)
            self.gradients[i].append(gradient.double())
            self.real[i].append(torch.ones_like(gradient[..., 0]) if real is None else real)


@pytest.mark.parametrize("function", ["any_size", "masks_any_size"])
def test_a_token_matters_as_in_the_images_in_which_it_is_no_padding(function: str, tmp_path: Any) -> None:
    network, images = letterboxed(function, tmp_path)
    by_hand = _Recorded(network)
    felt = measure_sensitivity(network, images, open_passes(Training(device="cpu")), also=[by_hand], stage="")
    for of_block, gradients, real in zip(felt, by_hand.gradients, by_hand.real, strict=True):
        g, weight = torch.cat(gradients), torch.cat(real).double()
        expected = (g.square().sum(2) * weight).sum(0) / weight.sum(0).clamp_min(1)
        torch.testing.assert_close(of_block.ffn, expected, rtol=1e-6, atol=1e-15)
        expected = torch.einsum("bnd,bne,bn->de", g, g, weight) / len(images)
        torch.testing.assert_close(of_block.metric, expected, rtol=1e-4, atol=1e-9)
    grid = [(4, 4), (8, 8)][function == "masks_any_size"]
    content = content_of(images, grid)
    assert torch.equal(torch.cat(by_hand.real[0])[:, -content.shape[1] :].bool(), content)
    assert weight.sum(0).min() > 0 and content.float().mean(0).min() < 0.85


def test_gradients_that_are_no_numbers_name_their_block(network: Any, task: Any) -> None:
    broken = bare_copy(network)
    with torch.no_grad():
        broken.module.blocks[1].mlp.fc2.bias[3] = float("nan")
    with pytest.raises(DataError, match="the gradients of block 0 are not finite; check the base's weights"):
        _felt(broken, task)


def test_features_without_a_classifier_are_felt(small_vit: Any, task: Any) -> None:
    """Twice the features are felt four times as much, and in units of themselves no more."""
    network, images = small_vit(num_classes=0), task.train.subset(16)
    assert isinstance(network.output, Features)
    passes, found = open_passes(Training(device="cpu")), []
    for gain, scale in ((1.0, None), (2.0, None), (2.0, torch.full((64,), 2.0))):
        louder = Network(bare_copy(network.module), network.family, Features(scale))
        with torch.no_grad():
            for parameter in louder.module.norm.parameters():
                parameter.mul_(gain)
        found.append(measure_sensitivity(louder, images, passes, stage=""))
    for plain, louder, scaled in zip(*found, strict=True):
        for name, felt in vars(plain).items():
            assert felt.isfinite().all() and felt.abs().max() > 0, name
            torch.testing.assert_close(vars(louder)[name], 4 * felt, rtol=1e-3, atol=1e-9)
            torch.testing.assert_close(vars(scaled)[name], felt, rtol=1e-3, atol=1e-9)
