"""AnswerLookup: answers of a server in the completion store, so that none is paid for twice."""

from __future__ import annotations

from operators.endpoint.api.answers import Unusable, from_json, to_json
from operators.endpoint.rows import EndpointRow
from operators.generation.journal import StoredCompletion
from operators.generation.store_lookup import RowLookup


class AnswerLookup(RowLookup[EndpointRow]):
    """Answers rows from a store, and stores the answers to others. Those that cannot be read are asked for again:
    another version wrote them.

    The key of an answer covers the model as the server describes it, the whole body of the request and the row's seed.
    """

    def _made(self, row: EndpointRow) -> StoredCompletion | None:
        if row.answer is None:
            return None
        return StoredCompletion([], to_json(row.answer), row.answer.finish_reason, None, 0, self._runtime.run_id)

    def _finish(self, row: EndpointRow, stored: StoredCompletion) -> str | None:
        try:
            row.answer, row.request = from_json(stored.text), None
        except Unusable:
            return "missed_retry"
        return None
