"""Readers of the values in a request's body: each checks a non-null value, and returns columns of its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from operators.openai.faults import Code, Fault

Columns = dict[str, Any]
Read = Callable[[str, Any], Columns]
"""Converts a parameter's name and value to columns. Raises Fault."""

MAX_INT32 = 2**31 - 1
SHOWN = 60
"""Characters of a value to show in an error."""
ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles of messages to their names in chat templates: `developer` is the newer name of `system`."""


def invalid(name: str, value: object, allowed: str) -> Fault:
    """Return the fault for a value out of range or of another type."""
    return Fault(Code.INVALID_VALUE, f"{name} is {_shown(value)}; allowed: {allowed}")


def unsupported(name: str, remedy: str) -> Fault:
    """Return the fault for a feature of the API that this job lacks."""
    return Fault(Code.UNSUPPORTED_PARAMETER, f"{name} is not supported; {remedy}")


def refuse_unknown(name: str, keys: Iterable[str], known: Iterable[str], code: Code = Code.UNKNOWN_PARAMETER) -> None:
    """Raise Fault for the first of `keys` that is not `known`."""
    if unknown := sorted(set(keys) - set(known)):
        raise Fault(code, f"{name} has the unknown key '{unknown[0]}'")


def kept(fits: Callable[[Any], bool], allowed: str) -> Read:
    """Make a reader that keeps a value for which `fits` holds, in the column of the parameter's name."""

    def read(name: str, value: Any) -> Columns:
        if not fits(value):
            raise invalid(name, value, allowed)
        return {name: value}

    return read


def number(least: float, most: float) -> Read:
    """Make a reader of a number in a range; booleans and NaN are refused."""
    return kept(
        lambda value: type(value) in (int, float) and least <= value <= most, f"a number from {least:g} to {most:g}"
    )


def whole(least: int, most: int = MAX_INT32) -> Read:
    """Make a reader of a whole number in a range."""
    return kept(lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}")


flag = kept(lambda value: type(value) is bool, "true or false")


def refused(remedy: str, *harmless: object) -> Read:
    """Make a reader that refuses all values but `harmless` ones, which have no effect."""

    def read(name: str, value: Any) -> Columns:
        # 0 equals False in Python, and `store: 0` is not `store: false`.
        if not any(value == one and type(value) is type(one) for one in harmless):
            raise unsupported(f"{name}={_shown(value)}", remedy)
        return {}

    return read


def ignored(name: str, value: Any) -> Columns:
    """Accept any value of a parameter that does not affect the answer."""
    return {}


def stop(name: str, value: Any) -> Columns:
    """Read one string or up to four."""
    texts = [value] if isinstance(value, str) else value
    if not _is_list_of(texts, lambda text: isinstance(text, str) and text != "") or len(texts) > 4:
        raise invalid(name, value, "a string, or a list of one to four strings, none of them empty")
    return {name: texts}


def top_p(name: str, value: Any) -> Columns:
    """Read a number from 0 to 1. At 0 only the likeliest token is left, as at any tiny value."""
    return {name: max(number(0, 1)(name, value)[name], 1e-9)}


def logit_bias(name: str, value: Any) -> Columns:
    """Read a mapping of token ids to -100 ... 100."""
    allowed = "an object of token ids (digits), each with a number from -100 to 100"
    if not isinstance(value, dict):
        raise invalid(name, value, allowed)
    bias = number(-100, 100)
    entries = []
    for token, amount in value.items():
        digits = token.isascii() and token.isdigit() and len(token) <= len(str(MAX_INT32))
        where = f"{name}[{json.dumps(token)}]"
        if not (digits and _is_token(int(token))):
            raise invalid(where, amount, allowed)
        entries.append({"token": int(token), "bias": bias(where, amount)[where]})
    return {name: entries}


