import subprocess
import sys

import pytest

HEAVY = ["torch", "timm", "numpy", "onnx", "onnxruntime", "tensorrt", "pycuda", "jtop"]


@pytest.mark.parametrize(
    "module",
    [
        "edgevit.errors",
        "edgevit.agent.__main__",
        "edgevit.agent.runners.onnxruntime",
        "edgevit.board.bench",
        "edgevit.board.doctor",
        "edgevit.reporting.run",
        "edgevit.board.comparison",
        "edgevit.cli.bench",
        "edgevit.cli.board",
        "edgevit.cli.compare",
        "edgevit.cli.profiles",
        "edgevit.cli.report",
    ],
)
def test_importing_it_in_a_clean_interpreter_loads_nothing_heavy(module):
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_agent_imports_nothing_else_of_edgevit():
    code = "import sys, edgevit.agent.__main__; print(*[m for m in sys.modules if m.startswith('edgevit.')])"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert all(module.startswith("edgevit.agent") for module in loaded)


@pytest.mark.slow
def test_nothing_is_collected_while_much_is_imported_and_it_is_let_go_at_the_end():
    code = (
        "import gc\nfrom edgevit.imports import importing\n"
        "def collections(): return sum(one['collections'] for one in gc.get_stats())\n"
        "before = collections()\n"
        "with importing():\n    import edgevit.derivation.session.derive\n"
        "frozen = gc.get_freeze_count()\n"
        "print(collections() - before, frozen > 10_000, gc.isenabled())\n"
        "with importing():\n    kept = [[] for _ in range(99_999)]\n    import this\n"
        "print(gc.get_freeze_count() == frozen)"
    )
    ended = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    told = ended.stdout.splitlines()
    assert told[0] == "0 True True" and told[-1] == "True"
    assert not ended.stderr  # of what ends with the program, nothing is told as lost
