"""EncodedImages: encodes the images of rows, each once, and keeps what was computed within bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from operators.engine.backend.images import Encoded, ImageSpan, Vision
from operators.engine.backend.interface import Model, TokenIds
from operators.engine.images.columns import PLACED_IMAGES
from operators.engine.images.files import MIB, EncodedFiles
from operators.images.columns import PROMPT_IMAGES, most_pixels
from operators.images.read import BadImage, read_image
from operators.images.resize import digest_of
from operators.rows.token_lists import PROMPT_IDS, list_views
from operators.settings import StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api import Runtime
from pipeline.api.numbers import counted

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
    images_at_hand: int = counted("images of rows that were still in memory, encoded", "images")
    images_from_files: int = counted("images that an earlier run had encoded (store.images_mb)", "images")


class EncodedImages:
    """What the encoder of a model has made of the images of rows.

    An image is encoded by the engine's thread when its cells are to be computed, and kept until newer ones need its
    memory: rows with other questions about it mostly follow each other. Rows that share its cells in the KV cache do
    not ask at all.

    Args:
        vision: encodes.
        most_bytes: of all that is kept in memory, but for the newest image.
        files: keeps it longer; None: nothing does.
    """

    def __init__(self, vision: Vision, most_bytes: int, files: EncodedFiles | None = None) -> None:
        self._vision = vision
        self._files = files
        self._most_bytes = most_bytes
        self._kept: dict[bytes, list[Encoded]] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self.counts = ImageCounts()

    @classmethod
    def shared(
        cls, runtime: Runtime, model: Model, settings: EngineSettings, store: StoreSettings
    ) -> EncodedImages | None:
        """Return those of `model`, for all nodes that share it; None if it takes no images."""
        if (vision := model.vision) is None:
            return None

        def make() -> EncodedImages:
            kept = store.images_mb * MIB if store.enabled else 0
            files = EncodedFiles(f"{vision.fingerprint} {model.kernels} {model.device}", kept) if kept else None
            images = cls(vision, settings.image_mb * MIB, files)
            runtime.numbers(images.counts, "engines", of_run=True)
            return images

        return runtime.resource(("images", id(model)), make)

    def prompts(self, data: pa.RecordBatch) -> list[Prompt]:
        """Return the prompts of rows."""
        ids = list_views(data.column(PROMPT_IDS.name))
        if not have_images(data.schema):
            return [(each, ()) for each in ids]
        images, limit = data.column(PROMPT_IMAGES.name), most_pixels(data.schema.field(PROMPT_IMAGES.name))
        return [(each, self._of_row(images[i], limit) if images[i].is_valid else ()) for i, each in enumerate(ids)]

    def _of_row(self, images: pa.ListScalar, limit: int) -> tuple[ImageSpan, ...]:
        return tuple(
            ImageSpan(start, cells, partial(self._block, image, block, limit))
            for image in images
            for block, (start, cells) in enumerate(zip(image["starts"].as_py(), image["cells"].as_py(), strict=True))
        )

    def _block(self, image: pa.StructScalar, block: int, limit: int) -> Encoded:
        """Return a block of an image, encoded. Raises ValueError if the image cannot be read or encoded any more."""
        digest = image["digest"].as_py()
        with self._lock:
            if (blocks := self._kept.pop(digest, None)) is None:
                blocks = self._encode({key: image[key].as_py() for key in ("bytes", "path")}, digest, limit)
            elif not block:
                self.counts.images_at_hand += 1
            self._kept[digest] = blocks  # the newest
            while self._bytes > self._most_bytes and len(self._kept) > 1:
                self._bytes -= _size(self._kept.pop(next(iter(self._kept))))
        return blocks[block]

    def _encode(self, image: dict[str, Any], digest: bytes, limit: int) -> list[Encoded]:
        if (blocks := None if self._files is None else self._files.read(digest)) is not None:
            self.counts.images_from_files += 1
            self._bytes += _size(blocks)
            return blocks
        pixels = self._vision.resize.apply(read_image(image, limit))
        if digest_of(pixels) != digest:
            raise BadImage(CHANGED)
        blocks = self._vision.encode(pixels)
        if self._files is not None:
            self._files.write(digest, blocks)
        self.counts.images_encoded += 1
        self.counts.image_cells += sum(len(block.embeddings) for block in blocks)
        self._bytes += _size(blocks)
        return blocks


def _size(blocks: Sequence[Encoded]) -> int:
    return sum(block.embeddings.nbytes for block in blocks)
