"""Rows with a constraint, on the fake decoder: what they draw, and that nothing else decides it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.constraints.compiler import Compiler
from operators.constraints.grammars import form_of
from operators.engine.backend.fake import END_ID, N_VOCAB, FakeDecoder, FakeModel
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.sequence import FinishReason, Sequence
from operators.settings.structured import StructuredSettings
from tests.operators.engine.fixtures import Bench, prompts, sequences, shape
from tests.operators.rows.schemas import PERSON, valid
from tests.sets import often

pytestmark = pytest.mark.slow("compiles grammars, and checks each text")

COMPILER = Compiler(FakeModel())
ENDS = frozenset({END_ID})


def params(structured: dict[str, Any], **values: Any) -> SamplingParams:
    wanted = StructuredSettings(**structured)
    form = form_of(wanted)
    assert form is not None
    constraint = COMPILER.constraint(form, skip_forced=wanted.skip_forced)
    given: dict[str, Any] = {"stop_ids": ENDS, "end_ids": ENDS, "constraint": constraint}
    return SamplingParams(**(given | values))


def text(row: Sequence) -> str:
    return bytes(row.tokens).decode()


def by_hand(prompt: np.ndarray, wanted: SamplingParams, max_tokens: int) -> list[int]:
    """Greedy, one row, a mask at every step."""
    assert wanted.constraint is not None
    matcher, decoder = wanted.constraint.matcher(), FakeDecoder(shape(1))
    tokens: list[int] = []
    decoder.batch.add_spans([prompt], [0], [0], [1])
    while len(tokens) < max_tokens and not matcher.ended:
        logits = np.where(matcher.allowed(), decoder.decode()[-1], -np.inf)
        token = int(logits.argmax())
        if token == END_ID:
            break
        matcher.take(token)
        tokens.append(token)
        decoder.batch.clear()
        decoder.batch.add_rows([token], [len(prompt) + len(tokens) - 1], [0])
    return tokens


KINDS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"json_schema": PERSON, "whitespace": "compact"},
    {"regex": r"[a-m]{3,9}-[0-9]+"},
    {"choices": ["yes", "no", "yes and no"]},
    {"grammar": 'start: item ("," item)*\nitem: /[a-z]{1,6}/ "=" NUMBER\nNUMBER: /[0-9]{1,3}/\n'},
]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("structured", often(KINDS, *KINDS[::2]), ids=str)
def test_greedy_takes_the_likeliest_of_what_fits(structured, skip):
    wanted = params({**structured, "skip_forced": skip})
    texts = prompts(12)
    found = Bench(shape(4)).run(sequences(texts, wanted, max_tokens=60))
    assert found == {i: by_hand(prompt, wanted, 60) for i, prompt in enumerate(texts)}


def drawn(logits: np.ndarray, wanted: SamplingParams, count: int) -> list[Sequence]:
    """Rows that have drawn one token each from the same read-only logits."""
    rows = [Sequence(i, np.array([1], np.int32), wanted, seed=i, max_tokens=9) for i in range(count)]
    shared = np.broadcast_to(logits, (count, len(logits)))
    for row, token in zip(rows, Sampler().draw(shared, rows), strict=True):
        assert token is not None
        row.append(token)
    return rows


@pytest.mark.parametrize("values", [{"temperature": 1.0}, {"temperature": 0.7, "repetition_penalty": 1.2}])
def test_what_is_drawn_twice_is_distributed_as_if_drawn_once_among_what_fits(values):
    """Chi-square with 5 degrees of freedom: above 20.5 once in a thousand; the seeds are fixed."""
    logits = np.random.default_rng(3).normal(0, 1, N_VOCAB).astype(np.float32)
    logits[[ord("x"), ord("y")]] = 5.0  # what is likely does not fit
    letters = [ord(c) for c in "abcdef"]
    logits[letters] += 2.5
    rows = drawn(logits, params({"regex": "[a-f]{2}"}, **values), 6000)
    counts = np.bincount([row.tokens[0] for row in rows], minlength=N_VOCAB)
    weights = np.exp(logits[letters].astype(float) / values["temperature"])
    expected = len(rows) * weights / weights.sum()
    assert counts.sum() == counts[letters].sum() == len(rows)
    assert ((counts[letters] - expected) ** 2 / expected).sum() < 20.5
    masks = sum(row.sampling.costs.masks for row in rows)
    assert 0.3 * len(rows) < masks < len(rows)


def test_what_leaves_no_choice_is_not_decoded_token_by_token():
    structured = {
        "regex": "Once upon a time there was (a|no) king who had [0-9] daughters and lived happily ever after"
    }
    calls, rows = {}, {}
    for skip in (True, False):
        bench = Bench(shape(3))
        rows[skip] = sequences(prompts(6), params({**structured, "skip_forced": skip}), max_tokens=200)
        bench.run(rows[skip])
        calls[skip] = len(bench.decoder.calls)
    assert [row.tokens for row in rows[True]] == [row.tokens for row in rows[False]]
    assert calls[True] < calls[False] / 2
    for row in rows[True]:
        assert row.sampling.costs.constrained_tokens - row.sampling.costs.forced_tokens <= 3
        assert row.finish_reason is FinishReason.STOP


def test_with_logprobs_every_token_is_drawn():
    (row,) = sequences(prompts(1), params({"choices": ["the only one"]}, logprobs=0))
    Bench(shape(2)).run([row])
    assert text(row) == "the only one"
    assert len(row.sampling.scores) == len(row.tokens)
    assert row.sampling.costs.forced_tokens == 0


def test_a_text_may_go_on_where_it_could_end():
    rows = sequences(prompts(60), params({"choices": ["yes", "yes and no"]}, temperature=1.0), max_tokens=40)
    Bench(shape(8)).run(rows)
    assert {text(row) for row in rows} == {"yes", "yes and no"}
    assert all(row.fits and row.finish_reason is FinishReason.STOP for row in rows)


def test_a_text_that_is_cut_does_not_fit_unless_it_happens_to():
    (cut,) = sequences(prompts(1), params({"json_schema": PERSON}), max_tokens=12)
    (whole,) = sequences(prompts(1), params({"regex": "[a-z]+"}), max_tokens=1)
    Bench(shape(2)).run([cut])
    Bench(shape(2)).run([whole])
    assert cut.finish_reason is whole.finish_reason is FinishReason.LENGTH
    assert not cut.fits
    assert whole.fits


def test_a_row_for_which_no_token_is_left_says_so():
    forbidden = params({"regex": "[ab]c"}, logit_bias=((ord("a"), -np.inf), (ord("b"), -np.inf)))
    (row,) = sequences(prompts(1), forbidden)
    Bench(shape(2)).run([row])
    assert row.finish_reason is None
    assert row.error is not None
    assert re.match("at step 0 every token that its constraint allows is .*forbidden", row.error)


def test_an_end_token_ends_no_text_that_is_not_complete():
    (cut, whole) = sequences(prompts(2), params({"regex": "ab*"}), max_tokens=9)
    whole.append(ord("a"))
    for row in (cut, whole):
        row.append(END_ID)
        assert row.finish_reason is FinishReason.STOP
    assert (cut.fits, whole.fits) == (False, True)


BANS: dict[str, dict[str, Any]] = {
    "bad_word": {"bad_words": ((ord("e"),),)},
    "long_bad_word": {"bad_words": (tuple(b"le"),)},
    "bias": {"logit_bias": ((ord("y"), -np.inf),)},
    "end": {"min_tokens": 12, "end_ids": frozenset({ord("c")})},
    "least": {"min_tokens": 12},
    "nothing": {"min_tokens": 11},
}


@pytest.mark.parametrize("ban", BANS)
@pytest.mark.parametrize("structured", [{"choices": ["celery pear"]}, {"regex": "celery pear"}], ids=str)
def test_bans_hold_for_forced_tokens_as_for_drawn_ones(structured, ban):
    ends = []
    for skip in (True, False):
        (row,) = sequences(prompts(1), params({**structured, "skip_forced": skip}, **BANS[ban]), max_tokens=20)
        Bench(shape(2)).run([row])
        ends.append((row.tokens, row.error, row.finish_reason))
    assert ends[0] == ends[1]
    assert (ends[0][1] is None) == (ban == "nothing")
    assert ban == "nothing" or "forbidden" in str(ends[0][1])


# --- every completed row of any schema validates

NAMES = st.sampled_from(["a", "name", 'odd "key"', "ü", "x/y~z"])
LEAVES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "number"}),
    st.builds(
        lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span},
        st.integers(-50, 50),
        st.integers(0, 99),
    ),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 3),
        st.integers(0, 5),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.sampled_from(["red", "green", 7, None, True]), min_size=1, unique=True),
    ),
    st.just({"type": "string", "pattern": "^[A-C]{2}[0-9]$"}),
)


def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def build(properties: dict[str, Any], optional: Seq[str]) -> dict[str, Any]:
        required = [name for name in properties if name not in optional]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.builds(build, st.dictionaries(NAMES, inner, max_size=3), st.lists(NAMES, max_size=2))


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda items, most: {"type": "array", "items": items, "maxItems": most}, inner, st.integers(0, 3)
    )
    either = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=2))
    return st.one_of(objects(inner), arrays, either)


@given(
    st.recursive(LEAVES, nested, max_leaves=5),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["natural", "compact", "pretty"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_completed_row_parses_and_validates(schema, seed, whitespace):
    wanted = params({"json_schema": schema, "whitespace": whitespace}, temperature=1.0)
    rows = [
        Sequence(i, prompt, wanted, seed=seed + i, max_tokens=200) for i, prompt in enumerate(prompts(6, seed=seed))
    ]
    Bench(shape(3)).run(rows)
    for row in rows:
        assert row.error is None
        assert row.fits or row.finish_reason is FinishReason.LENGTH
        if row.fits:
            assert valid(schema, json.loads(text(row))), (schema, text(row))
