"""Turn rows into sequences: samples, sampling values, seeds, and rejects for rows that cannot be generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import Model
from operators.engine.images.encoded import EncodedImages, Prompt
from operators.engine.sequence import Sequence, StopWatcher
from operators.generation.adapters import Names, RowAdapters, mask_of
from operators.generation.reasoning import Reasoning
from operators.generation.sampling_params import RowParams, token_ids
from operators.generation.seeds import RowSeeds, no_seed
from operators.generation.tools import Tools
from operators.rows.lineage import append_to_lineage, repeated
from operators.rows.sql import RowExpression
from operators.rows.token_lists import PROMPT_IDS, list_views
from operators.settings import SamplingSettings
from operators.settings.sampling import MOST_SAMPLES, per_row_types
from pipeline.api.records import LINEAGE, ROW, Batch, Rejects, require_column

SAMPLES = "n"
"""Column with the number of completions of its row, if `sampling.per_row` names it."""


@dataclass(slots=True)  # not frozen: one is made for every row, and freezing doubles the cost
class BatchRow:
    """The position of a row: row `index` of `batch`, number `row` of the source."""

    batch: Batch
    index: int
    row: int
    text: str | None = None
    """Its completion, once decoded to text."""
    adapters: Names = ()


class GenerateRow(Protocol):
    """A row of a Generate node on its way to a text: a Sequence of an engine, or an EndpointRow.

    Attributes:
        handle: its BatchRow.
        key: its content key in the store.
        error: why there is no text.
    """

    handle: Any
    key: bytes
    error: str | None

    @property
    def chunk(self) -> int:
        """The number of its chunk."""

    @property
    def finish_reason(self) -> str | None:
        """Why its text ended; None as long as there is none."""

    @property
    def identity(self) -> Hashable:
        """A key that is equal for rows with the same result."""

    @property
    def own_error(self) -> bool:
        """True if `error` is of its own images, which identical rows may have in other files."""

    def finish_like(self, other: Self) -> None:
        """End as the finished `other` has, which is identical."""


R = TypeVar("R", bound=GenerateRow)


def batch_row(row: GenerateRow) -> BatchRow:
    """Return the position of a row that RowMaker has made."""
    if not isinstance(row.handle, BatchRow):
        raise TypeError(f"a row of another node came back: {row.handle!r}")
    return row.handle


class Samples:
    """Repeats each row as often as `sampling.n`, or a column of that name, says.

    Attributes:
        each: rows for each row; None if they say it themselves.
    """

    def __init__(self, sampling: SamplingSettings) -> None:
        self._n = sampling.n
        self.each = None if SAMPLES in sampling.per_row else sampling.n

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of the repeated rows: `lineage` comes last."""
        if self.each == 1:
            return schema
        return pa.schema([field for field in schema if field.name != LINEAGE.name]).append(LINEAGE)

    def of(self, batch: Batch) -> tuple[Batch, dict[int, str]]:
        """Return the repeated rows of `batch`, copies of a row adjacent and numbered at the end of their lineage; and
        by index the reason for each row with an invalid number."""
        if self.each == 1:
            return batch, {}
        values = batch.data.column(SAMPLES).to_pylist() if self.each is None else [self.each] * batch.num_rows
        refused = {
            i: f"column '{SAMPLES}' has {n!r}; allowed: a whole number, 1 to {MOST_SAMPLES}"
            for i, n in enumerate(values)
            if not _can_be(n)
        }
        counts = [0 if i in refused else self._n if n is None else int(n) for i, n in enumerate(values)]
        parents, numbers = repeated(np.array(counts, np.int64))
        data = batch.data.take(pa.array(parents))
        lineage = data.column(LINEAGE.name) if LINEAGE.name in data.schema.names else None
        if lineage is not None:
            data = data.drop_columns([LINEAGE.name])
        return batch.with_data(data.append_column(LINEAGE, append_to_lineage(lineage, numbers))), refused


def _can_be(n: object) -> bool:
    return n is None or (isinstance(n, int | float) and 1 <= n <= MOST_SAMPLES and n == int(n))


class RowMaker(ABC, Generic[R]):
    """Makes the rows of a Generate node.

    Args:
        sampling: the job's values; the columns of `per_row` override them.
        seeds: makes their seeds.
        adapters: says which each row has.
    """

    images: EncodedImages | None = None
    """Those in prompts; None: there are none, or a server has them."""

    def __init__(self, sampling: SamplingSettings, seeds: RowSeeds, adapters: RowAdapters | None = None) -> None:
        self.samples = Samples(sampling)
        self._seeds = seeds
        self._adapters = adapters or RowAdapters(None, None, ())

    @abstractmethod
    def _asked(self, data: pa.RecordBatch) -> tuple[Iterable[Any], Iterable[Any]]:
        """Return the prompts of the rows, and their values of the columns that are read."""

    @abstractmethod
    def _row(self, place: BatchRow, prompt: Any, values: Any, seed: int | None) -> R | str:
        """Return a row, or the reason why there is none. `seed`: None if the row has none; see `no_seed`."""

    def _of_adapters(
        self, place: BatchRow, prompt: Any, values: Any, seed: int | None, adapters: Names | str
    ) -> R | str:
        if isinstance(adapters, str):
            return adapters
        place.adapters = adapters
        return self._row(place, prompt, values, seed)

    def of(self, batch: Batch) -> tuple[list[R], list[Rejects]]:
        """Return the rows of `batch`, `sampling.n` each, and rejects for those that cannot be generated."""
        expanded, refused = self.samples.of(batch)
        rejects = [batch.reject(list(refused), list(refused.values()))] if refused else []
        places = [BatchRow(expanded, i, number) for i, number in enumerate(expanded.data.column(ROW.name).to_pylist())]
        asked = (*self._asked(expanded.data), self._seeds.of(expanded.data), self._adapters.of(expanded.data))
        made = list(map(self._of_adapters, places, *asked))
        refused = {i: reason for i, reason in enumerate(made) if isinstance(reason, str)}
        if refused:
            rejects.append(expanded.reject(list(refused), list(refused.values())))
        return [row for row in made if not isinstance(row, str)], rejects


