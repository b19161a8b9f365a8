"""One spelling for every class name, so that names that look alike are equal.

Unicode can write `ö` as one character (NFC, as Linux, Windows and most keyboards do) or as `o` and a combining mark
(NFD, as macOS stores the names of files). In a POSIX locale Python hands over bytes of UTF-8 as surrogates. Class names
come from folders, lists, options, and records of models; all of them pass through `class_name`.
"""

from __future__ import annotations

import os
import unicodedata
from typing import Annotated

from pydantic import AfterValidator


def class_name(text: str) -> str:
    """Return the name in NFC; bytes that Python could not decode by its locale are read as UTF-8 if they are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            text = os.fsencode(text).decode()
        except UnicodeError:
            return text
    return unicodedata.normalize("NFC", text)


ClassName = Annotated[str, AfterValidator(class_name)]  # of a record that is read from a file
