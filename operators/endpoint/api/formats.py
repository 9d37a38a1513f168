"""The parts of a body that say what the answer has to be: its structure, its tools, a message to continue."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from operators.endpoint.api.dialects import DIALECTS, LLAMA_CPP_PYTHON, LLAMA_SERVER, SGLANG, VLLM
from operators.endpoint.api.sampling_values import Unsent
from operators.generation.tools import AUTO, NONE, REQUIRED
from operators.settings.checks import read_text
from operators.settings.structured import StructuredSettings, read_schema

_KEY = "sampling.structured"
_GRAMMAR_FILES = (".lark", ".gbnf")
_GBNF = re.compile(r"^\s*root\s*::=", re.MULTILINE)
_ESCAPES = str.maketrans(
    {chr(code): f"\\x{code:02x}" for code in range(32)}
    | {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
)
_CONTINUE = "continue_final_message"


def constraint_of(settings: StructuredSettings) -> tuple[str, Any] | None:
    """Return the kind of constraint on the texts of all rows, and its schema, regex, choices or grammar; None if there
    is none, or it differs by row.

    Raises:
        ConfigError, InputError: a schema or a file cannot be read.
    """
    match settings.kind:
        case "json_schema":
            return "json_schema", read_schema(settings.json_schema, f"{_KEY}.json_schema")
        case "grammar":
            text = settings.grammar or ""
            is_path = "\n" not in text and Path(text).suffix in _GRAMMAR_FILES
            return "grammar", read_text(text, f"{_KEY}.grammar") if is_path else text
        case "regex" | "choices" as kind:
            return kind, getattr(settings, kind)
    return None


def check_structured(settings: StructuredSettings) -> None:
    """Raise Unsent for values of `settings` that no server can be told."""
    if settings.kind is None:
        return
    for key in fields(settings):
        if "unsent" in key.metadata and (value := getattr(settings, key.name)) != key.default:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise Unsent(f"{_KEY}.{key.name}={shown} cannot be sent: {key.metadata['unsent']}; leave it out")


def structured_body(kind: str, value: Any, dialect: str, api: str) -> dict[str, Any]:
    """Return the keys of a body for a constraint of `constraint_of`.

    Raises:
        Unsent: the server has no key for it.
    """
    key = DIALECTS[f"structured.{kind}"][dialect].of(api)
    if key is None:
        able = [name for name, keys in DIALECTS[f"structured.{kind}"].items() if keys.of(api) is not None]
        others = f"; in model.api={api} {', '.join(able)} have one" if able else ""
        raise Unsent(f"{_KEY}.{kind} cannot be sent: {dialect} has no key for it in model.api={api}{others}")
    if kind == "json_schema":
        return {key: _schema(value, key, dialect)}
    if kind == "grammar" and dialect != VLLM and not _GBNF.search(value):
        raise Unsent(f"{_KEY}.grammar cannot be sent: {dialect} takes GBNF, with a rule `root ::=`, and no Lark")
    if dialect == VLLM:
        return {key: {"choice" if kind == "choices" else kind: value}}
    return {key: gbnf_of(value) if kind == "choices" else value}


def _schema(schema: Any, key: str, dialect: str) -> Any:
    if schema is False:
        raise Unsent(f"{_KEY}: the JSON schema false has no text that fits")
    schema = {} if schema is True else schema
    if key == "json_schema":
        return schema
    if dialect == LLAMA_CPP_PYTHON:
        return {"type": "json_object", "schema": schema}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def gbnf_of(choices: Sequence[str]) -> str:
    """Return a grammar in GBNF whose texts are `choices`."""
    return "root ::= " + " | ".join(f'"{choice.translate(_ESCAPES)}"' for choice in choices)


def tools_body(choice: str | None, tools: Sequence[Mapping[str, Any]], dialect: str, api: str) -> dict[str, Any]:
    """Return the keys of a body for `tools` and the choice among them, as `sampling.tools` has it.

    Raises:
        Unsent: the choice cannot be sent, or there is no such tool.
    """
    if not tools and choice in (None, AUTO, NONE):
        return {}
    shown = f"sampling.tools={choice or AUTO}"
    if not tools:
        raise Unsent(f"{shown} forces a call, and the row has no tools")
    if (key := DIALECTS["tools"][dialect].of(api)) is None:
        raise Unsent(f"{shown} cannot be sent: tools are of model.api=chat; the API {api} has none")
    if choice in (None, AUTO, NONE, REQUIRED):
        if choice == REQUIRED and dialect == LLAMA_CPP_PYTHON:
            raise Unsent(f"{shown} cannot be sent: {dialect} forces no call but one of a tool that is named; name it")
        return {"tools": list(tools), key: choice or AUTO}
    named = [tool for tool in tools if tool["function"]["name"] == choice]
    if not named:
        names = ", ".join(tool["function"]["name"] for tool in tools)
        raise Unsent(f"{shown} is none of the tools; they are {names}")
    if dialect == LLAMA_SERVER:  # it takes no names, and an object in silence for auto
        return {"tools": named, key: REQUIRED}
    return {"tools": list(tools), key: {"type": "function", "function": {"name": choice}}}


def template_body(
    kwargs: Mapping[str, Any], dialect: str, api: str, job_keys: Collection[str], *, is_continued: bool
) -> dict[str, Any]:
    """Return the keys of a body for the arguments of the chat template, and for continuing the last message.

    Raises:
        Unsent: the server has no key for them.
    """
    body: dict[str, Any] = {}
    for name, key_of_all, value, shown in (
        ("template_kwargs", "chat_template_kwargs", dict(kwargs), f"model.template_kwargs={dict(kwargs)!r}"),
        (_CONTINUE, _CONTINUE, is_continued, f"data.{_CONTINUE}=true"),
    ):
        if not value or key_of_all in job_keys:
            continue
        if (key := DIALECTS[name][dialect].of(api)) is None:
            why = f"{dialect} has no key for it in model.api={api}; leave it out, or name it in model.extra_body"
            raise Unsent(f"{shown} cannot be sent: {why}")
        body[key] = value
    return body | ({"add_generation_prompt": False} if _CONTINUE in body and dialect != SGLANG else {})
