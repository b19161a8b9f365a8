"""Layers behind a backbone whose channels can be removed, found by what changes when the output of a layer does.

A chain is a linear layer or a convolution, and the layers that read its output: each of its channels reaches the same
channel of their inputs, through operations that do not mix channels, and reaches nothing else. So a channel can be
removed from the layer, from norms behind it, and from its readers' weights.

Chains are not recognised by types or names of modules: the output of a layer is changed in half of its channels, while
all other layers give what they gave before, and what they read then is compared with what they read before. A chain
that is found is cut for a trial, and must give what the whole gives without these channels. Both are done with one half
of the channels and with the other: what two channels of one half do to each other is seen without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgevit.errors import is_out_of_memory
from edgevit.network.copies import bare_copy
from edgevit.network.dense import DenseFamily, returning
from edgevit.network.detector import Pyramid
from edgevit.network.network import Network
from edgevit.network.weights import first_line
from edgevit.records.model import NarrowedLayer

Run = Callable[[nn.Module], object]  # runs a module, or a copy of it, on the same input each time

# The layers that mix channels, with the dimensions of outputs and inputs in their weights, and of channels in inputs.
_MIXING: Mapping[type[nn.Module], tuple[int, int, int]] = {
    nn.Linear: (0, 1, -1), nn.Conv2d: (0, 1, -3), nn.ConvTranspose2d: (1, 0, -3)
}  # fmt: skip
_SIZES = ("num_features", "num_parameters", "in_channels", "out_channels", "groups")  # attributes of other layers
_TOLERANCE = 1e-4  # accepted difference between cut and masked, relative to the largest value


def _kind(layer: Any) -> type[nn.Module] | None:
    """The kind of a layer that mixes channels; None: it does not, or is another one by what it computes."""
    kind = next((kind for kind in _MIXING if isinstance(layer, kind)), None)
    if kind is None or type(layer).forward is not kind.forward or "weight" not in layer._parameters:
        return None
    groups = _groups(layer)
    return kind if groups == 1 or groups < max(layer.weight.shape[:2]) else None  # else each channel for itself


def _groups(layer: Any) -> int:
    groups: int = getattr(layer, "groups", 1)
    return groups


def _dims(layer: nn.Module) -> tuple[int, int, int]:
    kind = _kind(layer)
    assert kind is not None
    return _MIXING[kind]


def outputs_of(layer: Any) -> int:
    """Number of the channels that a layer puts out."""
    channels: int = layer.weight.shape[_dims(layer)[0]]
    return channels


def channels_last(layer: nn.Module, values: Tensor) -> Tensor:
    """What a layer reads, as one row of channels for each position: [T, C]."""
    moved = values.movedim(_dims(layer)[2], -1)
    return moved.reshape(-1, moved.shape[-1])


def as_rows(layer: Any) -> Tensor:
    """The weights of a layer, with a row for each output and position of its kernel: [d, C]."""
    of_inputs: Tensor = layer.weight.detach().movedim(_dims(layer)[1], -1)
    return of_inputs.reshape(-1, of_inputs.shape[-1])


def set_rows(layer: Any, rows: Tensor, constants: Tensor | None) -> None:
    """Set the weights by their rows [d, C], in place, and add the constants of all rows [d] to the bias."""
    _, in_dim, _ = _dims(layer)
    shape = layer.weight.movedim(in_dim, -1).shape
    layer.weight.data = rows.to(layer.weight).reshape(shape).movedim(-1, in_dim).contiguous()
    if constants is not None:
        layer.bias.data += constants.reshape(len(layer.bias), -1).sum(1).to(layer.bias)


def takes_constants(layer: Any) -> bool:
    """Whether the bias of a layer can replace a constant in its input.

    At edges padded with zeros it cannot, nor where positions are reached by different parts of a transposed kernel.
    """
    if isinstance(layer, nn.ConvTranspose2d):
        return False
    padding = getattr(layer, "padding", 0)
    padded = padding != "valid" and (isinstance(padding, str) or any(padding if isinstance(padding, tuple) else ()))
    return layer.bias is not None and not (padded and layer.padding_mode == "zeros")


def macs_of(layer: Any, values: Tensor, output: Tensor) -> int:
    """Multiply-accumulates of one call of a linear layer or a convolution."""
    positions = values if isinstance(layer, nn.ConvTranspose2d) else output
    return positions.numel() * int(layer.weight[0].numel())


@torch.no_grad()
def shrink(module: nn.Module, layer: NarrowedLayer, keep: Tensor) -> None:
    """Remove all channels of a chain but those of these numbers [r], in place.

    Raises:
        AttributeError: the module has no such layer.
    """
    first: Any = module.get_submodule(layer.layer)
    channels = outputs_of(first)
    out_dim, _, _ = _dims(first)
    _select(first, "weight", out_dim, keep)
    if first.bias is not None:
        _select(first, "bias", 0, keep)
    for attribute in ("out_features", "out_channels"):
        if hasattr(first, attribute):
            setattr(first, attribute, len(keep))
    for name in layer.between:
        part: Any = module.get_submodule(name)
        for tensor_name in _own_tensors(part, channels):
            _select(part, tensor_name, 0, keep)
        for attribute in _SIZES:
            if getattr(part, attribute, None) == channels:
                setattr(part, attribute, len(keep))
        if getattr(part, "normalized_shape", None) == (channels,):
            part.normalized_shape = (len(keep),)
    for name in layer.readers:
        reader: Any = module.get_submodule(name)
        _select(reader, "weight", _dims(reader)[1], keep)
        for attribute in ("in_features", "in_channels"):
            if hasattr(reader, attribute):
                setattr(reader, attribute, len(keep))


def _select(part: Any, name: str, dim: int, keep: Tensor) -> None:
    tensor = getattr(part, name)
    selected = tensor.detach().index_select(dim, keep.to(tensor.device))
    setattr(part, name, nn.Parameter(selected, tensor.requires_grad) if name in part._parameters else selected)


def _own_tensors(part: nn.Module, channels: int) -> list[str]:
    """The names of a module's own parameters and buffers that have a value, or more, for each channel."""
    tensors = {**part._parameters, **part._buffers}
    return [name for name, t in tensors.items() if t is not None and t.ndim and t.shape[0] == channels]


