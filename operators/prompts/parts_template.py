"""PartsTemplate: a chat template that takes contents as parts, and prints images as it has learnt them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.prompts.messages import in_parts
from operators.prompts.row_images import NUMBERED
from operators.prompts.template import Template
from operators.prompts.template_process import TemplateProcess

Messages = list[dict[str, Any]]
_TEXT = "qxzjvk"


class PartsTemplate:
    """Gives a chat template the contents of messages as parts: marks of images as {type: image}, as it has learnt them,
    with what it prints around an image (SmolVLM no blank before, LLaVA a line break behind). What it prints for the
    image is the mark again. Where that is not known, or stands in a text of the row, marks are given as texts.

    Args:
        template: which takes parts alone.
        values: of every conversation.
    """

    def __init__(self, template: Template | TemplateProcess, values: Mapping[str, Any]) -> None:
        self.name, self.no_content = template.name, template.no_content
        self.named, self.unknown = template.named, template.unknown
        self._template = template
        self._image = _printed_image(template, values)

    def render_all(self, rows: Sequence[Mapping[str, Any]]) -> list[str | Exception]:
        """Render the template for each of `rows`; in the place of a text may be what it raises."""
        given = [{**values, "messages": in_parts(values["messages"])} for values in rows]
        marks = [self._marks(values["messages"]) for values in given]
        first = [
            {**values, "messages": _with_image_parts(values["messages"])} if its else values
            for values, its in zip(given, marks, strict=True)
        ]
        texts = self._template.render_all(first)
        again: list[int] = []
        for i, (text, its) in enumerate(zip(texts, marks, strict=True)):
            if its and isinstance(text, str) and self._image is not None and text.count(self._image) == len(its):
                pieces = text.split(self._image)
                texts[i] = "".join(a + b for a, b in zip(pieces, [*its, ""], strict=True))
            elif its:
                again.append(i)
        as_texts = self._template.render_all([given[i] for i in again])
        for i, text in zip(again, as_texts, strict=True):
            texts[i] = text
        return texts

    def _marks(self, messages: Messages) -> list[str]:
        """Return the marks in `messages`, in order; none where images are not to be given as parts."""
        texts = list(_texts(messages))
        # The first character of a name may be marked (special_tokens.py).
        if self._image is None or any(self._image[1:] in text for text in texts):
            return []
        return [match[0] for text in texts for match in NUMBERED.finditer(text)]


def _texts(messages: Messages) -> Iterator[str]:
    for message in messages:
        if isinstance(content := message.get("content"), list):
            yield from (part["text"] for part in content)


def _with_image_parts(messages: Messages) -> Messages:
    return [
        {**message, "content": [piece for part in content for piece in _pieces(part)]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]


def _pieces(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a part of text as the texts and images in it."""
    text, at = part["text"], 0
    for match in NUMBERED.finditer(text):
        if before := text[at : match.start()]:
            yield {**part, "text": before}
        yield {"type": "image"}
        at = match.end()
    if at < len(text) or not text:
        yield {**part, "text": text[at:]}


def _printed_image(template: Template | TemplateProcess, values: Mapping[str, Any]) -> str | None:
    """Return what a template prints for an image, without white space around; None if it prints none."""
    said, image = {"type": "text", "text": _TEXT}, {"type": "image"}
    rows = [{**values, "messages": [{"role": "user", "content": parts}]} for parts in ([said], [image, said])]
    without = [{key: value for key, value in row.items() if value is not None} for row in rows]
    for plain, pictured in (template.render_all(rows), template.render_all(without)):
        if isinstance(plain, str) and isinstance(pictured, str):
            begin = _common(plain, pictured)
            end = _common(plain[begin:][::-1], pictured[begin:][::-1])
            printed = pictured[begin : len(pictured) - end].strip()
            return printed if printed and pictured.count(printed) == 1 and printed not in plain else None
    return None


def _common(a: str, b: str) -> int:
    """Return with how many equal characters two texts begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