class SequenceMaker(RowMaker[Sequence]):
    """Makes the sequences of a Generate node. Raises ConfigError: see RowParams.

    Args:
        sampling: the job's values; the columns of `per_row` override them.
        model: gives the end-of-generation tokens and the bytes of tokens.
        max_sequence_tokens: prompt and completion tokens of a row at most.
        seeds: makes the seeds.
        make: makes a sequence, as the decode strategy has it.
        limit: the key that sets max_sequence_tokens, for the reasons of rejects.
        priority: an expression for the priority of a waiting row; null counts as 0.
        reasoning: the tags of the model; None: it does not reason.
        tools: what rows may call; None: nothing.
        adapters: says which each row has.
        images: encodes those in prompts; None: there are none.
        most_cells: of a block of an image."""

    def __init__(
        self,
        sampling: SamplingSettings,
        model: Model,
        max_sequence_tokens: int,
        seeds: RowSeeds,
        make: Callable[..., Sequence] = Sequence,
        limit: str = "runtime.max_sequence_tokens",
        priority: RowExpression | None = None,
        reasoning: Reasoning | None = None,
        tools: Tools | None = None,
        adapters: RowAdapters | None = None,
        images: EncodedImages | None = None,
        most_cells: int = 0,
    ) -> None:
        self.images, self._most_cells = images, most_cells
        self._reasoning = reasoning
        self._priority = priority
        self._make = make
        self._sampling = sampling
        self._room = max_sequence_tokens
        self._limit = limit
        super().__init__(sampling, seeds, adapters)
        self._model = model
        self._pieces = model.pieces()
        self._row_params = RowParams(sampling, model, reasoning, tools)

    def too_short(self) -> str | None:
        """Return a warning if not even the shortest of `sampling.structured.choices` fits into `max_tokens`."""
        choices, most = self._sampling.structured.choices, self._sampling.max_tokens
        if not choices or "max_tokens" in self._sampling.per_row:
            return None
        least = min(len(token_ids(self._model, choice.encode())) for choice in choices)
        if least <= most:
            return None
        return f"sampling.max_tokens={most} is too few: the shortest of sampling.structured.choices has {least} tokens"

    def of(self, batch: Batch) -> tuple[list[Sequence], list[Rejects]]:
        rows, rejects = super().of(batch)
        if self._priority is not None and rows:
            expanded = batch_row(rows[0]).batch
            priorities = self._priority.values(expanded.data).cast(float).fill_null(0.0).to_list()
            for row in rows:
                row.priority = priorities[batch_row(row).index]
        return rows, rejects

    def _asked(self, data: pa.RecordBatch) -> tuple[Iterable[Prompt], Iterable[tuple[Any, ...]]]:
        overrides = [data.column(name).to_pylist() for name in self._row_params.columns]
        ids = list_views(data.column(PROMPT_IDS.name))
        prompts = [(each, ()) for each in ids] if self.images is None else self.images.prompts(data)
        return prompts, zip(*overrides, strict=True) if overrides else repeat(())

    def _row(self, place: BatchRow, prompt: Prompt, values: tuple[Any, ...], seed: int | None) -> Sequence | str:
        ids, images = prompt
        drawing = self._row_params.of(values)
        room = self._room - len(ids)
        if isinstance(drawing, str):
            return drawing
        if seed is None:
            return no_seed(place.batch.data, place.index)
        if not len(ids):
            return "the prompt is empty; the model needs at least one token"
        if room < 1:
            return (
                f"the prompt has {len(ids)} tokens and leaves no room for a completion: {self._limit} is {self._room}"
            )
        if images and (largest := max(image.cells for image in images)) > self._most_cells:
            return (
                f"an image has {largest:,} tokens, and a call {self._most_cells:,}: raise runtime.n_batch, or have"
                " images made smaller with model.image_tokens={max: ...}"
            )
        stops = StopWatcher(drawing.stops, self._pieces, drawing.keep_stop) if drawing.stops else None
        params = drawing.params
        if drawing.within is not params and self._reasoning is not None and self._reasoning.begins_within(ids):
            params = drawing.within
        most, adapters = min(params.max_tokens, room), mask_of(place.adapters, self._model.adapters)
        return self._make(
            place, ids, params, seed, most, stops, chunk=place.batch.chunk, adapters=adapters, images=images
        )


def require_columns(schema: pa.Schema, sampling: SamplingSettings, id_column: str | None) -> None:
    """Check that `schema` has the columns that a row's values are read from; raise SchemaError if one is not there, or
    of another type."""
    if id_column is not None:
        require_column(schema, id_column)
    for name in sampling.per_row:
        require_column(schema, name, per_row_types(name))
    if (column := sampling.structured.json_schema_column) is not None:
        require_column(schema, column, [pa.string()])
