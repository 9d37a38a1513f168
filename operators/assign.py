"""Assign: puts each row into a split (train, test ...), and all rows of a group into the same one."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import accumulate
from typing import Any

import pyarrow as pa

from operators.rows.groups import group_texts
from operators.rows.lineage import refuse_identity
from operators.rows.splits import NAMES, alike, is_split_name
from operators.settings import DataSettings
from operators.settings.checks import check
from pipeline.api import ROW, Batch, ConfigError, Operator, Output, Scope, add_columns, require_column

BITS = 64
"""Of the number of a group."""
TOLERANCE = 1e-9
"""How far the sum of the shares may be from 1."""


class Assign(Operator):
    """Adds a column with the split of each row: train, test ... All rows with the same value of `group` are in the same
    split, so no prompt, document or author is on both sides.

    The split follows from the values of `group`, the shares in their order and `split_seed`, and from nothing else: not
    from the order of rows, other rows, chunks, workers, versions or the seed of the job. A group has the number
    `int.from_bytes(hashlib.blake2b(f"{split_seed}|{json.dumps([value])}".encode(), digest_size=8).digest(), "big") /
    2**64`, from 0 to 1 (for times, decimals and bytes see `operators.rows.groups.group_texts`); with {train: 0.9, test:
    0.1} it is in `train` if that is below 0.9. So:

    - Rows that are added, in this run or another one, move none that are there.
    - A split that is added at the end takes its share from the last one before it: {train: 0.9, test: 0.05, validation:
      0.05} moves groups from `test` to `validation`, and none of `train`. Another order, or a share that changes before
      the end, moves groups between all later ones.
    - Shares are those of many groups: of 10,000 about 1,000 for 0.1 (give or take 30), of ten groups 0 to 4. Where
      groups differ in size so do the rows.

    Rows whose group is null are one group; the summary tells how many they are.

    Args:
        split: the name of each split to its share; they sum to 1.
        group: the column whose values stay together, or a list of columns. Null is `data.id_column`, or without one
            `row`, the number of the source row, which changes where rows are put in front of others. With both the
            samples of a row stay together.
        column: the column to add.
        split_seed: another number makes another division. The seed of the job makes none, so that texts which are drawn
            anew stay in their splits.
        data: what says which column has the ids; left out, it is the job's.

    Raises:
        ConfigError: a name cannot be one of a file, a share is not above 0, or they do not sum to 1.

    Example:
        divide:
          inputs: generate
          op:
            _target_: operators.assign.Assign
            split: {train: 0.9, test: 0.1}
            group: document
    """

    scope = Scope.ROW

    def __init__(
        self,
        split: dict[str, float],
        group: str | list[str] | None = None,
        column: str = "split",
        split_seed: int = 0,
        data: DataSettings | None = None,
    ) -> None:
        check(bool(split), "split", split, "it maps names to shares: {train: 0.9, test: 0.1}")
        for name, share in split.items():
            check(is_split_name(name), "split", name, f"the name of a split has {NAMES}")
            check(0 < share <= 1, f"split.{name}", share, "it is a share: above 0 and up to 1")
        if (pair := alike(split)) is not None:
            raise ConfigError(f"the splits '{pair[0]}' and '{pair[1]}' would be one file on some disks; rename one")
        shares = [Fraction(str(share)) for share in split.values()]
        if abs(missing := float(1 - sum(shares))) > TOLERANCE:
            much = f"{abs(missing):.6g} {'less' if missing > 0 else 'more'} than 1"
            raise ConfigError(f"split: the shares sum to {1 - missing:.6g}, which is {much}; change one of {[*split]}")
        refuse_identity([column], "assigned; use another name")
        self._names = [*split]
        self._bounds = [int(bound * 2**BITS) for bound in accumulate(shares[:-1])]
        of_job = ROW.name if data is None or data.id_column is None else data.id_column
        self._group = [group] if isinstance(group, str) else group or [of_job]
        self._column = column
        self._seed = split_seed

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        for name in self._group:
            require_column(schema, name)
        self._schema = add_columns(schema, pa.field(self._column, pa.string()))
        return self._schema

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the order of the splits, which the keys of a mapping do not tell."""
        return {"order": ", ".join(self._names)}

    def process(self, batch: Batch) -> Iterable[Output]:
        splits = [self._split_of(text) for text in group_texts(batch.data, self._group)]
        data = pa.record_batch([*batch.data.columns, pa.array(splits, pa.string())], schema=self._schema)
        yield batch.with_data(data, told=self._nulls(batch.data, splits))

    def _split_of(self, text: str) -> str:
        digest = hashlib.blake2b(f"{self._seed}|{text}".encode(), digest_size=BITS // 8).digest()
        return self._names[bisect_right(self._bounds, int.from_bytes(digest, "big"))]

    def _nulls(self, data: pa.RecordBatch, splits: list[str]) -> Iterable[tuple[int, str]]:
        """Yield what is told of each row whose group is null."""
        groups = [data.column(name) for name in self._group]
        if all(column.null_count for column in groups):
            names = ", ".join(self._group)
            for i, row in enumerate(data.column(ROW.name).to_pylist()):
                if not any(column[i].is_valid for column in groups):
                    yield row, f"{names} is null: such rows are one group, {self._column}={splits[i]}"
