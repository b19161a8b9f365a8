"""The layers behind a backbone are cut, too: a head of the user's, or what reads the pyramid of a detector."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_networks import write_depth, write_frames
from detectors import write_detectors
from recorded_progress import RecordedProgress
from small_base import assert_same_weights, press_ctrl_c_in_step

import edgevit
from benchmarks import scenes
from edgevit.derivation.allocate.budget import make_budget
from edgevit.derivation.allocate.policy import make_policy
from edgevit.derivation.problem import Problem
from edgevit.derivation.session import rest
from edgevit.derivation.session.opening import open_without_labels
from edgevit.derivation.session.rest import CutRest, RestCosts, RestCutter, check_rest, cut_rest, rest_widths
from edgevit.errors import Interrupted, OptionError
from edgevit.network.chains import find_chains, macs_of, shrink, whole_run
from edgevit.network.copies import bare_copy
from edgevit.network.opening import open_network
from edgevit.progress import Silent
from edgevit.records.model import NarrowedLayer
from edgevit.records.plan import from_ranges
from edgevit.train.settings import Training

pytestmark = pytest.mark.usefixtures("own_cache")

OPTIONS = {"calibration_images": 40, "sensitivity_images": 16, "measured_images": 10}
OF_DETECTORS = {"calibration_images": 24, "sensitivity_images": 12, "measured_images": 6}
HEADS = """

class Deep(Depth):
    def __init__(self):
        super().__init__()
        self.middle = nn.Conv2d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.last = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, images):
        features = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        x = F.relu(self.norm(self.reduce(torch.cat(features, 1))))
        x = F.relu(self.up(F.gelu(self.middle(x))))
        return F.interpolate(self.last(x), size=images.shape[-2:], mode="bilinear")


def deep():
    torch.manual_seed(0)
    module = Deep()
    with torch.no_grad():
        module.last.weight.mul_(100)
    return module


def redundant():
    module = deep()
    with torch.no_grad():  # half of the channels are multiples of the others, behind the norm, too
        module.reduce.weight[8:], module.reduce.bias[8:] = 2 * module.reduce.weight[:8], 2 * module.reduce.bias[:8]
        module.middle.weight[16:], module.middle.bias[16:] = module.middle.weight[:16], module.middle.bias[:16]
        module.up.weight[:, 8:], module.up.bias[8:] = 3 * module.up.weight[:, :8], 3 * module.up.bias[:8]
    return module


class Attention(Deep):
    def __init__(self):
        super().__init__()
        self.queries, self.values, self.middle = nn.Linear(16, 16), nn.Linear(16, 24), nn.Linear(24, 32)

    def forward(self, images):
        features = self.backbone.forward_intermediates(images, indices=[0, 2], intermediates_only=True)
        x = F.relu(self.norm(self.reduce(torch.cat(features, 1)))).flatten(2).mT
        queries = self.queries(x)
        x = self.middle((queries @ queries.mT).softmax(2) @ self.values(x)).mT.unflatten(2, (4, 4))
        return self.last(F.relu(self.up(F.gelu(x))))


class Bare(Depth):
    def forward(self, images):
        (x,) = self.backbone.forward_intermediates(images, indices=[2], intermediates_only=True)
        return self.only(x)

    def __init__(self):
        super().__init__()
        self.only = nn.Conv2d(64, 1, 1)
        del self.reduce, self.norm, self.up, self.last
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = write_depth(tmp_path_factory.mktemp("mine"))
    file.write_text(file.read_text() + HEADS)
    return file


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_frames(tmp_path_factory.mktemp("data") / "images")


def derive(base: Any, frames: Path, out: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "data": frames, "output": "map", "rate": 0.3, "rest_rate": 0.5, "out": out, "options": OPTIONS,
        "training": Training(device="cpu", steps=0),
    }  # fmt: skip
    return edgevit.derive(base, **{**given, **options})


def whole_problem(base: str, data: Path, out: Path, output: str = "map") -> tuple[Problem, Any]:
    """A problem whose network is cut behind its backbone alone."""
    request: Any = edgevit.DeriveRequest(
        base=base, data=data, output=output, rate=0.5, out=out, training=Training(device="cpu", steps=0)
    )
    opened = open_without_labels(open_network(base), request, Silent())
    budget: Any = None
    return opened.problem(budget, make_policy("fused"), request.training, request.training, out), opened.base.spec


