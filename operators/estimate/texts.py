"""The forecast of a node that reads texts with a model (Score, Embed): reads some of them, and times that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from operators.estimate.trial import mean_of
from pipeline.api.forecast import Forecast, Task, share
from pipeline.api.records import Batch, Output, Rejects

PROMPTS = 3
FIRST_ROWS = 8
MORE = 4
"""Factor by which the number of texts grows from one timed call to the next."""


def forecast_texts(
    process: Callable[[Batch], Iterable[Output]],
    token_counts: Callable[[pa.RecordBatch], Sequence[int | None]],
    columns: Sequence[str],
    batches: Sequence[Batch],
    task: Task,
) -> Forecast:
    """Estimate the cost of an operator whose `process` reads the texts of rows.

    Args:
        token_counts: returns the tokens to read for each row, None if it is rejected.
        columns: those whose texts are joined and read.
    """
    until = time.perf_counter() + task.seconds
    rows = pa.Table.from_batches([batch.data for batch in batches]).combine_chunks().to_batches() if batches else []
    if not rows:
        return Forecast(task.rows)
    counts = token_counts(rows[0])
    readable = {i: count for i, count in enumerate(counts) if count is not None}
    outputs: list[Output] = []

    def read(some: Sequence[int]) -> None:
        outputs.extend(process(Batch(0, rows[0].take(pa.array(some, pa.int64())))))

    token_s = 0.0
    for some in _growing_groups(readable):
        tokens = sum(readable[i] for i in some)
        if token_s and time.perf_counter() + tokens * token_s > until:
            break
        began = time.perf_counter()
        read(some)
        token_s = (time.perf_counter() - began) / max(tokens, 1)
    if rejected := [i for i in range(len(counts)) if i not in readable]:
        read(rejected)
    rows_out = task.rows.times(share(len(readable), len(counts)))
    tokens_in = mean_of(list(readable.values()), whole=task.whole).times(rows_out)
    return Forecast(
        rows_out=rows_out,
        output=[item for item in outputs if isinstance(item, Batch)],
        rejects=[item for item in outputs if isinstance(item, Rejects)],
        tokens_in=tokens_in,
        seconds=tokens_in.times(token_s),
        prompts=[
            ("".join(str(rows[0].column(name)[i]) for name in columns), readable[i]) for i in list(readable)[:PROMPTS]
        ],
    )


def _growing_groups(counts: dict[int, int]) -> Iterable[list[int]]:
    """Yield groups of rows to read together: first the one with the fewest tokens, then growing random groups."""
    if not counts:
        return
    yield [min(counts, key=lambda i: counts[i])]
    rows = np.random.default_rng(0).permutation(list(counts)).tolist()
    first, many = 0, FIRST_ROWS
    while first < len(rows):
        yield sorted(rows[first : first + many])
        first, many = first + many, many * MORE
