"""Which tables are of older code than forge has today: what their records lack says so, and no date.

`Every dimension` is measured with the embedding's width among forge's choices. A record of before has rows without the
width, or no stage that takes it; and the base has been trained anew since some of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tables import Row, load

TITLE = "Every dimension: forge with the embedding's width, readers aligned and head refitted"
TODAY = "[Every dimension]"
# As GitHub names the heading.
LINK = f"{TODAY}: #{''.join(c for c in TITLE.lower().replace(' ', '-') if c.isalnum() or c == '-')}"


def base_today() -> str | None:
    """SHA-256 of the base of `Every dimension`; None without rows."""
    rows = list((load("dimensions") or {"rows": {}})["rows"].values())
    return rows[-1]["base_sha256"] if rows else None


def rows_told(rows: Iterable[Row], data: str = "rendered") -> str:
    """A sentence of rows that are not of forge and the base as they are today; nothing where all of them are.

    Rows name their `method` where they are not all forge's, and have an `embed` where forge could choose it.
    """
    rows = list(rows)
    lacking = [row for row in rows if row.get("method", "forge") == "forge" and "embed" not in row]
    bases = {row["base_sha256"][:8] for row in rows}
    today = (base_today() or "")[:8]
    said = []
    if lacking:
        said.append("older code that kept the embedding's width (no row has an `embed`)")
    if today and data == "rendered" and bases and bases != {today}:
        said.append(f"another base ({', '.join(sorted(bases))}; now {today})")
    where = "" if data == "rendered" else ", on other images"
    return f"**Forge's figures here are of {', and of '.join(said)}: {TODAY} has today's{where}.**\n" if said else ""


def stages_told(runs: Iterable[Row]) -> str:
    """The same of a record of seconds per stage."""
    if any("embedding" in run["seconds"] for run in runs):
        return ""
    return (
        "**Measured with older code that kept the embedding's width: there is no stage `embedding`, and what it takes "
        f"is in none of these sums. {TODAY} has the accuracy of today's forge.**\n"
    )
