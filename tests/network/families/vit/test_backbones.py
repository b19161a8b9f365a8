"""ViTs of transformers inside other networks."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_models import slimmed, with_embedding
from torch import nn

from edgevit.errors import UnsupportedModelError
from edgevit.network.families.vit.backbones import adopted, is_backbone
from edgevit.network.folder import load, save
from edgevit.network.model import Model, derived_spec
from edgevit.network.opening import open_network

IMAGES = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(0))
DEPTH_ANYTHING = """
import torch
from torch import nn
from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

class Depth(nn.Module):
    def __init__(self):
        super().__init__()
        backbone = Dinov2Config(
            hidden_size=64, num_hidden_layers=4, num_attention_heads=2, image_size=84,
            out_features=["stage1", "stage2", "stage4"], reshape_hidden_states=False, apply_layernorm=True,
        )
        self.net = DepthAnythingForDepthEstimation(DepthAnythingConfig(
            backbone_config=backbone, reassemble_hidden_size=64, reassemble_factors=[4, 2, 1],
            neck_hidden_sizes=[8, 8, 16], fusion_hidden_size=8, head_hidden_size=4,
        ))

    def forward(self, images):
        return self.net(pixel_values=images).predicted_depth[:, None]

def build(size=56):
    torch.manual_seed(0)
    module = Depth().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.1, 0.1)
    backbone = module.net.backbone
    tokens = torch.zeros(1, (size // 14) ** 2 + 1, backbone.config.hidden_size)
    positions = backbone.embeddings.interpolate_pos_encoding(tokens, size, size).detach()
    backbone.embeddings.position_embeddings, backbone.config.image_size = nn.Parameter(positions), size
    return module
"""
SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
MAPS = {**SIZES, "out_features": ["stem", "stage2", "stage3"]}
# The class of transformers, and the settings of its configuration.
BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv2": ("Dinov2", {**MAPS, "layer_norm_eps": 1e-3}),
    "DINOv2, tokens": ("Dinov2", {**MAPS, "reshape_hidden_states": False, "apply_layernorm": False}),
    "registers": ("Dinov2WithRegisters", {**MAPS, "num_register_tokens": 4}),
    "registers, tokens": ("Dinov2WithRegisters", {**MAPS, "reshape_hidden_states": False}),
    "DINOv3": ("DINOv3ViT", {**MAPS, "num_register_tokens": 4, "apply_layernorm": False}),
    "DINOv3, no biases": ("DINOv3ViT", {**MAPS, "query_bias": False, "value_bias": False}),
    "DINOv3, tokens": ("DINOv3ViT", {**MAPS, "reshape_hidden_states": False}),
    "ViTPose": ("VitPoseBackbone", {**MAPS, "image_size": [64, 48], "patch_size": [16, 16]}),
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DINOv2": ("Dinov2", SIZES),
    "registers": ("Dinov2WithRegisters", {**SIZES, "num_register_tokens": 4}),
    "DINOv3": ("DINOv3ViT", {**SIZES, "num_register_tokens": 4, "intermediate_size": 96}),
    "ViT": ("ViT", {**SIZES, "intermediate_size": 96}),
    "CLIP": ("CLIPVision", {**SIZES, "intermediate_size": 96}),
    "CLIP, GELU": ("CLIPVision", {**SIZES, "hidden_act": "gelu", "layer_norm_eps": 1e-3}),
    "CLIPSeg": ("CLIPSegVision", SIZES),
    "OWL-ViT": ("OwlViTVision", SIZES),
    "OWLv2": ("Owlv2Vision", SIZES),
    "SigLIP": ("SiglipVision", {**SIZES, "intermediate_size": 96}),
    "SigLIP, not pooled": ("SiglipVision", {**SIZES, "vision_use_head": False}),
    "DPT": ("DPT", {**SIZES, "qkv_bias": False}),
}
SEGMENTING = """
import torch
from torch import nn
from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}

class Segmenting(nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone, nn.Conv2d(64, 5, 1)

    def forward(self, images):
        images = images.to(self.backbone.device, self.backbone.dtype)
        tokens = self.backbone(images).last_hidden_state[:, 1:]
        side = images.shape[-1] // self.backbone.config.patch_size
        return self.head(tokens.transpose(1, 2).reshape(images.shape[0], -1, side, side))

class Pooling(Segmenting):
    def forward(self, images):
        return self.head(self.backbone(images).pooler_output[:, :, None, None])

class Values(Segmenting):
    def forward(self, images):
        return super().forward(images).mean((2, 3))

class Masking(Segmenting):
    def forward(self, images):
        masked = torch.arange(16) < 8
        tokens = self.backbone(images, bool_masked_pos=masked.expand(len(images), -1)).last_hidden_state[:, 1:]
        return self.head(tokens.transpose(1, 2).reshape(images.shape[0], -1, 4, 4))

class Classifying(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = ViTModel(ViTConfig(**SIZES)), nn.Linear(64, 5)

    def forward(self, images):
        return self.head(self.backbone(images).last_hidden_state[:, 0])

def build(kind=Segmenting):
    torch.manual_seed(0)
    return kind(Dinov2Model(Dinov2Config(**SIZES))).eval()

def pooling():
    return Pooling(ViTModel(ViTConfig(**SIZES)))

def values():
    return build(Values)

def masking():
    module = build(Masking)
    nn.init.normal_(module.backbone.embeddings.mask_token)
    return module

def tied():
    module = build()
    layers = module.backbone.encoder.layer
    layers[1].mlp = layers[0].mlp
    return module

def halved():
    return build().half()
"""
TEXTS = {
    "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
# What reads the tokens or the pooled token of an image tower, most beside a text tower with blocks of the same classes.
TOWERS = f"""
import torch
import transformers
from torch import nn

IMAGES, TEXTS, IDS = {SIZES!r}, {TEXTS!r}, torch.tensor([[3, 2], [4, 2], [5, 2]])

class Features(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.vision, self.layer_norm = net.owlvit.vision_model, net.layer_norm

    def forward(self, images):
        tokens = self.vision.post_layernorm(self.vision(images).last_hidden_state)
        return self.layer_norm(tokens[:, 1:] * tokens[:, :1])

class Detector(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.backbone, self.class_head, self.box_head = Features(net), net.class_head, net.box_head
        self.register_buffer("queries", net.owlvit.get_text_features(IDS).pooler_output.detach())
        self.register_buffer("places", net.box_bias)

    def forward(self, images):
        tokens = self.backbone(images)
        logits, _ = self.class_head(tokens, self.queries.expand(tokens.shape[0], -1, -1), None)
        scores, labels = logits.sigmoid().max(-1)
        centre, size = (self.box_head(tokens) + self.places).sigmoid().split(2, -1)
        boxes = torch.cat([centre - size / 2, centre + size / 2], -1) * images.shape[-1]
        return [{{"boxes": b, "scores": s, "labels": l}} for b, s, l in zip(boxes, scores, labels)]

class Whole(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.register_buffer("texts", self.of_texts().pooler_output.detach())

    def of_texts(self):
        return self.net.get_text_features(IDS)

class Choosing(Whole):
    def forward(self, images):
        return (self.net.get_image_features(images).pooler_output @ self.texts.T)[:, :, None, None]

class Segmenting(Whole):
    def of_texts(self):
        return self.net.clip.get_text_features(IDS[:1])

    def forward(self, images):
        texts = self.texts.expand(images.shape[0], -1)
        states = self.net.clip.vision_model(images, output_hidden_states=True).hidden_states
        return self.net.decoder([states[i + 1] for i in self.net.extract_layers], texts).logits[:, None]

class Depth(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images):
        return self.net(pixel_values=images).predicted_depth[:, None]

def made(net, kind):
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    return kind(net.eval()).eval()

def towers(kind, **more):
    config = getattr(transformers, f"{{kind}}Config")
    return config(vision_config=IMAGES, text_config=TEXTS, projection_dim=64, **more)

def boxes():
    return made(transformers.OwlViTForObjectDetection(towers("OwlViT")), Detector)

def clip():
    return made(transformers.CLIPModel(towers("CLIP")), Choosing)

def siglip():
    return made(transformers.SiglipModel(towers("Siglip")), Choosing)

def segments():
    parts = {{"extract_layers": [0, 2], "reduce_dim": 16, "decoder_num_attention_heads": 2}}
    return made(transformers.CLIPSegForImageSegmentation(towers("CLIPSeg", **parts)), Segmenting)

def depth():
    sizes = {{"neck_hidden_sizes": [8, 8], "reassemble_factors": [2, 1], "fusion_hidden_size": 8}}
    config = transformers.DPTConfig(**IMAGES, **sizes, backbone_out_indices=[0, 2], head_in_index=-1)
    return made(transformers.DPTForDepthEstimation(config), Depth)
"""
# The function, the place of the image tower, and the blocks that are read.
TOWER_PLACES = {
    "boxes": ("detector.module.backbone.vision", (2,)),
    "clip": ("net.vision_model", (2,)),
    "siglip": ("net.vision_model", (2,)),
    "segments": ("net.clip.vision_model", (0, 2)),
    "depth": ("net.dpt", (0, 2)),
}
REFUSED = {
    "pooling": "let it read the tokens or maps that backbone returns",
    "masking": "has another output once its backbone is timm's network .*; call backbone with the images alone",
    "tied": r"has backbone\.encoder\.layer\.0\.mlp\.\S+ by a second name, backbone\.encoder\.layer\.1",
    "halved": r"is float16, expected float32: .* call float\(\) on the module",
    "values": r"return one map .* \(of 5 values, \[images, 5, 1, 1\]\)",
    "Classifying": "and not those of the ViTModel in it; give the folder that save_pretrained writes",
}


def of_transformers(kind: str, settings: dict[str, Any]) -> Any:
    import transformers

    prefix = kind.removesuffix("Backbone").removesuffix("Model")
    config = getattr(transformers, f"{prefix}{'Backbone' if prefix == 'VitPose' else ''}Config")
    torch.manual_seed(0)
    module = getattr(transformers, kind)(config(**settings)).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.05, 0.2)
    return module


@pytest.mark.parametrize(("kind", "settings"), BACKBONES.values(), ids=BACKBONES)
def test_a_backbone_puts_out_the_same_maps(kind: str, settings: dict[str, Any]) -> None:
    backbone = of_transformers(f"{kind.removesuffix('Backbone')}Backbone", settings)
    assert is_backbone(backbone)
    vit = adopted(backbone)
    images = torch.rand(2, 3, *vit.patch_embed.img_size)
    with torch.no_grad():
        expected, maps = backbone(images).feature_maps, vit(images).feature_maps
    assert len(maps) == 3
    for one, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("kind", "settings"), MODELS.values(), ids=MODELS)
def test_a_model_puts_out_the_same_tokens(kind: str, settings: dict[str, Any]) -> None:
    model = of_transformers(f"{kind}Model", settings)
    model = getattr(model, "vision_model", model)  # of an OWL-ViT
    assert is_backbone(model)
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        expected, found = (each(images, output_hidden_states=True) for each in (model, adopted(model)))
    torch.testing.assert_close(found.last_hidden_state, expected.last_hidden_state, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.hidden_states[:3], expected.hidden_states[:3], rtol=1e-5, atol=1e-4)
    if kind in ("ViT", "DPT"):  # whose pooled token is another layer's
        assert found.pooler_output is None
    else:
        torch.testing.assert_close(found.pooler_output, expected.pooler_output, rtol=1e-5, atol=1e-4)


def test_what_a_model_puts_out_is_as_its_configuration_or_the_call_says() -> None:
    model = of_transformers("CLIPVisionModel", {**SIZES, "output_hidden_states": True, "return_dict": False})
    images, vit = torch.rand(2, 3, 64, 64), adopted(model)
    with torch.no_grad():
        for options in ({}, {"return_dict": True}, {"output_hidden_states": False}):
            expected, found = (network(images, **options) for network in (model, vit))
            assert type(found) is type(expected) and len(found) == len(expected)
            torch.testing.assert_close(found[:], expected[:], rtol=1e-5, atol=1e-4)


def test_others_are_refused() -> None:
    for kind, change in (("Dinov2Model", {"use_swiglu_ffn": True}), ("DINOv3ViTModel", {"query_bias": False})):
        assert not is_backbone(of_transformers(kind, {**SIZES, **change}))
    assert not is_backbone(of_transformers("DPTModel", {**SIZES, "is_hybrid": True}))
    for kind in ("CLIP", "CLIPSeg", "OwlViT", "Siglip"):
        assert not any(map(is_backbone, of_transformers(f"{kind}TextModel", TEXTS).modules()))
    assert not is_backbone(nn.Linear(3, 3))
    changed = of_transformers("Dinov2Model", SIZES).train()
    changed.embeddings.register_forward_hook(lambda module, inputs, tokens: 2 * tokens)
    with pytest.raises(UnsupportedModelError, match="computes something else than the network of this name"):
        adopted(changed)
    assert changed.training
    adapted = of_transformers("Dinov2Model", SIZES)
    adapted.encoder.layer[0].attention.q_proj = nn.Sequential(adapted.encoder.layer[0].attention.q_proj)
    with pytest.raises(UnsupportedModelError, match=r"it lacks blocks\.0\.attn\.qkv\.bias.*; merge adapters"):
        adopted(adapted)
    broken = of_transformers("Dinov2Model", SIZES)
    nn.init.constant_(broken.layernorm.weight, torch.nan)
    with pytest.raises(UnsupportedModelError, match="this Dinov2Model puts out values that are not finite"):
        adopted(broken)


def test_a_head_on_the_tokens_of_a_model_is_cut_around_it(tmp_path: Path) -> None:
    (tmp_path / "segmenting.py").write_text(SEGMENTING)
    opened: Any = open_network(f"{tmp_path / 'segmenting.py'}:build")
    module = runpy.run_path(str(tmp_path / "segmenting.py"))["build"]()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(opened(images), module(images), rtol=1e-4, atol=1e-5)
    assert opened.family.read == (2,) and opened.geometry.fixed_embed is None
    # A function may build it in half precision, and its weights come from a file.
    save_file(module.state_dict(), tmp_path / "weights.safetensors")
    filled: Any = open_network(f"{tmp_path / 'segmenting.py'}:halved", checkpoint=tmp_path / "weights.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(filled(images), opened(images))


@pytest.mark.parametrize(("function", "message"), REFUSED.items(), ids=REFUSED)
def test_a_head_that_needs_more_of_a_model_is_refused(function: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "segmenting.py").write_text(SEGMENTING)
    with pytest.raises(UnsupportedModelError, match=message):
        open_network(f"{tmp_path / 'segmenting.py'}:{function}")


@pytest.mark.parametrize("function", TOWER_PLACES)
def test_an_image_tower_is_cut_in_its_network_and_read_from_its_folder(function: str, tmp_path: Path) -> None:
    (tmp_path / "towers.py").write_text(TOWERS)
    opened: Any = open_network(f"{tmp_path / 'towers.py'}:{function}")
    module = runpy.run_path(str(tmp_path / "towers.py"))[function]()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        found = opened.module.detect(images) if function == "boxes" else opened(images)
        torch.testing.assert_close(found, module(images), rtol=1e-4, atol=1e-4)
    assert (opened.family.path, opened.family.read) == TOWER_PLACES[function]
    slim = slimmed(opened, 16, 24)
    save(Model(slim, derived_spec(opened.spec, slim, "full", ())), tmp_path / "slim")
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "slim")(images), slim(images))


def test_depth_anything_is_cut_and_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "depth.py").write_text(DEPTH_ANYTHING)
    opened: Any = open_network(f"{tmp_path / 'depth.py'}:build")
    module = runpy.run_path(str(tmp_path / "depth.py"))["build"]()
    with torch.no_grad():
        torch.testing.assert_close(opened(IMAGES), module(IMAGES), rtol=1e-4, atol=1e-5)
    assert opened.family.read == (0, 1, 3) and opened.geometry.fixed_embed is None
    slim = with_embedding(opened, 32)
    save(Model(slim, derived_spec(opened.spec, slim, "full", ())), tmp_path / "slim")
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "slim")(IMAGES), slim(IMAGES))
