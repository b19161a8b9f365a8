"""Read the files that are published with weights: names of the outputs, preprocessing, and network.

The weights are one file, or shards with an index. timm writes `config.json` with `architecture`, `label_names` and
`pretrained_cfg`. transformers writes `config.json` with `id2label` and the sizes of the network, and
`preprocessor_config.json`, or from version 5 on, where a tokenizer comes with it, `processor_config.json`; of BERT
tokenizer.json or vocab.txt.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import floor, nextafter
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError
from edgevit.records.class_names import class_name
from edgevit.records.documents import Reader
from edgevit.records.model import PreprocessingFields, TimmPreprocessing
from edgevit.records.names import SPEC, TOKENIZER, WEIGHTS_ALONE, suffix_of
from edgevit.records.tokenizer import VOCABULARY, store_tokenizer, tokenizer_text
from edgevit.records.writing import file_sha256

# In order of preference; `.index.json` lists shards.
NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
READER = Reader(CheckpointError, hint="correct the file, or move it away and give the options")
_SHARD = re.compile(r"-\d+-of-\d+$")
CONFIG = "config.json"
IMAGE_PROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # of several processors, each by its kind
CONFIGS = (CONFIG, IMAGE_PROCESSOR, PROCESSOR)
PREPROCESSING_KEYS = ("input_size", "interpolation", "mean", "std", "crop_pct", "crop_mode")
_RESAMPLE = (
    "nearest",
    "lanczos",
    "bilinear",
    "bicubic",
    "box",
    "hamming",
)  # indices are Pillow's numbers, as used by transformers
_USUAL_RESCALE = 1 / 255
_SQUASHING = ("ViT", "DeiT", "Beit")  # image processors that use a single number for both sides
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of one
_PLACEHOLDER = re.compile(r"LABEL_\d+")  # transformers' default names of outputs
# A complete preprocessing, to check parts of another.
_EXAMPLE: PreprocessingFields = {
    "input_size": [3, 1, 1], "interpolation": "bicubic", "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0,
    "crop_mode": "center",
}  # fmt: skip

_Content = Mapping[str, Any]


@dataclass(frozen=True)
class ReleaseFacts:
    """The content of the files; empty without files."""

    labels: tuple[str, ...] = ()  # name of each output, in order; empty: not stated
    architecture: str | None = None  # timm's name of the network; None: not stated
    model_type: str | None = None  # transformers' name of the kind of network; None: not stated, or of several networks
    arguments: _Content = field(default_factory=dict)  # arguments for timm, such as num_heads
    # What the weights must have, too: timm's argument and its value, by the key that states it.
    sizes: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    preprocessing: _Content = field(default_factory=dict)  # parts of timm's data config, `input_size` among them
    # Name of the file that states it, for each part of the preprocessing.
    origin: Mapping[str, str] = field(default_factory=dict)
    processor: str = IMAGE_PROCESSOR  # name of the file with the image processor
    unequalled: tuple[str, ...] = ()  # parts of it that timm cannot express
    folder: Path = Path()

    @property
    def trained_size(self) -> tuple[int, int] | None:
        """Height and width of the images of the training, if config.json states them."""
        sizes = [value for argument, value in self.sizes.values() if argument == "img_size"]
        size = self.arguments.get("img_size", sizes[0] if sizes else None)
        if isinstance(size, (list, tuple)):
            return size[-2:][0], size[-1]
        return None if size is None else (size, size)


def read_release(folder: Path) -> ReleaseFacts:
    """Read the files in a folder of weights.

    Raises:
        CheckpointError: a file is damaged, or has invalid values.
    """
    names = [name for name in CONFIGS if (folder / name).is_file()]
    files = {name: READER.json(folder / name, dict[str, Any]) for name in names}
    whole, of_images, processor = files.get(CONFIG, {}), IMAGE_PROCESSOR, files.get(IMAGE_PROCESSOR, {})
    if isinstance(inner := files.get(PROCESSOR, {}).get("image_processor"), dict):
        of_images, processor = PROCESSOR, inner  # which transformers reads where both are there
    config = _of_tower(whole)
    preprocessing: PreprocessingFields = {}
    origin: dict[str, str] = {}
    of_processor = _processor_preprocessing(processor) if _is_image_processor(processor) else {}
    for name, parts in ((CONFIG, _timm_preprocessing(config)), (of_images, of_processor)):
        READER.checked({**_EXAMPLE, **parts}, TimmPreprocessing, f"{folder / name}: its preprocessing")
        for part, value in parts.items():
            if part not in preprocessing:
                preprocessing[part], origin[part] = value, name
    unequalled: tuple[str, ...] = ()
    if _is_image_processor(processor):
        unequalled = tuple(part for part in ("mean", "std", "crop_pct") if part not in preprocessing)
    architecture = config.get("architecture")
    if config.get("model_type") == "bert" and (text := tokenizer_text(folder)) is not None:
        preprocessing["tokenizer"] = store_tokenizer(text)
    return ReleaseFacts(
        labels=_labels(whole, folder / CONFIG),
        architecture=architecture if isinstance(architecture, str) else None,
        model_type=str(config["model_type"]) if "model_type" in config and _is_of_transformers(config) else None,
        arguments=_arguments(config, folder / CONFIG),
        sizes=_sizes(config),
        preprocessing=preprocessing,
        origin=origin,
        processor=of_images,
        unequalled=unequalled,
        folder=folder,
    )


# Settings of transformers' image towers that its config.json leaves out where they are the usual ones.
_TOWERS: Mapping[str, _Content] = {
    "clip_vision_model": {"num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip_vision_model": {"num_attention_heads": 12, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}


def _of_tower(config: _Content) -> _Content:
    """The part of transformers' config.json that describes the image tower of a CLIP or SigLIP; others as they are."""
    inner = config.get("vision_config")
    if isinstance(inner, dict) and config.get("model_type") in ("clip", "siglip"):
        config = {**inner, "model_type": f"{config['model_type']}_vision_model"}
    return {**_TOWERS.get(str(config.get("model_type")), {}), **config}


