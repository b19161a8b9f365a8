"""How Swins and their weights come from other programs, and go to them (`families.Interchange`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Mlp, PatchEmbed
from timm.models import FeatureHookNet
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from timm.models.swin_transformer import WindowAttention as TimmAttention
from timm.models.swin_transformer_v2 import SwinTransformerV2Stage
from torch import Tensor, nn

from edgevit.network.anatomy import BlockDims
from edgevit.network.families import plain_creation
from edgevit.network.families.swin.embedding import is_narrower
from edgevit.network.families.swin.listed import ListedSwin, is_listed, swin_of_list
from edgevit.network.families.swin.modules import SwinStage, TokenSwin, WindowAttention, WindowBlock, Windows
from edgevit.network.layers import odd_linear
from edgevit.network.weights import State, TimmArguments, Weights, first_names, mlp_ratio
from edgevit.records.model import PreprocessingFields

model_types = ("swin", "maskformer-swin", "donut-swin")

_PATCHES = "patch_embed.proj.weight"
_HUGGING_FACE = [
    (r"^swin\.", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.norm\.", "patch_embed.norm."),
    (r"^embeddings\.", ""),  # mask_token
    (r"^encoder\.layers\.", "layers."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.self\.", ".attn."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
]
_TORCHVISION = [  # torchvision has stages at odd numbers, and the merging of tokens before each at even ones
    (r"^features\.0\.0\.", "patch_embed.proj."),
    (r"^features\.0\.2\.", "patch_embed.norm."),
    (r"^features\.(\d*[13579])\.(\d+)\.", lambda match: f"layers.{int(match[1]) // 2}.blocks.{match[2]}."),
    (r"^features\.(\d+)\.", lambda match: f"layers.{int(match[1]) // 2 - 1}.downsample."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.3\.", ".mlp.fc2."),
]
_OPENMMLAB = [
    (r"^patch_embed\.projection\.", "patch_embed.proj."),
    (r"^stages\.", "layers."),
    (r"\.attn\.w_msa\.", ".attn."),
    (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."),
    (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
]
_FIRST: Mapping[str, tuple[str, str, list[Any]]] = {  # the name of the patch embedding in programs beside timm
    "embeddings.patch_embeddings.projection.weight": ("Hugging Face's", "transformers", _HUGGING_FACE),
    "features.0.0.weight": ("torchvision's", "torchvision", _TORCHVISION),
    "patch_embed.projection.weight": ("mmdetection's", "mmdetection", _OPENMMLAB),
}
_CONSTANTS = ("relative_position_index", "attn_mask")
_TORCHVISION_RESIZED = {"tiny": 232, "small": 246, "base": 238}  # pixels, of which 224 are cropped
_SIZES = {96: "tiny", 128: "base", 192: "large"}  # timm's name of the size, by width of the first stage


# -- networks of timm --------------------------------------------------------------------------------------------------
_IMPORT = """from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention

