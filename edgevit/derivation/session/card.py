"""README.md of a model folder: what it is, its numbers, and how to load and run it."""

from __future__ import annotations

from edgevit.data.neighbours import hint_in
from edgevit.data.shares import share_text
from edgevit.records.derivation import (
    AccuracyRecord,
    BoxesRecord,
    DerivationRecord,
    MapRecord,
    RejectedRecord,
    SimilarityRecord,
)
from edgevit.records.model import ModelSpec, Rejection
from edgevit.records.reading import READING, reading_settings
from edgevit.text import format_count

_HERE = """With edgevit:

```python
import edgevit

model = edgevit.load(".")
for seen in model.predict(["photo.jpg"]):
    print(seen.name, seen.probabilities)
```
"""

_PLAIN = """With plain timm:

```python
import json, timm, torch
from pathlib import Path
from PIL import Image{ops}
from safetensors.torch import load_file

spec, state = json.loads(Path("model.json").read_text()), load_file("model.safetensors")
{loader}model.eval()

image = {opened}
image = timm.data.create_transform(**{settings})(image)
with torch.inference_mode():
    logits = model(image[None])[0]{columns}
names = [c["name"] for c in spec["classes"]]
probabilities = dict(zip(names, logits.softmax(0).tolist()))
name = max(probabilities, key=probabilities.get)
{rule}print(name, probabilities)
```
"""

_OWN = """Plain timm cannot express it: {why}.
"""
_WIDTHS, _TOKENS = "some blocks have different QK and VO widths", "tokens leave after some blocks"

_ONNX = """With ONNX Runtime, after `edgevit export`; the file says itself what it needs:

```python
import json
import numpy as np, onnxruntime
from PIL import Image{ops}

session = onnxruntime.InferenceSession("export/model.fp32.onnx")
said, (images,) = session.get_modelmeta().custom_metadata_map, session.get_inputs()
p, names, columns = (json.loads(said[key]) for key in ("preprocessing", "class_names", "class_columns"))
height, width = p["input_size"][1:]

image = {opened}
{size}
image = image.resize(size, getattr(Image, p["interpolation"].upper())){pad}
left, top = round((image.width - width) / 2), round((image.height - height) / 2)
pixels = np.float32(image.crop((left, top, left + width, top + height))) / 255
x = np.float32((pixels - np.float32(p["mean"])) / np.float32(p["std"])).transpose(2, 0, 1)
count = images.shape[0] if isinstance(images.shape[0], int) else 1  # images that a file takes at once
logits = session.run(None, {{images.name: np.stack([x] * count)}})[0][0, columns].astype(float)
odds = np.exp(logits - logits.max())
probabilities = dict(zip(names, (odds / odds.sum()).tolist()))
name = max(probabilities, key=probabilities.get)
{rule}print(name, probabilities)
```
"""

# How a picture is read, by whether it is put upright as its EXIF says.
_OPENED = {
    False: 'Image.open("photo.jpg").convert("RGB")',
    True: 'ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")',
}
# What timm's evaluation transform resizes an image to before the crop.
_SIDES = """full = [int(side / p["crop_pct"]) for side in (width, height)]"""
_SIZES = {
    "squash": 'size = [int(side / p["crop_pct"]) for side in (width, height)]',
    "border": f"""{_SIDES}
ratio = max(image.width / full[0], image.height / full[1])
size = [round(side / ratio) for side in image.size]""",
    "oblong": f"""{_SIDES}
ratio = min(image.width / full[0], image.height / full[1])
size = [round(side / ratio) for side in image.size]""",
    "center": """short = int(height / p["crop_pct"])
size = [int(short * side / min(image.size)) for side in image.size]""",
}
_PAD = """
room = [max(pair) for pair in zip(image.size, (width, height))]
canvas = Image.new("RGB", room, tuple(round(255 * value) for value in p["mean"]))
canvas.paste(image, [(a - b) // 2 for a, b in zip(room, image.size)])
image = canvas"""


def _classify(spec: ModelSpec, loader: str | None) -> str:
    """Three ways to classify an image; each prints the same."""
    p, rule = spec.preprocessing, spec.rejection
    if spec.reads_texts:
        return _HERE.replace('["photo.jpg"]', '["A text."]')
    mode = p.get("crop_mode") or "center"
    if mode == "center" and p["input_size"][1] != p["input_size"][2]:
        mode = "oblong"
    columns = "" if spec.head == "subset" else '[[c["base_index"] for c in spec["classes"]]]'
    timm_rule = onnx_rule = ""
    if rule is not None:
        timm_rule = """if logits.logsumexp(0) < spec["rejection"]["threshold"]:
    name = "other"
"""
        onnx_rule = """if np.log(odds.sum()) + logits.max() < json.loads(said["rejection"])["threshold"]:
    name = "other"
"""
    reason = _TOKENS if any(b.tokens for b in spec.blocks) else _WIDTHS
    upright, settings = p.get("exif") == "apply", 'spec["preprocessing"]'
    if reading_settings(p):
        settings = f"{{k: v for k, v in {settings}.items() if k not in {list(READING)}}}"
    parts = {"ops": ", ImageOps" if upright else "", "opened": _OPENED[upright], "settings": settings}
    plain = _OWN.format(why=reason)
    if loader is not None:
        plain = _PLAIN.format(loader=loader, columns=columns, rule=timm_rule, **parts)
    pad = _PAD if mode == "border" else ""
    return "\n".join([_HERE, plain, _ONNX.format(size=_SIZES[mode], pad=pad, rule=onnx_rule, **parts)])


