"""Requests: the parameters of each endpoint, and lines of a batch file read by them.

A body with any other parameter is refused; docs/openai_batch.md explains each.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from operators.endpoint.api.checks import Read, an_object, fitting, flag, number, some_text, text, whole
from operators.endpoint.api.sampling_values import MOST_LOGPROBS
from operators.openai import values
from operators.openai.values import Code, Fault, ignored, refused
from operators.rows.arrow_types import MAX_NESTING, depth
from operators.rows.json_values import unique_keys

Columns = dict[str, Any]
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

TEXT, INT, REAL, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_BIAS = pa.list_(pa.struct([("token", INT), ("bias", REAL)]))


class Parameter(NamedTuple):
    """A parameter of a body.

    Args:
        read: checks a value that is not null, and returns what is kept of it.
        type: of the column in which that is for the nodes behind; None: it is for `request_of`.
        column: the name of its column, if not that of the parameter.
    """

    read: Read
    type: pa.DataType | None = None
    column: str | None = None


Parameters = Mapping[str, Mapping[str, Parameter]]
"""By endpoint and name. A null is as if the parameter was not there."""
_IGNORED = Parameter(ignored)
ALL = {"model": Parameter(some_text, TEXT), "user": _IGNORED}
_CONVERSATION = {
    "messages": Parameter(values.messages, TEXT),
    "tools": Parameter(values.tools, TEXT, "tool_list"),
    "tool_choice": Parameter(values.tool_choice, TEXT, "tools"),
    "chat_template_kwargs": Parameter(an_object, TEXT, "template_kwargs"),
}
_GENERATE = {
    "max_tokens": Parameter(whole(1), INT),
    "min_tokens": Parameter(whole(0), INT),  # of this project and not of the API, as top_k, min_p, repetition_penalty
    "temperature": Parameter(number(0, 2), REAL),
    "top_p": Parameter(values.top_p, REAL),
    "top_k": Parameter(whole(0), INT),
    "min_p": Parameter(number(0, 0.999999), REAL),
    "repetition_penalty": Parameter(number(0.01, 100), REAL),
    "frequency_penalty": Parameter(number(-2, 2), REAL),
    "presence_penalty": Parameter(number(-2, 2), REAL),
    "logit_bias": Parameter(values.logit_bias, _BIAS),
    "stop": Parameter(values.stop, pa.list_(TEXT)),
    "logprobs": Parameter(whole(0, MOST_LOGPROBS["completions"]), INT),
    "seed": Parameter(whole(-(2**63), 2**63 - 1), INT),
    "n": Parameter(whole(1, MAX_CHOICES)),
    "stream": Parameter(refused(_LEAVE_OUT, False)),
    "stream_options": Parameter(refused(_LEAVE_OUT)),
}
PARAMETERS: Parameters = {
    CHAT: {
        **ALL,
        **_CONVERSATION,
        **_GENERATE,
        "max_completion_tokens": Parameter(whole(1)),
        "logprobs": Parameter(flag, INT),
        "top_logprobs": Parameter(whole(0, MOST_LOGPROBS["chat"])),
        "response_format": Parameter(values.response_format, TEXT, "json_schema"),
        "parallel_tool_calls": Parameter(refused("leave it out, and take the first of a message's tool_calls", True)),
        "functions": Parameter(refused(_NEWER, [])),
        "function_call": Parameter(refused(_NEWER, "none")),
        "modalities": Parameter(refused(_TEXT_ONLY, ["text"])),
        "audio": Parameter(refused(_TEXT_ONLY)),
        "prediction": Parameter(refused(_LEAVE_OUT)),
        "reasoning_effort": Parameter(text),
        "verbosity": Parameter(refused("say it in the messages")),
        "web_search_options": Parameter(refused(_LEAVE_OUT)),
        **dict.fromkeys(("metadata", "store", "service_tier", "safety_identifier"), _IGNORED),
        **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention"), _IGNORED),
    },
    COMPLETIONS: {
        **ALL,
        **_GENERATE,
        "prompt": Parameter(values.texts_or_ids, column="texts"),
        "echo": Parameter(flag, FLAG),
        "best_of": Parameter(whole(1, MAX_CHOICES)),
        "suffix": Parameter(refused("put all text into the prompt", "")),
    },
    EMBEDDINGS: {
        **ALL,
        "input": Parameter(values.said_or_ids, column="texts"),
        "encoding_format": Parameter(fitting(lambda value: value in ("float", "base64"), '"float" or "base64"'), TEXT),
        "dimensions": Parameter(whole(1), INT),
    },
}
_OF_A_TEXT = {"prompt": Parameter(ignored, TEXT), "given_ids": Parameter(ignored, pa.list_(pa.int32()))}
"""The columns of one of the texts of a request, which stand before those that say how it is completed."""
_OF_A_ROW = [("custom_id", TEXT), ("url", TEXT), ("choices", pa.int32()), ("sample", pa.int32())]


def fields_of(*tables: Mapping[str, Parameter]) -> pa.Schema:
    """Return the columns of requests: `choices`, the number of a request's rows, `sample`, the number of a completion
    among those of its text, and the parameters of `tables`, null where a request has none."""
    columns = {parameter.column or name: parameter.type for table in tables for name, parameter in table.items()}
    return pa.schema([*_OF_A_ROW, *((name, kind) for name, kind in columns.items() if kind is not None)])


FIELDS = fields_of(ALL, _CONVERSATION, _OF_A_TEXT, *PARAMETERS.values())
"""`tool_list`: a request's tools; `tools`: its choice among them."""


