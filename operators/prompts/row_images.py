"""The images of rows on their way into prompts: where they come from, and the marks that stand for them in texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from operators.images.columns import IMAGE, IMAGE_MARK, PROMPT_IMAGES, are_of_columns, has_prompt_images
from operators.images.forms import WANTED, Image, ImageForms, holds_images, input_folders
from operators.images.read import BadImage, require
from operators.prompts.messages import NoImages
from operators.rows.token_lists import PROMPT_IDS, PROMPT_TEXT
from operators.settings import DataSettings, ModelSettings
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import ConfigError, SchemaError, did_you_mean

HAS_MARK = (
    "a text of the row has the character U+FDD1, which stands for an image in prompts (Unicode keeps it for programs);"
    " take it out of the row"
)
_FIRST_NUMBER = 0x100000
"""Character behind a mark that says which image it is, while texts are made: of the private use area."""
NUMBERED = re.compile(f"{IMAGE_MARK}([\U00100000-\U0010fffd])")


class Marks(list[str]):
    """The marks of a column's images. In a template `{{ column }}` prints all, `{{ column[0] }}` the first."""

    def __str__(self) -> str:
        return "".join(self)


class RowImages:
    """The images of one row.

    Args:
        forms: makes images of values.
        columns: values of the columns with images, by name.

    Attributes:
        marks: of the images of columns, by column.

    Raises:
        BadImage: a column holds something else.
    """

    def __init__(self, forms: ImageForms, columns: Mapping[str, Any]) -> None:
        self._forms = forms
        self._images: list[Image] = []
        self.marks: dict[str, Marks] = {}
        for name, value in columns.items():
            try:
                self.marks[name] = Marks(map(self._numbered, forms.images(value)))
            except BadImage as error:
                raise BadImage(f"column '{name}': {error}") from None
        self._of_columns = len(self._images)
        self._next = 0

    def text(self, text: str) -> str:
        """Return a text of the row. Raises BadImage if it has the mark of an image."""
        if IMAGE_MARK in text:
            raise BadImage(HAS_MARK)
        return text

    def part(self, value: Any) -> str:
        """Return the mark of the image that a part of a message has. Raises BadImage if it has none, or several."""
        images = self._forms.images(value)
        if len(images) != 1:
            raise BadImage(f"{len(images) or 'no'} images where one belongs")
        return self._numbered(images[0])

    def placeholder(self, index: Any) -> str:
        """Return the mark of the next image of the columns, for a part that only says where one belongs. Raises
        BadImage if there is none, or it is not the one that `index` says."""
        if self._next == self._of_columns:
            has = f"the columns of images have {self._of_columns}" if self.marks else "data.image_column is not set"
            raise BadImage(f"an image part without an image, number {self._next + 1}, and {has}")
        if index is not None and index != self._next:
            raise BadImage(
                f"image part {self._next + 1} of the row has the index {index}, and parts take the images of columns in"
                f" their order, from 0; give it the index {self._next} or none, or the image itself"
            )
        self._next += 1
        return f"{IMAGE_MARK}{chr(_FIRST_NUMBER + self._next - 1)}"

    def unplaced(self, texts: Sequence[str]) -> str:
        """Return the marks of the images of columns that stand in none of `texts`. Raises BadImage if only some of the
        messages' parts have got one."""
        if 0 < self._next < self._of_columns:
            raise BadImage(
                f"the messages have {self._next} image parts, and the columns of images have {self._of_columns}; give"
                " each its part, or none"
            )
        placed = {match[1] for text in texts for match in NUMBERED.finditer(text)}
        return "".join(m for marks in self.marks.values() for m in marks if m[1] not in placed)

    def settled(self, text: str) -> tuple[str, list[Image]]:
        """Return `text` with plain marks, and the images in their order there.

        Raises:
            BadImage: an image is not there, or more than once: the template has changed the text.
        """
        numbers = [ord(match[1]) - _FIRST_NUMBER for match in NUMBERED.finditer(text)]
        if sorted(numbers) != list(range(len(self._images))) or text.count(IMAGE_MARK) != len(numbers):
            raise BadImage(
                f"the row has {len(self._images)} images, and the template prints {len(set(numbers))} of them, in"
                f" {text.count(IMAGE_MARK)} places; it has to print each once"
            )
        return self.plain(text), [self._images[number] for number in numbers]

    def plain(self, text: str) -> str:
        """Return `text` with plain marks."""
        return NUMBERED.sub(IMAGE_MARK, text) if self._images else text

    def _numbered(self, image: Image) -> str:
        self._images.append(image)
        return f"{IMAGE_MARK}{chr(_FIRST_NUMBER + len(self._images) - 1)}"


