"""What rows become: completions of what the engine gave back or a store had, or rejects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from operators.engine.sequence import FinishReason
from operators.engine.sequence import Sequence as Row
from operators.generation.completions import Completion
from operators.generation.requests import completion_text, misfit, place_of
from operators.generation.store import StoredCompletion
from pipeline.api.records import Rejects

Outcome: TypeAlias = Completion | Rejects


class Outcomes:
    """Tells of rows what they have become.

    Args:
        pieces: the bytes of each token of the vocabulary.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def completion(self, row: Row) -> Completion | None:
        """What a row has become; None if it could not be completed."""
        if row.finish_reason is None or row.error is not None:
            return None
        text = completion_text(row, self._pieces)
        scores = None if row.params.logprobs is None else row.sampling.scores
        return Completion(place_of(row), row.tokens, text, row.finish_reason.value, len(row.prompt), row.seed, scores)

    def completions(self, rows: Sequence[Row]) -> list[tuple[Row, Completion]]:
        """Those of `rows` that could be completed, and what they have become."""
        return [(row, c) for row in rows if (c := self.completion(row)) is not None]


def outcome(row: Row, completion: Completion | None, column: str) -> Outcome:
    """What leaves: what the row has become, unless it is not what it was to be. The record of such a row has the text
    that there is in `column`."""
    place = place_of(row)
    if completion is None:
        return place.batch.reject([place.index], row.error or "it was not finished")
    reason = misfit(row)
    if reason is None:
        return completion
    alone = place.batch.data.slice(place.index, 1).append_column(column, pa.array([completion.text]))
    return place.batch.with_data(alone).reject([0], reason)


def recalled(row: Row, stored: StoredCompletion, column: str) -> Outcome:
    """What leaves of a row whose completion a store had."""
    row.tokens = list(stored.ids)
    if stored.finish_reason == FinishReason.LENGTH:
        row.refit()
    count, scores = len(row.prompt), stored.scores
    found = Completion(place_of(row), stored.ids, stored.text, stored.finish_reason, count, row.seed, scores)
    return outcome(row, found, column)
