"""Rendering: what the operators share that make the prompt of each row, as a text or as messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from operators.images.columns import PROMPT_IMAGES, has_prompt_images, limited, title_of
from operators.images.forms import URL, Image
from operators.images.read import BadImage
from operators.images.web import ImageFetcher
from operators.prompts.arguments import TemplateArguments
from operators.prompts.columns import columns_of, used_columns
from operators.prompts.conversations import (
    SYSTEM,
    USER,
    Conversations,
    Messages,
    MessagesColumn,
    MessageTemplates,
    PromptColumn,
    with_images,
)
from operators.prompts.messages import NoPrompt, may_have_parts
from operators.prompts.row_images import JobImages, RowImages, may_have_images, reads_images, unused_images
from operators.prompts.template import Template, reason_of
from operators.rows.batches import set_apart
from operators.rows.sql import Where
from operators.rows.token_lists import PROMPT_LITERALS, PROMPT_TEXT
from operators.settings import DataSettings, ModelSettings
from operators.settings.checks import check_one_of, read_text
from pipeline.api import ROW, Batch, ConfigError, Operator, Output, Runtime, SchemaError, add_columns, require_column
from pipeline.api.errors import did_you_mean
from pipeline.api.records import python_values
from pipeline.system.redaction import clean_url

ASSISTANT = "assistant"
SPECIAL = ("bos_token", "eos_token")
CHAT_KEY = "model.chat_template"
IMAGE_ROWS = 32
"""Rows that are rendered at a time where they may have images, whose bytes are in memory then."""


class Prompt(NamedTuple):
    """The text of a prompt. `literals`: see PROMPT_LITERALS; `told`: what is told of its row; `images`: in the order of
    their marks in the text."""

    text: str
    literals: Sequence[int] = ()
    told: str = ""
    images: Sequence[Image] = ()


class Rendering(Operator):
    """Adds `prompt_text` and `prompt_literals` to each row, and `prompt_images` where rows may have images; a row
    without a prompt is a reject. Subclasses make the texts in `_texts`.

    Args:
        model, data, template, template_file, raw_column, messages, writes, where, images: see operators.render.Render.
    """

    _unproved: Template | None
    """The user's file with a chat template, until it has been proven."""
    _bos = ""
    """Taken off the beginning of a text, where the tokenizer puts it."""

    def __init__(
        self,
        model: ModelSettings,
        data: DataSettings,
        template: str | None = None,
        template_file: str | None = None,
        raw_column: str | None = None,
        messages: list[dict[str, str]] | str | None = None,
        writes: str = "assistant",
        where: str | None = None,
        images: list[str] | None = None,
    ) -> None:
        sources = {"template": template, "template_file": template_file, "messages": messages}
        if len(several := [key for key, value in sources.items() if value is not None]) > 1:
            raise ConfigError(f"both {several[0]} and {several[1]} are set; keep one")
        check_one_of("writes", writes, (ASSISTANT, USER))
        if data.continue_final_message and writes == USER:
            raise ConfigError("data.continue_final_message=true and writes=user cannot both be; keep one")
        self._model = model
        self._data = data
        self._source = template
        self._file = template_file
        self._raw_column = raw_column
        self._conversations = _conversations(data, messages)
        self._arguments = TemplateArguments(model, data)
        self._user_writes = writes == USER
        self._where = Where(where)
        self._images = JobImages(data, images)
        self._has_parts = template is None and template_file is None and self._conversations.has_parts
        self._may_have_images = may_have_images(model, data, images, parts=self._has_parts)
        if self._images.names and raw_column is not None:
            raise ConfigError(f"{self._images.key} and raw_column cannot both be: a text as it is has no images")

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._where.plan(schema)
        self._row_template = self._user_template()
        path = self._model.chat_template
        self._unproved = None
        if path is not None:
            text = read_text(path, CHAT_KEY)
            self._unproved = Template(text, f"{CHAT_KEY} {path}", strict=False, date=self._model.date_given)
        if self._row_template is not None:
            self._refuse_ignored(self._row_template.name, schema)
            self._columns = used_columns(self._row_template, schema, SPECIAL)
        else:
            columns = [*self._conversations.plan(schema), *self._arguments.plan(schema)]
            self._columns = list(dict.fromkeys(columns))
        of_images = self._images.plan(schema)
        self._no_images = self._images.unread(self._model)
        is_meant = self._images.is_given or self._may_have_images or not reads_images(self._model)
        self._warning = None if is_meant or self._raw_column is not None else unused_images(self._model, schema)
        if self._row_template is not None and (lost := [name for name in of_images if name not in self._columns]):
            raise ConfigError(
                f"{self._row_template.name} does not say where the images of column '{lost[0]}' stand; write"
                f" {{{{ {lost[0]} }}}} there, or leave them out with images: []"
            )
        self._columns = list(dict.fromkeys([*self._columns, *of_images]))
        if self._raw_column is not None:
            require_column(schema, self._raw_column, [pa.string()])
        stale = [PROMPT_LITERALS.name]  # of an earlier prompt, whose text was dropped
        stale += [PROMPT_IMAGES.name] if has_prompt_images(schema) else []
        schema = pa.schema([field for field in schema if field.name not in stale])
        added = [PROMPT_TEXT, PROMPT_LITERALS]
        if self._may_have_images:
            columns = [] if self._has_parts else of_images
            limit = self._data.image_max_pixels
            added.append(limited(PROMPT_IMAGES, limit, of_columns=bool(of_images), columns=columns))
        self._with_parts = self._conversations.plan(schema) if self._has_parts else []
        self._kept, self._schema = schema.names, add_columns(schema, *added)
        return self._schema

    @cached_property
    def _fetcher(self) -> ImageFetcher:
        return ImageFetcher(self._data.image_domains)

    def fingerprint(self) -> dict[str, Any]:
        files = {"template_file": self._file, "chat_template": self._model.chat_template}
        if isinstance(self._data.tools, str):
            files["tools"] = self._data.tools
        texts = {key: read_text(path, key) for key, path in files.items() if path is not None}
        return {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}

    def process(self, batch: Batch) -> Iterable[Output]:
        rows = IMAGE_ROWS if self._holds_images(batch.data) else max(batch.num_rows, 1)
        for start in range(0, batch.num_rows, rows):
            part = batch if rows >= batch.num_rows else batch.with_data(batch.data.slice(start, rows))
            yield from self._rendered_batch(part)

    def _holds_images(self, data: pa.RecordBatch) -> bool:
        """Return False if no row has an image, at a cheap look; else True."""
        of_parts = any(may_have_parts(data.column(name)) for name in self._with_parts)
        return self._may_have_images and (of_parts or bool(self._images.names))

    def _rendered_batch(self, batch: Batch) -> Iterable[Output]:
        batch, beside = self._where.chosen(batch, self._kept, self._schema)
        yield from beside
        columns = [python_values(batch.data.column(name)) for name in self._columns]
        raw: list[Any] = [None] * batch.num_rows
        if self._raw_column is not None:
            raw = batch.data.column(self._raw_column).to_pylist()
        rows = list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows
        rendered = iter(self._texts([values for values, text in zip(rows, raw, strict=True) if text is None]))
        made = [next(rendered) if text is None else self._raw(text) for text in raw]
        if self._may_have_images:
            made = self._fetched(made)
        failed = {
            i: str(prompt) if isinstance(prompt, NoPrompt | BadImage) else reason_of(prompt)
            for i, prompt in enumerate(made)
            if isinstance(prompt, Exception)
        }
        prompts = [self._without_bos(prompt) for prompt in made if isinstance(prompt, Prompt)]
        rejects, batch = set_apart(batch, failed)
        yield from rejects
        if prompts:
            data = batch.data
            texts = pa.array([prompt.text for prompt in prompts], pa.string())
            literals = pa.array([prompt.literals or None for prompt in prompts], PROMPT_LITERALS.type)
            added = [texts, literals]
            if self._may_have_images:
                added.append(pa.array([prompt.images or None for prompt in prompts], PROMPT_IMAGES.type))
            said = [(i, prompt.told) for i, prompt in enumerate(prompts) if prompt.told]
            kept = [data.column(name) for name in self._kept]
            with_texts = pa.record_batch([*kept, *added], schema=self._schema)
            yield batch.with_data(with_texts, told=((data.column(ROW.name)[i].as_py(), why) for i, why in said))

    def _fetched(self, prompts: Sequence[Prompt | Exception]) -> list[Prompt | Exception]:
        """Return `prompts` with what is at the URLs of their images, and BadImage for one where that cannot be had."""
        urls = [each[URL] for prompt in prompts if isinstance(prompt, Prompt) for each in prompt.images if URL in each]
        urls = list(dict.fromkeys(urls))
        if not urls:
            return list(prompts)
        found = dict(zip(urls, self._fetcher.fetch_all(urls), strict=True))
        field = self._schema.field(PROMPT_IMAGES.name)
        return [_with_fetched(p, found, field) if isinstance(p, Prompt) else p for p in prompts]

    def _texts(self, rows: Sequence[tuple[Any, ...]]) -> list[Prompt | Exception]:
        """Return the prompt of each row of values of `self._columns`, or what making it raised."""
        raise NotImplementedError

    def _raw(self, text: str) -> Prompt:
        """Return the prompt that a row of `raw_column` gives as it is."""
        return Prompt(text)

    def _without_bos(self, prompt: Prompt) -> Prompt:
        """Take off a BOS that a template wrote, and the white space before it, since the tokenizer puts one first."""
        if not self._bos:
            return prompt
        begins = len(prompt.text) - len(prompt.text.lstrip())
        if not prompt.text.startswith(self._bos, begins) or begins in prompt.literals:
            return prompt
        cut = begins + len(self._bos)
        return prompt._replace(text=prompt.text[cut:], literals=[place - cut for place in prompt.literals])

    def _warn(self, runtime: Runtime) -> None:
        """Warn of images that no prompt has."""
        if self._warning is not None:
            runtime.log.warning("%s: %s", runtime.node, self._warning)

    def _images_of(self, row: dict[str, Any]) -> RowImages | None:
        """Return the images of a row, and put marks in the place of its columns of images; None where no row has any.
        Raises BadImage."""
        return self._images.of(row) if self._may_have_images else None

    def _messages(self, row: dict[str, Any], images: RowImages | None) -> Messages:
        """Return the conversation that a row begins with, with marks of its images."""
        messages = self._conversations.of(row, images or self._no_images)
        return messages if images is None else with_images(messages, images, first=self._conversations.has_parts)

    def _with_system(self, messages: Messages) -> Messages:
        """Put `model.system` before `messages` that have no system message."""
        if self._model.system is not None and (not messages or messages[0]["role"] != SYSTEM):
            messages.insert(0, {"role": SYSTEM, "content": self._model.system})
        return messages

    def _refuse_ignored(self, template: str, schema: pa.Schema) -> None:
        """Raise for settings about prompts that a template over the columns would ignore."""
        if self._model.system is not None:
            raise ConfigError(
                f"model.system={self._model.system!r} has no effect where {template.split()[0]} is set; write it into"
                " the template and leave model.system out, or write data.prompt_template instead of the template"
            )
        for key in (
            "data.prompt_template" if self._data.prompt_template is not None else None,
            self._arguments.setting,
        ):
            if key is not None:
                raise ConfigError(f"{key} has no effect where {template.split()[0]} is set; keep one")
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


def _with_fetched(prompt: Prompt, found: Mapping[str, bytes | BadImage], field: pa.Field) -> Prompt | BadImage:
    images: list[Image] = []
    for number, image in enumerate(prompt.images, 1):
        content = found[image[URL]] if URL in image else None
        if isinstance(content, BadImage):
            return BadImage(f"{title_of(field, number, len(prompt.images))}{content}")
        images.append(image if content is None else {"bytes": content, "path": clean_url(image[URL])})
    return prompt._replace(images=images)


def _conversations(data: DataSettings, messages: list[dict[str, str]] | str | None) -> Conversations:
    if isinstance(messages, str):
        return MessagesColumn(messages, "messages")
    if messages is not None:
        return MessageTemplates(messages)
    if data.prompt_template is not None:
        return MessageTemplates([{"role": USER, "content": data.prompt_template}], "data.prompt_template")
    if data.messages_column is not None:
        return MessagesColumn(data.messages_column)
    return PromptColumn(data.prompt_column)