def narrowed_as(module: nn.Module, layers: Sequence[NarrowedLayer]) -> None:
    """Give the chains of a module the numbers of channels that are recorded, in place, to load weights of them.

    Raises:
        AttributeError, IndexError, AssertionError: the module has no such layers, or fewer channels.
    """
    for layer in layers:
        shrink(module, layer, torch.arange(layer.channels))


# -- the search --------------------------------------------------------------------------------------------------------


class NoChain(Exception):
    """Why a layer begins no chain, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class _Call:
    layer: str
    values: Tensor | None  # what it read; None: no tensor, or given by name
    output: Tensor | None


@dataclass
class Replay:
    """A module, what each layer behind its backbone read in one run, and the way to run it again."""

    module: nn.Module
    backbone: str
    run: Run
    calls: list[_Call] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self._hooked(self.module, self._record):
            self.outputs = [tensor.clone() for tensor in tensors_in(self.run(self.module))]

    def layers(self, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """The modules behind the backbone that have parameters or buffers of their own."""
        for name, part in module.named_modules():
            inside = name == self.backbone or name.startswith(f"{self.backbone}.")
            if not inside and any(t is not None for t in (*part._parameters.values(), *part._buffers.values())):
                yield name, part

    @contextmanager
    def _hooked(self, module: nn.Module, see: Callable[[str, nn.Module, Tensor | None, Any], Any]) -> Iterator[None]:
        def hook(name: str) -> Any:
            def call(part: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                return see(name, part, next(iter(tensors_in(args)), None), output)

            return call

        with ExitStack() as stack:
            for name, part in self.layers(module):
                stack.callback(part.register_forward_hook(hook(name)).remove)
            yield

    def _record(self, name: str, part: nn.Module, values: Tensor | None, output: Any) -> None:
        output = output.clone() if _kind(part) else None  # what follows may change it in place
        self.calls.append(_Call(name, None if values is None else values.clone(), output))

    @contextmanager
    def again(
        self, module: nn.Module, see: Callable[[_Call, nn.Module, Tensor | None, Any], Tensor | None]
    ) -> Iterator[None]:
        """Have all mixing layers of a module put out what they did, unless `see` returns another output."""
        calls = iter(self.calls)

        def replay(name: str, part: nn.Module, values: Tensor | None, output: Any) -> Tensor | None:
            call = next(calls, None)
            if call is None or call.layer != name:
                raise NoChain("changes which layers run")
            changed = see(call, part, values, output)
            return changed if changed is not None or call.output is None else call.output.clone()

        with self._hooked(module, replay):
            yield

    def of_layer(self, name: str) -> list[_Call]:
        return [call for call in self.calls if call.layer == name]


def tensors_in(value: object) -> list[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for each in values for tensor in tensors_in(each)]


@dataclass(frozen=True)
class Chains:
    """The chains behind a backbone, in the order in which they run."""

    found: tuple[NarrowedLayer, ...]  # with all of their channels
    reasons: Mapping[str, str]  # why other layers begin none, by name

    @property
    def ends(self) -> tuple[str, ...]:
        """The layers that begin no chain, whose outputs are outputs of the network, or decide what it computes."""
        return tuple(self.reasons)

    def reasons_text(self) -> str:
        return "; ".join(f"{name} {reason}" for name, reason in self.reasons.items())


@torch.no_grad()
def find_chains(network: Network, images: Tensor) -> Chains:
    """Find the chains behind the backbone of a network with a head of the user's, by a few prepared images.

    Of a detector, they are in what reads the pyramid.
    """
    search = Replay(network.module, backbone_of(network), _fixed_run(network, images))
    chains, reasons = list[NarrowedLayer](), dict[str, str]()
    by_order = dict.fromkeys(call.layer for call in search.calls)
    for name in [*by_order, *(name for name, _ in search.layers(network.module) if name not in by_order)]:
        if _kind(network.module.get_submodule(name)) is None:
            continue
        try:
            chains.append(_chain_of(search, name))
        except NoChain as reason:
            reasons[name] = str(reason)
    return Chains(tuple(chains), reasons)


def backbone_of(network: Network) -> str:
    """The name, within its module, of what is no part of the chains."""
    assert isinstance(network.family, DenseFamily)
    return "detector.backbone" if isinstance(network.module, Pyramid) else network.family.path


def whole_run(network: Network, images: Tensor) -> object:
    """Run a network, and of a detector what reads the pyramid, too."""
    module = network.module
    return module.detect(images) if isinstance(module, Pyramid) else module(images)


def _fixed_run(network: Network, images: Tensor) -> Run:
    """A run on these images in which the backbone computes nothing anew."""
    module = network.module
    if isinstance(module, Pyramid):
        captured: list[Any] = []
        backbone: Any = module.detector.backbone
        hook = backbone.register_forward_hook(lambda _, inputs, levels: captured.append(levels))
        try:
            module.detect(images)
        finally:
            hook.remove()

        def detect(copied: Any) -> object:
            with returning(copied.detector.backbone, captured[0]):
                return _with_inputs(copied.detector.backbone, lambda: copied.detect(images))

        return detect
    return run_of_tokens(network, images)


def run_of_tokens(network: Network, images: Tensor) -> Run:
    """A run on these images in which no block computes anything anew: what reads their tokens does."""
    module, family, after = network.module, network.family, list[Tensor]()
    assert isinstance(family, DenseFamily)
    tokens = family.first_tokens(module, images)
    for block in family.blocks(module):
        tokens = block.run(block.enter(tokens))
        after.append(tokens)
    first = family.blocks(module)[0].module  # which copies share
    return lambda copied: _with_inputs(first, lambda: family.outputs_after(copied, after, images))


def _with_inputs(part: nn.Module, run: Callable[[], object]) -> tuple[object, object]:
    """The outputs of a run, and what a part reads in it: layers before the backbone reach the outputs through that."""
    inputs = list[object]()
    hook = part.register_forward_pre_hook(lambda _, args: inputs.append(args))
    try:
        return run(), inputs
    finally:
        hook.remove()


def _chain_of(search: Replay, name: str) -> NarrowedLayer:
    """The chain that a layer begins.

    Raises:
        NoChain: it begins none.
    """
    layer: Any = search.module.get_submodule(name)
    channels, calls = outputs_of(layer), search.of_layer(name)
    if not any(call.output is not None and call.output.numel() for call in calls):
        raise NoChain("computes nothing for these images")
    if any(call.values is None for call in calls):
        raise NoChain("is given its input by name")
    if _groups(layer) > 1:
        raise NoChain("is a convolution of groups")
    order = torch.randperm(channels, generator=torch.Generator().manual_seed(channels))
    half = order < max(channels // 2, 1)
    readers, between = readers_reached(search, name, half, 1)
    if channels < 2:
        raise NoChain("has one channel")
    for reached, more in zip((readers, between), readers_reached(search, name, ~half, -1), strict=True):
        reached.update(more)
    if name in readers:
        raise NoChain("reads its own output")
    if grouped := [reader for reader in readers if _groups(search.module.get_submodule(reader)) > 1]:
        raise NoChain(f"is read by {grouped[0]}, a convolution of groups")
    for part_name in between:
        part = search.module.get_submodule(part_name)
        if part._non_persistent_buffers_set.intersection(_own_tensors(part, channels)):
            raise NoChain(f"is read by {part_name}, whose buffer is not kept in weights files")
    chain = NarrowedLayer(name, tuple(between), tuple(readers), channels)
    for chosen in (half, ~half):
        _try_cut(search, chain, chosen.nonzero().flatten())
    return chain


def readers_reached(search: Replay, name: str, chosen: Tensor, sign: int) -> tuple[dict[str, None], dict[str, None]]:
    """The layers that read the output of one directly, and those between them that keep channels apart, by name.

    Args:
        chosen: the channels that are changed.
        sign: whether they grow (1) or shrink (-1), mostly: what is computed may depend on a threshold.
    """
    readers, between, generator = dict[str, None](), dict[str, None](), torch.Generator().manual_seed(0)
    channels = len(chosen)

    def see(call: _Call, part: nn.Module, values: Tensor | None, output: Any) -> Tensor | None:
        if call.values is not None and values is not None and not torch.equal(values, call.values):
            if values.shape != call.values.shape:
                raise NoChain(f"decides how much {call.layer} reads")
            if _kind(part) is None:
                if _own_tensors(part, channels):
                    between[call.layer] = None
                return None
            dim = _dims(part)[2]
            differs = (values != call.values).movedim(dim, -1).flatten(0, -2).any(0).cpu()
            if len(differs) != channels or bool((differs & ~chosen).any()):
                raise NoChain(f"reaches {call.layer} otherwise than channel by channel")
            readers[call.layer] = None
        if call.layer != name or call.output is None:
            return None
        scale = call.output.abs().amax() if call.output.numel() else 0.0
        noise = (torch.randn(call.output.shape, generator=generator).to(call.output) + 2 * sign) * scale
        of_chosen = chosen.to(noise.device).reshape([-1] + [1] * (-1 - _dims(part)[2]))
        return call.output + noise * of_chosen

    try:
        with search.again(search.module, see):
            outputs = tensors_in(search.run(search.module))
    except NoChain:
        raise
    except Exception as error:  # the user's code may raise anything
        if is_out_of_memory(error):
            raise
        raise NoChain(f"decides what is computed: {first_line(error, 80)}") from error
    same_outputs = len(outputs) == len(search.outputs) and all(map(torch.equal, outputs, search.outputs))
    if not same_outputs:
        raise NoChain("gives an output of the network" if not readers else "reaches an output or the backbone, too")
    if not readers:
        raise NoChain("is read by no layer")
    return readers, between


def _try_cut(search: Replay, chain: NarrowedLayer, keep: Tensor) -> None:
    """Check that a module without some channels of a chain gives what it gives without their part of the inputs.

    Raises:
        NoChain: it does not.
    """
    whole = search.module
    copied = bare_copy(whole, [whole.get_submodule(search.backbone)])
    shrink(copied, chain, keep)
    inputs: dict[str, list[Tensor]] = {reader: [] for reader in chain.readers}

    def see(call: _Call, part: nn.Module, values: Tensor | None, output: Any) -> Tensor | None:
        if call.layer == chain.layer:
            cut: Tensor = output
            return cut
        if call.output is None or values is None or call.values is None:
            return None
        expected = call.values
        if call.layer in inputs:
            dim, kept = _dims(part)[2], keep.to(values.device)
            expected = call.values.index_select(dim, kept)
            inputs[call.layer].append(expected)
            masked = torch.zeros_like(call.values).index_copy(dim, kept, expected)
            if not are_near(part.forward(expected), whole.get_submodule(call.layer).forward(masked)):
                raise NoChain(f"is read by {call.layer}, which is not linear in its weights")
        if not are_near(values, expected):
            if call.layer in inputs:
                raise NoChain(f"is not all that {call.layer} reads")
            raise NoChain(f"changes what {call.layer} reads by its number of channels or its weights")
        return None

    try:
        with search.again(copied, see):
            outputs = tensors_in(search.run(copied))
    except NoChain:
        raise
    except Exception as error:  # the user's code may raise anything for other shapes
        if is_out_of_memory(error):
            raise
        raise NoChain(f"is combined with something of as many channels: {first_line(error, 60)}") from error
    if len(outputs) != len(search.outputs) or not all(map(are_near, outputs, search.outputs)):
        raise NoChain("changes an output by its number of channels or its weights")
    first = inputs[chain.readers[0]]
    for name, values in inputs.items():
        if len(values) != len(first) or not all(map(torch.equal, values, first)):
            raise NoChain(f"is read otherwise by {name} than by {chain.readers[0]}")


def are_near(values: Tensor, expected: Tensor) -> bool:
    if values.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return torch.equal(values, expected)
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    return torch.allclose(values, expected, rtol=_TOLERANCE, atol=_TOLERANCE * scale)
