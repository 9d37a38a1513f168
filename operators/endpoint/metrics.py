"""Metrics of a node at a server: rows, tokens and money, and the lines about them in the summary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from operators.endpoint.rows import EndpointRow
from operators.generation.row_metrics import PREFIX, ROWS_SCHEMA
from operators.settings.endpoint import EndpointSettings
from pipeline.api.meter import Completed
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime

COST = "cost"
PAID_GROUP = "paid to servers"
PAID = {
    "paid_prompt_tokens": "prompt_tokens",
    "paid_cached_tokens": "cached_tokens",
    "paid_completion_tokens": "completion_tokens",
}
"""Totals of a node in run.parquet, and what of an answer they count, in the order of EndpointSettings.cost."""


class AnswerMetrics:
    """Records the rows of one node.

    Args:
        runtime: of the node.
        settings: with the prices.
    """

    def __init__(self, runtime: Runtime, settings: EndpointSettings) -> None:
        self._node = runtime.node
        self._settings = settings
        self._meter = runtime.meter
        self._table = runtime.table("rows", ROWS_SCHEMA)
        self._completed = runtime.meter.completed = Completed()
        self._cached = runtime.cache(*PREFIX)
        self._times = runtime.meter.histogram("answer", "Requests to a server, from sending to the answer.")
        self._paid = dict.fromkeys(PAID, 0)
        self.retries = 0
        register_paid(runtime, self._paid, settings)
        runtime.number("retries", Number("requests sent again", "requests", PAID_GROUP), lambda: self.retries)

    def answered(self, rows: Sequence[EndpointRow]) -> None:
        """Record `rows`, which a server has answered or refused."""
        for row in rows:
            if row.request is not None:
                self.retries += max(row.request.tries - 1, 0)
                if row.request.sent_s:
                    self._times.add(row.request.ended_s - row.request.sent_s)
            if row.answer is not None:
                used = (row.answer.prompt_tokens, row.answer.cached_tokens, row.answer.completion_tokens)
                for name, count in zip(PAID, used, strict=True):
                    self._paid[name] += count or 0
                self._cached.queries += used[0] or 0
                self._cached.hits += used[1] or 0
                self._meter.tokens_in += used[0] or 0
                self._meter.tokens_out += used[2] or 0
                self._completed.rows += 1
                self._completed.tokens += used[2] or 0
        self._meter.cost = self._settings.cost(*self._paid.values())
        self._add(rows)

    def reused(self, rows: Sequence[EndpointRow], *, from_store: bool = False, identical: bool = False) -> None:
        """Record `rows`, which were answered from the store or by an identical row."""
        self._completed.recalled += len(rows)
        self._add(rows, from_store=from_store, identical=identical)

    def _add(self, rows: Sequence[EndpointRow], *, from_store: bool = False, identical: bool = False) -> None:
        rows = [row for row in rows if row.answer is not None]
        if not rows:
            return
        answers = [row.answer for row in rows if row.answer is not None]
        requests = [row.request for row in rows]
        columns: tuple[Sequence[object], ...] = (
            [self._node] * len(rows),
            [row.row for row in rows],
            [row.chunk for row in rows],
            [answer.prompt_tokens for answer in answers],
            [answer.completion_tokens for answer in answers],
            [0.0 if r is None else r.sent_s - r.queued_s for r in requests],
            [None] * len(rows),  # a server does not say when the first token was there
            [0.0 if r is None else r.ended_s - r.sent_s for r in requests],
            [answer.cached_tokens for answer in answers],
            [False] * len(rows),
            [0 if r is None else max(r.tries - 1, 0) for r in requests],
            [0] * len(rows),  # nor what it drafted
            [0] * len(rows),
            [from_store] * len(rows),
            [identical] * len(rows),
        )
        self._table.extend(columns)


def register_paid(runtime: Runtime, paid: Mapping[str, int], settings: EndpointSettings) -> None:
    """Register the tokens that a node pays (by the names of PAID), and their cost."""
    for name, what in PAID.items():
        number = Number(f"{what.replace('_', ' ')} that the server counted", "tokens", PAID_GROUP)
        runtime.number(name, number, partial(paid.__getitem__, name))
    if settings.price_per_million is not None:
        for of_run in (False, True):
            about = Number("what the paid tokens cost", "", PAID_GROUP)
            runtime.number(COST, about, lambda: settings.cost(*paid.values()), of_run=of_run)


def usage_lines(node: str, directory: Path) -> Iterator[str]:
    """Yield a line on the tokens and the money of a node over all attempts, by the results in `directory`."""
    attempts = pq.read_table(directory / "metrics/run.parquet", columns=["totals"])["totals"].to_pylist()
    sums = Counter[str]()
    for totals in attempts:
        sums.update(json.loads(totals))
    prompt, cached, completion = (sums[f"{node}/{name}"] for name in PAID)
    if prompt or completion:
        money = f", cost {sums[f'{node}/{COST}']:,.4f}" if f"{node}/{COST}" in sums else ""
        again = f", {sums[f'{node}/retries']:,.0f} requests sent again" if sums[f"{node}/retries"] else ""
        yield (
            f"{node}: {prompt:,.0f} prompt tokens ({cached:,.0f} of them cached by the server),"
            f" {completion:,.0f} completion tokens{money}{again}"
        )
