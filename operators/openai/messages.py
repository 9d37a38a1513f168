"""The messages of a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operators.openai.faults import Code, Fault
from operators.openai.values import Columns, invalid, unsupported

ROLES: Mapping[str, str] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""What a chat template is told. `developer` is the newer name of `system`, which templates know."""


def messages(value: Any) -> Columns:
    """A list of messages of text; the parts of a content are joined by line breaks."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", value, "a list of one message or more")
    return {"messages": [_message(f"messages[{i}]", one) for i, one in enumerate(value)]}


def _message(where: str, message: Any) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise invalid(where, message, "an object with role and content")
    role = message.get("role")
    if role in ("tool", "function"):
        raise unsupported(f"{where}.role={role!r}", "write what the tool has said into a message of the user")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role", role, ", ".join(ROLES))
    extra = [key for key, given in message.items() if key not in ("role", "content") and given is not None]
    if extra:
        raise unsupported(f"{where}.{extra[0]}", "a message has a role and a content")
    return {"role": ROLES[role], "content": _content(f"{where}.content", message.get("content"))}


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(where, content, "a string, or a list of parts of the type text")
    return "\n".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise invalid(where, part, '{"type": "text", "text": ...}')
    if kind != "text":
        raise unsupported(f"{where}.type={kind!r}", "the models are given text only")
    unknown = sorted(part.keys() - {"type", "text"})
    if unknown:
        raise Fault(Code.UNKNOWN_PARAMETER, f"{where} has the unknown key '{unknown[0]}'")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text", text, "a string")
    return text
