import measured
import pytest
import torch
import torch.nn.functional as F
from forks import in_two_processes
from letterboxed import content_of, letterboxed
from safetensors.torch import load_file

from edgevit.data.task import open_task
from edgevit.derivation.measure.statistics import (
    add_outer,
    calibrate,
    check_enough,
    minimum_images,
    symmetric,
)
from edgevit.derivation.measure.thinning import Thinning
from edgevit.errors import DataError
from edgevit.train import passes
from edgevit.train.passes import observed, open_passes
from edgevit.train.settings import Training

PREPROCESSING = {
    "input_size": (3, 32, 32), "interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "center",
    "mean": (0.5,) * 3, "std": (0.5,) * 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def task():
    return open_task("digits", "1,4,7", preprocessing=PREPROCESSING, base_outputs=10)


def take(network, images, **more):
    return calibrate(network, images, open_passes(Training(device="cpu")), **more)


@pytest.mark.parametrize("width", [1, 5, 64, 67])
def test_outer_products_add_up_to_the_whole_symmetric_matrix(width):
    x, weight = torch.randn(50, width), torch.rand(50)
    total = torch.zeros(width, width, dtype=torch.float64)
    for part, w in zip(x.split(20), weight.split(20), strict=True):
        add_outer(total, part, w)
    expected = x.double().mT @ (x * weight[:, None]).double()
    torch.testing.assert_close(symmetric(total), expected, rtol=1e-5, atol=1e-5)  # fp32 products


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_sums_on_a_gpu_have_the_bits_of_fp32_where_tf32_is_allowed():
    torch.set_float32_matmul_precision("high")
    try:
        x = torch.randn(3000, 256, generator=torch.Generator().manual_seed(0))
        total = torch.zeros(256, 256, dtype=torch.float64, device="cuda")
        add_outer(total, x.cuda())
        rough = x.cuda().mT @ x.cuda()
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = x.double().mT @ x.double()
    assert (rough.cpu() - exact).abs().max() > 0.03, "TF32 is what it must be guarded against"
    assert (symmetric(total).cpu() - exact).abs().max() < 0.003


def test_all_statistics_are_those_of_the_tokens_whatever_the_batches(small_vit, task, monkeypatch):
    monkeypatch.setattr(passes, "IMAGES", 8)
    network, images = small_vit(), task.train.subset(32)
    seen = {}
    block = network.module.blocks[1]
    hooks = [
        block.mlp.act.register_forward_hook(lambda _, __, out: seen.update(h=out.flatten(0, 1).double())),
        block.attn.register_forward_hook(lambda _, given, __: seen.update(x=given[0].flatten(0, 1).double())),
    ]
    with torch.no_grad():
        network(next(images.batches(32))[0])
    for hook in hooks:
        hook.remove()
    taken = take(network, images, factorisation="activations", hidden=True)[1]
    h, x = seen["h"], seen["x"]
    ones = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    close = {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(taken.activation, h.sum(0) / 32, **close)
    torch.testing.assert_close(taken.magnitude, h.abs().mean(0), **close)
    torch.testing.assert_close(taken.mean, h.mean(0), **close)
    torch.testing.assert_close(taken.hidden, h.mT @ h / len(h), **close)
    torch.testing.assert_close(taken.moment, ones.mT @ ones / len(x), **close)
    how = {"factorisation": "activations", "hidden": True}
    thinned = take(network, images, **how, thinnings=[Thinning(3, 17, 1)] * 2)[1]
    places = torch.arange(8 * 17)  # batch by batch: every class token, and one in three of the others for three
    weights = torch.where(places % 17 == 0, 1.0, 3.0 * (places % 3 == 0)).repeat(4).to(h)[:, None]
    torch.testing.assert_close(thinned.mean, (weights * h).sum(0) / weights.sum(), **close)
    torch.testing.assert_close(thinned.hidden, h.mT @ (weights * h) / weights.sum(), **close)
    torch.testing.assert_close(thinned.activation, (weights * h).sum(0) / 32, **close)
    torch.testing.assert_close(thinned.moment, ones.mT @ (weights * ones) / weights.sum(), **close)


@pytest.mark.parametrize(
    ("function", "prefix", "grids"),
    [
        ("any_size", 1, [(4, 4)] * 2),
        pytest.param("masks_any_size", 0, [(8, 8), (8, 8), (4, 4), (2, 2)], marks=pytest.mark.slow),
    ],
)
def test_tokens_of_padding_weigh_a_tenth(function, prefix, grids, tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "IMAGES", 5)
    network, images = letterboxed(function, tmp_path)
    real = [F.pad(content_of(images, grid), (prefix, 0), value=True) for grid in grids]
    assert 0.3 < real[0][:, prefix:].float().mean() < 0.95
    by_token = [(torch.rand(each.shape[1]) + 0.5, torch.rand(each.shape[1]) + 0.5) for each in real]
    how = {"factorisation": "activations", "hidden": True, "by_token": by_token}
    inputs, neurons = ([[] for _ in grids] for _ in range(2))
    seen = observed(network.attention_inputs, lambda i, read, _: inputs[i].append(read[0]))
    with seen, observed(network.ffn_outputs, lambda i, read, _: neurons[i].append(read[0])):
        statistics = take(network, images, **how)
    for i, (of_block, weights) in enumerate(zip(real, by_token, strict=True)):
        h, x = (torch.cat(batches[i]).flatten(0, 1).double() for batches in (neurons, inputs))
        share = of_block.double().clamp_min(0.1)
        of_query, of_ffn, share = ((w * share).reshape(-1, 1) for w in (*weights, torch.ones(())))
        ones, close = torch.cat([x, x.new_ones(len(x), 1)], dim=1), {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(statistics[i].mean, (of_ffn * h).sum(0) / of_ffn.sum(), **close)
        torch.testing.assert_close(statistics[i].hidden, h.mT @ (of_ffn * h) / of_ffn.sum(), **close)
        torch.testing.assert_close(statistics[i].moment, ones.mT @ (share * ones) / share.sum(), **close)
        torch.testing.assert_close(statistics[i].query, ones.mT @ (of_query * ones) / share.sum(), **close)


def test_tokens_are_weighted_by_what_the_loss_would_lose_with_them(small_vit, task, monkeypatch):
    monkeypatch.setattr(passes, "IMAGES", 5)
    network, images = small_vit(), task.train.subset(12)
    columns = task.base_columns
    taken = take(network.with_columns(columns), images, factorisation="tokens")[0]
    kept = []
    hook = network.module.blocks[0].attn.register_forward_hook(lambda _, given, __: kept.append(given[0]))
    total, weights = torch.zeros(65, 65, dtype=torch.float64), 0.0
    for batch, labels in images.batches(1):  # one image at a time: no image's loss reaches another's tokens
        kept.clear()
        loss = F.cross_entropy(network(batch), torch.tensor(columns)[labels])
        (gradient,) = torch.autograd.grad(loss, kept)
        x = kept[0][0].double()
        weight = (x * gradient[0]).abs().sum(1)
        ones = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        total, weights = total + ones.mT @ (ones * weight[:, None]), weights + weight.sum()
    hook.remove()
    torch.testing.assert_close(taken.moment, (total / weights).detach(), rtol=1e-3, atol=1e-5)
    assert all(p.grad is None for p in network.parameters())


def test_too_few_calibration_images_are_refused_with_the_fewest_that_do(small_vit):
    network = small_vit()
    least = minimum_images(network)
    assert least == -(-257 // 17)  # widest layer: 256 neurons; 16 patches and the class token
    check_enough(least, least, network, "nuwa.calibration_images")
    few = f"5 calibration images give 85 tokens, and the widest layer needs {least} images of 17; "
    for asked, there, told in (
        (5, 100, "raise nuwa.calibration_images"),
        (128, 5, "add images"),
        (5, 6, "raise nuwa.calibration_images and add images"),
    ):
        with pytest.raises(DataError, match=f"{few}{told}$"):
            check_enough(asked, there, network, "nuwa.calibration_images")


def test_statistics_that_are_no_numbers_name_their_block(small_vit, task):
    network = small_vit()
    with torch.no_grad():
        network.module.blocks[1].mlp.fc1.bias[3] = float("nan")
    with pytest.raises(DataError, match="activation of block 1 is not finite"):
        take(network, task.train.subset(4))


@pytest.mark.slow
def test_two_processes_measure_the_same_as_one(tmp_path):
    in_two_processes(measured.__file__, tmp_path / "two")
    measured.measure(tmp_path / "one")
    one, two = load_file(tmp_path / "one"), load_file(tmp_path / "two")
    assert (int(one.pop("processes")), int(two.pop("processes"))) == (1, 2) and one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
