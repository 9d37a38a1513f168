"""The echo of a prompt with its log-probabilities, as servers write it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.echo import read_echo
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.api.test_any_answer import ANY


def echo(*tokens: str, prompt: int, completion: int = 1) -> dict[str, Any]:
    """The log-probability of the token at place i is -i; the others at its place are less likely, but for place 2."""
    logprobs = {
        "tokens": list(tokens),
        "token_logprobs": [None, *(-float(i) for i in range(1, len(tokens)))],
        "top_logprobs": [None, *({"x": -1.5, token: -float(i)} for i, token in enumerate(tokens[1:], 1))],
    }
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {"choices": [{"text": "".join(tokens), "logprobs": logprobs, "finish_reason": "length"}], "usage": usage}


@pytest.mark.parametrize(
    ("body", "before", "text", "logprobs"),
    [
        (echo("Once", " upon", " a", " time", prompt=3), "", "Once upon a", [-1, -2]),
        (echo("Once", " upon", " a", " time", prompt=3), "Once", " upon a", [-1, -2]),
        (echo("Once", " upon", " a", " time", prompt=3), "Once upon", " a", [-2]),
        (echo("Once", " upon", " a", prompt=3, completion=0), "Once upon", " a", [-2]),
        (echo("Once", " upon", " a", " time", prompt=3), "On", "ce upon a", [-1, -2]),
        (echo("<s>", "Once", " upon", " a", prompt=3), "", "Once upon", [-1, -2]),
        (echo("<s>", "Once", " upon", " a", prompt=3), "Once", " upon", [-2]),
        (
            echo("Once", " upon", " a", prompt=3),
            "Once",
            " upon",
            [-1],
        ),  # llama-cpp-python leaves <s> out, and counts it
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "", "a\u00fc b", [-1, -2, -3]),
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "a", "\u00fc b", [-1, -2, -3]),
        (echo("a", "\ufffd", "\ufffd", " b", "c", prompt=4), "a\u00fc", " b", [-3]),
    ],
)
def test_the_tokens_of_the_text_are_read(body, before, text, logprobs):
    assert read_echo(body, before, text) == (logprobs, logprobs == [-1])


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (None, Unusable, "the answer is null"),
        ({"error": {"message": "too long"}}, Unusable, "too long"),
        ({"choices": []}, Unusable, "no choices"),
        ({"choices": [{"text": "a b"}]}, ConfigError, "no log-probabilities of a prompt"),
        (echo("a", " b", prompt=2), ConfigError, "one token off"),
        (echo("c", " d", "e", prompt=2), Unusable, "not those of the text"),
        (echo("a b", " c", prompt=1), Unusable, "a single token"),
    ],
)
def test_an_echo_that_cannot_be_used(body, kind, said):
    with pytest.raises(kind, match=said):
        read_echo(body, "", "a b")


LISTS = st.lists(ANY | st.text(max_size=3) | st.floats(), max_size=3)
LOGPROBS = st.fixed_dictionaries({}, optional=dict.fromkeys(("tokens", "token_logprobs", "top_logprobs"), LISTS | ANY))
CHOICE = ANY | st.fixed_dictionaries({}, optional={"logprobs": LOGPROBS | ANY})
USAGE = st.fixed_dictionaries({}, optional=dict.fromkeys(("prompt_tokens", "completion_tokens"), st.integers(0, 3)))
BODY = ANY | st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2)}, optional={"usage": USAGE})


@given(BODY, st.sampled_from(["", "a"]))
def test_any_json_gives_numbers_or_a_reason(body, before):
    with suppress(Unusable, ConfigError):
        logprobs, is_greedy = read_echo(body, before, "b")
        assert logprobs
        assert is_greedy in (True, False)
