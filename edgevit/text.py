"""Text for people: counts with a suffix, and text from outside, made safe to show.

A terminal obeys control characters, and a reader is misled by those that change the direction of writing. Here each
becomes its number, as in `\\x1b`. Brackets stay, as many messages contain them: no printer takes them for markup.
"""

from __future__ import annotations

import re
from typing import Any

# C0, delete and C1; marks, embeddings and isolates of direction; separators of lines and paragraphs; surrogates,
# which cannot be encoded.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MULTILINE = ("traceback",)  # keys of answers whose text may have several lines


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with every control character outside `keep` replaced by its number."""

    def number(match: re.Match[str]) -> str:
        code = ord(match[0])
        return match[0] if match[0] in keep else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _CONTROL.sub(number, text)


def printable_values(value: Any, *, keep: str = "") -> Any:
    """Return JSON values with all their texts and keys made `printable`."""
    if isinstance(value, str):
        return printable(value, keep=keep)
    if isinstance(value, list):
        return [printable_values(entry, keep=keep) for entry in value]
    if isinstance(value, dict):
        return {
            printable(key): printable_values(entry, keep="\n\t" if key in _MULTILINE else "")
            for key, entry in value.items()
        }
    return value


def shortened(text: str, most: int = 80) -> str:
    """Return a text of at most `most` characters: its middle is left out where it has more."""
    if len(text) <= most:
        return text
    first = (most - 3) * 2 // 3
    return f"{text[:first]}...{text[first + 3 - most :]}"


def format_count(count: float) -> str:
    """Format a count with a suffix: 1.25 G, 86.6 M, 512."""
    for suffix, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {suffix}"
    return f"{count:.0f}"
