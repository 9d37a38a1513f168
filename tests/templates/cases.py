"""Conversations for chat templates, and small templates of our own that use what published ones use."""

from __future__ import annotations

import json
from typing import Any

DATE = "2026-01-31"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def _tool(name: str, about: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _typed(kind: str, about: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": about, **more}


TOOLS = [
    _tool(
        "get_weather",
        'The weather of a city, as "sunny" or <rain> & wind.',
        city=_typed("string", "Name of the city: Zürich, 東京"),
        days=_typed("integer", "How many.", default=1),
        unit=_typed("string", "Of the temperature.", enum=["°C", "°F"]),
    ),
    _tool(
        "add",
        "The sum.",
        numbers=_typed("array", "All of them.", items={"type": "number"}),
        how=_typed("object", "Options.", properties={"exact": _typed("boolean", "To the last digit.")}),
    ),
]
_ODD_TOOLS = [_tool("add", "The sum.", a={"type": "number"}, b={"type": ["number", "null"]}, how={"enum": ["fast"]})]
_ASKED = {"role": "user", "content": "What's 2 < 3 & 'so on', in Zürich?\n"}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "now": True, "at": None}},
}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"sky": "<sunny>"}'}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [_ASKED]},
    "system": {"messages": [{"role": "system", "content": " Be brief. "}, _ASKED]},
    "tools": {"messages": [_ASKED], "tools": TOOLS},
    "odd_tools": {"messages": [_ASKED], "tools": _ODD_TOOLS},
    "thinking_off": {"messages": [_ASKED], "enable_thinking": False},
    "reasoning": {
        "messages": [
            _ASKED,
            {"role": "assistant", "reasoning_content": "2 is less.\n\nYes.", "content": "\nIt is so. "},
            {"role": "user", "content": "Sure?"},
        ]
    },
    "tool_results": {
        "messages": [_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, _RESULT],
        "tools": TOOLS,
    },
    "tool_turns": {
        "messages": [
            _ASKED,
            {"role": "assistant", "content": "", "reasoning_content": "I look it up.", "tool_calls": [_CALL]},
            _RESULT,
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
    },
    "continued": {
        "messages": [_ASKED, {"role": "assistant", "content": "Because 2 is "}],
        "continue_final_message": True,
    },
}
"""Arguments of `apply_chat_template`, by name."""


def mended(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case as Render tries it once more where a template raises a TypeError: no tools are an empty list, and
    not None; arguments of tool calls are JSON as text."""
    messages = json.loads(json.dumps(case["messages"]))
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return {**case, "messages": messages, "tools": case.get("tools", [])}


OWN = {
    "hermes": """\
{{- bos_token }}
{%- set ns = namespace(system='You help.', last=0) %}
{%- if messages[0]['role'] == 'system' %}{% set ns.system = messages[0]['content'] | trim %}{% endif %}
{%- if tools is not none %}
    {{- '<|im_start|>system\\n' + ns.system + '\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' ~ (tool | tojson) }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and not ns.last %}{% set ns.last = (messages | length - 1) - loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
        {{- '<think>' + message.reasoning_content }}</think>
    {%- endif %}
    {%- generation %}{{ message.content }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>' ~ call.function.name ~ (call.function.arguments | tojson) ~ '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
""",
    "dated": """\
{%- if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
Today: {{ date_string }}
{%- macro typed(spec) -%}
    {%- if spec.type is string %}{{ spec.type }}{% elif spec.type is iterable %}{{ spec.type | join(' | ') }}
    {%- else %}{{ spec.enum | tojson(indent=2) }}{% endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
    {%- set f = tool.function %}
// {{ f.description | replace('"', "'") }}
{{ f.name }}({% for name, spec in f.parameters.properties | dictsort %}
    {{- name }}: {{ typed(spec) }}{{ ', ' if not loop.last }}{% endfor %})
{%- endfor %}
{%- for message in messages %}
[{{ message.role | upper }}] {{ message['content'].strip() if message['content'] else '-' }}
    {%- if message.tool_calls %}
        {%- set given = message.tool_calls[0].function.arguments %}
        {%- for key, value in given.items() %} {{ key }}={{ value }}{% endfor %}
        {%- for key, value in given | items %} {{ key }}={{ value | tojson }}{% endfor %}
    {%- endif %}
    {%- if message.thinking %} ({{ message.thinking.split('\\n') | first | title }}){% endif %}
{%- endfor %}
""",
    "strict": """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant') }}
    {%- endif %}
    {{- message.role + ': ' + message.content + eos_token }}
    {%- for call in message.tool_calls or [] %}{{- call.function.name + call.function.arguments }}{% endfor %}
    {%- if documents %}{{ documents }}{% endif %}
{%- endfor %}
{{- tools | tojson(separators=(',', ':'), sort_keys=true) if tools else tools }}
""",
}
"""Templates with what the published ones use: namespaces, macros, loop controls, filters, the generation tag, dates."""
