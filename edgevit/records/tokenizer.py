"""The tokenizer of a network of texts: tokenizer.json, as the tokenizers library writes it.

A preprocessing names it by its hash, and a copy in the user's cache is read wherever texts become ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgevit.errors import CheckpointError
from edgevit.records.documents import Reader
from edgevit.records.names import TOKENIZER
from edgevit.records.writing import cache_folder, write_whole, writing

VOCABULARY = "vocab.txt"  # file of older releases, which have no tokenizer.json
_READER = Reader(CheckpointError, hint="copy the folder again")
_LIBRARY = "texts need the tokenizers library; `pip install 'edgevit[text]'` installs it"


def tokenizer_text(folder: Path) -> str | None:
    """The content of tokenizer.json in a folder, or that of the tokenizer of its vocab.txt; None: it has neither.

    Raises:
        CheckpointError: a file cannot be read, or the library is missing.
    """
    file, vocabulary = folder / TOKENIZER, folder / VOCABULARY
    try:
        if file.is_file():
            return file.read_text("utf-8")
        if not vocabulary.is_file():
            return None
        try:
            from tokenizers import BertWordPieceTokenizer
        except ImportError:
            raise CheckpointError(_LIBRARY) from None
        config = folder / "tokenizer_config.json"
        options = _READER.json(config, dict[str, Any]) if config.is_file() else {}
        text: str = BertWordPieceTokenizer(str(vocabulary), lowercase=bool(options.get("do_lower_case", True))).to_str()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the tokenizer in {folder}: {error}; copy the folder again") from error
    return text


def store_tokenizer(text: str) -> str:
    """Write the content of a tokenizer.json to the user's cache, and return its hash.

    Raises:
        OutputError: the cache cannot be written.
    """
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    file = _stored(sha256)
    if not file.is_file():
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, text)
    return sha256


def stored_tokenizer(preprocessing: Mapping[str, Any]) -> str:
    """The content of the tokenizer that a preprocessing names.

    Raises:
        CheckpointError: the cache has lost it.
    """
    file = _stored(preprocessing["tokenizer"])
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot read the tokenizer {file}: {error.strerror}; open the model again") from error


def _stored(sha256: str) -> Path:
    return cache_folder("tokenizers") / f"{sha256}.json"


def text_encoder(preprocessing: Mapping[str, Any]) -> Callable[[str], list[int]]:
    """A function from a text to the ids of its tokens, as many as the network reads: cut, or filled with padding.

    Raises:
        CheckpointError: the library is missing, or cannot read the tokenizer.
    """
    (tokens,) = preprocessing["input_size"]
    return _encoder(stored_tokenizer(preprocessing), tokens)


@lru_cache(maxsize=4)
def _encoder(text: str, tokens: int) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise CheckpointError(_LIBRARY) from None
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises no other
        raise CheckpointError(f"cannot read the tokenizer: {str(error)[:120]}; give tokenizer.json of BERT") from error
    filler = tokenizer.padding or {}
    pad = filler.get("pad_token", "[PAD]")
    if (pad_id := tokenizer.token_to_id(pad)) is None:
        raise CheckpointError(f"the tokenizer has no token {pad} to fill short texts with; give tokenizer.json of BERT")
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens, pad_id=pad_id, pad_token=pad)
    return lambda line: list(tokenizer.encode(line).ids)
