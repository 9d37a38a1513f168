"""Drafts and constraints on real llama.cpp: ids and bits of decode=autoregressive, whatever is drafted and by whom, and
the name of a control token that has to be written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from operators.constraints.compiler import Compiler
from operators.constraints.grammars import form_of
from operators.engine.backend.interface import Decoder
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.sampler import Sampler
from operators.engine.strategies.speculative.lookup import NOTHING, DraftedRow
from operators.engine.strategies.speculative.strategy import Speculative
from operators.llama.gguf_check import tokens_of
from operators.llama.model import LlamaModel
from operators.llama.pieces import text_of
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from operators.settings.structured import StructuredSettings
from tests.operators.engine.speculative.drafters import Oracle, speculative, with_model
from tests.operators.llama.test_decoding import COUNTS, RARER, USUAL, WARM, complete, model, model_file, texts
from tests.sets import often
from tools.models.make_model import write_model

pytestmark = pytest.mark.slow("decodes with drafts and without")

__all__ = ["model", "model_file"]

KINDS = often((*USUAL, *RARER), "q8_0")
SHUFFLED = np.random.default_rng(1).permutation(19).tolist()


@pytest.mark.parametrize("model_file", KINDS, indirect=True)
def test_ids_and_bits_are_those_of_autoregressive(model: LlamaModel):
    prompts = texts(19)
    for params in (WARM, SamplingParams()):
        expected = complete(model, prompts, range(19), params, slots=16, threads=1)
        make = partial(speculative, Oracle(expected[0], 0.8))
        for slots, most, order in [(1, 7, range(19)), (4, 3, SHUFFLED), (16, 2, SHUFFLED)]:
            always = partial(make, adaptive=False, draft_tokens=most)
            found = complete(model, prompts, order, params, slots=slots, threads=1, make=always)
            assert found == expected, f"{slots} slots"
            assert COUNTS["drafted_tokens"] > COUNTS["accepted_tokens"] > 20
        found = complete(model, prompts, range(19), params, slots=5, threads=1, make=make)
        assert found == expected


@pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)
def test_constrained_rows_are_the_same(model: LlamaModel):
    """With drafts, and beside others: spans of forced tokens change no bit of a neighbour."""
    prompts, params = texts(8), constrained(model, temperature=1.0)
    expected = complete(model, prompts, range(8), params, max_tokens=90, slots=4, threads=1)
    make_for = partial(speculative, Oracle(expected[0], 0.8), adaptive=False, draft_tokens=5)
    for slots, order, make in [(3, range(8), make_for), (1, range(8), None), (7, [5, 2, 7, 0, 3, 6, 1, 4], None)]:
        assert complete(model, prompts, order, params, max_tokens=90, slots=slots, threads=1, make=make) == expected


GREEDY = SamplingParams()
Made = tuple[Speculative, Callable[[], None]]
ON_Q8_0 = pytest.mark.parametrize("model_file", ["q8_0"], indirect=True)


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Iterator[LlamaModel]:
    """A model that nearly always draws another token."""
    path = tmp_path_factory.mktemp("other") / "other.gguf"
    write_model(path, file_type="f32", seed=7)
    loaded = LlamaModel(ModelSettings(path=str(path)))
    yield loaded
    loaded.close()


def drafting(draft: LlamaModel, made: list[Made] | None = None, slots: int = 4, **values: Any):
    """Return a maker of the strategy with drafts by `draft`, which appends what it makes to `made`."""

    def make(decoder: Decoder, sampler: Sampler) -> Speculative:
        found = with_model(draft, EngineSettings(slots=slots, threads=1), decoder, sampler, **values)
        if made is not None:
            made.append(found)
        return found[0]

    return make


@ON_Q8_0
@pytest.mark.parametrize("params", often([GREEDY, WARM], WARM), ids=["greedy", "sampled"])
def test_drafts_of_a_model_change_no_bit(model, other, params):
    prompts, shuffled = texts(19), np.random.default_rng(1).permutation(19).tolist()
    expected = complete(model, prompts, range(19), params, slots=16, threads=1)
    for draft, right in ((model, True), (other, False)):
        for slots, most, order in [(1, 7, range(19)), (4, 3, shuffled), (16, 2, shuffled)]:
            made: list[Made] = []
            make = drafting(draft, made, slots, adaptive=False, draft_tokens=most)
            found = complete(model, prompts, order, params, slots=slots, threads=1, make=make)
            made[0][1]()
            assert found == expected, f"{slots} slots"
            drafted, accepted = COUNTS["drafted_tokens"], COUNTS["accepted_tokens"]
            assert drafted > 20
            if params is GREEDY:
                # With AMX a verified token is computed by another kernel than a drafted one.
                assert (accepted > 0.9 * drafted) if right else (accepted < 0.3 * drafted)
        assert complete(model, prompts, shuffled, params, slots=4, threads=1, make=drafting(draft)) == expected


@ON_Q8_0
def test_an_aborted_draft_is_none(model, other, caplog):
    """Where a run is stopped its own model is aborted, too, which ends it: there is nothing to say of drafts."""
    made: list[Made] = []
    drafting_rows = drafting(other, made, 2, adaptive=False)
    complete(model, texts(2), range(2), GREEDY, slots=2, threads=1, make=drafting_rows)
    row = DraftedRow(0, texts(1)[0], GREEDY, seed=0, max_tokens=9)
    drafter = made[0][0]._drafter
    assert len(drafter.drafts([row], [3])[0].tokens) == 3
    other.abort()
    assert drafter.drafts([row], [3]) == [NOTHING]
    assert not [record for record in caplog.records if record.name == "pipeline.decode"]
    made[0][1]()


@ON_Q8_0
def test_the_texts_of_tokens_are_read_off_the_header(model, model_file):
    found = tokens_of(model_file)
    assert len(found) == model.n_vocab
    assert [text.decode() for text in found] == [text_of(model._vocab, i) for i in range(model.n_vocab)]


SCHEMA = {
    "type": "object",
    "properties": {
        "the_number_of_people": {"type": "integer", "minimum": 0, "maximum": 99},
        "a_place_to_find_them_in": {"enum": ["water", "the long way down"]},
        "is_it_now": {"type": "boolean"},
    },
    "required": ["the_number_of_people", "a_place_to_find_them_in", "is_it_now"],
    "additionalProperties": False,
}


def constrained(model: LlamaModel, *, skip: bool = True, **values: float) -> SamplingParams:
    form = form_of(StructuredSettings(json_schema=SCHEMA))
    assert form is not None
    constraint = Compiler(model).constraint(form, skip_forced=skip)
    return SamplingParams(**values, stop_ids=model.end_ids, end_ids=model.end_ids, constraint=constraint)  # type: ignore[arg-type]


def spelt(model: LlamaModel, tokens: list[int]) -> str:
    return b"".join(model.pieces()[token] for token in tokens).decode()


NAMED: list[Callable[[str], dict[str, Any]]] = [
    lambda text: {"choices": [text]},
    lambda text: {"regex": re.escape(text)},
    lambda text: {"grammar": f"start: {json.dumps(text)}"},
    lambda text: {"grammar": f"root ::= {json.dumps(text)}"},
    lambda text: {"json_schema": {"const": text}},
    lambda text: {"json_schema": {"type": "object", "properties": {text: {"const": 1}}, "required": [text]}},
]


def test_the_name_of_a_control_token_is_written_in_ordinary_ones(model):
    """llguidance asks for the tokens of bytes that are forced, and allows no others."""
    names = list(model.special_tokens.texts.values())
    assert len(names) > 1
    compiler = Compiler(model)
    for wanted in (f"ok {name} x" for name in names):
        for structured in NAMED:
            form = form_of(StructuredSettings(**structured(wanted)))
            assert form is not None
            matcher, tokens = compiler.constraint(form, skip_forced=True).matcher(), list[int]()
            while not matcher.ended and len(tokens) < 99:
                tokens.append(int(matcher.allowed().argmax()))
                matcher.take(tokens[-1])
            assert wanted in spelt(model, tokens)
