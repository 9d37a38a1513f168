"""The adapters of a node's rows: what the node or a column names, checked against those of the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from operators.settings.checks import check
from operators.settings.files import DataSettings
from operators.settings.model import BASE
from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.api.records import require_column

UNUSED_ADAPTERS = (
    "%s: model.adapters is given, and all rows get the model as it is: say adapter: NAME of the node or step (base, if"
    " that is meant), or data.adapter_column"
)
Names = tuple[str, ...]
"""Of adapters; none: the model as it is."""


class RowAdapters:
    """Says which adapters each row of a node has.

    Args:
        chosen: the node's `adapter`: a name, a list of names, `base`, or null.
        column: `data.adapter_column`, for a node without a choice of its own.
        names: those of `model.adapters`; None: a server's, which takes one name and says itself what it has.

    Attributes:
        column: the one that rows go by; None: `chosen` is for all.
        is_unsaid: neither node nor job says anything.

    Raises:
        ConfigError: `chosen` names what is not there, or there is nothing to choose from.
    """

    def __init__(self, chosen: Any, column: str | None, names: Collection[str] | None) -> None:
        listed = isinstance(chosen, list) and bool(chosen) and all(isinstance(name, str) for name in chosen)
        fits = chosen is None or isinstance(chosen, str) or listed
        check(fits, "adapter", chosen, "it is a name of model.adapters, a list of them, base or null")
        self._names = names
        self.is_unsaid = chosen is None and column is None
        self.column = column if chosen is None else None
        if self.column is not None and names is not None and not names:
            raise ConfigError(f"data.adapter_column={column} names adapters, and model.adapters is not set")
        chosen_names = self._read(chosen)
        if isinstance(chosen_names, str):
            raise ConfigError(f"adapter: {chosen_names}")
        self.chosen = chosen_names

    def in_words(self) -> str:
        """Return which adapters rows get, for a log."""
        if self.column is not None:
            return f"adapters that the column '{self.column}' names"
        return f"adapter {' + '.join(self.chosen)}" if self.chosen else "no adapter"

    def plan(self, schema: pa.Schema) -> None:
        """Raise SchemaError if the column is not there, or holds no texts or lists of texts."""
        if self.column is not None:
            require_column(schema, self.column, [pa.string(), pa.list_(pa.string()), pa.null(), pa.list_(pa.null())])

    def of(self, data: pa.RecordBatch) -> list[Names | str]:
        """Return the adapters of each row, or the reason why it has none."""
        if self.column is None:
            return [self.chosen] * data.num_rows
        values = data.column(self.column).to_pylist()
        read = {key: self._read(key) for key in {tuple(v) if isinstance(v, list) else v for v in values}}
        found = (read[tuple(v) if isinstance(v, list) else v] for v in values)
        return [f"column '{self.column}': {names}" if isinstance(names, str) else names for names in found]

    def _read(self, value: str | Sequence[str | None] | None) -> Names | str:
        """Return the names in a value, each once, or why they cannot be."""
        each = [value] if isinstance(value, str) else value or []
        names = [name for name in dict.fromkeys(each) if name not in (None, BASE)]
        if "" in names:  # some servers answer it by the model as it is
            return f"an empty name; null (data.null_texts=true: empty fields of CSV, too) and {BASE} are the bare model"
        if self._names is None:
            return tuple(map(str, names)) if len(names) < 2 else f"a server takes one adapter, and {names} are several"
        for name in names:
            if name not in self._names:
                hint = did_you_mean(str(name), self._names) or f"; there are {', '.join(self._names) or 'none'}"
                return f"'{name}' is not among model.adapters{hint}"
        return tuple(map(str, names))


def adapters_of_node(chosen: Any, data: DataSettings | None, names: Collection[str] | None) -> Names:
    """Return the adapters of a node whose rows all have the same. For the arguments see RowAdapters.

    Raises:
        ConfigError: as RowAdapters does; or it has no choice, and the job's rows have adapters of their own.
    """
    if chosen is None and data is not None and data.adapter_column is not None:
        column = f"data.adapter_column={data.adapter_column}"
        raise ConfigError(f"{column} is for answers that Generate draws; give this node adapter: NAME or base")
    return RowAdapters(chosen, None, names).chosen


def contents_of(mask: int, contents: Sequence[str]) -> list[str]:
    """Return those of `contents`, one for each adapter, that the bits of `mask` choose."""
    return [content for i, content in enumerate(contents) if mask >> i & 1]


def mask_of(names: Names, adapters: Sequence[str]) -> int:
    """Return `names` as bits: bit i is the i-th of `adapters`."""
    return sum(1 << adapters.index(name) for name in names)
