"""The forecast of a Generate node: the rows to generate, and their time and disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence as Seq
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from operators.engine.loop.engine import Engine
from operators.engine.sequence import FinishReason, Sequence
from operators.estimate.generation import generated
from operators.estimate.images import largest_image_first, with_images, with_keys
from operators.generation.completions import CompletionColumns
from operators.generation.duplicates import Duplicates
from operators.generation.requests import RowMaker, batch_row
from operators.generation.store import unusable
from operators.generation.store_lookup import CompletionKeys
from operators.images.columns import IMAGE_MARK, SHOWN_IMAGE
from operators.settings import SamplingSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from operators.settings.sampling import ENDS
from pipeline.api.forecast import Forecast, Range, Task, share
from pipeline.api.records import Batch, Rejects

PROMPT_TEXT = "prompt_text"
PROMPTS = 3
_STORE_ROW_BYTES = 200
"""Bytes per completion in the store, beside its tokens and text: key, finish reason, run, and SQLite's overhead."""
_TOKEN_BYTES = 9
"""Bytes per token in the store: four for its id, the rest for its text."""
_SCORE_BYTES = 8
_METRICS_ROW_BYTES = 60
_METRICS_STEP_BYTES = 50


@dataclass(frozen=True)
class Generating:
    """A Generate node, as its forecast needs it. Nothing need be at `store_path` yet."""

    engine: Engine
    settings: EngineSettings
    sampling: SamplingSettings
    requests: RowMaker[Sequence]
    completions: CompletionColumns[Sequence]
    pieces: Seq[bytes]
    keys: CompletionKeys
    store: StoreSettings
    store_path: Path

    def forecast(self, batches: Seq[Batch], task: Task, prepare_s: float) -> Forecast:
        """Estimate the cost of all rows from those of `batches`. `prepare_s`: seconds to load the model."""
        requests = [self.requests.of(batch) for batch in batches]
        rows = in_any_order([row for each, _ in requests for row in each])
        rows_out = task.rows.times(share(len(rows), sum(batch.num_rows for batch in batches)))
        new, part, notes = self._to_generate(rows)
        count, tried, fixed = rows_out.times(part), largest_image_first(new), self._fixed_lengths
        forecast, trial = generated(
            self.engine, self.settings, tried, count, task.seconds, whole=task.whole, fixed_lengths=fixed
        )
        if (images := self.requests.images) is not None:
            forecast = with_images(forecast, images, batches, new, task, count)
        failed = [item for item in self.completions.items(trial.failed) if isinstance(item, Rejects)]
        return replace(
            forecast,
            rows_out=rows_out.times(1 - part * (1 - share(forecast.rows_out.likely, count.likely))),
            output=list(self.completions.batches(self._shown(trial.rows))),
            rejects=[*(rejects for _, refused in requests for rejects in refused), *failed],
            prepare_s=prepare_s,
            disk_bytes=self._disk_bytes(count, forecast.tokens_out),
            prompts=self._prompts(rows),
            notes=[*notes, *forecast.notes],
        )

    @property
    def _fixed_lengths(self) -> bool:
        sampling = self.sampling
        ends = sampling.stop or sampling.stop_token_ids or sampling.structured.kind is not None
        varied = set(ENDS) & set(sampling.per_row)  # a column may set a value that the job does not
        return sampling.ignore_eos and not ends and not varied

    def _to_generate(self, rows: Seq[Sequence]) -> tuple[list[Sequence], float, list[str]]:
        """Return those of `rows` that are neither in the store nor duplicates, as far as that is known, their share of
        all rows, and notes on them."""
        notes = []
        new, part = list(rows), 1.0
        if self.store.enabled and self.store_path.is_file():
            known = with_keys(rows, self.keys, self.requests.images)
            missed = not_stored(self.store_path, known, self.store.retry.finish_reason)
            if len(missed) < len(known):
                part = share(len(missed), len(known))
                stored = {id(row) for row in known} - {id(row) for row in missed}
                new = [row for row in rows if part and id(row) not in stored]
                notes.append(f"{1 - part:.0%} of the rows are in the completion store")
        duplicates = Duplicates[Sequence](enabled=self.settings.optimise.identical_rows)
        single = [row for row in new if not duplicates.joins(row)]
        if len(single) < len(new):
            notes.append(f"{share(len(new) - len(single), len(new)):.0%} of the rows come out like another one")
        return single, part * share(len(single), len(new)), notes

    def _shown(self, begun: Seq[Sequence]) -> Seq[Sequence]:
        """Return the rows to pass to downstream nodes: the complete ones or, if there are none, those begun. Of several
        completions of a prompt, all or none."""
        complete = [row for row in begun if row.finish_reason is not None]
        each = self.requests.samples.each
        if each is not None and each > 1:
            places = [batch_row(row).row for row in complete]
            complete = [row for row, place in zip(complete, places, strict=True) if places.count(place) == each]
        return complete or begun

    def _disk_bytes(self, count: Range, tokens_out: Range) -> Range:
        scores = 0 if self.sampling.logprobs is None else _SCORE_BYTES * (1 + self.sampling.logprobs)
        store = count.times(_STORE_ROW_BYTES) + tokens_out.times(_TOKEN_BYTES + scores)
        steps = tokens_out.times(1 / self.settings.slots)
        metrics = count.times(_METRICS_ROW_BYTES) + steps.times(_METRICS_STEP_BYTES)
        both = metrics + store if self.store.enabled else metrics
        return Range(0.5 * both.low, both.likely, 2 * both.high)

    def _prompts(self, rows: Seq[Sequence]) -> list[tuple[str, int]]:
        """Return the first few prompts, as the model gets them."""
        first = {batch_row(row).row: row for row in reversed(rows)}
        shown = [first[number] for number in sorted(first)[:PROMPTS]]
        return [(self._text(row), len(row.prompt)) for row in shown]

    def _text(self, row: Sequence) -> str:
        place = batch_row(row)
        if PROMPT_TEXT in place.batch.data.schema.names:
            return str(place.batch.data.column(PROMPT_TEXT)[place.index].as_py()).replace(IMAGE_MARK, SHOWN_IMAGE)
        return b"".join(self.pieces[token] for token in row.prompt.tolist() if token >= 0).decode("utf-8", "replace")


