"""timm's Swin as `features_only=True` makes it: the stages are children of a list, and their maps its outputs."""

from __future__ import annotations

from typing import Any

from timm.layers import ClassifierHead
from timm.models import FeatureDictNet, FeatureHookNet, FeatureListNet
from timm.models.swin_transformer import SwinTransformer, SwinTransformerStage
from timm.models.swin_transformer_v2 import SwinTransformerV2Stage
from torch import Tensor, nn

from edgevit.network.families.swin.modules import TokenSwin


class ListedSwin(TokenSwin):
    """A Swin without norm and head: images [B, 3, H, W] to the maps [B, rows, columns, d] of some stages."""

    return_layers: dict[str, str]  # timm's: the name of the map of a stage, by its name in timm's list
    names_maps: bool  # whether it gives a dictionary instead of a list

    def forward(self, x: Tensor) -> Any:
        tokens, maps = self.patch_embed(x), dict[str, Tensor]()
        for number, stage in enumerate(self.layers):
            tokens = stage(tokens)
            if (name := self.return_layers.get(f"layers_{number}")) is not None:
                maps[name] = tokens.unflatten(1, stage.windows.grid)
        return maps if self.names_maps else [*maps.values()]


def is_listed(module: nn.Module) -> bool:
    """Whether it has the stages of a Swin as its children."""
    first = getattr(module, "layers_0", None)
    is_of_features = isinstance(module, (FeatureDictNet, FeatureHookNet))
    return is_of_features and isinstance(first, (SwinTransformerStage, SwinTransformerV2Stage))


def swin_of_list(listed: Any) -> Any:
    """timm's Swin of these stages, without norm and head."""
    stages = nn.Sequential(*(stage for name, stage in listed.named_children() if name.startswith("layers_")))
    width = listed.feature_info.info[len(stages) - 1]["num_chs"]
    swin: Any = SwinTransformer.__new__(SwinTransformer)
    swin.__dict__.update(
        listed.__dict__,
        num_classes=0, num_features=width, head_hidden_size=width, embed_dim=listed.patch_embed.proj.out_channels,
        names_maps=not isinstance(listed, FeatureListNet),
        _ref_window_sizes=[(1, 1)] * len(stages),  # which only a stage without blocks needs
        _modules={
            "patch_embed": listed.patch_embed, "layers": stages, "norm": nn.Identity(),
            "head": ClassifierHead(width, 0, pool_type="", input_fmt="NHWC"),
        },
    )  # fmt: skip
    return swin
