"""Networks with any head behind a known network: a module, mostly of the user's, that has it as an attribute.

It may also be a linear classifier of edgevit's that reads tokens after several blocks.

The network inside is cut, and the head stays as it is. So the tokens and the number of blocks stay, too: a head may
read all tokens after any block. Where the embedding is narrowed, the blocks that the head reads put out tokens of the
whole width, by a linear layer, unless the head can read the narrower ones itself (`narrow_readers`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError, is_out_of_memory
from edgevit.network.anatomy import Axis, Block, BlockDims, Decoder
from edgevit.network.builder import Builder
from edgevit.network.copies import bare_copy
from edgevit.network.cost import Geometry
from edgevit.network.families import Family, Interchange, family_like, load_family, name_of
from edgevit.network.families.vit.parts import keep_rows
from edgevit.network.layers import BlockLayers, Ends, SiteLayer, counted_macs, first_input
from edgevit.network.weights import first_line

_FROZEN: Mapping[Axis, str] = {
    "tokens": "the head may read all patches",
    "block": "the head may read the tokens after any block",
}


_MAY_READ = (
    "its head is to read what {} returns, as of forward_features or forward_intermediates, not what hooks or second "
    "names of its layers see"
)
_READS_MORE = "the head may read more than the tokens after some blocks"


def channels_read(embed: int) -> int:
    """The channels by which a head reads a narrower embedding itself: two more, in a multiple of 8 for fp16."""
    return -(-(embed + 2) // 8) * 8


@dataclass(frozen=True)
class PerChannel:
    """Cost of one channel in the layers of a head that read the tokens of a stage, and in the norm before them."""

    macs: int
    params: int


@dataclass(frozen=True)
class DenseFamily:
    """The family of one such module: its functions are those of `Family`."""

    path: str  # name of the network within the module
    family_name: str  # name of that network's family
    head_macs: int  # MACs of one image outside that network
    builder: Builder | None  # function that makes the module; None: edgevit makes it
    read: tuple[int, ...] = ()  # numbers, from 0, of the blocks whose tokens the head reads; empty: not known
    classifier: str = ""  # name of the linear head of classes within the module; empty: it has none
    # By stage, where the head is to read a narrower embedding itself; empty: it reads tokens of the whole width.
    per_channel: tuple[PerChannel, ...] = ()

    @cached_property
    def family(self) -> Family:
        return load_family(self.family_name)

    @property
    def interchange(self) -> Interchange:
        return self.family.interchange

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "family"}  # which cannot be pickled

    def inside(self, module: nn.Module) -> nn.Module:
        """The network in a module."""
        return module.get_submodule(self.path)

    def matches(self, module: nn.Module, /) -> bool:
        return self.family.matches(self.inside(module))

    def check(self, module: nn.Module, /, *, alone: bool = False) -> None:
        self.family.check(self.inside(module), alone=alone)

    # -- structure

    def blocks(self, module: nn.Module, /) -> list[BlockLayers]:
        blocks = self.family.blocks(self.inside(module))
        frozen = _FROZEN if self.read else {**_FROZEN, "embed": _READS_MORE}
        return [replace(b, attention=_frozen(b.attention, frozen), ffn=_frozen(b.ffn, frozen)) for b in blocks]

    def ends(self, module: nn.Module, /) -> Ends:
        inside = self.inside(module)
        blocks = [block.module for block in self.family.blocks(inside)]
        read = tuple(blocks[i] for i in self.read)
        inner = self.family.ends(inside)
        return Ends(
            inner.input_size, blocks[-1], None, False, classifiers=self._classifiers(module), read=read,
            entries=inner.entries,
        )  # fmt: skip

    def _classifiers(self, module: nn.Module) -> tuple[nn.Linear, ...]:
        if not self.classifier:
            return ()
        head = module.get_submodule(self.classifier)
        assert isinstance(head, nn.Linear)
        return (head,)

    def geometry(self, module: nn.Module, /) -> Geometry:
        inside = self.inside(module)
        inner = self.family.geometry(inside)
        counted = [p for classifier in self.family.ends(inside).classifiers for p in classifier.parameters()]
        outside = sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in inside.parameters())
        heads = self._classifiers(module)
        whole = inner.stages[-1].whole or inner.embed
        return replace(
            inner,
            outputs=sum(head.out_features for head in heads),
            classifier_heads=1,
            classified=1,
            joined=sum(head.in_features // whole for head in heads) or inner.joined,
            head_macs=self.head_macs,
            head_params=inner.head_params
            + outside
            + sum(p.numel() for p in counted)
            - sum(p.numel() for head in heads for p in head.parameters()),
            sites=tuple(layer.site for b in self.blocks(module) for layer in (b.attention, b.ffn) if layer is not None),
        )

    def as_read(self, geometry: Geometry) -> Geometry:
        """The geometry of a narrower embedding, of this one whose blocks restore the whole width for the head."""
        stages, saved = list(geometry.stages), PerChannel(0, 0)
        for i, each in enumerate(self.per_channel):
            channels = channels_read(stages[i].embed)
            less = stages[i].whole - channels
            if stages[i].whole and less <= 0:
                return geometry
            if stages[i].whole:
                stages[i] = replace(stages[i], whole=channels)
                saved = PerChannel(saved.macs + less * each.macs, saved.params + less * each.params)
        head_macs, head_params = geometry.head_macs - saved.macs, geometry.head_params - saved.params
        return replace(geometry, stages=tuple(stages), head_macs=head_macs, head_params=head_params)

    # -- copies

    def build(self, module: nn.Module, blocks: Sequence[Block], /) -> nn.Module:
        return self._around(module, self.family.build(self.inside(module), blocks))

    def _around(self, module: nn.Module, inside: nn.Module) -> nn.Module:
        """A copy of a module with another network in it."""
        copied = bare_copy(module, [self.inside(module)])
        copied.set_submodule(self.path, inside)
        return copied

    def with_embedding(
        self,
        module: nn.Module,
        encoders: Sequence[Tensor],
        decoders: Sequence[Decoder] | None = None,
        read: Sequence[int] = (),
        /,
    ) -> nn.Module:
        return self._around(module, self.family.with_embedding(self.inside(module), encoders, decoders, self.read))

    # -- changes in place

    def resize(self, module: nn.Module, dims: Sequence[BlockDims], names: Container[str] | None = None, /) -> None:
        names = None if names is None else _Within(names, f"{self.path}.")
        self.family.resize(self.inside(module), dims, names)

    def keep_blocks(self, module: nn.Module, indices: Sequence[int], /) -> None:
        self._refuse("remove its blocks")

    def make_classifiers(self, module: nn.Module, classes: int, /) -> None:
        if not self.classifier:
            self._refuse("give it a classifier")
        for head in self._classifiers(module):
            made = nn.Linear(head.in_features, classes).to(head.weight)
            module.set_submodule(self.classifier, made)

    def keep_classes(self, module: nn.Module, classes: Sequence[int], /) -> None:
        if not self.classifier:
            self._refuse("choose among its classes")
        for head in self._classifiers(module):
            keep_rows(head, classes)

    def _refuse(self, action: str) -> NoReturn:
        reason = f"this network has a head of its own; give {self.path} alone"
        if self.classifier:
            reason = "its head reads several blocks; fit one of the last alone to the base without it"
        raise UnsupportedModelError(f"cannot {action}: {reason}")

    # -- the forward pass in steps

    def first_tokens(self, module: nn.Module, images: Tensor, /) -> Tensor:
        return first_input(self.blocks(module)[0].module, lambda: module(images))

    def answers(self, module: nn.Module, tokens: Tensor, /) -> Tensor:
        self._refuse("compute its outputs by its last tokens")

    def outputs_after(self, module: nn.Module, after: Sequence[Tensor], images: Tensor) -> Tensor:
        """The outputs [B, ...] for the tokens after each block (`BlockLayers.run`), and the images."""
        with ExitStack() as stack:
            for block, tokens in zip(self.blocks(module), after, strict=True):
                stack.enter_context(returning(block.module, block.put_out(tokens)))
            outputs: Tensor = module(images)
        return outputs

    @contextmanager
    def of_one_size(self, module: nn.Module, /) -> Iterator[None]:
        with self.family.of_one_size(self.inside(module)):
            yield


@dataclass(frozen=True)
class _Within:
    """The names that begin with a prefix, without it."""

    names: Container[str]
    prefix: str

    def __contains__(self, name: object) -> bool:
        return f"{self.prefix}{name}" in self.names


def _frozen(layer: Any, frozen: Mapping[Axis, str]) -> Any:
    """A site with the axes that the head freezes."""
    if not isinstance(layer, SiteLayer):
        return None
    return replace(layer, site=replace(layer.site, frozen={**frozen, **layer.site.frozen}))


@contextmanager
def running_users_code(noun: str, case: str) -> Iterator[None]:
    """Turn what the user's code raises within the context, which may be anything, into one line.

    Args:
        noun: the module, at the beginning of the line.
        case: when it raises, and what to try.

    Raises:
        UnsupportedModelError: it raises, and not for lack of memory.
    """
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedModelError(
            f"{noun} raises {type(error).__name__} ({first_line(error, 100)}) {case}"
        ) from error


@contextmanager
def returning(module: nn.Module, output: Tensor) -> Iterator[None]:
    """Have a module return this output within the context, without computing anything."""
    instance_forward = vars(module).get("forward")
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del module.forward
        if instance_forward is not None:
            module.forward = instance_forward


def within(
    module: nn.Module, path: str, builder: Builder, images: Tensor | None = None, read: Sequence[int] = ()
) -> DenseFamily:
    """Find the family of the network in a module, which is replaced by one that edgevit supports.

    Args:
        images: on which the module is checked; None: it was checked before, with other weights.
        read: what was found then.

    Raises:
        UnsupportedModelError: there is no network of that name, or it cannot be cut.
    """
    try:
        inside = module.get_submodule(path)
    except AttributeError:
        raise UnsupportedModelError(
            f"{builder.function} makes a module without {path}, the network that is cut"
        ) from None
    family = family_like(inside)
    expected = None if images is None else _with_own_network(module, images)
    module.set_submodule(path, family.interchange.adopted(inside))
    dense = DenseFamily(path, name_of(family), 0, builder, tuple(read))
    dense.check(module)
    if images is not None and expected is not None:
        dense = replace(dense, read=_checked(dense, module, images, expected))
    return replace(dense, head_macs=count_head_macs(dense, module))


@torch.no_grad()
def count_head_macs(family: DenseFamily, module: nn.Module) -> int:
    """Count the MACs of one image outside the network, as torch counts them."""
    ends, geometry, like = family.ends(module), family.geometry(module), next(module.parameters())
    blocks = family.blocks(module)
    stages = [geometry.stages[block.stage] for block in blocks]
    tokens = [like.new_zeros(1, stage.tokens, stage.embed) for stage in stages]
    images = like.new_zeros(1, *ends.input_size)
    macs = counted_macs(module, lambda: family.outputs_after(module, tokens, images))
    of_patches = geometry.patches * geometry.patch_values * geometry.stages[0].embed
    restores = [block.restore for block in blocks]
    # Of the linear layers outside the sites, those by which a block itself returns to a narrower embedding do not run.
    idle = [[layer for layer in b.entry if isinstance(layer, nn.Linear) and layer not in restores] for b in blocks]
    of_idle = sum(
        stage.tokens * layer.weight.numel() for stage, each in zip(stages, idle, strict=True) for layer in each
    )
    of_merging = sum(stage.tokens * stage.linear for stage in geometry.stages) - of_idle
    return max(macs - of_patches - of_merging, 0)


@torch.inference_mode()
def _with_own_network(module: nn.Module, images: Tensor) -> Tensor:
    """What a module makes of some images before the network in it is replaced by one that edgevit supports.

    Raises:
        UnsupportedModelError: a weight has two names, which are two weights once one of them is of the other network.
    """
    noun, first_names = f"this {type(module).__name__}", dict[int, str]()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (first_name := first_names.setdefault(id(parameter), name)) != name:
            raise UnsupportedModelError(
                f"{noun} has {first_name} by a second name, {name}, and a model folder keeps one: drop one of the two"
            )
    outputs: Tensor = module(images)
    if not outputs.isfinite().all():
        raise UnsupportedModelError(f"{noun} puts out values that are not finite; check its weights")
    # In bf16, sums of other shapes are rounded otherwise.
    if not _are_close(module(images[:1]), outputs[:1], tolerance=1e-2):
        raise UnsupportedModelError(
            f"{noun} gives an image another output alone than beside a second one; let its output depend on one image, "
            "without a mean or range over the batch, dropout in evaluation, or a state between calls"
        )
    return outputs


def _run_through(family: DenseFamily, module: nn.Module, images: Tensor, original: Tensor) -> Tensor:
    """What a module makes of some images, checked to be as before, behind one run of each block with gradients.

    Raises:
        UnsupportedModelError: it is not.
    """
    path, noun, calls = family.path, f"this {type(module).__name__}", list[nn.Module]()
    differentiable, in_fp32 = list[bool](), list[bool]()
    layers = [block.module for block in family.blocks(module)]

    def record(layer: nn.Module, *_: object) -> None:
        calls.append(layer)
        differentiable.append(torch.is_grad_enabled())
        in_fp32.append(not torch.is_autocast_enabled(images.device.type))

    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())  # in inference mode, no graph is recorded
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(record))
        with running_users_code(
            noun,
            f"once its {path} is timm's network of the same weights; let it read the tokens or maps that {path} "
            "returns, and nothing else of it",
        ):
            outputs: Tensor = module(images)
    if not _are_close(outputs, original):
        raise UnsupportedModelError(
            f"{noun} has another output once its {path} is timm's network of the same weights; call {path} with the "
            "images alone, and let hooks of its layers compute nothing"
        )
    if calls != layers:
        raise UnsupportedModelError(
            f"{noun} runs {len(calls)} blocks of its {path}, expected each of the {len(layers)} once, in order; call "
            f"{path} once, with all of its blocks"
        )
    if not all(differentiable):
        raise UnsupportedModelError(
            f"{noun} runs its {path} without gradients, by which it is cut and trained; call {path} outside of "
            "torch.no_grad, and the layers that read it after that"
        )
    if not all(in_fp32):
        raise UnsupportedModelError(
            f"{noun} runs its {path} under torch.autocast: a model is derived in fp32, and its engines are fp16; leave "
            "torch.autocast out of forward"
        )
    return outputs


@torch.inference_mode()
def _checked(family: DenseFamily, module: nn.Module, images: Tensor, original: Tensor) -> tuple[int, ...]:
    """Check by what a module makes of some images that it is a head behind one pass through the network in it.

    Args:
        original: what it made of them with its own network.

    Returns:
        the blocks whose tokens the head reads.

    Raises:
        UnsupportedModelError: it is not.
    """
    path, noun, blocks = family.path, f"this {type(module).__name__}", family.blocks(module)
    expected = _run_through(family, module, images, original)
    first = family.first_tokens(module, images)
    tokens = [first]
    for block in blocks:
        tokens.append(block.run(block.enter(tokens[-1])))
    if len(first) != len(images):
        raise UnsupportedModelError(
            f"{noun} gives its {path} {len(first)} images of {len(images)}; call {path} with each image once"
        )
    if first.shape[1] != (planned := family.geometry(module).tokens):
        raise UnsupportedModelError(
            f"{noun} gives its {path} {first.shape[1]} tokens, and by its img_size it has {planned}; make {path} with "
            "the img_size that it gets"
        )
    with running_users_code(
        noun,
        f"where the blocks of its {path} return tokens and run none of their layers; {_MAY_READ.format(path)}",
    ):
        repeated = family.outputs_after(module, tokens[1:], images)

    def is_read(index: int) -> bool:
        # A head may compare tokens with a limit, which one change of them alone need not pass.
        changes = [[c * t if i == index else t for i, t in enumerate(tokens[1:])] for c in (0, 1e4, -1e4)]
        return any(not torch.equal(family.outputs_after(module, changed, images), repeated) for changed in changes)

    family = replace(family, read=tuple(filter(is_read, range(len(blocks)))))
    if not family.read:
        raise UnsupportedModelError(
            f"the output of {noun} does not depend on what the blocks of its {path} return; nothing of it can be cut"
        )
    if (last := family.read[-1] + 1) < len(blocks):
        raise UnsupportedModelError(
            f"the output of {noun} does not depend on blocks after the first {last} of the {len(blocks)} of its "
            f"{path}; make {path} with these {last} alone, and let the head read the last of them"
        )
    copied = family.build(module, [block.read() for block in blocks])
    without = [0 * t for t in tokens[1:]]  # which blocks return that are run by a second name, too, if it is copied
    of_copy, of_module = (family.outputs_after(network, without, images) for network in (copied, module))
    if not (_are_close(repeated, expected) and _are_close(copied(images), expected) and _are_close(of_copy, of_module)):
        raise UnsupportedModelError(f"a copy of {noun} has another output; {_MAY_READ.format(path)}")
    return family.read if _reads_alone(family, module, images, tokens, repeated) else ()


def _are_close(outputs: Tensor, expected: Tensor, tolerance: float = 1e-3) -> bool:
    return outputs.shape == expected.shape and torch.allclose(
        outputs, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )


@torch.no_grad()
def own_normalisation(family: DenseFamily, module: nn.Module) -> tuple[list[float], list[float]] | None:
    """The mean and the deviation of each channel by which a module normalises images before its network; None: not."""
    first = next(part for part in family.inside(module).modules() if isinstance(part, nn.Conv2d))  # that of patches
    images = torch.rand(2, *family.ends(module).input_size, generator=torch.Generator().manual_seed(0))
    inputs = first_input(first, lambda: module(images))
    if inputs.shape != images.shape:
        return None
    x, y = (tensor.double().transpose(0, 1).flatten(1) for tensor in (images, inputs))  # [channels, values]
    x_mean, y_mean = x.mean(1, keepdim=True), y.mean(1, keepdim=True)
    slope = ((x - x_mean) * (y - y_mean)).mean(1, keepdim=True) / x.var(1, correction=0, keepdim=True)
    mean, deviation = x_mean - y_mean / slope, 1 / slope
    if torch.allclose(x, y, atol=1e-3) or not torch.allclose((x - mean) / deviation, y, atol=1e-3):
        return None
    return mean.flatten().tolist(), deviation.flatten().tolist()


@torch.enable_grad()
def without_gradient(family: DenseFamily, module: nn.Module, images: Tensor) -> int | None:
    """The number of the first block by whose tokens the outputs for these images have no gradient; None: all have."""
    tokens = list[Tensor]()
    with torch.inference_mode(False), ExitStack() as stack:
        for block in family.blocks(module):
            stack.enter_context(block.module.register_forward_hook(lambda *call: tokens.append(call[2])))
        outputs: Tensor = module(images.clone().requires_grad_())
        if not outputs.requires_grad:
            return 0
        gradients = torch.autograd.grad(outputs.sum(), tokens, allow_unused=True)
    return next((i for i, gradient in enumerate(gradients) if gradient is None), None)


def _reads_alone(
    family: DenseFamily, module: nn.Module, images: Tensor, tokens: Sequence[Tensor], outputs: Tensor
) -> bool:
    """Whether a head reads nothing that another embedding changes but tokens that blocks restore.

    Others read the embedded patches, the width or a weight, or change the first tokens by more than a linear map.

    Args:
        tokens: before the first block and after each.
        outputs: for them.
    """
    if (geometry := family.geometry(module)).fixed_embed is not None:
        return True
    generator = torch.Generator().manual_seed(0)
    bases = geometry.bases
    pairs = zip(geometry.bases_at(*geometry.widths([2])), bases, strict=True)
    encoders = [torch.randn(pair, generator=generator, dtype=torch.float64).to(images.device) for pair in pairs]
    of_stages = encoders[-len(geometry.stages) :]
    try:
        narrow = family.with_embedding(module, encoders)
        with ExitStack() as stack:
            for i, block in enumerate(family.blocks(narrow)):
                after = tokens[i + 1]
                few = after[..., : len(of_stages[block.stage])]
                stack.enter_context(returning(block.module, after if i in family.read else few))
            narrowed = narrow(images)
        if len(encoders) == 1:
            first, expected = family.first_tokens(narrow, images), tokens[0] @ encoders[0].to(tokens[0]).mT
        else:  # a norm reads the patches, to which only a turn that it does not see is linear: channels change places
            turns = [torch.eye(width, dtype=torch.float64, device=images.device).roll(1, 0) for width in bases]
            turned = family.with_embedding(module, turns)
            first, expected = family.first_tokens(turned, images), tokens[0].roll(1, -1)
    except Exception as error:  # the user's code may raise anything for other shapes
        if is_out_of_memory(error):
            raise
        return False
    return _are_close(first, expected) and torch.allclose(
        narrowed, outputs, rtol=1e-5, atol=1e-5 * float(outputs.abs().max())
    )
