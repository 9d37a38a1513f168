"""Parse a line of a batch file into a request: its envelope, its body, and rules between parameters."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from operators.openai.faults import Code, Fault
from operators.openai.parameters import CHAT, COMPLETIONS, PARAMETERS, REQUIRED
from operators.openai.values import Columns, refuse_unknown, unsupported
from operators.rows.arrow_types import MAX_NESTING, depth
from operators.rows.json_values import unique_keys

DEFAULT_COMPLETION_TOKENS = 16
"""Default max_tokens of /v1/completions, as in the API."""
MAX_TEXTS = 2048
"""Most prompts or inputs per request, as in the API."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Args:
        custom_id, url: of its line.
        columns: the values of its parameters, by column.
        texts: prompts or inputs; empty for a chat.
        samples: completions of each text.
    """

    custom_id: str
    url: str
    columns: Columns
    texts: list[str | list[int]]
    samples: int = 1


def read_line(text: str) -> Mapping[str, Any]:
    """Parse a line.

    Raises:
        Fault: it is no JSON object, or one that cannot be written again.
    """
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
    return found


def custom_id_of(line: Mapping[str, Any]) -> str:
    """Return the custom_id of a line.

    Raises:
        Fault: there is none.
    """
    given = line.get("custom_id")
    if not isinstance(given, str) or not given:
        raise Fault(Code.INVALID_CUSTOM_ID, "custom_id must be a string of at least one character")
    return given


def request_of(line: Mapping[str, Any], models: Collection[str] | None) -> Request:
    """Parse a line that has a custom_id. `models`: accepted model names; None: any.

    Raises:
        Fault: it cannot be answered as it is.
    """
    refuse_unknown("the line", line, ("custom_id", "method", "url", "body"), Code.INVALID_LINE)
    method, url, body = line.get("method"), line.get("url"), line.get("body")
    if method != "POST":
        raise Fault(Code.INVALID_METHOD, f"method must be POST, not {json.dumps(method)}")
    if not isinstance(url, str) or url not in PARAMETERS:
        raise Fault(Code.INVALID_URL, f"url must be one of {', '.join(PARAMETERS)}, not {json.dumps(url)}")
    if not isinstance(body, dict):
        raise Fault(Code.INVALID_LINE, "body must be an object")
    columns = _read(body, url)
    if models is not None and columns["model"] not in models:
        raise Fault(Code.MODEL_NOT_FOUND, f"model is '{columns['model']}'; this job answers for {', '.join(models)}")
    return Request(custom_id_of(line), url, *_resolved(columns, url))


def _read(body: Mapping[str, Any], url: str) -> Columns:
    known = PARAMETERS[url]
    columns: Columns = {}
    for name, value in body.items():
        if name not in known:
            elsewhere = [other for other in PARAMETERS if name in PARAMETERS[other]]
            hint = f"; {' and '.join(elsewhere)} has it" if elsewhere else ""
            raise Fault(Code.UNKNOWN_PARAMETER, f"{url} has no parameter '{name}'{hint}")
        if value is not None:
            columns |= known[name](name, value)
    for name in REQUIRED:
        if name in known and body.get(name) is None:
            raise Fault(Code.MISSING_PARAMETER, f"{name} is missing")
    return columns


def _resolved(columns: Columns, url: str) -> tuple[Columns, list[str | list[int]], int]:
    """Return the columns for later operators, the texts, and the number of samples.

    Raises:
        Fault: parameters contradict each other.
    """
    texts, samples = columns.pop("texts", []), columns.pop("n", 1)
    if columns.pop("best_of", samples) != samples:
        raise unsupported(f"best_of other than n, which is {samples},", "ask for n choices and pick one")
    if len(texts) > MAX_TEXTS or max(1, len(texts)) * samples > MAX_TEXTS:
        raise Fault(Code.INVALID_VALUE, f"{len(texts)} texts, {samples} choices each: at most {MAX_TEXTS} in all")
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


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
