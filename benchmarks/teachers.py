"""Which rows learnt from a teacher whose products were in bf16, and which from one in fp32.

Since commit 31da8c8 a teacher multiplies in bf16 on a processor that can. Rows say so by `teacher_bf16`; those that are
older than that field say it by their commit alone. A row made anew is the same to the last bit with the products that
its commit tells, and only with these: see docs/lab-log.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from older import commit_of
from tables import Row, grouped

SINCE = "31da8c8"
# The commits that rows at published length were made at before; all others are of its descendants.
BEFORE = frozenset(
    ("4a489ca", "a81c0a1", "5d31ab9", "36fedc7", "e21213a", "8a7b9a5", "2e09c6c", "322f610", "52ec3cc", "c4f6c3c",
     "2479401", "2f76f82", "6417c78", "c59c2fa")
)  # fmt: skip


def in_bf16(row: Row) -> bool | None:
    """Whether its teacher multiplied in bf16; None where it had no teacher."""
    if "loss_teacher" not in row.get("last_losses", ()):
        return None
    if "teacher_bf16" in row:
        return bool(row["teacher_bf16"])
    return "device" not in row and commit_of(row) not in BEFORE


def products_told(rows: Iterable[Row]) -> str:
    """A sentence of which rows had a teacher in bf16; nothing where none had a teacher."""
    taught = [row for row in rows if in_bf16(row) is not None]
    rounded = [row for row in taught if in_bf16(row)]
    if not taught:
        return ""
    if not rounded:
        told = f"All {len(taught)} rows that learnt from a teacher, runs of learning rates among them, had it in fp32."
    else:
        told = (
            f"Of {len(taught)} rows that learnt from a teacher, runs of learning rates among them, {len(rounded)} had "
            f"one whose products were in bf16, and the others in fp32: {'; '.join(_which(taught))}"
        )
        silent = sum("teacher_bf16" not in row for row in rounded)
        told += f" ({silent} by their commit, from {SINCE} on, as they record no precision)." if silent else "."
    return "\n".join(textwrap.wrap(told, 118)) + "\n"


def _which(taught: Sequence[Row]) -> Iterator[str]:
    for (task, rate, steps), group in sorted(grouped(taught, "task", "rate", "steps").items()):
        if not (own := [row for row in group if in_bf16(row)]):
            continue
        where = f"{task} classes at {rate:g}, {steps} steps"
        if len(own) == len(group):
            yield f"{where}, all {len(own)}"
            continue
        names = []
        for (variant,), rows in grouped(own, "variant").items():
            seeds = sorted({row["seed"] for row in rows})
            all_of_it = len(rows) == sum(row["variant"] == variant for row in group)
            of = "" if all_of_it else f" of seed{'s' * (len(seeds) > 1)} {' and '.join(map(str, seeds))}"
            names.append(f"`{variant}`{of}")
        yield f"{where}, {', '.join(names)}"
