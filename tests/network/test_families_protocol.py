"""Every function of `Family` and `Interchange`, and what `Network` derives from them, compared with the network itself.

Each example of a family is tested as it is ("whole"), every third one also as a copy whose first block has lost its
FFN and whose second its attention ("half").
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from family_examples import FOREIGN, REFUSED, foreign, images, narrowed, refused, slimmed, sweep, sweep_forms
from small_models import encoders, usual_args
from torch import Tensor, nn

from edgevit.derivation.solve.embedding import nested_basis
from edgevit.errors import CheckpointError, UnsupportedModelError
from edgevit.network.anatomy import Attention, Block, BlockDims, pack, unpack
from edgevit.network.copies import without_values
from edgevit.network.families import Family, Interchange, family_like, family_names, load_family
from edgevit.network.layers import SoftGates
from edgevit.network.network import Network

DIMS = BlockDims(2, 24, 8, 40)


@pytest.fixture
def network(small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any], form: str) -> Network:
    whole = small_vit(name, **args)
    assert whole.family is load_family(family_name) and whole.family.matches(whole.module)
    if form == "whole":
        return whole
    first, second = (narrowed(block, DIMS) for block in whole.read())
    return whole.build([Block(first.attention, None), Block(None, second.ffn)]).eval()


def seen_at(network: Network, modules: list[nn.Module | None]) -> list[tuple[Tensor, Tensor] | None]:
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


def run(network: Network, indices: list[int]) -> Tensor:
    """The forward pass in the family's steps, through these blocks alone."""
    with torch.no_grad():
        tokens = network.first_tokens(images())
        for i, block in enumerate(network.blocks):
            tokens = block.enter(tokens)
            if i in indices:
                tokens = block.module(tokens)
        return network.answers(tokens)


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.detach().abs().max()))


def windows(network: Network) -> bool:
    """Whether tokens attend to those of a window alone."""
    return any(block.attention is not None and block.attention.relative is not None for block in network.read())


def rotary(network: Network) -> bool:
    """Whether attention depends on which place a token has."""
    return any(block.attention is not None and block.attention.rotary is not None for block in network.read())


