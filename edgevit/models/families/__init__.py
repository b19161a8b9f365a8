"""One file per timm family. Each defines:

def matches(model) -> bool                    is this model of the family, whether or not it can be pruned?
def check(model) -> None                      raise UnsupportedModelError, with the reason, if the algebra would break
def read(model) -> list[BlockWeights]         views of the live parameters, so that a regulariser trains through them
def build(model, blocks) -> nn.Module         a slim copy that holds these weights; `model` is not changed
def keep_classes(model, classes) -> None      remove every classifier row but these, in place
def resize(model, dims, names=None) -> None   give the blocks these dimensions, weights undefined: for loading `names`
def geometry(model) -> Geometry               what its cost depends on
def ffn_activations(model) -> list[nn.Module] per block, the module whose output is the FFN after its non-linearity
def attention_inputs(model) -> list[nn.Module] per block, the module whose input is the attention's normalised tokens
def projections(model) -> list[nn.Module]     per block, the module whose output is all queries, then keys, then values
def final_tokens(model) -> nn.Module           the module whose output is the normalised tokens that the head pools
def attention_outputs(model) -> list[nn.Module] per block, the module that maps all heads' outputs to the attention's
def ffn_outputs(model) -> list[nn.Module]     per block, the module that maps the neurons to the FFN's output
def layers(model) -> list[nn.Module]          the blocks themselves, each from tokens [B, N, d] to tokens
def first_tokens(model, images) -> Tensor     the tokens [B, N, d] that the first block is given
def answers(model, tokens) -> Tensor          the logits [B, C] for the tokens that the last block gives
def residual_scales(model) -> list[...]       per block, what attention and FFN output are multiplied by before they are
                                              added to the tokens: a pair of Tensor [d] or 1.0; None where it is no such
                                              sum (a norm comes after)
def keep_blocks(model, indices) -> None       remove every block but these, in place
def classifiers(model) -> list[nn.Linear]     the linear heads, one row per class
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

from torch import nn

from edgevit.errors import UnknownNameError, UnsupportedModelError


def family_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_family(name: str) -> ModuleType:
    """Import `families/<name>.py`.

    Raises:
        UnknownNameError: there is no such file.
    """
    if name not in family_names():
        raise UnknownNameError("model family", name, family_names())
    return import_module(f"{__name__}.{name}")


def family_of(model: nn.Module) -> ModuleType:
    """Return the family file that reads this model.

    Raises:
        UnsupportedModelError: no family matches, or the one that does refuses the model.
    """
    for name in family_names():
        family = load_family(name)
        if family.matches(model):
            family.check(model)
            return family
    raise UnsupportedModelError(
        f"cannot prune a {type(model).__name__}: supported families are {', '.join(family_names())} "
        f"(timm's VisionTransformer and DeiT); try vit_base_patch16_224 or deit_base_patch16_224"
    )
