"""Tokenize: `prompt_text` to `prompt_ids`, an Arrow list<int32> column built from one NumPy buffer a batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from operators.decoding.model import TokenIds, inspect_model, load_model
from operators.settings import ModelSettings
from pipeline.protocols import BaseOperator, Runtime
from pipeline.records import Batch, Output, add_columns, require_column

PROMPT_TEXT = "prompt_text"
PROMPT_IDS = pa.field("prompt_ids", pa.list_(pa.int32()))


class Tokenize(BaseOperator):
    """Tokenizes the prompt text with the model's tokenizer; special tokens in the text are parsed, a BOS is put first
    where the model wants one. Tokenizing runs beside decoding.

    Args:
        model: whose tokenizer.

    Example:
        tokenize:
          inputs: render
          op:
            _target_: operators.tokens.Tokenize
            model: ${model}
    """

    def __init__(self, model: ModelSettings) -> None:
        self._settings = model

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Adds `prompt_ids`."""
        inspect_model(self._settings)
        require_column(schema, PROMPT_TEXT, [pa.string()])
        self._schema = add_columns(schema, PROMPT_IDS)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        """The model's content."""
        return {"model": inspect_model(self._settings).fingerprint}

    def open(self, runtime: Runtime) -> None:
        """Load the model, if no other node has."""
        self._model = load_model(runtime, self._settings)

    def process(self, batch: Batch) -> Iterable[Output]:
        """Tokenize one batch."""
        texts = batch.data.column(PROMPT_TEXT).cast(pa.binary()).to_pylist()
        ids, offsets = self._model.tokenize([text or b"" for text in texts])
        column = list_column(ids, offsets)
        yield batch.with_data(pa.record_batch([*batch.data.columns, column], schema=self._schema))


def list_column(ids: TokenIds, offsets: TokenIds) -> pa.ListArray:
    """list<int32> over the buffers of `ids` and `offsets`; nothing is copied."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids, pa.int32()))


def list_views(column: pa.ListArray) -> list[TokenIds]:
    """int32 views of each list of `column`, on its buffers."""
    values = column.values.to_numpy(zero_copy_only=True)
    bounds = np.asarray(column.offsets).tolist()
    return [values[a:b] for a, b in itertools.pairwise(bounds)]
