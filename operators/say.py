"""Say: appends a turn to the conversation of each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from operators.generation.completions import REASONING, TEXT
from operators.generation.tool_calls import TOOL_CALLS
from operators.prompts.conversations import SYSTEM, USER, Messages, MessageTemplates
from operators.prompts.messages import KeptImages, NoPrompt, conversation, read_messages, require_messages
from operators.prompts.template import reason_of
from operators.rows.batches import set_apart
from operators.rows.json_values import noun
from operators.rows.lineage import refuse_identity
from operators.settings.checks import check_one_of
from pipeline.api import Batch, ConfigError, Operator, Output, SchemaError, Scope, name_row, require_column
from pipeline.api.by_batch import why_rejected
from pipeline.api.errors import HALF_A_CHARACTER
from pipeline.api.machine_errors import of_machine
from pipeline.api.records import python_rows, python_values

ASSISTANT, TOOL = "assistant", "tool"
NEEDS = {SYSTEM: "content", USER: "content", ASSISTANT: "answer", TOOL: "function"}
"""The argument that each role's message is made of."""
Row = Mapping[str, Any]
ToolFunction = Callable[[str, dict[str, Any], dict[str, Any]], Any]


class Say(Operator):
    """Appends a turn to a column of conversations. A graph of such nodes with a model between them is a conversation of
    several turns. The column becomes JSON text, as `data.messages_column` and the `messages` of a step read it; the
    messages that are there stay as they are. Where it is missing, null or empty, the conversation begins.

    - system, user: a message whose content is the template `content`.
    - assistant: the model's answer, from the column `answer` and the columns that Generate adds with it: the reasoning
      as `reasoning_content`, and calls of tools as `tool_calls` in OpenAI's form, with the ids call00000, call00001 ...
      (nine letters and digits, as Mistral's templates want). A null, of a row that passed the model by (`where`), adds
      nothing.
    - tool: where the last message is the assistant's, what `function` returns for each of its calls: a text as it is,
      all else as JSON. Without calls nothing is appended.

    A row whose column holds no conversation, or whose template cannot be rendered, is a reject. What the function
    raises is treated as the node's `on_error` says.

    Args:
        role: whose turn it is: system, user, assistant or tool.
        content: of a system or user message, a Jinja template over the columns.
        answer: of an assistant's message, the column with its text. Of a step that is the step's name: its columns
            `NAME_reasoning` and `NAME_tool_calls` are read where they are there (of `completion`: `reasoning` and
            `tool_calls`).
        function: of tool messages, module.name of a Python function; a module beside the job file or on PYTHONPATH is
            found. It is called with the tool's name, its arguments as a dict and the row as a dict. The same call has
            to give the same result, since a row may be computed again after a restart.
        column: of the conversations: a list of {role, content}, or JSON text.

    Raises:
        ConfigError: the role is unknown, lacks what its message is made of, or has what another's is made of.

    Example:
        ask:
          inputs: read
          op:
            _target_: operators.say.Say
            role: user
            content: "What do you know about {{ topic }}?"
    """

    scope = Scope.ROW

    def __init__(
        self,
        role: str,
        content: str | None = None,
        answer: str = TEXT,
        function: Callable[..., Any] | None = None,
        column: str = "messages",
    ) -> None:
        check_one_of("role", role, NEEDS)
        refuse_identity([column], "conversations; use another name")
        arguments = {"content": content, "answer": None if answer == TEXT else answer, "function": function}
        if unread := [key for key, value in arguments.items() if value is not None and key != NEEDS[role]]:
            raise ConfigError(f"{unread[0]} says nothing where role is {role}, whose message is made of {NEEDS[role]}")
        self._column = column
        self._turn: _Turn
        if role == ASSISTANT:
            self._turn = _Answer(answer)
        elif role == TOOL and function is not None:
            self._turn = _Results(function)
        elif content is not None:
            self._turn = _Content(role, content)
        else:
            raise ConfigError(f"role {role} needs {NEEDS[role]}, of which its message is made")

    def plan(self, schema: pa.Schema) -> pa.Schema:
        if self._column in schema.names:
            require_messages(schema, self._column)
        self._columns = self._turn.plan(schema)
        new_field = pa.field(self._column, pa.string())
        fields = [new_field if field.name == self._column else field for field in schema]
        self._schema = pa.schema(fields if self._column in schema.names else [*fields, new_field])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        exists = self._column in batch.data.schema.names
        values = python_values(batch.data.column(self._column)) if exists else [None] * batch.num_rows
        rows = python_rows(batch.data.select(self._columns))
        texts: list[str] = []
        failed: dict[int, str] = {}
        for i, (value, row) in enumerate(zip(values, rows, strict=True)):
            try:
                texts.append(self._conversation(value, row))
            except NoPrompt as error:
                failed[i] = str(error)
            except Exception as error:  # of a tool, which is called once for a row, whatever it raises
                if self.on_error.ends_run or of_machine(error):
                    name_row(error, batch, i)
                    raise
                failed[i] = why_rejected(error)
        rejects, batch = set_apart(batch, failed)
        yield from rejects
        if texts or not failed:
            columns = dict(zip(batch.data.schema.names, batch.data.columns, strict=True))
            columns[self._column] = pa.array(texts, pa.string())
            yield batch.with_data(pa.record_batch(list(columns.values()), schema=self._schema))

    def _conversation(self, value: object, row: Row) -> str:
        """Return the conversation of a row and its new turn, as JSON. `value`: what its column holds."""
        messages = [] if value is None else read_messages(value, self._column)
        if messages:
            conversation(
                messages, self._column, KeptImages()
            )  # refuses what is no message; those that pass are kept as they are
        text = json.dumps([*messages, *self._turn.of(row, messages)], ensure_ascii=False)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise NoPrompt(f"the conversation has {HALF_A_CHARACTER}") from error
        return text


