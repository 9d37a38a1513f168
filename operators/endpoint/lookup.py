"""AnswerLookup: answers of a server in the completion store, so that none is paid for twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from operators.endpoint.api.answers import Answer, Unusable, from_json, to_json
from operators.endpoint.rows import EndpointRow
from operators.generation.journal import Journal, StoredCompletion
from operators.generation.store_lookup import LookupCounts
from pipeline.api.histogram import CacheUse


class AnswerLookup(LookupCounts):
    """Answers rows from a store, and stores the answers to others.

    The key of an answer covers the model as the server describes it, the whole body of the request and the row's seed.

    Args:
        store: the store.
        retry: finish reasons; answers of other runs that ended so are asked for again. So are those that cannot be
            read: another version wrote them.
        run: the name of this run.
        use: incremented here.
    """

    def __init__(self, store: Journal, retry: Collection[str], run: str, use: CacheUse) -> None:
        super().__init__(use)
        self._store = store
        self._retry = frozenset(retry)
        self._run = run

    def complete(self, rows: Sequence[EndpointRow]) -> list[EndpointRow]:
        """Answer those of `rows` that are in the store, and return them."""
        stored = self._store.find([row.key for row in rows])
        found = []
        for row in rows:
            known = stored.get(row.key)
            if known is None:
                self.counts["missed_new"] += 1
                continue
            answer = _readable(known.text)
            if answer is None or (known.finish_reason in self._retry and known.run != self._run):
                self.counts["missed_retry"] += 1
            else:
                self.counts["found_resumed" if known.run == self._run else "found_earlier"] += 1
                row.answer, row.request = answer, None
                found.append(row)
        self._count(len(rows), len(found))
        return found

    def keep(self, row: EndpointRow) -> None:
        """Store the answer to `row`. Called in the endpoint's thread as soon as it is there, so that it is durable even
        if the node waits for a slow reader."""
        if row.answer is not None:
            answer = StoredCompletion([], to_json(row.answer), row.answer.finish_reason, None, 0, self._run)
            self._store.put({row.key: answer})


def _readable(stored: str) -> Answer | None:
    try:
        return from_json(stored)
    except Unusable:
        return None
