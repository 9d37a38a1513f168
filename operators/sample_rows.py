"""Sample: keeps a random sample of the rows, independent of their order, or so many of each value of a column."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.rows.batches import HeldRows, split
from operators.rows.groups import Quotas, group_texts, shown_group
from operators.rows.lineage import hash_of, row_hashes
from operators.settings.checks import check
from pipeline.api import ROW, Batch, ConfigError, Operator, Output, Stateful, require_column


class Sample(Operator, Stateful):
    """Keeps a share of the rows, some of each chunk, or so many of each value of a column (quotas); the others become
    rejects of kind `filtered`.

    With `fraction` and `per_chunk` every row has a number that follows from `seed`, `row` and `lineage` alone. The rows
    with the smallest numbers are kept: the same ones in whatever order they arrive, and with a larger `fraction` the
    same ones and more.

    With `per` the first `rows` rows of each value are kept, over the whole run, and with `append` over all nights. The
    first are those with the smallest (row, lineage), not those that arrive first: rows are held back until their chunk
    ends. The reason of a reject names value and quota: `beyond the first 100 rows of topic="sport"`. The counts are
    committed with each chunk; they take some 40 bytes of memory for each value, and more than 10 million values are
    refused.

    Args:
        fraction: the share that is kept, above 0 and up to 1; of 1,000 rows about 100 for 0.1.
        per_chunk: instead, how many rows of each chunk (`chunk_rows` source rows) are kept: exactly that many where
            there are enough. They are held back until the chunk ends.
        seed: of the choice of `fraction` or `per_chunk`; quotas draw nothing. `${seed}` takes that of the job.
        per: instead, the column with a quota for each value, or a list of columns, for each combination of theirs. Null
            is a value, too.
        rows: the quota: rows that are kept of each value of `per`.

    Raises:
        ConfigError: not one of `fraction`, `per_chunk`, and `per` with `rows` is given, or it is out of its range.

    Example:
        balanced:
          inputs: read
          op:
            _target_: operators.sample_rows.Sample
            per: topic
            rows: 100
    """

    append = True

    def __init__(
        self,
        fraction: float | None = None,
        per_chunk: int | None = None,
        seed: int = 0,
        per: str | list[str] | None = None,
        rows: int | None = None,
    ) -> None:
        if (fraction is not None) + (per_chunk is not None) + bool(per) != 1:
            raise ConfigError(
                "give fraction (a share of the rows), per_chunk (so many of each chunk), or per and rows (so many of"
                " each value of a column), and one of them alone"
            )
        if fraction is not None:
            check(0 < fraction <= 1, "fraction", fraction, "it is a share: above 0 and up to 1")
        if per_chunk is not None:
            check(per_chunk >= 1, "per_chunk", per_chunk, "it is 1 or more")
        if per:
            check(rows is not None and rows >= 1, "rows", rows, "it is 1 or more: how many of each value of `per`")
        elif rows is not None:
            raise ConfigError(
                f"rows={rows} is for each value of a column: name it, per: topic. The first {rows} of all rows is"
                f" operators.limit.Limit, rows: {rows}"
            )
        self._fraction = fraction
        self._per_chunk = per_chunk
        self._per = [per] if isinstance(per, str) else per or []
        self._rows = rows or 0
        self._quotas = Quotas(self._rows)
        self.keeps_state = bool(per)
        self._base = hash_of(f"sample|{seed}")
        self._held = HeldRows()
        self._added: dict[int, bytes] = {}

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, ROW.name, [ROW.type])
        for name in self._per:
            require_column(schema, name)
        return schema

    def process(self, batch: Batch) -> Iterable[Output]:
        if self._fraction is None:
            self._held.hold(batch)
            return
        keep = self._numbers(batch) * 2.0**-64 < self._fraction
        yield from split(batch, keep, f"not in the sample of fraction={self._fraction}")

    def finish(self, chunk: int) -> Iterable[Output]:
        batch = self._held.take(chunk)
        if self._per:
            yield from self._within_quotas(chunk, batch)
        elif batch is not None and self._per_chunk is not None:
            keep = np.zeros(batch.num_rows, bool)
            keep[np.argsort(self._numbers(batch), kind="stable")[: self._per_chunk]] = True
            yield from split(batch, keep, f"not in the sample of per_chunk={self._per_chunk}")

    def _within_quotas(self, chunk: int, batch: Batch | None) -> Iterable[Output]:
        groups = [] if batch is None else group_texts(batch.data, self._per)
        keep, self._added[chunk] = self._quotas.take(groups)
        if batch is not None:
            beyond = f"beyond the first {self._rows} row{'s' * (self._rows != 1)} of"
            out = [text for text, kept in zip(groups, keep, strict=True) if not kept]
            yield from split(batch, np.array(keep), [f"{beyond} {shown_group(self._per, text)}" for text in out])

    def state(self, chunk: int) -> bytes:
        """Return how many rows of each value `chunk` adds, with `per`."""
        return self._added.pop(chunk)

    def restore(self, states: Iterable[bytes]) -> None:
        for added in states:
            self._quotas.add(added)

    def _numbers(self, batch: Batch) -> npt.NDArray[np.uint64]:
        return row_hashes(batch.data, np.asarray(batch.data.column(ROW.name)).astype(np.uint64), self._base)
