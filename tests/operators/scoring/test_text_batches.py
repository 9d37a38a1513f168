"""Reading texts on the fake decoder: pieces, common beginnings, and the same outputs in any company."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.backend.fake import N_EMBD, N_VOCAB, FakeDecoder
from operators.engine.backend.shape import Wanted
from operators.engine.scheduler.step_batch import Chunking
from operators.scoring.prefix_tree import Cuts, Text, TokenSpan
from operators.scoring.text_batches import OUTPUT_BYTES, SLOTS, DecoderReader, reading_settings
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings
from tests.operators.engine.fixtures import prompts, shape


def read(
    texts: Seq[np.ndarray | Text], wanted: Wanted = Wanted.EVERY, decoders: list[CheckingDecoder] | None = None, **sizes
) -> dict[int, dict[int, bytes]]:
    """The bytes of each output, by text and position."""
    decoder = CheckingDecoder(replace(shape(**({"n_batch": 128} | sizes)), wanted=wanted))
    reader = DecoderReader(decoder)
    found: dict[int, dict[int, bytes]] = {i: {} for i in range(len(texts))}
    for parts in reader.read([text if isinstance(text, Text) else Text(text) for text in texts]):
        for part in parts:
            for position, row in enumerate(part.rows, part.start):
                for index in part.texts:
                    assert position not in found[index]
                    found[index][position] = row.tobytes()
    if decoders is not None:
        decoders.append(decoder)
    assert reader.decoded == sum(len(call) for call in decoder.calls)
    return found


class CheckingDecoder(FakeDecoder):
    """Keeps the slots of the tokens of each call; a call has pieces of equal length, in slot order."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[list[int]] = []

    def decode(self):
        slots = self.batch.seq_id[: self.batch.n_tokens].tolist()
        assert len(slots) <= self.shape.n_ubatch
        assert slots == sorted(slots)
        counts = set(Counter(slots).values())
        assert len(counts) == 1
        assert min(counts) >= 2 or not self.shape.deterministic
        self.calls.append(slots)
        return super().decode()


@pytest.mark.parametrize("wanted", [Wanted.EVERY, Wanted.EMBEDDINGS])
def test_every_token_of_every_text_has_one_output(wanted):
    texts = prompts(60, longest=250)
    found = read(texts, wanted=wanted)
    assert {i: sorted(rows) for i, rows in found.items()} == {i: list(range(len(t))) for i, t in enumerate(texts)}
    width = N_VOCAB if wanted is Wanted.EVERY else N_EMBD
    assert {len(row) for rows in found.values() for row in rows.values()} == {4 * width}


