"""What does the board suite answer? `edgevit characterize` on a machine that is no board, through ONNX Runtime.

    python -m benchmarks.product.suite            # half an hour
    python -m benchmarks.product.suite --quick    # some minutes

The record is the file that the command writes, with every raw run.
"""

from __future__ import annotations

import argparse

from benchmarks.markdown import RECORDS, load, screen
from edgevit import characterize
from edgevit.jobs.suite.record import SUITE_KIND
from edgevit.jobs.suite.request import CharacterizeRequest

RESULTS = RECORDS / "suite.json"


def section() -> str:
    """Format one question of RESULTS.md."""
    record = load("suite")
    if record is None:
        return ""
    suite = SUITE_KIND.checked(record, RESULTS.name)
    runs = suite.measurements()
    busy = sum(run.is_busy() for run in runs)
    answers = "".join(f"- {answer}\n" for answer in suite.answers)
    return screen(
        "What does the board suite answer?",
        f"`edgevit characterize --sizes tiny --threads 1 --minutes 60` on {runs[0].environment['cpu']} "
        f"({runs[0].environment['cores']} core), ONNX Runtime, fp32, {suite.seconds / 60:.0f} minutes; in {busy} of "
        f"{len(runs)} runs other programs kept the machine busy. **This is no board**: nothing fuses attention here "
        "and no "
        "power is read. It shows that the command runs to its answers:",
        [answers],
        "python -m benchmarks.product.suite",
        "the table of every network, which the command prints; a Jetson.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the quick suite")
    quick = parser.parse_args().quick
    characterize(CharacterizeRequest(sizes=("tiny",), quick=quick, minutes=60.0, threads=1, output=RESULTS))


if __name__ == "__main__":
    main()