def _timm_preprocessing(config: _Content) -> _Content:
    """The parts of the preprocessing in timm's config.json."""
    inner = config.get("pretrained_cfg")
    if not isinstance(inner, dict):
        return {}
    parts = {key: inner[key] for key in PREPROCESSING_KEYS if inner.get(key) is not None}
    # As in timm's validation.
    return {**parts, "crop_pct": inner["test_crop_pct"]} if inner.get("test_crop_pct") is not None else parts


def _is_image_processor(content: _Content) -> bool:
    """Whether a processor of transformers is of images, not of text or audio."""
    return any(key in content for key in ("image_mean", "do_resize", "do_rescale", "crop_size"))


def _processor_preprocessing(config: _Content) -> _Content:
    """The parts of the preprocessing by transformers' image processor that timm can express."""
    parts = dict(_geometry(config))
    number = config.get("resample")
    if type(number) is int and 0 <= number < len(_RESAMPLE):
        parts["interpolation"] = _RESAMPLE[number]
    scale = config.get("rescale_factor", _USUAL_RESCALE) if config.get("do_rescale", True) else 1.0
    if isinstance(scale, float) and abs(scale / _USUAL_RESCALE - 1) < 1e-3:
        normalised = config.get("do_normalize", True)
        for part, key, neutral in (("mean", "image_mean", 0.0), ("std", "image_std", 1.0)):
            value = config.get(key) if normalised else neutral
            if value is not None:
                parts[part] = value if isinstance(value, list) else [value] * 3
    return parts


