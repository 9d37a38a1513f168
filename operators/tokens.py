"""Tokenize: turns `prompt_text` into `prompt_ids`, a list<int32> column over one NumPy buffer per batch. Split: cuts
texts into pieces of so many tokens."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from operators.endpoint.render import EndpointTokenize
from operators.endpoint.server import ModelOrServer
from operators.engine.backend.loading import identity, inspect_model, load_model
from operators.engine.backend.text_columns import TextColumns
from operators.engine.images.columns import PLACED_IMAGES, ImagePrompts
from operators.images.columns import PROMPT_IMAGES, has_prompt_images
from operators.prompts.row_images import with_images_named
from operators.rows.batches import set_apart
from operators.rows.lineage import refuse_identity
from operators.rows.token_lists import NO_PROMPT, PROMPT_IDS, PROMPT_TEXT, list_column, list_views
from operators.settings import ModelSettings
from operators.settings.checks import check
from pipeline.api import Batch, MakesPrompts, Operator, Output, Runtime, Scope, add_columns, require_column

WIDTH = 120
PLACES = (
    re.compile(r"\n\s*\n"),  # paragraph
    re.compile(r"\n"),  # line
    re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？])[」』”’）]*"),  # noqa: RUF001 - sentence, also of Chinese and Japanese
    re.compile(r"\s+"),  # word
)
"""What ends a piece of a text, the best first. No match begins where another failed, so that searching is linear."""


class Tokenize(ModelOrServer, MakesPrompts):
    """Tokenizes `prompt_text` with the model's tokenizer; a BOS is put first where the model wants one. Tokenizing runs
    beside decoding. With `model=endpoint` the server has the tokenizer, and `prompt_ids` is null.

    What the template of Render wrote is read with special tokens; the name of one in the text of the row is text
    (`prompt_literals` says where), unless `model.special_tokens_in_text=parse`. A `prompt_text` that Render did not
    make is the row's.

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

    scope = Scope.ROW

    def __init__(self, model: ModelSettings, ids_column: str | None = None) -> None:
        self._settings = model
        self._ids_column = ids_column

    at_server = EndpointTokenize

    def plan(self, schema: pa.Schema) -> pa.Schema:
        inspect_model(self._settings)
        require_column(schema, PROMPT_TEXT.name, [PROMPT_TEXT.type])
        self._has_images = has_prompt_images(schema)
        if self._has_images:
            require_column(schema, PROMPT_IMAGES.name, [PROMPT_IMAGES.type])
            check(self._settings.mmproj is not None, "model.mmproj", None, "prompts have images, which it is to read")
            self._placed = PLACED_IMAGES.with_metadata(schema.field(PROMPT_IMAGES.name).metadata)
            schema = schema.set(schema.get_field_index(PROMPT_IMAGES.name), self._placed)
        if self._ids_column is not None:
            require_column(schema, self._ids_column, [PROMPT_IDS.type])
        self._schema = add_columns(schema, PROMPT_IDS)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        return identity(self._settings)

    def open(self, runtime: Runtime) -> None:
        self._model = load_model(runtime, self._settings)
        self._texts = TextColumns(self._model, self._settings.special_tokens_in_text)
        self._images: ImagePrompts | None = None
        self._sizes_alone = runtime.estimates

    def process(self, batch: Batch) -> Iterable[Output]:
        # Not when it is opened: then the engine's number of threads is not known yet, which the encoder takes.
        if self._has_images and self._images is None and self._model.vision is not None:
            self._images = ImagePrompts(
                self._texts, self._model.vision, int(self._model.add_bos), sizes_alone=self._sizes_alone
            )
        refused = self._unknown(batch.data) | self._texts.refused(batch.data, [PROMPT_TEXT.name])
        rejects, batch = set_apart(batch, refused)
        yield from rejects
        data = batch.data
        if self._images is None:
            column = list_column(*self._texts.tokenize(data, PROMPT_TEXT.name))
        else:
            column, placed, unreadable = self._images.tokenize(data, PROMPT_TEXT.name)
            data = data.set_column(data.schema.get_field_index(PROMPT_IMAGES.name), self._placed, placed)
        if self._ids_column is not None and data.column(self._ids_column).null_count < data.num_rows:
            pairs = zip(list_views(column), data.column(self._ids_column).to_pylist(), strict=True)
            column = pa.array([ids if row_ids is None else row_ids for ids, row_ids in pairs], PROMPT_IDS.type)
            if self._images is not None:  # ids that are given have no images
                given, at = data.column(self._ids_column).is_valid(), data.schema.get_field_index(PROMPT_IMAGES.name)
                data = data.set_column(at, self._placed, pc.if_else(given, None, data.column(at)))
        told = self._texts.told(data, [PROMPT_TEXT.name])
        batch = batch.with_data(pa.record_batch([*data.columns, column], schema=self._schema), told=told)
        if self._images is not None:
            rejects, batch = set_apart(batch, unreadable)
            yield from rejects
        yield batch

    def prompt_lines(self, row: pa.RecordBatch) -> Iterable[str]:
        ids, text = (row.column(field.name).to_pylist()[0] for field in (PROMPT_IDS, PROMPT_TEXT))
        if text is None and self._ids_column is None:
            yield NO_PROMPT
            return
        text, marked = text or "", self._texts.marked(row, PROMPT_TEXT.name)[0]
        special = self._model.special_tokens.texts
        cells = sum(token < 0 for token in ids)
        of_images = f", {cells:,} are cells of images" if cells else ""
        yield f"{len(ids):,} tokens, {sum(token in special for token in ids):,} of them special{of_images}; the text:"
        yield with_images_named(text, row)
        if count := sum(m != t for m, t in zip(marked, text, strict=True)):
            yield f"text of the row, and no tokens, are {count:,} names of control tokens, each behind a » here:"
            yield "".join(f"»{t}" if m != t else t for m, t in zip(marked, text, strict=True))
        yield "the ids, special tokens with their text:"
        shown = (
            f"[image: {len(list(run)):,} cells]"
            if is_image
            else " ".join(f"[{token} {special[token]}]" if token in special else str(token) for token in run)
            for is_image, run in groupby(ids, lambda token: token < 0)
        )
        yield textwrap.fill(
            " ".join(shown),
            WIDTH,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _unknown(self, data: pa.RecordBatch) -> dict[int, str]:
        """Return, by index, the reason for each row that has an id outside the vocabulary."""
        if self._ids_column is None:
            return {}
        vocabulary = range(self._model.n_vocab)
        reasons: dict[int, str] = {}
        for i, ids in enumerate(data.column(self._ids_column).to_pylist()):
            wrong = [token for token in ids or () if token not in vocabulary]
            if wrong:
                has = f"has the token id {wrong[0]}; the model's ids are 0 to {vocabulary[-1]}"
                reasons[i] = f"column '{self._ids_column}' {has}"
        return reasons


class Split(Operator):
    """Cuts texts into pieces of at most `max_tokens` tokens: gives a list of strings, which joined are the text, to the
    character.

    A piece ends at the best place within its tokens: the last end of a paragraph, else of a line, of a sentence, of a
    word, else anywhere. White space between two pieces is the end of the first. The tokens are those of the piece
    alone, without BOS. Null gives null, and an empty text an empty list. A text with a character that has more tokens
    than `max_tokens` is a reject.

    Explode makes rows of the list, for a step that reads a piece.

    Args:
        model: whose tokenizer.
        column: a column of strings.
        max_tokens: tokens of a piece at most. Piece, prompt around it and completion have to fit into
            `runtime.max_sequence_tokens`.
        as_: the name of the list (`as` in a job file); without one it takes the place of the text.

    Raises:
        ConfigError: `max_tokens` is below 1, or a column is `row` or `lineage`.

    Example:
        pieces:
          inputs: read
          op:
            _target_: operators.tokens.Split
            model: ${model}
            column: text
            max_tokens: 400
            as: piece
    """

    scope = Scope.ROW

    def __init__(self, model: ModelSettings, column: str, max_tokens: int, as_: str | None = None) -> None:
        check(max_tokens >= 1, "max_tokens", max_tokens, "it is 1 or more")
        refuse_identity([column, as_ or column], "split; name another one")
        self._settings = model
        self._column = column
        self._max_tokens = max_tokens
        self._name = as_ or column

    def plan(self, schema: pa.Schema) -> pa.Schema:
        inspect_model(self._settings)
        require_column(schema, self._column, [pa.string()])
        field = pa.field(self._name, pa.list_(pa.string()))
        if self._name == self._column:
            self._schema = schema.set(schema.get_field_index(self._name), field)
        else:
            self._schema = add_columns(schema, field)
        return self._schema

    def fingerprint(self) -> dict[str, Any]:
        return identity(self._settings)

    def open(self, runtime: Runtime) -> None:
        self._model = load_model(runtime, self._settings)
        self._tokenized = TextColumns(self._model, self._settings.special_tokens_in_text).texts

    def process(self, batch: Batch) -> Iterable[Output]:
        pieces: list[list[str] | None] = []
        failed: dict[int, str] = {}
        for i, text in enumerate(batch.data.column(self._column).to_pylist()):
            try:
                pieces.append(None if text is None else self._pieces(text))
            except _Unsplittable as error:
                failed[i] = f"column '{self._column}': {error}"
        rejects, batch = set_apart(batch, failed)
        yield from rejects
        lists = pa.array(pieces, pa.list_(pa.string()))
        columns = [lists if f.name == self._name else batch.data.column(f.name) for f in self._schema]
        yield batch.with_data(pa.record_batch(columns, schema=self._schema))

    def _pieces(self, text: str) -> list[str]:
        """Cut `text`. Where its tokens end says how far a piece may reach; a piece that has more alone is shortened."""
        ids = self._ids(text)
        if len(ids) <= self._max_tokens:
            return [text] if text else []
        reach = self._reach(text, ids)
        places = [[place.end() for place in kind.finditer(text)] for kind in PLACES]
        pieces: list[str] = []
        start = 0
        while start < len(text):
            first_token = int(np.searchsorted(reach, start, "right"))
            limit = int(reach[min(first_token + self._max_tokens, len(reach)) - 1])
            while True:
                end = _best_place(places, start, max(limit, start + 1), len(text))
                count = len(self._ids(text[start:end]))
                if count <= self._max_tokens:
                    break
                if end == start + 1:
                    raise _Unsplittable(f"{text[start]!r} alone has {count} tokens, and max_tokens={self._max_tokens}")
                limit = start + (end - start) * self._max_tokens // count
            pieces.append(text[start:end])
            start = end
        return pieces

    def _ids(self, text: str) -> npt.NDArray[np.int32]:
        """Return the tokens of `text` without BOS: int32 [tokens]."""
        return self._tokenized([text.encode()])[0][int(self._model.add_bos) :]

    def _reach(self, text: str, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Return how many characters of `text` are whole after each of its tokens `ids`: int64 [tokens].

        It is exact where the bytes of the tokens are those of the text, and an estimate where they are not, as with
        special tokens, which have none.
        """
        encoded = np.frombuffer(text.encode(), np.uint8)
        firsts = np.append(np.flatnonzero((encoded & 0xC0) != 0x80), len(encoded))  # the first byte of each character
        pieces = self._model.pieces()
        ends = np.cumsum([max(len(pieces[token]), 1) for token in ids.tolist()])
        whole: npt.NDArray[np.int64] = np.searchsorted(firsts, ends * len(encoded) // ends[-1], "right") - 1
        return whole


class _Unsplittable(Exception):
    """A single character has too many tokens."""


def _best_place(places: Sequence[Sequence[int]], start: int, limit: int, end: int) -> int:
    """Return where a piece of a text of `end` characters ends that begins at `start` and has to end by `limit`."""
    if limit >= end:
        return end
    for kind in places:
        last = bisect_right(kind, limit)
        if last and kind[last - 1] > start:
            return kind[last - 1]
    return limit
