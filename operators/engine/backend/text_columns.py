"""TextColumns: tokenizes the texts of columns, in which the name of a control token is text, unless Render says that a
template wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import Model, TokenIds
from operators.prompts.special_tokens import HAS_NAMES, with_marks
from operators.rows.token_lists import literals_of, rows_with_names
from operators.settings.model import PARSE
from pipeline.api.records import ROW

CHANGED = (
    "column '{name}' is not the text that Render made: its prompt_literals are places of another one; drop that column"
    " with what changes the text, and all of it is text"
)


class TextColumns:
    """Tokenizes the texts of rows for `model`. `in_text`: model.special_tokens_in_text.

    A column `prompt_text` (or `..._prompt_text`, of a step) beside one of `prompt_literals` is what Render made: all
    names of control tokens in it are tokens but those literals. Any other text is the row's.
    """

    def __init__(self, model: Model, in_text: str) -> None:
        self._model = model
        self._parse = in_text == PARSE
        self._bos = int(model.add_bos)

    def tokenize(self, data: pa.RecordBatch, name: str) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """Return the ids of the texts of column `name`, nulls as empty ones, and their offsets; as
        Model.tokenize."""
        column = data.column(name)
        texts = [text or b"" for text in column.cast(pa.binary()).to_pylist()]
        literals = literals_of(data, name)
        if literals is None:
            return self.texts(texts)
        if self._parse or literals.null_count == len(texts):
            return self._model.tokenize(texts, special=True)
        return self._joined(zip(column.to_pylist(), self.marked(data, name), strict=True))

    def texts(self, texts: Sequence[bytes]) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """Return the ids of texts of rows, and their offsets."""
        if self._parse or not self._model.special_tokens.some_always_read:
            return self._model.tokenize(texts, special=self._parse)
        return self._joined((text.decode(), self.mark(text.decode())) for text in texts)

    def _joined(self, pairs: Iterable[tuple[str | None, str]]) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        texts = [self.joined(text or "", marked) for text, marked in pairs]
        ids = np.concatenate(texts) if texts else np.empty(0, np.int32)
        return ids, np.cumsum([0, *map(len, texts)], dtype=np.int32)

    def mark(self, text: str) -> str:
        """Return a text of a row with the names of control tokens marked."""
        return text if self._parse else self._model.special_tokens.mark(text)

    def marked(self, data: pa.RecordBatch, name: str) -> list[str]:
        """Return the texts of column `name` with the names marked that are text, nulls as empty ones."""
        texts, literals = data.column(name).to_pylist(), literals_of(data, name)
        if self._parse or literals is None:
            return [self.mark(text or "") for text in texts]
        return [with_marks(text or "", places or ()) for text, places in zip(texts, literals.to_pylist(), strict=True)]

    def joined(self, text: str, marked: str) -> TokenIds:
        """Return the ids of a text that was put together, in which the names are text that are `marked`."""
        if marked == text:
            return self._model.tokenize([text.encode()], special=True)[0]
        bos = self._model.tokenize([b""], special=False)[0]
        return np.concatenate([bos, self._model.special_tokens.ids(text, marked, self._plain)])

    def refused(self, data: pa.RecordBatch, names: Iterable[str]) -> dict[int, str]:
        """Return by its index why a row cannot be read: it has literals that its text has not."""
        reasons: dict[int, str] = {}
        for name in names:
            if (literals := literals_of(data, name)) is not None and literals.null_count < len(literals):
                is_name = self._model.special_tokens.is_name
                for i, (text, places) in enumerate(
                    zip(data.column(name).to_pylist(), literals.to_pylist(), strict=True)
                ):
                    if not all(is_name(text or "", place) for place in places or ()):
                        reasons[i] = CHANGED.format(name=name)
        return reasons

    def told(self, data: pa.RecordBatch, names: Iterable[str]) -> list[tuple[int, str]]:
        """Return what is told of rows that have names of control tokens in texts of these columns; Render tells it of
        its own."""
        places = [] if self._parse else rows_with_names(data, names, self._model.special_tokens.has_name)
        return [(data.column(ROW.name)[i].as_py(), HAS_NAMES) for i in places]

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = self._model.tokenize([text.encode()], special=False)[0].tolist()
        return ids[self._bos :]
