"""For each parameter of the API values that are accepted and values that are refused.

A key is a parameter's name, or `url name` where two endpoints give a name different meanings.
"""

from __future__ import annotations

from typing import Any

from operators.openai.requests import CHAT, COMPLETIONS, EMBEDDINGS, PARAMETERS
from operators.openai.values import ignored
from tests.operators.rows.schemas import PERSON

N_EMBD = 8
"""Of the fake model."""

REQUIRED: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "once"},
    EMBEDDINGS: {"model": "m", "input": "text"},
}


def user(content: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content, **more}]


def schema(inner: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": inner}


TEXT = {"type": "text", "text": "a"}
TEXTS = ["a", ["a", "b"], [1, 2], [[1], [2, 3]]]
NO_TEXTS = [[], {}, 3, "", [""], [1, "a"], [[]], [-1], [1.5], [True], [["a"]]]
IGNORED = [name for name, parameter in PARAMETERS[CHAT].items() if parameter.read is ignored]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

ACCEPTED: dict[str, list[Any]] = {
    **{name: ["x", {"a": "b"}, True, 3] for name in IGNORED},
    "model": ["m", "another"],
    "messages": [
        [{"role": "developer", "content": "a"}, *user("b"), {"role": "assistant", "content": "c"}, *user("d")],
        [{"role": "system", "content": "a"}, *user([TEXT, TEXT])],
        user("a", name=None),
        [
            *user("a"),
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "b"},
            {"role": "tool", "content": "c", "tool_call_id": "1"},
        ],
    ],
    "prompt": [*TEXTS],
    "input": [*TEXTS],
    "max_tokens": [1, 20],
    "max_completion_tokens": [1, 20],
    "temperature": [0, 1, 0.5, 2],
    "top_p": [0, 0.5, 1],
    "n": [1, 3],
    "seed": [0, 7, -1, 2**63 - 1],
    "stop": ["a", ["a", "b", "c", "d"]],
    f"{CHAT} logprobs": [True, False],
    f"{COMPLETIONS} logprobs": [0, 5],
    "frequency_penalty": [-2, 0, 1.5],
    "presence_penalty": [-2, 0, 1.5],
    "logit_bias": [{}, {"65": -100, "66": 1.5}],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        schema({"name": "person", "strict": True, "schema": PERSON}),
    ],
    "echo": [True, False],
    "best_of": [1],
    "suffix": [""],
    "encoding_format": ["float", "base64"],
    "dimensions": [N_EMBD, 1],
    "stream": [False],
    "tools": [[], [TOOL]],
    "tool_choice": ["none"],
    "parallel_tool_calls": [True],
    "chat_template_kwargs": [{}, {"enable_thinking": False}],
    "functions": [[]],
    "function_call": ["none"],
    "modalities": [["text"]],
    "reasoning_effort": ["none", "low", "high"],
    "top_k": [0, 5],
    "min_p": [0, 0.1],
    "repetition_penalty": [1, 1.5],
    "min_tokens": [0, 3],
}
REFUSED: dict[str, list[Any]] = {
    "model": ["", 3],
    "messages": [
        [],
        "hi",
        {},
        ["hi"],
        [{"role": "user"}],
        [{"content": "a"}],
        [{"role": "tool", "content": "a", "tool_call_id": 3}],
        [{"role": "function", "content": "a", "name": "f"}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        user("a", tool_calls=[CALL]),
        [{"role": "judge", "content": "a"}],
        [{"role": ["user"], "content": "a"}],
        user(None),
        user(3),
        user([]),
        user("a", name="Ann"),
        [{"role": "assistant", "content": "a", "tool_calls": [TOOL]}],
        [{"role": "assistant", "content": "a", "tool_calls": [{**CALL, "function": {"name": "f"}}]}],
        user([{"type": "image_url", "image_url": {"url": "x"}}]),
        user([{"type": "input_audio", "input_audio": {}}]),
        user([{**TEXT, "cache": 1}]),
        user([{"type": "text"}]),
        user(["a"]),
    ],
    "prompt": [value for value in NO_TEXTS if value not in ("", [""])],
    "input": NO_TEXTS,
    "max_tokens": [0, -1, 1.5, "3", True, 2**31],
    "max_completion_tokens": [0, -1, 1.5, "3", True],
    "temperature": [-0.1, 2.1, "1", True, [1]],
    "top_p": [-0.1, 1.1, "1"],
    "n": [0, 129, 1.5, "1", True],
    "seed": [2**63, 1.5, "1", True],
    "stop": ["", [], ["a", ""], ["a"] * 5, 3, {}],
    f"{CHAT} logprobs": [1, "true"],
    "top_logprobs": [21, -1, 1.5, True, 3],
    f"{COMPLETIONS} logprobs": [6, -1, True, 1.5],
    "frequency_penalty": [-2.1, 2.1, "1", True],
    "presence_penalty": [-2.1, 2.1, "1", True],
    "logit_bias": [[], {"a": 1}, {"-1": 1}, {"3": 101}, {"3": "1"}, {"3": None}, {str(2**31): 1}],
    "response_format": [
        "json",
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        schema({}),
        schema({"schema": True}),
        schema({"schema": {}, "extra": 1}),
    ],
    "echo": ["true", 1],
    "best_of": [2, 0, "1"],
    "suffix": ["x", 3],
    "encoding_format": ["int8", 3],
    "dimensions": [N_EMBD + 1, 0, -1, 1.5, True, "8"],
    "stream": [True, 0, "false"],
    "stream_options": [{"include_usage": True}],
    "tools": [{}, ["f"], [{"type": "web_search"}], [{"type": "function", "function": {}}], [TOOL | {"x": 1}]],
    "tool_choice": ["auto", "required", TOOL, "f", {}],
    "parallel_tool_calls": [False],
    "chat_template_kwargs": [[], "enable_thinking"],
    "functions": [[{"name": "f"}]],
    "function_call": ["auto", {"name": "f"}],
    "modalities": [["text", "audio"], []],
    "audio": [{"voice": "x"}],
    "prediction": [{"type": "content", "content": "x"}],
    "reasoning_effort": [3],
    "verbosity": ["low"],
    "web_search_options": [{}],
    "top_k": [-1, 1.5, True],
    "min_p": [-0.1, 1, "0"],
    "repetition_penalty": [0, 101, "1"],
    "min_tokens": [-1, 1.5, True],
}


def cases(table: dict[str, list[Any]], url: str, name: str) -> list[Any]:
    """The values of a parameter of an endpoint."""
    return table.get(name) or table.get(f"{url} {name}", [])
