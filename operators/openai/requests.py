"""A line of a batch file as columns: its envelope, its body, and what holds between parameters."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from operators.openai.faults import Code, Fault
from operators.openai.parameters import ALL, CHAT, COMPLETIONS, PARAMETERS, Parameter, parameters_of
from operators.openai.values import Columns, unsupported
from operators.rows.arrow_types import MAX_NESTING, depth

DEFAULT_COMPLETION_TOKENS = 16
"""Of /v1/completions without max_tokens, as in the API."""
MOST_TEXTS = 2048
"""Prompts or inputs of a request, as in the API."""
_BY_URL: Mapping[str, Mapping[str, Parameter]] = {url: parameters_of(url) for url in ALL}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Args:
        custom_id, url: of its line.
        columns: what its parameters say, by column.
        texts: what is to be completed or embedded; empty for a chat.
        samples: completions of each text.
    """

    custom_id: str
    url: str
    columns: Columns
    texts: list[str | list[int]]
    samples: int = 1


def read_line(text: str) -> Mapping[str, Any]:
    """The object of a line.

    Raises:
        Fault: it is no JSON object, or one that cannot be kept as it is.
    """
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
        if text.count("[") + text.count("{") > MAX_NESTING and depth(found) > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} deep")
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise Fault(Code.INVALID_LINE, f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except UnicodeEncodeError as error:
        raise Fault(Code.INVALID_LINE, "has half a character (an escape from \\ud800 to \\udfff alone)") from error
    except (ValueError, RecursionError) as error:
        raise Fault(Code.INVALID_LINE, f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise Fault(Code.INVALID_LINE, "not a JSON object with custom_id, method, url and body")
    return found


def custom_id_of(line: Mapping[str, Any]) -> str:
    """Its custom_id.

    Raises:
        Fault: there is none.
    """
    given = line.get("custom_id")
    if not isinstance(given, str) or not given:
        raise Fault(Code.INVALID_CUSTOM_ID, "custom_id must be a string of at least one character")
    return given


def request_of(line: Mapping[str, Any], models: Collection[str] | None) -> Request:
    """The request of a line that has a custom_id. `models`: the names that are answered; None: any.

    Raises:
        Fault: it cannot be answered as it is.
    """
    unknown = sorted(line.keys() - {"custom_id", "method", "url", "body"})
    if unknown:
        raise Fault(Code.INVALID_LINE, f"the line has the unknown key '{unknown[0]}'")
    method, url, body = line.get("method"), line.get("url"), line.get("body")
    if method != "POST":
        raise Fault(Code.INVALID_METHOD, f"method must be POST, not {json.dumps(method)}")
    if not isinstance(url, str) or url not in _BY_URL:
        raise Fault(Code.INVALID_URL, f"url must be one of {', '.join(ALL)}, not {json.dumps(url)}")
    if not isinstance(body, Mapping):
        raise Fault(Code.INVALID_LINE, "body must be an object")
    columns = _read(body, url)
    if models is not None and columns["model"] not in models:
        raise Fault(Code.MODEL_NOT_FOUND, f"model is '{columns['model']}'; this job answers for {', '.join(models)}")
    return Request(custom_id_of(line), url, *_resolved(columns, url))


def _read(body: Mapping[str, Any], url: str) -> Columns:
    known = _BY_URL[url]
    columns: Columns = {}
    for name, value in body.items():
        if name not in known:
            raise _unknown(name, url)
        if value is not None:
            columns |= known[name].read(value)
    for name, parameter in known.items():
        if parameter.required and body.get(name) is None:
            raise Fault(Code.MISSING_PARAMETER, f"{name} is missing")
    return columns


def _resolved(columns: Columns, url: str) -> tuple[Columns, list[str | list[int]], int]:
    """The columns as the operators behind need them, texts and samples.

    Raises:
        Fault: parameters contradict each other.
    """
    texts, samples = columns.pop("texts", []), columns.pop("n", 1)
    if columns.pop("best_of", samples) != samples:
        raise unsupported(f"best_of other than n, which is {samples},", "ask for n choices and pick one")
    if len(texts) > MOST_TEXTS or max(1, len(texts)) * samples > MOST_TEXTS:
        raise Fault(Code.INVALID_VALUE, f"{len(texts)} texts, {samples} choices each: at most {MOST_TEXTS} in all")
    if url == CHAT:
        _resolve_chat(columns)
    elif url == COMPLETIONS:
        columns.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
        if columns.get("echo") and "logprobs" in columns:
            raise unsupported("echo beside logprobs", "ask for one of them; prompts are not scored")
    return columns, texts, samples


def _resolve_chat(columns: Columns) -> None:
    newer = columns.pop("max_completion_tokens", None)
    if newer is not None and columns.setdefault("max_tokens", newer) != newer:
        raise Fault(Code.INVALID_VALUE, "max_tokens and max_completion_tokens differ; give one of them")
    wanted, top = columns.pop("logprobs", False), columns.pop("top_logprobs", None)
    if top is not None and not wanted:
        raise Fault(Code.INVALID_VALUE, "top_logprobs needs logprobs to be true")
    if wanted:
        columns["logprobs"] = top or 0
    if "json_schema" in columns and "stop" in columns:
        raise unsupported("stop beside a response_format other than text", "JSON ends where it is whole")


def _unknown(name: str, url: str) -> Fault:
    elsewhere = sorted({u for parameter in PARAMETERS if parameter.name == name for u in parameter.urls})
    hint = f"; {' and '.join(elsewhere)} has it" if elsewhere else ""
    return Fault(Code.UNKNOWN_PARAMETER, f"{url} has no parameter '{name}'{hint}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key '{twice}' twice in an object")
    return found


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
