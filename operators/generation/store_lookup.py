"""StoreLookup: completes a node's rows from the completion store, and stores its new completions."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from functools import partial

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import FinishReason, Sequence
from operators.generation.completions import completion_text
from operators.generation.journal import Journal, StoredCompletion
from operators.generation.requests import batch_row
from pipeline.api.histogram import CacheUse
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime


class CompletionKeys:
    """Makes content keys of rows that share a model, a strategy and an engine.

    Args:
        context: everything except the row's own values that can change its text.
    """

    def __init__(self, *context: object) -> None:
        self._base = hashlib.blake2b(repr(context).encode(), digest_size=16)

    def give(self, rows: Seq[Sequence]) -> list[bytes]:
        """Set the keys of `rows`, and return the sampling values of each.

        A key covers these, the prompt, and the seed unless greedy; not max_tokens, which only cuts a text.
        """
        settings: list[bytes] = []
        for row in rows:
            stops = None if row.stops is None else (row.stops.stops, row.stops.keep)
            own = repr((row.params.identity, stops)).encode()
            row.key = self.key(own if row.params.greedy else own + row.seed.to_bytes(8, "little"), row.prompt)
            settings.append(own)
        return settings

    def key(self, parameters: bytes, prompt: TokenIds) -> bytes:
        """Return a 16-byte key of a row. `parameters`: its sampling values, with the seed unless it is greedy."""
        return self._digest(len(parameters).to_bytes(4, "little") + parameters + prompt.tobytes())

    def of(self, parts: Iterable[bytes]) -> bytes:
        """Return a 16-byte key of what `parts` say, in this order."""
        return self._digest(b"".join([len(part).to_bytes(4, "little") + part for part in parts]))

    def settings(self, parameters: bytes) -> bytes:
        """Return a 16-byte digest of the settings of a row, without its prompt and seed."""
        return self._digest(b"settings" + parameters)

    def _digest(self, content: bytes) -> bytes:
        digest = self._base.copy()
        digest.update(content)
        return digest.digest()


STORE = ("store", "store", "completions")
"""Name, display name and unit of the cache."""
HITS = {"found_resumed": "made by this run before", "found_earlier": "made by earlier runs"}
"""Counts of hits, and whose they were: of an earlier attempt of this run, or of another row of it; of an earlier run of
this job (before overwrite=true) or of another."""
MISSES = {
    "missed_new": "new",
    "missed_settings": "no entry with these settings",
    "missed_cut": "cut too early",
    "missed_retry": "to be retried",
}
"""Counts of misses, and their reasons: the store has these settings, but not this row (or it was empty at the start);
it has none with these settings (another model, template, sampling or arithmetic); it has the row, cut at fewer tokens
than it may have now; `store.retry` asks to generate it again."""


class LookupCounts:
    """The counts of a node's lookups in the store. `use`: incremented with them."""

    def __init__(self, use: CacheUse) -> None:
        self._use = use
        self.counts = dict.fromkeys((*HITS, *MISSES), 0)

    def register(self, runtime: Runtime) -> None:
        """Register the counts as numbers of the node."""
        for found, names in (("found", HITS), ("not found", MISSES)):
            for name, why in names.items():
                number = Number(f"{found}: {why}", "rows", "completion store")
                runtime.number(name, number, partial(self.counts.__getitem__, name))

    @property
    def found(self) -> int:
        """All hits."""
        return sum(self.counts[key] for key in HITS)

    def summary(self) -> str | None:
        """Return the counts in words; None if the store had none of the rows."""
        counts = self.counts
        if self.found + counts["missed_cut"] + counts["missed_retry"] == 0:
            return None
        missed = sum(counts[key] for key in MISSES)
        reasons = ", ".join(f"{counts[key]:,} {reason}" for key, reason in MISSES.items() if counts[key])
        owners = f"{counts['found_resumed']:,} of this run, {counts['found_earlier']:,} of earlier runs"
        return f"completion store: {self.found:,} hits ({owners}), {missed:,} misses{f' ({reasons})' if missed else ''}"

    def _count(self, queries: int, hits: int) -> None:
        self._use.queries += queries
        self._use.hits += hits


