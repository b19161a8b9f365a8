from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import ARGS, random_base, write_headless

from edgevit.engines.run import export
from edgevit.network.folder import save
from edgevit.network.model import Model, derived_spec, describe
from edgevit.records.model import Rejection, TargetClass


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of ten outputs of which 3, 5 and 8 are target classes, with a rule for `other`; not to be changed.

    Its deviations differ between channels, its images are not scaled, and its answers differ between images.
    """
    args = {"depth": 1, "global_pool": "avg"}
    network = random_base(**args)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.mul_(30 if "patch_embed" in name else 0 if name == "head.bias" else 1)
    base = describe(network, "vit_tiny_patch16_224", {**ARGS, **args})
    spec = derived_spec(base.spec, network, "full", [TargetClass(str(i), i) for i in (3, 5, 8)])
    preprocessing = {
        **spec.preprocessing, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 1.0,
    }  # fmt: skip
    spec = replace(spec, preprocessing=preprocessing, rejection=Rejection("logsumexp", 7.0, 0.05))
    folder = tmp_path_factory.mktemp("serving") / "m"
    save(Model(network, spec), folder)
    export(folder, accuracy=False)
    return folder


@pytest.fixture(scope="session")
def headless_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving") / "backbone"
    write_headless(folder)
    export(folder, accuracy=False, fp16=False)
    return folder
