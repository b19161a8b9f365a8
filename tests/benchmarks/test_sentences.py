"""Texts that are the same for the same seed, and a BERT that learns their topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sentences import TOPICS, train_bert, vocabulary, write_sentences
from edgevit.network.opening import open_network


def contents(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in sorted(folder.rglob("*.txt"))}


def test_the_same_seed_gives_the_same_texts_of_words_of_the_vocabulary(tmp_path: Path) -> None:
    one, again, other = (
        contents(write_sentences(tmp_path / name, 4, seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert one == again != other and len(one) == 5 * len(TOPICS)
    assert {word for text in one.values() for word in text.split()} <= {*vocabulary()}
    assert len(set(one.values())) > 0.9 * len(one)


@pytest.mark.slow
def test_a_bert_learns_the_topics_and_is_written_as_a_folder_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    data = write_sentences(tmp_path / "data", 150)
    top1 = train_bert(data, tmp_path / "bert", width=64, depth=1, tokens=40, epochs=8)
    assert top1 > 0.4  # of ten topics
    assert open_network(tmp_path / "bert").release.labels == tuple(sorted(TOPICS))
