"""Small detectors of the user's, written as their file, and annotated pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision.transforms.functional import to_tensor

from edgevit.network.detector import Pyramid
from edgevit.network.model import Model
from edgevit.network.opening import open_network

DETECTORS = """
from collections import OrderedDict

import timm
import torch
from torch import nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import FeaturePyramidNetwork

SIZE = 64
CLASSES = 4


class ViTPyramid(nn.Module):
    out_channels = 16

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = timm.create_model(
            "vit_tiny_patch16_224", img_size=SIZE, patch_size=16, depth=2, embed_dim=32, num_heads=2, num_classes=0
        )
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.same = nn.Conv2d(32, 16, 1)
        self.down = nn.Conv2d(32, 16, 2, 2)

    def forward(self, images):
        (x,) = self.body.forward_intermediates(images, indices=1, intermediates_only=True)
        return OrderedDict([("0", self.up(x)), ("1", self.same(x)), ("2", self.down(x))])


def swin(**options):
    torch.manual_seed(0)
    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=SIZE, patch_size=8, embed_dim=16, depths=(2, 1, 1),
        num_heads=(2, 2, 4), window_size=4, drop_path_rate=0, **options,
    )


class SwinPyramid(nn.Module):
    out_channels = 16

    def __init__(self):
        super().__init__()
        self.body = swin(num_classes=0)
        self.fpn = FeaturePyramidNetwork([16, 32, 64], 16)

    def forward(self, images):
        maps = self.body.forward_intermediates(images, intermediates_only=True)
        return self.fpn(OrderedDict((str(i), x) for i, x in enumerate(maps)))


class FeaturesPyramid(nn.Module):
    out_channels = 16

    def __init__(self, stages=(0, 1, 2), **options):
        super().__init__()
        self.body = swin(features_only=True, out_indices=stages, **options)
        self.fpn = FeaturePyramidNetwork(self.body.feature_info.channels(), 16)

    def forward(self, images):
        maps = self.body(images)
        named = maps.items() if isinstance(maps, dict) else zip("012", maps)
        last = self.body.output_fmt == "NHWC"
        return self.fpn(OrderedDict((name, x.permute(0, 3, 1, 2) if last else x) for name, x in named))


def detector(kind, backbone, levels=3, **options):
    for name, weights in backbone.named_parameters():
        if name.endswith(("attn.proj.weight", "mlp.fc2.weight")):  # else the first tokens alone decide
            nn.init.normal_(weights, std=0.3)
    sizes = {"fixed_size": (SIZE, SIZE), "size_divisible": 16, **options}
    anchors = AnchorGenerator(tuple((8 * 2**i,) for i in range(levels)), ((0.5, 1.0, 2.0),) * levels)
    if kind is RetinaNet:
        return RetinaNet(backbone, 4, anchor_generator=anchors, **sizes)
    small = {"rpn_post_nms_top_n_test": 20, "box_detections_per_img": 10, "box_score_thresh": 0.01}
    return kind(backbone, 4, rpn_anchor_generator=anchors, **small, **sizes)


def build():
    return detector(FasterRCNN, ViTPyramid())


def masks():
    return detector(MaskRCNN, SwinPyramid())


def getter():
    return detector(MaskRCNN, FeaturesPyramid(feature_cls="getter"))


def listed():
    return detector(MaskRCNN, FeaturesPyramid())


def named():
    return detector(MaskRCNN, FeaturesPyramid((0, 2), feature_cls="dict"), levels=2)


def hooked():
    return detector(MaskRCNN, FeaturesPyramid(feature_cls="hook"))


class Grid(nn.Module):
    def forward(self, images, features, targets=None):
        sides = [(side, x, y) for side in (16, 32) for y in range(0, SIZE, side) for x in range(0, SIZE, side)]
        corners = [[float(x), float(y), float(x + side), float(y + side)] for side, x, y in sides]
        return [images.tensors.new_tensor(corners) for _ in images.image_sizes], {}


def fast():
    whole = detector(FasterRCNN, ViTPyramid())
    return GeneralizedRCNN(whole.backbone, Grid(), whole.roi_heads, whole.transform)


def retina():
    return detector(RetinaNet, ViTPyramid())


def any_size():
    return detector(FasterRCNN, ViTPyramid(), fixed_size=None, min_size=64, max_size=128)


def masks_any_size():
    return detector(MaskRCNN, SwinPyramid(), fixed_size=None, min_size=64, max_size=128)


def other_size():
    return detector(FasterRCNN, ViTPyramid(), fixed_size=(96, 96))


def resnet():
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return detector(FasterRCNN, resnet_fpn_backbone(backbone_name="resnet18", weights=None), levels=5)


def renamed():
    made = build()
    made.features = made._modules.pop("backbone")
    return made


class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = ViTPyramid().body

    def forward(self, images):
        self.body(torch.stack([*images]))
        empty = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0), "scores": torch.zeros(0)}
        return [empty for _ in images]


