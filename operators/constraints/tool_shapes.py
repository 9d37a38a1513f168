"""The shape of a forced tool call, as a grammar of llguidance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from operators.constraints.brace_grammar import BraceGrammar
from operators.constraints.grammars import Form
from operators.constraints.tag_grammar import TagGrammar
from operators.constraints.tool_grammar import Control, ToolGrammar
from operators.prompts.tool_formats import ToolFormat
from pipeline.api.errors import ConfigError

GRAMMARS: Mapping[str, type[ToolGrammar]] = {"json": ToolGrammar, "tags": TagGrammar, "braces": BraceGrammar}
"""By ToolFormat.arguments."""


def tool_shape(form: ToolFormat, tools: Sequence[Mapping[str, Any]], control: Control) -> Form:
    """Return the grammar of one call of one of `tools` (OpenAI's function tools), which the reader of the format reads
    as arguments that fit the tool's schema.

    Args:
        control: returns the id of a control token by its name; None for a text that is none.

    Raises:
        ConfigError: there are no tools, or the format or llguidance cannot keep the schema of one.
    """
    if not tools:
        raise ConfigError("a tool call is to be forced, and there are no tools")
    grammar = GRAMMARS[form.arguments](form, control)
    calls = []
    for tool in tools:
        name = tool["function"]["name"]
        try:
            calls.append(grammar.call(name, tool["function"].get("parameters") or {}))
        except (ConfigError, UnicodeEncodeError, RecursionError) as error:
            raise ConfigError(
                f"a call of the tool {name} cannot be forced in the format {form.name}: {error}; change its schema, or"
                " take sampling.tools=auto, with which calls are checked when they are read"
            ) from error
    prefix = grammar.literal(form.before)
    prefix = f"({prefix})? " if "<[" in prefix else ""  # a text that ends with a control token
    return Form("tool call", grammar.of(f"{prefix}({' | '.join(calls)})"))
