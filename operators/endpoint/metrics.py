"""Metrics of a node at a server: rows, tokens and money, and the lines about them in the summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from operators.endpoint.rows import EndpointRow
from operators.generation.row_metrics import PREFIX, RowMetrics, summed_totals
from operators.settings.endpoint import EndpointSettings
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime

COST = "cost"
PAID_GROUP = "paid to servers"
PAID = ("paid_prompt_tokens", "paid_cached_tokens", "paid_completion_tokens")
"""Totals of a node in run.parquet, in the order of EndpointSettings.cost."""


class Paid:
    """Counts the tokens that the answers to a node used, and what they cost, for its meter and the numbers of the run.

    Args:
        runtime: of the node.
        settings: with the prices.
    """

    def __init__(self, runtime: Runtime, settings: EndpointSettings) -> None:
        self._meter, self._settings = runtime.meter, settings
        self.tokens = [0, 0, 0]
        """Of prompts, of these cached, and of completions."""
        for at, name in enumerate(PAID):
            what = name.removeprefix("paid_").replace("_", " ")
            number = Number(f"{what} that the server counted", "tokens", PAID_GROUP)
            runtime.number(name, number, partial(lambda at: self.tokens[at], at))
        if settings.price_per_million is not None:
            for of_run in (False, True):
                about = Number("what the paid tokens cost", "", PAID_GROUP)
                runtime.number(COST, about, lambda: settings.cost(*self.tokens), of_run=of_run)

    def add(self, *counts: int | None) -> None:
        """Add those of an answer; None: it does not say."""
        self.tokens = [total + (count or 0) for total, count in zip(self.tokens, counts, strict=True)]
        self._meter.cost = self._settings.cost(*self.tokens)


class AnswerMetrics(RowMetrics[EndpointRow]):
    """Records the rows of a node at a server.

    Args:
        runtime: of the node.
        settings: with the prices.
    """

    def __init__(self, runtime: Runtime, settings: EndpointSettings) -> None:
        super().__init__(runtime)
        self._meter = runtime.meter
        self._paid = Paid(runtime, settings)
        self._cached = runtime.cache(*PREFIX)
        self._times = runtime.meter.histogram("answer", "Requests to a server, from sending to the answer.")
        self.retries = 0
        runtime.number("retries", Number("requests sent again", "requests", PAID_GROUP), lambda: self.retries)

    def generated(self, rows: Sequence[EndpointRow]) -> None:
        for row in rows:
            if row.request is not None:
                self.retries += max(row.request.tries - 1, 0)
                if row.request.sent_s:
                    self._times.add(row.request.ended_s - row.request.sent_s)
            if row.answer is not None:
                used = (row.answer.prompt_tokens, row.answer.cached_tokens, row.answer.completion_tokens)
                self._paid.add(*used)
                self._cached.queries += used[0] or 0
                self._cached.hits += used[1] or 0
                self._meter.tokens_in += used[0] or 0
                self._meter.tokens_out += used[2] or 0
                self._completed.rows += 1
                self._completed.tokens += used[2] or 0
        self._add([row for row in rows if row.answer is not None])

    def reused(self, rows: Sequence[EndpointRow], *, from_store: bool = False, identical: bool = False) -> None:
        answered = [row for row in rows if row.answer is not None]
        super().reused(answered, from_store=from_store, identical=identical)

    def _values(self, row: EndpointRow) -> tuple[object, ...]:
        assert row.answer is not None
        queued_s = answered_s = 0.0
        retries = 0
        if (request := row.request) is not None:
            queued_s, answered_s = request.sent_s - request.queued_s, request.ended_s - request.sent_s
            retries = max(request.tries - 1, 0)
        # A server says neither when the first token was there nor what it drafted.
        tokens = row.answer.prompt_tokens, row.answer.completion_tokens
        return *tokens, queued_s, None, answered_s, row.answer.cached_tokens, False, retries, 0, 0


def usage_lines(node: str, directory: Path) -> Iterator[str]:
    """Yield a line on the tokens and the money of a node over all attempts, by the results in `directory`."""
    sums = summed_totals(directory)
    prompt, cached, completion = (sums[f"{node}/{name}"] for name in PAID)
    if prompt or completion:
        money = f", cost {sums[f'{node}/{COST}']:,.4f}" if f"{node}/{COST}" in sums else ""
        again = f", {sums[f'{node}/retries']:,.0f} requests sent again" if sums[f"{node}/retries"] else ""
        yield (
            f"{node}: {prompt:,.0f} prompt tokens ({cached:,.0f} of them cached by the server),"
            f" {completion:,.0f} completion tokens{money}{again}"
        )
