"""GenerateSetup: a Generate node before it runs, from its arguments to the model that it loads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from operators.engine.backend.loading import identity, inspect_model, load_model
from operators.generation.completions import Completions, completion_fields, with_completion
from operators.generation.model_sampling import taken
from operators.generation.reasoning import Reasoning, reasoning_tags
from operators.generation.requests import Samples, SequenceMaker, require_columns
from operators.generation.structured import structured_form
from operators.generation.tool_calls import ToolReader
from operators.generation.tools import Tools
from operators.generation.wiring import check_room, decode_setup, draft_memory, model_memory, of_engine
from operators.rows.row_condition import Where
from operators.rows.sql import RowExpression
from operators.settings import DataSettings, DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.checks import check_one_of
from operators.settings.runtime import EngineSettings
from pipeline.api.protocols import BaseOperator, MemoryNeed, Runtime


class GenerateSetup(BaseOperator):
    """Checks the arguments of a `Generate`, which says what they mean, plans its columns and loads its model."""

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
        self._where = Where(where)
        self._model_settings = of_engine(model, runtime)
        self._sampling = sampling
        self._decode = decode
        self._engine_settings = decode_setup(decode).settled(runtime)
        self._store_settings = store
        self._seed = seed
        self._id_column = id_column
        self._prefix = f"{as_}_" if as_ else ""
        check_one_of("completion_text", completion_text, ("answer", "raw"))
        self._raw = completion_text == "raw"
        self._keep = {"keep_ids": completion_ids, "reasons": reasoning, "calls": tool_calls}
        self._data = data or DataSettings()
        self._samples = Samples(sampling)
        self._priority = None if runtime.priority is None else RowExpression("runtime.priority", runtime.priority)

    def plan(self, schema: pa.Schema) -> pa.Schema:
        check_room(self._model_settings, self._engine_settings)
        decode_setup(self._decode).check(self._sampling, self._engine_settings, self._model_settings)
        self._where.plan(schema)
        require_columns(schema, self._sampling, self._id_column, self._priority)
        schema = self._samples.schema(schema)
        self._tags = reasoning_tags(self._model_settings)
        self._tools = Tools.of(self._model_settings, self._data, self._sampling)
        if self._tools is not None:
            self._tools.plan(schema)
        there = {"reasons": self._tags is not None, "calls": self._tools is not None}
        keep = {key: wanted and there.get(key, True) for key, wanted in self._keep.items()}
        self._fields = completion_fields(self._sampling, **keep)
        self._kept, self._schema = with_completion(schema, self._fields, self._prefix, self._sampling.per_row)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        form = structured_form(self._sampling.structured)
        constraint = {} if form is None else {"structured": form.digest}
        tags = reasoning_tags(self._model_settings)
        constraint |= {} if tags is None else {"reasoning": repr(tags)}
        tools = Tools.of(self._model_settings, self._data, self._sampling)
        constraint |= {} if tools is None else {"tools": tools.identity}
        runtime = self._engine_settings
        # It says where texts are cut, as runtime.max_sequence_tokens does.
        room = {"n_ctx": runtime.n_ctx} if runtime.row_limit == "runtime.n_ctx" else {}
        return {**identity(self._model_settings), **room, **constraint}

    def memory_needs(self) -> Iterable[MemoryNeed]:
        key = repr((self._model_settings, self._engine_settings, self._decode))
        setup = decode_setup(self._decode)
        yield from model_memory(self._model_settings, self._engine_settings, key, draft=setup.draft)
        yield from draft_memory(setup, self._model_settings, self._engine_settings, key)

    def _load(self, runtime: Runtime) -> None:
        """Load the model, and make the converters from rows to sequences and back."""
        self._runtime = runtime
        self._model = model = load_model(runtime, self._model_settings)
        setup = decode_setup(self._decode)
        reasoning = None if self._tags is None else Reasoning(model, self._tags)
        self._requests = SequenceMaker(
            self._sampling,
            model,
            setup.room(self._engine_settings, model.n_ctx_train),
            self._seed,
            runtime.node,
            self._id_column,
            setup.sequence_type(),
            runtime.round_of,
            self._engine_settings.row_limit,
            self._priority,
            reasoning,
            self._tools,
        )
        reader = None if self._tools is None else ToolReader(self._tools, model, reasoning)
        self._completions = Completions(
            self._kept,
            self._fields,
            self._schema,
            model.pieces(),
            reasoning,
            raw=self._raw,
            whole=not self._sampling.structured.after_reasoning,
            reader=reader,
        )
        if (asked := taken(inspect_model(self._model_settings).sampling, self._sampling)) is not None:
            runtime.log.info("%s: %s", runtime.node, asked)
        if (warning := self._requests.too_short()) is not None:
            runtime.log.warning("%s: %s", runtime.node, warning)
