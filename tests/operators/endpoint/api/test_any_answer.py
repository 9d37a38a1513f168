"""Whatever a server answers is an answer, or there is a reason why not."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from operators.endpoint.api.answers import from_json, read_answer, to_json
from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.dialects import CHAT, COMPLETIONS
from tests.operators.endpoint.api.answered import (
    BODIES,
)
from tests.operators.endpoint.api.test_answers import ANY, NAMED


def holds(body: Any, api: str) -> None:
    """Reading gives an answer that can be stored, or Unusable."""
    try:
        answer = read_answer(body, api)
    except Unusable:
        return
    assert from_json(to_json(answer)) == answer
    to_json(answer).encode()


@given(ANY | NAMED, st.sampled_from((CHAT, COMPLETIONS)))
def test_any_json_gives_an_answer_or_a_reason(body, api):
    holds(body, api)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all parts of a JSON value but the whole."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [found for key, one in inside for found in [(*path, key), *places(one, (*path, key))]]


@settings(max_examples=300)
@given(st.data())
def test_a_changed_answer_gives_an_answer_or_a_reason(data):
    api, body = data.draw(st.sampled_from(BODIES))
    changed = copy.deepcopy(body)
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(places(changed)))
        inner: Any = changed
        for key in path:
            inner = inner[key]
        if data.draw(st.booleans()):
            inner[last] = data.draw(ANY | NAMED)
        else:
            del inner[last]
        if not places(changed):
            break
    holds(changed, api)
