"""A method is found with a type for each of its parts."""

import pytest

from edgevit.derivation.method import Method, find_method
from edgevit.derivation.methods import method_names
from edgevit.derivation.options import describe
from edgevit.errors import UnknownNameError


def test_every_method_is_found_with_its_options():
    found = {name: find_method(name) for name in method_names()}
    assert all(type(method) is Method and method.name == name for name, method in found.items())
    assert {name for name in found if not describe(name).needs_images} == {"skd"}
    assert {name for name in found if describe(name).slices} == {"skd"}
    assert found["forge"].gentle and not found["vulcan"].gentle
    assert found["nuwa"].make_config({"ridge": "0.01"}).ridge == 0.01
    assert found["vulcan"].default_steps(found["vulcan"].make_config({}), 0.6, 1000, 64) == 3000


def test_a_method_that_is_not_there_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'vulcan'"):
        find_method("vulkan")
