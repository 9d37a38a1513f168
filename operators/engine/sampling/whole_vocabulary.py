"""Full: one row over its whole vocabulary, until a step has made the candidates few; Scratch: the buffers for it."""

from __future__ import annotations

import numpy as np

from operators.engine.sampling.candidates import Doubles, Few, Flags, Floats, Ids, by_logit

FEW = 4096
"""Most candidates that are sorted."""
DEPTH = 32
"""Tokens in a block, if the vocabulary is large enough for a thousand blocks."""
_BLOCKS = 1024
_CHUNK = 65_536


class Scratch:
    """The blocks of a vocabulary, and buffers for one row at a time, so that no step allocates an array of its size.

    Block b of V tokens holds the tokens b, b + width, b + 2 * width ...: NumPy reduces over the first axis of
    `row.reshape(depth, width)` ten times faster than over contiguous blocks.

    Attributes:
        depth: tokens in a block.
        width: number of blocks.
        tail: the first of the last V % depth tokens, which are in no block.
        offsets: a block's number plus these are its tokens.
        values, weights, scores, product: float32 [n_vocab].
        flags, marks: bool [n_vocab].
        sums: float32 [width].
        maxima: float32 [rows, width]; grown by `reserve`.
    """

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self.depth = 1
        while self.depth < DEPTH and n_vocab // (2 * self.depth) >= _BLOCKS:
            self.depth *= 2
        self.width = n_vocab // self.depth
        self.tail = self.depth * self.width
        self.offsets = self.width * np.arange(self.depth, dtype=np.int64)
        self.values, self.weights, self.scores, self.product = np.empty((4, n_vocab), np.float32)
        self.flags, self.marks = np.empty((2, n_vocab), np.bool_)
        self.sums = np.empty(self.width, np.float32)
        self.maxima = np.empty((0, self.width), np.float32)

    def blocks(self, row: Floats) -> Floats:
        """View a row [n_vocab] as its blocks, [depth, width]."""
        view: Floats = row[: self.tail].reshape(self.depth, self.width)
        return view

    def reserve(self, rows: int) -> None:
        """Make room for the block maxima of `rows` rows."""
        if len(self.maxima) < rows:
            self.maxima = np.empty((rows, self.width), np.float32)

    def block_sums(self, values: Floats) -> Doubles:
        """Return float64 [width + 1]: the sum of each block of `values`, float32 [n_vocab], and of the tail.

        A block is summed in float32 in the order of its tokens; nothing depends on other rows or on memory alignment.
        """
        np.add.reduce(self.blocks(values), axis=0, out=self.sums)
        sums = np.empty(len(self.sums) + 1)
        sums[:-1] = self.sums
        sums[-1] = np.add.reduce(values[self.tail :], dtype=np.float64)
        return sums

    def total(self, values: Floats) -> float:
        """Sum `values`, float32 [n_vocab], without a check for -inf and NaN."""
        return float(self.block_sums(values).sum())