class _Content:
    """A message whose content is a template."""

    def __init__(self, role: str, content: str) -> None:
        self._templates = MessageTemplates([{"role": role, "content": content}], "content")

    def plan(self, schema: pa.Schema) -> list[str]:
        return self._templates.plan(schema)

    def of(self, row: Row, messages: Messages) -> Messages:
        try:
            return self._templates.of(row)
        except Exception as error:  # an expression of the template may raise anything
            if isinstance(error, NoPrompt) or of_machine(error):
                raise
            raise NoPrompt(reason_of(error, "content")) from error


class _Answer:
    """The model's message: its text, its reasoning and its calls."""

    def __init__(self, column: str) -> None:
        self._text = column
        prefix = f"{column}_"
        if column == TEXT or column.endswith(f"_{TEXT}"):
            prefix = column.removesuffix(TEXT)
        self._reasoning, self._calls = prefix + REASONING[0].name, prefix + TOOL_CALLS[0].name

    def plan(self, schema: pa.Schema) -> list[str]:
        require_column(schema, self._text, [pa.string()])
        if self._reasoning in schema.names:
            require_column(schema, self._reasoning, [pa.string()])
        if self._calls in schema.names:
            kind = schema.field(self._calls).type
            if kind != TOOL_CALLS[0].type:
                raise SchemaError(
                    f"column '{self._calls}' has type {kind}; tool calls are list<struct<name: string, arguments:"
                    " string>>: give it another name, or drop it before this node"
                )
        return [name for name in (self._text, self._reasoning, self._calls) if name in schema.names]

    def of(self, row: Row, messages: Messages) -> Messages:
        text, reasoning, calls = row[self._text], row.get(self._reasoning), row.get(self._calls) or []
        if text is None and not calls:
            return []
        message: dict[str, Any] = {"role": ASSISTANT}
        if text or not calls:
            message["content"] = text
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if calls:
            first = sum(len(_calls(earlier)) for earlier in messages)
            message["tool_calls"] = [
                {
                    "id": f"call{number:05}",
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for number, call in enumerate(calls, first)
            ]
        return [message]


class _Results:
    """The messages of tools: what a function returns for each call of the last message."""

    def __init__(self, function: ToolFunction) -> None:
        self._function = function

    def plan(self, schema: pa.Schema) -> list[str]:
        return list(schema.names)

    def of(self, row: Row, messages: Messages) -> Messages:
        last = messages[-1] if messages else {}
        calls = _calls(last) if last.get("role") == ASSISTANT else []
        return [self._message(call, f"tool call {i} of the last message", row) for i, call in enumerate(calls)]

    def _message(self, call: object, where: str, row: Row) -> dict[str, Any]:
        name, arguments = _named(call, where)
        try:
            result = self._function(name, arguments, dict(row))
            content = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except Exception as error:  # of the user's own code, whose line the traceback keeps
            raised = RuntimeError(f"tool '{name}': {type(error).__name__}: {error}")
            raise raised.with_traceback(error.__traceback__) from error
        answered = {"tool_call_id": call["id"]} if isinstance(call, Mapping) and call.get("id") is not None else {}
        return {"role": TOOL, **answered, "name": name, "content": content}


_Turn = _Content | _Answer | _Results
"""What is appended to a conversation: `plan` returns the columns that are read, or raises SchemaError; `of` returns the
messages to append, for the values of these columns and the messages before, or raises NoPrompt."""


def _calls(message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a message."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _named(call: object, where: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of a tool call, in OpenAI's form or without its `function`."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise NoPrompt(f"{where} has no name of a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise NoPrompt(f"{where} ({name}) has arguments that are not JSON: {error}") from error
    if not isinstance(arguments, Mapping | None):
        raise NoPrompt(f"{where} ({name}) has arguments that are {noun(arguments)}; they are an object")
    return name, dict(arguments or {})
