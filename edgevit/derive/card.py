"""README.md of a model folder: what it is, its numbers, and how to load and run it."""

from __future__ import annotations

from typing import Any

from edgevit.derive.budget import readable
from edgevit.models.rejection import Rejection
from edgevit.models.spec import ModelSpec

_PLAIN = """Every block is timm's own attention, so plain timm loads it:

```python
import json, timm, torch
from safetensors.torch import load_file
from timm.models.vision_transformer import Attention

spec, state = json.load(open("model.json")), load_file("model.safetensors")
model = timm.create_model(spec["timm_name"], **spec["timm_args"])
for i, (block, dims) in enumerate(zip(model.blocks, spec["blocks"])):
    bias = lambda name: f"blocks.{i}.{name}.bias" in state
    d = model.embed_dim
    block.attn = Attention(d, num_heads=dims["heads"], attn_head_dim=dims["qk"],
                           qkv_bias=bias("attn.qkv"), proj_bias=bias("attn.proj"))
    block.mlp.fc1 = torch.nn.Linear(d, dims["ffn"], bias=bias("mlp.fc1"))
    block.mlp.fc2 = torch.nn.Linear(dims["ffn"], d, bias=bias("mlp.fc2"))
model.load_state_dict(state)
model.eval()
```
"""

_OWN = """Some blocks have different QK and VO widths, which plain timm cannot express; load it with edgevit:

```python
import edgevit
model = edgevit.load("path/to/this/folder")
```
"""


def _percent(entry: dict[str, Any] | None) -> str:
    return "not asked for" if entry is None else f"{100 * entry['top1']:.2f} %"


def _other(rule: Rejection, test: dict[str, int]) -> str:
    told = f"{test['other']} of {test['images']} test images of these classes"
    if test["foreign_images"]:
        told += f" and {test['foreign_other']} of {test['foreign_images']} of others"
    return f"""
An image is called `other`, of none of these classes, where the {rule.score} of their logits is below
{rule.threshold:.6g}: {told}.
"""


def model_card(name: str, spec: ModelSpec, record: dict[str, Any]) -> str:
    accuracy, p = record["accuracy"], spec.preprocessing
    measured = accuracy["derived"]
    rows = [
        ("base, full head", accuracy["base_full_head"], spec.base.macs, spec.base.params),
        ("base, restricted to the classes", accuracy["base_restricted"], spec.base.macs, spec.base.params),
        ("base, fine-tuned on them", accuracy["base_finetuned"], spec.base.macs, spec.base.params),
        ("**this model**", accuracy["derived"], spec.macs, spec.params),
    ]
    table = "\n".join(f"| {n} | {_percent(a)} | {readable(m)} | {readable(k)} |" for n, a, m, k in rows)
    classes = ", ".join(spec.class_names[:50]) + (", ..." if len(spec.classes) > 50 else "")
    other = "" if spec.rejection is None else _other(spec.rejection, measured["rejection"]["test"])
    order = "in this order" if spec.head == "subset" else "among all outputs of the base"
    return f"""# {name}

{spec.timm_name}, {100 * spec.rate:.1f} % of its multiply-accumulates removed with `{record["method"]}` for
{len(spec.classes)} classes ({order}): {classes}.

| | {f"top-1 on {measured['images']} test images" if measured else "top-1"} | MACs | parameters |
|---|---|---|---|
{table}

Input: {p["input_size"]} (channels, height, width), crop {p["crop_pct"]}, {p["interpolation"]}, mean {p["mean"]},
standard deviation {p["std"]}. MACs are what the papers call FLOPs. `derivation.json` says how it was made.
{other}
## Load it

{_PLAIN if spec.plain_timm else _OWN}"""
