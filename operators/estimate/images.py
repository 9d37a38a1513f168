"""Cost of the images of rows, beside that of a Generate node: reading their files, and memory; and which rows with
images are in the completion store."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import replace

import pyarrow.compute as pc

from operators.engine.images.encoded import EncodedImages, have_images
from operators.engine.sequence import Sequence
from operators.estimate.trial import mean_of
from operators.generation.requests import batch_row
from operators.generation.store_lookup import CompletionKeys
from operators.images.columns import PROMPT_IMAGES, most_pixels
from operators.images.read import image_size
from pipeline.api.forecast import Forecast, Range, Task
from pipeline.api.records import Batch

LOOKUP_S = 3.0
"""Seconds in which images are decoded to look for their rows in the store."""
_DECODING_BYTES = 16
"""Bytes for a pixel of an image that is being decoded."""


def with_keys(rows: Seq[Sequence], keys: CompletionKeys, images: EncodedImages | None) -> list[Sequence]:
    """Give `rows` their keys, and return those that have one: of rows with images those that are decoded in time, since
    images count by their pixels there."""
    until, known = time.perf_counter() + LOOKUP_S, []
    for row in rows:
        prompt = row.prompt
        if row.images and images is not None:
            if time.perf_counter() > until:
                continue
            with suppress(ValueError):  # it cannot be read, so that there is no completion of it
                row.prompt = images.prompt_by_pixels(batch_row(row).batch.data, batch_row(row).index)
        keys.give([row])
        row.prompt = prompt
        known.append(row)
    return known


def largest_image_first(rows: Seq[Sequence]) -> list[Sequence]:
    """Move the row with the largest block of an image to the front, so that a trial has the encoder's memory for it."""
    largest = max(rows, key=lambda row: max((image.cells for image in row.images), default=0), default=None)
    return [] if largest is None else [largest, *(row for row in rows if row is not largest)]


def with_images(
    found: Forecast, images: EncodedImages, batches: Seq[Batch], rows: Seq[Sequence], task: Task, count: Range
) -> Forecast:
    """Add to a forecast of `count` rows like `rows` the time in which the images of all rows are read, and memory: what
    the encoder makes of images, as much as is kept, and one more that is decoded beside the engine."""
    columns = [batch.data.column(PROMPT_IMAGES.name) for batch in batches if have_images(batch.data.schema)]
    numbers = [n for column in columns for n in pc.fill_null(pc.list_value_length(column), 0).to_pylist()]
    if not any(numbers):
        return found
    largest = max(_pixels(batch) for batch in batches)
    cells = {int(row.prompt[image.start]): image.cells for row in rows for image in row.images}
    made = count.times(sum(cells.values()) / max(len(rows), 1))
    surely = images.room_for(made.low) if task.whole else 0.0  # there may be more copies than the sample has
    kept = Range(surely, images.room_for(made.likely), images.room_for(made.high))
    return replace(
        found,
        read_s=mean_of(numbers, whole=task.whole).times(task.rows).times(images.read_s / max(images.reads, 1)),
        memory=kept + Range(0.0, _DECODING_BYTES * largest, 2 * _DECODING_BYTES * largest),
    )


def _pixels(batch: Batch) -> int:
    """Return the pixels of the largest image of a batch."""
    limit, most = most_pixels(batch.data.schema.field(PROMPT_IMAGES.name)), 0
    for image in pc.list_flatten(batch.data.column(PROMPT_IMAGES.name)).to_pylist():
        with suppress(ValueError):  # it is not there any more
            width, height = image_size(image, limit)
            most = max(most, width * height)
    return most
