"""Requests: the parameters of each endpoint, and lines of a batch file read by them.

A body with any other parameter is refused; docs/openai_batch.md explains each.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from operators.openai import values
from operators.openai.faults import Code, Fault
from operators.openai.values import Columns, Read, ignored, kept, number, refuse_unknown, refused, unsupported, whole
from operators.rows.arrow_types import MAX_NESTING, depth
from operators.rows.json_values import unique_keys

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
REQUIRED = ("model", "messages", "prompt", "input", "query", "documents", "text_1", "text_2")
"""Parameters that a body must have, if its endpoint has them."""
MAX_CHOICES = 128
MAX_TEXTS = 2048
"""Most prompts or inputs per request, as in the API."""
DEFAULT_COMPLETION_TOKENS = 16
"""Default max_tokens of /v1/completions, as in the API."""
_NEWER = "give tools and tool_choice, which have taken its place"
_NO_THINKING = {"enable_thinking": False}
_TEXT_ONLY = "the models are given text, and answer with text"
_LEAVE_OUT = "leave it out"
_SAY_IT = "say it in the messages"

ALL: Mapping[str, Read] = {
    "model": kept(lambda value: isinstance(value, str) and value != "", "a string"),
    "user": ignored,
}
_GENERATE: Mapping[str, Read] = {
    **ALL,
    "max_tokens": whole(1),
    "temperature": number(0, 2),
    "top_p": values.top_p,
    "n": whole(1, MAX_CHOICES),
    "seed": whole(-(2**63), 2**63 - 1),
    "stop": values.stop,
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "logit_bias": values.logit_bias,
    "stream": refused(_LEAVE_OUT, False),
    "stream_options": refused(_LEAVE_OUT),
    # Sampling keys of this project, which are not in the API.
    "top_k": whole(0),
    "min_p": number(0, 0.999999),
    "repetition_penalty": number(0.01, 100),
    "min_tokens": whole(0),
}
PARAMETERS: Mapping[str, Mapping[str, Read]] = {
    CHAT: {
        **_GENERATE,
        "messages": values.messages,
        "max_completion_tokens": whole(1),
        "logprobs": values.flag,
        "top_logprobs": whole(0, 20),
        "response_format": values.response_format,
        "tools": values.tools,
        "tool_choice": values.tool_choice,
        "parallel_tool_calls": refused("leave it out, and take the first of a message's tool_calls", True),
        "functions": refused(_NEWER, []),
        "function_call": refused(_NEWER, "none"),
        "chat_template_kwargs": values.template_kwargs,
        "modalities": refused(_TEXT_ONLY, ["text"]),
        "audio": refused(_TEXT_ONLY),
        "prediction": refused(_LEAVE_OUT),
        "reasoning_effort": values.reasoning_effort,
        "verbosity": refused(_SAY_IT),
        "web_search_options": refused(_LEAVE_OUT),
        "metadata": ignored,
        "store": ignored,
        "service_tier": ignored,
        "safety_identifier": ignored,
        "prompt_cache_key": ignored,
        "prompt_cache_retention": ignored,
    },
    COMPLETIONS: {
        **_GENERATE,
        "prompt": values.texts_or_ids,
        "logprobs": whole(0, 5),
        "echo": values.flag,
        "best_of": whole(1, MAX_CHOICES),
        "suffix": refused("put all text into the prompt", ""),
    },
    EMBEDDINGS: {
        **ALL,
        "input": values.embedding_input,
        "encoding_format": kept(lambda value: value in ("float", "base64"), '"float" or "base64"'),
        "dimensions": whole(1),
    },
}
"""By endpoint and name, the reader of the value. A null is as if the parameter was not there."""


def read_line(text: str) -> Mapping[str, Any]:
    """Parse a line; raise Fault for one that is no JSON object, that cannot be written again, or without custom_id."""
    try:
        found = json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_number)
        if text.count("[") + text.count("{") > MAX_NESTING and depth(found) > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} deep")
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Fault(Code.INVALID_LINE, f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except UnicodeEncodeError as error:
        raise Fault(Code.INVALID_LINE, "has half a character (an escape from \\ud800 to \\udfff alone)") from error
    except KeyError as error:
        raise Fault(Code.INVALID_LINE, f"cannot be read: it has the key {error} twice in an object") from error
    except (ValueError, RecursionError) as error:
        raise Fault(Code.INVALID_LINE, f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise Fault(Code.INVALID_LINE, "not a JSON object with custom_id, method, url and body")
    if not isinstance(found.get("custom_id"), str) or not found["custom_id"]:
        raise Fault(Code.INVALID_CUSTOM_ID, "custom_id must be a string of at least one character")
    return found


def request_of(
    line: Mapping[str, Any], models: Collection[str] | None, parameters: Mapping[str, Mapping[str, Read]] = PARAMETERS
) -> tuple[Columns, list[Any], int]:
    """Return the columns of a request, its prompts or inputs ([None] for a chat), and how many completions of each.

    Args:
        models: accepted model names; None: any.
        parameters: of each endpoint that the job answers for.

    Raises:
        Fault: it cannot be answered as it is.
    """
    refuse_unknown("the line", line, ("custom_id", "method", "url", "body"), Code.INVALID_LINE)
    method, url, body = line.get("method"), line.get("url"), line.get("body")
    if method != "POST":
        raise Fault(Code.INVALID_METHOD, f"method must be POST, not {json.dumps(method)}")
    if not isinstance(url, str) or url not in parameters:
        raise Fault(Code.INVALID_URL, f"url must be one of {', '.join(parameters)}, not {json.dumps(url)}")
    if not isinstance(body, dict):
        raise Fault(Code.INVALID_LINE, "body must be an object")
    columns = _read(body, url, parameters)
    if models is not None and columns["model"] not in models:
        raise Fault(Code.MODEL_NOT_FOUND, f"model is '{columns['model']}'; this job answers for {', '.join(models)}")
    texts, samples = columns.pop("texts", [None]), columns.pop("n", 1)
    if columns.pop("best_of", samples) != samples:
        raise unsupported(f"best_of other than n, which is {samples},", "ask for n choices and pick one")
    if len(texts) * samples > MAX_TEXTS:
        raise Fault(Code.INVALID_VALUE, f"{len(texts)} texts, {samples} choices each: at most {MAX_TEXTS} in all")
    if url == CHAT:
        _resolve_chat(columns)
    elif url == COMPLETIONS:
        columns.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
        if columns.get("echo") and "logprobs" in columns:
            raise unsupported("echo beside logprobs", "ask for one of them; prompts are not scored")
    return columns | {"custom_id": line["custom_id"], "url": url}, texts, samples


def _read(body: Mapping[str, Any], url: str, parameters: Mapping[str, Mapping[str, Read]]) -> Columns:
    known = parameters[url]
    columns: Columns = {}
    for name, value in body.items():
        if name not in known:
            elsewhere = [other for other in parameters if name in parameters[other]]
            hint = f"; {' and '.join(elsewhere)} has it" if elsewhere else ""
            raise Fault(Code.UNKNOWN_PARAMETER, f"{url} has no parameter '{name}'{hint}")
        if value is not None:
            columns |= known[name](name, value)
    for name in REQUIRED:
        if name in known and body.get(name) is None:
            raise Fault(Code.MISSING_PARAMETER, f"{name} is missing")
    return columns


def _resolve_chat(columns: Columns) -> None:
    newer = columns.pop("max_completion_tokens", None)
    if newer is not None and columns.setdefault("max_tokens", newer) != newer:
        raise Fault(Code.INVALID_VALUE, "max_tokens and max_completion_tokens differ; give one of them")
    wanted, top = columns.pop("logprobs", False), columns.pop("top_logprobs", None)
    if top is not None and not wanted:
        raise Fault(Code.INVALID_VALUE, "top_logprobs needs logprobs to be true")
    if wanted:
        columns["logprobs"] = top or 0
    effort = columns.pop("reasoning_effort", None)
    kwargs = {} if effort is None else {"reasoning_effort": effort} | ({} if effort != "none" else _NO_THINKING)
    if kwargs := kwargs | columns.pop("template_kwargs", {}):
        columns["template_kwargs"] = json.dumps(kwargs, ensure_ascii=False)
    _check_choice(columns)
    if "json_schema" in columns and "stop" in columns:
        raise unsupported("stop beside a response_format other than text", "JSON ends where it is whole")


def _check_choice(columns: Columns) -> None:
    """Check the choice among the tools."""
    names = [tool["function"]["name"] for tool in json.loads(columns.get("tool_list", "[]"))]
    choice = columns.get("tools", "auto")
    if not names and columns.pop("tools", "none") != "none":
        raise Fault(Code.INVALID_VALUE, f"tool_choice is {json.dumps(choice)}, and there are no tools")
    if not names or choice in ("auto", "none"):
        return
    if choice not in ("required", *names):
        raise Fault(Code.INVALID_VALUE, f"tool_choice names '{choice}'; the tools are {', '.join(names)}")
    if also := [key for key in ("json_schema", "stop") if key in columns]:
        what = "stop" if also == ["stop"] else "a response_format other than text"
        raise unsupported(f"{what} beside tool_choice={json.dumps(choice)}", "the call is all of the answer")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
