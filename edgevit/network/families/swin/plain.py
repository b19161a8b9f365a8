"""The lines of Python that make a Swin of edgevit's without edgevit, for the README in its folder."""

from __future__ import annotations

from typing import Any

_START = """from timm.models.swin_transformer import SwinTransformerBlock, WindowAttention

model = timm.create_model(spec["timm_name"], **spec["timm_args"])
blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, SwinTransformerBlock)]
for (name, block), dims in zip(blocks, spec["blocks"]):
    d, sides = block.dim, zip(block.input_resolution, block.window_size)
    block.shift_size = tuple(w // 2 if dims["shifted"] and w < r else 0 for r, w in sides)
    block.attn_mask = block.get_attn_mask(device="cpu", dtype=torch.float32)
"""
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


def plain_loader(model: Any) -> str | None:
    """Lines of Python that make `model` of `spec` (model.json) and `state` (its weights) with torch and timm alone.

    None where timm has no such attention.
    """
    blocks = [block for stage in model.layers for block in stage.blocks]
    if any(block.attn is not None and block.attn.qk_dim != block.attn.vo_dim for block in blocks):
        return None
    lines = [_START]
    lines += [_NO_ATTENTION] * any(block.attn is None for block in blocks)
    lines += [_NO_FFN] * any(block.mlp is None for block in blocks)
    return "".join([*lines, _REST])
