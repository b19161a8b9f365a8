"""Lines are appended to a file of runs whole and once, and to no other file."""

import json
import resource
import signal
from contextlib import nullcontext

import pytest
from some_layers import PROFILE
from some_runs import DENSE

from edgevit.board.layers import line_of
from edgevit.board.run_file import LAYER_LINES, RUN_LINES, append_to
from edgevit.errors import OutputError


def test_a_line_that_does_not_fit_leaves_no_half_and_one_that_is_there_is_not_written_twice(tmp_path):
    path = tmp_path / "runs.jsonl"
    one, two = (json.dumps({"batch": batch, "latencies_ns": [1]}) + "\n" for batch in (1, 2))
    append_to(path)(one)
    before, handled = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(one) + 2, before[1]))
        with pytest.raises(OutputError, match=r"cannot write runs to .*: No space left on device; choose another"):
            append_to(path)(two)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)
    assert path.read_text() == one
    write = append_to(path)
    write(one)
    write(two)
    assert path.read_text() == one + two
    odd = json.dumps({"label": "a\u2028b\u0085c", "latencies_ns": [1]}, ensure_ascii=False) + "\n"
    append_to(path)(odd)
    append_to(path)(odd)
    assert path.read_text() == one + two + odd, "a line ends at a newline alone"


RUN = DENSE.to_json() + "\n"


@pytest.mark.parametrize(
    ("lines", "text", "taken"),
    [
        (RUN_LINES, RUN, True),
        (RUN_LINES, RUN[:40], True),  # cut off
        (RUN_LINES, "cut off\n" + RUN, True),
        (RUN_LINES, json.dumps({"schema": 1, "batch": 1, "latencies_ns": [1]}), True),
        (RUN_LINES, json.dumps({"schema": 99, "latencies_ns": [1]}), True),
        (RUN_LINES, "\ufeff" + RUN, True),
        (RUN_LINES, "", True),
        (RUN_LINES, "\n", True),
        (RUN_LINES, '{"batch": 1, "loss": 0.5}\n', False),  # what somebody's training said of itself
        (RUN_LINES, line_of(PROFILE), False),
        (RUN_LINES, "\0\1", False),
        (LAYER_LINES, line_of(PROFILE), True),
        (LAYER_LINES, line_of(PROFILE)[:40], True),
        (LAYER_LINES, RUN, False),
    ],
)
def test_a_file_is_known_by_any_of_its_lines(tmp_path, lines, text, taken):
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with nullcontext() if taken else pytest.raises(OutputError, match="choose another --output"):
        append_to(path, lines)
    assert path.read_text() == text
