"""StoreLookup: completes a node's rows from the completion store, and stores its new completions."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Generic

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sequence import FinishReason, Sequence
from operators.generation.adapters import contents_of
from operators.generation.completions import completion_text
from operators.generation.journal import Journal, StoredCompletion
from operators.generation.requests import R, batch_row
from pipeline.api.numbers import Number
from pipeline.api.protocols import Runtime


class CompletionKeys:
    """Makes content keys of rows that share a model, a strategy and an engine. `context`: everything except the row's
    own values that can change its text. `adapters`: the content of each that a row may have."""

    def __init__(self, *context: object, adapters: Seq[str] = ()) -> None:
        self._adapters = adapters
        self._base = hashlib.blake2b(repr(context).encode(), digest_size=16)

    def give(self, rows: Seq[Sequence]) -> None:
        """Set the keys of `rows`. A key covers the sampling values, the prompt, and the seed unless greedy; not
        max_tokens, which only cuts a text."""
        for row in rows:
            settings = self.own_settings(row)
            row.key = self.key(settings if row.params.greedy else settings + row.seed.to_bytes(8, "little"), row.prompt)

    def key(self, parameters: bytes, prompt: TokenIds) -> bytes:
        """Return a 16-byte key of a row. `parameters`: its sampling values, with the seed unless it is greedy."""
        return self._digest(len(parameters).to_bytes(4, "little") + parameters + prompt.tobytes())

    def of(self, parts: Iterable[bytes]) -> bytes:
        """Return a 16-byte key of what `parts` say, in this order."""
        return self._digest(b"".join([len(part).to_bytes(4, "little") + part for part in parts]))

    def own_settings(self, row: Sequence) -> bytes:
        """Return the sampling values of a row and the content of its adapters, in bytes."""
        stops = None if row.stops is None else (row.stops.stops, row.stops.keep)
        return repr((row.params.identity, stops, *contents_of(row.adapters, self._adapters))).encode()

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
    """The counts of a node's lookups in the store, which it registers as numbers of the run."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._use = runtime.cache(*STORE)
        self.counts = dict.fromkeys((*HITS, *MISSES), 0)
        for found, names in (("found", HITS), ("not found", MISSES)):
            for name, why in names.items():
                number = Number(f"{found}: {why}", "rows", "completion store")
                runtime.number(name, number, partial(self.counts.__getitem__, name))

    def say(self) -> None:
        """Write the counts to the log, unless the store had none of the rows."""
        counts = self.counts
        hits = sum(counts[key] for key in HITS)
        if hits + counts["missed_cut"] + counts["missed_retry"] == 0:
            return
        missed = sum(counts[key] for key in MISSES)
        reasons = ", ".join(f"{counts[key]:,} {reason}" for key, reason in MISSES.items() if counts[key])
        owners = f"{counts['found_resumed']:,} of this run, {counts['found_earlier']:,} of earlier runs"
        misses = f"{missed:,} misses{f' ({reasons})' if missed else ''}"
        log, node = self._runtime.log, self._runtime.node
        log.info("%s: completion store: %s hits (%s), %s", node, f"{hits:,}", owners, misses)

    def _count(self, outcomes: Iterable[str]) -> None:
        """Count lookups by what was found, of HITS and MISSES."""
        for each in outcomes:
            self.counts[each] += 1
            self._use.queries += 1
            self._use.hits += each in HITS


