"""The formats in which models write tool calls, told apart by chat templates."""

from __future__ import annotations

import re
from dataclasses import dataclass

from operators.prompts.tool_readers import (
    NoCall,
    Read,
    ToolCall,
    braces,
    read_harmony,
    read_hermes,
    read_llama3,
    read_mistral,
    read_tags,
)


@dataclass(frozen=True)
class ToolFormat:
    """A format of tool calls.

    Args:
        name: `model.tool_format`.
        opening: stands before the calls; a text without it is no call.
        read: reads what is behind it.
        shape: one call, with `{name}`, `{json_name}` (in quotes) and `{arguments}`, for the constraint on a text.
        before: what may come before a forced call, with `{text}`.
        arguments: how arguments are written: json, braces (Gemma's) or tags (Qwen's, in which a text has no quotes).
        quote: stands around texts in Gemma's arguments.
        stops: special tokens at which the text ends.
        marks: what is no text where calls were found.
    """

    name: str
    opening: re.Pattern[str]
    read: Read
    shape: str
    before: str = ""
    arguments: str = "json"
    quote: str = '"'
    stops: tuple[str, ...] = ()
    marks: re.Pattern[str] | None = None


def parse_calls(form: ToolFormat, text: str) -> tuple[str, list[ToolCall]]:
    """Return the text beside the calls in an answer, whose control tokens are written out, and the calls in their
    order. White space alone is no text.

    Raises:
        BrokenCall: one of them cannot be read, or the text ends within it.
    """
    content, calls, at = "", [], 0
    while (begin := form.opening.search(text, at)) is not None:
        try:
            read, end = form.read(text, begin.end())
        except NoCall:
            break
        calls += read
        content += text[at : begin.start()]
        at = end
    content += text[at:]
    if not calls:
        return text, []
    if form.marks is not None:
        content = form.marks.sub("", content)
    return content if content.strip() else "", calls


HERMES = ToolFormat(
    "hermes",
    re.compile("<tool_call>"),
    read_hermes,
    '<tool_call>\n{"name": {json_name}, "arguments": {arguments}}\n</tool_call>',
)
TAGS = ToolFormat(
    "tags",
    re.compile("<tool_call>"),
    read_tags,
    "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
    arguments="tags",
)
LLAMA3 = ToolFormat(
    "llama3",
    re.compile(r'\A\s*(?:<\|python_tag\|>|(?=\{\s*"(?:name|type)"\s*:))'),
    read_llama3,
    '{"name": {json_name}, "parameters": {arguments}}',
)
MISTRAL = ToolFormat(
    "mistral",
    re.compile(r"\[TOOL_CALLS\]"),
    read_mistral,
    '[TOOL_CALLS][{"name": {json_name}, "arguments": {arguments}}]',
)
MISTRAL_ARGS = ToolFormat("mistral_args", MISTRAL.opening, read_mistral, "[TOOL_CALLS]{name}[ARGS]{arguments}")
HARMONY = ToolFormat(
    "harmony",
    re.compile(r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:commentary|analysis))? to=functions\."),
    read_harmony,
    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
    before="<|channel|>analysis<|message|>{text}<|end|><|start|>assistant",
    marks=re.compile(
        r"<\|start\|>assistant|<\|channel\|>(?:final|commentary|analysis)|<\|(?:message|end|call|return|constrain)\|>"
    ),
)
GEMMA = ToolFormat(
    "gemma",
    re.compile(r"<\|tool_call>"),
    braces('<|"|>', "<tool_call|>"),
    "<|tool_call>call:{name}{arguments}<tool_call|>",
    arguments="braces",
    quote='<|"|>',
    stops=("<|tool_response>",),
)
FUNCTION_GEMMA = ToolFormat(
    "function_gemma",
    re.compile("<start_function_call>"),
    braces("<escape>", "<end_function_call>"),
    "<start_function_call>call:{name}{arguments}<end_function_call>",
    arguments="braces",
    quote="<escape>",
    stops=("<start_function_response>",),
)
FORMATS = {one.name: one for one in (HERMES, TAGS, LLAMA3, MISTRAL, MISTRAL_ARGS, HARMONY, GEMMA, FUNCTION_GEMMA)}
"""By name: Hermes and Qwen 2.5 and 3, Qwen3-Coder and 3.5, Llama 3, Mistral before and after tokenizer v11, gpt-oss,
Gemma 4, FunctionGemma."""
_SIGNS: tuple[tuple[ToolFormat, tuple[str, ...], tuple[str, ...]], ...] = (
    (HARMONY, ("<|channel|>commentary", "functions."), ()),
    (GEMMA, ("<|tool_call>", "call:"), ()),
    (FUNCTION_GEMMA, ("<start_function_call>",), ()),
    (TAGS, ("<tool_call>", "<function=", "<parameter="), ()),
    (HERMES, ("<tool_call>", "arguments"), ("<arg_key>", "<function=", "<tool_calls>", "<invoke")),
    (MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]"), ()),
    (MISTRAL, ("[TOOL_CALLS]",), ()),
    (LLAMA3, ('"parameters": dictionary',), ("<function=",)),
)
"""By format, what a chat template of it has, and what it has not."""


def format_in(template: str | None) -> ToolFormat | None:
    """Return the format that a model with this chat template calls tools in; None if it has none that is known."""
    if template is None:
        return None
    return next(
        (
            one
            for one, signs, others in _SIGNS
            if all(sign in template for sign in signs) and not any(other in template for other in others)
        ),
        None,
    )
