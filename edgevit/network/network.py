"""A network of a known family, as one object."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.anatomy import Block, BlockDims, Decoder
from edgevit.network.copies import shape_copy
from edgevit.network.cost import Geometry
from edgevit.network.dense import DenseFamily, returning
from edgevit.network.detector import Pyramid
from edgevit.network.families import Family, architecture, family_like, load_family, name_of
from edgevit.network.layers import AttentionLayer, BlockLayers, Ends, FfnLayer, SoftGates, TokenNorm
from edgevit.network.output import Features, Levels, Logits, Map, Output, columns_of
from edgevit.network.padding import PictureAreas
from edgevit.network.weights import TimmArguments

# Called for a block when it runs: [B, N], added to the logits of the tokens; None: equal weights.
_LogWeights = Callable[[int], Tensor | None]


class Network(nn.Module):
    """A module and its family: images [B, C, H, W] to logits [B, outputs], or to features [B, d] without a classifier.

    Its weights have the names that they have in the module. What it says of its structure follows changes in place.

    Raises:
        UnsupportedModelError: no family matches the module, or it cannot be pruned.
    """

    module: nn.Module
    family: Family

    def __init__(self, module: nn.Module, family: Family | None = None, output: Output | None = None) -> None:
        super().__init__()
        if isinstance(module, Network):
            family, module = family or module.family, module.module
        if family is None:
            family = family_like(module)
            family.check(module)
        self.module, self.family = module, family
        self._narrowed: tuple[Geometry, Geometry] | None = None  # its geometry, and that of a narrower embedding
        self.output = output if output is not None else self._usual_output()
        self.areas: PictureAreas | None = None  # where its last images are no padding; None: everywhere

    def forward(self, images: Tensor, targets: Any = None) -> Any:
        """Return the outputs; of a detector with targets also its own losses (`Pyramid`)."""
        self._find_padding(images)
        if targets is None:
            return self._without_padding(self.module(images))
        outputs, losses = self.module(images, targets)
        return self._without_padding(outputs), losses

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the tokens [B, N, d] after the last norm, before pooling and head."""
        tokens: Tensor = self.module.forward_features(images)  # type: ignore[operator]
        return tokens.flatten(1, -2)  # a Swin's are a map

    def state_dict(self, *args: Any, **options: Any) -> Any:
        return self.module.state_dict(*args, **options)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def __getstate__(self) -> dict[str, Any]:
        # The family is a Python module, which cannot be pickled.
        family = name_of(self.family) if isinstance(self.family, ModuleType) else self.family
        return {**self.__dict__, "family": family, "_narrowed": None, "areas": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        family = state["family"]
        self.__dict__.update(state, family=load_family(family) if isinstance(family, str) else family)

    @property
    def training(self) -> bool:
        """The mode of the module, which other networks may share; of one with a head of the user's, the network's."""
        return (self.family.inside(self.module) if isinstance(self.family, DenseFamily) else self.module).training

    @training.setter
    def training(self, mode: bool) -> None:
        """Nothing: `train` sets the mode of the module, too."""

    def train(self, mode: bool = True) -> Network:
        """Set the mode, except that a head of the user's keeps what it puts out and is imitated in.

        Batch norms keep their statistics: a few batches have others. Only detectors have losses of their own.
        """
        super().train(mode)
        if isinstance(self.family, DenseFamily) and not isinstance(self.module, Pyramid):
            self.module.eval()  # in training it may put out more, or read other blocks
            self.family.inside(self.module).train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self

    @property
    def family_name(self) -> str:
        """The name of its family; of a network with a head of the user's, that of the network in it."""
        return self.family.family_name if isinstance(self.family, DenseFamily) else name_of(self.family)

    # -- output

    def _usual_output(self) -> Output:
        """Logits that all count, or features without a classifier, or what a module of the user's gives."""
        if heads := self.family.ends(self.module).classifiers:
            return Logits(tuple(range(heads[0].out_features)))
        if isinstance(self.family, DenseFamily):
            return Levels() if isinstance(self.module, Pyramid) else Map("values")
        return Features()

    @property
    def columns(self) -> tuple[int, ...]:
        """For each target class, its column in the logits (`columns_of`)."""
        return columns_of(self.output)

    def with_columns(self, columns: Sequence[int]) -> Network:
        """A network of the same module whose output is the logits of these columns."""
        return Network(self.module, self.family, Logits(tuple(columns)))

    # -- padding

    @property
    def pads(self) -> bool:
        """Whether tokens of its input may be padding, of which statistics take none."""
        return bool(self.output.sizes) if isinstance(self.output, Levels) else self.ends.pads

    def _find_padding(self, images: Tensor) -> None:
        module = self.module
        self.areas = module.areas(images) if isinstance(module, Pyramid) and self.pads else None

    def _without_padding(self, outputs: Tensor) -> Tensor:
        if self.areas is None:
            return outputs
        assert isinstance(self.output, Levels)
        return self.output.without_padding(outputs, self.areas)

    @cached_property
    def _grids(self) -> dict[int, tuple[int, int]]:
        """The grid of patches of a stage, by its number of tokens."""
        return {stage.tokens: stage.grid for stage in self.geometry.stages}

    def real_tokens(self, tokens: Tensor) -> Tensor | None:
        """Which tokens [B, N, d] of its last images or texts are real, not padding: bool [B, N]; None: all are.

        A patch is real if any of its pixels is; tokens before the patches always are.
        """
        if not isinstance(self.output, Levels):
            return (tokens != 0).any(-1) if self.pads else None
        if self.areas is None:
            return None
        patches = self.areas.cells(*self._grids[tokens.shape[1]]).flatten(1)
        assert len(patches) == len(tokens), "the tokens are of the last images"
        return F.pad(patches, (tokens.shape[1] - patches.shape[1], 0), value=True)

    # -- structure

    @property
    def blocks(self) -> list[BlockLayers]:
        return self.family.blocks(self.module)

    @property
    def layers(self) -> list[tuple[AttentionLayer | None, FfnLayer | None]]:
        """The attention and the FFN of each block; None: removed."""
        return [(block.attention, block.ffn) for block in self.blocks]

    @property
    def attention_inputs(self) -> list[nn.Module | None]:
        """The modules whose input is the attention's normalised tokens [B, N, d]; None: removed."""
        return [attention and attention.module for attention, _ in self.layers]

    @property
    def projections(self) -> list[nn.Module | None]:
        """The modules whose output is all queries, keys and values, packed as for `anatomy.unpack`; None: removed."""
        return [attention and attention.projection for attention, _ in self.layers]

    @property
    def attention_outputs(self) -> list[nn.Module | None]:
        """The linear layers from the outputs of the heads [B, N, H * v], head by head; None: removed."""
        return [attention and attention.output for attention, _ in self.layers]

    @property
    def ffn_outputs(self) -> list[nn.Module | None]:
        """The linear layers from the neurons [B, N, e], after non-linearity and gate; None: removed."""
        return [ffn and ffn.output for _, ffn in self.layers]

    @property
    def block_modules(self) -> list[nn.Module]:
        """The modules of the blocks, each from tokens [B, N, d] to as many or fewer."""
        return [block.module for block in self.blocks]

    def read(self) -> list[Block]:
        """The weights of all blocks, as views of the live parameters: a regulariser trains through them."""
        return [block.read() for block in self.blocks]

    @property
    def dims(self) -> tuple[BlockDims, ...]:
        return tuple(block.dims for block in self.read())

    @property
    def geometry(self) -> Geometry:
        """The sizes that determine its cost, except those of its blocks."""
        return self.family.geometry(self.module)

    def geometry_at(self, width: int) -> Geometry:
        """The geometry with another width of the embedding; no weights are computed."""
        whole = self.geometry
        if width == whole.embed:
            return whole
        if self._narrowed is None or self._narrowed[0] != whole:  # narrowing a copy without values is slow
            (least,) = whole.widths([2])
            pairs = zip(whole.bases_at(least), whole.bases, strict=True)
            encoders = [torch.empty(pair, dtype=torch.float64, device="meta") for pair in pairs]
            self._narrowed = whole, shape_copy(self).with_embedding(encoders).geometry
        narrow = self._narrowed[1].with_embed(width)
        return self.family.as_read(narrow) if isinstance(self.family, DenseFamily) else narrow

    @property
    def ends(self) -> Ends:
        return self.family.ends(self.module)

    @property
    def input_size(self) -> tuple[int, ...]:
        """Channels, height and width of its input; of texts the number of tokens."""
        return self.ends.input_size

    @property
    def classifiers(self) -> tuple[nn.Linear, ...]:
        """The linear heads, with one row per class; their inputs are pooled features [B, d].

        Raises:
            UnsupportedModelError: there is none.
        """
        heads = self.ends.classifiers
        if not heads:
            raise UnsupportedModelError(
                f"{architecture(self.module)} has no classifier; give it one with --model-arg num_classes=..."
            )
        return heads

    @property
    def token_norms(self) -> list[TokenNorm]:
        """The LayerNorms that read tokens: those of the sites, those between stages, and the last.

        The last may read pooled tokens [B, d]. Only if `embed` of no site is frozen. Where a head of the user's reads
        tokens, there is no last one, and `ends.read` gives the tokens that it reads.
        """
        ends, geometry = self.ends, self.geometry
        first, last = len(geometry.bases) - len(geometry.stages), len(geometry.stages) - 1
        norms = [
            TokenNorm(layer.before, first + block.stage, block.stage)
            for block in self.blocks
            for layer in (block.attention, block.ffn)
            if layer is not None
        ]
        return [*norms, *ends.entries, *([] if ends.norm is None else [TokenNorm(ends.norm, first + last, last)])]

    # -- copies with other sizes

    def build(self, blocks: Sequence[Block]) -> Network:
        """A copy whose blocks have these weights, of any sizes."""
        return Network(self.family.build(self.module, blocks), self.family, self.output)

    def with_embedding(self, encoders: Tensor | Sequence[Tensor], decoders: Sequence[Decoder] | None = None) -> Network:
        """A copy whose tokens are `encoders` [d', d], in fp64 on its device, times those of the network (`Family`).

        Args:
            encoders: one for each of `Geometry.bases`, or the only one.
        """
        encoders = [encoders] if isinstance(encoders, Tensor) else encoders
        return Network(self.family.with_embedding(self.module, encoders, decoders), self.family, self.output)

    # -- changes in place

    def resize(self, dims: Sequence[BlockDims], names: Container[str] | None = None) -> None:
        """Set the dimensions of the blocks, with undefined weights, to load weights of these `names` (`Family`)."""
        self.family.resize(self.module, dims, names)

    def keep_blocks(self, indices: Sequence[int]) -> None:
        """Remove all blocks except these."""
        self.family.keep_blocks(self.module, indices)

    def make_classifiers(self, classes: int) -> None:
        """Add linear heads for this many classes, with random weights."""
        self.family.make_classifiers(self.module, classes)
        self.output = self._usual_output()

    def keep_classes(self, classes: Sequence[int]) -> None:
        """Remove all rows of the classifiers except these."""
        self.family.keep_classes(self.module, classes)
        self.output = self._usual_output()

    # -- the forward pass in steps

    def first_tokens(self, images: Tensor) -> Tensor:
        """The tokens [B, N, d] before the first block."""
        self._find_padding(images)
        return self.family.first_tokens(self.module, images)

    def answers(self, tokens: Tensor) -> Tensor:
        """The logits [B, C] for the tokens after the last block."""
        return self.family.answers(self.module, tokens)

    def outputs_after(self, after: Sequence[Tensor], images: Tensor) -> Tensor:
        """The outputs [B, ...] for the tokens after each block (`BlockLayers.run`), and the images.

        A head of the user's may read all of them.
        """
        if isinstance(self.family, DenseFamily):
            self._find_padding(images)
            return self._without_padding(self.family.outputs_after(self.module, after, images))
        return self.answers(self.blocks[-1].put_out(after[-1]))

    def show_last(self, block: int, tokens: Tensor) -> None:
        """Show the tokens after a block to observers of what reads them outside the blocks, if anything does."""
        module = self.block_modules[block]
        if any(module is read for read in self.ends.read):
            with returning(module, tokens):
                module(tokens)
        elif not self.ends.read and block == len(self.block_modules) - 1 and self.geometry.fixed_embed is None:
            self.answers(tokens)

    def of_one_size(self) -> AbstractContextManager[None]:
        """Fix the input size of the network within this context, as in an exported file."""
        return self.family.of_one_size(self.module)

    @contextmanager
    def weighing(self, log_weights: _LogWeights) -> Iterator[None]:
        """Weight the tokens in all attentions within this context; only if no block drops tokens."""

        def weigh(index: int) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
                weights = log_weights(index)
                return args, {**kwargs, "attn_mask": None if weights is None else weights[:, None, None]}

            return hook

        with ExitStack() as stack:
            for i, module in enumerate(self.block_modules):
                stack.callback(module.register_forward_pre_hook(weigh(i), with_kwargs=True).remove)
            yield

    def token_scores(self, block: int, tokens: Tensor, gates: SoftGates | None = None) -> Tensor:
        """The scores [B, N] by which a block ranks its tokens, of the input [B, N, d] of its attention.

        Only if its `tokens` are not frozen. Gates None: all tokens and heads are open.
        """
        attention = self.blocks[block].attention
        assert attention is not None, "else its tokens are frozen"
        return attention.token_scores(tokens, gates)

    # -- without edgevit

    def timm_arguments(self, depth: int, embed: int) -> TimmArguments:
        """timm's arguments, in addition to those of the base, of a network that `resize` can convert to this one.

        Args:
            depth: number of blocks of the base.
            embed: width of the embedding of the base.
        """
        if isinstance(self.family, DenseFamily):
            geometry, blocks = self.geometry, len(self.dims)
            changed = {} if geometry.embed == embed else {"embed_dim": geometry.stages[0].embed}
            return changed if blocks == depth else {**changed, "depth": blocks}
        return self.family.interchange.timm_arguments(self.module, depth, embed)

    def plain_loader(self) -> str | None:
        """Lines of Python that create the module with torch and timm only; None: timm has no such modules."""
        return None if isinstance(self.family, DenseFamily) else self.family.interchange.plain_loader(self.module)
