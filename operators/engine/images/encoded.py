"""EncodedImages: encodes the images of rows, each once, and keeps what was computed within bounds."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from operators.engine.backend.images import Encoded, ImageSpan, Pixels, Vision
from operators.engine.backend.interface import Model, TokenIds
from operators.engine.images.cells import cell_ids
from operators.engine.images.columns import PLACED_IMAGES, stand_in
from operators.engine.images.files import MIB, EncodedFiles
from operators.images.columns import PROMPT_IMAGES, most_pixels, title_of
from operators.images.read import BadImage, named, read_image
from operators.images.resize import digest_of
from operators.rows.token_lists import PROMPT_IDS, list_views
from operators.settings import StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api import Runtime
from pipeline.api.errors import ConfigError, PipelineError
from pipeline.api.numbers import counted

_GRAY = 64
"""Pixels of a side of the image by which an encoder is judged."""
_PLACES = 1 << 16
"""Images that are known to have been encoded, each in one place; of far more than that fewer are counted again."""
_FLOAT_BYTES = 4
CHANGED = "the image is not the one that was tokenized: its file has changed since the run read it"


Prompt = tuple[TokenIds, tuple[ImageSpan, ...]]
"""The ids of a prompt, and the images in it."""


def have_images(schema: pa.Schema) -> bool:
    """Return whether prompts may have images."""
    at = schema.get_field_index(PROMPT_IMAGES.name)
    return at >= 0 and bool(schema.field(at).type == PLACED_IMAGES.type)


@dataclass
class ImageCounts:
    """Counts since the run began."""

    images_encoded: int = counted("images encoded", "images")
    image_cells: int = counted("cells of images encoded", "tokens")
    images_again: int = counted(
        "images encoded or read again, whose memory others had taken (runtime.image_mb)", "images"
    )
    images_at_hand: int = counted("images of rows that were still in memory, encoded", "images")
    images_from_files: int = counted("images that an earlier run had encoded (store.images_mb)", "images")


class EncodedImages:
    """What the encoder of a model has made of the images of rows.

    An image is encoded by the engine's thread when its cells are to be computed, and kept until newer ones need its
    memory: rows with other questions about it mostly follow each other. Rows that share its cells in the KV cache do
    not ask at all.

    Args:
        model: its vision encoder is asked for with the first image: by then the model has a context, whose number of
            threads the encoder takes.
        most_bytes: of all that is kept in memory, but for the newest image.
        most_in_files: of all that is kept longer, in files.
    """

    def __init__(self, model: Model, most_bytes: int, most_in_files: int = 0) -> None:
        self._model = model
        self._most_in_files = most_in_files
        self._most_bytes = most_bytes
        self._kept: dict[bytes, list[Encoded]] = {}
        self._bytes = 0
        self._seen = np.zeros(_PLACES, np.int64)
        self._lock = threading.Lock()
        self.counts = ImageCounts()
        self._digests: dict[bytes, bytes] = {}
        self.reads, self.read_s = 0, 0.0
        """Images that were read and resized, and the seconds of that."""

    @classmethod
    def shared(cls, runtime: Runtime, model: Model, settings: EngineSettings, store: StoreSettings) -> EncodedImages:
        """Return those of `model`, for all nodes that share it."""

        def make() -> EncodedImages:
            images = cls(model, settings.image_mb * MIB, store.images_mb * MIB if store.enabled else 0)
            runtime.numbers(images.counts, "engines", of_run=True)
            return images

        return runtime.resource(("images", id(model)), make)

    @functools.cached_property
    def _vision(self) -> Vision:
        if (vision := self._model.vision) is None:
            raise ConfigError("prompts have images, and the model reads none: model.mmproj is not set")
        return vision

    @functools.cached_property
    def _files(self) -> EncodedFiles | None:
        if not self._most_in_files:
            return None
        return EncodedFiles(
            f"{self._vision.fingerprint} {self._model.kernels} {self._model.device}", self._most_in_files
        )

    def prompts(self, data: pa.RecordBatch) -> list[Prompt]:
        """Return the prompts of rows."""
        ids = list_views(data.column(PROMPT_IDS.name))
        if not have_images(data.schema):
            return [(each, ()) for each in ids]
        images, field = data.column(PROMPT_IMAGES.name), _field(data.schema)
        return [(each, self._of_row(images[i], field) if images[i].is_valid else ()) for i, each in enumerate(ids)]

    def prompt_by_pixels(self, data: pa.RecordBatch, index: int) -> TokenIds:
        """Return the ids of a row's prompt as a run has them, where only the sizes of its images were looked at. Raises
        ValueError if an image cannot be read."""
        ids: TokenIds = data.column(PROMPT_IDS.name)[index].values.to_numpy().copy()
        limit = most_pixels(_field(data.schema))
        for image in data.column(PROMPT_IMAGES.name)[index].as_py():
            if (digest := image["digest"]) is None and (digest := self._digests.get(stand_in(image))) is None:
                digest = self._digests[stand_in(image)] = digest_of(self._read(image, limit))
            for block, (start, cells) in enumerate(zip(image["starts"], image["cells"], strict=True)):
                ids[start : start + cells] = cell_ids(digest + self._vision.fingerprint.encode(), block, cells)
        return ids

    def room_for(self, cells: float) -> float:
        """Return by how many bytes what is kept in memory grows until so many cells have been encoded."""
        return max(min(cells * self._vision.width * _FLOAT_BYTES, self._most_bytes) - self._bytes, 0)

    def _read(self, image: dict[str, Any], limit: int) -> Pixels:
        """Read and resize an image."""
        began = time.perf_counter()
        pixels = self._vision.resize.apply(read_image(image, limit))
        self.reads, self.read_s = self.reads + 1, self.read_s + time.perf_counter() - began
        return pixels

    def _of_row(self, images: pa.ListScalar, field: pa.Field) -> tuple[ImageSpan, ...]:
        limit, count = most_pixels(field), len(images)
        return tuple(
            ImageSpan(start, cells, partial(self._block, image, block, limit, title_of(field, number, count)))
            for number, image in enumerate(images, 1)
            for block, (start, cells) in enumerate(zip(image["starts"].as_py(), image["cells"].as_py(), strict=True))
        )

    def _block(self, image: pa.StructScalar, block: int, limit: int, title: str) -> Encoded:
        """Return a block of an image, encoded. Raises BadImage, which names it behind `title`, if it cannot be read or
        encoded any more."""
        digest, content = image["digest"].as_py(), {key: image[key].as_py() for key in ("bytes", "path")}
        known = digest or stand_in(content)
        with self._lock:
            if (blocks := self._kept.pop(known, None)) is None:
                try:
                    blocks = self._encode(content, digest, limit)
                except ValueError as error:
                    raise BadImage(f"{title}{named(content, error)}") from error
                self._note(known)
            elif not block:
                self.counts.images_at_hand += 1
            self._kept[known] = blocks  # the newest
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= _size(self._kept.pop(next(iter(self._kept))))
        return blocks[block]

    def _note(self, digest: bytes) -> None:
        """Count an image that was encoded or read before, and is not kept any more."""
        number = int.from_bytes(digest[:8], "little", signed=True)
        place = number % _PLACES
        self.counts.images_again += bool(self._seen[place] == number)
        self._seen[place] = number

    def _encode(self, image: dict[str, Any], digest: bytes | None, limit: int) -> list[Encoded]:
        """Encode an image. `digest`: of its pixels; None: they were not decoded before, by a dry run."""
        if digest and self._files and (blocks := self._files.read(digest)) is not None:
            self.counts.images_from_files += 1
            self._bytes += _size(blocks)
            return blocks
        pixels = self._read(image, limit)
        if digest not in (None, digest_of(pixels)):
            raise BadImage(CHANGED)
        try:
            blocks = self._vision.encode(pixels)
        except ValueError as error:
            self._check_encoder(error)
            raise
        if digest and self._files:
            self._files.write(digest, blocks)
        self.counts.images_encoded += 1
        self.counts.image_cells += sum(len(block.embeddings) for block in blocks)
        self._bytes += _size(blocks)
        return blocks

    def _check_encoder(self, error: ValueError) -> None:
        """Raise PipelineError, which ends the run, if the encoder fails for a gray image, too: then no row is to blame
        for `error`."""
        size = self._vision.resize.size(_GRAY, _GRAY)
        try:
            self._vision.encode(np.full((size[1], size[0], 3), 128, np.uint8))
        except ValueError:
            raise PipelineError(
                f"the vision encoder fails for any image: {error}. Run the same command again to resume"
            ) from error


def _field(schema: pa.Schema) -> pa.Field:
    return schema.field(PROMPT_IMAGES.name)


def _size(blocks: Sequence[Encoded]) -> int:
    return sum(block.embeddings.nbytes for block in blocks)
