"""Generate: completes prompts on the engine of its device."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.batch_by_length import list_lengths
from operators.engine.backend.interface import inspect_model, load_model, max_sequence_tokens, row_room
from operators.engine.loop.client import Client
from operators.engine.sampling.constraint import Costs
from operators.engine.sequence import Sequence as Row
from operators.estimate.node import Generating, memory_of
from operators.estimate.trial import Device
from operators.generation.completions import FIELDS, IDS_FIELD, Completion, OpenChunks, to_batches
from operators.generation.constraint_costs import cost_lines, totals_of
from operators.generation.duplicates import Twins
from operators.generation.journal import journaled
from operators.generation.logprobs import LOGPROBS, logprob_fields
from operators.generation.memory_need import model_memory
from operators.generation.outcomes import Outcome, Outcomes, outcome, recalled
from operators.generation.repeated_draws import RepeatedDraws
from operators.generation.requests import Refused, Requests, place_of
from operators.generation.row_metrics import ROWS_SCHEMA, RowLog
from operators.generation.samples import SAMPLES, Samples
from operators.generation.sampling_params import structured_form
from operators.generation.store import StoredCompletion
from operators.generation.store_lookup import CompletionKeys, Recall
from operators.generation.wiring import (
    STORE_FILE,
    arithmetic,
    decode_method,
    engine_threads,
    shared_engine,
    shared_store,
)
from operators.rows.row_condition import Where, passed_by
from operators.rows.sql import RowExpression
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from operators.settings.sampling_rules import per_row_types
from operators.tuning.calibration import FEW_ROWS
from operators.tuning.choices import tuned, tuned_before
from operators.tuning.look_ahead import LookAhead
from pipeline.api.forecast import Forecast, Task
from pipeline.api.meter import Completed
from pipeline.api.protocols import Inbox, MemoryNeed, Runtime
from pipeline.api.records import Batch, ChunkEnd, Item, Rejects, add_columns, require_column

SEED = "seed"


class Generate:
    """Completes the prompts of its input.

    Adds `completion`, `finish_reason` (stop, stop_string, length), `prompt_token_count`, `completion_token_count`,
    `seed` and, on request, `completion_ids`, `logprobs` and `top_logprobs`. Rows leave in the order in
    which they finish. A prompt that is empty or leaves no room for a completion is rejected with the numbers, and so is
    a row that was cut before its text was what `sampling.structured` asks for. With
    `sampling.n` a row becomes n rows, which differ in the last number of their `lineage`. Rows that are bound to come
    out the same are generated once.

    Args:
        model, sampling, decode, runtime, store: the config groups of those names.
        seed: the job's seed; each row's own is derived from it.
        id_column: column that identifies a row to its random numbers, instead of its position.
        completion_ids: whether to keep the token ids.
        as_: prefix of the new columns (`as` in a job file), for a second Generate in a graph.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.

    Example:
        judge:
          inputs: batch
          op:
            _target_: operators.generate.Generate
            model: ${model}
            sampling: {max_tokens: 4, temperature: 0}
            decode: ${decode}
            runtime: ${runtime}
            store: ${store}
            seed: ${seed}
            as: judge
    """

    parts = ("decode", "sample")

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
        as_: str | None = None,
        where: str | None = None,
    ) -> None:
        self._where = Where(where)
        self._model_settings = model
        self._sampling = sampling
        self._decode = decode
        self._engine_settings = runtime
        self._store_settings = store
        self._seed = seed
        self._id_column = id_column
        self._keep_ids = completion_ids
        self._prefix = f"{as_}_" if as_ else ""
        self._text = self._prefix + FIELDS[0].name
        self._logprobs = logprob_fields(sampling)
        self._samples = Samples(sampling.n, per_row=SAMPLES in sampling.per_row)
        self._priority = None if runtime.priority is None else RowExpression("runtime.priority", runtime.priority)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds the columns of the completion."""
        facts = inspect_model(self._model_settings)
        if facts.n_ctx_train is not None:
            max_sequence_tokens(self._engine_settings, facts.n_ctx_train)
        decode_method(self._decode).check(self._sampling, self._engine_settings)
        require_column(schema, PROMPT_IDS.name, [PROMPT_IDS.type])
        self._where.plan(schema)
        if self._priority is not None:
            self._priority.plan(schema, lambda kind: kind.is_numeric(), "a number")
        if self._id_column is not None:
            require_column(schema, self._id_column)
        for name in self._sampling.per_row:
            require_column(schema, name, per_row_types(name))
        structured_form(self._sampling.structured)
        if (column := self._sampling.structured.json_schema_column) is not None:
            require_column(schema, column, [pa.string()])
        schema = self._samples.schema(schema)
        fields = [*FIELDS, *([IDS_FIELD] if self._keep_ids else []), *self._logprobs]
        added = [f.with_name(self._prefix + f.name) for f in fields]
        # A seed that comes from the input's `seed` column is the seed that is recorded: one column, not a collision.
        own = {SEED, LOGPROBS.name} & {f.name for f in added} & set(self._sampling.per_row)
        self._kept = [name for name in schema.names if name not in own]
        self._schema = add_columns(pa.schema([schema.field(name) for name in self._kept]), *added)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        """The model's content, what can change the last bits where these matter, and what is in the file of a schema or
        grammar."""
        form = structured_form(self._sampling.structured)
        constraint = {} if form is None else {"structured": form.digest}
        model = inspect_model(self._model_settings).fingerprint
        runtime = self._engine_settings
        # It says where texts are cut, as runtime.max_sequence_tokens does.
        room = {"n_ctx": runtime.n_ctx} if runtime.row_limit == "runtime.n_ctx" else {}
        return {"model": model, **runtime.exactness(), **room, **constraint}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        """The model, and the contexts of the engine that nodes with the same settings share."""
        key = repr((self._model_settings, self._engine_settings, self._decode))
        return model_memory(self._model_settings, self._engine_settings, key)

    def open(self, runtime: Runtime) -> None:
        """Load the model and take a context, if no other node has."""
        self._load(runtime)
        self._store = shared_store(runtime, self._store_settings)
        self._recall: Recall | None = None
        self._repeated = RepeatedDraws()
        self._ahead = LookAhead()
        if not self._engine_settings.open_keys():
            self._take_engine(self._engine_settings)
        self._row_log = RowLog(runtime.table("rows", ROWS_SCHEMA), runtime.node)
        self._costs = Costs()
        self._completed_rows = runtime.meter.completed = Completed()
        self._twins = Twins(enabled=self._engine_settings.optimise.identical_rows)
        runtime.totals(self._totals)

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """What its rows will take: some of them are generated."""
        return self._where.forecast(
            batches,
            task,
            lambda own, part: self._forecast(runtime, own, part),
            lambda others: passed_by(others, self._kept, self._schema),
        )

    def _forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        """The same for rows that are not passed by."""
        began = time.perf_counter()
        self._load(runtime)
        self._store = None
        lengths = [n for batch in batches for n in list_lengths(batch.data.column(PROMPT_IDS.name)).tolist()]
        rows = task.rows.likely * (self._samples.each or 1)
        few = int(rows) if rows <= FEW_ROWS else None
        before = tuned_before(self._engine_settings, self._model, lengths, self._sampling.max_tokens, task.results, few)
        settings = before or self._engine_settings.with_defaults()
        self._take_engine(settings)
        path = self._store_settings.path
        generating = Generating(
            Device(self._engine, decode_method(self._decode), settings),
            self._sampling,
            self._requests,
            self._samples,
            self._pieces,
            CompletionKeys(self._model.fingerprint(), asdict(self._decode), arithmetic(settings)),
            self._store_settings,
            Path(path).expanduser() if path else task.results / STORE_FILE,
            lambda done: to_batches(done, self._kept, self._schema, keep_ids=self._keep_ids, logprobs=self._logprobs),
        )
        found = generating.forecast(batches, task, time.perf_counter() - began)
        memory = memory_of(self._model_settings, settings)
        assumed = f"what runtime leaves open is chosen when the run begins; {settings.slots} slots are assumed"
        notes = [] if before else [assumed]
        return replace(found, memory=memory, notes=[*notes, *found.notes])

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Keep the engine fed, and pass on what it finishes."""
        if self._engine_settings.open_keys():
            self._tune(inbox)
        settings = self._engine_settings
        capacity = settings.slots * settings.contexts + settings.lookahead_rows
        client = self._engine.connect(self._runtime.meter, self._runtime.depth, capacity, inbox.wake)
        chunks = OpenChunks()
        with journaled(client, self._store, self._stored, self._finish):
            while True:
                yield from self._take(inbox, client, chunks)
                yield from self._leave(self._finish(client.collect()), chunks)
                if inbox.exhausted and not self._ahead:
                    client.end()
                    if chunks.empty:
                        return
                inbox.wait(idle=chunks.empty, for_items=self._wants_rows(client))

    def report(self, directory: Path) -> Iterable[str]:
        """What the constraints have cost, over all attempts."""
        if self._sampling.structured.kind is not None:
            yield from cost_lines(self._runtime.node, directory)

    def close(self) -> None:
        """Say what the store was worth and whether ids repeat. The engine and the store are closed with the run."""
        if self._repeated.count:
            self._runtime.log.warning(
                "%s: at least %d rows have the seed and the prompt of an earlier row, and so the same text: %s",
                self._runtime.node,
                self._repeated.count,
                "their values in column 'seed' repeat"
                if SEED in self._sampling.per_row
                else f"'{self._id_column}' (data.id_column) repeats. Give each row an id of its own, or set"
                " data.id_column=null to seed rows by their position",
            )
        if self._recall is not None and (summary := self._recall.summary()) is not None:
            self._runtime.log.info("%s: %s", self._runtime.node, summary)

    def _load(self, runtime: Runtime) -> None:
        """Have the model, and what makes sequences for it."""
        self._runtime = runtime
        model = load_model(runtime, self._model_settings)
        method = decode_method(self._decode)
        room = method.room(row_room(self._engine_settings, model.n_ctx_train))
        self._pieces = model.pieces()
        self._outcomes = Outcomes(self._pieces)
        self._requests = Requests(
            self._sampling,
            model,
            room,
            self._seed,
            runtime.node,
            self._id_column,
            method.rows(),
            runtime.round_of,
            self._engine_settings.row_limit,
        )
        self._model = model
        if (warning := self._requests.too_short()) is not None:
            runtime.log.warning("%s: %s", runtime.node, warning)

    def _take_engine(self, settings: EngineSettings) -> None:
        self._engine_settings = settings
        self._engine = shared_engine(self._runtime, self._model, settings, self._decode)
        if self._store is not None:
            keys = CompletionKeys(self._model.fingerprint(), asdict(self._decode), arithmetic(settings))
            retry = self._store_settings.retry.finish_reason
            self._recall = Recall(self._store, keys, self._pieces, retry, self._runtime.run_id)

    def _tune(self, inbox: Inbox) -> None:
        """Have what the settings leave open chosen for the first prompts, and for all where they are few."""
        each = self._samples.each
        rows = self._ahead.gather(inbox, FEW_ROWS // (each or 1))
        lengths = [n for data in self._ahead.data() for n in list_lengths(data.column(PROMPT_IDS.name)).tolist()]
        runtime = self._runtime

        def calibrate() -> EngineSettings:
            return tuned(
                self._engine_settings,
                self._model,
                lengths,
                self._sampling.max_tokens,
                runtime.output_dir,
                runtime.log,
                None if rows is None or each is None else rows * each,
            )

        self._take_engine(
            runtime.resource(
                ("tuned", self._model.fingerprint(), repr(self._engine_settings)),
                lambda: engine_threads(runtime).call(calibrate),
            )
        )

    def _wants_rows(self, client: Client) -> bool:
        # What waits here is memory; what waits in the inbox is backpressure.
        return client.waiting + self._twins.waiting < self._engine_settings.lookahead_rows

    def _take(self, inbox: Inbox, client: Client, chunks: OpenChunks) -> Iterator[Item]:
        while self._wants_rows(client) and (item := self._ahead.poll(inbox)) is not None:
            if isinstance(item, ChunkEnd):
                chunks.end(item)
            elif isinstance(item, Batch):
                yield from self._submit(item, client, chunks)

    def _submit(self, batch: Batch, client: Client, chunks: OpenChunks) -> Iterator[Item]:
        """Give the rows of `batch` to the engine; pass on those that are refused, known already, or none of its own."""
        batch, others = self._where.split(batch)
        if others.num_rows:
            yield passed_by(others, self._kept, self._schema)
        if not batch.num_rows:
            return
        yield from self._samples.refused(batch)
        batch, before = self._samples.of(batch)
        self._runtime.meter.count(batch.chunk, expanded=batch.num_rows - before)
        made = self._requests.sequences(batch)
        refused = [r for r in made if isinstance(r, Refused)]
        if refused:
            yield batch.reject([r.index for r in refused], [r.reason for r in refused])
        rows = [r for r in made if isinstance(r, Row)]
        if self._id_column is not None or SEED in self._sampling.per_row:
            self._repeated.note(rows)
        known = {} if self._recall is None else self._recall.find(rows)
        chunks.begin(batch.chunk, len(rows))
        self._rank(rows, batch)
        client.submit([row for row in rows if row not in known and not self._twins.joins(row)])
        yield from self._leave([recalled(row, stored, self._text) for row, stored in known.items()], chunks)
        self._completed_rows.recalled += len(known)
        self._note(list(known), from_store=True)

    def _rank(self, rows: Sequence[Row], batch: Batch) -> None:
        """Give each row its chunk and its priority, by which those that wait are ordered."""
        for row in rows:
            row.chunk = batch.chunk
        if self._priority is not None:
            priorities = self._priority.values(batch.data).cast(float).fill_null(0.0).to_list()
            for row in rows:
                row.priority = priorities[place_of(row).index]

    def _finish(self, rows: Sequence[Row]) -> list[Outcome]:
        """What has become of rows that the engine gave back; journaled before anything else is done with it."""
        done = self._outcomes.completions(rows)
        if self._recall is not None:
            self._recall.keep(done)
        for row in rows:
            self._costs.add(row.sampling.costs)
        self._note(rows)
        twins = [twin for row in rows for twin in self._twins.of(row)]
        self._completed_rows.rows += len(rows)
        self._completed_rows.tokens += sum(len(row.tokens) for row in rows)
        self._completed_rows.recalled += len(twins)
        self._note(twins, identical=True)
        made = dict(done)
        outcomes = [outcome(row, made.get(row), self._text) for row in rows]
        return [*outcomes, *(outcome(twin, self._outcomes.completion(twin), self._text) for twin in twins)]

    def _stored(self, rows: Sequence[Row]) -> dict[bytes, StoredCompletion]:
        return {} if self._recall is None else self._recall.stored(self._outcomes.completions(rows))

    def _totals(self) -> dict[str, float]:
        node = self._runtime.node
        totals = {f"{node}/identical": float(self._twins.served)}
        if self._recall is not None:
            totals[f"{node}/from_store"] = float(self._recall.hits.found)
            totals |= {f"{node}/{key}": value for key, value in self._recall.totals().items()}
        if self._sampling.structured.kind is not None:
            totals |= totals_of(node, self._costs)
        return totals

    def _leave(self, done: Sequence[Outcome], chunks: OpenChunks) -> Iterator[Item]:
        """Send rows on, and the ends of chunks that have none left."""
        yield from (item for item in done if isinstance(item, Rejects))
        completions: Iterable[Completion] = (item for item in done if isinstance(item, Completion))
        yield from to_batches(completions, self._kept, self._schema, keep_ids=self._keep_ids, logprobs=self._logprobs)
        for item in done:
            chunks.done(item.chunk if isinstance(item, Rejects) else item.place.batch.chunk, 1)
        yield from chunks.ready()

    def _note(self, rows: Sequence[Row], *, from_store: bool = False, identical: bool = False) -> None:
        self._row_log.add(rows, [place_of(row).row for row in rows], from_store=from_store, identical=identical)
