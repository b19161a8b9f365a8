"""Every function of `Family`, of every family, held against the network itself: a family that lies fails here.

Each example of a family is tested as it is ("whole"), every third one also as a copy whose first block has lost its
FFN and whose second its attention ("half").
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch
from family_examples import FOREIGN, REFUSED, foreign, images, narrowed, refused, slimmed, sweep, sweep_forms
from places import TESTS
from small_models import ARGS
from torch import Tensor, nn

from edgevit.derivation.solve.embedding import encoder, flat_basis, nested_basis
from edgevit.errors import CheckpointError, UnsupportedModelError
from edgevit.network.anatomy import Block, BlockDims
from edgevit.network.copies import without_values
from edgevit.network.families import Family, SoftGates, family_like, family_names, family_of, load_family

DIMS = BlockDims(2, 24, 8, 40)


@pytest.fixture
def network(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any], form: str
) -> nn.Module:
    whole = small_vit(name, **args)
    assert load_family(family_name).matches(whole)
    if form == "whole":
        return whole
    family = family_of(whole)
    first, second = (narrowed(block, DIMS) for block in family.read(whole))
    return family.build(whole, [Block(first.attention, None), Block(None, second.ffn)]).eval()


def seen_at(network: nn.Module, modules: list[nn.Module | None]) -> list[tuple[Tensor, Tensor] | None]:
    """What each of the modules is given and puts out when the network sees the images."""
    seen: list[tuple[Tensor, Tensor] | None] = [None] * len(modules)

    def keep(i: int) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def hook(_: nn.Module, given: tuple[Tensor], out: Tensor) -> None:
            assert seen[i] is None, "asked twice"
            seen[i] = given[0], out

        return hook

    hooks = [m.register_forward_hook(keep(i)) for i, m in enumerate(modules) if m is not None]
    with torch.no_grad():
        network(images())
    for hook in hooks:
        hook.remove()
    return seen


def run(family: Family, network: nn.Module, indices: list[int]) -> Tensor:
    """The forward pass by the family's own steps, through these blocks alone."""
    with torch.no_grad():
        tokens = family.first_tokens(network, images())
        for i in indices:
            tokens = family.layers(network)[i](tokens)
        return family.answers(network, tokens)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.detach().abs().max()))


def rotary(family: Family, network: nn.Module) -> bool:
    """Whether attention depends on which place a token has."""
    return any(block.attention is not None and block.attention.rotary is not None for block in family.read(network))