def in_any_order(rows: Seq[Sequence]) -> list[Sequence]:
    """Shuffle `rows` so that any first part is representative. Rows of one source row stay together."""
    numbers = list(dict.fromkeys(batch_row(row).row for row in rows))
    order = dict(zip(numbers, np.random.default_rng(0).permutation(len(numbers)).tolist(), strict=True))
    return sorted(rows, key=lambda row: order[batch_row(row).row])


def not_stored(path: Path, rows: Seq[Sequence], retry: Seq[str]) -> list[Sequence]:
    """Return those of `rows`, which have keys, that are not in the store at `path`, or ended there by one of `retry`.
    Opens the store without writing a byte."""
    if not path.is_file():
        return list(rows)
    # Without a -wal file nobody writes to it, so SQLite can read it as immutable, without making files of its own.
    log = path.with_name(f"{path.name}-wal")
    in_use = log.exists() and log.stat().st_size > 0
    query = (
        "SELECT 1 FROM completions WHERE key = ? AND finish_reason NOT IN (SELECT value FROM json_each(?))"
        " AND (finish_reason != ? OR length(ids) / 4 >= ?)"
    )
    try:
        address = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
        with closing(sqlite3.connect(address, uri=True)) as database:
            values = [(row.key, json.dumps(list(retry)), FinishReason.LENGTH, row.max_tokens) for row in rows]
            return [row for row, v in zip(rows, values, strict=True) if database.execute(query, v).fetchone() is None]
    except sqlite3.Error as error:
        raise unusable(path, error, opening=True) from error
