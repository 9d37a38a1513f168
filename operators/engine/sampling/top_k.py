"""The k likeliest tokens of several rows at once, exactly, without a sort of the vocabulary.

The row is cut into strided blocks (`Scratch`). Let t be the k-th largest of some block maxima, taken over groups of
blocks that do not overlap. The k groups at or above t hold k different tokens that are not below t, so the k-th largest
logit is at least t, and every one of the top k tokens, also among ties, lies in a block whose maximum is at least t. So
only the tokens of these blocks are looked at, and only those at or above t are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from operators.engine.backend.keys import Keys, from_keys, to_keys
from operators.engine.sampling.candidates import Few, Floats, Ids
from operators.engine.sampling.logit_edits import Patch
from operators.engine.sampling.whole_vocabulary import Scratch

_GROUP = 32
"""Blocks in a group at most. The threshold is taken among the maxima of groups, and is a little lower for it."""
_BLOCKS_PER_TOKEN = 4
"""A row in which more blocks than this times k reach the threshold is not done: it has ties, or -inf."""


def fits(scratch: Scratch, k: int) -> bool:
    """Return whether there are enough blocks to find the top `k` by."""
    return 0 < 2 * k <= scratch.width


def block_maxima(logits: Floats, rows: Sequence[int], scratch: Scratch) -> Floats:
    """Return float32 [len(rows), width]: the maximum of each block of these rows; NaN if it has one."""
    scratch.reserve(len(rows))
    maxima = scratch.maxima[: len(rows)]
    for i, row in enumerate(rows):
        np.maximum.reduce(scratch.blocks(logits[row]), axis=0, out=maxima[i])
    return maxima


def largest(logits: Floats, rows: Sequence[int], maxima: Floats, scratch: Scratch) -> Floats:
    """Return float32 [len(rows)]: the largest logit of each row from its block maxima; NaN if it has one."""
    tops: Floats = maxima.max(axis=1)
    if scratch.tail < scratch.n_vocab:
        tops = np.maximum(tops, logits[rows, scratch.tail :].max(axis=1))
    return tops


def patch_maxima(
    logits: Floats, rows: Sequence[int], maxima: Floats, patches: Mapping[int, Patch], scratch: Scratch
) -> None:
    """Correct `maxima` for rows with changed logits; `patches`: by index in `rows`."""
    for i, patch in patches.items():
        inside = patch.ids[patch.ids < scratch.tail]
        blocks = np.unique(inside % scratch.width)
        tokens = scratch.offsets[:, None] + blocks
        values = logits[rows[i]].take(tokens)
        values[inside // scratch.width, np.searchsorted(blocks, inside % scratch.width)] = patch.values[: len(inside)]
        maxima[i, blocks] = values.max(axis=0)


def top_tokens(
    logits: Floats, rows: Sequence[int], maxima: Floats, k: int, patches: Mapping[int, Patch], scratch: Scratch
) -> tuple[list[int], Ids, Floats]:
    """Find the `k` likeliest tokens, most likely first, equal ones by id.

    Args:
        logits: float32 [any, n_vocab].
        rows: indices of the rows to do.
        maxima: float32 [len(rows), width], the block maxima, patched.
        k: a number that `fits`.
        patches: changed logits, by index in `rows`.
        scratch: the buffers.

    Returns:
        the indices in `rows` that were done, ids int64 [done, k] and logits float32 [done, k]. The others have too many
        equal maxima to be quick.
    """
    thresholds, place, block = _likely_blocks(maxima, k)
    counts = np.bincount(place, minlength=len(rows))
    sane = (counts <= _BLOCKS_PER_TOKEN * k) & (thresholds > -np.inf)
    done = np.flatnonzero(sane)
    if not len(done):
        return [], np.empty((0, k), np.int64), np.empty((0, k), np.float32)
    if len(done) < len(rows):
        block, place = block[sane[place]], (sane.cumsum() - 1)[place[sane[place]]]
        thresholds = thresholds[done]
    which = np.asarray(rows)[done]
    ids = block[:, None] + scratch.offsets
    values = _gather(logits, which[place], ids)
    tail_ids = np.broadcast_to(np.arange(scratch.tail, scratch.n_vocab), (len(done), scratch.n_vocab - scratch.tail))
    tail = _gather(logits, which, tail_ids)
    for at, i in enumerate(done.tolist()):
        if i in patches:
            first, last = np.searchsorted(place, [at, at + 1])
            patches[i].onto(ids[first:last], values[first:last])
            patches[i].onto(tail_ids[at], tail[at])
    keys = _by_row(place, ids, values, thresholds)
    if tail.shape[1]:
        keys = np.concatenate([keys, to_keys(tail, tail_ids)], axis=1)
    keys.sort(axis=1)
    best = from_keys(keys[:, : -k - 1 : -1])
    return done.tolist(), np.ascontiguousarray(best[0]), np.ascontiguousarray(best[1])


def top_of_row(logits: Floats, k: int, scratch: Scratch) -> Few | None:
    """Return the `k` likeliest tokens of one row, float32 [n_vocab]; None if there are too many equal maxima."""
    row = logits[None, :]
    done, ids, values = top_tokens(row, [0], block_maxima(row, [0], scratch), k, {}, scratch)
    return Few.of_row(ids[0], values[0], k) if done else None


def _likely_blocks(maxima: Floats, k: int) -> tuple[Floats, Ids, Ids]:
    """Return a threshold for each row, float32 [rows], and the blocks that reach it, as rows (rising) and blocks.

    Only groups that reach the threshold are searched for blocks, and the last blocks, which are in no group.
    """
    rows, width = maxima.shape
    group = max(1, min(_GROUP, width // (2 * k)))
    groups = width // group
    grouped = maxima[:, : group * groups].reshape(rows, group, groups).max(axis=1)
    thresholds = np.partition(grouped, groups - k, axis=1)[:, groups - k]
    place, hit = np.nonzero(grouped >= thresholds[:, None])
    blocks = hit[:, None] + groups * np.arange(group)
    values = maxima.reshape(-1).take(blocks + (place * width)[:, None])
    kept = np.flatnonzero(values >= thresholds[place][:, None])
    last_place, last = np.nonzero(maxima[:, group * groups :] >= thresholds[:, None])
    place = np.concatenate([place[kept // group], last_place])
    block = np.concatenate([blocks.ravel()[kept], last + group * groups])
    order = np.argsort(place, kind="stable")
    return thresholds, place[order], block[order]


def _gather(logits: Floats, rows: Ids, ids: Ids) -> Floats:
    """Take float32 of the shape of `ids`, [n, m], from row rows[n]."""
    if logits.flags.c_contiguous:  # one flat take is twice as fast
        taken: Floats = logits.reshape(-1).take(ids + (rows * logits.shape[1])[:, None])
    else:
        taken = logits[rows[:, None], ids]
    return taken


def _by_row(place: Ids, ids: Ids, values: Floats, thresholds: Floats) -> Keys:
    """Return uint64 [rows, longest]: the keys of the tokens that reach their row's threshold, padded with 0.

    `place` [n] rises: the row of each line of `ids` and `values`, [n, depth].
    """
    kept = np.flatnonzero(values >= thresholds[place][:, None])
    row = place[kept // values.shape[1]]
    counts = np.bincount(row, minlength=len(thresholds))
    column = np.arange(len(kept)) - np.repeat(counts.cumsum() - counts, counts)
    keys = np.zeros((len(thresholds), int(counts.max())), np.uint64)
    keys[row, column] = to_keys(values.ravel()[kept], ids.ravel()[kept])
    return keys
