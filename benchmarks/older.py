"""Which tables are of older code than forge has today: what their records lack says so, and no date.

No section has all of its rows of today's forge. Nearest are those on the three bases, which say themselves of which
commits their rows are. Forge takes the embedding's width among its choices there: a record of before that has rows
without the width, or no stage that takes it; and the rendered base has been trained anew since some of them. Where a
record has commits, those of forge's rows are set against the newest of the photographs.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable

from tables import Row, load

# Headings by the names that texts have for them.
TITLES = {
    "Every dimension": "Every dimension: forge with the embedding's width, readers aligned and head refitted",
    "Photographs": "Photographs: Fashion-MNIST",
    "Harder base": "A harder base: 48 classes in 65 tokens",
}
EVERY, PHOTOGRAPHS, HARDER = (f"[{name}]" for name in TITLES)
NEWEST = f"{PHOTOGRAPHS}, {HARDER} and {EVERY}"


def anchor(title: str) -> str:
    """As GitHub names the heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


LINKS = "\n".join(f"[{name}]: #{anchor(title)}" for name, title in TITLES.items())


def base_today() -> str | None:
    """SHA-256 of the base of `Every dimension`; None without rows."""
    rows = list((load("dimensions") or {"rows": {}})["rows"].values())
    return rows[-1]["base_sha256"] if rows else None


def rows_told(rows: Iterable[Row], data: str = "rendered") -> str:
    """A sentence of rows that are not of forge and the base as they are today; nothing where all of them are.

    Rows name their `method` where they are not all forge's, and have an `embed` where forge could choose it.
    """
    rows = list(rows)
    of_forge = [row for row in rows if row.get("method", "forge") == "forge"]
    lacking = [row for row in of_forge if "embed" not in row]
    bases = {row["base_sha256"][:8] for row in rows}
    today = (base_today() or "")[:8]
    said = []
    if lacking:
        which = "no row has" if len(lacking) == len(of_forge) else f"{len(lacking)} of {len(of_forge)} rows lack"
        said.append(f"older code that kept the embedding's width ({which} an `embed`)")
    if today and data == "rendered" and bases and bases != {today}:
        said.append(f"another base ({', '.join(sorted(bases))}; now {today})")
    newer = f"{EVERY} has the newest" if data == "rendered" else f"{NEWEST} have the newest, on other images"
    return f"**Forge's figures here are of {', and of '.join(said)}: {newer}.**\n" if said else ""


def commit_today() -> str | None:
    """The commit of the newest row of `Photographs`, where rows come in the order in which they were made."""
    rows = list((load("dimensions_fashion") or {"rows": {}})["rows"].values())
    return commit_of(rows[-1]) if rows else None


def commits_told(rows: Iterable[Row]) -> str:
    """A sentence where rows of forge are of another commit than the newest photographs'; nothing where none is.

    Rows without `versions` say nothing.
    """
    made = [commit for row in rows if row["method"] == "forge" and (commit := commit_of(row))]
    newest = commit_today()
    older = list(dict.fromkeys(commit for commit in made if commit != newest))
    if not older or newest is None:
        return ""
    which = "Some of forge's" if newest in made else "Forge's"
    return (
        f"**{which} rows here are of other code ({', '.join(older)}) than the newest of {PHOTOGRAPHS} ({newest}).**\n"
    )


def code_told(versions: Iterable[str | None]) -> str:
    """Of which commits rows are, by the version of edgevit that each names; a + is one with uncommitted changes."""
    commits = Counter(version.partition("(")[2].rstrip(")") if version else "not recorded" for version in versions)
    told = ", ".join(f"{commit} ({count})" for commit, count in commits.most_common())
    more = "; +: with changes of that day" if "+" in told else ""
    return "\n".join(textwrap.wrap(f"Commits of the code, and rows of each: {told}{more}.", 118))


def commit_of(row: Row) -> str | None:
    """The commit that a row was made at, whether or not files had been changed since."""
    found = re.search(r"\((\w+)\+?\)", row.get("versions", {}).get("edgevit", ""))
    return found and found[1]


def stages_told(runs: Iterable[Row]) -> str:
    """The same of a record of seconds per stage."""
    if any("embedding" in run["seconds"] for run in runs):
        return ""
    return (
        "**Measured with older code that kept the embedding's width: there is no stage `embedding`, and what it takes "
        f"is in none of these sums. {NEWEST} have accuracy with it.**\n"
    )
