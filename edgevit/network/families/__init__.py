"""One file or folder per timm family (vit/): a module with the functions of `Family`.

tests/network/test_families_protocol.py tests each function of each family.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import Tensor, nn

from edgevit.errors import UnknownNameError, UnsupportedModelError
from edgevit.network.anatomy import Block, BlockDims, Decoder, Site
from edgevit.network.cost import Geometry
from edgevit.network.weights import Weights

Scale = Tensor | float
# Called for a block when it runs: [B, N], added to the logits of the tokens; None: equal weights.
LogWeights = Callable[[int], Tensor | None]


@dataclass(frozen=True)
class SoftGates:
    """Soft gates of one block, for tokens and heads that are removed gradually."""

    log_gates: Tensor  # [B, N], added to the logits of the tokens
    heads: Tensor  # [H], factors of the outputs of the heads


@dataclass(frozen=True)
class Branch:
    """A site in the forward pass: it adds after(output(... readers ... (before(x)))) to the tokens x."""

    before: nn.Module  # the norm of the tokens; the identity if a norm follows
    module: nn.Module  # the attention or FFN, between the outputs of `before` and of `output`
    readers: tuple[nn.Linear, ...]  # the linear layers that read the output of `before`
    output: nn.Linear  # the last linear layer
    after: tuple[nn.Module, ...]  # a norm, LayerScale, stochastic depth

    def added(self, output: Tensor) -> Tensor:
        """The tensor added to the tokens for this output of `output`."""
        for module in self.after:
            output = module(output)
        return output


class Family(Protocol):
    """The functions of one kind of network; a module in this folder has all of them.

    Lists have an entry per block. Without attention, or without FFN, the entries of their modules are None.
    """

    def matches(self, model: nn.Module, /) -> bool:
        """Whether the model is of this family, even if it cannot be pruned."""

    def check(self, model: nn.Module, /) -> None:
        """Raise UnsupportedModelError, with the reason, if the model cannot be pruned."""

    def adopted(self, model: nn.Module, /) -> nn.Module:
        """Convert a network of timm to one that the other functions support; usually it is returned unchanged."""

    # -- weights of other programs

    def named(self, state: Mapping[str, Tensor], /) -> Weights:
        """The weights of a file, renamed to those of this family's networks."""

    def fitted(
        self, weights: Weights, model: nn.Module, name: str, /, *, resample: bool, trained: Any = None
    ) -> Weights:
        """Convert renamed weights to those of this model, `name` in messages, without changing the function.

        Args:
            resample: whether position embeddings may be resampled, as an option sets the size of images.
            trained: timm's img_size of the weights, if a configuration file states it.

        Raises:
            CheckpointError: they are of images of another or an ambiguous size, and may not be resampled.
        """

    def guessed_name(self, state: Mapping[str, Tensor], /) -> str | None:
        """timm's name of a network like that of these weights, of any sizes; None: they are not of this family."""

    def guessed_arguments(
        self,
        state: Mapping[str, Tensor],
        model: nn.Module,
        model_state: Mapping[str, Tensor],
        stated: Collection[str],
        /,
    ) -> tuple[dict[str, Any], str | None]:
        """timm's arguments with which the model would have the shapes of these weights, and a note about assumptions.

        Arguments that are `stated` are not guessed.

        Raises:
            CheckpointError: an argument neither follows from shapes nor can be assumed.
        """

    # -- structure

    def sites(self, model: nn.Module, /) -> list[Site]:
        """The attentions and FFNs, in order, with their frozen axes."""

    def read(self, model: nn.Module, /) -> list[Block]:
        """The weights of all blocks, as views of the live parameters: a regulariser trains through them."""

    def read_block(self, model: nn.Module, index: int, /) -> Block:
        """The weights of one block, without reading those of other blocks."""

    def geometry(self, model: nn.Module, /) -> Geometry:
        """The sizes that determine its cost, except those of its blocks."""

    def input_size(self, model: nn.Module, /) -> tuple[int, int, int]:
        """Channels, height and width of its input."""

    def of_one_size(self, model: nn.Module, /) -> AbstractContextManager[None]:
        """Fix the input size of the model within this context, as in an exported file."""

    def has_classifier(self, model: nn.Module, /) -> bool:
        """Whether its outputs are logits; otherwise they are pooled features [B, d]."""

    def classifiers(self, model: nn.Module, /) -> list[nn.Linear]:
        """The linear heads, with one row per class; their inputs are pooled features [B, d].

        Raises:
            UnsupportedModelError: there is none.
        """

    def arguments(self, model: nn.Module, depth: int, embed: int, /) -> dict[str, Any]:
        """timm's arguments, in addition to those of the base, of a network that `resize` can convert to this one.

        Args:
            depth: number of blocks of the base.
            embed: width of the embedding of the base.
        """

    # -- changes

    def build(self, model: nn.Module, blocks: Sequence[Block], /) -> nn.Module:
        """A copy whose blocks have these weights, of any sizes."""

    def with_embedding(
        self, model: nn.Module, encode: Tensor, decoders: Sequence[Decoder] | None = None, /
    ) -> nn.Module:
        """A copy whose tokens are `encode` [d', d], in fp64 on its device, times those of the model.

        Layers that read tokens use a decoder: one for each of `token_norms`, or by default the one that is exact for
        the directions that `encode` keeps.

        `solve.embedding` computes such matrices. Only if `embed` of no site is frozen. Norms and LayerScale are folded
        into the weights, and are ones in the copy, which may have additional biases.
        """

    def resize(self, model: nn.Module, dims: Sequence[BlockDims], names: Container[str] | None = None, /) -> None:
        """Set the dimensions of the blocks in place, with undefined weights, to load weights of these `names`.

        With `tokens` 0 the number of tokens of a block is unchanged, as in `build`.
        """

    def keep_blocks(self, model: nn.Module, indices: Sequence[int], /) -> None:
        """Remove all blocks except these, in place."""

    def make_classifiers(self, model: nn.Module, classes: int, /) -> None:
        """Add linear heads for this many classes, in place, with random weights."""

    def keep_classes(self, model: nn.Module, classes: Sequence[int], /) -> None:
        """Remove all rows of the classifiers except these, in place."""

    # -- observation

    def layers(self, model: nn.Module, /) -> list[nn.Module]:
        """The modules of the blocks, each from tokens [B, N, d] to as many or fewer."""

    def attention_inputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The modules whose input is the attention's normalised tokens [B, N, d]."""

    def projections(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The modules whose output is all queries, keys and values, packed as for `unpack`."""

    def attention_outputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The linear layers from the outputs of the heads [B, N, H * v], head by head, to that of the attention."""

    def ffn_outputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The linear layers from the neurons [B, N, e], after non-linearity and gate, to the output of the FFN."""

    def token_norms(self, model: nn.Module, /) -> list[nn.Module]:
        """The LayerNorms that read the tokens, in order; the last may read pooled ones [B, d].

        Only if `embed` of no site is frozen.
        """

    def final_tokens(self, model: nn.Module, /) -> nn.Module:
        """The module whose output is the normalised tokens before pooling."""

    def reads_mean(self, model: nn.Module, /) -> bool:
        """Whether the head reads at most the mean of the patches."""

    def unpack(self, packed: Tensor, dims: BlockDims, /) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., H, w] in the output of a projection, as views."""

    def pack(self, queries: Tensor, keys: Tensor, values: Tensor, /) -> Tensor:
        """The inverse of `unpack`."""

    # -- its forward pass in steps

    def weighing(self, model: nn.Module, log_weights: LogWeights, /) -> AbstractContextManager[None]:
        """Weight the tokens in all attentions within this context; only if no block drops tokens."""

    def first_tokens(self, model: nn.Module, images: Tensor, /) -> Tensor:
        """The tokens [B, N, d] before the first block."""

    def answers(self, model: nn.Module, tokens: Tensor, /) -> Tensor:
        """The logits [B, C] for the tokens after the last block."""

    def token_scores(self, model: nn.Module, block: int, tokens: Tensor, gates: SoftGates | None = None, /) -> Tensor:
        """The scores [B, N] by which a block ranks its tokens, of the input [B, N, d] of its attention.

        Only if its `tokens` are not frozen.

        Args:
            gates: None: all tokens and heads are open.
        """

    def branches(self, model: nn.Module, /) -> list[tuple[Branch | None, Branch | None]]:
        """The attention and the FFN of each block in the forward pass; None: removed."""

    def residual_scales(self, model: nn.Module, /) -> list[tuple[Scale, Scale] | None]:
        """The factors [d] or 1.0 of the outputs of attention and FFN before they are added to the tokens.

        None: a norm follows, so that there is no such factor.
        """

    # -- without edgevit

    def plain_loader(self, model: nn.Module, /) -> str | None:
        """Lines of Python that create the model with torch and timm only; None: timm has no such modules."""


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


def family_like(model: nn.Module) -> Family:
    """Return the family of this model, even if it cannot be pruned.

    Raises:
        UnsupportedModelError: no family matches.
    """
    for name in family_names():
        family = load_family(name)
        if family.matches(model):
            return family
    raise UnsupportedModelError(
        f"cannot prune a {type(model).__name__}: supported families are {', '.join(family_names())} "
        f"(timm's VisionTransformer and DeiT); try vit_base_patch16_224 or deit_base_patch16_224"
    )


def family_of(model: nn.Module) -> Family:
    """Return the family of this model.

    Raises:
        UnsupportedModelError: no family matches, or the model cannot be pruned.
    """
    family = family_like(model)
    family.check(model)
    return family


if TYPE_CHECKING:  # mypy checks each family against the protocol
    from edgevit.network.families import vit

    _VIT: Family = vit
