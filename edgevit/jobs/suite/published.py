"""Published figures of these networks on Orin boards, with the conditions that each source states."""

from __future__ import annotations

from edgevit.jobs.suite.record import Published

_VULCAN = "Vulcan (ICLR 2026), Table 2"
_VULCAN_ON = (
    "Orin NX, batch 1; neither precision, runtime nor power mode named; the dense figure suggests PyTorch, fp32"
)
_HEART = "HEART-ViT, Table 4"
_HEART_FEW = "HEART-ViT, Table 5"
_HEART_ON = "AGX Orin (its Table 7 lists two, of 1792 and 2048 cores); neither batch, precision, runtime nor mode named"
_LAB = "NVIDIA Jetson AI Lab, benchmarks"
_LAB_ON = "neither batch, precision nor power mode named"

# By the name of a profile, or a prefix of several names.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "orin-nx": (
        Published("base", 45.45, _VULCAN, _VULCAN_ON),
        Published("base 0.6 paper", 21.81, _VULCAN, f"{_VULCAN_ON}; 6.77 G MACs, mean of nine tasks"),
        Published("base 0.8 paper", 15.06, _VULCAN, f"{_VULCAN_ON}; 3.26 G MACs, mean of nine tasks"),
    ),
    "agx-orin": (
        Published("base", 23.50, _HEART, f"ViT-B/16 on an {_HEART_ON}"),
        Published("base", 23.78, _HEART, f"DeiT-B/16 on an {_HEART_ON}"),
        Published("base", 23.43, _HEART_FEW, f"ViT-B/16 of 100 classes on an {_HEART_ON}"),
        Published("base", 23.05, _HEART_FEW, f"DeiT-B/16 of 100 classes on an {_HEART_ON}"),
    ),
    "orin-nano-8gb": (
        Published(
            "base",
            5.68,
            "onnxsim, issues 1742 and 1727",
            "ViT-B/16 fp16, batch 1, MAXN_SUPER, JetPack 6, TensorRT 10.3",
        ),
        Published("base", 1000 / 98, _LAB, f"vit-base-patch16-224, 98 images/s, Orin Nano before Super; {_LAB_ON}"),
        Published("base", 1000 / 158, _LAB, f"vit-base-patch16-224, 158 images/s, Orin Nano Super; {_LAB_ON}"),
    ),
}


def published_for(profile: str | None) -> tuple[Published, ...]:
    """The published figures for boards with this profile."""
    if profile is None:
        return ()
    return tuple(figure for name, figures in PUBLISHED.items() if profile.startswith(name) for figure in figures)
