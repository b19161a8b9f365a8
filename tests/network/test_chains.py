"""Chains of layers behind a backbone: found by what changes, and cut without changing anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dense_networks import write_depth
from detectors import write_detectors
from torch import Tensor, nn

from edgevit.network.chains import (
    as_rows,
    channels_last,
    find_chains,
    macs_of,
    outputs_of,
    set_rows,
    shrink,
    takes_constants,
    whole_run,
)
from edgevit.network.copies import bare_copy
from edgevit.network.opening import open_network

pytestmark = pytest.mark.usefixtures("own_cache")

HEADS = """

class Head(Depth):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.more()

    def more(self):
        pass

    def start(self, images):
        features = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        return F.relu(self.reduce(torch.cat(features, 1)))

    def forward(self, images):
        return self.last(F.relu(self.up(self.head(self.start(images)))))

class Residual(Head):
    def head(self, x):
        return x + self.b(F.gelu(self.a(x)))

class Joined(Head):
    def more(self):
        self.up = nn.ConvTranspose2d(32, 8, 4, 2, 1)

    def head(self, x):
        return torch.cat([self.a(x), self.b(x)], 1)

class Levels(Head):
    def head(self, x):
        small = F.avg_pool2d(x, 2)
        outputs = [self.b(F.relu(self.a(level), inplace=True)) for level in (x, small)]
        return outputs[0] + F.interpolate(outputs[1], scale_factor=2)

class Depthwise(Head):
    def more(self):
        self.each, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.InstanceNorm2d(16, affine=True)

    def head(self, x):
        return self.b(F.relu(self.norm2(F.interpolate(self.each(self.a(x)), scale_factor=2)), inplace=True))

class Mixed(Head):
    def more(self):
        self.groups = nn.GroupNorm(4, 16)

    def head(self, x):
        return self.b(self.groups(self.a(x)))

class Grouped(Head):
    def more(self):
        self.b = nn.Conv2d(16, 16, 1, groups=2)

    def head(self, x):
        return self.b(self.a(x))

class Positions(Head):
    def more(self):
        self.positions = nn.Parameter(torch.randn(16, 1, 1))

    def head(self, x):
        return self.b(self.a(x) + self.positions)

class Tokens(Head):
    def more(self):
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 16)

    def head(self, x):
        return self.two(F.gelu(self.one(x.flatten(2).mT))).mT.unflatten(2, x.shape[2:])

class Twice(Head):
    def more(self):
        self.c = nn.Conv2d(16, 16, 1)

    def head(self, x):
        y = self.a(x)
        return self.b(y) + self.c(y)

class Otherwise(Twice):
    def head(self, x):
        y = self.a(x)
        return self.b(y) + self.c(F.relu(y))

class Named(Head):
    def head(self, x):
        return self.b(input=self.a(x))

class Swapped(Head):
    def head(self, x):
        y = self.a(x)
        return self.b(torch.cat([y[:, -1:], y[:, 1:-1], y[:, :1]], 1))

class Summed(Head):
    def head(self, x):
        y = self.a(x)
        return self.b(torch.cat([y[:, :1] + y[:, 1:2], y[:, 1:]], 1))

class Fourth(Head):
    def head(self, x):
        y = self.a(x)
        return self.b(y) * y[:, 3:4].sigmoid()

class Counted(Head):
    def head(self, x):
        y = self.a(x)
        return self.b(y) / y.shape[1]

class Weighed(Head):
    def head(self, x):
        return self.b(self.a(x)) * self.a.weight.norm()

class WeighedLast(Head):
    def forward(self, images):
        return self.last(self.up(self.b(self.start(images)))) * self.b.bias.norm()

class Standardised(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight / weight.norm(), bias)

class Normed(Head):
    def more(self):
        self.b = Standardised(16, 16, 1)

    def head(self, x):
        return self.b(self.a(x))

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(-1, 3, 16), persistent=False)

    def forward(self, x):
        return x * self.scale[:, None, None]

class Volatile(Head):
    def more(self):
        self.scale = Scale()

    def head(self, x):
        return self.b(self.scale(self.a(x)))