@sweep
@torch.no_grad()
def test_a_network_is_adopted_with_the_function_that_timm_gave_it(
    family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, made = load_family(family_name), timm.create_model(name, **{**usual_args(name), **args}).eval()
    expected = made(images())
    module = family.interchange.adopted(made)
    family.check(module)
    network = Network(module)
    assert family.interchange.adopted(module) is module and network.family is family
    tolerance = 1e-5 * float(expected.abs().max()) if windows(network) else 0.0
    for found in (module(images()), network(images())):
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@sweep_forms
def test_the_steps_of_a_forward_pass_are_the_forward_pass(network: Network) -> None:
    with torch.no_grad():
        close(run(network, [0, 1]), network(images()))
    of_layers = seen_at(network, list(network.block_modules))
    with torch.no_grad():
        close(network.outputs_after([seen[1] for seen in of_layers], images()), network(images()))
    assert network.family_name in family_names()
    stages = [network.geometry.stages[block.stage] for block in network.blocks]
    for seen, stage in zip(of_layers, stages, strict=True):
        assert seen is not None and seen[0].shape == seen[1].shape == (3, stage.tokens, stage.embed)
    for (one, other), block in zip(pairwise(of_layers), network.blocks[1:], strict=True):
        assert torch.equal(block.enter(one[1]), other[0])  # type: ignore[index]


@sweep_forms
@torch.no_grad()
def test_images_of_classes_have_no_padding(network: Network) -> None:
    tokens = network.first_tokens(images())
    assert not network.pads and network.real_tokens(tokens) is None and network.areas is None


@sweep_forms
def test_blocks_that_are_kept_are_the_only_ones_that_run(network: Network) -> None:
    expected = {kept: run(network, [kept]) for kept in (0, 1)}
    dims = list(network.dims)
    for kept in (0, 1):
        shorter = copy.deepcopy(network)
        shorter.keep_blocks([kept])
        with torch.no_grad():
            close(shorter(images()), expected[kept])
        assert list(shorter.dims) == [dims[kept]]


@sweep_forms
def test_a_block_adds_what_its_outputs_are_times_the_scales_of_its_layers(network: Network) -> None:
    blocks = seen_at(network, list(network.block_modules))
    attention = seen_at(network, network.attention_outputs)
    ffn = seen_at(network, network.ffn_outputs)
    assert len(network.layers) == len(blocks)
    for (x, y), a, f, layers in zip(blocks, attention, ffn, network.layers, strict=True):  # type: ignore[misc]
        scales = [None if layer is None else layer.scale for layer in layers]
        scaled = ((1.0 if scale is None else scale) * at[1] for scale, at in zip(scales, (a, f), strict=True) if at)
        total = sum(scaled, start=x)
        if any(layer is not None and layer.scale is None for layer in layers):
            assert not torch.allclose(total, y, rtol=1e-2), "no such sum, because a norm comes after"
        else:
            close(total, y)


@sweep_forms
@torch.no_grad()
def test_a_block_is_the_sum_of_its_layers(network: Network) -> None:
    blocks, outputs = seen_at(network, network.block_modules), (network.attention_outputs, network.ffn_outputs)
    for (x, y), pair, *seen in zip(blocks, network.layers, *(seen_at(network, of) for of in outputs), strict=True):  # type: ignore[misc]
        for layer, at_output in zip(pair, seen, strict=True):
            assert (layer is None) == (at_output is None)
            if layer is not None:
                normalised = layer.before(x)
                at_readers = seen_at(network, list(layer.readers))
                assert all(reader is not None and reader[0].shape == normalised.shape for reader in at_readers)
                for reader in at_readers:
                    close(reader[0], normalised)  # type: ignore[index]
                close(layer.output(at_output[0]), at_output[1])
                x = x + layer.added(layer.module(normalised))
        close(x, y)


@sweep_forms
def test_sites_parts_and_modules_are_there_or_gone_alike(network: Network, form: str) -> None:
    parts = network.read()
    assert network.dims == tuple(block.dims for block in parts)
    for i, block in enumerate(parts):
        alone = network.blocks[i].read()
        assert alone.dims == block.dims and (alone.ffn is None or torch.equal(alone.ffn.w1, block.ffn.w1))  # type: ignore[union-attr]
    sites = [layer.site for pair in network.layers for layer in pair if layer is not None]
    expected = ["attention", "ffn"] * 2 if form == "whole" else ["attention", "ffn"]
    assert [site.kind for site in sites] == expected and all(all(site.frozen.values()) for site in sites)
    assert tuple(sites) == network.geometry.sites
    there = {(site.block, site.kind) for site in sites}
    for i, block in enumerate(parts):
        for kind, part in (("attention", block.attention), ("ffn", block.ffn)):
            assert ((i, kind) in there) == (part is not None)
    for modules in (network.attention_inputs, network.projections, network.attention_outputs):
        assert [m is not None for m in modules] == [b.attention is not None for b in parts]
    assert [m is not None for m in network.ffn_outputs] == [b.ffn is not None for b in parts]


@sweep_forms
def test_weights_that_are_read_are_the_live_ones(network: Network) -> None:
    parts = [part for block in network.read() for part in (block.attention, block.ffn) if part is not None]
    tensors = [value for part in parts for name, value in vars(part).items() if name != "rotary" and value is not None]
    sum(tensor.square().sum() for tensor in tensors).backward()  # type: ignore[union-attr]
    layers = [layer for pair in network.layers for layer in pair if layer is not None]
    for linear in (linear for layer in layers for linear in (*layer.readers, layer.output)):
        torch.testing.assert_close(linear.weight.grad, 2 * linear.weight.detach())


@sweep_forms
def test_a_projection_puts_out_queries_keys_and_values(network: Network) -> None:
    parts = network.read()
    inputs = seen_at(network, network.attention_inputs)
    projections = seen_at(network, network.projections)
    outputs = seen_at(network, network.attention_outputs)
    for i, (block, given, projected, put_out) in enumerate(zip(parts, inputs, projections, outputs, strict=True)):
        if block.attention is None:
            continue
        assert given is not None and projected is not None and put_out is not None
        a, x = block.attention, given[0]
        close(projected[0], x)
        q, k, v = unpack(projected[1], block.dims)  # [B, N, H, w]
        for seen, weight, bias in ((q, a.wq, a.bq), (k, a.wk, a.bk), (v, a.wv, a.bv)):
            close(seen, torch.einsum("bnd,hwd->bnhw", x, weight.detach()) + (0 if bias is None else bias.detach()))
        assert torch.equal(pack(q, k, v), projected[1])
        if a.rotary is not None:
            cos, sin = a.rotary.unsqueeze(2)
            q, k = (part * cos + part.roll(a.qk // 2, -1) * sin for part in (q, k))
        added: Tensor | float = 0.0
        if a.relative is not None:
            added, (q, k, v) = windowed(network.blocks[i].attention.module, a, (q, k, v))  # type: ignore[union-attr]
        weights = torch.einsum("bnhw,bmhw->bhnm", q, k) / a.qk**0.5 + added
        heads = torch.einsum("bhnm,bmhw->bnhw", weights.softmax(-1), v)[:, : x.shape[1]]
        close(put_out[0], heads.flatten(-2))
        close(put_out[1], torch.einsum("bnhw,hdw->bnd", heads, a.wo.detach()) + (0 if a.bo is None else a.bo.detach()))


def windowed(module: Any, a: Attention, qkv: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
    """What windows add to the logits of all pairs of tokens [H, n, n], and q, k and v with the tokens of padding."""
    w, order = module.windows, module.windows.order
    area, tokens = w.area, qkv[0].shape[1]
    place = torch.where(order == tokens, tokens + torch.arange(len(order)), order)  # each padding by itself
    added = torch.full((a.heads, tokens + len(order), tokens + len(order)), -torch.inf)
    assert a.relative is not None
    biases = a.relative.detach()[:, w.relative].unflatten(1, (area, area))
    for number, members in enumerate(place.split(area)):
        apart = 0 if w.apart is None else w.apart[number]
        added[:, members[:, None], members] = biases + apart
    added.diagonal(dim1=1, dim2=2)[:, [n not in place for n in range(added.shape[1])]] = 0
    full = []
    for part, bias in zip(qkv, (a.bq, a.bk, a.bv), strict=True):
        nothing = part.new_zeros(part.shape[2:]) if bias is None else bias.detach()
        full.append(torch.cat([part, nothing.expand(len(part), len(order), -1, -1)], 1))
    return added, full


@sweep_forms
def test_an_ffn_puts_out_its_neurons_through_w2(network: Network) -> None:
    for block, seen in zip(network.read(), seen_at(network, network.ffn_outputs), strict=True):
        if block.ffn is not None and seen is not None:
            f = block.ffn
            assert seen[0].shape[-1] == f.neurons
            close(seen[1], seen[0] @ f.w2.detach().mT + (0 if f.b2 is None else f.b2.detach()))


@sweep_forms
def test_the_head_sees_the_images_through_the_final_tokens_alone(network: Network) -> None:
    module = network.ends.final
    ((_, final),) = seen_at(network, [module])  # type: ignore[misc]
    geometry = network.geometry
    assert final.shape == (3, geometry.stages[-1].tokens, geometry.embed)
    with torch.no_grad():
        assert torch.equal(network.forward_features(images()), final)
    hook = module.register_forward_hook(lambda *_: final)
    with torch.no_grad():
        others = network.answers(torch.randn_like(final))
        hook.remove()
        close(others, network(images()))
        assert not torch.allclose(network.answers(torch.randn_like(final)), others)


@sweep_forms
@torch.no_grad()
def test_a_head_that_reads_the_mean_of_the_patches_sees_nothing_else_of_them(network: Network) -> None:
    module, geometry = network.ends.final, network.geometry
    ((_, final),) = seen_at(network, [module])  # type: ignore[misc]
    prefix, patches = final.tensor_split([geometry.prefix], dim=1)
    alike = torch.cat([prefix, patches.mean(1, keepdim=True).expand_as(patches)], dim=1)
    expected, hook = network(images()), module.register_forward_hook(lambda *_: alike)
    found = network(images())
    hook.remove()
    assert network.ends.reads_mean
    close(found, expected)


@sweep_forms
def test_a_classifier_has_a_row_for_every_class(network: Network) -> None:
    heads = network.classifiers
    assert sum(len(head.weight) for head in heads) == network.geometry.outputs
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
def test_classes_that_are_kept_answer_as_before_and_the_others_are_not_counted(network: Network) -> None:
    geometry, dims = network.geometry, list(network.dims)
    expected, before = network(images())[:, [7, 0, 3]], sum(p.numel() for p in network.parameters())
    network.keep_classes([7, 0, 3])
    close(network(images()), expected)
    gone = before - sum(p.numel() for p in network.parameters())
    fewer = geometry.with_classes(3)
    assert fewer == network.geometry and geometry.params(dims) - fewer.params(dims) == gone > 0


@sweep_forms
def test_the_input_size_is_that_of_the_images(network: Network) -> None:
    size = network.input_size
    assert size == (3, 32, 32)
    geometry = network.geometry
    assert size[0] * size[1] * size[2] == geometry.patches * geometry.patch_values
    assert network.first_tokens(torch.zeros(2, *size)).shape == (2, geometry.tokens, geometry.stages[0].embed)
    assert [prod(stage.grid) for stage in geometry.stages] == [s.tokens - geometry.prefix for s in geometry.stages]


@sweep_forms
def test_a_base_that_is_resized_takes_the_weights_of_the_cut_model(
    network: Network, small_vit: Callable[..., Network], name: str, args: dict[str, Any]
) -> None:
    state = network.state_dict()
    assert {parameter_name for parameter_name, _ in network.named_parameters()} <= state.keys()
    again = small_vit(name, **args)
    again.resize(list(network.dims), state.keys())
    again.load_state_dict(state, assign=True)
    with torch.no_grad():
        close(again.eval()(images()), network(images()))


@pytest.mark.quick("whole-*", "unequal-*")
@sweep
@pytest.mark.parametrize("form", ["whole", "half", "equal", "unequal"])
def test_the_plain_loader_makes_the_model_without_edgevit(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any], form: str
) -> None:
    whole = small_vit(name, **args)
    cut = {"equal": BlockDims(2, 16, 16, 40), "unequal": DIMS}
    network = slimmed(whole, cut[form]) if form in cut else whole
    if form == "half":
        first, second = (narrowed(block, cut["equal"]) for block in whole.read())
        network = whole.build([Block(first.attention, None), Block(None, second.ffn)]).eval()
    lines = network.plain_loader()
    if form == "unequal" or rotary(network):
        assert lines is None
        return
    assert lines is not None and "edgevit" not in lines
    spec = {
        "timm_name": name,
        "timm_args": {**usual_args(name), **args},
        "blocks": [vars(b.dims) for b in network.read()],
    }
    made: dict[str, Any] = {"timm": timm, "torch": torch, "spec": spec, "state": network.state_dict()}
    exec(lines, made)
    with torch.no_grad():
        close(made["model"].eval()(images()), network(images()))


@sweep
@pytest.mark.parametrize("part", ["attention", "ffn"])
def test_what_a_base_costs_is_known_of_a_model_that_has_lost_all_sites_of_a_kind(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any], part: str
) -> None:
    whole = small_vit(name, **args)
    blocks = whole.read()
    once = whole.build([replace(block, **{part: None}) for block in blocks])
    again = once.build(once.read())
    dims = [block.dims for block in blocks]
    expected = whole.geometry.macs(dims)
    assert once.geometry.macs(dims) == again.geometry.macs(dims) == expected


@sweep_forms
def test_tokens_are_ranked_by_the_scores_of_their_block(network: Network) -> None:
    geometry, blocks = network.geometry, network.read()
    prefix = geometry.tokens - geometry.patches
    wanted = [replace(blocks[0], tokens=prefix + 5), *blocks[1:]]
    if "tokens" in geometry.frozen(0):
        with pytest.raises(UnsupportedModelError, match="cannot drop tokens of"):
            network.build(wanted)
        return
    fewer = network.build(wanted).eval()
    ((given, _),) = seen_at(network, network.attention_inputs[:1])  # type: ignore[misc]
    ((_, every),) = seen_at(network, network.block_modules[:1])  # type: ignore[misc]
    ((_, passed),) = seen_at(fewer, fewer.block_modules[:1])  # type: ignore[misc]
    with torch.no_grad():
        scores = network.token_scores(0, given)
        all_there = SoftGates(torch.zeros_like(scores), torch.ones(blocks[0].dims.heads))
        close(network.token_scores(0, given, all_there), scores)
    best = prefix + scores[:, prefix:].topk(5).indices
    expected = every.gather(1, best.unsqueeze(-1).expand(-1, -1, every.shape[-1]))
    close(passed, torch.cat([every[:, :prefix], expected], dim=1))


@sweep_forms
def test_tokens_are_read_through_the_token_norms_alone(network: Network) -> None:
    if network.geometry.fixed_embed is not None:
        return
    entries = network.ends.entries
    *norms, last = [norm.module for norm in network.token_norms]
    of_sites = [layer.before for pair in network.layers for layer in pair if layer is not None]
    assert norms == [*of_sites, *(norm.module for norm in entries)]
    widths = [network.geometry.bases[norm.basis] * norm.joined for norm in network.token_norms]
    assert [norm.module.normalized_shape for norm in network.token_norms] == [(width,) for width in widths]
    ((_, normalised),) = seen_at(network, [last])  # type: ignore[misc]
    hook = last.register_forward_hook(lambda *_: torch.zeros_like(normalised))
    with torch.no_grad():
        one, other = network(images()), network(images().flip(0))
    hook.remove()
    assert torch.equal(one, other), "the head reads something else"
    shown: list[torch.Tensor] = []
    hook = last.register_forward_hook(lambda _, __, output: shown.append(output))
    with torch.no_grad():
        blocks, tokens = network.blocks, network.first_tokens(images())
        for i, block in enumerate(blocks):
            tokens = block.put_out(block.run(block.enter(tokens)))
            network.show_last(i, tokens)
    hook.remove()
    assert len(shown) == 1 and torch.allclose(shown[0], normalised, atol=1e-5)


@sweep_forms
def test_a_base_is_known_by_its_own_names_and_is_one_that_can_be_pruned(network: Network, name: str) -> None:
    state, interchange = network.state_dict(), network.family.interchange
    network.family.check(network.module)
    fitted = interchange.fitted(interchange.named(state), network.module, name, resample=False)
    assert fitted.notes == () and fitted.classes == len(network.classifiers[0].weight)
    assert fitted.state.keys() == state.keys() and all(torch.equal(fitted.state[key], state[key]) for key in state)


@sweep
@pytest.mark.parametrize("embed", [64, 24])
def test_timm_makes_a_shorter_and_narrower_network_with_the_arguments(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any], embed: int
) -> None:
    network = small_vit(name, **args)
    if embed < 64 and network.geometry.fixed_embed is not None:
        return
    whole, (width,) = network.geometry.embed, network.geometry.widths([embed])
    if embed < 64:
        network = network.with_embedding(encoders(network, width)).eval()
    network.keep_blocks([1])
    made = timm.create_model(name, **{**usual_args(name), **args, **network.timm_arguments(2, whole)})
    again = Network(network.family.interchange.adopted(made))
    again.resize(list(network.dims), network.state_dict())
    again.load_state_dict(network.state_dict(), assign=True)
    with torch.no_grad():
        close(again.eval()(images()), network(images()))
    assert network.timm_arguments(1, width) == {}


@sweep_forms
@torch.no_grad()
def test_what_is_gone_counts_for_nothing_in_the_scores(network: Network) -> None:
    ((seen, _), *_) = seen_at(network, network.attention_inputs[:1])  # type: ignore[misc]
    if windows(network):
        with pytest.raises(UnsupportedModelError, match="cannot be ranked"):
            network.token_scores(0, seen)
        return
    log_gates, stays = shut(network)
    every = torch.ones(network.read()[0].dims.heads)
    fewer = network.token_scores(0, seen, SoftGates(log_gates, every))[:, stays]
    close(fewer, network.token_scores(0, seen[:, stays], None))
    assert not torch.allclose(fewer, network.token_scores(0, seen)[:, stays], rtol=1e-3)
    first, *others = network.read()
    assert first.attention is not None
    one_head = network.build([replace(first, attention=first.attention.keep([1])), *others])
    second = SoftGates(torch.zeros_like(log_gates), every * torch.arange(len(every)))
    close(network.token_scores(0, seen, second), one_head.token_scores(0, seen))


@sweep_forms
@torch.no_grad()
def test_blocks_do_not_look_at_tokens_that_weigh_nothing(network: Network) -> None:
    log_gates, stays = shut(network)
    tokens, asked = network.first_tokens(images()), list[int]()
    if windows(network):
        with pytest.raises(UnsupportedModelError, match="weights"), network.weighing(lambda _: log_gates):
            network(images())
        return

    def weights(block: int) -> Tensor:
        asked.append(block)
        return log_gates

    def passed(tokens: Tensor) -> Tensor:
        for layer in network.block_modules:
            tokens = layer(tokens)
        return tokens

    others, whole = torch.randn_like(tokens), passed(tokens)
    others[:, stays] = tokens[:, stays]
    with network.weighing(weights):
        found = passed(tokens)[:, stays]
        close(passed(others)[:, stays], found)
    assert asked == [0, 1, 0, 1] and not torch.allclose(whole[:, stays], found, rtol=1e-3)
    if not rotary(network):  # which without some tokens has the others at other places
        close(passed(tokens[:, stays]), found)
    assert torch.equal(passed(tokens), whole), "it lasts on"
    with network.weighing(lambda _: None):
        assert torch.equal(passed(tokens), whole)


@sweep
def test_a_model_for_images_of_any_size_takes_those_of_its_own_alone_while_that_lasts(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    seen = images()
    network, any_size = (small_vit(name, **args, dynamic_img_size=dynamic) for dynamic in (False, True))
    larger = torch.cat([seen, seen], -1)
    if rotary(network) or windows(network):  # which is of one size from the first
        with pytest.raises(AssertionError):
            any_size(larger)
        return
    with torch.no_grad():
        whole = any_size(larger)
        for one, of_one_size in ((network, network.of_one_size), (any_size, any_size.of_one_size)):
            with of_one_size():
                close(one(seen), network(seen))
                with pytest.raises((AssertionError, RuntimeError)):  # some say so, others cannot add positions
                    one(larger)
        assert torch.equal(any_size(larger), whole), "it lasts on"


def shut(network: Network) -> tuple[Tensor, Tensor]:
    """Logarithms of gates [B, N] that are open, but for some patches; and the tokens whose are."""
    geometry = network.geometry
    log_gates = torch.zeros(3, geometry.tokens)
    log_gates[:, geometry.tokens - geometry.patches + 1 :: 3] = -1e4
    return log_gates, (log_gates[0] == 0).nonzero().flatten()


@sweep
def test_height_and_width_of_the_images_are_told_apart(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network = small_vit(name, **args, img_size=(32, 48))
    size = network.input_size
    assert size == (3, 32, 48) and network(torch.zeros(1, *size)).shape == (1, 10)


@sweep_forms
@torch.no_grad()
def test_an_embedding_is_frozen_where_another_basis_is_another_function_and_nowhere_else(network: Network) -> None:
    torch.manual_seed(2)
    for parameter in network.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    turned = encoders(network, network.geometry.embed, nested_basis)  # as wide, so that nothing need be lost
    expected = network(images())
    try:
        same = torch.allclose(network.with_embedding(turned).eval()(images()), expected, rtol=0.01, atol=0.01)
    except Exception:  # where it is frozen nobody promised to do it
        same = False
    assert same == (network.geometry.fixed_embed is None)
    if same:
        (width,) = network.geometry.widths([48])
        narrower = network.with_embedding(encoders(network, width, nested_basis))
        assert network.geometry_at(width) == narrower.geometry
        assert narrower.geometry.params(narrower.dims) == sum(p.numel() for p in narrower.parameters())


@sweep
def test_positions_are_resampled_only_where_that_was_asked_for(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network, interchange = small_vit(name, **args), load_family(family_name).interchange
    of_larger_images = interchange.named(small_vit(name, **args, img_size=64).state_dict())
    if rotary(network) or windows(network):  # whose positions are no weights, or of a window
        assert interchange.fitted(of_larger_images, network.module, name, resample=False).notes == ()
        return
    with pytest.raises(CheckpointError, match=f"do not fit {name}"):
        interchange.fitted(of_larger_images, network.module, name, resample=False)
    fitted = interchange.fitted(of_larger_images, network.module, name, resample=True)
    assert len(fitted.notes) == 1 and fitted.classes == 10
    network.load_state_dict(fitted.state)


@sweep
def test_a_network_is_guessed_from_the_shapes_of_its_weights(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network, interchange = small_vit(name, **args), load_family(family_name).interchange
    given = interchange.named(network.state_dict()).state
    unseen = {key: args[key] for key in args if key in ("mlp_layer", "final_norm", "fc_norm", "global_pool")}
    with without_values():
        usual = interchange.adopted(timm.create_model(name, **unseen))
        heads = {} if windows(network) else {"num_heads": usual_args(name)["num_heads"]}
        guessed, note = interchange.guessed_arguments(given, usual, usual.state_dict(), heads)
        assert note is None and guessed.keys() & {"depth", "depths"}
        again = interchange.adopted(timm.create_model(name, num_classes=10, **{**unseen, **heads, **guessed}))
    shapes = [{key: value.shape for key, value in of.state_dict().items()} for of in (network, again)]
    if "mlp_layer" in args or rotary(network):  # of which no argument is guessed
        shapes = [{key: shape for key, shape in of.items() if ".mlp." not in key} for of in shapes]
    assert shapes[0] == shapes[1]
    assert interchange.guessed_arguments(given, again, again.state_dict(), ())[0].keys() <= {"mlp_ratio"}
    assert timm.is_model(interchange.guessed_name(given) or "")
    shape = interchange.shape_arguments(given)
    assert (shape["patch_size"], shape["embed_dim"]) == (again.patch_embed.proj.stride[0], again.embed_dim)
    others = set(family_names()) - {family_name}
    assert not any({*interchange.model_types} & {*load_family(other).interchange.model_types} for other in others)


@sweep
@torch.no_grad()
def test_stated_arguments_are_of_the_network_itself(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network, interchange = small_vit(name, **args), load_family(family_name).interchange
    stated = interchange.stated_arguments(network.module)
    assert stated["img_size"] == [32, 32]
    again = Network(
        interchange.adopted(timm.create_model(name, **{**usual_args(name), **args, "img_size": 64, **stated}))
    ).eval()
    again.load_state_dict(network.state_dict())
    close(again(images()), network(images()))


@foreign
def test_weights_are_known_by_the_names_that_others_give_them(
    small_vit: Callable[..., Network],
    family_name: str,
    name: str,
    args: dict[str, Any],
    renamed: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    network, interchange = small_vit(name, **args), load_family(family_name).interchange
    own = network.state_dict()
    given = renamed(own)
    assert not given.keys() & own.keys()
    found = interchange.fitted(interchange.named(given), network.module, name, resample=False)
    assert found.classes == 10 and found.notes
    assert found.state.keys() == own.keys() and all(torch.equal(found.state[key], own[key]) for key in own)


@refused
def test_a_network_that_the_algebra_would_break_is_refused_with_the_reason(
    family_name: str, name: str, args: dict[str, Any]
) -> None:
    family, module = load_family(family_name), timm.create_model(name, **{**usual_args(name), **args})
    adopted = family.interchange.adopted(module)
    assert family_like(adopted) is family
    for check in (family.check, Network):
        with pytest.raises(UnsupportedModelError, match=f"cannot prune {name}: ."):
            check(adopted)


@pytest.mark.parametrize("family_name", family_names())
def test_a_network_of_another_kind_is_of_no_family(family_name: str) -> None:
    assert not load_family(family_name).matches(nn.Linear(1, 1))


def test_every_family_has_networks_that_it_refuses_and_weights_of_others() -> None:
    of_images = set(family_names()) - {"bert"}  # which reads ids: families/test_bert.py
    assert set(REFUSED) == set(FOREIGN) == of_images and all(REFUSED.values()) and all(FOREIGN.values())


@sweep
@torch.no_grad()
def test_a_network_without_a_classifier_is_given_one_that_reads_its_features(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network = small_vit(name, **args, num_classes=0)
    assert bool(small_vit(name, **args).ends.classifiers) and not bool(network.ends.classifiers)
    with pytest.raises(UnsupportedModelError, match="no classifier"):
        _ = network.classifiers
    features = network(images())
    network.make_classifiers(7)
    assert bool(network.ends.classifiers)
    first, *others = network.classifiers
    assert (first.in_features, first.out_features) == (features.shape[1], 7)
    assert network.geometry.outputs == 7 * (1 + len(others))
    for head in others:
        head.load_state_dict(first.state_dict())
    close(network(images()), first(features))


@sweep
@torch.no_grad()
def test_networks_of_one_module_share_its_mode_and_count_other_columns(
    small_vit: Callable[..., Network], family_name: str, name: str, args: dict[str, Any]
) -> None:
    network = small_vit(name, **args)
    assert network.columns == tuple(range(10))
    again, logits = network.with_columns([7, 2]), network(images())
    assert again.columns == (7, 2) and torch.equal(again.output.of(again(images())), logits[:, [7, 2]])
    again.train()
    assert network.training and network.module.training
    network.eval()
    assert not again.training


OF_FAMILIES = {"network", "again", "family", "interchange"}  # names of a network, its family and its interchange


def asked(node: ast.AST) -> str | None:
    """The attribute that is read, if it is read of a network, its family or its interchange."""
    if not isinstance(node, ast.Attribute):
        return None
    of = node.value
    if isinstance(of, ast.Call):
        of = of.func
        return node.attr if isinstance(of, ast.Name) and of.id == "load_family" else None
    name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else None
    return node.attr if name in OF_FAMILIES else None


def test_every_function_of_the_protocols_and_of_a_network_has_a_test_of_all_families() -> None:
    """In this file: those named like a function of `Network` are called by it."""
    functions = [node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.FunctionDef)]
    sweeps = {"sweep", "sweep_forms"}
    tested = set()
    for function in functions:
        decorators = {one.id for one in function.decorator_list if isinstance(one, ast.Name)}
        if decorators & sweeps or not function.name.startswith("test_"):
            tested |= {asked(node) for node in ast.walk(function)}
    public = {name for of in (Family, Interchange, Network) for name in vars(of) if not name.startswith("_")}
    assert public - {"forward"} <= tested  # a call
