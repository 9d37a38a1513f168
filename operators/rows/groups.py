"""Groups of rows: those that have the same values in some columns. Null is a value of its own."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError
from pipeline.api.records import python_values
from pipeline.system.seen_hashes import HASH, HASH_BYTES, SeenHashes

MOST_GROUPS = 10_000_000
"""Groups whose rows are counted: some 400 MB."""
SHOWN_WIDTH = 60
"""Characters of a value that a message shows."""
_COUNTS = np.dtype([("hash", HASH), ("rows", "<i8")])
"""What a chunk adds to the counts: the hash of each group, and how many of its rows are kept."""


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


_as_json = json.JSONEncoder(default=_plain).encode


def group_texts(data: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """Return the group of each row as a text: the JSON list of its values in `columns`, as json.dumps writes it. What
    JSON has no type for is a text in it: bytes in hexadecimal digits, times and decimals as str() gives them."""
    values = [python_values(data.column(name)) for name in columns]
    return [_as_json(each) for each in zip(*values, strict=True)]


def shown_group(columns: Sequence[str], text: str) -> str:
    """Return a group of `group_texts` in words: `language="de", level=3`."""
    values = (json.dumps(value, ensure_ascii=False) for value in json.loads(text))
    short = (f"{value[:SHOWN_WIDTH]} ..." if len(value) > SHOWN_WIDTH else value for value in values)
    return ", ".join(f"{name}={value}" for name, value in zip(columns, short, strict=True))


class Quotas:
    """Counts the rows of each group up to a quota: some 40 bytes for each group, whatever the number of rows.

    Args:
        most: rows of each group.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = SeenHashes()
        self._rows = array("q")
        """The rows that were kept of each group, by its number."""

    def take(self, groups: Sequence[str]) -> tuple[list[bool], bytes]:
        """Return for each of some rows in order, by their groups, whether its quota has room for it; and what `add`
        is to be given after a restart. Raises ConfigError if there are more than MOST_GROUPS."""
        hashes = {text: _hash(text) for text in dict.fromkeys(groups)}
        numbers = self._numbers.find(np.array([*hashes.values()], HASH)).tolist()
        room = {t: self._most - (self._rows[n] if n >= 0 else 0) for t, n in zip(hashes, numbers, strict=True)}
        kept: Counter[str] = Counter()
        keep = []
        for text in groups:
            keep.append(kept[text] < room[text])
            kept[text] += keep[-1]
        added = np.array([(hashes[text], rows) for text, rows in kept.items() if rows], _COUNTS).tobytes()
        self.add(added)
        return keep, added

    def add(self, packed: bytes) -> None:
        """Count the rows that were kept of a chunk."""
        added = np.frombuffer(packed, _COUNTS)
        numbers = self._numbers.find(added["hash"])
        new = numbers < 0
        for number, rows in zip(numbers[~new].tolist(), added["rows"][~new].tolist(), strict=True):
            self._rows[number] += rows
        first = len(self._rows)
        self._rows.extend(added["rows"][new].tolist())
        self._numbers.add(added["hash"][new], np.arange(first, len(self._rows)))
        if len(self._rows) > MOST_GROUPS:
            raise ConfigError(
                f"there are more than {MOST_GROUPS:,} different values, and the rows of each are counted in memory;"
                " give a quota to a column with fewer (Dedup keeps the first row of each of any number)"
            )


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest()
