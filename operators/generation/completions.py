"""Finished generations on their way out: as Arrow columns beside the rows they belong to, and chunk by chunk."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.logprobs import Scored
from operators.generation.logprobs import logprob_column
from operators.generation.requests import Place
from operators.rows.token_lists import list_column
from pipeline.api.records import Batch, ChunkEnd

FIELDS = (
    pa.field("completion", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("prompt_token_count", pa.int32()),
    pa.field("completion_token_count", pa.int32()),
    pa.field("seed", pa.int64()),
)
IDS_FIELD = pa.field("completion_ids", pa.list_(pa.int32()))


@dataclass(slots=True)  # not frozen: one is made for every row, and freezing doubles the cost
class Completion:
    """What a row has become."""

    place: Place
    ids: Sequence[int] | TokenIds
    text: str
    finish_reason: str
    prompt_tokens: int
    seed: int
    scores: Sequence[Scored] | None = None
    """Log-probabilities of the tokens, where they were asked for."""


def to_batches(
    completions: Iterable[Completion],
    kept: Sequence[str],
    schema: pa.Schema,
    *,
    keep_ids: bool,
    logprobs: Sequence[pa.Field] = (),
) -> Iterator[Batch]:
    """The rows of `completions`, one batch a source batch: columns `kept`, FIELDS, IDS_FIELD if asked, `logprobs`."""
    groups: dict[int, list[Completion]] = {}
    for completion in completions:
        groups.setdefault(id(completion.place.batch), []).append(completion)
    for group in groups.values():
        source = group[0].place.batch
        rows = source.data.select(kept).take(pa.array([c.place.index for c in group], pa.int64()))
        columns = [*rows.columns, *_columns(group), *([_ids_column(group)] if keep_ids else [])]
        columns += [logprob_column(field, [c.scores for c in group]) for field in logprobs]
        yield source.with_data(pa.record_batch(columns, schema=schema))


def _columns(group: Sequence[Completion]) -> list[pa.Array]:
    values = (
        [c.text for c in group],
        [c.finish_reason for c in group],
        [c.prompt_tokens for c in group],
        [len(c.ids) for c in group],
        [c.seed for c in group],
    )
    return [pa.array(column, field.type) for column, field in zip(values, FIELDS, strict=True)]


def _ids_column(group: Sequence[Completion]) -> pa.ListArray:
    offsets = np.zeros(len(group) + 1, np.int32)
    np.cumsum([len(c.ids) for c in group], out=offsets[1:])
    return list_column(np.concatenate([c.ids for c in group]), offsets)


class OpenChunks:
    """Which chunks still have rows in flight, so that their ends leave in order and not before their rows."""

    def __init__(self) -> None:
        self._rows: Counter[int] = Counter()
        self._ends: deque[ChunkEnd] = deque()

    @property
    def empty(self) -> bool:
        """Whether no row is in flight and no end is held."""
        return not self._ends and not any(self._rows.values())

    def begin(self, chunk: int, rows: int) -> None:
        """`rows` more rows of `chunk` are in flight."""
        self._rows[chunk] += rows

    def done(self, chunk: int, rows: int) -> None:
        """`rows` rows of `chunk` have left."""
        self._rows[chunk] -= rows

    def end(self, end: ChunkEnd) -> None:
        """No more rows of this chunk will begin."""
        self._ends.append(end)

    def ready(self) -> Iterator[ChunkEnd]:
        """The ends that may leave now, in order."""
        while self._ends and not self._rows[self._ends[0].chunk]:
            end = self._ends.popleft()
            del self._rows[end.chunk]
            yield end
