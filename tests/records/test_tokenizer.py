"""Texts become ids by the tokenizer beside the weights, as transformers would make them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_bert import VOCABULARY

from edgevit.errors import CheckpointError, OutputError
from edgevit.records.tokenizer import store_tokenizer, stored_tokenizer, text_encoder, tokenizer_text

pytest.importorskip("tokenizers")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in VOCABULARY))
    return tmp_path


def test_texts_are_cut_and_padded_to_one_length(vocabulary: Path) -> None:
    text = tokenizer_text(vocabulary)
    assert text is not None
    preprocessing = {"input_size": [6], "tokenizer": store_tokenizer(text)}
    assert stored_tokenizer(preprocessing) == text
    encode = text_encoder(preprocessing)
    assert encode("The oven") == [2, 5, 18, 3, 0, 0]
    assert encode("the a of and in with we") == [2, 5, 6, 7, 8, 3] and encode("unheard") == [2, 1, 3, 0, 0, 0]
    (vocabulary / "tokenizer.json").write_text(text)
    (vocabulary / "vocab.txt").unlink()
    assert tokenizer_text(vocabulary) == text


def test_case_is_as_the_release_says(vocabulary: Path) -> None:
    (vocabulary / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    encode = text_encoder({"input_size": [4], "tokenizer": store_tokenizer(tokenizer_text(vocabulary) or "")})
    assert encode("The the") == [2, 1, 5, 3]


def test_what_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    assert tokenizer_text(tmp_path) is None
    with pytest.raises(CheckpointError, match="open the model again"):
        stored_tokenizer({"tokenizer": "0" * 64})
    with pytest.raises(CheckpointError, match="cannot read the tokenizer"):
        text_encoder({"input_size": [4], "tokenizer": store_tokenizer("{}")})
    no_padding = '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}'
    with pytest.raises(CheckpointError, match=r"no token \[PAD\]"):
        text_encoder({"input_size": [4], "tokenizer": store_tokenizer(no_padding)})


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(OutputError, match="cannot write"):
        store_tokenizer("{}")
