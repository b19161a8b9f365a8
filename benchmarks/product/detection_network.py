"""Small detectors for pictures of 96 px with six kinds of shapes: Faster R-CNN on a pyramid of a ViT or of a Swin.

`masks` is a Mask R-CNN on the latter.

`edgevit derive detection_network.py:vit --checkpoint ... --output boxes` reads this file.
"""

from collections import OrderedDict

import timm
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, MultiScaleRoIAlign

SIZE, WIDTH, CLASSES = 96, 64, 6


class ViTPyramid(nn.Module):
    """Patches of 8 px to levels of 4, 8 and 16 px: the simple pyramid of ViTDet (Li et al., 2022)."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model(
            "vit_tiny_patch16_224", img_size=SIZE, patch_size=8, embed_dim=128, depth=6, num_heads=4, num_classes=0
        )
        self.up, self.down = nn.ConvTranspose2d(128, 128, 2, 2), nn.MaxPool2d(2)
        self.reduce = nn.ModuleList(nn.Conv2d(128, WIDTH, 1) for _ in range(3))
        self.smooth = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        (x,) = self.body.forward_intermediates(images, indices=1, intermediates_only=True)
        levels = (self.up(x), x, self.down(x))
        convolutions = zip(levels, self.reduce, self.smooth, strict=True)
        return OrderedDict((str(i), smooth(reduce(x))) for i, (x, reduce, smooth) in enumerate(convolutions))


class SwinPyramid(nn.Module):
    """Stages of 4, 8 and 16 px, joined by a feature pyramid network."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.body = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=SIZE, embed_dim=48, depths=(2, 2, 4), num_heads=(2, 4, 8),
            window_size=6, num_classes=0, drop_path_rate=0.0,
        )  # fmt: skip
        self.fpn = FeaturePyramidNetwork([48, 96, 192], WIDTH)

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        maps = self.body.forward_intermediates(images, intermediates_only=True)
        levels: OrderedDict[str, Tensor] = self.fpn(OrderedDict((str(i), x) for i, x in enumerate(maps)))
        return levels


def _pool(size: int) -> MultiScaleRoIAlign:
    return MultiScaleRoIAlign(featmap_names=["0", "1", "2"], output_size=size, sampling_ratio=2)


def _detector(backbone: nn.Module, kind: type[FasterRCNN] = FasterRCNN, **parts: nn.Module) -> FasterRCNN:
    return kind(
        backbone,
        num_classes=None,
        fixed_size=(SIZE, SIZE),
        size_divisible=16,
        rpn_anchor_generator=AnchorGenerator(((12,), (22,), (36,)), ((0.7, 1.0, 1.4),) * 3),
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=100,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=60,
        rpn_batch_size_per_image=64,
        box_roi_pool=_pool(5),
        box_head=TwoMLPHead(WIDTH * 25, 192),
        box_predictor=FastRCNNPredictor(192, CLASSES + 1),
        box_batch_size_per_image=32,
        box_detections_per_img=20,
        **parts,
    )


def vit() -> FasterRCNN:
    return _detector(ViTPyramid())


def swin() -> FasterRCNN:
    return _detector(SwinPyramid())


def masks() -> FasterRCNN:
    heads, predictor = MaskRCNNHeads(WIDTH, (WIDTH,), 1), MaskRCNNPredictor(WIDTH, WIDTH // 2, CLASSES + 1)
    return _detector(SwinPyramid(), MaskRCNN, mask_roi_pool=_pool(8), mask_head=heads, mask_predictor=predictor)