class Queries(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(12, width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.box, self.label = nn.Linear(width, 4), nn.Linear(width, CLASSES)

    def forward(self, tokens):
        x, _ = self.attention(self.queries.expand(len(tokens), -1, -1), tokens, tokens)
        centre, size = self.box(4 * x).sigmoid().split(2, -1)
        return torch.cat([centre - size / 2, centre + size / 2], -1) * SIZE, self.label(x)

    def found(self, tokens):
        boxes, logits = self(tokens)
        scores, labels = logits.softmax(-1)[..., 1:].max(-1)
        return [dict(zip(("boxes", "labels", "scores"), each)) for each in zip(boxes, labels + 1, scores)]


class Detr(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = timm.create_model(
            "vit_tiny_patch16_224", img_size=SIZE, patch_size=16, depth=2, embed_dim=32, num_heads=2, num_classes=0,
            global_pool="", class_token=False,
        )
        for name, weights in self.body.named_parameters():
            if name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
                nn.init.normal_(weights, std=0.3)
        self.rest = Queries()

    def forward(self, images):
        return self.rest.found(self.body(images))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = FeaturesPyramid()
        self.backbone.fpn = nn.Identity()
        self.ends = nn.ModuleList(nn.Conv2d(width, 16, 1) for width in (16, 32, 64))

    def forward(self, images):
        maps = self.backbone(images).values()
        return torch.cat([end(x).flatten(2).transpose(1, 2) for end, x in zip(self.ends, maps)], 1)


class LearningDetr(nn.Module):
    # Takes a list of images, gives losses, too, and reads several maps.

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.rest = Encoder(), Queries(16)

    def forward(self, images, targets=None):
        if not isinstance(images, list):
            raise TypeError("expected a list of images")
        tokens = self.model(torch.stack(images))
        if targets is None:
            return self.rest.found(tokens)
        boxes, logits = self.rest(tokens)
        losses = {"loss_box": 0 * boxes.sum(), "loss_label": 0 * logits.sum()}
        for i, target in enumerate(targets):
            for j, (box, label) in enumerate(zip(target["boxes"][:12], target["labels"])):
                losses["loss_box"] += (boxes[i, j] - box).abs().mean() / SIZE
                losses["loss_label"] += nn.functional.cross_entropy(logits[i, j], label)
        return losses


class Tupled(Detr):
    # Its ViT is in a part of another name, which gives a tuple of a map and tokens.

    def __init__(self):
        super().__init__()
        self.eyes = Eyes(self._modules.pop("body"))

    def forward(self, images):
        maps, tokens = self.eyes(images)
        return self.rest.found(torch.cat([maps.flatten(2).transpose(1, 2), tokens], 1))


class Eyes(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, images):
        tokens = self.body(images)
        return tokens.transpose(1, 2).unflatten(2, (4, 4)), tokens


class Twice(Tupled):
    def forward(self, images):
        return self.rest.found(self.eyes.body.forward_features(images) + self.eyes(images)[1])


class Scaled(Detr):
    def forward(self, images):
        return self.rest.found(self.body(2 * images))


class Stages(Detr):
    def forward(self, images):
        return self.rest.found(self.body.forward_features(images))


class Relative(Detr):
    def forward(self, images):
        return [{**found, "boxes": found["boxes"] / SIZE} for found in super().forward(images)]
"""


def write_detectors(folder: Path) -> Path:
    """Write a file with functions that make detectors of three classes for pictures of 64 px."""
    file = folder / "my_detector.py"
    file.write_text(DETECTORS)
    return file


def made(file: Path, function: str) -> Any:
    """The detector of a function or a class in the file, with its weights at random."""
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    return names[function]().eval()


def opened(file: Path, function: str, **options: Any) -> Any:
    """The same, opened as a user's: up to its pyramid."""
    network = open_network(f"{file}:{function}", **options)
    assert isinstance(network, Model) and isinstance(network.module, Pyramid)
    return network


def square(image: int, category: int, left: int, top: int, side: int, **more: Any) -> dict[str, Any]:
    """An annotation of a square."""
    right, bottom = left + side, top + side
    corners = [left, top, right, top, right, bottom, left, bottom]
    entry = {"image_id": image, "category_id": category, "bbox": [left, top, side, side], "segmentation": [corners]}
    return {**entry, "iscrowd": 0, **more}


def write_annotations(
    root: Path, annotations: list[dict[str, Any]], *, images: int, names: Sequence[str] = ("red", "green", "blue")
) -> Path:
    """Write black pictures of 80 x 60 px, whose annotations these are, and `instances.json`."""
    (root / "images").mkdir(parents=True)
    for i in range(images):
        Image.new("RGB", (80, 60)).save(root / "images" / f"{i:03}.png")
    content = {
        "images": [{"id": i, "file_name": f"{i:03}.png", "width": 80, "height": 60} for i in range(images)],
        "annotations": [{**entry, "id": i} for i, entry in enumerate(annotations, 1)],
        "categories": [{"id": i, "name": name} for i, name in enumerate(names, 1)],
    }
    (root / "instances.json").write_text(json.dumps(content))
    return root


def annotate_by(detector: Any, root: Path) -> None:
    """Replace the annotations of pictures of `benchmarks.scenes` by what a detector of three classes finds in them."""
    for file in (root / "annotations").iterdir():
        content = json.loads(file.read_text())
        content["categories"], content["annotations"] = content["categories"][:3], []
        for image in content["images"]:
            path = root / "images" / file.stem.removeprefix("instances_") / image["file_name"]
            with Image.open(path) as picture, torch.inference_mode():
                (found,) = detector.eval()([to_tensor(picture)])
            for (left, top, right, bottom), label in zip(
                found["boxes"].tolist(), found["labels"].tolist(), strict=True
            ):
                entry = {"image_id": image["id"], "category_id": label, "bbox": [left, top, right - left, bottom - top]}
                content["annotations"].append({**entry, "id": len(content["annotations"]) + 1, "iscrowd": 0})
        file.write_text(json.dumps(content))