def _geometry(config: _Content) -> _Content:
    """Resizing and cropping, if timm can express them."""
    size, kind = (
        config.get("size"),
        str(config.get("image_processor_type") or config.get("feature_extractor_type") or ""),
    )
    if isinstance(size, int) and kind.startswith("CLIP"):
        size = {"shortest_edge": size}
    if not config.get("do_resize", True) or (isinstance(size, int) and not kind.startswith(_SQUASHING)):
        return {}
    short = size.get("shortest_edge") if isinstance(size, dict) else None
    resized = _sides(size if short is None else short)
    final = _sides(config.get("crop_size")) if config.get("do_center_crop", "crop_size" in config) else resized
    if resized is None or final is None:
        return {}
    share = final[0] / resized[0]
    if floor(final[0] / share) < resized[0]:  # as timm resizes by it: 224 / (224 / 400) is less than 400
        share = nextafter(share, 0)
    if not 0 < share <= 1 or [floor(side / share) for side in final] != list(resized):
        return {}
    return {"input_size": [3, *final], "crop_pct": share, "crop_mode": "squash" if short is None else "center"}


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width of a size that has both."""
    sides = (size.get("height"), size.get("width")) if isinstance(size, dict) else (size, size)
    height, width = (side if type(side) is int and side > 0 else None for side in sides)
    return None if height is None or width is None else (height, width)


def _labels(config: _Content, file: Path) -> tuple[str, ...]:
    """The names of the outputs in order: timm's `label_names`, or transformers' `id2label`.

    Raises:
        CheckpointError: an output has no name, or a name is not text.
    """
    inner = config.get("pretrained_cfg")
    timms = config.get("label_names") or (inner.get("label_names") if isinstance(inner, dict) else None)
    names = timms or config.get("id2label")
    if isinstance(names, dict):
        if {*names} != {str(index) for index in range(len(names))}:
            raise CheckpointError(f"{file} does not name the outputs 0 to {len(names) - 1}, one each; {READER.hint}")
        names = [names[str(index)] for index in range(len(names))]
    if not isinstance(names, list):
        return ()
    if not all(isinstance(name, str) and name for name in names):
        raise CheckpointError(f"{file} has names of outputs that are not text; {READER.hint}")
    return () if all(_PLACEHOLDER.fullmatch(name) for name in names) else tuple(map(class_name, names))


# transformers' names of activations, and timm's where it is not timm's default.
ACTIVATIONS = {"gelu": None, "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu",
               "relu": "relu", "silu": "silu", "swish": "silu"}  # fmt: skip


# timm's arguments for the sizes in transformers' config.json, of which each kind of network has some.
_SIZES = {
    "hidden_size": "embed_dim", "num_hidden_layers": "depth", "intermediate_size": "mlp_ratio",
    "image_size": "img_size", "num_channels": "in_chans", "max_position_embeddings": "max_positions",
    "type_vocab_size": "token_types",
    **{key: key for key in ("patch_size", "qkv_bias", "mlp_ratio", "embed_dim", "depths", "num_heads", "window_size",
                            "vocab_size")},
}  # fmt: skip


def _is_of_transformers(config: _Content) -> bool:
    """Whether config.json may describe one network of transformers, not timm's or several."""
    nested = any(isinstance(value, dict) and "model_type" in value for value in config.values())
    return not nested and not isinstance(config.get("architecture"), str)


def _sizes(config: _Content) -> Mapping[str, tuple[str, Any]]:
    if _is_of_transformers(config):
        # A Swin's hidden_size is that of its last stage; a gated FFN has other widths than its mlp_ratio says.
        unread = {"hidden_size"} if "depths" in config else {"mlp_ratio"} if config.get("use_swiglu_ffn") else set()
        stated = [(key, argument, config.get(key)) for key, argument in _SIZES.items() if key not in unread]
    elif "architecture" in config:
        parts = (config.get("model_args"), config.get("pretrained_cfg"))
        args, inner = (part if isinstance(part, dict) else {} for part in parts)
        stated = [("num_classes", "num_classes", config.get("num_classes"))]
        # `input_size` may be that of the network that this one was trained from, and `img_size` is its own.
        if "img_size" in args:
            stated.append(("model_args.img_size", "img_size", args["img_size"]))
        else:
            stated.append(("pretrained_cfg.input_size", "img_size", inner.get("input_size")))
        stated += [(f"model_args.{key}", key, args.get(key)) for key in ("depth", "embed_dim")]
    else:
        stated = []
    return {key: (argument, value) for key, argument, value in stated if _is_size(value)}


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, list) and {*map(type, value)} == {int})