def response_format(name: str, value: Any) -> Columns:
    """Read text, json_object or json_schema: the schema of the row as JSON text."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind != "json_schema":
        raise invalid(name, value, '{"type": "text"}, "json_object" or "json_schema"')
    inner, where = value.get("json_schema"), f"{name}.json_schema"
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise invalid(where, inner, "an object with name, schema (an object) and strict")
    refuse_unknown(where, inner, ("name", "description", "schema", "strict"))
    return {"json_schema": json.dumps(inner["schema"])}


def texts_or_ids(name: str, value: Any) -> Columns:
    """Read a string, strings, token ids, or lists of token ids: always as a list."""
    texts = [value] if isinstance(value, str) or _are_tokens(value) else value
    if not (_is_list_of(texts, lambda text: isinstance(text, str)) or _is_list_of(texts, _are_tokens)):
        raise invalid(name, value, "a string, or a list of strings, of token ids, or of lists of token ids, none empty")
    return {"texts": texts}


def embedding_input(name: str, value: Any) -> Columns:
    """Read the same as `texts_or_ids`, but no empty string."""
    columns = texts_or_ids(name, value)
    if "" in columns["texts"]:
        raise invalid(name, value, "texts of at least one character")
    return columns


def messages(name: str, value: Any) -> Columns:
    """Read a list of messages of text, as JSON; the parts of a content are joined by line breaks."""
    if not isinstance(value, list) or not value:
        raise invalid(name, value, "a list of one message or more")
    return {name: _json([_message(f"{name}[{i}]", one) for i, one in enumerate(value)])}


def _message(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(where, message, "an object with role and content")
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{where}.role={role!r}", "give it the role tool")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role", role, ", ".join(ROLES))
    given = {key: one for key, one in message.items() if one is not None and key != "role"}
    content = given.pop("content", None)
    made: dict[str, Any] = {"role": ROLES[role]}
    for key, read in _KEYS.get(role, {}).items():
        if key in given:
            made[key] = read(f"{where}.{key}", given.pop(key))
    if given:
        raise unsupported(f"{where}.{next(iter(given))}", f"a message of the role {role} does not have it")
    if isinstance(content, list) and content:
        content = "\n".join(_part(f"{where}.content[{i}]", part) for i, part in enumerate(content))
    if content is None and "tool_calls" in made:
        return made
    if not isinstance(content, str):
        raise invalid(f"{where}.content", content, "a string, or a list of parts of the type text")
    return {**made, "content": content}


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise invalid(where, value, "a string")
    return value


def _tool_calls(where: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise invalid(where, value, "a list of one call or more")
    return [_tool_call(f"{where}[{i}]", call) for i, call in enumerate(value)]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise invalid(where, call, '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}')
    refuse_unknown(where, call, ("id", "type", "function", "index"))
    refuse_unknown(f"{where}.function", function, ("name", "arguments"))
    named = {key: _text(f"{where}.function.{key}", function.get(key)) for key in ("name", "arguments")}
    identity = {} if call.get("id") is None else {"id": _text(f"{where}.id", call["id"])}
    return {**identity, "type": "function", "function": named}


_KEYS: Mapping[str, Mapping[str, Callable[[str, Any], Any]]] = {
    "assistant": {"tool_calls": _tool_calls, "reasoning_content": _text},
    "tool": {"tool_call_id": _text, "name": _text},
}
"""By role, the keys of a message besides role and content."""


def tools(name: str, value: Any) -> Columns:
    """Read a list of functions, as JSON in `tool_list`; an empty one is none."""
    if not isinstance(value, list):
        raise invalid(name, value, "a list of functions")
    for i, tool in enumerate(value):
        where = f"{name}[{i}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise invalid(where, tool, '{"type": "function", "function": {"name": ..., "parameters": ...}}')
        refuse_unknown(where, tool, ("type", "function"))
        function = tool.get("function")
        if not isinstance(function, dict):
            raise invalid(f"{where}.function", function, "an object with name, description and parameters")
        refuse_unknown(f"{where}.function", function, ("name", "description", "parameters", "strict"))
        if not _text(f"{where}.function.name", function.get("name")):
            raise invalid(f"{where}.function.name", "", "a string of at least one character")
        if not isinstance(function.get("parameters") or {}, dict):
            raise invalid(f"{where}.function.parameters", function["parameters"], "a JSON schema, which is an object")
    return {"tool_list": _json(value)} if value else {}


def tool_choice(name: str, value: Any) -> Columns:
    """Read none, auto, required, or the name of one function, as the row's `sampling.tools`."""
    if value in ("none", "auto", "required"):
        return {"tools": value}
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(name, value, '"none", "auto", "required", or {"type": "function", "function": {"name": ...}}')
    return {"tools": function["name"]}


def template_kwargs(name: str, value: Any) -> Columns:
    """Read arguments of the chat template, as JSON."""
    if not isinstance(value, dict):
        raise invalid(name, value, "an object")
    return {"template_kwargs": value}


def reasoning_effort(name: str, value: Any) -> Columns:
    """Read a word that the chat template is given; `none` also switches thinking off where it has such a switch."""
    return {name: _text(name, value)}


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise invalid(where, part, '{"type": "text", "text": ...}')
    if kind != "text":
        raise unsupported(f"{where}.type={kind!r}", "the models are given text only")
    refuse_unknown(where, part, ("type", "text"))
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text", text, "a string")
    return text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(value: object) -> str:
    """Return `value` as JSON, shortened to fit into a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INT32


def _are_tokens(value: object) -> bool:
    return _is_list_of(value, _is_token)


def _is_list_of(value: object, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(map(fits, value))