@sweep
@torch.no_grad()
def test_a_network_is_adopted_with_the_function_that_timm_gave_it(
    family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, made = load_family(family_name), timm.create_model(name, **{**ARGS, **args}).eval()
    expected = made(images())
    network = family.adopted(made)
    family.check(network)
    assert family.adopted(network) is network and torch.equal(network(images()), expected)


@sweep_forms
def test_the_steps_of_a_forward_pass_are_the_forward_pass(network: nn.Module) -> None:
    family = family_of(network)
    with torch.no_grad():
        close(run(family, network, [0, 1]), network(images()))
    of_layers = seen_at(network, list(family.layers(network)))
    (first, _), (_, last) = of_layers  # type: ignore[misc]
    geometry = family.geometry(network)
    assert first.shape == last.shape == (3, geometry.tokens, geometry.embed)
    assert all(torch.equal(one[1], other[0]) for one, other in pairwise(of_layers))  # type: ignore[index]


@sweep_forms
def test_blocks_that_are_kept_are_the_only_ones_that_run(network: nn.Module) -> None:
    family = family_of(network)
    expected = {kept: run(family, network, [kept]) for kept in (0, 1)}
    dims = [block.dims for block in family.read(network)]
    for kept in (0, 1):
        shorter = copy.deepcopy(network)
        family.keep_blocks(shorter, [kept])
        with torch.no_grad():
            close(shorter(images()), expected[kept])
        assert [block.dims for block in family.read(shorter)] == [dims[kept]]


@sweep_forms
def test_a_block_adds_what_its_outputs_are_times_the_residual_scales(network: nn.Module) -> None:
    family = family_of(network)
    blocks = seen_at(network, list(family.layers(network)))
    attention = seen_at(network, family.attention_outputs(network))
    ffn = seen_at(network, family.ffn_outputs(network))
    scales = family.residual_scales(network)
    assert len(scales) == len(blocks)
    for (x, y), a, f, scale in zip(blocks, attention, ffn, scales, strict=True):  # type: ignore[misc]
        by_attention, by_ffn = scale or (1.0, 1.0)
        total = x + (0 if a is None else by_attention * a[1]) + (0 if f is None else by_ffn * f[1])
        if scale is None:
            assert not torch.allclose(total, y, rtol=1e-2), "no such sum, because a norm comes after"
        else:
            close(total, y)


@sweep_forms
@torch.no_grad()
def test_a_block_is_the_sum_of_its_branches(network: nn.Module) -> None:
    family = family_of(network)
    blocks, branches = seen_at(network, list(family.layers(network))), family.branches(network)
    outputs = [seen_at(network, of(network)) for of in (family.attention_outputs, family.ffn_outputs)]
    for (x, y), pair, *seen in zip(blocks, branches, *outputs, strict=True):  # type: ignore[misc]
        for branch, at_output in zip(pair, seen, strict=True):
            assert (branch is None) == (at_output is None)
            if branch is not None:
                normalised = branch.before(x)
                assert {reader.in_features for reader in branch.readers} == {normalised.shape[-1]}
                close(branch.output(at_output[0]), at_output[1])
                x = x + branch.added(branch.module(normalised))
        close(x, y)


@sweep_forms
def test_sites_parts_and_modules_are_there_or_gone_alike(network: nn.Module, form: str) -> None:
    family = family_of(network)
    parts = family.read(network)
    for i, block in enumerate(parts):
        alone = family.read_block(network, i)
        assert alone.dims == block.dims and (alone.ffn is None or torch.equal(alone.ffn.w1, block.ffn.w1))  # type: ignore[union-attr]
    expected = ["attention", "ffn"] * 2 if form == "whole" else ["attention", "ffn"]
    sites = family.sites(network)
    assert [site.kind for site in sites] == expected and all(all(site.frozen.values()) for site in sites)
    assert tuple(sites) == family.geometry(network).sites
    there = {(site.block, site.kind) for site in sites}
    for i, block in enumerate(parts):
        for kind, part in (("attention", block.attention), ("ffn", block.ffn)):
            assert ((i, kind) in there) == (part is not None)
    lists = (family.attention_inputs, family.projections, family.attention_outputs)
    for modules in (of(network) for of in lists):
        assert [m is not None for m in modules] == [b.attention is not None for b in parts]
    assert [m is not None for m in family.ffn_outputs(network)] == [b.ffn is not None for b in parts]


@sweep_forms
def test_a_projection_puts_out_queries_keys_and_values(network: nn.Module) -> None:
    family = family_of(network)
    parts = family.read(network)
    inputs = seen_at(network, family.attention_inputs(network))
    projections = seen_at(network, family.projections(network))
    outputs = seen_at(network, family.attention_outputs(network))
    for block, given, projected, put_out in zip(parts, inputs, projections, outputs, strict=True):
        if block.attention is None:
            continue
        assert given is not None and projected is not None and put_out is not None
        a, x = block.attention, given[0]
        close(projected[0], x)
        q, k, v = family.unpack(projected[1], block.dims)  # [B, N, H, w]
        for seen, weight, bias in ((q, a.wq, a.bq), (k, a.wk, a.bk), (v, a.wv, a.bv)):
            close(seen, torch.einsum("bnd,hwd->bnhw", x, weight.detach()) + (0 if bias is None else bias.detach()))
        assert torch.equal(family.pack(q, k, v), projected[1])
        if a.rotary is not None:
            cos, sin = a.rotary.unsqueeze(2)
            q, k = (part * cos + part.roll(a.qk // 2, -1) * sin for part in (q, k))
        weights = torch.einsum("bnhw,bmhw->bhnm", q, k) / a.qk**0.5
        heads = torch.einsum("bhnm,bmhw->bnhw", weights.softmax(-1), v)
        close(put_out[0], heads.flatten(-2))
        close(put_out[1], torch.einsum("bnhw,hdw->bnd", heads, a.wo.detach()) + (0 if a.bo is None else a.bo.detach()))


@sweep_forms
def test_an_ffn_puts_out_its_neurons_through_w2(network: nn.Module) -> None:
    family = family_of(network)
    for block, seen in zip(family.read(network), seen_at(network, family.ffn_outputs(network)), strict=True):
        if block.ffn is not None and seen is not None:
            f = block.ffn
            assert seen[0].shape[-1] == f.neurons
            close(seen[1], seen[0] @ f.w2.detach().mT + (0 if f.b2 is None else f.b2.detach()))


@sweep_forms
def test_the_head_sees_the_images_through_the_final_tokens_alone(network: nn.Module) -> None:
    family = family_of(network)
    module = family.final_tokens(network)
    ((_, final),) = seen_at(network, [module])  # type: ignore[misc]
    geometry = family.geometry(network)
    assert final.shape == (3, geometry.tokens, geometry.embed)
    hook = module.register_forward_hook(lambda *_: final)
    with torch.no_grad():
        others = family.answers(network, torch.randn_like(final))
        hook.remove()
        close(others, network(images()))
        assert not torch.allclose(family.answers(network, torch.randn_like(final)), others)


@sweep_forms
@torch.no_grad()
def test_a_head_that_reads_the_mean_of_the_patches_sees_nothing_else_of_them(network: nn.Module) -> None:
    family = family_of(network)
    module, geometry = family.final_tokens(network), family.geometry(network)
    ((_, final),) = seen_at(network, [module])  # type: ignore[misc]
    prefix, patches = final.split([geometry.tokens - geometry.patches, geometry.patches], dim=1)
    alike = torch.cat([prefix, patches.mean(1, keepdim=True).expand_as(patches)], dim=1)
    expected, hook = network(images()), module.register_forward_hook(lambda *_: alike)
    found = network(images())
    hook.remove()
    assert family.reads_mean(network)
    close(found, expected)


@sweep_forms
def test_a_classifier_has_a_row_for_every_class(network: nn.Module) -> None:
    family = family_of(network)
    heads = family.classifiers(network)
    assert sum(len(head.weight) for head in heads) == family.geometry(network).outputs
    with torch.no_grad():
        before = network(images())
        for head in heads:
            head.weight[3] = 0
            head.bias[3] = 1.5
        after = network(images())
    torch.testing.assert_close(after[:, 3], torch.full((3,), 1.5))
    kept = [i for i in range(10) if i != 3]
    assert torch.equal(after[:, kept], before[:, kept])


@sweep_forms
@torch.no_grad()
def test_classes_that_are_kept_answer_as_before_and_the_others_are_not_counted(network: nn.Module) -> None:
    family = family_of(network)
    geometry, dims = family.geometry(network), [block.dims for block in family.read(network)]
    expected, before = network(images())[:, [7, 0, 3]], sum(p.numel() for p in network.parameters())
    family.keep_classes(network, [7, 0, 3])
    close(network(images()), expected)
    gone = before - sum(p.numel() for p in network.parameters())
    fewer = geometry.with_classes(3)
    assert fewer == family.geometry(network) and geometry.params(dims) - fewer.params(dims) == gone > 0


@sweep_forms
def test_the_input_size_is_that_of_the_images(network: nn.Module) -> None:
    family = family_of(network)
    size = family.input_size(network)
    assert size == (3, 32, 32)
    geometry = family.geometry(network)
    assert size[0] * size[1] * size[2] == geometry.patches * geometry.patch_values
    assert family.first_tokens(network, torch.zeros(2, *size)).shape == (2, geometry.tokens, geometry.embed)


@sweep_forms
def test_a_base_that_is_resized_takes_the_weights_of_the_cut_model(
    network: nn.Module, small_vit: Callable[..., nn.Module], name: str, args: dict[str, Any]
) -> None:
    family, state = family_of(network), network.state_dict()
    again = small_vit(name, **args)
    family.resize(again, [block.dims for block in family.read(network)], state.keys())
    again.load_state_dict(state, assign=True)
    with torch.no_grad():
        close(again.eval()(images()), network(images()))


@sweep
@pytest.mark.parametrize("form", ["whole", "half", "equal", "unequal"])
def test_the_plain_loader_makes_the_model_without_edgevit(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any], form: str
) -> None:
    whole = small_vit(name, **args)
    family = family_of(whole)
    cut = {"equal": BlockDims(2, 16, 16, 40), "unequal": DIMS}
    network = slimmed(whole, cut[form]) if form in cut else whole
    if form == "half":
        first, second = (narrowed(block, cut["equal"]) for block in family.read(whole))
        network = family.build(whole, [Block(first.attention, None), Block(None, second.ffn)]).eval()
    lines = family.plain_loader(network)
    if form == "unequal" or rotary(family, network):
        assert lines is None
        return
    assert lines is not None and "edgevit" not in lines
    spec = {"timm_name": name, "timm_args": {**ARGS, **args}, "blocks": [vars(b.dims) for b in family.read(network)]}
    made: dict[str, Any] = {"timm": timm, "torch": torch, "spec": spec, "state": network.state_dict()}
    exec(lines, made)
    with torch.no_grad():
        close(made["model"].eval()(images()), network(images()))


@sweep
@pytest.mark.parametrize("part", ["attention", "ffn"])
def test_what_a_base_costs_is_known_of_a_model_that_has_lost_all_sites_of_a_kind(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any], part: str
) -> None:
    whole = small_vit(name, **args)
    family = family_of(whole)
    blocks = family.read(whole)
    once = family.build(whole, [replace(block, **{part: None}) for block in blocks])
    again = family.build(once, family.read(once))
    dims = [block.dims for block in blocks]
    expected = family.geometry(whole).macs(dims)
    assert family.geometry(once).macs(dims) == family.geometry(again).macs(dims) == expected


@sweep_forms
def test_tokens_are_ranked_by_the_scores_of_their_block(network: nn.Module) -> None:
    family = family_of(network)
    geometry, blocks = family.geometry(network), family.read(network)
    prefix = geometry.tokens - geometry.patches
    wanted = [replace(blocks[0], tokens=prefix + 5), *blocks[1:]]
    if "tokens" in geometry.frozen(0):
        with pytest.raises(UnsupportedModelError, match="cannot drop tokens of"):
            family.build(network, wanted)
        return
    fewer = family.build(network, wanted).eval()
    ((given, _),) = seen_at(network, family.attention_inputs(network)[:1])  # type: ignore[misc]
    ((_, every),) = seen_at(network, family.layers(network)[:1])  # type: ignore[misc]
    ((_, passed),) = seen_at(fewer, family.layers(fewer)[:1])  # type: ignore[misc]
    with torch.no_grad():
        scores = family.token_scores(network, 0, given)
        all_there = SoftGates(torch.zeros_like(scores), torch.ones(blocks[0].dims.heads))
        close(family.token_scores(network, 0, given, all_there), scores)
    best = prefix + scores[:, prefix:].topk(5).indices
    expected = every.gather(1, best.unsqueeze(-1).expand(-1, -1, every.shape[-1]))
    close(passed, torch.cat([every[:, :prefix], expected], dim=1))


@sweep_forms
def test_tokens_are_read_through_the_token_norms_alone(network: nn.Module) -> None:
    family = family_of(network)
    if family.geometry(network).fixed_embed is not None:
        return
    *of_sites, last = family.token_norms(network)
    assert of_sites == [branch.before for pair in family.branches(network) for branch in pair if branch is not None]
    ((_, normalised),) = seen_at(network, [last])  # type: ignore[misc]
    hook = last.register_forward_hook(lambda *_: torch.zeros_like(normalised))
    with torch.no_grad():
        one, other = network(images()), network(images().flip(0))
    hook.remove()
    assert torch.equal(one, other), "the head reads something else"


@sweep_forms
def test_a_base_is_known_by_its_own_names_and_is_one_that_can_be_pruned(network: nn.Module, name: str) -> None:
    family, state = family_of(network), network.state_dict()
    family.check(network)
    fitted = family.fitted(family.named(state), network, name, resample=False)
    assert fitted.notes == () and fitted.classes == len(family.classifiers(network)[0].weight)
    assert fitted.state.keys() == state.keys() and all(torch.equal(fitted.state[key], state[key]) for key in state)


@sweep
@pytest.mark.parametrize("embed", [64, 24])
def test_timm_makes_a_shorter_and_narrower_network_with_the_arguments(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any], embed: int
) -> None:
    network = small_vit(name, **args)
    family = family_of(network)
    if embed < 64 and family.geometry(network).fixed_embed is not None:
        return
    if embed < 64:
        network = family.with_embedding(network, encoder(flat_basis(64), embed)).eval()
    family.keep_blocks(network, [1])
    again = family.adopted(timm.create_model(name, **{**ARGS, **args, **family.arguments(network, 2, 64)}))
    family.resize(again, [block.dims for block in family.read(network)], network.state_dict())
    again.load_state_dict(network.state_dict(), assign=True)
    with torch.no_grad():
        close(again.eval()(images()), network(images()))
    assert family.arguments(network, 1, embed) == {}


