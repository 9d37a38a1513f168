"""GenerateNode: what a Generate does whoever makes its texts, an engine of this process or a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import pyarrow as pa

from operators.generation.adapters import RowAdapters
from operators.generation.completions import CompletionColumns, OpenChunks, with_completion
from operators.generation.duplicates import Duplicates
from operators.generation.requests import R, RowMaker, Samples, require_columns
from operators.generation.row_metrics import IDENTICAL, RowMetrics
from operators.generation.seeds import SEED, RowSeeds
from operators.generation.store_lookup import RowLookup
from operators.rows.sql import Where
from operators.settings import DataSettings, DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.checks import check_one_of
from operators.settings.runtime import EngineSettings
from operators.tuning.choices import LookAhead
from pipeline.api import Batch, ChunkEnd, Concludes, Forecast, Forecasts, Inbox, Item, Operator, Runtime, Task
from pipeline.api.load import load_of


class RowBackend(Protocol[R]):
    """What makes the texts of a node's rows, as the node's thread sees it: a client of an engine, or of an endpoint."""

    @property
    def waiting(self) -> int:
        """Rows that were submitted and not begun."""

    def submit(self, rows: Sequence[R]) -> None:
        """Take `rows`, to be begun in this order."""

    def collect(self) -> list[R]:
        """Return the rows that ended since the last call. Raises what ends the run."""

    def end(self) -> None:
        """Note that no more rows will be submitted."""

    def leave(self) -> list[R]:
        """Drop the rows that have not ended; return those that have and were not collected."""


@dataclass(eq=False, repr=False)
class GenerateNode(Operator, Forecasts, Concludes, Generic[R]):
    """Takes rows, finds those that are stored or that equal others in flight, has a backend make the texts of the rest,
    and passes all on. operators.generate.Generate says what the arguments mean.

    A subclass sets in `open`: `_requests`, which makes the rows; `_completions`, which makes the columns of those that
    have ended; `_metrics`; and, where there is a store, `_lookup`.
    """

    keeps_rows = True  # at a server too, where it runs in the driver

    model: ModelSettings
    sampling: SamplingSettings
    decode: DecodeSettings
    runtime: EngineSettings
    store: StoreSettings
    seed: int = 0
    id_column: str | None = None
    completion_ids: bool = False
    completion_text: str = "answer"
    reasoning: bool = True
    data: DataSettings | None = None
    tool_calls: bool = True
    as_: str | None = None
    where: str | None = None
    adapter: Any = None

    told_by_fingerprint = ("adapter",)  # where it is given

    def __post_init__(self) -> None:
        check_one_of("completion_text", self.completion_text, ("answer", "raw"))
        self._engine_settings = self.runtime
        self._data = self.data or DataSettings()
        self._prefix = f"{self.as_}_" if self.as_ else ""
        self._where = Where(self.where)
        self._samples = Samples(self.sampling)
        self._adapters = RowAdapters(self.adapter, self._data.adapter_column, self._adapter_names())
        self._requests: RowMaker[R]
        self._completions: CompletionColumns[R]
        self._metrics: RowMetrics[R]

    @abstractmethod
    def _adapter_names(self) -> Collection[str] | None:
        """Return the names of the model's adapters; None if a server has them."""

    @abstractmethod
    def _planned(self, schema: pa.Schema) -> list[pa.Field]:
        """Check settings and columns, and return the columns of a completion."""

    @abstractmethod
    def _forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """Forecast `task`, of which `batches` are a sample: rows that `where` chooses."""

    @abstractmethod
    def _connect(self, inbox: Inbox) -> RowBackend[R]:
        """Return what makes the texts; it wakes `inbox` when rows have ended."""

    def _note(self, rows: Sequence[R]) -> None:
        """Look at new rows."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._fields = self._planned(schema)
        self._where.plan(schema)
        self._adapters.plan(schema)
        require_columns(schema, self.sampling, self.id_column)
        schema = self._samples.schema(schema)
        self._kept, self._schema = with_completion(schema, self._fields, self._prefix, self.sampling.per_row)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        return {} if self.adapter is None else {"adapter": self._adapters.chosen}

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lookup: RowLookup[R] | None = None
        self._ahead = LookAhead()
        self._row_load = 1.0
        """As how many rows one of the last batch counts (pipeline.api.load): with images it may have many bytes."""
        self._duplicates = Duplicates[R](enabled=self._engine_settings.optimise.identical_rows)
        runtime.number("identical", IDENTICAL, lambda: self._duplicates.served)

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        of_own = partial(self._forecast, runtime)
        return self._where.forecast(batches, task, of_own, self._kept, self._schema)

    def run(self, inbox: Inbox) -> Iterator[Item]:
        self._backend = self._connect(inbox)
        self._chunks = OpenChunks()
        try:
            while True:
                while self._wants_rows() and (item := self._ahead.poll(inbox)) is not None:
                    if isinstance(item, ChunkEnd):
                        self._chunks.end(item)
                    elif isinstance(item, Batch):
                        yield from self._submit(item)
                ended = self._noted(self._backend.collect())
                if again := self._duplicates.again():
                    self._backend.submit(again)
                yield from self._emit(ended)
                if inbox.exhausted and not self._ahead:
                    self._backend.end()
                    if self._chunks.empty:
                        return
                inbox.wait(idle=self._chunks.empty, for_items=self._wants_rows())
        finally:
            self._noted(self._backend.leave())

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.say()

    def _seeds(self, runtime: Runtime) -> RowSeeds:
        by_row = SEED in self.sampling.per_row
        return RowSeeds(self.seed, runtime.node, self.id_column, by_row=by_row, round_of=runtime.round_of)

    def _wants_rows(self) -> bool:
        # Rows queued here take memory; rows left in the inbox cause backpressure.
        waiting = self._backend.waiting + self._duplicates.waiting
        return waiting * self._row_load < self._engine_settings.lookahead_rows

    def _submit(self, batch: Batch) -> Iterator[Item]:
        """Submit the rows of `batch`; emit those that `where` passes by, that were refused, or that the store has."""
        batch, beside = self._where.chosen(batch, self._kept, self._schema)
        yield from beside
        if not batch.num_rows:
            return
        self._row_load = max(load_of(batch) / batch.num_rows, 1.0)
        rows, rejects = self._requests.of(batch)
        rejected = sum(some.num_rows for some in rejects)
        self._runtime.meter.count(batch.chunk, expanded=len(rows) + rejected - batch.num_rows)
        yield from rejects
        self._note(rows)
        stored = [] if self._lookup is None else self._lookup.complete(rows)
        self._metrics.reused(stored, from_store=True)
        self._chunks.begin(batch.chunk, len(rows))
        new = [row for row in rows if row.finish_reason is None]
        self._backend.submit([row for row in new if not self._duplicates.joins(row)])
        yield from self._emit(stored)

    def _noted(self, rows: Sequence[R]) -> list[R]:
        """Record `rows`, which have ended, and their duplicates in the metrics; return both."""
        self._metrics.generated(rows)
        duplicates = [other for row in rows for other in self._duplicates.of(row)]
        self._metrics.reused(duplicates, identical=True)
        return [*rows, *duplicates]

    def _emit(self, rows: Sequence[R]) -> Iterator[Item]:
        """Emit rows that have ended, and the ends of chunks that have none left."""
        yield from self._completions.items(rows)
        self._chunks.done(rows)
        yield from self._chunks.ready()
