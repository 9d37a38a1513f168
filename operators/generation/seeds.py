"""RowSeeds: the seed of each row, from its column or from the job's seed, the node, its id and its lineage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.lineage import hash_of, mix, row_hashes
from pipeline.api.records import ROW, python_values

SEED = "seed"
MOST_SEED = (1 << 63) - 1


class RowSeeds:
    """Makes the seeds of the rows of a node.

    Args:
        seed: the job's seed.
        node: the node's name; two nodes draw different numbers for the same row.
        id_column: whose value, where it is not null, seeds the row instead of its position.
        by_row: a column `seed` comes first.
        round_of: the round over the source to which rows (int64) belong. Ids come again in every round, and the numbers
            that are drawn must not.
    """

    def __init__(
        self,
        seed: int,
        node: str,
        id_column: str | None = None,
        *,
        by_row: bool = False,
        round_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = np.zeros_like,
    ) -> None:
        self._base = hash_of(f"{seed}|{node}")
        self._id_column = id_column
        self._by_row = by_row
        self._round_of = round_of

    def of(self, data: pa.RecordBatch) -> Sequence[int | None]:
        """Return the seed of each row: from its `seed` column, else a hash of job seed, node, id and lineage; None if
        the column has no whole number from 0 to MOST_SEED."""
        seeds = row_hashes(data, self._identities(data), self._base)
        hashed: list[int] = (seeds >> np.uint64(1)).tolist()
        if self._by_row:
            given = data.column(SEED).to_pylist()
            return [m if g is None else _seed_of(g) for m, g in zip(hashed, given, strict=True)]
        return hashed

    def _identities(self, data: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        numbers = np.asarray(data.column(ROW.name))
        if self._id_column is None:
            return numbers.astype(np.uint64)
        ids_given = zip(python_values(data.column(self._id_column)), numbers.tolist(), strict=True)
        ids = np.array([number if i is None else hash_of(str(i)) for i, number in ids_given], np.uint64)
        rounds = self._round_of(numbers)
        return np.where(rounds == 0, ids, mix(ids + rounds.astype(np.uint64)))


def no_seed(data: pa.RecordBatch, index: int) -> str:
    """Return the reason of the reject for a row whose column has no seed."""
    return f"column 'seed' has {data[SEED][index]}; allowed: whole numbers from 0 to {MOST_SEED}"


def _seed_of(given: float) -> int | None:
    """Return the seed that a column gives; None if it gives none."""
    return int(given) if not isinstance(given, bool) and given == given // 1 and 0 <= given <= MOST_SEED else None
