"""What a timm class has under which name, only its family knows: no other file of the package names it.

A name that edgevit's own classes or functions have, too, is looked for where it is asked of a network.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from itertools import chain

import timm
import torch
from family_examples import EXAMPLES
from places import ROOT, nodes_of
from small_models import ARGS
from torch import nn

from edgevit.network.copies import without_values
from edgevit.network.network import Network

# Arguments of timm.create_model, which a person may give, too (--model-arg), and model.json repeats: no attributes.
ARGUMENT = "an argument of timm.create_model"
ELSEWHERE = {
    **{
        ("network/agreement.py", name): ARGUMENT
        for name in ("embed_dim", "img_size", "init_values", "num_classes", "num_heads", "patch_size")
    },
    ("network/folder.py", "embed_dim"): ARGUMENT,
    ("network/opening.py", "img_size"): ARGUMENT,
    ("network/network.py", "embed_dim"): ARGUMENT,
    ("network/model.py", "num_classes"): ARGUMENT,
    ("network/opening.py", "num_classes"): ARGUMENT,
    ("records/model.py", "embed_dim"): ARGUMENT,
    ("records/model.py", "num_classes"): ARGUMENT,
    ("derivation/session/base.py", "num_classes"): ARGUMENT,
    ("network/request.py", "num_classes"): ARGUMENT,
    ("jobs/suite/suite.py", "embed_dim"): ARGUMENT,
    ("jobs/suite/suite.py", "num_heads"): ARGUMENT,
    ("train/detections.py", "num_classes"): "an attribute of torchvision's RetinaNet",
    ("train/mixing.py", "num_classes"): "an argument of timm's Mixup",
    ("exporting/imported/structure.py", "patch_embed"): "a name of nodes of an imported ONNX file",
    ("exporting/imported/structure.py", "attn"): "likewise",
    ("exporting/imported/structure.py", "mlp"): "likewise",
    ("network/opening.py", "no_embed_class"): ARGUMENT,
    **{
        ("records/release.py", name): ARGUMENT
        for name in ("embed_dim", "global_pool", "img_size", "in_chans", "num_classes", "num_heads", "patch_size")
    },
    ("records/release.py", "pretrained_cfg"): "what a publisher's config.json says beside the weights",
    ("network/from_module.py", "num_classes"): ARGUMENT,
    ("network/from_module.py", "num_heads"): ARGUMENT,
    ("network/from_module.py", "default_cfg"): "what each network of timm says of itself",
    ("network/from_module.py", "pretrained_cfg"): "what a publisher's config.json says beside the weights",
    ("network/families/__init__.py", "default_cfg"): "what each network of timm says of itself",
    ("network/chains.py", "num_features"): "an attribute of torch's BatchNorm",
    ("network/network.py", "attn_mask"): "an argument of each `BlockLayers.module`",
}
OWN = {name for name in vars(Network) if not name.startswith("_")}  # what a network is asked for
NETWORKS = {"model", "network", "net", "teacher", "student", "dense", "slim", "copied"}


def names_of_timm() -> set[str]:
    """The attributes of timm's models and of their modules, and what their forward passes are given, but x."""
    layers = (nn.Linear(1, 1), nn.LayerNorm(1), nn.Conv2d(1, 1, 1), nn.Dropout(), torch.zeros(1))
    torchs = {"self", "x", *(name for one in layers for name in dir(one))}
    found = set()
    for name, args in EXAMPLES["vit"]:
        with without_values():
            model = timm.create_model(name, **{**ARGS, **args, "depth": 1})
        for module in model.modules():
            if type(module).__module__.startswith("timm."):
                found |= {*dir(module), *inspect.signature(type(module).forward).parameters}
    return {name for name in found - torchs if not name.startswith("__")}


def last(node: ast.expr) -> str:
    """`network` of network and of self.network."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def names_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Every name that code asks an object for, with the object's; and keywords and names in strings, without."""
    docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr, last(node.value)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            parts = [part for part in node.value.split(".") if part]
            yield from ((part, "") for part in parts if all(map(str.isidentifier, parts)))


def own_names(files: Iterable[Iterable[ast.AST]]) -> set[str]:
    """What edgevit's own classes have."""
    found = set()
    for node in chain.from_iterable(files):
        if isinstance(node, ast.ClassDef):
            found |= {last(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
            found |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and last(node.value) == "self":
            found.add(node.attr)
    return found


def test_no_file_but_a_family_knows_an_attribute_of_a_timm_class() -> None:
    package, timms = ROOT / "edgevit", names_of_timm()
    assert {"qkv", "blocks", "cls_token", "fc1", "attn_mask", "num_features", "head", "gamma"} <= timms
    nodes = {
        file.relative_to(package).as_posix(): nodes_of(file)
        for file in sorted(package.rglob("*.py"))
        if "families" not in file.relative_to(package).parts[:-1] or file.parent.name == "families"
    }
    del nodes["network/arguments.py"]  # which lists what timm may be given
    own = own_names(nodes.values())
    assert "blocks" in own and not own & {"qkv", "cls_token", "fc1", "num_features"}
    known = {
        (file, name)
        for file, of_file in nodes.items()
        for name, of in names_in(of_file)
        if name in timms and (name not in own or (of in NETWORKS and name not in OWN))
    }
    assert known == set(ELSEWHERE)
