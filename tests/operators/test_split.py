"""Split: pieces of a text that are it again when joined, none longer than allowed, each cut at the best place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.engine.backend.fake import FakeModel
from operators.explode import Explode
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.tokens import Split
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import Batch
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_generate import FAKE

TINY = LlamaModel(ModelSettings(path=str(PROJECT / "models/tiny/tiny-q8_0.gguf")), vocab_only=True)
TEXTS = pa.schema([("text", pa.string())])
WORD = "".join(chr(97 + i * i % 23) for i in range(100_000))
PARTS = [
    *("One", " word", "s", ". ", '." ', "?\n", "\n\n", " \n \n", "\t", "  ", "7", "<|im_end|>"),
    *("漢字", "。", "」", "é", "e\u0301", "👩\u200d👩\u200d👧🏽"),
]


class Odd(FakeModel):
    """Bytes as tokens, with a BOS and a token before each text, as SentencePiece has it, and one for digits without
    bytes. Counts the bytes that it tokenizes."""

    add_bos = True
    read = 0

    def tokenize(self, texts: Sequence[bytes], *, special: bool) -> tuple[Any, Any]:
        (text,) = texts
        self.read += len(text)
        ids = np.array([1, 32, *text], np.int32)
        return ids, np.array([0, len(ids)], np.int32)

    def pieces(self) -> Sequence[bytes]:
        return [b"" if chr(i).isdigit() else bytes([i % 256]) for i in range(self.n_vocab)]


def split(text: str, max_tokens: int, model: Any = None) -> list[str]:
    op = Split(FAKE, "text", max_tokens)
    schema = op.plan(TEXTS)
    op.open(SimpleNamespace(shared=lambda *_: FakeModel() if model is None else model))  # type: ignore[arg-type]
    (batch,) = op.process(Batch(0, pa.record_batch([[text]], schema=TEXTS)))
    assert isinstance(batch, Batch)
    assert batch.data.schema == schema
    pieces: list[str] = batch.data.column("text").to_pylist()[0]
    return pieces


def tokens(text: str, model: Any) -> int:
    return len(model.tokenize([text.encode()], special=True)[0]) - model.add_bos


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=60).map("".join),
    st.integers(16, 40),
    st.sampled_from([TINY, FakeModel(), Odd()]),
)
@example("漢字仮名交じり文" * 50, 16, TINY)
@example(PARTS[-1] * 50, 16, TINY)
@example("<|im_end|>" * 50 + "7" * 50, 16, TINY)
@example("\n" * 300, 16, TINY)
@example(WORD, 100, TINY)
@example(WORD, 100, Odd())
def test_the_pieces_joined_are_the_text_and_none_has_too_many_tokens(text, max_tokens, model):
    pieces = split(text, max_tokens, model)
    assert "".join(pieces) == text
    assert all(pieces)
    assert [piece for piece in pieces if tokens(piece, model) > max_tokens] == []


@pytest.mark.parametrize(
    ("text", "max_tokens", "pieces"),
    [
        ("One. Two.\n\nThree.\nFour", 21, ["One. Two.\n\n", "Three.\nFour"]),
        ("One. Two.\n \n\n  Three\nFour", 21, ["One. Two.\n \n\n", "  Three\nFour"]),
        ("One. Two.\nThree. Four", 18, ["One. Two.\n", "Three. Four"]),
        ('He "ran." Then (he) sat!) Yes', 26, ['He "ran." Then (he) sat!) ', "Yes"]),
        ('He "ran." Then (he) sat', 20, ['He "ran." ', "Then (he) sat"]),
        ("version 3.11 is newer", 20, ["version 3.11 is ", "newer"]),
        ("one two  three", 11, ["one two  ", "three"]),
        ("one two", 7, ["one two"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("漢字。仮名。」文", 23, ["漢字。仮名。」", "文"]),
        ("a 漢字", 6, ["a ", "漢字"]),
    ],
)
def test_a_piece_ends_at_the_best_place(text, max_tokens, pieces):
    """A token of this model is a byte."""
    assert split(text, max_tokens) == pieces


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("abcdé", min_size=1, max_size=9), min_size=1, max_size=40), st.integers(20, 60))
def test_a_piece_has_as_many_words_as_fit(words, max_tokens):
    pieces = split(" ".join(words), max_tokens)
    for piece, next_piece in itertools.pairwise(pieces):
        more = f"{next_piece.split()[0]} " if " " in next_piece else next_piece
        assert len(f"{piece}{more}".encode()) > max_tokens


@pytest.mark.parametrize("text", [WORD, "word " * 20_000, "7" * 100_000, "漢" * 30_000])
def test_the_work_grows_with_the_text_and_no_faster(text):
    """What is tokenized: the text, and each piece a few times."""
    model = Odd()
    split(text, 50, model)
    assert model.read <= 6 * len(text.encode())


def test_the_list_takes_the_place_of_the_text_or_stands_beside_it(tmp_path):
    rows = [{"text": text} for text in ("ab cd", None, "", "a👩b", "ef")]
    flow = Flow(tmp_path / "in its place", chain(Rows(rows, TEXTS), split=Split(FAKE, "text", 3)))
    assert [(r["row"], r["text"]) for r in flow.run()] == [(0, ["ab ", "cd"]), (1, None), (2, []), (4, ["ef"])]
    assert flow.tally.by_reason == {("split", "error", "column '…': '…' alone has N tokens, and max_tokens=N"): 1}
    both = chain(Rows(rows, TEXTS), split=Split(FAKE, "text", 3, as_="piece"), explode=Explode("piece"))
    flow = Flow(tmp_path / "beside", both)
    assert [(r["row"], r["lineage"], r["text"], r["piece"]) for r in flow.run()] == [
        (0, [0], "ab cd", "ab "), (0, [1], "ab cd", "cd"), (4, [0], "ef", "ef"),
    ]  # fmt: skip


def test_its_fingerprint_is_that_of_the_tokenizer():
    assert Split(FAKE, "text", 9).fingerprint() == {"model": FakeModel().fingerprint()}


def test_what_cannot_be_split_is_refused():
    for column, max_tokens, as_ in (("text", 0, None), ("row", 9, None), ("text", 9, "lineage")):
        with pytest.raises(ConfigError):
            Split(FAKE, column, max_tokens, as_)
    with pytest.raises(SchemaError, match="texts"):
        Split(FAKE, "texts", 9).plan(TEXTS)
    with pytest.raises(SchemaError, match="text"):
        Split(FAKE, "text", 9).plan(pa.schema([("text", pa.int64())]))
    with pytest.raises(SchemaError, match="text"):
        Split(FAKE, "text", 9, as_="text2").plan(pa.schema([("text", pa.string()), ("text2", pa.string())]))
