"""ParseBatch: turns the lines of a batch file into rows to render, generate and embed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from operators.endpoint.api.checks import BadValue, whole
from operators.engine.backend.loading import inspect_model, template_of
from operators.formats.lines import LINE, TEXT
from operators.generation.seeds import MOST_SEED
from operators.openai.requests import FIELDS, PARAMETERS, Columns, Parameters, read_line, request_of
from operators.openai.values import IMAGE_PART, Code, Fault, unsupported
from operators.prompts.tool_formats import format_in
from operators.rows.lineage import hash_of
from operators.settings import ModelSettings
from operators.settings.checks import check
from pipeline.api import LINEAGE, ROW, Batch, Operator, Output, Stateful, require_column

_DIGEST_BYTES = 16
_BATCH_ROWS = 1024
"""A line may ask for 2048 texts, so the rows of one batch of lines are sent in several batches."""


class ParseBatch(Operator, Stateful):
    """Reads a request from each line, and makes a row of each text and sample that it asks for.

    The last number of a row's `lineage` is the index of its choice (or embedding). A line that is no request, that asks
    for something that cannot be done, or whose custom_id an earlier line has used, is a reject: `code: what is wrong`.
    Stands directly behind the source, whose rows come in order: the first of two equal custom_ids is the earlier line.

    Args:
        model: says how long its embeddings are.
        models: names that requests may give as `model`; None: any.

    Raises:
        ConfigError: `models` is empty.
    """

    append = True
    parameters: Parameters = PARAMETERS
    fields = FIELDS

    def __init__(self, model: ModelSettings, models: list[str] | None = None) -> None:
        check(models is None or bool(models), "models", models, "names of models, or null for any name")
        self._model = model
        self._models = models
        self._seen: set[bytes] = set()
        self._fresh: dict[int, list[bytes]] = {}
        """The digests in `_seen` of chunks that have not ended, by chunk."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the requests, `row` and `lineage`.

        Raises:
            SchemaError: the input does not come from data.format=lines.
        """
        for field in (TEXT, LINE):
            require_column(schema, field.name, [field.type])
        self._n_embd = inspect_model(self._model).n_embd
        self._template = template_of(self._model, tools=True)
        self._schema = pa.schema([*self.fields, LINE, ROW, LINEAGE])
        return self._schema

    def process(self, batch: Batch) -> Iterable[Output]:
        rows: list[dict[str, Any]] = []
        requests = 0
        for i, source in enumerate(batch.data.to_pylist()):
            try:
                rows += self._rows(source, batch.chunk)
                requests += 1
            except BadValue as bad:
                yield batch.reject([i], str(Fault(Code.INVALID_VALUE, bad.quoting)))
            except Fault as fault:
                yield batch.reject([i], str(fault))
            if len(rows) >= _BATCH_ROWS or (rows and i == batch.num_rows - 1):
                data = pa.RecordBatch.from_pylist(rows, schema=self._schema)
                yield batch.with_data(data, expanded=len(rows) - requests)
                rows, requests = [], 0

    def state(self, chunk: int) -> bytes:
        return b"".join(self._fresh.pop(chunk, ()))

    def restore(self, states: Iterable[bytes]) -> None:
        for added in states:
            self._seen.update(added[i : i + _DIGEST_BYTES] for i in range(0, len(added), _DIGEST_BYTES))

    def _rows(self, source: dict[str, Any], chunk: int) -> list[dict[str, Any]]:
        """Return a row for each choice that a line asks for: the samples of the first text, those of the second, and so
        on."""
        line = read_line(source[TEXT.name])
        self._note(line["custom_id"], chunk)
        columns, texts, samples = request_of(line, self._models, self.parameters)
        if IMAGE_PART in columns.get("messages", "") and self._model.mmproj is None:
            raise unsupported("a part of the type image_url", "the job's model reads none (model.mmproj is not set)")
        if "tool_list" in columns:
            self._check_tools(columns.get("tools", "auto"))
        asked = self._asked(columns, texts)
        if "dimensions" in columns and self._n_embd is not None:
            whole(1, self._n_embd)("dimensions", columns["dimensions"])
        seed = columns.get("seed")
        columns |= {"choices": len(asked) * samples, LINE.name: source[LINE.name], ROW.name: source[ROW.name]}
        rows: list[dict[str, Any]] = []
        for about, sample in itertools.product(asked, range(samples)):
            of_row = {"sample": sample, "seed": _seed(seed, sample), LINEAGE.name: [len(rows)]}
            rows.append({**columns, **about, **of_row})
        return rows

    def _check_tools(self, choice: str) -> None:
        """Raise Fault for tools that the model is not told about, or whose calls cannot be read."""
        if self._template is None or "tools" not in self._template:
            raise unsupported("tools", "the model's chat template reads none; leave them out")
        if choice != "none" and self._model.tool_format is None and format_in(self._template) is None:
            raise unsupported("tools", "the chat template has no known format of calls; the job can name one")

    def _asked(self, columns: Columns, texts: list[Any]) -> list[Columns]:
        """Return the columns of each text that a line asks about: a text, or its token ids."""
        prompts = [("", text) if isinstance(text, list) else (text, None) for text in texts]
        return [{"prompt": prompt, "given_ids": ids} for prompt, ids in prompts]

    def _note(self, custom_id: str, chunk: int) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._seen:
            raise Fault(Code.DUPLICATE_CUSTOM_ID, f"an earlier line has the custom_id '{custom_id}' too")
        self._seen.add(digest)
        self._fresh.setdefault(chunk, []).append(digest)


def _seed(seed: int | None, sample: int) -> int | None:
    """Return the given seed for the first sample of a text, and derived ones for the others."""
    if seed is None:
        return None
    of_sample = seed if not sample else hash_of(f"{seed}|{sample}")
    return of_sample & MOST_SEED
