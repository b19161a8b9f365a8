"""What is asked of a library in a process of its own; tests/agent/test_examine.py has those that misbehave."""

import json
import subprocess
import sys

from edgevit.agent.control import own_command
from edgevit.agent.libraries import LIBRARIES


def test_what_a_library_prints_is_not_taken_for_its_answer(tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text(
        "print('welcome')\n__version__ = '1.2.3'\ndef get_available_providers(): return ['CPUExecutionProvider']\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asked = subprocess.run(own_command(LIBRARIES["onnxruntime"]), capture_output=True, text=True, check=True)
    answer = json.loads(asked.stdout)
    assert answer["found"] == {"version": "1.2.3", "providers": ["CPUExecutionProvider"]}
    assert isinstance(answer["packages"], dict) and "welcome" in asked.stderr


def test_a_process_that_asks_one_reads_little_of_the_agent():
    code = (
        "import sys; from edgevit.agent.libraries import LIBRARIES; LIBRARIES['cuda'](); "
        "print(*sys.modules, file=sys.stderr)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(asked.stdout)) >= {"device", "capability", "error"}
    loaded = asked.stderr.split()
    assert "edgevit.agent.cuda" in loaded and not {"edgevit.agent.control", "edgevit.agent.jetson"} & set(loaded)
