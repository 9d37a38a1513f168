"""Generate: completes prompts on an engine that nodes with the same settings share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.batch_by_length import prompt_lengths
from operators.endpoint.generate import EndpointGenerate
from operators.engine.sequence import Sequence as Row
from operators.estimate.node import Generating
from operators.generation.canary import canary
from operators.generation.completions import OpenChunks
from operators.generation.duplicates import Duplicates, RepeatedDraws
from operators.generation.row_metrics import IDENTICAL, CompletionMetrics, cost_lines
from operators.generation.seeds import SEED
from operators.generation.setup import GenerateSetup
from operators.generation.store_lookup import StoreLookup
from operators.generation.tools import CHOICE
from operators.generation.wiring import (
    check_chosen,
    chosen_settings,
    completion_keys,
    decode_setup,
    identity_of,
    shared_engine,
    shared_store,
    store_lookup,
    store_path,
)
from operators.rows.row_condition import passed_by
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from operators.tuning.calibration import FEW_ROWS
from operators.tuning.choices import LookAhead, Tuning
from pipeline.api.forecast import Forecast, Task
from pipeline.api.identity import Identity
from pipeline.api.protocols import BaseOperator, Inbox, Runtime, Scope
from pipeline.api.records import Batch, ChunkEnd, Item

UNREAD_CALLS = (
    "%s: tool calls stay in the completion, since the chat template writes them in no format that is known; name one"
    " with model.tool_format=, or set sampling.tools=none"
)


class Generate(GenerateSetup):
    """Completes the prompts of its input.

    Adds `completion`, `finish_reason` (stop, stop_string, length), `prompt_token_count`, `completion_token_count`,
    `seed` and, on request, `completion_ids`, `logprobs` and `top_logprobs`. Rows leave in the order in
    which they finish. A prompt that is empty or leaves no room for a completion is rejected with the numbers, and so is
    a row that was cut before its text was what `sampling.structured` asks for. With
    `sampling.n` a row becomes n rows, which differ in the last number of their `lineage`. Rows that are bound to come
    out the same are generated once. With `model=endpoint` a server
    completes them (docs/endpoints.md).

    Args:
        model, sampling, decode, runtime, store: the config groups of those names.
        seed: the job's seed; each row's own is derived from it.
        id_column: column that identifies a row to its random numbers, instead of its position.
        completion_ids: whether to keep the token ids.
        completion_text: answer: where the model reasons, `completion` has what comes behind the reasoning, which is in
            `reasoning` and counted in `reasoning_token_count`; raw: all that was drawn.
        reasoning: whether to keep `reasoning` and `reasoning_token_count`.
        data: has the tools (`tools`, `tools_column`) that rows may call, as `sampling.tools` says.
        tool_calls: whether to look for calls: `tool_calls` has them (name, and arguments as JSON) where `completion` is
            what stands beside them, and `tool_error` says why one cannot be read or does not keep its tool's schema;
            the text is left in `completion` then.
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

    scope = Scope.MODEL

    parts = ("decode", "sample")

    @classmethod
    def suited(cls, arguments: Mapping[str, Any]) -> type[BaseOperator]:
        return EndpointGenerate if isinstance(arguments.get("model"), EndpointSettings) else cls

    def open(self, runtime: Runtime) -> None:
        check_chosen(runtime, self._engine_settings)
        self._load(runtime)
        shared_store(runtime, self._store_settings)  # an unusable store ends the run before anything is computed
        self._lookup: StoreLookup | None = None
        self._ahead = LookAhead()
        seeds_given = SEED in self._sampling.per_row
        self._repeated = RepeatedDraws(of_ids=self._id_column is not None and not seeds_given)
        self._duplicates = Duplicates[Row](enabled=self._engine_settings.optimise.identical_rows)
        setup = decode_setup(self._decode)
        drafts, constrained = setup.draft > 0, self._sampling.structured.kind is not None
        self._metrics = CompletionMetrics(runtime, constrained=constrained, drafts=drafts)
        said = self._sampling.tools is not None or CHOICE in self._sampling.per_row
        if self._tools is None and self._data.has_tools and not said:
            runtime.log.warning(UNREAD_CALLS, runtime.node)
        if (wanted := self._model_settings.converts_to) is not None:
            runtime.log.info("%s: the model's weights as %s (model.weights)", runtime.node, wanted)
        if setup.draft_model is not None:
            runtime.log.info("%s: %s makes drafts (decode.draft.model)", runtime.node, setup.draft_model.path)
        if not self._engine_settings.open_keys():
            self._take_engine(self._engine_settings)
        runtime.number("identical", IDENTICAL, lambda: self._duplicates.served)

    def identity(self) -> Identity:
        same = identity_of(self._model, self._engine_settings)
        here = self._runtime.services is None
        if self._engine_settings.open_keys() or (here and self._model.doubt(self._engine_settings)):
            return same  # there is no context yet, or its bits may depend on the slots, which a resume may change
        decoder = self._engine.worker.decoder
        found = self._engine.thread.call(lambda: canary(decoder, self._model.n_vocab))
        return replace(same, bits=found)

    def forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        return self._where.forecast(
            batches,
            task,
            lambda own, part: self._forecast(runtime, own, part),
            lambda others: passed_by(others, self._kept, self._schema),
        )

    def _forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        began = time.perf_counter()
        self._load(runtime)
        rows = int(task.rows.likely * (self._samples.each or 1))
        few = rows if rows <= FEW_ROWS else None
        lengths, longest = prompt_lengths(batch.data for batch in batches), self._sampling.max_tokens
        before = Tuning(self._engine_settings, self._model, lengths, longest, task.results, few).before()
        settings = before or self._engine_settings.with_defaults()
        engine = shared_engine(runtime, self._model, settings, self._decode)
        generating = Generating(
            engine,
            settings,
            self._sampling,
            self._requests,
            self._completions,
            self._model.pieces(),
            completion_keys(self._model, self._decode, settings),
            self._store_settings,
            store_path(self._store_settings, task.results),
        )
        found = generating.forecast(batches, task, time.perf_counter() - began)
        assumed = f"what runtime leaves open is chosen when the run begins; {settings.slots} slots are assumed"
        notes = [*([] if before else [assumed]), *found.notes]
        return replace(found, notes=notes)

    def run(self, inbox: Inbox) -> Iterator[Item]:
        if self._engine_settings.open_keys():
            self._take_engine(self._chosen(inbox))
        settings = self._engine_settings
        capacity = settings.slots + settings.lookahead_rows
        self._client = self._engine.connect(self._runtime.meter, self._runtime.depth, capacity, inbox.wake)
        if self._lookup is not None:
            self._client.on_finished = self._lookup.keep
        self._chunks = OpenChunks()
        try:
            while True:
                while self._wants_rows() and (item := self._ahead.poll(inbox)) is not None:
                    if isinstance(item, ChunkEnd):
                        self._chunks.end(item)
                    elif isinstance(item, Batch):
                        yield from self._submit(item)
                yield from self._emit(self._noted(self._client.collect()))
                if inbox.exhausted and not self._ahead:
                    self._client.end()
                    if self._chunks.empty:
                        return
                inbox.wait(idle=self._chunks.empty, for_items=self._wants_rows())
        finally:
            self._noted(self._client.leave())

    def report(self, directory: Path, node: str) -> Iterable[str]:
        if self._sampling.structured.kind is not None:
            yield from cost_lines(node, directory)

    def close(self) -> None:
        if (warning := self._repeated.warning(self._id_column)) is not None:
            self._runtime.log.warning("%s: %s", self._runtime.node, warning)
        if self._lookup is not None:
            self._lookup.say()

    def _take_engine(self, settings: EngineSettings) -> None:
        self._engine_settings = settings
        self._lookup = store_lookup(self._runtime, self._store_settings, self._model, self._decode, settings)
        self._engine = shared_engine(self._runtime, self._model, settings, self._decode)

    def _chosen(self, inbox: Inbox) -> EngineSettings:
        """Choose the open settings by the first prompts, or by all if they are few."""
        each = self._samples.each
        rows = self._ahead.gather(inbox, FEW_ROWS // (each or 1))
        few = None if rows is None or each is None else rows * each
        lengths, longest = prompt_lengths(self._ahead.data()), self._sampling.max_tokens
        return chosen_settings(self._runtime, self._model, self._engine_settings, lengths, longest, few)

    def _wants_rows(self) -> bool:
        # Rows queued here take memory; rows left in the inbox cause backpressure.
        return self._client.waiting + self._duplicates.waiting < self._engine_settings.lookahead_rows

    def _submit(self, batch: Batch) -> Iterator[Item]:
        """Submit the rows of `batch` to the engine; emit those that `where` passes by, that were refused, or that the
        store has."""
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
        if self._id_column is not None or SEED in self._sampling.per_row:
            self._repeated.note(rows)
        known = [] if self._lookup is None else self._lookup.complete(rows)
        self._metrics.reused(known, from_store=True)
        self._chunks.begin(batch.chunk, len(rows))
        new = [row for row in rows if row.finish_reason is None]
        self._client.submit([row for row in new if not self._duplicates.joins(row)])
        yield from self._emit(known)

    def _noted(self, rows: Sequence[Row]) -> list[Row]:
        """Record `rows`, which the engine has finished, and their duplicates in the metrics; return both."""
        self._metrics.generated(rows)
        duplicates = [other for row in rows for other in self._duplicates.of(row)]
        self._metrics.reused(duplicates, identical=True)
        return [*rows, *duplicates]

    def _emit(self, rows: Sequence[Row]) -> Iterator[Item]:
        """Emit finished rows, and the ends of chunks that have none left."""
        yield from self._completions.items(rows)
        self._chunks.done(rows)
        yield from self._chunks.ready()