def cut_behind(base: str, data: Path, out: Path, rate: float) -> tuple[Any, CutRest, Any]:
    """The whole network, the one that is cut behind its backbone alone, and other images."""
    problem, spec = whole_problem(base, data, out)
    chains = check_rest(spec, problem.network, problem.task.train, rate, problem.policy)
    ((images, _),) = problem.task.test.batches(100)
    return problem.network, cut_rest(problem.network, problem, chains, rate), images


@pytest.fixture(scope="module")
def derived(file: Path, frames: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return derive(f"{file}:deep", frames, tmp_path_factory.mktemp("deep") / "model")


def test_channels_that_others_determine_go_without_loss(file: Path, frames: Path, tmp_path: Path) -> None:
    whole, made, images = cut_behind(f"{file}:redundant", frames, tmp_path, 0.6)
    cut, narrowed = made.network, made.narrowed
    assert {layer.layer: layer.channels for layer in narrowed.layers} == {"reduce": 8, "middle": 16, "up": 8}
    with torch.inference_mode():
        expected, outputs = whole(images), cut(images)
    assert (outputs - expected).abs().max() < 1e-5 * expected.std()
    assert narrowed.macs == cut.geometry.head_macs < 0.4 * narrowed.base_macs == 0.4 * whole.geometry.head_macs


def test_the_readers_make_up_for_what_is_removed(file: Path, frames: Path, tmp_path: Path) -> None:
    whole, made, images = cut_behind(f"{file}:deep", frames, tmp_path, 0.5)
    dropped = bare_copy(whole.module)
    chains = find_chains(whole, images[:2]).found
    for chain in chains:
        shrink(dropped, chain, torch.tensor([*from_ranges(made.channels[chain.layer])]))
    with torch.inference_mode():
        expected, solved = whole(images), made.network(images)
        error, of_dropped = ((o - expected).square().mean() for o in (solved, dropped(images)))
    assert error < 0.6 * of_dropped and made.narrowed.macs <= 0.5 * made.narrowed.base_macs


def test_the_estimate_counts_the_passes_of_the_cut(
    file: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, spec = whole_problem(f"{file}:deep", frames, tmp_path)
    problem = replace(problem, budget=make_budget(spec.macs, spec.params, rate=1e-4))
    cutter = RestCutter(problem, check_rest(spec, problem.network, problem.task.train, 0.7, problem.policy), 0.7)
    passed = 0

    def counted(network: Any, images: Any) -> object:
        nonlocal passed
        passed += len(images)
        return whole_run(network, images)

    monkeypatch.setattr(rest, "whole_run", counted)
    cut = cut_rest(problem.network, problem, cutter.chains, 0.7)
    assert len(cut.narrowed.layers) == 3  # each chain is solved behind those before it
    monkeypatch.setattr(rest, "image_seconds", lambda *_, **__: (0.0, 1.0))  # a second for each image
    assert cutter.seconds() == pytest.approx(passed, rel=0.02)


def test_a_cut_head_is_described_written_and_read_again(derived: Any) -> None:
    spec, loaded = derived.model.spec, edgevit.load(derived.folder)
    cut = spec.narrowed_rest
    assert cut.macs <= 0.5 * cut.base_macs and all(layer.channels % 8 == 0 for layer in cut.layers)
    assert loaded.spec == spec and loaded.geometry.head_macs == cut.macs
    assert spec.macs == loaded.geometry.macs(loaded.dims) and spec.base.macs > spec.macs + cut.base_macs - cut.macs
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(images), derived.model(images))
    text = f"{spec.narrowed_rest_text[0].upper()}{spec.narrowed_rest_text[1:]}."
    assert "the head was cut in" in spec.narrowed_rest_text and text in (derived.folder / "README.md").read_text()
    assert {*derived.record.facts.more["rest_channels"]} == {"reduce", "middle", "up"}
    assert derived.record.map.agreement > 0.7


def test_the_macs_of_attention_in_a_head_are_counted(file: Path, frames: Path, tmp_path: Path) -> None:
    _, made, _ = cut_behind(f"{file}:Attention", frames, tmp_path, 0.5)
    cut, widths = made.network, {layer.layer: layer.channels for layer in made.narrowed.layers}
    assert "values" in widths and "queries" not in widths
    behind = [cut.module.get_submodule(n) for n in ("reduce", "queries", "values", "middle", "up", "last")]
    counted = 0

    def count(layer: Any, inputs: Any, output: Any) -> None:
        nonlocal counted
        counted += macs_of(layer, inputs[0], output)

    with torch.inference_mode():
        for layer in behind:
            layer.register_forward_hook(count)
        cut(torch.zeros(1, 3, 32, 32))
    assert made.narrowed.macs == cut.geometry.head_macs == counted + 16 * 16 * (16 + widths["values"])


TRAINING = Training(device="cpu", steps=12, batch_size=8, evaluations=3, lr=1e-3)


@pytest.mark.slow
def test_a_cut_head_is_trained_from_its_closed_form_on(derived: Any, file: Path, frames: Path, tmp_path: Path) -> None:
    progress = RecordedProgress()
    trained = derive(f"{file}:deep", frames, tmp_path / "model", training=TRAINING, progress=progress)
    (announced,) = (note for note in progress.notes if note.startswith("this derivation takes about "))
    assert " for the layers behind the backbone" in announced
    assert trained.model.spec == derived.model.spec
    assert trained.record.facts.more["rest_channels"] == derived.record.facts.more["rest_channels"]
    lines = [json.loads(line) for line in (trained.folder / "history.jsonl").read_text().splitlines()]
    losses = [line["loss_validation"] for line in lines if "loss_validation" in line]
    assert trained.record.facts.kept_step > 0 and min(losses) < 0.9 * losses[0]
    assert trained.record.map.divergence < 0.9 * derived.record.map.divergence
    before, after = (each.model.state_dict() for each in (derived, trained))
    assert all(not torch.equal(before[f"{name}.weight"], after[f"{name}.weight"]) for name in ("middle", "last"))


@pytest.mark.slow
def test_an_interrupted_training_of_a_cut_head_ends_in_the_same_weights(
    file: Path, frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = derive(f"{file}:deep", frames, tmp_path / "whole", training=TRAINING)
    press_ctrl_c_in_step(6, monkeypatch)
    with pytest.raises(Interrupted):
        derive(f"{file}:deep", frames, tmp_path / "resumed", training=TRAINING)
    resumed = derive(f"{file}:deep", frames, tmp_path / "resumed", training=TRAINING, resume=True)
    assert_same_weights(resumed.model.state_dict(), whole.model.state_dict())
    assert resumed.model.spec == whole.model.spec


@pytest.mark.slow
def test_a_cut_head_is_exported_and_reported(derived: Any, tmp_path: Path) -> None:
    assert edgevit.export(derived.folder, fp16=False).parity["fp32"].error < 1e-4
    edgevit.report([derived.folder], output=tmp_path / "page.html")
    assert "The head was cut in " in (tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_network_with_a_cut_head_is_a_base(derived: Any, frames: Path, tmp_path: Path) -> None:
    before = derived.model.spec.narrowed_rest
    again = derive(derived.folder, frames, tmp_path / "again", rate=0.1, rest_rate=0)
    spec = again.model.spec
    assert spec.narrowed_rest.layers == before.layers and spec.narrowed_rest.base_macs == before.macs
    assert spec.narrowed_rest_text is None and spec.base.macs == derived.model.spec.macs
    assert edgevit.load(again.folder).spec == spec
    smaller = derive(derived.folder, frames, tmp_path / "smaller", rate=0.1, rest_rate=0.3).model.spec.narrowed_rest
    widths, earlier = ({layer.layer: layer.channels for layer in cut.layers} for cut in (smaller, before))
    assert smaller.macs <= 0.7 * before.macs and all(width <= earlier.get(name, 32) for name, width in widths.items())


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        ("deep", {"rest_rate": 0.99}, r"--rest-rate 0.99: the layers .* \(reduce, middle, up\) reach 0\.\d+ of the "),
        ("Bare", {}, "no layer behind the backbone can lose channels: only gives an output of the network; leave it"),
    ],
)
def test_what_cannot_be_cut_so_far_is_refused(
    file: Path, frames: Path, tmp_path: Path, function: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        derive(f"{file}:{function}", frames, tmp_path / "model", **options)
    assert "\n" not in str(caught.value) and not (tmp_path / "model.partial").exists()


def test_the_step_of_least_loss_for_its_macs_comes_first() -> None:
    chains = [NarrowedLayer("a", (), ("b",), 32), NarrowedLayer("b", (), ("c",), 16)]
    costs = RestCosts(1000, {"a": 320, "b": 512, "c": 160}, chains)
    assert costs.at({"a": 32, "b": 16}) == 1000 and costs.at({"a": 16, "b": 8}) == 1000 - 160 - 384 - 80
    cheap, dear = torch.linspace(1, 0, 33), torch.linspace(100, 0, 17)
    widths = rest_widths(costs, {"a": cheap, "b": dear}, 500, 8)
    assert widths == {"a": 8, "b": 16} and costs.at(widths) <= 500 < costs.at({"a": 16, "b": 16})
    assert rest_widths(costs, {"a": 100 * cheap, "b": dear / 100}, 700, 8)["a"] == 32


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = write_detectors(tmp_path_factory.mktemp("mine")).read_text()
    parts = "box_head=TwoMLPHead(16 * 49, 64), box_predictor=FastRCNNPredictor(64, 7)"
    if_masks = ', **({} if kind is FasterRCNN else {"mask_head": MaskRCNNHeads(16, (32, 32), 1), ' + (
        '"mask_predictor": MaskRCNNPredictor(32, 16, 7)})'
    )
    text = text.replace("kind(backbone, 4,", f"kind(backbone, None, {parts}{if_masks},")
    imports = "from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead\n"
    imports += "from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor\n"
    file = tmp_path_factory.mktemp("small") / "my_detector.py"
    file.write_text(imports + text)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("function", ["build", "masks", "fast"])
def test_what_reads_a_pyramid_is_cut(detector: Path, tmp_path: Path, function: str) -> None:
    data = tmp_path / "coco"
    scenes.render(data, train=24, val=6, size=48)
    made = derive(f"{detector}:{function}", data, tmp_path / "model", output="boxes", options=OF_DETECTORS)
    spec, base = made.model.spec, open_network(f"{detector}:{function}").spec  # type: ignore[union-attr]
    cut = spec.narrowed_rest
    assert base.rest is not None
    assert cut.base_macs == base.rest.macs and spec.rest.macs == cut.macs <= 0.5 * cut.base_macs
    assert spec.rest.proposals == base.rest.proposals and spec.macs <= 0.75 * base.macs
    assert "what reads the pyramid was cut in" in spec.narrowed_rest_text
    assert f"{base.macs / (base.macs + base.rest.macs):.0%} in the base" in spec.rest_text
    loaded: Any = edgevit.load(made.folder)
    assert sum(p.numel() for p in loaded.parameters()) == spec.params < base.params
    pictures = [torch.rand(3, 48, 48, generator=torch.Generator().manual_seed(0))]
    with torch.inference_mode():
        (before,), (after,) = (m.module.detector(pictures) for m in (made.model, loaded))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert edgevit.evaluate(made.folder, data).detections == made.record.boxes.derived


def test_a_detector_of_other_parts_is_refused(detector: Path, tmp_path: Path) -> None:
    scenes.render(tmp_path / "coco", train=8, val=4, size=48)
    problem, spec = whole_problem(f"{detector}:build", tmp_path / "coco", tmp_path, "boxes")
    with pytest.raises(OptionError, match="the parts of this detector are not torchvision's; leave it out"):
        check_rest(replace(spec, rest=None), problem.network, problem.task.train, 0.5, problem.policy)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_what_reads_a_pyramid_is_cut_before_a_training_that_includes_it(
    detector: Path, tmp_path: Path, weight: float
) -> None:
    scenes.render(tmp_path / "coco", train=24, val=6, size=48)
    made = derive(
        f"{detector}:build", tmp_path / "coco", tmp_path / "model", output="boxes", rest_rate=0.3, options=OF_DETECTORS,
        training=Training(device="cpu", steps=2, batch_size=4, teacher_weight=weight),
    )  # fmt: skip
    seconds = [*made.record.seconds]
    assert (seconds.index("rest") < seconds.index("training")) == (weight < 1)
    loaded: Any = edgevit.load(made.folder)
    assert (
        loaded.spec == made.model.spec and loaded.spec.narrowed_rest.macs <= 0.7 * loaded.spec.narrowed_rest.base_macs
    )