class Full:
    """A row over the whole vocabulary. A token that is no longer a candidate has the logit -inf.

    `logits` are read and never written: others may read the same memory. The first step that changes something writes
    into a buffer of the scratch, so only one Full on a scratch is in use at a time.

    Args:
        logits: float32 [n_vocab].
        scratch: the buffers.

    Attributes:
        values: float32 [n_vocab], the logits as they are now.
        size: candidates as llama.cpp counts them.
        few: the candidates, once they are few; from then on the rest of this object is stale.
    """

    def __init__(self, logits: Floats, scratch: Scratch) -> None:
        self.values = logits
        self.scratch = scratch
        self.size = len(logits)
        self.few: Few | None = None
        self._top: np.float32 | None = None

    def writable(self) -> Floats:
        """Return the values in a buffer that may be written; call it before every change."""
        self._top = None
        if self.values is not self.scratch.values:
            np.copyto(self.scratch.values, self.values)
            self.values = self.scratch.values
        return self.values

    @property
    def top(self) -> np.float32:
        """The largest logit; NaN if there is one."""
        if self._top is None:
            self._top = self.values.max()
        return self._top

    def divide(self, temperature: float) -> None:
        """Divide the distances to the largest logit by `temperature`, so that nothing overflows."""
        self.values = self.distances(self.scratch.values)
        self._top = np.float32(0)
        with np.errstate(over="ignore"):
            np.divide(self.values, np.float32(temperature), out=self.values)

    def distances(self, out: Floats) -> Floats:
        """Write logit minus the largest one into the buffer `out`."""
        return np.subtract(self.values, self.top, out=out)

    def weights(self) -> Floats:
        """Write exp(logit - largest) into the scratch's `weights`."""
        weights = self.distances(self.scratch.weights)
        return np.exp(weights, out=weights)

    def entropy(self) -> tuple[float, float]:
        """Return entropy in nats and sum of the weights; leaves weights and distances (`scores`) in the scratch.

        H = log Z - (sum of w d) / Z, with w = exp(d). Distances below -200 are raised to it: they weigh nothing.
        """
        scratch = self.scratch
        distances = np.maximum(self.distances(scratch.scores), np.float32(-200), out=scratch.scores)
        weights = np.exp(distances, out=scratch.weights)
        total = scratch.total(weights)
        product = np.multiply(weights, distances, out=scratch.product)
        return float(np.log(total)) - scratch.total(product) / total, total

    def keep(self, flags: Flags, count: int) -> None:
        """Keep only the tokens in the mask `flags`, bool [n_vocab]; `count`: the number of them."""
        if count <= FEW:
            self.narrow(np.flatnonzero(flags))
        else:
            self.mask(flags)
            self.size = count

    def mask(self, flags: Flags) -> None:
        """Make all tokens outside the mask `flags`, bool [n_vocab], impossible."""
        # The smaller of a logit and +inf or -inf; NumPy's own masking (putmask) takes five times as long.
        bounds = self.scratch.product
        np.copyto(bounds, flags)
        np.subtract(bounds, np.float32(0.5), out=bounds)
        np.multiply(bounds, np.float32(np.inf), out=bounds)
        values = self.writable()
        np.minimum(values, bounds, out=values)

    def narrow(self, ids: Ids, size: int | None = None) -> Few:
        """Continue with the candidates `ids` alone."""
        self.few = Few.of_row(*by_logit(self.values[ids], ids), len(ids) if size is None else size)
        return self.few

    def keep_top(self, k: int) -> Few:
        """Continue with the `k` likeliest, equal ones by id. For any k; `top_k.py` is faster for a small one."""
        order = self.scratch.weights
        np.copyto(order, self.values)
        order.partition(len(order) - k)
        threshold = order[len(order) - k]
        flags = np.greater(self.values, threshold, out=self.scratch.flags)
        above = np.flatnonzero(flags)
        np.equal(self.values, threshold, out=flags)
        return self.narrow(np.concatenate([above, _first(flags, k - len(above))]))

    def keep_mass(self, scores: Floats, goal: float) -> None:
        """Keep the candidates with the lowest `scores` whose weights together reach `goal`; of equal ones those with
        the lowest ids.

        Bisects the range of the scores: the tokens at or below `low` weigh less than the goal, those at or below `high`
        do not. Sorts only the tokens in between, once they are few or cannot be told apart.

        Args:
            scores: float32 [n_vocab], in `scores` of the scratch; +inf for what is no candidate. The `weights` of the
                scratch hold exp(logit - largest).
            goal: more than 0 and at most the sum of the weights.
        """
        scratch = self.scratch
        flags = np.isfinite(scores, out=scratch.flags)
        count_high = int(np.count_nonzero(flags))
        high = np.float32(scores.max(initial=-np.inf, where=flags))
        low = np.nextafter(np.float32(scores.min()), np.float32(-np.inf))
        before, count_low = 0.0, 0
        while count_high - count_low > FEW:
            middle = np.float32(low / 2 + high / 2)
            if not low < middle < high:
                break
            np.less_equal(scores, middle, out=flags)
            mass = scratch.total(np.multiply(scratch.weights, flags, out=scratch.product))
            count = int(np.count_nonzero(flags))
            if mass < goal:
                low, before, count_low = middle, mass, count
            else:
                high, count_high = middle, count
        np.greater(scores, low, out=flags)
        np.logical_and(flags, np.less_equal(scores, high, out=scratch.marks), out=flags)
        between = np.flatnonzero(flags)
        between = between[np.argsort(scores[between], kind="stable")]
        running = before + scratch.weights[between].astype(np.float64).cumsum()
        between = between[: int(np.count_nonzero(running < goal)) + 1]
        np.less_equal(scores, low, out=flags)
        flags[between] = True
        self.keep(flags, count_low + len(between))

    def pick(self, uniform: float) -> tuple[int, float] | None:
        """Draw a token by inversion over the blocks, then inside one, with its probability; `uniform` in [0, 1)."""
        scratch = self.scratch
        weights = self.weights()
        sums = scratch.block_sums(weights)
        running = sums.cumsum()
        total = running[-1]
        if not (np.isfinite(total) and total > 0):
            return None
        goal = uniform * total
        # Rounding may put the goal behind the last block, or inside a block behind its last token.
        block = min(int(np.searchsorted(running, goal, side="right")), int(np.flatnonzero(sums)[-1]))
        ids = scratch.offsets + block if block < scratch.width else np.arange(scratch.tail, scratch.n_vocab)
        before = running[block - 1] if block else 0.0
        inside = weights[ids].astype(np.float64).cumsum() + before
        place = int(np.searchsorted(inside, goal, side="right"))
        last = int(np.flatnonzero(weights[ids])[-1])
        token = int(ids[min(place, last)])
        return token, float(weights[token] / total)


def _first(flags: Flags, count: int) -> Ids:
    """Return the first `count` ids in the mask `flags`, without listing all of them."""
    parts: list[Ids] = []
    for start in range(0, len(flags), _CHUNK):
        if count <= 0:
            break
        some = np.flatnonzero(flags[start : start + _CHUNK])[:count] + start
        parts.append(some)
        count -= len(some)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