def _percent(entry: AccuracyRecord | None) -> str:
    return "not asked for" if entry is None else share_text(entry.top1, entry.images)


def _rejection_text(rule: Rejection, test: RejectedRecord) -> str:
    counts = f"{test.other} of {test.images} test images of these classes"
    if test.foreign_images:
        counts += f" and {test.foreign_other} of {test.foreign_images} of others"
    return f"""
An image is called `other`, of none of these classes, where the {rule.score} of their logits is below
{rule.threshold:.6g}: {counts}.
"""


def model_card(name: str, spec: ModelSpec, record: DerivationRecord, loader: str | None) -> str:
    """The README of a derived model."""
    if record.similarity is not None:
        return _features_card(name, spec, record, record.similarity, loader)
    if likeness := record.map or record.boxes:
        return _map_card(name, spec, record, likeness)
    accuracy, measured = record.accuracy, record.accuracy.derived
    rows = [
        ("base, full head", accuracy.base_full_head, spec.base.macs, spec.base.params),
        ("base, restricted to the classes", accuracy.base_restricted, spec.base.macs, spec.base.params),
        ("base, fine-tuned on them", accuracy.base_finetuned, spec.base.macs, spec.base.params),
        ("**this model**", measured, spec.macs, spec.params),
    ]
    table = "\n".join(f"| {n} | {_percent(a)} | {format_count(m)} | {format_count(k)} |" for n, a, m, k in rows)
    rejection = ""
    if spec.rejection is not None and measured is not None and measured.rejection is not None:
        rejection = _rejection_text(spec.rejection, measured.rejection["test"])
    embedding = "" if spec.embedding_text is None else f"\n{spec.embedding_text.capitalize()}."
    order = "in this order" if spec.head == "subset" else "among all outputs of the base"
    return f"""# {name}

{spec.timm_name}, {100 * spec.rate:.1f} % of its multiply-accumulates removed with `{record.method}` for
{len(spec.classes)} classes ({order}): {_classes(spec)}.{embedding}

| | {f"top-1 on {measured.images} test images" if measured else "top-1"} | MACs | parameters |
|---|---|---|---|
{table}

{_input(spec)} `derivation.json` says how it was made: {record.format_training()}.
{_doubt(hint_in(record))}{rejection}
## Classify an image

In this folder, each of these prints the class of `photo.jpg`, 8 bits deep, and the probability of every class.

{_classify(spec, loader)}"""


_OUTPUTS = """```python
import edgevit
from PIL import Image

model = edgevit.load(".")
{name} = model(model.transform(Image.open("photo.jpg").convert("RGB"))[None])
```
"""
_PLAIN_FEATURES = """With plain timm:

```python
import json, timm, torch
from pathlib import Path
from safetensors.torch import load_file

spec, state = json.loads(Path("model.json").read_text()), load_file("model.safetensors")
{loader}```
"""


def _features(spec: ModelSpec) -> str:
    """How to compute the features of a model, and what an exported file calls those of tokens."""
    names, shapes = ", ".join(f"`{name}`" for name in spec.token_names), "patches `[images, patches, d]`"
    if "class" in names:
        shapes = f"a class token `[images, d]`, {shapes}"
    exported = f"\nA file of `edgevit export` puts them out as {names}: {shapes}.\n" if names else ""
    return _OUTPUTS.format(name="features") + exported


def _features_card(
    name: str, spec: ModelSpec, record: DerivationRecord, similarity: SimilarityRecord, loader: str | None
) -> str:
    """The README of a derived model that puts out features."""
    embedding = "" if spec.embedding_text is None else f"\n{spec.embedding_text.capitalize()}."
    plain = "" if loader is None else f"\n{_PLAIN_FEATURES.format(loader=loader)}"
    return f"""# {name}

A backbone: {spec.timm_name}, {100 * spec.rate:.1f} % of its multiply-accumulates removed with
`{record.method}`.{embedding}
Its {spec.outputs} {spec.output_text} of an image are meant to be those of its base, and have {similarity.format()}.

| | MACs | parameters |
|---|---|---|
| base | {format_count(spec.base.macs)} | {format_count(spec.base.params)} |
| **this model** | {format_count(spec.macs)} | {format_count(spec.params)} |

{_input(spec)} `derivation.json` says how it was made: {record.format_training()}.

## Compute the features of an image

{_features(spec)}{plain}
`edgevit evaluate {name} --data IMAGES --probe knn,linear` tells what they are worth on labelled images."""


_BUILDER = """
To open this folder is to run `builder.py`, which makes the network. Where it has not been run before, read it, and
allow it once with `edgevit.load(".", run_code=True)`.
"""


