"""Render: makes the exact text of each row's prompt."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterable
from typing import Any

import jinja2
import pyarrow as pa
from jinja2.exceptions import SecurityError

from operators.engine.backend.interface import load_model
from operators.prompts.messages import NoPrompt, conversation, require_messages
from operators.prompts.template import Template, columns_of, used_columns
from operators.settings import DataSettings, ModelSettings
from operators.settings.checks import read_text
from pipeline.api.errors import ConfigError, SchemaError, did_you_mean
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

PROMPT_TEXT = pa.field("prompt_text", pa.string())
SPECIAL = ("bos_token", "eos_token")
CHAT_KEY = "model.chat_template"
BYPASSED = (
    "the model has a chat template, and nodes.%s.op.%s bypasses it: a chat model answers worse without its turns. To"
    " keep them make the prompt with Map (templates: {prompt: ...}) before this node; for a base model all is well"
)


class Render(BaseOperator):
    """Makes the text of each row's prompt: adds `prompt_text` (string).

    With `template` or `template_file` it is that Jinja template over the row's columns (and `bos_token`, `eos_token`).
    Else it is the model's chat template over `data.messages_column` (`operators.prompts.messages` says what that may
    hold), or over one user message from `data.prompt_column`, after `model.system` where a conversation has no system
    message. A model without a chat template is given the prompt column as it is. A row that cannot be rendered (a
    prompt that is null or empty, a conversation without messages, `raise_exception`) is a reject.

    A template is given to the model as it is, without the turns that a chat model has learnt. For one of those, make
    the prompt with Map before this node: `templates: {prompt: "..."}`.

    A BOS never comes twice: where the tokenizer puts one first (`add_bos`), that of the text is taken off.

    Args:
        model: its chat template, unless `model.chat_template` names a file; its special tokens.
        data: which columns hold prompts.
        template, template_file: a template over the columns, as text or as a file; at most one.
        raw_column: a column of texts that, where one is not null, are given to the model as they are: for rows that
            continue a text beside rows that are conversations.
        date: ISO date that a chat template gets when it asks for today's. None: it is told that there is none.

    Example:
        render:
          inputs: read
          op:
            _target_: operators.render.Render
            model: ${model}
            data: ${data}
            template: "Summarise in one sentence: {{ text }}"
    """

    def __init__(
        self,
        model: ModelSettings,
        data: DataSettings,
        template: str | None = None,
        template_file: str | None = None,
        raw_column: str | None = None,
        date: str | None = None,
    ) -> None:
        if template is not None and template_file is not None:
            raise ConfigError("both template and template_file are set; keep one")
        self._model = model
        self._data = data
        self._source = template
        self._file = template_file
        self._raw_column = raw_column
        self._date = _parse_date(date)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._row_template = self._user_template()
        path = self._model.chat_template
        self._chat = None if path is None else self._chat_template(read_text(path, CHAT_KEY), f"{CHAT_KEY} {path}")
        if self._row_template is not None:
            self._refuse_ignored(self._row_template.name, schema)
            self._columns = used_columns(self._row_template, schema, SPECIAL)
        elif self._data.messages_column is not None:
            require_messages(schema, self._data.messages_column)
            self._columns = [self._data.messages_column]
        else:
            self._columns = [_require_prompt(schema, self._data.prompt_column)]
        if self._raw_column is not None:
            require_column(schema, self._raw_column, [pa.string()])
        self._schema = add_columns(schema, PROMPT_TEXT)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        files = {"template_file": self._file, "chat_template": self._model.chat_template}
        texts = {key: read_text(path, key) for key, path in files.items() if path is not None}
        return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}

    def open(self, runtime: Runtime) -> None:
        model = load_model(runtime, self._model)
        self._special = {"bos_token": model.bos_token, "eos_token": model.eos_token}
        self._bos = model.bos_token if model.add_bos else ""
        self._unproved: Template | None = None
        if self._row_template is not None:
            if (self._chat or model.chat_template) is not None:
                runtime.log.warning(BYPASSED, runtime.node, "template" if self._file is None else "template_file")
            return
        if self._chat is None and model.chat_template is not None:
            self._chat = self._chat_template(model.chat_template, "the model's chat template")
        if self._chat is None and self._raw_column is None:
            self._check_no_chat_is_needed()
            runtime.log.info("the model has no chat template: '%s' is given to it as it is", self._columns[0])
        self._unproved = self._chat

    def process(self, batch: Batch) -> Iterable[Output]:
        if self._unproved is not None:  # not in `open`: here the watchdog can end a template that loops forever
            _probe(self._unproved, self._chat_values([{"role": "user", "content": "x"}]))
            self._unproved = None
        columns = [batch.data.column(name).to_pylist() for name in self._columns]
        raw: list[Any] = [None] * batch.num_rows
        if self._raw_column is not None:
            raw = batch.data.column(self._raw_column).to_pylist()
        texts: list[str] = []
        failed: dict[int, str] = {}
        for i, values in enumerate(zip(*columns, strict=True) if columns else [()] * batch.num_rows):
            try:
                texts.append((self._text(values) if raw[i] is None else raw[i]).removeprefix(self._bos))
            except NoPrompt as error:
                failed[i] = str(error)
            except jinja2.TemplateError as error:
                failed[i] = f"template: {error.message}"
            except Exception as error:  # an expression of the template may raise anything
                failed[i] = f"template: {type(error).__name__}: {error}"
        data = batch.data
        if failed:
            yield batch.reject(list(failed), list(failed.values()))
            data = data.take(pa.array([i for i in range(batch.num_rows) if i not in failed], pa.int64()))
        if texts:
            made = pa.array(texts, pa.string())
            yield batch.with_data(pa.record_batch([*data.columns, made], schema=self._schema))

    def _text(self, values: tuple[Any, ...]) -> str:
        """Return the text of a row with these `values` of the columns that are read."""
        if self._row_template is not None:
            return self._row_template.render({**self._special, **dict(zip(self._columns, values, strict=True))})
        if self._chat is not None:
            return self._chat.render(self._chat_values(self._messages(values[0])))
        if self._raw_column is not None:
            raise NoPrompt(
                "the model has no chat template, so it can only continue texts; name a template with"
                " model.chat_template="
            )
        return _prompt(values[0], self._columns[0])

    def _chat_values(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"messages": messages, "add_generation_prompt": True, **self._special}

    def _messages(self, value: Any) -> list[dict[str, Any]]:
        column = self._columns[0]
        if self._data.messages_column is None:
            messages = [{"role": "user", "content": _prompt(value, column)}]
        else:
            messages = conversation(value, column)
        if self._model.system is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self._model.system})
        return messages

    def _check_no_chat_is_needed(self) -> None:
        for what, value in (("data.messages_column", self._data.messages_column), ("model.system", self._model.system)):
            if value is not None:
                raise ConfigError(
                    f"{what}={value!r} needs a chat template and the model has none; name a file with"
                    " model.chat_template=, or write a template over the columns"
                )

    def _refuse_ignored(self, template: str, schema: pa.Schema) -> None:
        """Raise for settings about prompts that a template over the columns would ignore."""
        if self._model.system is not None:
            raise ConfigError(
                f"model.system={self._model.system!r} has no effect where {template.split()[0]} is set; write it into"
                " the template and leave model.system out, or make the prompt with Map and leave the template out"
            )
        defaults = DataSettings()
        for key in ("prompt_column", "messages_column"):
            name = getattr(self._data, key)
            if name not in (getattr(defaults, key), *schema.names):
                raise SchemaError(
                    f"data.{key}={name} is no column; {columns_of(schema)}: the template says what the prompt is,"
                    f" so leave data.{key} out{did_you_mean(name, schema.names, f'data.{key}=')}"
                )

    def _user_template(self) -> Template | None:
        if self._file is not None:
            return Template(read_text(self._file, "template_file"), f"template_file {self._file}", strict=True)
        return None if self._source is None else Template(self._source, "template", strict=True)

    def _chat_template(self, source: str, name: str) -> Template:
        return Template(source, name, strict=False, date=self._date)


def _require_prompt(schema: pa.Schema, name: str) -> str:
    if name not in schema.names:
        several = next((column for column in schema.names if name in re.split(r"[;|\t]", column)), None)
        hint = f"; '{several}' looks like several columns: CSV has commas between them" if several else ""
        raise SchemaError(
            f"there is no column '{name}'; {columns_of(schema)}:"
            " name the one that holds the prompt with data.prompt_column=, or write a template"
            + (hint or did_you_mean(name, schema.names, "data.prompt_column="))
        )
    kind = schema.field(name).type
    if kind != pa.string():
        raise SchemaError(
            f"column '{name}' has type {kind}, and a prompt is a string; write a template, which makes a text of it"
            f" ('nodes.render.op.template=\"{{{{ {name} }}}}\"')"
        )
    return name


def _prompt(value: str | None, column: str) -> str:
    if not value:
        raise NoPrompt(f"column '{column}' is {'null' if value is None else 'empty'}; give it a text or drop the row")
    return value


def _probe(template: Template, values: dict[str, Any]) -> None:
    """Raise for a chat template that fails for every row."""
    try:
        template.render(values)
    except (SecurityError, OverflowError) as error:
        raise ConfigError(
            f"{template.name} cannot be used, not even for a conversation of one word: {error}."
            " Name another one with model.chat_template="
        ) from error
    except jinja2.UndefinedError as error:
        if "strftime_now" in str(error):
            raise ConfigError(
                f"{template.name} asks for today's date, which would make every run another one;"
                " fix a date with nodes.render.op.date=2026-01-31"
            ) from error
    except Exception:  # it may accept other conversations (one with a system message, say)
        pass


def _parse_date(date: str | None) -> datetime.date | None:
    try:
        return None if date is None else datetime.date.fromisoformat(date)
    except ValueError as error:
        raise ConfigError(f"date={date!r} is no date; write it as 2026-01-31") from error
