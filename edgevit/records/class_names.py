"""One spelling of every class name, so that names that look alike are equal.

Unicode can write `ö` as one character (NFC, as Linux, Windows and most keyboards do) or as `o` and a combining mark
(NFD, as macOS stores the names of files). In a POSIX locale Python decodes bytes of UTF-8 as surrogates. Class names of
folders, lists, options and records of models are all normalised by `class_name`.
"""

from __future__ import annotations

import os
import unicodedata
from typing import Annotated

from pydantic import AfterValidator


def class_name(text: str) -> str:
    """Return the name in NFC; decode bytes that the locale did not decode as UTF-8, where they are valid."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            text = os.fsencode(text).decode()
        except UnicodeError:
            return text
    return unicodedata.normalize("NFC", text)


ClassName = Annotated[str, AfterValidator(class_name)]  # type of a record's field
