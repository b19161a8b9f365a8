"""Every method leaves the base alone, and its model is the base with what the plan removes masked.

Tested for every method and for the example in the docstring of `edgevit.derivation.methods`, on a base with random
weights; for edgevit's own methods with training, too. Masked means: a block that goes hands its tokens on; a neuron
that goes becomes 0, or the one that it is merged into; a token that leaves is left out behind its block; a head that
goes, and every direction beyond the width that stays, has weights of 0. What a method solves anew, the factors of
attention and, where the plan says so, W_2, the base is given in its own full size; all else is the base's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from example_method import EXAMPLE, with_the_example
from family_examples import SWIN
from problems import untrained
from small_models import SWIN_ARGS
from torch import Tensor, nn

from edgevit.data.task import Task, open_task
from edgevit.derivation.allocate.policy import POLICIES, Policy
from edgevit.derivation.measure.divergence import divergence, network_outputs
from edgevit.derivation.method import find_method
from edgevit.derivation.methods import baseline_names, method_names, own_method_names
from edgevit.derivation.plan import BlockPlan, FfnPlan, Plan
from edgevit.derivation.problem import Derived
from edgevit.derivation.realise import narrow_embedding
from edgevit.network.anatomy import Attention, Block, BlockDims, Ffn
from edgevit.network.families.vit.tokens import pass_on
from edgevit.network.folder import save
from edgevit.network.model import Model, describe
from edgevit.records.derivation import ShapeRecord, TrainingRecord
from edgevit.records.model import WIDTHS
from edgevit.records.supernet import SUPERNET_KIND, SettingsRecord, SlicePoint, SupernetRecord, Unit
from edgevit.train.settings import fill

pytestmark = pytest.mark.usefixtures("few_digits")

FEW: dict[str, dict[str, Any]] = {
    "corp": {"calibration_images": 32},
    "snapvit": {"generations": 2},
    # Aligned readers and another head are no masking, and sites that go alone are in tests/derivation/methods/forge.
    "forge": {
        "calibration_images": 32,
        "sensitivity_images": 16,
        "align": False,
        "refit_head": False,
        "drop_sites": False,
    },
    "heart": {"calibration_images": 8, "probes": 1},
    "mdp": {"calibration_images": 32},
    "nuwa": {"calibration_images": 32, "purification": "none"},
    "nvit": {"calibration_images": 32},
    "taylor": {"calibration_images": 32},
    "torch_pruning": {"calibration_images": 32},
    "dcvit": {"calibration_images": 16},
    "xpruner": {"calibration_images": 16, "mask_passes": 1},
    "wanda": {"calibration_images": 32},
    "vulcan": {"calibration_images": 32},
}
HEADS_AS_THEY_ARE = ("heart", "dcvit", "snapvit", "xpruner")  # they cut no widths of heads, only their number at most
HIGH = 0.9  # where whole heads and blocks go, if the embedding stays
NARROW = 0.85  # where it is narrowed
NARROWER: dict[str, dict[str, Any]] = {
    "forge": {"cut_embedding": True},
    "mdp": {"cut_embedding": True},
    "nuwa": {"cut_embedding": True},
    "nvit": {"cut_embedding": True},
    "taylor": {"cut_embedding": True},
    "torch_pruning": {"cut_embedding": True},
}
WIDE = {
    name: {"cut_embedding": False} for name in ("forge", "mdp", "nvit", "taylor", "torch_pruning")
}  # of those that narrow it at any rate
CASES = [
    *((name, 0.45) for name in (*own_method_names(), EXAMPLE)),
    ("forge", HIGH),
    *((name, NARROW) for name in NARROWER),
    *((name, 0.45) for name in baseline_names() if name not in NARROWER),
]
# Packed ones, whose gate comes second, are held in test_methods_gated.
GATED: dict[str, dict[str, Any]] = {
    "SwiGLU": {"mlp_layer": timm.layers.SwiGLU, "mlp_ratio": 2.0},
    "GluMlp": {"mlp_layer": timm.layers.GluMlp, "mlp_ratio": 4.0},
}
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", autouse=True)
def folder_with_the_example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with with_the_example(tmp_path_factory.mktemp("methods")):
        yield


@pytest.fixture(scope="module")
def base(small_vit: Callable[..., Any]) -> Model:
    return describe(small_vit(depth=3, num_heads=4), "vit_tiny_patch16_224", {"depth": 3, "num_heads": 4})


@pytest.fixture(scope="module")
def gated_base(small_vit: Callable[..., Any]) -> Callable[[str], Model]:
    """Make a base whose FFNs have a gate."""

    def make(layer: str) -> Model:
        network = small_vit(depth=3, num_heads=4, **GATED[layer])
        return describe(network, "vit_tiny_patch16_224", {"depth": 3, "num_heads": 4})

    return make


@pytest.fixture(scope="module")
def half_base(base: Model) -> Model:
    """A base whose second block has no attention, and whose last has no FFN."""
    blocks = base.read()
    halved = [blocks[0], replace(blocks[1], attention=None), replace(blocks[2], ffn=None)]
    arguments = {"depth": 3, "num_heads": 4}
    return describe(base.build(halved).eval(), "vit_tiny_patch16_224", arguments)


@pytest.fixture(scope="module")
def task(base: Model) -> Task:
    return open_task("digits", "3,7,9", preprocessing=base.preprocessing, base_outputs=10)


@pytest.fixture(scope="module")
def swin_base(small_vit: Callable[..., Any]) -> Model:
    """A base of two stages, with a shifted window and with windows larger than the image."""
    arguments = {"depths": [2, 1], "window_size": 3}
    return describe(small_vit(SWIN, **arguments), SWIN, {**SWIN_ARGS, **arguments})


@pytest.fixture(scope="module")
def supernet(base: Model, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_supernet(base, task, tmp_path_factory.mktemp("net") / "net")


def as_supernet(base: Model, task: Task, folder: Path) -> Path:
    """Write a base as a super-network that nobody trained."""
    blocks = list(enumerate(base.spec.blocks))
    units = [Unit(i, "attention", 8, d.qk, 10**5) for i, d in blocks]
    units += [Unit(i, "ffn", 16, d.ffn, 10**5) for i, d in blocks]
    record = SupernetRecord(
        created="2026-01-01T00:00:00+00:00", base="base", base_top1=0.1,
        settings=SettingsRecord(ShapeRecord("fused"), TrainingRecord(0)), data=task.record(),
        versions={"edgevit": "0.1.0"}, seconds={}, order=tuple(units),
        curve=(SlicePoint(0.0, base.spec.macs, base.spec.params, 0.1),),
    )  # fmt: skip
    save(base, folder)
    (folder / "supernet.json").write_text(SUPERNET_KIND.text(record))
    return folder


@pytest.mark.quick("*-0.45")
@pytest.mark.parametrize(("name", "rate"), CASES)
def test_the_base_is_unchanged_and_the_model_is_the_base_masked(
    name: str, rate: float, base: Model, task: Task, supernet: Path, tmp_path: Path
) -> None:
    plan = masked_and_compared(name, rate, base, task, supernet, tmp_path).plan
    fewer = [len(a.heads) < 4 for b in plan.blocks if (a := b.attention) is not None]
    assert (len(fewer) < 3 and any(fewer)) == (rate == HIGH)
    assert (plan.embed is not None) == (rate == NARROW)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layer"),
    [
        *((name, layer) for name in own_method_names() for layer in GATED),
        *((name, "SwiGLU") for name in (*baseline_names(), EXAMPLE)),
    ],
)
def test_a_base_with_gates_is_unchanged_and_the_model_is_it_masked(
    name: str, layer: str, gated_base: Callable[[str], Model], task: Task, supernet: Path, tmp_path: Path
) -> None:
    made = masked_and_compared(name, 0.3, gated_base(layer), task, supernet, tmp_path)
    blocks = made.network.read()
    assert all(block.ffn is None or block.ffn.wg is not None for block in blocks)
    assert any(block.ffn is None or block.ffn.neurons < 128 or block.tokens for block in blocks)


@pytest.mark.quick("vulcan-*")
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name in (*own_method_names(), *baseline_names())
        for shape in (("fused", "free") if name in HEADS_AS_THEY_ARE else POLICIES)
    ],
)
def test_a_base_of_stages_is_unchanged_and_the_model_is_it_masked(
    name: str, shape: str, swin_base: Model, task: Task, tmp_path: Path
) -> None:
    supernet, rate = as_supernet(swin_base, task, tmp_path / "supernet"), 0.05 if name == "heart" else 0.3
    made = masked_and_compared(name, rate, swin_base, task, supernet, tmp_path, shape)
    dims = made.network.dims
    assert made.network.geometry.macs(dims) <= (1 - rate) * swin_base.spec.macs
    assert all(has_shape(d, POLICIES[shape]) for d in dims)
    assert shape != "free" or not all(has_shape(d, POLICIES["fused"]) for d in dims)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["fused", "free"])
@pytest.mark.parametrize("name", ["forge", "nuwa"])  # others remove single channels, which stages do not share
def test_a_base_of_stages_that_is_narrowed_is_masked_too(
    name: str, shape: str, swin_base: Model, task: Task, tmp_path: Path
) -> None:
    made = masked_and_compared(name, NARROW, swin_base, task, tmp_path, tmp_path, shape)
    embed, step = made.network.geometry.embed, POLICIES[shape].embed_step
    assert embed < swin_base.geometry.embed and embed // 2 % step == 0 and (shape != "free" or embed // 2 % 8)
    assert all(has_shape(d, POLICIES[shape]) for d in made.network.dims)


def has_shape(dims: BlockDims, policy: Policy) -> bool:
    """Whether a block has sizes that the policy allows."""
    fits = dims.heads >= policy.least_heads and min(dims.head_widths) >= policy.head_minimum
    tied = dims.qk == dims.vo or not policy.equal
    stepped = all(dims[axis] % policy.step(axis) == 0 for axis in WIDTHS)
    return stepped and (not dims.has("attention") or (fits and tied))


HALVES = [name for name in method_names() if find_method(name).cuts_half_blocks]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rate", "options"),
    [
        *((name, 0.3, {}) for name in HALVES),
        ("forge", 0.75, {"cut_embedding": False}),
        ("forge", 0.85, {"cut_embedding": True}),
    ],
)
def test_of_a_base_whose_blocks_lack_a_site_the_model_is_it_masked(
    name: str, rate: float, options: dict[str, Any], half_base: Model, task: Task, supernet: Path, tmp_path: Path
) -> None:
    made = masked_and_compared(name, rate, half_base, task, supernet, tmp_path, **options)
    kept = [(b.block, b.attention is not None, b.ffn is not None) for b in made.plan.blocks]
    assert not {(1, True, True), (2, True, True)} & set(kept)
    macs = made.network.geometry.macs(made.network.dims)
    assert 0.75 * (1 - rate) < macs / half_base.spec.macs <= 1 - rate


def test_forge_changes_nothing_of_such_a_base_where_the_budget_leaves_all_of_it(
    half_base: Model, task: Task, tmp_path: Path
) -> None:
    problem, forge = untrained(half_base, task, 0.5, tmp_path), find_method("forge")
    whole = replace(problem, budget=replace(problem.budget, limit=half_base.spec.macs))
    made = forge.derive(whole, forge.make_config({**FEW["forge"], "drop_sites": True}))
    assert made.plan.dims == whole.network.dims
    # On the task's own images: what these do not determine is drawn to zero, by little.
    of_base, of_made = (network_outputs(n, task.validation, whole.passes) for n in (whole.network, made.network))
    torch.testing.assert_close(of_made, of_base, rtol=0, atol=0.01)
    assert divergence(whole.network.output, of_base, of_made) < 1e-5 < of_base.std(0).mean()


def masked_and_compared(
    name: str, rate: float, base: Model, task: Task, supernet: Path, folder: Path, shape: str = "paper", **more: Any
) -> Derived:
    """What a method makes of a base, which is unchanged, and masked is what was made."""
    problem, method = untrained(base, task, rate, folder, shape), find_method(name)
    network = problem.network
    before = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    options = {"supernet": str(supernet)} if name == "skd" else FEW.get(name, {})
    options = {**options, **WIDE.get(name, {})}
    if rate == NARROW:
        options = {**options, **NARROWER[name]}
    options = {**options, **more}
    made = method.derive(problem, method.make_config(options))
    after = network.state_dict()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items()), "the base was changed"
    with torch.no_grad(), masked(network, made.plan, made.network) as whole:
        logits, slim = whole(IMAGES), made.network(IMAGES)
    assert logits.std() > 0.02 and len(after) == len(before)
    torch.testing.assert_close(slim, logits, rtol=1e-5, atol=1e-5 * float(logits.abs().max()))
    return made


# The contract lets a method train the network that it is given, and so those do that draw together what they will cut.
TRAIN_WHAT_THEY_ARE_GIVEN = {"vulcan", "heart"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*own_method_names(), EXAMPLE, "taylor", "xpruner"])  # others train as taylor does
def test_training_leaves_the_base_alone(name: str, base: Model, task: Task, supernet: Path, tmp_path: Path) -> None:
    """Whatever a method may do to the network it is given, a copy with the target classes, the base is not that."""
    problem, method = untrained(base, task, 0.45, tmp_path), find_method(name)
    asked = replace(problem.training, steps=2, evaluations=1, lr=1e-2, teacher="restricted")
    training = fill(asked, gentle=method.gentle, imitates_base=method.imitates_base)
    options = {"supernet": str(supernet)} if name == "skd" else {**FEW.get(name, {}), **WIDE.get(name, {})}
    networks = (base, problem.network)
    before = [{key: tensor.clone() for key, tensor in network.state_dict().items()} for network in networks]
    made = method.derive(replace(problem, training=training), method.make_config(options))
    assert made.facts["steps"] == 2
    same = [
        all(torch.equal(tensor, kept[key]) for key, tensor in network.state_dict().items())
        for network, kept in zip(networks, before, strict=True)
    ]
    assert same == [True, name not in TRAIN_WHAT_THEY_ARE_GIVEN], "the base, what the method was given"


@contextmanager
def masked(network: nn.Module, plan: Plan, slim: nn.Module) -> Iterator[nn.Module]:
    """The base in its full size, with what the plan removes masked and what `slim` has anew in place of its own.

    Where the plan narrows the embedding, it is the base with that embedding.
    """
    if plan.embed is not None:
        network = narrow_embedding(network, plan.embed)
    blocks = network.read()
    for planned, solved in zip(plan.blocks, slim.read(), strict=True):
        whole = blocks[planned.block]
        attention, ffn = whole.attention, whole.ffn
        if attention is not None:
            gone = planned.attention is None or solved.attention is None
            attention = silent(attention) if gone else embedded(solved.attention, attention, planned.attention.heads)
        if ffn is not None and planned.ffn is not None and planned.ffn.weights is not None:
            ffn = widened(solved.ffn, ffn, planned.ffn)
        blocks[planned.block] = Block(attention, ffn)
    copy = network.build(blocks).eval()
    if plan.embed is not None:  # what the norms of padded windows add is solved for the weights that stay
        for planned, made in zip(plan.blocks, slim.block_modules, strict=True):
            if planned.attention is not None:
                copy.block_modules[planned.block].norm1.bias = made.norm1.bias
    kept = {b.block: b.ffn for b in plan.blocks}
    lost = [i for i, whole in enumerate(blocks) if i in kept and whole.ffn is not None and kept[i] is None]
    assert not lost, "an FFN that goes without its attention is not masked here"
    with ExitStack() as stack:
        for i, (layer, output) in enumerate(zip(copy.block_modules, copy.ffn_outputs, strict=True)):
            if i not in kept:
                stack.callback(layer.register_forward_hook(lambda _, given, __: given[0]).remove)
            elif (ffn := kept[i]) is not None and output is not None:
                stand_ins = standing_in(ffn, blocks[i])
                stack.callback(output.register_forward_pre_hook(stand_ins).remove)
        for planned in plan.blocks:
            if planned.tokens:
                stack.enter_context(left_out(copy, planned))
        yield copy


@contextmanager
def left_out(network: nn.Module, planned: BlockPlan) -> Iterator[None]:
    """Hand on only some of the tokens that a block puts out."""
    seen = []
    geometry = network.geometry
    inputs = network.attention_inputs[planned.block]
    assert inputs is not None

    def choose(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        scores = network.token_scores(planned.block, seen.pop())
        return pass_on(out, scores, planned.tokens, geometry.tokens - geometry.patches, merge=planned.merged)

    hooks = [
        inputs.register_forward_pre_hook(lambda _, given: seen.append(given[0])),
        network.block_modules[planned.block].register_forward_hook(choose),
    ]
    yield
    for hook in hooks:
        hook.remove()


def silent(whole: Attention) -> Attention:
    """An attention that adds nothing."""
    bo = None if whole.bo is None else torch.zeros_like(whole.bo)
    return replace(whole, wo=torch.zeros_like(whole.wo), bo=bo)


def embedded(solved: Attention, whole: Attention, heads: Sequence[int]) -> Attention:
    """An attention in its base's size: zeros beyond its own widths, and in the heads that go."""
    at, wider = list(heads), (whole.qk / solved.qk) ** 0.5  # logits are divided by the root of the width

    def placed(weight: Tensor | None, of: Tensor | None) -> Tensor | None:
        if of is None or weight is None:
            return None if of is None else torch.zeros_like(of)
        room = torch.zeros_like(of)
        room[at, : weight.shape[1]] = weight
        return room

    query_bias = None if solved.bq is None else solved.bq * wider
    wo = placed(solved.wo.mT, whole.wo.mT)
    made = {name: placed(getattr(solved, name), getattr(whole, name)) for name in ("wk", "wv", "bk", "bv")}
    made |= {"wq": placed(solved.wq * wider, whole.wq), "bq": placed(query_bias, whole.bq)}
    assert wo is not None
    return replace(solved, **made, wo=wo.mT, relative=whole.relative)


def widened(solved: Ffn, whole: Ffn, planned: FfnPlan) -> Ffn:
    """The base's neurons with the output weights that were solved for those that stay."""
    w2 = torch.zeros_like(whole.w2)
    w2[:, planned.neurons] = solved.w2
    return replace(whole, w2=w2, b2=solved.b2)


def standing_in(planned: FfnPlan, block: Block) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """Multiply the neurons that go by 0, or put those that they are merged into in their place."""
    assert block.ffn is not None
    mask = torch.zeros(block.ffn.neurons)
    mask[planned.neurons] = 1
    if planned.labels is None:
        return lambda _, given: (given[0] * mask,)
    anchors = planned.neurons[planned.labels]
    return lambda _, given: (given[0][..., anchors],)
