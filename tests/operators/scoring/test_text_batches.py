"""Reading texts on the fake decoder: groups, pieces, and the same outputs in any company."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.engine.backend.fake import N_EMBD, N_VOCAB, FakeDecoder
from operators.engine.backend.interface import Wanted
from operators.scoring.text_batches import OUTPUT_BYTES, SLOTS, Reader, pieces, reading_settings
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings
from tests.operators.engine.fixtures import prompts, shape


def read(
    texts: Seq[np.ndarray], first: Seq[int] | None = None, wanted: Wanted = Wanted.EVERY, **sizes
) -> dict[int, dict[int, bytes]]:
    """The bytes of each output, by text and position."""
    decoder = FakeDecoder(replace(shape(**({"n_batch": 128} | sizes)), wanted=wanted))
    reader = Reader(decoder)
    found: dict[int, dict[int, bytes]] = {i: {} for i in range(len(texts))}
    for group in reader.groups([len(ids) for ids in texts]):
        for part in reader.read([texts[i] for i in group], [first[i] if first else 0 for i in group]):
            for position, row in enumerate(part.rows, part.start):
                found[group[part.index]][position] = row.tobytes()
    return found


@pytest.mark.parametrize("wanted", [Wanted.EVERY, Wanted.EMBEDDINGS])
def test_every_token_of_every_text_has_one_output(wanted):
    texts = prompts(60, longest=250)
    found = read(texts, wanted=wanted)
    assert {i: sorted(rows) for i, rows in found.items()} == {i: list(range(len(t))) for i, t in enumerate(texts)}
    width = N_VOCAB if wanted is Wanted.EVERY else N_EMBD
    assert {len(row) for rows in found.values() for row in rows.values()} == {4 * width}


@pytest.mark.parametrize("sizes", [{"slots": 1}, {"slots": 16}, {"n_batch": 256, "n_ubatch": 200}])
def test_outputs_do_not_depend_on_the_company(sizes):
    texts = [*prompts(40, longest=250), *prompts(20, longest=4)]
    expected = read(texts)
    assert read(texts, **sizes) == expected
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    shuffled = read([texts[i] for i in order], **sizes)
    assert {i: shuffled[at] for at, i in enumerate(order)} == expected


def test_what_comes_before_the_first_wanted_position_may_be_left_out():
    texts = prompts(30, longest=250, seed=5)
    first = [len(t) * i // 30 for i, t in enumerate(texts)]
    every, some = read(texts), read(texts, first)
    for i, text in enumerate(texts):
        assert {p: some[i][p] for p in range(first[i], len(text))} == {
            p: every[i][p] for p in range(first[i], len(text))
        }
    assert sum(map(len, some.values())) < sum(map(len, every.values()))


@given(st.lists(st.integers(1, 250), max_size=60), st.integers(1, 20))
def test_a_group_fits_into_a_call(lengths, slots):
    groups = list(Reader(FakeDecoder(shape(slots, n_batch=128))).groups(lengths))
    assert Counter(i for group in groups for i in group) == Counter(range(len(lengths)))
    for group in groups:
        assert len({lengths[i] for i in group}) == 1
        assert len(group) <= slots
        assert len(group) == 1 or len(group) * lengths[group[0]] <= 128


@given(st.integers(1, 2000), st.integers(2 * KERNEL_TOKENS, 600))
def test_no_piece_is_too_long_or_of_another_kernel(length, room):
    cut = pieces(length, room, KERNEL_TOKENS)
    assert sum(cut) == length
    assert max(cut) <= room
    assert min(cut) >= min(length, KERNEL_TOKENS)


def test_memory_for_the_logits_of_a_call_is_bounded():
    many = reading_settings(EngineSettings(slots=64, n_ubatch=2048), 151_936)
    assert many.n_ubatch * 151_936 * 4 <= OUTPUT_BYTES
    assert (many.n_batch, many.slots) == (many.n_ubatch, SLOTS)
    assert reading_settings(EngineSettings(n_ubatch=512), 4096).n_ubatch == 512
    assert reading_settings(EngineSettings(), 10_000_000).n_ubatch == 2 * KERNEL_TOKENS
    unified = EngineSettings(slots=2, kv="unified", deterministic=False, n_ctx=100, admission="optimistic", contexts=2)
    assert reading_settings(unified, 4096).kv == "per_sequence"
    auto = EngineSettings(slots=0, threads=0, kv="auto", n_batch=0, n_ubatch=0)
    assert reading_settings(auto, 4096).open_keys() == []
