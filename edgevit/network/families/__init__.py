"""One file or folder per timm family (vit/); each is a module with the functions of `Family`.

tests/network/test_families_protocol.py holds every function of every family against the network itself.
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
# Of a block, asked when it runs: [B, N], added to the logits of the tokens; None weighs all of them alike.
LogWeights = Callable[[int], Tensor | None]


@dataclass(frozen=True)
class SoftGates:
    """Soft gates of one block: how much of each token and head that is to go is still there."""

    log_gates: Tensor  # [B, N], added to the logits of the tokens
    heads: Tensor  # [H], by which each head's output is multiplied


@dataclass(frozen=True)
class Branch:
    """A site as the forward pass has it: it adds after(output(... readers ... (before(x)))) to the tokens x."""

    before: nn.Module  # the norm of the tokens; the identity where a norm comes after
    module: nn.Module  # the attention or FFN, from what `before` gives to what `output` does
    readers: tuple[nn.Linear, ...]  # the linear layers that read what `before` gives
    output: nn.Linear  # the last linear layer
    after: tuple[nn.Module, ...]  # the norm after, LayerScale, stochastic depth

    def added(self, output: Tensor) -> Tensor:
        """What is added to the tokens for this output of `output`."""
        for module in self.after:
            output = module(output)
        return output


class Family(Protocol):
    """What edgevit knows of one kind of network; a module in this folder has all of it.

    Lists have an entry per block. Where a block has no attention, or no FFN, the entries of its modules are None.
    """

    def matches(self, model: nn.Module, /) -> bool:
        """Whether the model is of this family, be it that it can be pruned or not."""

    def check(self, model: nn.Module, /) -> None:
        """Raise UnsupportedModelError, with the reason, if the algebra would break."""

    def adopted(self, model: nn.Module, /) -> nn.Module:
        """What the other functions are given in place of this network of timm's: the same function, mostly itself."""

    # -- weights of others

    def named(self, state: Mapping[str, Tensor], /) -> Weights:
        """The weights of a file under the names of this family's networks, whoever wrote them."""

    def fitted(
        self, weights: Weights, model: nn.Module, name: str, /, *, resample: bool, trained: Any = None
    ) -> Weights:
        """Make named weights those of this model, `name` in messages, as far as that is the same function.

        Args:
            resample: whether position embeddings may be resampled, because the size of images was asked for.
            trained: timm's img_size of the weights, where a file beside them says it.

        Raises:
            CheckpointError: they are of images of another size, and may not be resampled; or they may be of it or not.
        """

    def guessed_name(self, state: Mapping[str, Tensor], /) -> str | None:
        """timm's name of a network of the kind of these named weights, of any sizes; None: they are of no such kind."""

    def guessed_arguments(
        self,
        state: Mapping[str, Tensor],
        model: nn.Module,
        model_state: Mapping[str, Tensor],
        stated: Collection[str],
        /,
    ) -> tuple[dict[str, Any], str | None]:
        """timm's arguments by which the model, with its own weights, would have the shapes of these named weights.

        And a sentence on what no shape tells, where it is assumed. Arguments that are `stated` are not guessed.

        Raises:
            CheckpointError: something that no shape tells cannot be assumed either.
        """

    # -- what it is made of

    def sites(self, model: nn.Module, /) -> list[Site]:
        """The attentions and FFNs that are there, in order, with the axes that cannot be cut."""

    def read(self, model: nn.Module, /) -> list[Block]:
        """The weights of every block, as views of the live parameters: a regulariser trains through them."""

    def read_block(self, model: nn.Module, index: int, /) -> Block:
        """The same of one block: no weight of another is looked at, which may have to be worked out first."""

    def geometry(self, model: nn.Module, /) -> Geometry:
        """What its cost depends on beside the sizes of its blocks."""

    def input_size(self, model: nn.Module, /) -> tuple[int, int, int]:
        """Channels, height and width of the images that it takes."""

    def of_one_size(self, model: nn.Module, /) -> AbstractContextManager[None]:
        """Have the model take images of that size alone, as a file does, while this lasts."""

    def has_classifier(self, model: nn.Module, /) -> bool:
        """Whether it puts out logits; else it puts out pooled features [B, d]."""

    def classifiers(self, model: nn.Module, /) -> list[nn.Linear]:
        """The linear heads, one row per class; whatever their weights, they are given pooled features [B, d].

        Raises:
            UnsupportedModelError: there is none.
        """

    def arguments(self, model: nn.Module, depth: int, embed: int, /) -> dict[str, Any]:
        """What timm must be told, beside what it made the base with, to make a network that `resize` makes this one of.

        Args:
            depth: blocks of the base.
            embed: width of the base's embedding.
        """

    # -- changing it

    def build(self, model: nn.Module, blocks: Sequence[Block], /) -> nn.Module:
        """A slim copy whose blocks hold these weights, of any sizes; the model is not changed."""

    def with_embedding(
        self, model: nn.Module, encode: Tensor, decoders: Sequence[Decoder] | None = None, /
    ) -> nn.Module:
        """A copy whose tokens are `encode` times the model's: [d', d] in fp64 on its device, of another width perhaps.

        What reads them reads through a decoder: of each of `token_norms` its own, or for all the one that is exact for
        the directions that `encode` keeps wholly.

        `derive.algebra.embedding` makes such matrices. Only where no site's `embed` is frozen. Norms and LayerScale
        are folded into the weights, and are ones in the copy, which may have biases that the model has not.
        """

    def resize(self, model: nn.Module, dims: Sequence[BlockDims], names: Container[str] | None = None, /) -> None:
        """Give the blocks these dimensions in place, weights undefined: for loading weights of these `names`.

        With `tokens` 0 a block passes on as many as it does; so it is for `build`.
        """

    def keep_blocks(self, model: nn.Module, indices: Sequence[int], /) -> None:
        """Remove every block but these, in place."""

    def make_classifiers(self, model: nn.Module, classes: int, /) -> None:
        """Give a model linear heads for so many classes, in place, with random weights."""

    def keep_classes(self, model: nn.Module, classes: Sequence[int], /) -> None:
        """Remove every row of the classifiers but these, in place."""

    # -- what can be observed

    def layers(self, model: nn.Module, /) -> list[nn.Module]:
        """The blocks themselves, each from tokens [B, N, d] to tokens, perhaps fewer."""

    def attention_inputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The modules whose input is the attention's normalised tokens [B, N, d]."""

    def projections(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The modules whose output is all queries, keys and values, packed: `unpack` takes it apart."""

    def attention_outputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The linear layers from all heads' outputs [B, N, H * v], head by head, to the attention's."""

    def ffn_outputs(self, model: nn.Module, /) -> list[nn.Module | None]:
        """The linear layers from the neurons [B, N, e], after non-linearity and gate, to the FFN's output."""

    def token_norms(self, model: nn.Module, /) -> list[nn.Module]:
        """The LayerNorms that the tokens are read through, in order; the last may see pooled ones [B, d].

        Only where no site's `embed` is frozen.
        """

    def final_tokens(self, model: nn.Module, /) -> nn.Module:
        """The module whose output is the normalised tokens that the head pools."""

    def reads_mean(self, model: nn.Module, /) -> bool:
        """Whether the head reads of the patches nothing but their mean, or nothing at all."""

    def unpack(self, packed: Tensor, dims: BlockDims, /) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [..., H, w] of what a projection puts out, as views."""

    def pack(self, queries: Tensor, keys: Tensor, values: Tensor, /) -> Tensor:
        """The inverse of `unpack`."""

    # -- its forward pass in steps

    def weighing(self, model: nn.Module, log_weights: LogWeights, /) -> AbstractContextManager[None]:
        """Let attention weigh the tokens that it looks at, while this lasts; only where all tokens pass all blocks."""

    def first_tokens(self, model: nn.Module, images: Tensor, /) -> Tensor:
        """The tokens [B, N, d] that the first block is given."""

    def answers(self, model: nn.Module, tokens: Tensor, /) -> Tensor:
        """The logits [B, C] for the tokens that the last block gives."""

    def token_scores(self, model: nn.Module, block: int, seen: Tensor, there: SoftGates | None = None, /) -> Tensor:
        """By what a block ranks its tokens: [B, N] of its attention's input [B, N, d].

        Only where its `tokens` are not frozen.

        Args:
            there: how much there is of tokens and heads; None: all of each.
        """

    def branches(self, model: nn.Module, /) -> list[tuple[Branch | None, Branch | None]]:
        """The attention and the FFN of every block, each as its forward pass has it; None where it is gone."""

    def residual_scales(self, model: nn.Module, /) -> list[tuple[Scale, Scale] | None]:
        """What attention and FFN output are multiplied by before they are added to the tokens: Tensor [d] or 1.0.

        None where the output is no such sum, because a norm comes after.
        """

    # -- without edgevit

    def plain_loader(self, model: nn.Module, /) -> str | None:
        """Lines of Python that make the model with torch and timm alone; None where timm has no such module."""


def family_names() -> list[str]:
    return list(_names_in(tuple(__path__)))


@cache
def _names_in(folders: tuple[str, ...]) -> list[str]:
    """Listed once: every look at a network asks which family reads it."""
    return sorted(module.name for module in pkgutil.iter_modules(folders))


def load_family(name: str) -> Family:
    """Import `families/<name>.py`.

    Raises:
        UnknownNameError: there is no such file.
    """
    if name not in family_names():
        raise UnknownNameError("model family", name, family_names())
    return cast(Family, import_module(f"{__name__}.{name}"))


def name_of(family: Family) -> str:
    """The name by which `load_family` finds it."""
    return str(vars(family)["__name__"]).rpartition(".")[2]


def family_like(model: nn.Module) -> Family:
    """Return the family file of this kind of model, be it one that can be pruned or not.

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
    """Return the family file that reads this model.

    Raises:
        UnsupportedModelError: no family matches, or the one that does refuses the model.
    """
    family = family_like(model)
    family.check(model)
    return family


if TYPE_CHECKING:  # mypy holds every family against the protocol
    from edgevit.network.families import vit

    _VIT: Family = vit
