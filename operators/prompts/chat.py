"""Chat: the chat templates of a model, given contents as each takes them, and proven to print what messages say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.prompts.messages import in_parts
from operators.prompts.parts_template import PartsTemplate
from operators.prompts.template import Template
from operators.prompts.template_process import TemplateProcess
from pipeline.api.errors import ConfigError

Messages = list[dict[str, Any]]
MARKER = "qxzjvk"
"""A content that no template has: letters alone, which are the same when a template trims or capitalises it."""


class Chat:
    """The chat template of a model, and the one that its file may have for conversations with tools.

    `prove` finds which of them take contents as parts ([{type: text, text: ...}]); these get all contents so
    (PartsTemplate).

    Args:
        template: renders conversations.
        of_tools: renders those with tools; None: `template` does.
    """

    def __init__(self, template: Template | TemplateProcess, of_tools: TemplateProcess | None = None) -> None:
        both = [template] if of_tools is None else [template, of_tools]
        self._templates: list[Template | TemplateProcess | PartsTemplate] = [*both]
        self.no_content = self._templates[-1].no_content
        self.named = frozenset[str]().union(*(each.named for each in self._templates))
        self.unknown = frozenset[str]().union(*(each.unknown for each in self._templates))

    def prove(self, values: Mapping[str, Any]) -> None:
        """Find out how each template takes the content of a message. `values`: of every conversation.

        Raises:
            ConfigError: one prints the content of no user message.
        """
        for i, template in enumerate(self._templates):
            proof = {**values, "tools": [_tool("x")] if i else None, "documents": None}
            if not isinstance(template, PartsTemplate) and _takes_parts(template, proof):
                self._templates[i] = PartsTemplate(template, proof)

    def render_all(self, rows: Sequence[Mapping[str, Any]]) -> list[str | Exception]:
        """Render each of `rows` by its template; in the place of a text may be what the template raises."""
        last = len(self._templates) - 1
        which = [last if values.get("tools") else 0 for values in rows]
        texts: dict[int, str | Exception] = {}
        for i, template in enumerate(self._templates):
            indices = [row for row, its in enumerate(which) if its == i]
            texts |= zip(indices, template.render_all([dict(rows[row]) for row in indices]), strict=True)
        return [texts[row] for row in range(len(rows))]


def _takes_parts(template: Template | TemplateProcess, values: Mapping[str, Any]) -> bool:
    user, system, assistant = (_said(role, "x") for role in ("user", "system", "assistant"))
    marked = _said("user", MARKER)
    tried = [[marked], [system, marked], [user, assistant, marked]]  # a template may refuse each of them
    silent = False
    for parts in (False, True):
        rows = [{**values, "messages": in_parts(messages) if parts else messages} for messages in tried]
        without = [{key: value for key, value in row.items() if value is not None} for row in rows]
        texts = [text for text in template.render_all([*rows, *without]) if isinstance(text, str)]
        if any(prints(text) and not (parts and "'type'" in text) for text in texts):  # no part as Python writes it
            return parts
        silent |= bool(texts)
    if silent:
        raise ConfigError(
            f"{template.name} does not print what the user writes, neither as a text nor as parts: every prompt would"
            " be the same. Name another one with model.chat_template="
        )
    return False


def prints(text: str) -> bool:
    """Return whether `text` has MARKER, trimmed or in capitals as it may be."""
    return MARKER in text.lower()


def proofs(messages: Messages, tools: object) -> Iterator[tuple[str, Messages, dict[str, Any]]]:
    """Yield what a conversation has beside its last user message: its name, messages with MARKER there, and `tools`."""
    user, assistant = _said("user", "x"), _said("assistant", "x")
    beside = {"tools": [_tool("x")]} if tools else {}
    roles = [str(message["role"]) for message in messages]
    for role in dict.fromkeys(roles):
        if role not in ("user", "assistant", "tool"):
            yield f"{role} message", [_said(role, MARKER), user], beside
    if roles.count("user") > 1:
        yield "user message but the last", [_said("user", MARKER), assistant, user], beside
    if any(each["role"] == "assistant" and each.get("content") for each in messages[:-1]):
        yield "message of the assistant", [user, _said("assistant", MARKER), user], beside
    if any(each.get("tool_calls") for each in messages):
        yield "tool call", [user, _called(MARKER), _result("x")], beside
    if "tool" in roles:
        yield "result of a tool", [user, _called("x"), _result(MARKER)], beside
    if tools:
        yield "tools", [user], {"tools": [_tool(MARKER)]}


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _called(name: str) -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": {"x": "x"}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call00001", "name": "x", "content": content}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "description": "x", "parameters": parameters}}