class JobImages:
    """The columns of a job that have images, and where their files may lie.

    Args:
        data: names a column, and says where images may be.
        names: columns of a node or step, in the place of `data.image_column`; None: that one.
    """

    def __init__(self, data: DataSettings, names: Sequence[str] | None) -> None:
        of_job = [] if data.image_column is None else [data.image_column]
        self.key = "data.image_column" if names is None else "images"
        self.names = of_job if names is None else list(names)
        self.is_given = names is not None or data.image_column is not None
        self._data = data

    def plan(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are read.

        Raises:
            ConfigError: `data.image_root` is no folder, or Pillow is not installed.
            SchemaError: a column is missing, or cannot hold images.
        """
        for name in self.names:
            if name not in schema.names:
                near = did_you_mean(name, schema.names, f"{self.key}=") or f"; the input has {', '.join(schema.names)}"
                raise SchemaError(f"{self.key}={name} is no column{near}")
            if not holds_images(kind := schema.field(name).type):
                raise SchemaError(f"column '{name}' has type {kind}, and an image is {WANTED} ({self.key}={name})")
        if self.names:
            require()
        root = self._data.image_root
        if root is not None and not Path(root).expanduser().is_dir():
            raise ConfigError(f"data.image_root={root} is no folder; name the one below which the images are")
        self._forms = ImageForms(root, input_folders(self._data.path), self._data.image_domains)
        return self.names

    def unread(self, model: ModelSettings) -> NoImages | None:
        """Return what refuses images in messages where `model` reads none; None where it does.

        Raises:
            ConfigError: it does not, and columns have images.
        """
        if reads_images(model):
            return None
        beside = _mmproj_beside(Path(model.path).expanduser()) if model.path else None
        remedy = f"model.mmproj={beside} lies beside it" if beside else "name its mmproj file with model.mmproj="
        if self.names:
            raise ConfigError(
                f"{self.key}={self.names[0]} gives images to a model that reads none: model.mmproj is not set; {remedy}"
                " (images: [] of a step or Render leaves them out)"
            )
        return NoImages(f"an image, and the model reads none: model.mmproj is not set; {remedy}")

    def of(self, row: dict[str, Any]) -> RowImages:
        """Return the images of a row, and put the marks of each column in the place of its value.

        Raises:
            BadImage: a column holds none, or a text of the row has a mark.
        """
        if any(holds_mark(value) for name, value in row.items() if name not in self.names):
            raise BadImage(HAS_MARK)
        images = RowImages(self._forms, {name: row[name] for name in self.names})
        row |= images.marks
        return images


def _mmproj_beside(model: Path) -> Path | None:
    """Return the mmproj file in the folder of a model's file, of several the one with the most similar name."""

    def likeness(file: Path) -> float:
        return SequenceMatcher(None, model.stem.lower(), file.stem.lower().replace("mmproj", "")).ratio()

    return max(sorted(model.parent.glob("*mmproj*.gguf")), key=likeness, default=None)


def reads_images(model: ModelSettings) -> bool:
    """Return whether a model reads images, as far as settings say: a server tells only when it is asked."""
    return isinstance(model, EndpointSettings) or model.mmproj is not None


def may_have_images(model: ModelSettings, data: DataSettings, names: Sequence[str] | None, *, parts: bool) -> bool:
    """Return whether prompts have a column of images: whether columns of the job have some (`names`, or that of
    `data`), or messages may, in `parts`, and the model reads them."""
    return reads_images(model) and (parts or bool(JobImages(data, names).names))


def unused_images(model: ModelSettings, schema: pa.Schema) -> str | None:
    """Return a warning for prompts without images, where `model` reads them; None where nothing says that there are
    some: a server has no encoder that settings name, and no column has images."""
    names = [field.name for field in schema if field.type in (IMAGE, pa.list_(IMAGE))]
    meant = "images: [] (of the step or Render) says that this is meant"
    if names:
        return (
            f"column '{names[0]}' has images, and prompts have none of them: data.image_column={names[0]} (or images of"
            f" the step) gives them to the model, {meant}"
        )
    if isinstance(model, EndpointSettings) or model.mmproj is None:
        return None
    return (
        "model.mmproj is set, and prompts have no images: data.image_column= names the column that has them (paths,"
        f" bytes or URLs), {meant}"
    )


def holds_mark(value: Any) -> bool:
    """Return True if a text inside a value of a row has the mark of an image."""
    if isinstance(value, str):
        return IMAGE_MARK in value
    if isinstance(value, Mapping):
        return any(holds_mark(inner) for inner in value.values())
    return isinstance(value, list | tuple) and any(map(holds_mark, value))


def refuse_images(schema: pa.Schema, names: Iterable[str], title: str) -> None:
    """Raise SchemaError if prompts in one of the columns `names` have images of columns, which `title` reads not."""
    for name, beside in _images_beside(schema, names):
        if are_of_columns(schema.field(beside)):
            raise SchemaError(
                f"{title} reads texts alone, and the prompts in '{name}' have images; write images: [] where they are"
                " made (Render, or the step)"
            )


def rows_with_images(data: pa.RecordBatch, names: Iterable[str], title: str) -> dict[int, str]:
    """Return by its index why a row cannot be read by `title`: its prompt in one of the columns `names` has images."""
    why = f"the prompt has images, which {title} does not read"
    columns = [data.column(beside) for _, beside in _images_beside(data.schema, names)]
    return {i: why for column in columns for i in np.flatnonzero(column.is_valid()).tolist()}


def _images_beside(schema: pa.Schema, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield those of `names` that are prompts with images, and the columns with these."""
    for name in names:
        for ending in (PROMPT_TEXT.name, PROMPT_IDS.name):
            beside = name.removesuffix(ending) + PROMPT_IMAGES.name
            if name.endswith(ending) and has_prompt_images(schema, beside):
                yield name, beside


def with_images_named(text: str, row: pa.RecordBatch) -> str:
    """Return the text of the prompt of a single row with what its images are in the place of their marks, to show."""
    images = row.column(PROMPT_IMAGES.name).to_pylist()[0] if has_prompt_images(row.schema) else None
    for number, image in enumerate(images or (), 1):
        named = image["path"] or f"{len(image['bytes']):,} bytes"
        text = text.replace(IMAGE_MARK, f"<image {number}: {named}>", 1)
    return text
