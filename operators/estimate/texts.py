"""What it takes to read texts with a model, for Score and Embed: some of them are read, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

import numpy as np
import pyarrow as pa

from operators.estimate.lengths import Floats
from operators.estimate.noise import Noise
from pipeline.api.forecast import Forecast, Range, Task, share
from pipeline.api.meter import Clock
from pipeline.api.records import Batch, Output, Rejects

PROMPTS = 3
FIRST_ROWS = 8
MORE = 4
"""Each time so many times as many texts are read as before."""


def forecast_texts(
    process: Callable[[Batch], Iterable[Output]],
    token_counts: Callable[[pa.RecordBatch], Seq[int | None]],
    columns: Seq[str],
    batches: Seq[Batch],
    task: Task,
    prepare_s: float,
    clock: Clock = time.perf_counter,
) -> Forecast:
    """What an operator takes whose `process` reads the texts of rows.

    Args:
        token_counts: of each row the tokens that are read for it, None where it is refused.
        columns: those whose texts are read, one behind the other.

    The shortest text is read first; then more and more at a time, as long as they will be done in time.
    """
    until = clock() + task.seconds
    noise = Noise()
    data = pa.Table.from_batches([batch.data for batch in batches]).combine_chunks() if batches else pa.table({})
    rows = data.to_batches()[0] if data.num_rows else None
    counts = [] if rows is None else list(token_counts(rows))
    known = {i: count for i, count in enumerate(counts) if count is not None}
    output: list[Batch] = []
    rejects: list[Rejects] = []
    token_s: float | None = None
    for some in _more_and_more(known):
        tokens = sum(known[i] for i in some)
        if rows is None or (token_s is not None and clock() + tokens * token_s > until):
            break
        began = clock()
        found = list(process(Batch(0, rows.take(pa.array(some, pa.int64())))))
        token_s = (clock() - began) / max(tokens, 1)
        output += [item for item in found if isinstance(item, Batch)]
        rejects += [item for item in found if isinstance(item, Rejects)]
    if rows is not None and len(known) < len(counts):
        unreadable = [i for i in range(len(counts)) if i not in known]
        found = list(process(Batch(0, rows.take(pa.array(unreadable, pa.int64())))))
        rejects += [item for item in found if isinstance(item, Rejects)]
    rows_out = task.rows.times(share(len(known), len(counts)))
    tokens_in = _tokens(list(known.values()), rows_out, whole=task.whole)
    return Forecast(
        rows_out=rows_out,
        output=output,
        rejects=rejects,
        tokens_in=tokens_in,
        seconds=None if token_s is None else _seconds(tokens_in, token_s, noise.factors(np.random.default_rng(0))),
        prepare_s=prepare_s,
        prompts=[] if rows is None else [(_text(rows, columns, i), known[i]) for i in list(known)[:PROMPTS]],
        notes=list(noise.notes()),
    )


def _text(rows: pa.RecordBatch, columns: Seq[str], index: int) -> str:
    return "".join(str(rows.column(name)[index]) for name in columns)


def _more_and_more(counts: dict[int, int]) -> Iterable[list[int]]:
    """Rows to read together: the one with the fewest tokens, then some, then more, in no order."""
    if not counts:
        return
    yield [min(counts, key=lambda i: counts[i])]
    rows = np.random.default_rng(0).permutation(list(counts)).tolist()
    first, many = 0, FIRST_ROWS
    while first < len(rows):
        yield sorted(rows[first : first + many])
        first, many = first + many, many * MORE


def _tokens(counts: Seq[int], rows: Range, *, whole: bool) -> Range:
    """Of all texts. Twice its standard error is how far a mean may be off."""
    if not counts:
        return Range.exact(0.0)
    mean = float(np.mean(counts))
    doubt = 0.0 if whole else 2 * float(np.std(counts)) / np.sqrt(len(counts))
    return Range(rows.low * max(mean - doubt, 0.0), rows.likely * mean, rows.high * (mean + doubt))


def _seconds(tokens: Range, token_s: float, factors: Floats) -> Range:
    low, high = np.quantile(factors, [0.05, 0.95])
    return Range(tokens.low * token_s * float(low), tokens.likely * token_s, tokens.high * token_s * float(high))
