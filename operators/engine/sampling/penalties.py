"""Penalties on the tokens that came before: repetition, presence, frequency, and DRY ("don't repeat yourself")."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from operators.engine.backend.interface import TokenIds
from operators.engine.sampling.candidates import Few
from operators.engine.sampling.logit_edits import Change, find, history
from operators.engine.sampling.row_state import SampledRow
from operators.engine.sampling.whole_vocabulary import Full

_LOG_OF_LARGEST = 88.7228391
"""log of the largest float32: the exponent stops where the penalty would overflow."""


class HistoryStep(ABC):
    """A step that changes the logits of some tokens, by the tokens that came before."""

    @abstractmethod
    def change(self, row: SampledRow) -> Change | None:
        """Return the new logits of `row`; None: they stay as they are."""

    def few(self, few: Few, rows: Sequence[SampledRow]) -> None:
        for i, row in enumerate(rows):
            if (change := self.change(row)) is not None:
                at, changed = find(change.ids, few.ids[i])
                few.logits[i, changed] = change.apply(few.logits[i, changed], at[changed])
        few.sort()

    def full(self, full: Full, row: SampledRow) -> None:
        if (change := self.change(row)) is not None:
            values = full.writable()
            values[change.ids] = change.apply(values[change.ids], slice(None))


@dataclass(frozen=True)
class Penalties(HistoryStep):
    """Lowers the logits of the tokens among the last `last_n` of prompt and completion.

    A positive logit is divided by `repetition` and another one multiplied by it (Keskar et al. 2019, CTRL, with
    llama.cpp's correction for negative logits); then `presence` and count * `frequency` are subtracted.

    Args:
        last_n: None for the whole row.
    """

    last_n: int | None
    repetition: float
    presence: float
    frequency: float

    def change(self, row: SampledRow) -> Change | None:
        ids, counts = np.unique(history(row, self.last_n), return_counts=True)
        subtract = counts.astype(np.float32) * np.float32(self.frequency) + np.float32(self.presence)
        return Change(ids.astype(np.int64), -subtract, self.repetition)


class Breakers:
    """Sequences of tokens that end a repetition. `sequences`: of token ids, none of them empty."""

    def __init__(self, sequences: Iterable[tuple[int, ...]] = ()) -> None:
        self._tails: dict[int, set[tuple[int, ...]]] = {}
        for head, *tail in sequences:
            self._tails.setdefault(head, set()).add(tuple(tail))

    def __repr__(self) -> str:
        """Return the same short text for the same sequences; there may be thousands."""
        content = repr(sorted((head, sorted(tails)) for head, tails in self._tails.items()))
        return f"Breakers({hashlib.blake2b(content.encode(), digest_size=16).hexdigest()})"

    def alone(self, token: int) -> bool:
        """Return whether `token` is a breaker by itself."""
        return () in self._tails.get(token, ())

    def limit(self, tokens: TokenIds) -> int:
        """Count the tokens after the last breaker in `tokens`."""
        if not self._tails:
            return len(tokens)
        backwards = tokens[::-1].tolist()
        for i, token in enumerate(backwards):
            tails = self._tails.get(token, ())
            lengths = [len(t) for t in tails if len(t) <= i and list(t) == backwards[i - len(t) : i][::-1]]
            if lengths:
                return i - max(lengths)
        return len(tokens)


@dataclass(frozen=True)
class Dry(HistoryStep):
    """Subtracts multiplier * base ** (n - allowed_length) from the logit of a token that would prolong a repetition of
    n tokens, n at least `allowed_length`, to n + 1. Source: p-e-w, text-generation-webui#5677; the port is llama.cpp's.
    `last_n`: tokens of prompt and completion that are searched; None for all."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int | None
    breakers: Breakers

    def change(self, row: SampledRow) -> Change | None:
        tokens = history(row, self.last_n)
        if len(tokens) <= self.allowed_length:
            return None
        limit = self.breakers.limit(tokens)
        if limit < self.allowed_length:
            return None
        largest = int(_LOG_OF_LARGEST / math.log(self.base)) if self.base > 1.000001 else 0
        longest = min(limit, self.allowed_length + largest) if largest else limit
        repeats = _longest_repeats(tokens, longest, self.allowed_length)
        penalised = {t: n for t, n in repeats.items() if not self.breakers.alone(t)}
        if not penalised:
            return None
        ids = np.array(sorted(penalised), np.int64)
        lengths = np.array([penalised[t] for t in ids.tolist()])
        penalties = self.multiplier * self.base ** (lengths - self.allowed_length).astype(np.float64)
        return Change(ids, -penalties.astype(np.float32))


def _longest_repeats(tokens: TokenIds, longest: int, shortest: int) -> dict[int, int]:
    """Return, for each token that follows an earlier occurrence of the end of `tokens`, the length of the longest such
    occurrence, from `shortest` to `longest`.

    Follows all occurrences back together, in as many steps as the longest of them is long.
    """
    end = len(tokens) - 1
    places = np.arange(end)  # an occurrence that ends here is followed by the token behind it
    longest_by_token: dict[int, int] = {}
    length = 0
    while len(places):
        if length >= shortest:
            longest_by_token.update(dict.fromkeys(tokens[places + 1].tolist(), length))
        if length == longest:
            break
        places = places[places >= length]
        places = places[tokens[places - length] == tokens[end - length]]
        length += 1
    return longest_by_token
