import inspect

import pytest

import edgevit.errors as errors


def test_the_tree_in_the_docstring_is_the_tree_in_the_code():
    def drawn(kind, depth=0):
        lines = ["  " * depth + kind.__name__]
        for child in kind.__subclasses__():
            if child.__module__ == errors.__name__:
                lines += drawn(child, depth + 1)
        return lines

    told = [line for line in (errors.__doc__ or "").splitlines() if "Error" in line.split(" ")[0] or line[:2] == "  "]
    names = ["  " * ((len(line) - len(line.lstrip())) // 2) + line.split()[0] for line in told]
    assert names == drawn(errors.EdgeVitError)


def test_every_class_of_errors_says_what_it_is():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert len(kinds) > 10 and all(kind.__doc__ and kind.__doc__.rstrip().endswith(".") for kind in kinds)


@pytest.mark.parametrize(
    ("name", "first"),
    [("vit_tinny", "vit_tiny_patch16_224"), ("deit_bas", "deit_base_patch16_224"), ("gcvit_tini", "gcvit_tiny")],
)
def test_a_name_that_is_the_beginning_of_a_longer_one_is_found(name, first):
    known = ["deit_base_distilled_patch16_224", "deit_base_patch16_224", "gcvit_tiny", "vit_tiny_patch16_224"]
    assert f"did you mean {first!r}" in str(errors.UnknownNameError("timm model", name, known))


def test_a_name_like_no_other_is_answered_with_those_that_there_are():
    assert str(errors.UnknownNameError("method", "xyz", ["forge", "nuwa"])) == "no method 'xyz'; known: forge, nuwa"


def test_a_name_of_any_length_is_answered_at_once_and_in_short():
    message = str(errors.UnknownNameError("class", "x" * 10**7, ["cat", "y" * 10**6], owner="z" * 10**6))
    assert len(message) < 700 and "no class 'xxxx" in message and "cat" in message
