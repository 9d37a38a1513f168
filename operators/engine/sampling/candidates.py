"""Few: the candidates that some rows have left, few enough to sort.

They are sorted by falling logit, equal ones by id: one unsigned number encodes both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.engine.backend.keys import from_keys, to_keys

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Few:
    """The candidates of several rows that share their parameters.

    Every sum over a row is the last entry of a cumulative sum, which NumPy computes from left to right: its bits do not
    depend on how many rows there are, as those of `sum(axis=1)` may.

    Attributes:
        ids: int64 [rows, n].
        logits: float32 [rows, n], falling from left to right except -inf, which marks what is no longer a candidate.
        size: int64 [rows]; candidates as llama.cpp counts them: it keeps impossible ones (-inf) until a cut drops them.
    """

    def __init__(self, ids: Ids, logits: Floats, size: Ids) -> None:
        self.ids = ids
        self.logits = logits
        self.size = size

    @classmethod
    def of_row(cls, ids: Ids, logits: Floats, size: int) -> Few:
        """Make it of one row's candidates, already in order."""
        return cls(ids[None, :], logits[None, :].copy(), np.array([size], np.int64))

    @property
    def top(self) -> Floats:
        """float32 [rows, 1]: the largest logit."""
        top: Floats = self.logits.max(axis=1, keepdims=True)
        return top

    @property
    def possible(self) -> Flags:
        """bool [rows, n]: the mask of those that are still candidates."""
        possible: Flags = self.logits > -np.inf
        return possible

    def distances(self) -> Doubles:
        """Return float64 [rows, n]: logit minus the largest one; at most 0."""
        return (self.logits - self.top).astype(np.float64)

    def weights(self) -> Doubles:
        """Return float64 [rows, n]: exp(logit - largest)."""
        return np.exp(self.distances())

    def probabilities(self) -> Doubles:
        weights = self.weights()
        return weights / row_sums(weights)

    def keep(self, kept: Flags) -> None:
        """Drop the candidates outside `kept`, bool [rows, n]."""
        self.logits[~kept] = -np.inf
        self.size = np.count_nonzero(self.logits > -np.inf, axis=1)

    def sort(self) -> None:
        """Restore the order after logits were changed."""
        by_id = np.argsort(self.ids, axis=1)
        falling = np.argsort(-np.take_along_axis(self.logits, by_id, 1), axis=1, kind="stable")
        order = np.take_along_axis(by_id, falling, 1)
        self.ids = np.take_along_axis(self.ids, order, 1)
        self.logits = np.take_along_axis(self.logits, order, 1)

    def pick(self, uniforms: Doubles) -> list[tuple[int, float] | None]:
        """Draw a token for each row by inversion, with its probability; None for a row without a distribution.
        `uniforms`: float64 [rows] in [0, 1)."""
        weights = self.weights()
        running = weights.cumsum(axis=1)
        total = running[:, -1]
        with np.errstate(invalid="ignore"):
            column = np.count_nonzero(running <= (uniforms * total)[:, None], axis=1)
        last = self.logits.shape[1] - 1 - self.possible[:, ::-1].argmax(axis=1)
        column = np.minimum(column, last)
        return [
            (int(ids[c]), float(w[c] / t)) if np.isfinite(t) and t > 0 else None
            for ids, w, c, t in zip(self.ids, weights, column, total, strict=True)
        ]


def row_sums(values: Doubles) -> Doubles:
    """Return float64 [rows, 1]: the sum of each row, added from left to right."""
    return values.cumsum(axis=1)[:, -1:]


def by_logit(logits: Floats, ids: Ids) -> tuple[Ids, Floats]:
    """Sort `ids` and their `logits` [n]: most likely first, equal ones by id."""
    return from_keys(np.sort(to_keys(logits, ids))[::-1])
