"""ImagePrompts: tokenizes prompts with images, whose cells get ids from the content of the images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from operators.engine.backend.images import ImageCells, Vision
from operators.engine.backend.interface import TokenIds
from operators.engine.backend.text_columns import TextColumns
from operators.engine.images.cells import cell_ids
from operators.images.columns import IMAGE_MARK, PROMPT_IMAGES, most_pixels, title_of
from operators.images.read import BadImage, image_size, named, read_image
from operators.images.resize import digest_of
from operators.rows.token_lists import list_column, list_views

_ITEM = PROMPT_IMAGES.type.value_type
PLACED_IMAGES = pa.field(
    PROMPT_IMAGES.name,
    pa.list_(
        pa.struct([*_ITEM, ("digest", pa.binary()), ("starts", pa.list_(pa.int32())), ("cells", pa.list_(pa.int32()))])
    ),
)
"""`prompt_images` behind Tokenize: with the digest of the pixels that the model gets, and where the blocks of each
image begin in `prompt_ids` and how many cells they have. Without a digest only the header of its file was read."""


class ImagePrompts:
    """Tokenizes the texts of a column with images in them.

    Args:
        texts: tokenizes what is between images.
        vision: of the model.
        bos: tokens that the tokenizer puts before any text.
        sizes_alone: no image is decoded, since its size says how many cells it has; their ids are made of the content
            of its file, or of its path.
    """

    def __init__(self, texts: TextColumns, vision: Vision, bos: int, *, sizes_alone: bool = False) -> None:
        self._texts = texts
        self._vision = vision
        self._bos = bos
        self._sizes_alone = sizes_alone

    def tokenize(self, data: pa.RecordBatch, name: str) -> tuple[pa.ListArray, pa.Array, dict[int, str]]:
        """Return the ids of the texts of column `name`, their images with their places (PLACED_IMAGES), and by its
        index why a row cannot be had; it has an empty prompt then."""
        prompts = list_views(list_column(*self._texts.tokenize(data, name)))
        placed: list[list[dict[str, Any]] | None] = [None] * len(prompts)
        refused: dict[int, str] = {}
        of_rows = data.column(PROMPT_IMAGES.name).to_pylist()
        field = data.schema.field(PROMPT_IMAGES.name)
        if any(of_rows):
            texts, marked = data.column(name).to_pylist(), self._texts.marked(data, name)
            for i, images in enumerate(of_rows):
                if images:
                    try:
                        prompts[i], placed[i] = self._prompt(texts[i] or "", marked[i], images, field)
                    except BadImage as error:
                        prompts[i], refused[i] = np.empty(0, np.int32), str(error)
        ends = np.cumsum([0, *map(len, prompts)], dtype=np.int32)
        ids = np.concatenate(prompts) if prompts else np.empty(0, np.int32)
        return list_column(ids, ends), pa.array(placed, PLACED_IMAGES.type), refused

    def _prompt(
        self, text: str, marked: str, images: Sequence[Mapping[str, Any]], field: pa.Field
    ) -> tuple[TokenIds, list[dict[str, Any]]]:
        """Return the ids of one prompt, and its images with their places. Raises BadImage."""
        around = f"{self._vision.apart}{IMAGE_MARK}{self._vision.apart}"
        pieces = list(
            zip(*(each.replace(IMAGE_MARK, around).split(IMAGE_MARK) for each in (text, marked)), strict=True)
        )
        if len(pieces) != len(images) + 1:
            raise BadImage(f"the prompt has places for {len(pieces) - 1} images, and the row has {len(images)}")
        parts = [self._texts.joined(*pieces[0])]
        length = len(parts[0])
        placed: list[dict[str, Any]] = []
        limit = most_pixels(field)
        for number, (image, piece) in enumerate(zip(images, pieces[1:], strict=True), 1):
            try:
                (width, height), digest = self._looked_at(image, limit)
                layout = self._vision.layout(width, height)
            except ValueError as error:  # BadImage, or a size that the encoder does not take
                raise BadImage(f"{title_of(field, number, len(images))}{named(image, error)}") from error
            content = digest or stand_in(image)
            starts: list[int] = []
            cells: list[int] = []
            blocks: Iterator[int] = count()
            for part in layout:
                if isinstance(part, ImageCells):
                    starts.append(length)
                    cells.append(part.tokens)
                    part = cell_ids(content + self._vision.fingerprint.encode(), next(blocks), part.tokens)
                parts.append(part)
                length += len(part)
            placed.append({**image, "digest": digest, "starts": starts, "cells": cells})
            parts.append(self._texts.joined(*piece)[self._bos :])
            length += len(parts[-1])
        return np.concatenate(parts), placed

    def _looked_at(self, image: Mapping[str, Any], limit: int) -> tuple[tuple[int, int], bytes | None]:
        """Return the (width, height) of an image as the model gets it, and its digest. Raises BadImage."""
        if self._sizes_alone:
            return self._vision.resize.size(*image_size(image, limit)), None
        pixels = self._vision.resize.apply(read_image(image, limit))
        return (pixels.shape[1], pixels.shape[0]), digest_of(pixels)


def stand_in(image: Mapping[str, Any]) -> bytes:
    """Return what stands for the digest of an image that was not decoded: 16 bytes, of its file or of its path."""
    content = image["path"].encode() if image["bytes"] is None else image["bytes"]
    return hashlib.blake2b(content, digest_size=16).digest()
