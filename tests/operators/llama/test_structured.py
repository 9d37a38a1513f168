"""Constraints on real llama.cpp: spans of forced tokens change no bit of a neighbour, and texts are what was asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from operators.constraints.compiler import Compiler
from operators.constraints.grammars import form_of
from operators.engine.sampling.params import SamplingParams
from operators.llama.model import LlamaModel
from operators.settings.structured import StructuredSettings
from tests.operators.llama.test_decoding import COUNTS, complete, model, model_file, texts
from tests.operators.rows.schemas import valid

pytestmark = pytest.mark.slow("decodes under grammars with a real vocabulary")

__all__ = ["model", "model_file"]

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


def text_of(model: LlamaModel, tokens: list[int]) -> str:
    return b"".join(model.pieces()[token] for token in tokens).decode()


@pytest.mark.parametrize(
    "values", [pytest.param({}, id="greedy", marks=pytest.mark.laws), pytest.param({"temperature": 1.0}, id="warm")]
)
@pytest.mark.parametrize(
    "skip", [pytest.param(True, id="skip"), pytest.param(False, id="draw", marks=pytest.mark.laws)]
)
def test_bits_and_texts_are_the_same_in_any_company(model, skip, values):
    prompts = texts(19)
    params = constrained(model, skip=skip, **values)
    expected = complete(model, prompts, range(19), params, max_tokens=120, slots=16)
    for tokens in expected[0].values():
        assert valid(SCHEMA, json.loads(text_of(model, tokens)))
    shuffled = np.random.default_rng(1).permutation(19).tolist()
    for slots, order in [(1, range(19)), (2, range(19)), (7, shuffled)]:
        assert complete(model, prompts, order, params, max_tokens=120, slots=slots) == expected, f"{slots} slots"


def test_forced_tokens_save_calls(model):
    steps = {}
    for skip in (True, False):
        tokens, _ = complete(model, texts(19), range(19), constrained(model, skip=skip), max_tokens=120, slots=1)
        steps[skip] = COUNTS["steps"]
        assert all(valid(SCHEMA, json.loads(text_of(model, made))) for made in tokens.values())
    assert steps[True] < steps[False] / 2


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
    names = [name for token in range(model.n_vocab) if (name := model.special_text(token)) is not None]
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
            assert wanted in text_of(model, tokens)
