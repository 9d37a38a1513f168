"""The forecast of a Generate node: which of its rows are to be generated at all, and what the others leave behind."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from operators.engine.backend.interface import inspect_model
from operators.engine.sequence import Sequence
from operators.estimate.generation import Device, Reckoned, reckon
from operators.estimate.stored import stored_rows
from operators.generation.completions import Completions
from operators.generation.duplicates import Duplicates
from operators.generation.requests import Requests, place_of
from operators.generation.store_lookup import CompletionKeys
from operators.settings import ModelSettings, SamplingSettings, StoreSettings
from pipeline.api.forecast import Forecast, Range, Task, share
from pipeline.api.records import Batch, Rejects

PROMPT_TEXT = "prompt_text"
PROMPTS = 3
_STORE_ROW_BYTES = 200
"""Of a completion in the store, beside its tokens and its text: key, finish reason, run, and SQLite's own."""
_TOKEN_BYTES = 9
"""Of a token in the store: four of its id, and those of its text."""
_SCORE_BYTES = 8
_METRICS_ROW_BYTES = 60
_METRICS_STEP_BYTES = 50


@dataclass(frozen=True)
class Generating:
    """A Generate node, for its forecast.

    Args:
        device: its engine.
        sampling, requests, completions, pieces, keys, store: as it has them.
        store_path: where the store lies or will lie.
    """

    device: Device
    sampling: SamplingSettings
    requests: Requests
    completions: Completions
    pieces: Seq[bytes]
    keys: CompletionKeys
    store: StoreSettings
    store_path: Path

    def forecast(self, batches: Seq[Batch], task: Task, prepare_s: float) -> Forecast:
        """Return what `task` takes; see BaseOperator.forecast."""
        given = sum(batch.num_rows for batch in batches)
        rejects, rows = self._rows(batches)
        rows_out = task.rows.times(share(len(rows), given))
        new, notes = self._to_generate(rows)
        count = rows_out.times(share(len(new), len(rows)))
        found = reckon(
            self.device,
            in_any_order(new),
            count,
            task.seconds,
            whole=task.whole,
            fixed_lengths=self._fixed_lengths,
        )
        return Forecast(
            rows_out=rows_out,
            output=list(self.completions.batches(self._shown(found.begun))),
            rejects=rejects,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            seconds=found.seconds,
            prepare_s=prepare_s,
            disk_bytes=self._disk_bytes(count, found),
            memory={"KV cache": found.kv_bytes} if found.kv_bytes else {},
            prompts=self._prompts(rows),
            notes=[*notes, *found.notes],
        )

    @property
    def _fixed_lengths(self) -> bool:
        sampling = self.sampling
        ends = sampling.stop or sampling.stop_token_ids or sampling.structured.kind is not None
        # A column may allow what the job does not.
        varied = {"stop", "stop_token_ids", "ignore_eos"} & set(sampling.per_row)
        return sampling.ignore_eos and not ends and not varied

    def _rows(self, batches: Seq[Batch]) -> tuple[list[Rejects], list[Sequence]]:
        rejects: list[Rejects] = []
        rows: list[Sequence] = []
        for batch in batches:
            made = self.requests.of(batch)
            rejects += made.rejects
            rows += made.rows
        return rejects, rows

    def _to_generate(self, rows: Seq[Sequence]) -> tuple[list[Sequence], list[str]]:
        """Those of `rows` that no store has and that are not bound to come out as another one; and a word on it."""
        notes = []
        new = list(rows)
        if self.store.enabled:
            stored = stored_rows(self.store_path, rows, self.keys, self.store.retry.finish_reason)
            new = [row for row in rows if row.key not in stored]
            if len(new) < len(rows):
                notes.append(f"{share(len(rows) - len(new), len(rows)):.0%} of the rows are in the completion store")
        duplicates = Duplicates(enabled=self.device.settings.optimise.identical_rows)
        single = [row for row in new if not duplicates.joins(row)]
        if len(single) < len(new):
            notes.append(f"{share(len(new) - len(single), len(new)):.0%} of the rows come out like another one")
        return single, notes

    def _shown(self, begun: Seq[Sequence]) -> Seq[Sequence]:
        """What is shown to the nodes behind: rows that are complete, or, where there are none, what there is of them.
        Of a prompt of which several are made, all or none."""
        done = [row for row in begun if row.finish_reason is not None]
        each = self.requests.samples.each
        if each is not None and each > 1:
            places = [place_of(row).row for row in done]
            done = [row for row, place in zip(done, places, strict=True) if places.count(place) == each]
        return done or begun

    def _disk_bytes(self, count: Range, found: Reckoned) -> Range:
        """Of the completion store and of the metrics."""
        scores = 0 if self.sampling.logprobs is None else _SCORE_BYTES * (1 + self.sampling.logprobs)
        store = count.times(_STORE_ROW_BYTES) + found.tokens_out.times(_TOKEN_BYTES + scores)
        metrics = count.times(_METRICS_ROW_BYTES) + Range.exact(_METRICS_STEP_BYTES * found.steps)
        whole = metrics + store if self.store.enabled else metrics
        return Range(0.5 * whole.low, whole.likely, 2 * whole.high)

    def _prompts(self, rows: Seq[Sequence]) -> list[tuple[str, int]]:
        """The first few, as the model is given them."""
        first = {place_of(row).row: row for row in reversed(rows)}
        shown = [first[number] for number in sorted(first)[:PROMPTS]]
        return [(self._text(row), len(row.prompt)) for row in shown]

    def _text(self, row: Sequence) -> str:
        place = place_of(row)
        if PROMPT_TEXT in place.batch.data.schema.names:
            return str(place.batch.data.column(PROMPT_TEXT)[place.index].as_py())
        return b"".join(self.pieces[token] for token in row.prompt.tolist()).decode("utf-8", "replace")


def in_any_order(rows: Seq[Sequence]) -> list[Sequence]:
    """`rows` so that any first part stands for all. Those of one row of the source stay together."""
    numbers = np.array([place_of(row).row for row in rows], np.int64)
    places = np.random.default_rng(0).permutation(len(np.unique(numbers)))
    return [rows[i] for i in np.argsort(places[np.unique(numbers, return_inverse=True)[1]], kind="stable").tolist()]


def weights_bytes(model: ModelSettings) -> float:
    """The size of the model's weights; 0 where it has none."""
    sizes = inspect_model(model).sizes
    return 0.0 if sizes is None else float(sizes.weights_bytes)
