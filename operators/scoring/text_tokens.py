"""ReadsTokens: columns of texts as the token ids that a model reads, and why it cannot read one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import Model, TokenIds
from operators.engine.backend.text_columns import TextColumns
from operators.scoring.prefix_tree import Text

TEXT_TYPES = (pa.string(), pa.list_(pa.int32()))
"""Types of a column of texts: strings, or lists of token ids."""


class ReadsTokens:
    """Part of ReadsTexts, which sets the attributes when it opens.

    Attributes:
        truncate: cut a text that is too long.
    """

    truncate = False
    _loaded: Model
    _tokens_of: TextColumns
    _room: int
    """Tokens of a text at most."""

    def _ids(self, data: pa.RecordBatch, name: str, *, begins: bool) -> Iterator[TokenIds | None]:
        """Yield the int32 token ids of each text of column `name`, None for null. Lists of ids are passed on; a null in
        one becomes -1.

        See TextColumns for special tokens. `begins`: a BOS is put first where the model wants one.
        """
        column = data.column(name)
        if pa.types.is_list(column.type):
            for ids in column.to_pylist():
                yield None if ids is None else np.array([-1 if i is None else i for i in ids], np.int32)
            return
        tokenized = self._each(self._tokens_of.tokenize(data, name), begins=begins)
        for is_text, ids in zip(column.is_valid().to_pylist(), tokenized, strict=True):
            yield ids if is_text else None

    def _tokenized(self, texts: Seq[bytes], *, begins: bool) -> Iterator[TokenIds]:
        """Yield the int32 token ids of each text of a row. `begins`: see `_ids`."""
        return self._each(self._tokens_of.texts(texts), begins=begins)

    def _each(self, tokenized: tuple[TokenIds, TokenIds], *, begins: bool) -> Iterator[TokenIds]:
        flat, offsets = tokenized
        skipped = 1 if self._loaded.add_bos and not begins else 0
        for start, end in itertools.pairwise(offsets.tolist()):
            yield flat[start + skipped : end]

    def _bos(self, column: pa.Array) -> int:
        """Return the number of BOS tokens that were put before each text of `column`: 0 or 1."""
        return int(pa.types.is_string(column.type) and self._loaded.add_bos)

    def _closed(self, ids: TokenIds, least: int = 0) -> TokenIds:
        """Return a text with the tokens that the model wants at its end. If `truncate`, cut it before those to what the
        model can read, but not to fewer than `least` tokens."""
        closing = np.array(self._loaded.closing_ids, np.int32)
        if self.truncate:
            ids = ids[: max(least, self._room - len(closing))]
        return np.concatenate([ids, closing])

    def _whole_texts(self, data: pa.RecordBatch, name: str, purpose: str) -> list[Text | str]:
        """Return each text of column `name` with the tokens that close it, or the reason why it cannot be read.
        `purpose`: what the operator does with a text, for that reason."""
        column = data.column(name)
        bos_tokens = self._bos(column)
        texts: list[Text | str] = []
        for ids in self._ids(data, name, begins=True):
            if ids is None:
                texts.append(f"column '{name}' is null")
            elif len(ids) <= bos_tokens:
                texts.append(f"column '{name}' is empty; there is nothing to {purpose}")
            else:
                closed = self._closed(ids)
                texts.append(self._unreadable(closed) or Text(closed))
        return texts

    def _unreadable(self, ids: TokenIds) -> str | None:
        """Return the reason why the model cannot read a text; None if it can."""
        if len(ids) > self._room:
            return f"the text has {len(ids)} tokens, and runtime.max_sequence_tokens is {self._room}"
        n_vocab = self._loaded.n_vocab
        if len(unknown := ids[(ids < 0) | (ids >= n_vocab)]):
            return f"token id {unknown[0]} is not in the vocabulary, which has the ids 0 to {n_vocab - 1}"
        return None
