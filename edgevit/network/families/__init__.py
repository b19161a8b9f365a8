"""One file or folder per timm family (vit/): a module with the functions of `Family`.

tests/network/test_families_protocol.py tests each function of each family.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor, nn

from edgevit.errors import UnknownNameError, UnsupportedModelError
from edgevit.network.anatomy import Block, BlockDims, Decoder
from edgevit.network.cost import Geometry
from edgevit.network.layers import BlockLayers, Ends
from edgevit.network.weights import TimmArguments, Weights


class Interchange(Protocol):
    """How networks and weights of a family come from other programs, and go to them."""

    @property
    def model_types(self) -> Collection[str]:
        """transformers' names, in config.json, of the networks whose weights `named` reads."""

    def adopted(self, module: nn.Module, /) -> nn.Module:
        """Convert a network of timm to one that the family supports; usually it is returned unchanged."""

    def named(self, state: Mapping[str, Tensor], /) -> Weights:
        """The weights of a file, renamed to those of this family's networks."""

    def fitted(
        self, weights: Weights, module: nn.Module, name: str, /, *, resample: bool, trained: Any = None
    ) -> Weights:
        """Convert renamed weights to those of this network, `name` in messages, without changing the function.

        Args:
            resample: whether position embeddings may be resampled, as an option sets the size of images.
            trained: timm's img_size of the weights, if a configuration file states it.

        Raises:
            CheckpointError: they are of images of another or an ambiguous size, and may not be resampled.
        """

    def guessed_name(self, state: Mapping[str, Tensor], /) -> str | None:
        """timm's name of a network like that of these weights, of any sizes; None: they are not of this family."""

    def shape_arguments(self, state: Mapping[str, Tensor], /) -> TimmArguments:
        """timm's arguments that the shapes of weights under this family's names say."""

    def guessed_arguments(
        self,
        state: Mapping[str, Tensor],
        module: nn.Module,
        module_state: Mapping[str, Tensor],
        stated: Collection[str],
        /,
    ) -> tuple[TimmArguments, str | None]:
        """timm's arguments with which the network would have these weights' shapes, and a note about assumptions.

        Arguments that are `stated` are not guessed.

        Raises:
            CheckpointError: an argument neither follows from shapes nor can be assumed.
        """

    def stated_arguments(self, module: nn.Module, /) -> TimmArguments:
        """timm's arguments of a network that the shapes of its weights do not say."""

    def timm_arguments(self, module: nn.Module, depth: int, embed: int, /) -> TimmArguments:
        """timm's arguments, beyond those of the base, of a network that `resize` can convert to this one."""

    def plain_loader(self, module: nn.Module, /) -> str | None:
        """Lines of Python that create the module with torch and timm only; None: timm has no such modules."""


