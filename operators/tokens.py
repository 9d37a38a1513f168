"""Tokenize: turns `prompt_text` into `prompt_ids`, a list<int32> column over one NumPy buffer per batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from operators.engine.backend.interface import inspect_model, load_model
from operators.rows.token_lists import PROMPT_IDS, list_column, list_views
from operators.settings import ModelSettings
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

PROMPT_TEXT = "prompt_text"


class Tokenize(BaseOperator):
    """Tokenizes the prompt text with the model's tokenizer; special tokens in the text are parsed, a BOS is put first
    where the model wants one. Tokenizing runs beside decoding.

    Args:
        model: whose tokenizer.
        ids_column: a column of token ids (list<int32>) that, where one is not null, are taken in place of the text. A
            row with one that the model does not know is a reject.

    Example:
        tokenize:
          inputs: render
          op:
            _target_: operators.tokens.Tokenize
            model: ${model}
    """

    def __init__(self, model: ModelSettings, ids_column: str | None = None) -> None:
        self._settings = model
        self._ids_column = ids_column

    def plan(self, schema: pa.Schema) -> pa.Schema:
        inspect_model(self._settings)
        require_column(schema, PROMPT_TEXT, [pa.string()])
        if self._ids_column is not None:
            require_column(schema, self._ids_column, [PROMPT_IDS.type])
        self._schema = add_columns(schema, PROMPT_IDS)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        return {"model": inspect_model(self._settings).fingerprint}

    def open(self, runtime: Runtime) -> None:
        self._model = load_model(runtime, self._settings)

    def process(self, batch: Batch) -> Iterable[Output]:
        data = batch.data
        if unknown := self._unknown(data):
            yield batch.reject(list(unknown), list(unknown.values()))
            data = data.take(pa.array([i for i in range(batch.num_rows) if i not in unknown], pa.int64()))
        texts = data.column(PROMPT_TEXT).cast(pa.binary()).to_pylist()
        ids, offsets = self._model.tokenize([text or b"" for text in texts])
        column = list_column(ids, offsets)
        if self._ids_column is not None and data.column(self._ids_column).null_count < data.num_rows:
            pairs = zip(list_views(column), data.column(self._ids_column).to_pylist(), strict=True)
            column = pa.array([made if given is None else given for made, given in pairs], PROMPT_IDS.type)
        yield batch.with_data(pa.record_batch([*data.columns, column], schema=self._schema))

    def _unknown(self, data: pa.RecordBatch) -> dict[int, str]:
        """Return, by index, the reason for each row that has an id outside the vocabulary."""
        if self._ids_column is None:
            return {}
        known = range(self._model.n_vocab)
        found: dict[int, str] = {}
        for i, ids in enumerate(data.column(self._ids_column).to_pylist()):
            wrong = [token for token in ids or () if token not in known]
            if wrong:
                has = f"has the token id {wrong[0]}; the model's ids are 0 to {known[-1]}"
                found[i] = f"column '{self._ids_column}' {has}"
        return found
