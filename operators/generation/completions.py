"""Output of finished rows as batches and rejects, and of the ends of their chunks in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Generic

import pyarrow as pa

from operators.engine.sampling.logprobs import Scored
from operators.engine.sequence import FinishReason, Sequence
from operators.generation.reasoning import Reasoning
from operators.generation.requests import GenerateRow, R, batch_row
from operators.generation.seeds import SEED
from operators.generation.tool_calls import TOOL_CALLS, ToolReader
from operators.settings import SamplingSettings
from pipeline.api.records import Batch, ChunkEnd, Rejects, add_columns

TEXT = "completion"
_FIELDS = (
    pa.field(TEXT, pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("prompt_token_count", pa.int32()),
    pa.field("completion_token_count", pa.int32()),
    pa.field("seed", pa.int64()),
)
COMPLETION_IDS = pa.field("completion_ids", pa.list_(pa.int32()))
REASONING = (pa.field("reasoning", pa.string()), pa.field("reasoning_token_count", pa.int32()))
LOGPROBS = pa.field("logprobs", pa.list_(pa.float32()))
_ENTRY = pa.struct([pa.field("id", pa.int32()), pa.field("logprob", pa.float32())])
TOP_LOGPROBS = pa.field("top_logprobs", pa.list_(pa.list_(_ENTRY)))


def completion_fields(
    sampling: SamplingSettings, *, keep_ids: bool, reasons: bool = False, calls: bool = False
) -> list[pa.Field]:
    """Return the columns of a completion. `keep_ids`, `reasons`, `calls`: with its token ids, its reasoning, its tool
    calls."""
    by_row = LOGPROBS.name in sampling.per_row
    scored = [LOGPROBS] if by_row or sampling.logprobs is not None else []
    ranked = [TOP_LOGPROBS] if by_row or sampling.logprobs else []
    parts = [*_FIELDS, *(REASONING if reasons else ()), *(TOOL_CALLS if calls else ())]
    return [*parts, *([COMPLETION_IDS] if keep_ids else []), *scored, *ranked]


def with_completion(
    schema: pa.Schema, fields: Iterable[pa.Field], prefix: str, per_row: Iterable[str]
) -> tuple[list[str], pa.Schema]:
    """Return the columns of `schema` that are passed on, and the schema with the `fields` of a completion.

    A seed that comes from the input's `seed` column is the seed that is recorded: one column, not a collision; so it is
    with `logprobs`.
    """
    added = [field.with_name(prefix + field.name) for field in fields]
    by_row = {SEED, LOGPROBS.name} & {field.name for field in added} & set(per_row)
    kept = [name for name in schema.names if name not in by_row]
    return kept, add_columns(pa.schema([schema.field(name) for name in kept]), *added)


class CompletionColumns(ABC, Generic[R]):
    """Makes batches and rejects from finished rows.

    Args:
        kept: the columns of their batch that are passed on.
        fields: the columns of the completion.
        schema: all of them, under the names that they get.
    """

    def __init__(self, kept: Seq[str], fields: Seq[pa.Field], schema: pa.Schema) -> None:
        self._kept = kept
        self._fields = fields
        self._schema = schema

    @abstractmethod
    def _columns(self, rows: Seq[R]) -> Iterable[list[Any]]:
        """Return the values of each field."""

    @abstractmethod
    def _misfit(self, row: R) -> str | None:
        """Return the reason why the text of a finished row does not satisfy its constraint; None if it does or has
        none."""

    @abstractmethod
    def _text(self, row: R) -> str:
        """Return the text of a finished row."""

    def items(self, rows: Iterable[R]) -> Iterator[Batch | Rejects]:
        """Yield rejects for rows that failed or do not satisfy their constraint, made now or stored, then `batches` of
        the others."""
        fitting: list[R] = []
        for row in rows:
            place = batch_row(row)
            if row.error is not None or row.finish_reason is None:
                yield place.batch.reject([place.index], row.error or "it was not finished")
            elif (reason := self._misfit(row)) is not None:
                name = self._schema.names[len(self._kept)]  # show the text in the reject's record
                alone = place.batch.data.slice(place.index, 1).append_column(name, pa.array([self._text(row)]))
                yield place.batch.with_data(alone).reject([0], reason)
            else:
                fitting.append(row)
        yield from self.batches(fitting)

    def batches(self, rows: Iterable[R]) -> Iterator[Batch]:
        """Yield `rows` with their completions, one batch for each input batch."""
        groups: dict[int, list[R]] = {}
        for row in rows:
            groups.setdefault(id(batch_row(row).batch), []).append(row)
        for group in groups.values():
            source = batch_row(group[0]).batch
            kept = source.data.select(self._kept).take(pa.array([batch_row(row).index for row in group], pa.int64()))
            columns = [pa.array(values, f.type) for f, values in zip(self._fields, self._columns(group), strict=True)]
            yield source.with_data(pa.record_batch([*kept.columns, *columns], schema=self._schema))


class Completions(CompletionColumns[Sequence]):
    """Makes batches and rejects from the sequences that an engine has finished.

    Args:
        kept, fields, schema: see CompletionColumns.
        pieces: the bytes of each token of the vocabulary.
        reasoning: the tags of the model; None: it does not reason.
        raw: the completion has the reasoning and the calls too.
        whole: constraints are on all of a text, and not on the answer behind its reasoning.
        reader: reads the tool calls; None: there are no tools.
    """

    def __init__(
        self,
        kept: Seq[str],
        fields: Seq[pa.Field],
        schema: pa.Schema,
        pieces: Seq[bytes],
        reasoning: Reasoning | None = None,
        *,
        raw: bool = False,
        whole: bool = False,
        reader: ToolReader | None = None,
    ) -> None:
        super().__init__(kept, fields, schema)
        self._reader = reader if any(f == TOOL_CALLS[0] for f in fields) else None
        self._reasoning = reasoning
        self._raw = raw
        self._whole = whole
        self._pieces = pieces
        self._values: Mapping[str, Callable[[Sequence], Any]] = {
            TEXT: self._text,
            "finish_reason": lambda row: (row.finish_reason or FinishReason.LENGTH).value,
            "prompt_token_count": lambda row: len(row.prompt),
            "completion_token_count": lambda row: len(row.tokens),
            "seed": lambda row: row.seed,
            COMPLETION_IDS.name: lambda row: row.tokens,
            LOGPROBS.name: lambda row: _of_each(row, lambda score: score.logprob),
            TOP_LOGPROBS.name: lambda row: _of_each(
                row, lambda score: [{"id": token, "logprob": logprob} for token, logprob in score.top]
            ),
        }

    def _columns(self, rows: Seq[Sequence]) -> Iterator[list[Any]]:
        values: dict[str, list[Any]] = {}
        if self._reasoning is not None:
            splits = [self._reasoning.split(row) for row in rows]
            values[REASONING[0].name] = [split.reasoning for split in splits]
            values[REASONING[1].name] = [split.tokens for split in splits]
            values[TEXT] = [split.answer for split in splits]
        if self._reader is not None:
            reasoned = [text is not None for text in values.get(REASONING[0].name, [None] * len(rows))]
            answers = [self._reader.read(row, reasoned=r) for row, r in zip(rows, reasoned, strict=True)]
            values[TOOL_CALLS[0].name] = [answer.calls for answer in answers]
            values[TOOL_CALLS[1].name] = [answer.error for answer in answers]
            texts = values.get(TEXT) or map(self._text, rows)
            values[TEXT] = [t if a.content is None else a.content for t, a in zip(texts, answers, strict=True)]
        if self._raw:
            values.pop(TEXT, None)
        for field in self._fields:
            yield values[field.name] if field.name in values else [self._values[field.name](row) for row in rows]

    def _misfit(self, row: Sequence) -> str | None:
        constraint = row.params.constraint
        if constraint is None:
            return None
        if row.fits:
            text = self._text(row) if self._whole or self._reasoning is None else self._reasoning.split(row).answer
            return constraint.check(text)
        end = f"before the {constraint.noun} was complete"
        if row.finish_reason != FinishReason.LENGTH:
            return f"it ended {end}"
        if row.max_tokens == row.params.max_tokens:
            return f"cut by max_tokens={row.max_tokens} {end}"
        room, after = len(row.prompt) + row.max_tokens, f"after {row.max_tokens} tokens"
        return f"cut by runtime.max_sequence_tokens (or runtime.n_ctx) at {room} tokens, {after}, {end}"

    def _text(self, row: Sequence) -> str:
        text = batch_row(row).text
        return completion_text(row, self._pieces) if text is None else text


def _of_each(row: Sequence, value: Callable[[Scored], Any]) -> list[Any] | None:
    return None if row.params.logprobs is None else [value(score) for score in row.sampling.scores]


def completion_text(row: Sequence, pieces: Seq[bytes]) -> str:
    """Return the text of a finished row: its tokens up to a stop string; bytes that are not UTF-8 become U+FFFD."""
    if row.stops is not None:
        return bytes(row.stops.text[: row.stops.cut]).decode("utf-8", "replace")
    return b"".join([pieces[t] for t in row.tokens]).decode("utf-8", "replace")


class OpenChunks:
    """The chunks with rows in flight. Their ends are held until their rows and all earlier chunks have left."""

    def __init__(self) -> None:
        self._rows: Counter[int] = Counter()
        self._ends: deque[ChunkEnd] = deque()

    @property
    def empty(self) -> bool:
        """True if no row is in flight and no end is held."""
        return not self._ends and not any(self._rows.values())

    def begin(self, chunk: int, rows: int) -> None:
        """Count `rows` more rows of `chunk` in flight."""
        self._rows[chunk] += rows

    def done(self, rows: Iterable[GenerateRow]) -> None:
        """Count `rows` as emitted."""
        self._rows.subtract(row.chunk for row in rows)

    def end(self, end: ChunkEnd) -> None:
        """Note that no more rows of this chunk will come."""
        self._ends.append(end)

    def ready(self) -> Iterator[ChunkEnd]:
        """Yield the ends of chunks that may be emitted now, in order."""
        while self._ends and not self._rows[self._ends[0].chunk]:
            end = self._ends.popleft()
            del self._rows[end.chunk]
            yield end
