"""What `edgevit prove` does on a machine that is no board: the suite, cut from DeiT-Tiny, through ONNX Runtime.

    python benchmarks/prove.py            # the whole of it: half an hour
    python benchmarks/prove.py --quick    # some minutes

The record is the file that the command writes, with every raw run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tables import table

from edgevit.board.comparison import three_digits
from edgevit.jobs.suite.record import PROOF_KIND
from edgevit.jobs.suite.request import ProveRequest
from edgevit.jobs.suite.run import run

RESULTS = Path(__file__).parent / "results" / "prove.json"
TOLD = """## `edgevit prove`, here

`edgevit prove{quick} --sizes tiny --threads 1 --minutes 60` on a processor ({cpu}, {cores} cores), through ONNX
Runtime in fp32, in {minutes:.0f} minutes. **This is no board**: nothing fuses attention here, no power is read, and
nothing is said of an Orin. It shows that the command runs to its answers. In {busy} of {runs} runs other programs kept
the machine busy; where they did, a ratio is that of processor times. An interval takes six rounds, which not every
part of the suite has (decision 052).
"""


def section(data: dict[str, Any] | None) -> str:
    """The part of RESULTS.md."""
    if data is None:
        return ""
    proof = PROOF_KIND.checked(data, RESULTS.name)
    runs = proof.measurements()
    told = TOLD.format(
        quick=" --quick" if proof.asked["quick"] else "",
        cpu=runs[0].environment["cpu"], cores=runs[0].environment["cores"], minutes=proof.seconds / 60,
        busy=sum(one.is_busy() for one in runs), runs=len(runs),
    )  # fmt: skip
    dense = proof.measured[0]
    lines = []
    for one in proof.measured:
        for figure in one.figures:
            interval = "" if figure.low is None else f" ({figure.low:.2f} to {figure.high:.2f})"
            ratio = "1" if figure.ratio is None else f"{figure.ratio:.2f}{interval}"
            took = f"{three_digits(figure.p50_ms)} ms"
            lines.append([one.name, f"{one.macs / dense.macs:.3f}", str(figure.batch), took, ratio])
    answers = "".join(f"- {answer}\n" for answer in proof.answers)
    return "\n".join([told, table(["network", "MACs, of dense", "batch", "p50", "of dense"], lines), answers])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the quick suite")
    quick = parser.parse_args().quick
    run(ProveRequest(sizes=("tiny",), quick=quick, minutes=60.0, threads=1, output=RESULTS))


if __name__ == "__main__":
    main()