_DETECT = """```python
import edgevit, torchvision
from PIL import Image

detector = edgevit.load(".").module.detector
(found,) = detector([torchvision.transforms.functional.to_tensor(Image.open("photo.jpg").convert("RGB"))])
```
"""


def _use_of_head(spec: ModelSpec) -> str:
    """How to use a network with a head of the user's."""
    if spec.output_kind == "boxes":
        return f"## Find the objects in an image\n\n{_DETECT}{_BUILDER}"
    return f"## Compute the map of an image\n\n{_OUTPUTS.format(name='maps')}{_BUILDER}"


_OF_PYRAMID = """MACs are of the backbone and its pyramid, for one image of the size below; parameters are of the whole
detector."""


def _learnt(record: DerivationRecord) -> bool:
    """Whether labels, or a detector's own losses, were a part of the training."""
    if record.training is None or not record.training.steps:
        return False
    options = record.training.more
    return bool(options["teacher"] == "none" or options["teacher_weight"] != 1)


def _map_card(name: str, spec: ModelSpec, record: DerivationRecord, likeness: MapRecord | BoxesRecord) -> str:
    """The README of a derived model with a head of the user's."""
    assert spec.builder is not None
    boxes = spec.output_kind == "boxes"
    of_rest = "" if spec.rest_text is None else f" {spec.rest_text[0].upper()}{spec.rest_text[1:]}."
    of_pyramid = f"\n{_OF_PYRAMID}{of_rest}" if boxes else ""
    sentence = "The head was trained with it." if _learnt(record) else "The head is as it was."
    if (cut := spec.narrowed_rest_text) is not None:
        sentence = f"{cut[0].upper()}{cut[1:]}."
    return f"""# {name}

{spec.timm_name} with a head, as `{spec.builder.function}` in `builder.py` makes them, {100 * spec.rate:.1f} % of their
multiply-accumulates removed with `{record.method}` from `{spec.builder.network}`. {sentence}{of_pyramid}
The output is {spec.output_text} ({_KINDS[spec.output_kind]}), with {likeness.format()}.

| | MACs | parameters |
|---|---|---|
| base | {format_count(spec.base.macs)} | {format_count(spec.base.params)} |
| **this model** | {format_count(spec.macs)} | {format_count(spec.params)} |

{_input(spec)} `derivation.json` says how it was made: {record.format_training()}.

{_use_of_head(spec)}"""


_KINDS = {
    "foreground": "logits of one channel",
    "classes": "logits of each class",
    "values": "as the head gives them",
    "boxes": "found in a pyramid of features",
}
_NAMELESS = f"""Written with `--base-classes FILE` or `--data`, this folder would know the names of its classes, too.

{_OUTPUTS.format(name="logits")}"""


def base_card(
    name: str, spec: ModelSpec, loader: str | None, origin: str | None = None, hint: str | None = None
) -> str:
    """The README of a base, unpruned but perhaps restricted to some outputs.

    Args:
        origin: sentences on how its head was fitted and how it was trained, if it was.
        hint: at other preprocessing that gives better accuracy.
    """
    outputs = len(spec.classes) if spec.head == "subset" else spec.base.outputs
    count = "all" if outputs == spec.base.outputs else f"{outputs} of its"
    names = f": {_classes(spec)}" if spec.classes else ", whose names are not known"
    features = spec.output_kind == "features"
    head = (
        "without a classifier"
        if features
        else f"with {spec.output_text}"
        if spec.builder
        else f"with {count} {spec.base.outputs} outputs{names}"
    )
    use, code = "Classify an image", _classify(spec, loader) if spec.classes else _NAMELESS
    if features:
        use, code = "Compute the features of an image", _features(spec)
    use = _use_of_head(spec) if spec.builder is not None else f"## {use}\n\n{code}"
    paragraph = "" if origin is None else f"\n{origin}\n"
    return f"""# {name}

{spec.timm_name} {head}. Nothing else was removed:
{format_count(spec.macs)} multiply-accumulates, {format_count(spec.params)} parameters.
{paragraph}
{_input(spec)}{_doubt(hint)}

{use}"""


def _classes(spec: ModelSpec) -> str:
    return ", ".join(spec.class_names[:50]) + (", ..." if len(spec.classes) > 50 else "")


def _doubt(hint: str | None) -> str:
    """A paragraph on preprocessing that was accepted, or nothing."""
    return "" if hint is None else f"\n**Warning:** {hint}.\n"


def _input(spec: ModelSpec) -> str:
    p = spec.preprocessing
    if spec.reads_texts:
        return f"""Input: int64 ids of the {p["input_size"][0]} tokens of a text by `tokenizer.json`, cut or padded.
MACs are those of so many tokens, and what the papers call FLOPs."""
    reading = "".join(f", {name} {value}" for name, value in reading_settings(p).items())
    return f"""Input: {p["input_size"]} (channels, height, width), crop {p["crop_pct"]}, {p["interpolation"]},
mean {p["mean"]}, standard deviation {p["std"]}{reading}. MACs are what the papers call FLOPs."""