def read_line(line: str) -> Mapping[str, Any]:
    """Parse a line; raise Fault for one that is no JSON object, that cannot be written again, or without custom_id."""
    request, why = None, "not a JSON object with custom_id, method, url and body"
    try:
        request = _parsed(line)
    except json.JSONDecodeError as error:
        why = f"not JSON: {error.msg} at character {error.pos + 1}"
    except UnicodeEncodeError:
        why = "has half a character (an escape from \\ud800 to \\udfff alone)"
    except KeyError as error:
        why = f"cannot be read: it has the key {error} twice in an object"
    except (ValueError, RecursionError) as error:
        why = f"cannot be read: {error}"
    if not isinstance(request, dict):
        raise Fault(Code.INVALID_LINE, why)
    if not isinstance(request.get("custom_id"), str) or not request["custom_id"]:
        raise Fault(Code.INVALID_CUSTOM_ID, "custom_id must be a string of at least one character")
    return request


def _parsed(line: str) -> Any:
    request = json.loads(line, object_pairs_hook=unique_keys, parse_constant=_no_number)
    if line.count("[") + line.count("{") > MAX_NESTING and depth(request) > MAX_NESTING:
        raise ValueError(f"it is nested more than {MAX_NESTING} deep")
    if "\\ud" in line.lower():
        json.dumps(request, ensure_ascii=False).encode()
    return request


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def request_of(
    line: Mapping[str, Any], models: Collection[str] | None, parameters: Parameters = PARAMETERS
) -> tuple[Columns, list[Any], int]:
    """Return the columns of a request, its prompts or inputs ([None] for a chat), and how many completions of each.

    Args:
        models: accepted model names; None: any.
        parameters: of each endpoint that the job answers for.

    Raises:
        Fault: it cannot be answered as it is.
    """
    values.refuse_unknown("the line", line, ("custom_id", "method", "url", "body"), Code.INVALID_LINE)
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
        raise values.unsupported(f"best_of other than n, which is {samples},", "ask for n choices and pick one")
    if len(texts) * samples > MAX_TEXTS:
        raise Fault(Code.INVALID_VALUE, f"{len(texts)} texts, {samples} choices each: at most {MAX_TEXTS} in all")
    if url == CHAT:
        _resolve_chat(columns)
    elif url == COMPLETIONS:
        columns.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
        if columns.get("echo") and "logprobs" in columns:
            raise values.unsupported("echo beside logprobs", "ask for one of them; prompts are not scored")
    return columns | {"custom_id": line["custom_id"], "url": url}, texts, samples


def _read(body: Mapping[str, Any], url: str, parameters: Parameters) -> Columns:
    readers = parameters[url]
    columns: Columns = {}
    for name, value in body.items():
        if name not in readers:
            elsewhere = [other for other in parameters if name in parameters[other]]
            hint = f"; {' and '.join(elsewhere)} has it" if elsewhere else ""
            raise Fault(Code.UNKNOWN_PARAMETER, f"{url} has no parameter '{name}'{hint}")
        if value is not None and (kept := readers[name].read(name, value)) is not None:
            columns[readers[name].column or name] = kept
    for name in REQUIRED:
        if name in readers and body.get(name) is None:
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
        raise values.unsupported("stop beside a response_format other than text", "JSON ends where it is whole")


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
        raise values.unsupported(f"{what} beside tool_choice={json.dumps(choice)}", "the call is all of the answer")