@sweep_forms
@torch.no_grad()
def test_what_is_gone_counts_for_nothing_in_the_scores(network: nn.Module) -> None:
    family = family_of(network)
    ((seen, _), *_) = seen_at(network, family.attention_inputs(network)[:1])  # type: ignore[misc]
    log_gates, stays = shut(family, network)
    every = torch.ones(family.read(network)[0].dims.heads)
    fewer = family.token_scores(network, 0, seen, SoftGates(log_gates, every))[:, stays]
    close(fewer, family.token_scores(network, 0, seen[:, stays]))
    assert not torch.allclose(fewer, family.token_scores(network, 0, seen)[:, stays], rtol=1e-3)
    first, *others = family.read(network)
    assert first.attention is not None
    one_head = family.build(network, [replace(first, attention=first.attention.keep([1])), *others])
    second = SoftGates(torch.zeros_like(log_gates), every * torch.arange(len(every)))
    close(family.token_scores(network, 0, seen, second), family.token_scores(one_head, 0, seen))


@sweep_forms
@torch.no_grad()
def test_blocks_do_not_look_at_tokens_that_weigh_nothing(network: nn.Module) -> None:
    family = family_of(network)
    log_gates, stays = shut(family, network)
    tokens, asked = family.first_tokens(network, images()), list[int]()

    def weights(block: int) -> Tensor:
        asked.append(block)
        return log_gates

    def passed(tokens: Tensor) -> Tensor:
        for layer in family.layers(network):
            tokens = layer(tokens)
        return tokens

    others, whole = torch.randn_like(tokens), passed(tokens)
    others[:, stays] = tokens[:, stays]
    with family.weighing(network, weights):
        found = passed(tokens)[:, stays]
        close(passed(others)[:, stays], found)
    assert asked == [0, 1, 0, 1] and not torch.allclose(whole[:, stays], found, rtol=1e-3)
    if not rotary(family, network):  # which without some tokens has the others at other places
        close(passed(tokens[:, stays]), found)
    assert torch.equal(passed(tokens), whole), "it lasts on"
    with family.weighing(network, lambda _: None):
        assert torch.equal(passed(tokens), whole)


