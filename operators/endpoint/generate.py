"""Generate for a server: asks it to complete the prompts of its input."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from operators.endpoint.api.bodies import Bodies
from operators.endpoint.completions import AnswerColumns, answer_fields
from operators.endpoint.estimate import forecast_of, run_stream
from operators.endpoint.lookup import AnswerLookup
from operators.endpoint.metrics import AnswerMetrics, usage_lines
from operators.endpoint.rows import EndpointRow, EndpointRowMaker
from operators.endpoint.server import server_of
from operators.generation.completions import OpenChunks, with_completion
from operators.generation.duplicates import Duplicates
from operators.generation.requests import Samples
from operators.generation.row_metrics import IDENTICAL
from operators.generation.structured import answer_check
from operators.generation.wiring import shared_store
from operators.prompts.arguments import TemplateArguments, tools_of_job
from operators.prompts.rendering import PROMPT_TEXT
from operators.rows.row_condition import Where, passed_by
from operators.settings import DataSettings, DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from operators.settings.sampling import per_row_types
from pipeline.api.errors import ConfigError
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import BaseOperator, Inbox, Runtime
from pipeline.api.records import Batch, ChunkEnd, Item, require_column

APIS = ("chat", "completions")
TAKEN_ROWS, TAKEN_S = 64, 0.05
"""Answers are passed on when there are so many, or so long after the first of them."""
NOT_EXACT = "what a server answers may depend on its other requests, so runtime.deterministic does not hold for it"


class EndpointGenerate(BaseOperator):
    """Completes the prompts of its input at a server; operators.generate.Generate has the arguments."""

    title = "Generate"

    def __init__(
        self,
        model: ModelSettings,
        sampling: SamplingSettings,
        decode: DecodeSettings,
        runtime: EngineSettings,
        store: StoreSettings,
        seed: int = 0,
        id_column: str | None = None,
        completion_ids: bool = False,
        completion_text: str = "answer",
        reasoning: bool = True,
        data: DataSettings | None = None,
        tool_calls: bool = True,
        as_: str | None = None,
        where: str | None = None,
    ) -> None:
        assert isinstance(model, EndpointSettings)
        if model.api not in APIS:
            raise ConfigError(f"model.api={model.api} makes no texts; Generate needs {' or '.join(APIS)}")
        for key, given, remedy in (
            ("output.completion_ids=true", completion_ids, "leave it out"),
            ("output.completion_text=raw", completion_text == "raw", "the server keeps reasoning and answer apart"),
            ("runtime.priority", runtime.priority is not None, "leave it out"),
        ):
            if given:
                raise ConfigError(f"{key} cannot be with a server; {remedy}")
        self._model = model
        self._sampling = sampling
        self._engine_settings = runtime
        self._store = store
        self._seed = seed
        self._id_column = id_column
        self._data = data or DataSettings()
        self._prefix = f"{as_}_" if as_ else ""
        self._where = Where(where)
        self._samples = Samples(sampling)
        self._reasons = reasoning and model.api == "chat"
        self._calls = tool_calls and self._data.has_tools and sampling.tools != "none"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, PROMPT_TEXT.name, [pa.string()])
        self._where.plan(schema)
        if self._id_column is not None:
            require_column(schema, self._id_column)
        for name in self._sampling.per_row:
            require_column(schema, name, per_row_types(name))
        if (column := self._sampling.structured.json_schema_column) is not None:
            require_column(schema, column, [pa.string()])
        self._check = answer_check(self._sampling.structured)
        if self._model.dialect != "auto":
            self._bodies(self._model)
        self._arguments = TemplateArguments(self._model, self._data)
        self._columns = self._arguments.plan(schema)
        schema = self._samples.schema(schema)
        self._fields = answer_fields(self._sampling, reasons=self._reasons, calls=self._calls)
        self._kept, self._schema = with_completion(schema, self._fields, self._prefix, self._sampling.per_row)
        return self._schema

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        store = shared_store(runtime, self._store)
        server = server_of(runtime, self._model)
        self._endpoint = server.endpoint
        if self._engine_settings.deterministic:
            runtime.resource(("warned", NOT_EXACT), lambda: runtime.log.info(NOT_EXACT))
        self._lookup = None if store is None else AnswerLookup(runtime, store, self._store.retry.finish_reason)
        self._finished: deque[EndpointRow] = deque()
        self._requests = EndpointRowMaker(
            self._sampling,
            self._seed,
            runtime.node,
            self._id_column,
            runtime.round_of,
            self._model.api,
            self._bodies(server.settings),
            self._arguments,
            self._columns,
            server.identity(store, runtime),
            self._take,
        )
        tools = None if self._data.tools is None else json.dumps(tools_of_job(self._data.tools))
        self._answers = AnswerColumns(
            self._kept, self._fields, self._schema, self._check, self._sampling, tools, self._data.tools_column
        )
        self._metrics = AnswerMetrics(runtime, server.settings)
        self._duplicates = Duplicates[EndpointRow](enabled=self._engine_settings.optimise.identical_rows)
        self._sent = 0
        self._ringing = False
        runtime.number("identical", IDENTICAL, lambda: self._duplicates.served)

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        def of_own(own: Sequence[Batch], part: Task) -> Forecast:
            if not own:
                return Forecast(part.rows)
            self._store = StoreSettings(enabled=False)  # a dry run writes nothing, and times what is answered
            self.open(runtime)
            model = self._model
            many = model.concurrency if isinstance(model.concurrency, int) else None
            price = None if model.price_per_million is None else model.cost
            each, run = self._samples.each, partial(run_stream, self.run)
            return forecast_of(run, own, part, self._token_counts, each, many, price)

        return self._where.forecast(batches, task, of_own, lambda others: passed_by(others, self._kept, self._schema))

    def _token_counts(self, made: Sequence[Batch]) -> tuple[list[float], list[float]]:
        def of(name: str) -> list[float]:
            return [n or 0 for batch in made for n in batch.data.column(f"{self._prefix}{name}").to_pylist()]

        return of("prompt_token_count"), of("completion_token_count")

    def run(self, inbox: Inbox) -> Iterator[Item]:
        self._wake = inbox.wake
        self._chunks = OpenChunks()
        try:
            while True:
                while self._wants_rows() and (item := inbox.poll()) is not None:
                    if isinstance(item, ChunkEnd):
                        self._chunks.end(item)
                    elif isinstance(item, Batch):
                        yield from self._submit(item)
                yield from self._emit(self._answered())
                if inbox.exhausted and self._chunks.empty:
                    return
                inbox.wait(idle=self._chunks.empty, for_items=self._wants_rows())
        finally:
            if self._sent:
                self._endpoint.leave(self._requests)
                self._collected()

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return usage_lines(node, directory)

    def close(self) -> None:
        if self._lookup is not None:
            self._lookup.say()

    def _bodies(self, model: EndpointSettings) -> Bodies:
        return Bodies(model, self._sampling, self._data, "model=endpoint")

    def _wants_rows(self) -> bool:
        # Rows queued here take memory; rows left in the inbox cause backpressure.
        waiting = self._sent - self._endpoint.active + self._duplicates.waiting
        return waiting < self._engine_settings.lookahead_rows

    def _take(self, row: EndpointRow) -> None:
        """Take an answer, in the endpoint's thread."""
        try:
            if self._lookup is not None:
                self._lookup.keep(row)
        except Exception as failed:  # of the store: what is not kept would be paid for again
            self._endpoint.fail(failed)
        self._finished.append(row)
        if len(self._finished) == TAKEN_ROWS:
            self._wake()
        elif not self._ringing:  # answers that come one by one would leave in batches of one
            self._ringing = True
            self._endpoint.after(TAKEN_S, self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._wake()

    def _submit(self, batch: Batch) -> Iterator[Item]:
        batch, others, beyond = self._where.split(batch)
        yield from beyond
        if others.num_rows:
            yield passed_by(others, self._kept, self._schema)
        if not batch.num_rows:
            return
        rows, rejects = self._requests.of(batch)
        rejected = sum(some.num_rows for some in rejects)
        self._runtime.meter.count(batch.chunk, expanded=len(rows) + rejected - batch.num_rows)
        yield from rejects
        known = [] if self._lookup is None else self._lookup.complete(rows)
        self._metrics.reused(known, from_store=True)
        self._chunks.begin(batch.chunk, len(rows))
        new = [row for row in rows if row.request is not None and not self._duplicates.joins(row)]
        self._sent += len(new)
        self._endpoint.submit([row.request for row in new if row.request is not None])
        yield from self._emit(known)

    def _answered(self) -> list[EndpointRow]:
        """Return the rows that were answered or given up since the last call. Raises what ends the run."""
        rows = self._collected()
        self._endpoint.check()
        return rows

    def _collected(self) -> list[EndpointRow]:
        """Record the rows that were answered or given up, and those identical to them, and return both."""
        rows = [self._finished.popleft() for _ in range(len(self._finished))]
        self._sent -= len(rows)
        self._metrics.generated(rows)
        same = [other for row in rows for other in self._duplicates.of(row)]
        self._metrics.reused(same, identical=True)
        return [*rows, *same]

    def _emit(self, rows: Sequence[EndpointRow]) -> Iterator[Item]:
        """Emit answered rows, and the ends of chunks that have none left."""
        yield from self._answers.items(rows)
        self._chunks.done(rows)
        yield from self._chunks.ready()