def test_what_comes_before_the_first_wanted_position_may_be_left_out():
    texts = prompts(30, longest=250, seed=5)
    first = [len(t) * i // 30 for i, t in enumerate(texts)]
    every, some = read(texts), read([Text(ids, since) for ids, since in zip(texts, first, strict=True)])
    for i, text in enumerate(texts):
        assert {p: some[i][p] for p in range(first[i], len(text))} == {
            p: every[i][p] for p in range(first[i], len(text))
        }
    assert sum(map(len, some.values())) < sum(map(len, every.values()))


def test_equal_texts_fill_a_call():
    decoders: list[CheckingDecoder] = []
    texts = [np.arange(i, i + 25, dtype=np.int32) for i in range(20)]
    read(texts, decoders=decoders, slots=16)
    assert [len(call) // 25 for call in decoders[0].calls] == [5, 5, 5, 5]


WORDS = [np.random.default_rng(i).integers(0, 256, n).astype(np.int32) for i, n in enumerate((1, 2, 5, 31, 40, 70, 90))]


CHOSEN = st.lists(
    st.tuples(st.lists(st.sampled_from(range(len(WORDS))), min_size=1, max_size=4), st.integers(0, 90)), max_size=12
)
"""Texts that begin alike: the words of each, and its head."""


@settings(deadline=None, max_examples=50)
@given(CHOSEN, st.integers(1, 20), st.booleans(), st.booleans())
def test_texts_that_begin_alike_have_the_outputs_that_each_has_alone(chosen, slots, deterministic, partial):
    """The fake decoder refuses a piece that does not follow what its slot has, and hashes all of what it has."""
    texts = []
    for words, head in chosen:
        ids = np.concatenate([WORDS[word] for word in words])[:256]
        texts.append(Text(ids, head=min(head, len(ids))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeDecoder, "partial", partial)
        together = read(texts, slots=slots, deterministic=deterministic)
    for number, text in enumerate(texts):
        expected = read([text.ids], slots=1, deterministic=deterministic)[0]
        assert together[number] == expected


@settings(deadline=None, max_examples=50)
@given(CHOSEN, st.integers(128, 200))
def test_a_text_is_cut_by_the_rules_of_its_own_parts(chosen, room):
    """So that no bit of it depends on the texts with which it shares a beginning."""
    texts = []
    for words, head in chosen:
        ids = np.concatenate([WORDS[word] for word in words])
        texts.append(Text(ids, head=min(head, len(ids))))
    found: dict[int, list[TokenSpan]] = {number: [] for number in range(len(texts))}

    def walk(piece: TokenSpan, path: list[TokenSpan]) -> None:
        path = [*path, piece]
        for number in set(piece.texts) - {number for after in piece.left for number in after.texts}:
            found[number] = path[1:]
        for after in piece.left:
            assert set(after.texts) <= set(piece.texts)
            walk(after, path)

    walk(Cuts(room, Chunking(KERNEL_TOKENS), sharing=True).tree(texts), [])
    for number, path in found.items():
        text = texts[number]
        assert np.array_equal(np.concatenate([piece.ids for piece in path]), text.ids)
        for start, end in text.parts:
            sizes = [len(piece.ids) for piece in path if start <= piece.start < end]
            assert sum(sizes) == end - start
            assert max(sizes, default=0) <= room
            assert min(sizes, default=64) >= min(KERNEL_TOKENS if end - start >= KERNEL_TOKENS else 2, end - start)


def test_common_beginnings_are_computed_once():
    random = np.random.default_rng(3)
    shots, tails = random.integers(0, 256, 150).astype(np.int32), random.integers(0, 256, (30, 80)).astype(np.int32)
    assert decoded([np.concatenate([shots, tail]) for tail in tails]) == 150 + 30 * 80
    heads = [np.concatenate([shots[:50], tail[:10]]) for tail in tails]
    options = [Text(np.concatenate([h, tail[:n]]), 59, 60) for h in heads for n, tail in enumerate(tails[:5])]
    assert decoded(options) == 50 + 30 * (10 + 2 + 2 + 3 + 4)
    assert decoded([tails[0]] * 9) == 80


def decoded(texts: Seq[np.ndarray | Text]) -> int:
    decoders: list[CheckingDecoder] = []
    read(texts, decoders=decoders, slots=16, n_batch=256, n_ubatch=256)
    return sum(len(call) for call in decoders[0].calls)


def test_memory_for_the_logits_of_a_call_is_bounded():
    many = reading_settings(EngineSettings(slots=64, n_ubatch=2048), 151_936)
    assert many.n_ubatch * 151_936 * 4 <= OUTPUT_BYTES
    assert (many.n_batch, many.slots) == (many.n_ubatch, SLOTS)
    assert reading_settings(EngineSettings(n_ubatch=512), 4096).n_ubatch == 512
    assert reading_settings(EngineSettings(), 10_000_000).n_ubatch == 2 * KERNEL_TOKENS
    unified = EngineSettings(slots=2, kv="unified", deterministic=False, n_ctx=100, admission="optimistic")
    assert reading_settings(unified, 4096).kv == "per_sequence"
    auto = EngineSettings(slots=0, threads=0, kv="auto")
    assert reading_settings(auto, 4096).open_keys() == []
