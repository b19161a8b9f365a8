"""The papers' detectors on COCO, on a pyramid of Swin-T: Mask R-CNN, Fast R-CNN, and its successor, Faster R-CNN.

Images have one size here, 800 x 800. Labels are COCO's ids, as in torchvision's own detectors. A Fast R-CNN reads
proposals that something else made, such as the files that mmdetection takes; a detector here gets images alone. So
`fast_rcnn` has one `Grid` of boxes for all images: backbone, heads and losses are a Fast R-CNN's, but small objects
between the boxes are missed. Its average precision is to be compared with its own base's, not with the papers'.
"""

import math
from collections import OrderedDict
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

NAME = "swin_tiny_patch4_window7_224"
SIZE, WIDTH, CLASSES = 800, 256, 91
SIDES = tuple(round(64 * 2 ** (i / 2)) for i in range(8))  # of the boxes of a Fast R-CNN, to 724 px


class CocoPyramid(nn.Module):
    """Stages of 4 to 32 px, joined by a feature pyramid network, and one more of 64 px."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model(NAME, img_size=SIZE, num_classes=0)
        self.fpn = FeaturePyramidNetwork([96, 192, 384, 768], WIDTH, extra_blocks=LastLevelMaxPool())

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.body.forward_intermediates(images, intermediates_only=True)
        levels: OrderedDict[str, Tensor] = self.fpn(OrderedDict((str(i), x) for i, x in enumerate(maps)))
        return levels


class Grid(nn.Module):
    """The same proposals [N, 4] for every image: squares at steps of half their side, and boxes of the same area that
    are twice as wide as high, or as high as wide.

    Of objects of 64 px and more 95 % overlap one of the 3,414 by half, of those of 32 to 64 px a third.
    """

    def forward(self, images: Any, features: Any, targets: Any = None) -> tuple[list[Tensor], dict[str, Tensor]]:
        boxes = []
        for side in SIDES:
            centres = torch.arange(1, math.ceil(2 * SIZE / side)) * side / 2
            x, y = torch.meshgrid(centres, centres, indexing="xy")
            for ratio in (0.5, 1.0, 2.0):
                width, height = side * ratio**0.5, side / ratio**0.5
                boxes.append(torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], -1))
        proposals = torch.cat([of.reshape(-1, 4) for of in boxes]).clamp(0, SIZE).to(images.tensors)
        return [proposals for _ in images.image_sizes], {}


def _detector(kind: type[FasterRCNN]) -> FasterRCNN:
    anchors = AnchorGenerator(tuple((32 * 2**i,) for i in range(5)), ((0.5, 1.0, 2.0),) * 5)
    return kind(CocoPyramid(), CLASSES, rpn_anchor_generator=anchors, fixed_size=(SIZE, SIZE))


def mask_rcnn() -> FasterRCNN:
    return _detector(MaskRCNN)


def faster_rcnn() -> FasterRCNN:
    return _detector(FasterRCNN)


def fast_rcnn() -> GeneralizedRCNN:
    faster = faster_rcnn()
    return GeneralizedRCNN(faster.backbone, Grid(), faster.roi_heads, faster.transform)
