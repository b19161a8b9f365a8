"""A family is found by its name and by its model."""

import ast
import inspect

import pytest
import timm

from edgevit.errors import UnknownNameError, UnsupportedModelError
from edgevit.network import families
from edgevit.network.families import family_like, family_names, load_family, name_of, plain_creation


def test_a_family_knows_its_own_name(small_vit):
    assert [name_of(load_family(name)) for name in family_names()] == family_names()
    assert name_of(small_vit().family) == name_of(family_like(small_vit().module)) == "vit"


def test_a_model_of_no_family_says_which_there_are():
    with pytest.raises(UnsupportedModelError, match="cannot prune a ResNet: supported families are bert, swin, vit"):
        family_like(timm.create_model("resnet10t", num_classes=2))


def test_unknown_families_are_named() -> None:
    with pytest.raises(UnknownNameError, match="no model family 'vitt'; did you mean 'vit'"):
        load_family("vitt")


def test_timms_network_is_created_in_one_line_unless_its_norms_are_set() -> None:
    module = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)
    assert plain_creation(module).count("\n") == 1
    module.norm_eps = 1e-12
    assert "norm.eps = eps" in plain_creation(module)


def test_mypy_holds_every_family_against_the_protocol() -> None:
    """`_VIT: Family = vit`, under TYPE_CHECKING, is what lets mypy look at a module; of each family there is one."""
    held = {
        node.value.id
        for block in ast.parse(inspect.getsource(families)).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Name)
        and ast.unparse(node.annotation) == "Family"
    }
    assert held == set(family_names())
