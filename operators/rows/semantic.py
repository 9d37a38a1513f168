"""Nearness by meaning for Dedup: the vectors of the rows that it keeps, and which of them a row is nearest to."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from operators.rows.cosines import Doubles, Floats, Indices, above, cosines, margin, scaled, slices, squares
from operators.settings.checks import check
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.keys import not_in_data
from pipeline.api.records import require_column

Nearest = tuple[float, int]
"""The cosine of the most similar kept row, and its place among the kept vectors: of equal ones the first."""

QUERIES = 256
"""Rows of a chunk that are compared in one product."""
BLOCK_NUMBERS = 1 << 22
"""Numbers (16 MiB) of a block of kept vectors, of which memory is taken when it is filled."""
_SIZE = struct.Struct("<I")
"""Before packed vectors: the numbers of each."""


@dataclass
class Semantic:
    """The measure of nearness by meaning (`semantic` of a Dedup).

    Args:
        column: a column of vectors, as Embed makes them: lists of float32; other floats are compared as float32. They
            need not be of length 1. A row whose vector is null stays, and is compared with none. A vector of another
            length than the first one of the run, with a null, NaN or infinity, or of nothing but zeros is an error.
        threshold: the cosine of two vectors, above 0 and up to 1, from which on the later row is a duplicate. Which one
            says the same depends on the model: look at what is near it in rejects/. It is exact: no index is asked, and
            rounding decides nothing.
        most_rows: rows with a vector that are kept at most. One more ends the run, and it goes on with a larger
            number. Memory grows with the rows that are kept, by 4 bytes for each number of a vector and some 30 more.
    """

    column: str
    threshold: float = 0.92
    most_rows: int = not_in_data(250_000)

    def __post_init__(self) -> None:
        check(0 < self.threshold <= 1, "semantic.threshold", self.threshold, "it is above 0 and up to 1")
        check(self.most_rows >= 1, "semantic.most_rows", self.most_rows, "it is 1 or more")


class VectorBlock:
    """Room for vectors that are kept: float32 [rows, size], the squares of their lengths and the numbers of their
    rows."""

    def __init__(self, size: int) -> None:
        rows = max(1, BLOCK_NUMBERS // size)
        self.count = 0
        self.room = rows
        self._vectors, self._squares = np.empty((rows, size), np.float32), np.empty(rows)
        self._numbers = np.empty(rows, np.int64)

    def add(self, vectors: Floats, numbers: Indices) -> None:
        end = self.count + len(vectors)
        self._vectors[self.count : end], self._numbers[self.count : end] = vectors, numbers
        self._squares[self.count : end] = squares(vectors)
        self.count = end

    @property
    def vectors(self) -> Floats:
        return self._vectors[: self.count]

    @property
    def lengths(self) -> Doubles:
        lengths: Doubles = np.sqrt(self._squares[: self.count])
        return lengths

    def number(self, place: int) -> int:
        return int(self._numbers[place])


class KeptVectors:
    """The vectors of the rows that Dedup keeps, in the order in which it does."""

    def __init__(self, semantic: Semantic) -> None:
        self.settings = semantic
        self.size: int | None = None
        """Numbers of each vector; None before the first one, where the column's type does not say it."""
        self.count = 0
        self._blocks: list[VectorBlock] = []

    def plan(self, schema: pa.Schema) -> None:
        """Check that the column has vectors. Raises SchemaError."""
        name, kind = self.settings.column, require_column(schema, self.settings.column).type
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (is_list and pa.types.is_floating(kind.value_type)):
            raise SchemaError(f"column '{name}' has type {kind}; it must be a list of floats, as Embed makes it")
        if fixed:
            self.size = kind.list_size

    def memory(self) -> str:
        """Return what is to be known of their memory before a run, which begins without any."""
        most, size = self.settings.most_rows, self.size
        takes = "4 bytes a number" if size is None else f"{4 * size:,} bytes each, up to {4 * size * most >> 20:,} MiB"
        return f"vectors of the rows that Dedup keeps: {takes} with semantic.most_rows={most}"

    def read(self, data: pa.RecordBatch) -> tuple[dict[int, str], ChunkVectors]:
        """Return why vectors of a chunk cannot be compared, by row, and the vectors of the rows without these."""
        column = data.column(self.settings.column)
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        lengths = pc.list_value_length(column).drop_null().to_numpy().astype(np.int64)
        with np.errstate(over="ignore"):
            flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        if self.size is None and lengths.any():
            self.size = int(lengths[lengths > 0][0])
        fits = (lengths == self.size) & (lengths > 0)
        vectors = (flat if fits.all() else flat[np.repeat(fits, lengths)]).reshape(-1, self.size or 1)
        broken = {int(i): self._wrong_length(int(n)) for i, n in zip(there[~fits], lengths[~fits], strict=True)}
        good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
        broken |= {int(i): self._no_direction(vectors[at]) for at, i in enumerate(there[fits]) if not good[at]}
        places = np.full(data.num_rows, -1)
        places[there[fits][good]] = np.arange(good.sum())
        return broken, ChunkVectors(self, scaled(vectors[good]), np.delete(places, list(broken)))

    def nearest(self, queries: Floats, rows: Floats) -> dict[int, Nearest]:
        """Return the nearest kept vector by the number of a row, for rows with one that may reach the threshold.

        Args:
            queries: float32 [n, size], the vectors of the rows, of length 1.
            rows: the same ones as they are compared in the end.
        """
        off = margin(rows.shape[1])
        best = np.full(len(rows), -np.inf)
        found: list[tuple[Indices, Indices, Doubles]] = []
        first = 0
        for block in self._blocks:
            at, places, near = above(queries, block.vectors, block.lengths, self.settings.threshold - off)
            np.maximum.at(best, at, near)
            close = near >= best[at] - 2 * off  # the nearest one is among these, whatever a product says
            found.append((at[close], places[close] + first, near[close]))
            first += block.count
        if not any(len(at) for at, _, _ in found):
            return {}
        at, places, near = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        close = near >= best[at] - 2 * off
        at, places = at[close], places[close]
        exact = np.concatenate([self._cosines(rows[at[part]], places[part]) for part in slices(len(at), rows.shape[1])])
        order = np.lexsort((places, -exact, at))  # by row, of each the nearest one first, the earlier of equal ones
        firsts = order[np.unique(at[order], return_index=True)[1]]
        return {int(at[i]): (float(exact[i]), int(places[i])) for i in firsts}

    def add(self, vectors: Floats, numbers: Indices) -> None:
        """Add the vectors of kept rows, with the numbers of these. Raises ConfigError if they are too many."""
        if (most := self.settings.most_rows) < self.count + len(vectors):
            raise ConfigError(
                f"more than semantic.most_rows={most} rows with a vector would be kept: give a larger number, at"
                f" {4 * vectors.shape[1]:,} bytes of memory for each row, and start again; the run goes on where it is"
            )
        self.count += len(vectors)
        while len(vectors):
            if not self._blocks or self._blocks[-1].count == self._blocks[-1].room:
                self._blocks.append(VectorBlock(vectors.shape[1]))
            last = self._blocks[-1]
            room = last.room - last.count
            last.add(vectors[:room], numbers[:room])
            vectors, numbers = vectors[room:], numbers[room:]

    def number(self, place: int) -> int:
        """Return the number of the kept row whose vector is the one at `place`."""
        room = self._blocks[0].room
        return self._blocks[place // room].number(place % room)

    def restore(self, packed: bytes, first: int, rows: int) -> None:
        """Add what `ChunkVectors.packed` returned, for kept rows that are numbered from `first`."""
        (size,) = _SIZE.unpack_from(packed)
        self.size = size or self.size
        has = np.frombuffer(packed, np.bool_, rows, _SIZE.size)
        vectors = np.frombuffer(packed, "<f4", offset=_SIZE.size + rows).reshape(-1, max(1, size))
        self.add(vectors, first + np.flatnonzero(has))

    def _cosines(self, rows: Floats, places: Indices) -> Doubles:
        room = self._blocks[0].room
        kept = np.empty_like(rows)
        for block in np.unique(places // room):
            inside = places // room == block
            kept[inside] = self._blocks[block].vectors[places[inside] % room]
        return cosines(rows, kept)

    def _wrong_length(self, found: int) -> str:
        others = "" if found == 0 else f", and those of other rows have {self.size}"
        return f"the vector in '{self.settings.column}' has {found} numbers{others}"

    def _no_direction(self, vector: Floats) -> str:
        if not vector.any():
            return f"the vector in '{self.settings.column}' is all zeros, so it has no direction"
        at = int(np.flatnonzero(~np.isfinite(vector))[0])
        value = "null or NaN" if np.isnan(vector[at]) else "infinite as float32"
        return f"number {at} of the vector in '{self.settings.column}' is {value}"


class ChunkVectors:
    """The vectors of the rows of a chunk, which are asked for one after the other.

    Args:
        kept: those of before, to which this adds.
        vectors: float32 [n, size], scaled.
        places: the place of each row's vector, -1 for a row without one.
    """

    def __init__(self, kept: KeptVectors, vectors: Floats, places: Indices) -> None:
        self._kept, self._vectors, self._places = kept, vectors, places
        self._first = -QUERIES
        self._added: list[int] = []

    def nearest(self, row: int) -> Nearest | None:
        """Return the cosine and the number of the kept row that `row` is nearest to, if it reaches the threshold."""
        place = int(self._places[row])
        if place < 0:
            return None
        if place >= self._first + QUERIES:
            self._compare(place - place % QUERIES)
        at = place - self._first
        best = self._before.get(at)
        if len(inside := np.flatnonzero(self._close[at, :at] & self._is_kept[:at])):
            rows = self._vectors[self._first + inside]
            each = cosines(np.repeat(self._vectors[place : place + 1], len(rows), axis=0), rows)
            nearest = int(np.argmax(each))
            if best is None or each[nearest] > best[0]:
                best = (float(each[nearest]), self._kept_at[int(inside[nearest])])
        if best is None or best[0] < self._kept.settings.threshold:
            return None
        return best[0], self._kept.number(best[1])

    def keep(self, row: int, number: int) -> None:
        """Add the vector of `row`, if it has one: of the kept row `number`. Called behind `nearest`."""
        place = int(self._places[row])
        if place >= 0:
            self._kept_at[place - self._first] = self._kept.count
            self._is_kept[place - self._first] = True
            self._kept.add(self._vectors[place : place + 1], np.array([number]))
            self._added.append(place)

    def packed(self, kept: Iterable[int]) -> bytes:
        """Return what was added, for `KeptVectors.restore`. `kept`: the rows that were, with and without a vector."""
        has = np.array([self._places[row] >= 0 for row in kept], np.bool_)
        return _SIZE.pack(self._kept.size or 0) + has.tobytes() + self._vectors[self._added].astype("<f4").tobytes()

    def _compare(self, first: int) -> None:
        """Compare the QUERIES vectors from `first` with those that are kept, and with each other."""
        rows = self._vectors[first : first + QUERIES]
        lengths = np.sqrt(squares(rows))
        queries = (rows / lengths[:, None]).astype(np.float32)
        self._first = first
        self._before = self._kept.nearest(queries, rows)
        at, places, _ = above(queries, rows, lengths, self._kept.settings.threshold - margin(rows.shape[1]))
        self._close = np.zeros((len(rows), len(rows)), np.bool_)
        self._close[at, places] = True
        self._is_kept = np.zeros(len(rows), np.bool_)
        self._kept_at: dict[int, int] = {}