class RowLookup(LookupCounts, ABC, Generic[R]):
    """Completes rows of a Generate node from a store, and stores the completions of others.

    Args:
        runtime: of the node.
        store: the store.
        retry: finish reasons; completions of other runs that ended so are made again.
    """

    def __init__(self, runtime: Runtime, store: Journal, retry: Collection[str]) -> None:
        super().__init__(runtime)
        self._store = store
        self._retry = frozenset(retry)

    @abstractmethod
    def _finish(self, row: R, stored: StoredCompletion) -> str | None:
        """Finish `row` by what is stored; else return why that does not serve it, of MISSES."""

    @abstractmethod
    def _made(self, row: R) -> StoredCompletion | None:
        """Return what to store of a finished `row`; None if it has no text."""

    def complete(self, rows: Seq[R]) -> list[R]:
        """Complete those of `rows` that are in the store, and return them."""
        stored = self._store.find([row.key for row in rows])
        outcomes = [self._look_up(row, stored.get(row.key)) for row in rows]
        self._count(outcomes)
        return [row for row, how in zip(rows, outcomes, strict=True) if how in HITS]

    def keep(self, row: R) -> None:
        """Store a finished `row`. Called as soon as the row ends, in the thread of the engine or of the endpoint, so
        that it is durable even if the node waits for a slow reader."""
        if (completion := self._made(row)) is not None:
            self._store.put({row.key: completion})

    def _look_up(self, row: R, stored: StoredCompletion | None) -> str:
        """Finish `row` if it is stored and may be taken; return what was found, of HITS and MISSES."""
        if stored is None:
            return self._unknown(row)
        is_own = stored.run == self._runtime.run_id
        if stored.finish_reason in self._retry and not is_own:
            return "missed_retry"
        return self._finish(row, stored) or ("found_resumed" if is_own else "found_earlier")

    def _unknown(self, row: R) -> str:
        """Return why `row` is not in the store."""
        return "missed_new"


class StoreLookup(RowLookup[Sequence]):
    """Completes sequences from a store, and stores those of an engine.

    The key of a row leaves out max_tokens, which only limits the text. A completion that ended by itself is valid for
    any max_tokens that is large enough; a longer one is cut; one that was cut too early is generated again. So a larger
    max_tokens only costs the rows that were cut, and a smaller one nothing.

    Args:
        runtime, store, retry: see RowLookup.
        keys: makes the keys.
        pieces: the bytes of every token.
    """

    def __init__(
        self, runtime: Runtime, store: Journal, retry: Collection[str], keys: CompletionKeys, pieces: Seq[bytes]
    ) -> None:
        super().__init__(runtime, store, retry)
        self._keys = keys
        self._pieces = pieces
        self._begun = bool(store.settings)
        self._met_settings: dict[bytes, bool] = {}

    def complete(self, rows: Seq[Sequence]) -> list[Sequence]:
        self._keys.give(rows)
        return super().complete(rows)

    def _made(self, row: Sequence) -> StoredCompletion | None:
        if row.finish_reason is None or row.error is not None:
            return None
        text = batch_row(row).text = completion_text(row, self._pieces)
        scores = None if row.params.logprobs is None else row.sampling.scores
        least = len(row.tokens) + row.dropped
        return StoredCompletion(row.tokens, text, row.finish_reason.value, scores, least, self._runtime.run_id)

    def _finish(self, row: Sequence, stored: StoredCompletion) -> str | None:
        if stored.finish_reason == FinishReason.LENGTH and len(stored.ids) < row.max_tokens:
            return "missed_cut"
        if stored.least > row.max_tokens:  # cut it
            ids = stored.ids[: row.max_tokens]
            text = b"".join([self._pieces[token] for token in ids]).decode("utf-8", "replace")
            scores = None if stored.scores is None else stored.scores[: row.max_tokens]
            stored = StoredCompletion(ids, text, FinishReason.LENGTH.value, scores)
        row.tokens = np.asarray(stored.ids, np.int32).tolist()
        row.finish_reason = FinishReason(stored.finish_reason)
        row.sampling.scores = list(stored.scores or ())
        batch_row(row).text = stored.text
        row.refit()
        return None

    def _unknown(self, row: Sequence) -> str:
        settings = self._keys.own_settings(row)
        if settings not in self._met_settings:
            digest = self._keys.settings(settings)
            self._met_settings[settings] = digest in self._store.settings
            self._store.note_settings({digest})
        return "missed_new" if self._met_settings[settings] or not self._begun else "missed_settings"
