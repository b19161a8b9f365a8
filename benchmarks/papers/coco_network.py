"""The papers' detectors on COCO: Mask R-CNN and Fast R-CNN's successor, Faster R-CNN, on a pyramid of Swin-T.

Images have one size here, 800 x 800. Labels are COCO's ids, as in torchvision's own detectors.
"""

from collections import OrderedDict

import timm
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

NAME = "swin_tiny_patch4_window7_224"
SIZE, WIDTH, CLASSES = 800, 256, 91


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


def _detector(kind: type[FasterRCNN]) -> FasterRCNN:
    anchors = AnchorGenerator(tuple((32 * 2**i,) for i in range(5)), ((0.5, 1.0, 2.0),) * 5)
    return kind(CocoPyramid(), CLASSES, rpn_anchor_generator=anchors, fixed_size=(SIZE, SIZE))


def mask_rcnn() -> FasterRCNN:
    return _detector(MaskRCNN)


def faster_rcnn() -> FasterRCNN:
    return _detector(FasterRCNN)