class StoreLookup(LookupCounts):
    """Completes rows from a store, and stores the completions of others.

    The key of a row leaves out max_tokens, which only limits the text. A completion that ended by itself is valid for
    any max_tokens that is large enough; a longer one is cut; one that was cut too early is generated again. So a larger
    max_tokens only costs the rows that were cut, and a smaller one nothing.

    Args:
        store: the store.
        keys: makes the keys.
        pieces: the bytes of every token.
        retry: finish reasons; completions of other runs that ended so are generated again.
        run: the name of this run.
        use: incremented here.
    """

    def __init__(
        self,
        store: Journal,
        keys: CompletionKeys,
        pieces: Seq[bytes],
        retry: Collection[str],
        run: str,
        use: CacheUse,
    ) -> None:
        self._store = store
        self._keys = keys
        self._pieces = pieces
        self._retry = frozenset(retry)
        self._run = run
        super().__init__(use)
        self._begun = bool(store.settings)
        self._seen: dict[bytes, bool] = {}

    def complete(self, rows: Seq[Sequence]) -> list[Sequence]:
        """Complete those of `rows` that are in the store, and return them. Sets the keys of all `rows`."""
        settings = self._keys.give(rows)
        stored = self._store.find([row.key for row in rows])
        found: list[Sequence] = []
        for row, own in zip(rows, settings, strict=True):
            known = stored.get(row.key)
            if known is None:
                self._count_unknown(own)
            elif (serves := self._as_for(row, known)) is not None:
                _finish(row, serves)
                found.append(row)
        self._count(len(rows), len(found))
        return found

    def keep(self, row: Sequence) -> None:
        """Store a finished `row`. Called by the engine's thread as soon as the row ends, so that it is durable even if
        the node waits for a slow reader."""
        if row.finish_reason is not None and row.error is None:
            text = batch_row(row).text = completion_text(row, self._pieces)
            scores = None if row.params.logprobs is None else row.sampling.scores
            least = len(row.tokens) + row.dropped
            stored = StoredCompletion(row.tokens, text, row.finish_reason.value, scores, least, self._run)
            self._store.put({row.key: stored})

    def _as_for(self, row: Sequence, known: StoredCompletion) -> StoredCompletion | None:
        """Return the stored completion `known`, cut for `row`; None if the row must be generated again."""
        own = known.run == self._run
        if known.finish_reason in self._retry and not own:
            self.counts["missed_retry"] += 1
            return None
        if known.finish_reason == FinishReason.LENGTH and len(known.ids) < row.max_tokens:
            self.counts["missed_cut"] += 1
            return None
        self.counts["found_resumed" if own else "found_earlier"] += 1
        if known.least <= row.max_tokens:
            return known
        ids = known.ids[: row.max_tokens]
        text = b"".join([self._pieces[token] for token in ids]).decode("utf-8", "replace")
        scores = None if known.scores is None else known.scores[: row.max_tokens]
        return StoredCompletion(ids, text, FinishReason.LENGTH.value, scores)

    def _count_unknown(self, settings: bytes) -> None:
        if settings not in self._seen:
            digest = self._keys.settings(settings)
            self._seen[settings] = digest in self._store.settings
            self._store.note_settings({digest})
        self.counts["missed_new" if self._seen[settings] or not self._begun else "missed_settings"] += 1


def _finish(row: Sequence, stored: StoredCompletion) -> None:
    row.tokens = np.asarray(stored.ids, np.int32).tolist()
    row.finish_reason = FinishReason(stored.finish_reason)
    row.sampling.scores = list(stored.scores or ())
    batch_row(row).text = stored.text
    row.refit()