class Hungry(Head):
    left = 1000  # runs until memory is full

    def head(self, x):
        type(self).left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA is full")
        return self.b(F.relu(self.a(x)))

class Before(Head):
    def more(self):
        self.a, self.b = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 8, stride=8)

    def forward(self, images):
        y = self.a(images)
        return self.last(F.relu(self.up(self.start(y.mean(1, keepdim=True).expand(-1, 3, -1, -1)) + self.b(y))))
"""
IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = write_depth(tmp_path_factory.mktemp("mine"))
    file.write_text(file.read_text() + HEADS)
    return file


def opened(file: Path, function: str) -> Any:
    return open_network(f"{file}:{function}").eval()  # type: ignore[union-attr]


def test_memory_that_runs_out_is_no_fault_of_a_layer(file: Path) -> None:
    network = opened(file, "Hungry")
    hungry = type(network.module)
    hungry.left = 1000
    assert "a" in {chain.layer for chain in find_chains(network, IMAGES).found}
    for runs in range(1000 - hungry.left):
        hungry.left = runs
        with pytest.raises(torch.OutOfMemoryError):
            find_chains(network, IMAGES)


@pytest.mark.parametrize(
    ("function", "chains"),
    [
        ("Depth", {"reduce": (("norm",), ("up",)), "up": ((), ("last",))}),
        ("Residual", {"a": ((), ("b",)), "up": ((), ("last",))}),
        ("Joined", {"reduce": ((), ("a", "b")), "up": ((), ("last",))}),
        ("Levels", {"reduce": ((), ("a",)), "a": ((), ("b",)), "b": ((), ("up",)), "up": ((), ("last",))}),
        ("Depthwise", {"reduce": ((), ("a",)), "a": (("each", "norm2"), ("b",)), "b": ((), ("up",))}),
        ("Mixed", {"reduce": ((), ("a",)), "b": ((), ("up",))}),
        ("Grouped", {"reduce": ((), ("a",)), "up": ((), ("last",))}),
        ("Positions", {"reduce": ((), ("a",)), "b": ((), ("up",))}),
        ("Tokens", {"reduce": ((), ("one",)), "one": ((), ("two",)), "two": ((), ("up",))}),
        ("Twice", {"a": ((), ("b", "c"))}),
        ("Otherwise", {"up": ((), ("last",))}),
    ],
)
def test_chains_are_those_whose_channels_reach_the_same_channels_alone(
    file: Path, function: str, chains: dict[str, Any]
) -> None:
    network = opened(file, function)
    found = find_chains(network, IMAGES)
    listed = {chain.layer: (chain.between, chain.readers) for chain in found.found}
    assert {name: listed.get(name) for name in chains} == chains
    assert all(getattr(network.module, chain.layer).weight.isfinite().all() for chain in found.found)


@pytest.mark.parametrize(
    ("function", "layer", "reason"),
    [
        ("Depth", "last", "gives an output of the network"),
        ("Residual", "reduce", "is combined with something of as many channels: The size of tensor"),
        ("Residual", "b", "is combined with something of as many channels"),
        ("Joined", "a", "reaches up otherwise than channel by channel"),
        ("Mixed", "a", "reaches b otherwise than channel by channel"),
        ("Grouped", "a", "is read by b, a convolution of groups"),
        ("Grouped", "b", "is a convolution of groups"),
        ("Positions", "a", "is combined with something of as many channels"),
        ("Otherwise", "a", "is read otherwise by c than by b"),
        ("Named", "a", "is read by no layer"),
        ("Named", "b", "is given its input by name"),
        ("Swapped", "a", "reaches b otherwise than channel by channel"),
        ("Summed", "a", "reaches b otherwise than channel by channel"),
        ("Fourth", "a", "reaches up otherwise than channel by channel"),
        ("Counted", "a", "changes what up reads by its number of channels or its weights"),
        ("Weighed", "a", "changes what up reads by its number of channels or its weights"),
        ("Weighed", "reduce", "changes what up reads by its number of channels or its weights"),
        ("WeighedLast", "b", "changes an output by its number of channels or its weights"),
        ("Normed", "a", "is read by b, which is not linear in its weights"),
        ("Volatile", "a", "is read by scale, whose buffer is not kept in weights files"),
        ("Before", "a", "reaches an output or the backbone, too"),
    ],
)
def test_a_layer_that_begins_no_chain_has_a_reason(file: Path, function: str, layer: str, reason: str) -> None:
    reasons = find_chains(opened(file, function), IMAGES).reasons
    assert reasons[layer].startswith(reason)


@pytest.fixture(scope="module")
def detectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detectors(tmp_path_factory.mktemp("detectors"))


@pytest.mark.parametrize(
    ("function", "layers"),
    [
        ("build", ["rpn.head.conv.0.0", "roi_heads.box_head.fc6", "roi_heads.box_head.fc7"]),
        ("retina", [f"head.{kind}_head.conv.{i}.0" for kind in ("classification", "regression") for i in range(4)]),
    ],
)
def test_heads_of_a_detector_are_one_layer_with_a_call_for_each_level(
    detectors: Path, function: str, layers: list[str]
) -> None:
    network = opened(detectors, function)
    found = find_chains(network, torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert [chain.layer for chain in found.found] == [f"detector.{layer}" for layer in layers]
    assert not any("backbone" in name for name in found.reasons)
    if function == "build":
        assert found.found[0].readers == ("detector.rpn.head.cls_logits", "detector.rpn.head.bbox_pred")
        assert {*found.ends} > {*found.found[0].readers}


@pytest.mark.parametrize("function", ["Depth", "Levels", "Depthwise", "Tokens", "Twice"])
def test_cut_gives_what_masked_gives(file: Path, function: str) -> None:
    network = opened(file, function)
    for chain in find_chains(network, IMAGES).found:
        keep = torch.arange(chain.channels)[1::2]
        masked, cut = bare_copy(network.module), bare_copy(network.module)
        for name in chain.readers:
            reader: Any = masked.get_submodule(name)
            rows = as_rows(reader).clone()
            rows[:, ::2] = 0
            set_rows(reader, rows, None)
        shrink(cut, chain, keep)
        with torch.inference_mode():
            torch.testing.assert_close(cut(IMAGES), masked(IMAGES), rtol=1e-4, atol=1e-5)
        first: Any = cut.get_submodule(chain.layer)
        assert outputs_of(first) == len(keep) and sum(p.numel() for p in cut.parameters()) < sum(
            p.numel() for p in network.parameters()
        )


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 4),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.Conv2d(6, 4, 3),
        nn.ConvTranspose2d(6, 4, 4, 2, 1),
        nn.ConvTranspose2d(6, 4, 2, 2),
    ],
    ids=["linear", "padded", "unpadded", "transposed", "doubling"],
)
@torch.no_grad()
def test_rows_are_the_weights_of_each_output_and_position_of_the_kernel(layer: Any) -> None:
    values = torch.randn(2, 5, 6) if isinstance(layer, nn.Linear) else torch.randn(2, 6, 5, 5)
    before, rows = layer(values), as_rows(layer)
    kernel = rows.shape[0] // 4
    assert rows.shape == (4 * kernel, 6) and channels_last(layer, values).shape[-1] == 6
    positions = values if isinstance(layer, nn.ConvTranspose2d) else before
    assert macs_of(layer, values, before) == positions.numel() * rows.numel() // (
        6 if isinstance(layer, nn.ConvTranspose2d) else 4
    )
    set_rows(layer, rows, None)
    torch.testing.assert_close(layer(values), before)
    set_rows(layer, rows, torch.ones(4 * kernel))
    torch.testing.assert_close(layer(values), before + kernel)
    shifted: Tensor = layer(values + 1)
    constant = rows.reshape(4, kernel, 6).sum((1, 2))
    constant = constant if isinstance(layer, nn.Linear) else constant[:, None, None]
    exact = torch.allclose(shifted, before + kernel + constant, atol=1e-4)
    assert exact == takes_constants(layer), "zeros at the edges are no constant"


def test_a_detector_is_run_as_a_whole(detectors: Path) -> None:
    network = opened(detectors, "build")
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        boxes: Any = whole_run(network, images)
        assert {*boxes[0]} == {"boxes", "labels", "scores"}