def _arguments(config: _Content, file: Path) -> _Content:
    """timm's arguments of the network that do not follow from shapes, and those that timm wrote.

    Raises:
        CheckpointError: timm does not have the activation, or another setting.
    """
    arguments: dict[str, Any] = {}
    if isinstance(config.get("architecture"), str) and isinstance(pool := config.get("global_pool"), str):
        arguments["global_pool"] = pool
    if type(heads := config.get("num_attention_heads")) is int:
        arguments["num_heads"] = heads
        if (activation := str(config.get("hidden_act", "gelu"))) not in ACTIVATIONS:
            raise CheckpointError(f"{file} has {activation!r} as hidden_act, expected one of {', '.join(ACTIVATIONS)}")
        if ACTIVATIONS[activation] is not None:
            arguments["act_layer"] = ACTIVATIONS[activation]
    if config.get("model_type") == "bert":
        if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
            raise CheckpointError(f"{file} has {positions!r} as position_embedding_type, expected 'absolute'")
        if config.get("pad_token_id") is not None:
            arguments["pad_token"] = config["pad_token_id"]
    if "depths" in config:  # a Swin, which has no such arguments in timm
        for key, usual in (("hidden_act", "gelu"), ("layer_norm_eps", 1e-5)):
            if (value := config.get(key, usual)) != usual:
                raise CheckpointError(f"{file} has {value!r} as {key}, expected {usual!r}")
    elif (eps := config.get("layer_norm_eps")) is not None and _is_of_transformers(config):
        if type(eps) not in (int, float) or not 0 <= eps < 1:
            raise CheckpointError(f"{file} has {eps!r} as layer_norm_eps, expected a number from 0 to 1; {READER.hint}")
        arguments["norm_eps"] = eps
    by_timm = config.get("model_args")
    return arguments | (by_timm if isinstance(by_timm, dict) else {})


def weights_of(path: Path) -> Path:
    """The file of weights, or the index of its shards, at a path: the file itself, or a folder with one.

    Raises:
        CheckpointError: there is none, or several.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(f"no weights at {path}; check the path")
    if (path / SPEC).is_file():
        raise CheckpointError(f"{path} is a model folder; give it as the base, without --checkpoint")
    if first := next((path / name for name in NAMES if (path / name).is_file()), None):
        return first
    files = sorted(file for file in path.iterdir() if suffix_of(file) in WEIGHTS_ALONE and file.is_file())
    if len(files) != 1:
        names = f"has several: {', '.join(file.name for file in files[:4])}" if files else f"has no {NAMES[0]}"
        hint = "give the file of weights itself"
        if files and _SHARD.search(files[0].stem):
            hint = "these are shards: copy the .index.json that lists them, too"
        raise CheckpointError(f"the folder {path} {names}; {hint}")
    return files[0]


def refuse_lfs_pointer(file: Path) -> None:
    """Raise CheckpointError for a pointer file of Git LFS."""
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise CheckpointError(f"{file} is a Git LFS pointer, not a model; run `git lfs pull` in {file.parent}")


def shards_of(file: Path) -> dict[Path, list[str]]:
    """The files that an index lists in its folder, with the names of the weights in each.

    Raises:
        CheckpointError: the index is damaged, or lists a file in another folder.
    """
    listed = READER.json(file, dict[str, Any]).get("weight_map")
    shards: dict[Path, list[str]] = {}
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(
            f"{file} is not an index of weights: it has no weight_map; give the file of weights itself"
        )
    for name, shard in listed.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(
                f"{file} lists {shard!r}, which is not the name of a file in its folder; copy the folder again"
            )
        shards.setdefault(file.parent / shard, []).append(name)
    return shards


def is_release(path: Path) -> bool:
    """Whether a path is named like a file of weights, or is a folder with the files of a model hub."""
    if os.path.isdir(path):
        return not (path / SPEC).is_file() and any((path / name).is_file() for name in (CONFIG, *NAMES[1::2]))
    return os.path.isfile(path) and (suffix_of(path) in WEIGHTS_ALONE or path.name in NAMES)


def release_sha256(path: Path, sha256: Callable[[Path], str] = file_sha256) -> str:
    """Hash the weights at a path: the file, its shards, and the configuration files in its folder.

    Raises:
        CheckpointError: there is none, or an index is damaged.
        OSError: a file cannot be read.
    """
    file = weights_of(path)
    shards = sorted(shards_of(file)) if suffix_of(file) == ".json" else []
    beside = (file.parent / name for name in (*CONFIGS, TOKENIZER, VOCABULARY))
    configs = [file for file in beside if file.is_file()]
    hashes = [sha256(part) for part in (file, *shards, *configs)]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