@sweep
def test_a_model_for_images_of_any_size_takes_those_of_its_own_alone_while_that_lasts(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, seen = load_family(family_name), images()
    network, any_size = (small_vit(name, **args, dynamic_img_size=dynamic) for dynamic in (False, True))
    larger = torch.cat([seen, seen], -1)
    if rotary(family, network):  # which is of one size from the first
        with pytest.raises(AssertionError):
            any_size(larger)
        return
    with torch.no_grad():
        whole = any_size(larger)
        for one in (network, any_size):
            with family.of_one_size(one):
                close(one(seen), network(seen))
                with pytest.raises((AssertionError, RuntimeError)):  # some say so, others cannot add positions
                    one(larger)
        assert torch.equal(any_size(larger), whole), "it lasts on"


def shut(family: Family, network: nn.Module) -> tuple[Tensor, Tensor]:
    """Logarithms of gates [B, N] that are open, but for some patches; and the tokens whose are."""
    geometry = family.geometry(network)
    log_gates = torch.zeros(3, geometry.tokens)
    log_gates[:, geometry.tokens - geometry.patches + 1 :: 3] = -1e4
    return log_gates, (log_gates[0] == 0).nonzero().flatten()


@sweep
def test_height_and_width_of_the_images_are_told_apart(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network = small_vit(name, **args, img_size=(32, 48))
    size = load_family(family_name).input_size(network)
    assert size == (3, 32, 48) and network(torch.zeros(1, *size)).shape == (1, 10)


@sweep_forms
@torch.no_grad()
def test_an_embedding_is_frozen_where_another_basis_is_another_function_and_nowhere_else(network: nn.Module) -> None:
    family = family_of(network)
    torch.manual_seed(2)
    for parameter in network.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    turned = encoder(flat_basis(64), 64, nested_basis)  # as wide, so that nothing need be lost
    expected = network(images())
    try:
        same = torch.allclose(family.with_embedding(network, turned).eval()(images()), expected, rtol=0.01, atol=0.01)
    except Exception:  # where it is frozen nobody promised to do it
        same = False
    assert same == (family.geometry(network).fixed_embed is None)


@sweep
def test_positions_are_resampled_only_where_that_was_asked_for(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, network = load_family(family_name), small_vit(name, **args)
    of_larger_images = family.named(small_vit(name, **args, img_size=64).state_dict())
    if rotary(family, network):  # whose positions are no weights
        assert family.fitted(of_larger_images, network, name, resample=False).notes == ()
        return
    with pytest.raises(CheckpointError, match=f"do not fit {name}"):
        family.fitted(of_larger_images, network, name, resample=False)
    fitted = family.fitted(of_larger_images, network, name, resample=True)
    assert len(fitted.notes) == 1 and fitted.classes == 10
    network.load_state_dict(fitted.state)


@sweep
def test_a_network_is_guessed_from_the_shapes_of_its_weights(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, network = load_family(family_name), small_vit(name, **args)
    given = family.named(network.state_dict()).state
    unseen = {key: args[key] for key in args if key in ("mlp_layer", "final_norm", "fc_norm", "global_pool")}
    with without_values():
        usual = family.adopted(timm.create_model(name, **unseen))
        heads = {"num_heads": ARGS["num_heads"]}
        guessed, note = family.guessed_arguments(given, usual, usual.state_dict(), heads)
        assert note is None and "depth" in guessed
        again = family.adopted(timm.create_model(name, num_classes=10, **{**unseen, **heads, **guessed}))
    shapes = [{key: value.shape for key, value in of.state_dict().items()} for of in (network, again)]
    if "mlp_layer" in args or rotary(family, network):  # of which no argument is guessed
        shapes = [{key: shape for key, shape in of.items() if ".mlp." not in key} for of in shapes]
    assert shapes[0] == shapes[1]
    assert family.guessed_arguments(given, again, again.state_dict(), ())[0].keys() <= {"mlp_ratio"}
    assert timm.is_model(family.guessed_name(given) or "")


@foreign
def test_weights_are_known_by_the_names_that_others_give_them(
    small_vit: Callable[..., nn.Module],
    family_name: str,
    name: str,
    args: dict[str, Any],
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    family, network = load_family(family_name), small_vit(name, **args)
    own = network.state_dict()
    given = renamed(own)
    assert not given.keys() & own.keys()
    found = family.fitted(family.named(given), network, name, resample=False)
    assert found.classes == 10 and found.notes
    assert found.state.keys() == own.keys() and all(torch.equal(found.state[key], own[key]) for key in own)


@refused
def test_a_network_that_the_algebra_would_break_is_refused_with_the_reason(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, network = load_family(family_name), small_vit(name, **args)
    assert family_like(network) is family
    with pytest.raises(UnsupportedModelError, match=f"cannot prune {name}: ."):
        family.check(network)


@pytest.mark.parametrize("family_name", family_names())
def test_a_network_of_another_kind_is_of_no_family(family_name: str) -> None:
    assert not load_family(family_name).matches(nn.Linear(1, 1))


def test_every_family_has_networks_that_it_refuses_and_weights_of_others() -> None:
    assert set(REFUSED) == set(FOREIGN) == set(family_names()) and all(REFUSED.values()) and all(FOREIGN.values())


@sweep
@torch.no_grad()
def test_a_network_without_a_classifier_is_given_one_that_reads_its_features(
    small_vit: Callable[..., nn.Module], family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, network = load_family(family_name), small_vit(name, **args, num_classes=0)
    assert family.has_classifier(small_vit(name, **args)) and not family.has_classifier(network)
    with pytest.raises(UnsupportedModelError, match="no classifier"):
        family.classifiers(network)
    features = network(images())
    family.make_classifiers(network, 7)
    assert family.has_classifier(network)
    first, *others = family.classifiers(network)
    assert (first.in_features, first.out_features) == (features.shape[1], 7)
    assert family.geometry(network).outputs == 7 * (1 + len(others))
    for head in others:
        head.load_state_dict(first.state_dict())
    close(network(images()), first(features))


def _is_family(asked: ast.expr) -> bool:
    """Whether this is the name `family`, or a call of `load_family` or `family_of`; others' attributes do not count."""
    if isinstance(asked, ast.Call):
        return isinstance(asked.func, ast.Name) and asked.func.id in ("load_family", "family_of")
    return isinstance(asked, ast.Name) and asked.id == "family"


def test_every_function_of_the_protocol_is_held_by_a_test_that_sweeps_the_families() -> None:
    asked = set()
    for file in TESTS.rglob("test_*.py"):
        tree = ast.parse(file.read_text())
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        sweeps = ("sweep", "sweep_forms")
        swept = [f for f in functions if any(isinstance(d, ast.Name) and d.id in sweeps for d in f.decorator_list)]
        helpers = [function for function in functions if not function.name.startswith("test_")]
        for node in [*swept, *(helpers if swept else [])]:
            asked |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and _is_family(one.value)}
    assert {name for name in vars(Family) if not name.startswith("_")} <= asked
