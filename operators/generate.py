"""Generate: completes prompts on an engine that nodes with the same settings share."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.batch_by_length import prompt_lengths
from operators.endpoint.generate import EndpointGenerate
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.loading import gpus_of, identity_with_adapters, inspect_model, load_model
from operators.engine.images.encoded import EncodedImages, have_images
from operators.engine.sequence import Sequence
from operators.estimate.node import Generating
from operators.generation.adapters import UNUSED_ADAPTERS
from operators.generation.canary import canary
from operators.generation.completions import Completions, completion_fields
from operators.generation.duplicates import RepeatedDraws
from operators.generation.memory import draft_memory, model_memory
from operators.generation.model_sampling import taken
from operators.generation.node import GenerateNode, RowBackend
from operators.generation.reasoning import Reasoning, reasoning_tags
from operators.generation.requests import SequenceMaker
from operators.generation.row_metrics import CompletionMetrics, cost_lines
from operators.generation.seeds import SEED
from operators.generation.store_lookup import StoreLookup
from operators.generation.structured import structured_form
from operators.generation.tool_calls import ToolReader
from operators.generation.tools import CHOICE, Tools
from operators.generation.wiring import (
    check_chosen,
    check_room,
    chosen_settings,
    completion_keys,
    decode_setup,
    identity_of,
    long_rows,
    of_engine,
    shared_engine,
    shared_store,
    store_path,
)
from operators.rows.sql import RowExpression
from operators.rows.token_lists import PROMPT_IDS
from operators.settings import StoreSettings
from operators.settings.runtime import EngineSettings
from operators.tuning.calibration import FEW_ROWS
from operators.tuning.choices import Tuning
from pipeline.api import Batch, Forecast, Identity, Inbox, MemoryNeed, Runtime, Scope, Task, UsesModel, require_column
from pipeline.api.identity import Gpu

MIXED = "rows of several share calls"
DRAINED = "rows of one are done before those of the next begin (docs/adapters.md)"
UNREAD_CALLS = (
    "%s: tool calls stay in the completion, since the chat template writes them in no format that is known; name one"
    " with model.tool_format=, or set sampling.tools=none"
)


class Generate(GenerateNode[Sequence], ModelOrServer, UsesModel):
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
        data: has the tools (`tools`, `tools_column`) that rows may call, as `sampling.tools` says, and the column with
            their adapters.
        tool_calls: whether to look for calls: `tool_calls` has them (name, and arguments as JSON) where `completion` is
            what stands beside them, and `tool_error` says why one cannot be read or does not keep its tool's schema;
            the text is left in `completion` then.
        as_: prefix of the new columns (`as` in a job file), for a second Generate in a graph.
        where: a condition in SQL on a row's columns. Rows for which it is false or null pass by as they are, with null
            in the new columns.
        adapter: a name of `model.adapters`, or a list of names, for all rows of the node; base: none; null: those that
            `data.adapter_column` names.

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

    at_server = EndpointGenerate

    def __post_init__(self) -> None:
        super().__post_init__()
        self._model_settings = of_engine(self.model, self.runtime)
        self._setup = decode_setup(self.decode)
        self._engine_settings = self._setup.settled(self.runtime)
        priority = self.runtime.priority
        self._priority = None if priority is None else RowExpression("runtime.priority", priority)

    def _adapter_names(self) -> Collection[str]:
        return list(self.model.adapters or ())

    def _planned(self, schema: pa.Schema) -> list[pa.Field]:
        self._engine_settings = self._setup.of_images(self._engine_settings, self.model)
        check_room(self._model_settings, self._engine_settings)
        self._setup.check(self.sampling, self._engine_settings, self._model_settings)
        self._setup.check_device_sampling(self.sampling, self._engine_settings, self._model_settings)
        require_column(schema, PROMPT_IDS.name, [PROMPT_IDS.type])
        if have_images(schema):
            self._setup.check_images(self._engine_settings, self._model_settings)
        if self._priority is not None:
            self._priority.plan(schema, lambda kind: kind.is_numeric(), "a number")
        structured_form(self.sampling.structured)
        self._tags = reasoning_tags(self._model_settings)
        self._tools = Tools.of(self._model_settings, self._data, self.sampling)
        if self._tools is not None:
            self._tools.plan(schema)
        reasons, calls = self.reasoning and self._tags is not None, self.tool_calls and self._tools is not None
        return completion_fields(self.sampling, keep_ids=self.completion_ids, reasons=reasons, calls=calls)

    def fingerprint(self) -> dict[str, Any]:
        form = structured_form(self.sampling.structured)
        constraint = {} if form is None else {"structured": form.digest}
        tags = reasoning_tags(self._model_settings)
        constraint |= {} if tags is None else {"reasoning": repr(tags)}
        tools = Tools.of(self._model_settings, self._data, self.sampling)
        constraint |= {} if tools is None else {"tools": tools.identity}
        runtime = self._engine_settings
        # It says where texts are cut, as runtime.max_sequence_tokens does.
        room = {"n_ctx": runtime.n_ctx} if runtime.row_limit == "runtime.n_ctx" else {}
        return {**super().fingerprint(), **identity_with_adapters(self._model_settings), **room, **constraint}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        key = repr((self._model_settings, self._engine_settings, self.decode))
        yield from model_memory(self._model_settings, self._engine_settings, key, draft=self._setup.draft)
        yield from draft_memory(self._setup, self._model_settings, self._engine_settings, key)

    def devices(self) -> Iterable[str]:
        return inspect_model(self._model_settings).placement.devices

    def gpus(self, environment: Mapping[str, str]) -> Iterable[Gpu] | None:
        return gpus_of(self._model_settings, environment)

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        check_chosen(runtime, self._engine_settings)
        self._load(runtime, self.store)
        shared_store(runtime, self.store)  # an unusable store ends the run before anything is computed
        seeds_given = SEED in self.sampling.per_row
        self._repeated = RepeatedDraws(of_ids=self.id_column is not None and not seeds_given)
        drafts, constrained = self._setup.draft > 0, self.sampling.structured.kind is not None
        self._metrics = CompletionMetrics(runtime, constrained=constrained, drafts=drafts)
        said = self.sampling.tools is not None or CHOICE in self.sampling.per_row
        if self._tools is None and self._data.has_tools and not said:
            runtime.log.warning(UNREAD_CALLS, runtime.node)
        if self._model.adapters and self._adapters.is_unsaid:
            runtime.log.warning(UNUSED_ADAPTERS, runtime.node)
        if (wanted := self._model_settings.converts_to) is not None:
            runtime.log.info("%s: the model's weights as %s (model.weights)", runtime.node, wanted)
        if (drafting := self._setup.draft_model) is not None:
            runtime.log.info("%s: %s makes drafts (decode.draft.model)", runtime.node, drafting.path)
        if not self._engine_settings.open_keys():
            self._take_engine(self._engine_settings)

    def identity(self) -> Identity:
        same = identity_of(self._model, self._engine_settings)
        here = self._runtime.services is None
        if self._engine_settings.open_keys() or (here and self._model.doubt(self._engine_settings)):
            return same  # there is no context yet, or its bits may depend on the slots, which a resume may change
        decoder = self._engine.loop.decoder
        found = self._engine.thread.call(lambda: canary(decoder, self._model.n_vocab))
        return replace(same, bits=found)

    def _forecast(self, runtime: Runtime, batches: Seq[Batch], task: Task) -> Forecast:
        began = time.perf_counter()
        self._load(runtime, replace(self.store, images_mb=0))  # a dry run writes nothing
        rows = int(task.rows.likely * (self._samples.each or 1))
        few = rows if rows <= FEW_ROWS else None
        before = self._tuning(prompt_lengths(batch.data for batch in batches), task.results, few).before()
        settings = before or self._engine_settings.with_defaults()
        engine = shared_engine(runtime, self._model, settings, self.decode)
        generating = Generating(
            engine,
            settings,
            self.sampling,
            self._requests,
            self._completions,
            self._model.pieces(),
            completion_keys(self._model, self.decode, settings),
            self.store,
            store_path(self.store, task.results),
        )
        found = generating.forecast(batches, task, time.perf_counter() - began)
        assumed = f"what runtime leaves open is chosen when the run begins; {settings.slots} slots are assumed"
        return replace(found, notes=[*([] if before else [assumed]), *found.notes])

    def _note(self, rows: Seq[Sequence]) -> None:
        if self.id_column is not None or SEED in self.sampling.per_row:
            self._repeated.note(rows)

    def report(self, directory: Path, node: str) -> Iterable[str]:
        if (line := long_rows(self._model_settings, self._engine_settings)) is not None:
            yield f"{node}: {line}"
        if self.sampling.structured.kind is not None:
            yield from cost_lines(node, directory)

    def close(self) -> None:
        if (warning := self._repeated.warning(self.id_column)) is not None:
            self._runtime.log.warning("%s: %s", self._runtime.node, warning)
        super().close()

    def _connect(self, inbox: Inbox) -> RowBackend[Sequence]:
        if self._engine_settings.open_keys():
            self._take_engine(self._chosen(inbox))
        settings = self._engine_settings
        capacity = settings.slots + settings.lookahead_rows
        client = self._engine.connect(self._runtime.meter, self._runtime.depth, capacity, inbox.wake)
        if self._lookup is not None:
            client.on_finished = self._lookup.keep
        return client

    def _take_engine(self, settings: EngineSettings) -> None:
        self._engine_settings = settings
        if (store := shared_store(self._runtime, self.store)) is not None:
            keys, retry = completion_keys(self._model, self.decode, settings), self.store.retry.finish_reason
            self._lookup = StoreLookup(self._runtime, store, retry, keys, self._model.pieces())
        self._engine = shared_engine(self._runtime, self._model, settings, self.decode)
        if self._model.adapters:
            how = MIXED if self._engine.loop.decoder.mixes_adapters else DRAINED
            self._runtime.log.info("%s: %s; %s", self._runtime.node, self._adapters.in_words(), how)

    def _chosen(self, inbox: Inbox) -> EngineSettings:
        """Choose the open settings by the first prompts, or by all if they are few."""
        each = self._samples.each
        rows = self._ahead.gather(inbox, FEW_ROWS // (each or 1))
        few = None if rows is None or each is None else rows * each
        chosen = (self._where.split(batch)[0].data for batch in self._ahead.batches())
        return chosen_settings(self._runtime, self._tuning(prompt_lengths(chosen), self._runtime.output_dir, few))

    def _tuning(self, lengths: Seq[int], folder: Path, few: int | None) -> Tuning:
        settings, longest = self._engine_settings, self.sampling.max_tokens
        return Tuning(settings, self._model, lengths, longest, folder, few, self._setup.draft)

    def _load(self, runtime: Runtime, store: StoreSettings) -> None:
        """Load the model, and make the converters from rows to sequences and back."""
        self._model = model = load_model(runtime, self._model_settings)
        reasoning = None if self._tags is None else Reasoning(model, self._tags)
        self._requests = requests = SequenceMaker(
            self.sampling,
            model,
            self._setup.room(self._engine_settings, model.n_ctx_train),
            self._seeds(runtime),
            self._setup.sequence_type(),
            self._engine_settings.row_limit,
            self._priority,
            reasoning,
            self._tools,
            self._adapters,
            EncodedImages.shared(runtime, model, self._engine_settings, store) if self.model.mmproj else None,
            self._engine_settings.n_ubatch,
        )
        reader = None if self._tools is None else ToolReader(self._tools, model, reasoning)
        self._completions = Completions(
            self._kept,
            self._fields,
            self._schema,
            model.pieces(),
            reasoning,
            raw=self.completion_text == "raw",
            whole=not self.sampling.structured.after_reasoning,
            reader=reader,
        )
        if (asked := taken(inspect_model(self._model_settings).sampling, self.sampling)) is not None:
            runtime.log.info("%s: %s", runtime.node, asked)
        if (warning := requests.too_short()) is not None:
            runtime.log.warning("%s: %s", runtime.node, warning)