"""
_START = """blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, SwinTransformerBlock)]
for (name, block), dims in zip(blocks, spec["blocks"]):
    d, sides = block.dim, zip(block.input_resolution, block.window_size)
    block.shift_size = tuple(w // 2 if dims["shifted"] and w < r else 0 for r, w in sides)
    block.attn_mask = block.get_attn_mask(device="cpu", dtype=torch.float32)
"""
_NARROWER = """
merging = [stage.downsample for stage in model.layers[1:]]
model.layers[0].downsample = torch.nn.Linear(model.embed_dim, model.embed_dim)
for layer in merging:
    layer.reduction = torch.nn.Linear(layer.reduction.in_features, layer.reduction.out_features)
""".lstrip()
_NO_ATTENTION = """    if not dims["heads"]:  # only the FFN is left
        del block.norm1, block.attn
        block.forward = lambda x, b=block: x + b.mlp(b.norm2(x))
"""
_NO_FFN = """    if not dims["ffn"]:  # only the attention is left
        del block.norm2, block.mlp
        block.forward = lambda x, b=block: x + b._attn(b.norm1(x))
"""
_REST = """    if dims["heads"]:
        bias = f"{name}.attn.qkv.bias" in state
        block.attn = WindowAttention(d, dims["heads"], dims["qk"], block.window_size, qkv_bias=bias)
    if dims["ffn"]:
        block.mlp.fc1, block.mlp.fc2 = torch.nn.Linear(d, dims["ffn"]), torch.nn.Linear(dims["ffn"], d)
model.load_state_dict(state)
"""
_LOAD = "model.load_state_dict"


def reason_against(model: Any) -> str | None:
    """The reason why a Swin of timm cannot be pruned, or None."""
    if isinstance(model, FeatureHookNet):
        return "its FeatureHookNet reads maps by hooks, which copies do not have; make it with feature_cls='getter'"
    model = swin_of_list(model) if is_listed(model) else model
    if isinstance(model.layers[0], SwinTransformerV2Stage):
        return "the cosine attention of Swin V2 normalises queries and keys before their product; give a Swin (V1)"
    patch = model.patch_embed
    if type(model) is not SwinTransformer or type(patch) is not PatchEmbed:
        return f"it is a {type(model).__name__} with {type(patch).__name__}, which edgevit cannot read yet"
    if patch.proj.in_channels != 3:
        return f"it reads {patch.proj.in_channels} channel(s), and images are read as RGB: train it on 3 channels"
    if any(side % step for side, step in zip(patch.img_size, patch.patch_size, strict=True)):
        whole = ", ".join(str(side // step * step) for side, step in zip(patch.img_size, patch.patch_size, strict=True))
        return f"images of {patch.img_size} do not divide into patches; try --model-arg 'img_size=({whole})'"
    for stage in model.layers:
        for block in stage.blocks:
            if type(block) is not SwinTransformerBlock or type(block.attn) is not TimmAttention:
                return f"its blocks are {type(block).__name__} with {type(block.attn).__name__}"
            if block.always_partition:
                return "its windows may be larger than its map; try --model-arg always_partition=false"
            if type(block.mlp) is not Mlp or not isinstance(block.mlp.norm, nn.Identity):
                return f"its FFN is {type(block.mlp).__name__}; only FFNs of two layers can be pruned"
            if (reason := odd_linear(block.attn, block.mlp)) is not None:
                return reason
            if not all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in (block.norm1, block.norm2)):
                return f"its norms are {type(block.norm1).__name__}, expected LayerNorms with biases"
    return None


def adopted(model: Any) -> Any:
    """Convert timm's Swin to the network of the same function on tokens; return other modules unchanged.

    Its images have one size from then on, and no blocks are left out in training: the number of blocks, by which timm
    chooses the rates, changes.
    """
    if isinstance(model, TokenSwin) or reason_against(model) is not None:
        return model
    kind = TokenSwin
    if is_listed(model):
        model, kind = swin_of_list(model), ListedSwin
    swin: Any = kind.__new__(kind)
    swin.__dict__.update(model.__dict__, _modules=dict(model._modules))
    swin.patch_embed = PatchEmbed.__new__(PatchEmbed)
    swin.patch_embed.__dict__.update(model.patch_embed.__dict__, flatten=True, strict_img_size=True)
    swin.layers = nn.Sequential(*(_stage(model, number) for number in range(len(model.layers))))
    return swin.train(model.training)


def _stage(model: Any, number: int) -> SwinStage:
    stage = model.layers[number]
    (rows, columns), usual = stage.output_resolution, model._ref_window_sizes[number]
    height, width = stage.blocks[0].window_size if len(stage.blocks) else map(min, (rows, columns), usual)
    dim = stage.downsample.reduction.out_features if number else model.patch_embed.proj.out_channels
    converted = SwinStage(stage, Windows((rows, columns), (height, width)), dim)
    converted.blocks = nn.Sequential(*(_block(block, converted) for block in stage.blocks))
    return converted


def _block(block: Any, stage: SwinStage) -> WindowBlock:
    old, shifted = block.attn, any(block.shift_size)
    width = old.qkv.out_features // (3 * old.num_heads)
    windows = replace(stage.windows, shift=stage.shift) if shifted else stage.windows
    with torch.device("meta"):
        attn = WindowAttention(windows, stage.dim, BlockDims(old.num_heads, width, width, 0), qkv_bias=False)
    attn.qkv, attn.proj, attn.attn_drop, attn.proj_drop = old.qkv, old.proj, old.attn_drop, old.proj_drop
    attn.relative_position_bias_table = old.relative_position_bias_table
    converted = WindowBlock(block, attn, shifted=shifted)
    for name in ("order", "filled", "places", "relative", "apart"):  # constants, where the weights are
        if (constant := getattr(attn, name)) is not None and not old.qkv.weight.is_meta:
            setattr(attn, name, constant.to(old.qkv.weight.device))
    return converted


# -- weights -----------------------------------------------------------------------------------------------------------


def named(state: Mapping[str, Tensor]) -> Weights:
    """Rename weights of timm, Microsoft, Hugging Face, torchvision and mmdetection to timm's names.

    Of a detector those of its backbone are taken; the norm of its last output is the last norm.
    """
    notes, origin, rules = list[str](), "timm", list[Any]()
    for first, (source, program, names) in _FIRST.items():
        if any(name.endswith(first) for name in state):
            notes, origin, rules = [f"the weights have {source} names, and are read as timm's"], program, names
    state = _of_backbone(state, notes)
    if origin == "mmdetection":
        state = {name: _merged_as_timm(name, value) for name, value in state.items()}
    renamed: State = {}
    for name, value in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        if not name.endswith(_CONSTANTS):
            name = re.sub(r"^layers_(\d+)\.", r"layers.\1.", name)  # of a list of timm's
            renamed[re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name)] = value.to(torch.float32)
    for name in [name for name in renamed if name.endswith((".attn.query.weight", ".attn.query.bias"))]:
        parts = [name.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        renamed[name.replace(".query.", ".qkv.")] = torch.cat([renamed.pop(part) for part in parts])
    if "layers.0.downsample.reduction.weight" in renamed:  # tokens are merged where a stage ends
        moved = {name: value for name, value in renamed.items() if ".downsample." in name}
        renamed = {name: value for name, value in renamed.items() if name not in moved}
        for name, value in moved.items():
            renamed[re.sub(r"^layers\.(\d+)", lambda match: f"layers.{int(match[1]) + 1}", name)] = value
    head = renamed.get("head.fc.weight")
    usual = _torchvision_preprocessing(renamed) if origin == "torchvision" else {}
    return Weights(renamed, tuple(notes), 0 if head is None else len(head), origin, usual)


def _torchvision_preprocessing(state: Mapping[str, Tensor]) -> PreprocessingFields:
    """The preprocessing of torchvision's weights; a size that it does not have is resized as timm's is."""
    size = _SIZES.get(len(state["patch_embed.proj.bias"]), "")
    if size == "tiny" and any(name.startswith("layers.2.blocks.6.") for name in state):
        size = "small"  # small has the width of tiny
    usual: PreprocessingFields = {
        "mean": list(IMAGENET_DEFAULT_MEAN), "std": list(IMAGENET_DEFAULT_STD), "interpolation": "bicubic",
    }  # fmt: skip
    return usual | ({"crop_pct": 224 / _TORCHVISION_RESIZED[size]} if size in _TORCHVISION_RESIZED else {})


def _of_backbone(state: Mapping[str, Tensor], notes: list[str]) -> Mapping[str, Tensor]:
    """The weights of a detector's backbone alone, without their prefix; others as they are."""
    first = next((name for name in state if name.endswith((*_FIRST, _PATCHES))), "")
    prefix = re.sub(r"((embeddings\.)?patch_embed|features\.0\.0).*", "", first)
    if prefix and prefix != "swin.":
        others = [name for name in state if not name.startswith(prefix)]
        if others:
            notes.append(f"the weights are those of {prefix[:-1]}, without {first_names(sorted(others))}")
        state = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    norms = sorted(name for name in state if re.fullmatch(r"norm\d\.(weight|bias)", name))
    if not norms or "norm.weight" in state:
        return state
    last = norms[-1].partition(".")[0]
    if others := [name for name in norms if not name.startswith(f"{last}.")]:
        notes.append(f"norms of the other outputs of the backbone are left out of the weights: {first_names(others)}")
    without_norms = {name: value for name, value in state.items() if name not in norms}
    return {**without_norms, **{f"norm.{part}": state[f"{last}.{part}"] for part in ("weight", "bias")}}


def _merged_as_timm(name: str, value: Tensor) -> Tensor:
    """Weights that read four merged tokens, channel by channel (torch's unfold), in timm's order, token by token.

    timm has the four tokens column by column.
    """
    if ".downsample." not in name:
        return value
    rows = value.reshape(-1, value.shape[-1] // 4, 2, 2)  # [outputs, channels, row, column]
    return rows.permute(0, 3, 2, 1).reshape(value.shape)


def fitted(weights: Weights, network: Any, name: str, *, resample: bool, trained: Any = None) -> Weights:
    """Leave out weights that the network does not use; a window of another size is another network."""
    used = {name.partition(".")[0] for name in network.state_dict()}
    unused = [key for key in sorted(weights.state) if key.partition(".")[0] not in used]
    if isinstance(network.norm, nn.Identity):  # it may end before the last stage, as features_only makes it
        stages = tuple(f"layers.{number}." for number in range(len(network.layers)))
        later = [key for key in sorted(weights.state) if key.startswith("layers.") and not key.startswith(stages)]
        unused = later + unused
    if not unused:
        return weights
    state = {key: value for key, value in weights.state.items() if key not in unused}
    note = f"left out of the weights, as {name} does not use them: {first_names(unused)}"
    return replace(weights, state=state, notes=(*weights.notes, note))


def shape_arguments(state: Mapping[str, Tensor]) -> TimmArguments:
    """timm's arguments that the shapes of weights under timm's names say."""
    patches = state.get(_PATCHES)
    places = [match for name in state if (match := re.fullmatch(r"layers\.(\d+)\.blocks\.(\d+)\.norm2\.bias", name))]
    if patches is None or patches.ndim != 4 or not places:
        return {}
    stages = range(max(int(match[1]) for match in places) + 1)
    depths = [1 + max((int(m[2]) for m in places if int(m[1]) == stage), default=-1) for stage in stages]
    tables = [state.get(f"layers.{stage}.blocks.0.attn.relative_position_bias_table") for stage in stages]
    arguments: TimmArguments = {
        "patch_size": patches.shape[2],
        "in_chans": patches.shape[1],
        "embed_dim": patches.shape[0],
        "depths": depths,
        "qkv_bias": any(name.endswith(".attn.qkv.bias") for name in state),
    }
    if bias_tables := [table for table in tables if table is not None and table.ndim == 2]:  # an empty stage has any
        of_stages = [bias_tables[0] if table is None else table for table in tables]
        arguments["num_heads"] = [table.shape[1] for table in of_stages]
        windows = [(isqrt(len(table)) + 1) // 2 for table in of_stages]
        arguments["window_size"] = windows[0] if len(set(windows)) == 1 else windows
    first = state.get("layers.0.blocks.0.mlp.fc1.weight")
    if first is not None and first.ndim == 2:
        arguments["mlp_ratio"] = mlp_ratio(len(first), patches.shape[0])
    return arguments


def guessed_arguments(
    state: Mapping[str, Tensor], network: Any, network_state: Mapping[str, Tensor], stated: Collection[str]
) -> tuple[TimmArguments, str | None]:
    """The arguments by which a network would have the shapes of these weights; those that are `stated` are left out."""
    now, then = shape_arguments(network_state), shape_arguments(state)
    return {key: value for key, value in then.items() if now.get(key) != value and key not in stated}, None


def guessed_name(state: Mapping[str, Tensor]) -> str | None:
    """timm's name of a Swin similar to these weights; None: they are not of a Swin."""
    arguments = shape_arguments(state)
    if not arguments or "num_heads" not in arguments:
        return None
    size = _SIZES[min(_SIZES, key=lambda width: abs(width - arguments["embed_dim"]))]
    if size == "tiny" and max(arguments["depths"]) > 6:
        size = "small"
    large = size in ("base", "large") and arguments["window_size"] == 12
    return f"swin_{size}_patch4_window{'12_384' if large else '7_224'}"


def stated_arguments(module: Any) -> TimmArguments:
    arguments: TimmArguments = {"img_size": list(module.patch_embed.img_size)}
    return arguments | ({"norm_eps": module.norm_eps} if hasattr(module, "norm_eps") else {})


def timm_arguments(module: Any, depth: int, embed: int) -> TimmArguments:
    depths = [len(stage.blocks) for stage in module.layers]
    narrower: TimmArguments = {} if module.num_features == embed else {"embed_dim": module.embed_dim}
    return narrower if sum(depths) == depth else {**narrower, "depths": depths}


def plain_loader(model: Any) -> str | None:
    """Lines of Python that make `model` of `spec` (model.json) and `state` (its weights) with torch and timm alone.

    None where timm has no such attention.
    """
    blocks = [block for stage in model.layers for block in stage.blocks]
    if any(block.attn is not None and block.attn.qk_dim != block.attn.vo_dim for block in blocks):
        return None
    lines = [_IMPORT, plain_creation(model), _START]
    lines += [_NO_ATTENTION] * any(block.attn is None for block in blocks)
    lines += [_NO_FFN] * any(block.mlp is None for block in blocks)
    return "".join([*lines, _REST.replace(_LOAD, _NARROWER + _LOAD) if is_narrower(model) else _REST])