class Family(Protocol):
    """What edgevit knows of one kind of network; a module in this folder has all of these functions."""

    @property
    def interchange(self) -> Interchange: ...

    def matches(self, module: nn.Module, /) -> bool:
        """Whether the module is of this family, even if it cannot be pruned."""

    def check(self, module: nn.Module, /, *, alone: bool = True) -> None:
        """Raise UnsupportedModelError, with the reason, if the module cannot be pruned.

        Args:
            alone: whether its own head counts; else a head of the user's reads its tokens.
        """

    # -- structure

    def blocks(self, module: nn.Module, /) -> list[BlockLayers]:
        """The layers of each block, in order, with their frozen axes."""

    def ends(self, module: nn.Module, /) -> Ends:
        """The modules before the first block and after the last."""

    def geometry(self, module: nn.Module, /) -> Geometry:
        """The sizes that determine its cost, except those of its blocks."""

    # -- copies

    def build(self, module: nn.Module, blocks: Sequence[Block], /) -> nn.Module:
        """A copy whose blocks have these weights, of any sizes; `tokens` 0: as many as the block of the module."""

    def with_embedding(
        self,
        module: nn.Module,
        encoders: Sequence[Tensor],
        decoders: Sequence[Decoder] | None = None,
        read: Sequence[int] = (),
        /,
    ) -> nn.Module:
        """A copy whose tokens are `encoders` [d', d], in fp64 on its device, times those of the module.

        There is one encoder for each of `Geometry.bases`. Layers that read tokens use a decoder: one for each of
        `Network.token_norms`, or by default the one that is exact for the directions that the encoder keeps. Blocks
        whose tokens a head of the user's `read` put out those of the whole width, by one decoder each after those of
        the norms.

        `solve.embedding` computes such matrices. Only if `embed` of no site is frozen. Norms and LayerScale are folded
        into the weights, and are ones in the copy, which may have additional biases.
        """

    # -- changes in place

    def resize(self, module: nn.Module, dims: Sequence[BlockDims], names: Container[str] | None = None, /) -> None:
        """Set the dimensions of the blocks, with undefined weights, to load weights of these `names`.

        With `tokens` 0 the number of tokens of a block is unchanged, as in `build`.
        """

    def keep_blocks(self, module: nn.Module, indices: Sequence[int], /) -> None:
        """Remove all blocks except these."""

    def make_classifiers(self, module: nn.Module, classes: int, /) -> None:
        """Add linear heads for this many classes, with random weights."""

    def keep_classes(self, module: nn.Module, classes: Sequence[int], /) -> None:
        """Remove all rows of the classifiers except these."""

    # -- the forward pass in steps

    def first_tokens(self, module: nn.Module, images: Tensor, /) -> Tensor:
        """The tokens [B, N, d] before the first block."""

    def answers(self, module: nn.Module, tokens: Tensor, /) -> Tensor:
        """The logits [B, C] for the tokens after the last block."""

    def of_one_size(self, module: nn.Module, /) -> AbstractContextManager[None]:
        """Fix the input size of the module within this context, as in an exported file."""


def family_names() -> list[str]:
    return list(_names_in(tuple(__path__)))


@cache
def _names_in(folders: tuple[str, ...]) -> list[str]:
    """Names of the families, cached because each access to a network looks up its family."""
    return sorted(module.name for module in pkgutil.iter_modules(folders))


def load_family(name: str) -> Family:
    """Import `families/<name>.py`.

    Raises:
        UnknownNameError: there is no such family.
    """
    if name not in family_names():
        raise UnknownNameError("model family", name, family_names())
    return cast(Family, import_module(f"{__name__}.{name}"))


def name_of(family: Family) -> str:
    """The name of a family for `load_family`."""
    return str(vars(family)["__name__"]).rpartition(".")[2]


def architecture(module: nn.Module) -> str:
    """timm's name of a network, or that of its class."""
    config = getattr(module, "default_cfg", None)
    return str((config.get("architecture") if isinstance(config, dict) else None) or type(module).__name__)


_CREATION = """model = timm.create_model(spec["timm_name"], **spec["timm_args"])
"""
_CREATION_WITH_EPS = """args = dict(spec["timm_args"])
eps = args.pop("norm_eps")  # of which timm has no argument
model = timm.create_model(spec["timm_name"], **args)
for norm in model.modules():
    if isinstance(norm, torch.nn.LayerNorm):
        norm.eps = eps
"""


def plain_creation(module: nn.Module) -> str:
    """Lines of Python that create timm's network of `spec` (model.json)."""
    return _CREATION_WITH_EPS if hasattr(module, "norm_eps") else _CREATION


def family_like(module: nn.Module) -> Family:
    """Return the family of this module, even if it cannot be pruned.

    Raises:
        UnsupportedModelError: no family matches.
    """
    for name in family_names():
        family = load_family(name)
        if family.matches(module):
            return family
    raise UnsupportedModelError(
        f"cannot prune a {type(module).__name__}: supported families are {', '.join(family_names())} "
        f"(timm's SwinTransformer, VisionTransformer and DeiT); try vit_base_patch16_224 or deit_base_patch16_224"
    )


if TYPE_CHECKING:  # mypy checks each family against the protocol
    from edgevit.network.families import bert, swin, vit

    _BERT: Family = bert
    _SWIN: Family = swin
    _VIT: Family = vit
