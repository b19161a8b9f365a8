import inspect

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
