"""The forecast of a node at a server: a handful of rows are sent, and the others are taken to be like them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev

from operators.settings.endpoint import EndpointSettings
from pipeline.api.forecast import Forecast, Range, Task
from pipeline.api.protocols import ListInbox
from pipeline.api.records import Batch, Item, Output, Rejects

TRIED = 8
"""Rows that a dry run sends."""
_ASSUMED = 32
"""Requests in flight, where the run finds their number itself."""
_SPREAD = 1.9
"""Standard errors of a mean of eight on both sides of it: 90 % of a t distribution."""

Counts = Sequence[float]
"""Tokens of rows, each its own number, or a single one that is the mean of all."""


class PolledInbox(ListInbox):
    """A list whose operator looks a hundred times a second for what has come."""

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        time.sleep(0.01)


def forecast_of(
    run: Callable[[Batch], Iterable[Item | Output]],
    batches: Sequence[Batch],
    task: Task,
    counts: Callable[[Sequence[Batch]], tuple[Counts, Counts]],
    samples: int | None,
    model: EndpointSettings,
) -> Forecast:
    """Send TRIED rows of the largest of `batches`, and estimate tokens, time and money of all.

    Args:
        run: passes rows through the operator.
        counts: returns the prompt and completion tokens of what came out.
        samples: rows made of each; None: the rows say so.
        model: with the prices, and the number of requests in flight.
    """
    largest = max(batches, key=lambda batch: batch.num_rows)
    few = largest.with_data(largest.data.slice(0, max(1, TRIED // (samples or 1))))
    began = time.perf_counter()
    items = list(run(few))
    took = time.perf_counter() - began
    output = [item for item in items if isinstance(item, Batch)]
    rejects = [item for item in items if isinstance(item, Rejects)]
    answered = sum(batch.num_rows for batch in output)
    rows = task.rows.times(answered / max(few.num_rows, 1))
    tokens_in, tokens_out = (_times(rows, values) for values in counts(output))
    in_flight = model.concurrency if isinstance(model.concurrency, int) else _ASSUMED
    likely = rows.likely * took / min(max(answered, 1), in_flight) * min(1.0, TRIED / in_flight)
    notes = [
        f"the server answered {answered} of {few.num_rows} rows in {took:.1f} s; how it does under load is not known,"
        f" and {in_flight} requests in flight are taken for likely"
    ]
    if model.price_per_million is not None:
        low, mid, high = (
            model.cost(getattr(tokens_in, end), 0.0, getattr(tokens_out, end)) for end in ("low", "likely", "high")
        )
        notes.append(f"cost {mid:,.2f} ({low:,.2f} to {high:,.2f}), by model.price_per_million, no prompt cached")
    seconds = Range(likely / 8, likely, max(likely, rows.high * took / max(answered, 1)))
    return Forecast(rows, output, rejects, tokens_in, tokens_out, seconds, notes=notes)


def _times(rows: Range, values: Counts) -> Range:
    """Return the sum over all `rows`, if these are some of their values."""
    if not values:
        return Range(0.0, 0.0, math.inf if rows.high else 0.0)
    mean = fmean(values)
    error = _SPREAD * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else mean
    return Range(rows.low * max(mean - error, 0.0), rows.likely * mean, rows.high * (mean + error))
