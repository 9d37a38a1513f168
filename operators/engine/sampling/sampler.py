"""Draws one token for each row from its logits, in float32 NumPy, without a sort of the vocabulary.

Rows that share their parameters go through the steps together; what a row draws depends, to the bit, on that row alone.

A row with a constraint draws as if it had none. Only if its token does not fit, the tokens that do are listed, and it
draws once more among these. For p over all tokens, of which those that fit have together the mass m, a token that fits
comes with p + (1 - m) p / m = p / m: as if it had been drawn among these at once. Cuts (top-k, top-p ...) are made anew
for the second draw, as llama.cpp does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np

from operators.engine.backend.interface import Logits
from operators.engine.sampling.candidates import Few
from operators.engine.sampling.logit_edits import Patch, changes_of
from operators.engine.sampling.logprobs import score
from operators.engine.sampling.params import ChainStep
from operators.engine.sampling.row_state import AGAIN, DRAW, SampledRow, no_token
from operators.engine.sampling.temperature import Mirostat
from operators.engine.sampling.top_k import block_maxima, fits, largest, patch_maxima, top_tokens
from operators.engine.sampling.whole_vocabulary import Full, Scratch

Drawn = tuple[int, float] | None
"""A token and its probability among the candidates that were left; None where there was no distribution."""


class Sampler:
    """Draws tokens. Holds buffers only; the state of a row is in its `sampling`."""

    def __init__(self) -> None:
        self._scratch: Scratch | None = None
        self._masked: Logits = np.empty((0, 0), np.float32)

    def draw(self, logits: Logits, rows: Seq[SampledRow], places: Seq[int] | None = None) -> list[int | None]:
        """Draw a token for each row, and with `logprobs` set its `scored`.

        Args:
            logits: float32 [rows, n_vocab]; only read. Rows may be equal or share memory.
            rows: the sequences, in the order of the logits.
            places: indices of the rows that draw; None: all.

        Returns:
            token ids; None for a row whose logits are no distribution (NaN, or -inf everywhere), and for one that has
            an error: no token fits its constraint.
        """
        places = range(len(rows)) if places is None else places
        if all(rows[i].params.plain for i in places):
            return likeliest(logits, places)
        scratch = self._scratch_for(logits.shape[1])
        drawn = _draw_rows(logits, rows, places, DRAW, scratch)
        if misfits := [i for i in places if _misfits(rows[i], drawn[i])]:
            chosen = [rows[i] for i in misfits]
            masked = self._only_allowed(logits, misfits, chosen)
            again = _draw_rows(masked, chosen, range(len(chosen)), AGAIN, scratch)
            for at, i in enumerate(misfits):
                drawn[i] = again[at]
                if again[at] is None:
                    rows[i].error = no_token(rows[i])
        for i in places:
            if (found := drawn[i]) is not None:
                _note(rows[i], logits[i], found, scratch)
        return [None if (found := drawn[i]) is None else found[0] for i in places]

    def draw_ahead(self, lines: Logits, rows: Seq[SampledRow]) -> list[list[int | None]] | None:
        """Draw at all places of rows before it is known which come next: None if what is drawn at one depends on those
        before it. `lines`: float32 [rows, places, n_vocab]."""
        if not all(row.params.plain for row in rows):
            return None
        count = lines.shape[1]
        tokens = likeliest(lines.reshape(len(rows) * count, -1), range(len(rows) * count))
        return [tokens[i : i + count] for i in range(0, len(tokens), count)]

    def draw_one(self, logits: Logits, row: SampledRow, uniform: float) -> int | None:
        """Draw a token from `logits`, float32 [n_vocab], by the parameters of `row`; bias, bans and leading penalties
        do not act. `uniform`: the random number, in [0, 1). Returns None if the logits are no distribution."""
        drawn = _draw_alone(logits, row, None, uniform, self._scratch_for(len(logits)))
        return None if drawn is None else drawn[0]

    def _only_allowed(self, logits: Logits, places: Seq[int], rows: Seq[SampledRow]) -> Logits:
        """Return float32 [len(rows), n_vocab]: the logits at `places`, -inf where the constraints of `rows` forbid."""
        if self._masked.shape[0] < len(rows) or self._masked.shape[1] != logits.shape[1]:
            self._masked = np.empty((len(rows), logits.shape[1]), np.float32)
        masked = self._masked[: len(rows)]
        masked.fill(-np.inf)
        for line, place, row in zip(masked, places, rows, strict=True):
            if row.sampling.matcher is not None:
                np.copyto(line, logits[place], where=row.sampling.matcher.allowed())
        return masked

    def _scratch_for(self, n_vocab: int) -> Scratch:
        if self._scratch is None or self._scratch.n_vocab != n_vocab:
            self._scratch = Scratch(n_vocab)
        return self._scratch


def likeliest(logits: Logits, places: Seq[int]) -> list[int | None]:
    """Return the token with the largest logit of the rows at `places` of `logits`, float32 [rows, n_vocab]; None for
    one that is no distribution. One pass: argmax takes NaN as largest."""
    whole = len(places) == len(logits)
    ids = logits.argmax(axis=1) if whole else np.array([logits[i].argmax() for i in places], np.int64)
    sane = np.isfinite(logits[places, ids])
    tokens: list[int | None] = ids.tolist()
    return tokens if sane.all() else [token if ok else None for token, ok in zip(tokens, sane, strict=True)]


def _misfits(row: SampledRow, drawn: Drawn) -> bool:
    return drawn is not None and row.sampling.matcher is not None and not row.sampling.matcher.allows(drawn[0])


def _draw_rows(
    logits: Logits, rows: Seq[SampledRow], places: Iterable[int], draw: int, scratch: Scratch
) -> dict[int, Drawn]:
    """Draw a token for each of the rows at `places`, by the random number `draw` of the step."""
    groups: dict[int, list[int]] = {}
    for i in places:
        groups.setdefault(id(rows[i].params), []).append(i)
    drawn: dict[int, Drawn] = {}
    for group in groups.values():
        drawn |= zip(group, _draw_group(logits, rows, group, draw, scratch), strict=True)
    return drawn


def _draw_group(
    logits: Logits, rows: Seq[SampledRow], places: list[int], draw: int, scratch: Scratch
) -> Iterable[Drawn]:
    """Draw a token for each of the rows at `places`, which share their parameters."""
    chain = rows[places[0]].params.chain
    changes = {i: made for i in places if (made := changes_of(rows[i]))}
    patches = {i: Patch(logits[i], made) for i, made in changes.items()}
    if chain.greedy:
        return _likeliest(logits, places, patches, scratch)
    if fits(scratch, chain.top_k):
        return _draw_by_top_k(logits, rows, places, patches, draw, scratch)
    return [_draw_alone(logits[i], rows[i], patches.get(i), _uniform(rows[i], draw), scratch) for i in places]


def _draw_by_top_k(
    logits: Logits, rows: Seq[SampledRow], places: list[int], patches: dict[int, Patch], draw: int, scratch: Scratch
) -> Iterable[Drawn]:
    """Draw for all rows together: cut to the top k, then do the other steps on these few."""
    chain = rows[places[0]].params.chain
    maxima = block_maxima(logits, places, scratch)
    sane = np.isfinite(largest(logits, places, maxima, scratch))
    drawn: dict[int, Drawn] = {i: None for i, ok in zip(places, sane, strict=True) if not ok}
    if drawn:
        places = [i for i in places if i not in drawn]
        maxima = maxima[sane]
    if places:
        inside = {at: patches[i] for at, i in enumerate(places) if i in patches}
        patch_maxima(logits, places, maxima, inside, scratch)
        done, ids, values = top_tokens(logits, places, maxima, chain.top_k, inside, scratch)
        quick = [places[at] for at in done]
        few = Few(ids, values, np.full(len(ids), chain.top_k))
        own = [rows[i] for i in quick]
        drawn |= zip(quick, _finish(few, chain.steps[1:], own, [_uniform(row, draw) for row in own]), strict=True)
    for i in places:
        if i not in drawn:
            drawn[i] = _draw_alone(logits[i], rows[i], patches.get(i), _uniform(rows[i], draw), scratch)
    return [drawn[i] for i in sorted(drawn)]


def _uniform(row: SampledRow, draw: int) -> float:
    return row.sampling.uniforms.at(len(row.tokens), draw)


def _draw_alone(logits: Logits, row: SampledRow, patch: Patch | None, uniform: float, scratch: Scratch) -> Drawn:
    """Draw for one row, beginning with its whole vocabulary. `logits`: float32 [n_vocab]."""
    full = _patched(logits, patch, scratch)
    if full is None:
        return None
    steps = row.params.chain.steps
    for number, step in enumerate(steps):
        step.full(full, row)
        if full.few is not None:
            return _finish(full.few, steps[number + 1 :], [row], [uniform])[0]
    return full.pick(uniform)


def _finish(few: Few, steps: Seq[ChainStep], rows: Seq[SampledRow], uniforms: Seq[float]) -> list[Drawn]:
    """Do the `steps` that are left on rows with few candidates, and draw."""
    if not rows:
        return []
    for step in steps:
        step.few(few, rows)
    return few.pick(np.array(uniforms))


def _likeliest(logits: Logits, places: list[int], patches: dict[int, Patch], scratch: Scratch) -> Iterable[Drawn]:
    """Take the token with the largest logit of each of the rows at `places`, after its changes."""
    drawn: list[Drawn] = [None if token is None else (token, 1.0) for token in likeliest(logits, places)]
    for at, i in enumerate(places):
        if i in patches:
            full = _patched(logits[i], patches[i], scratch)
            drawn[at] = None if full is None else (int(full.values.argmax()), 1.0)
    return drawn


def _patched(logits: Logits, patch: Patch | None, scratch: Scratch) -> Full | None:
    """Return the row with its changes; None if it is no distribution before or after them."""
    full = Full(logits, scratch)
    if not np.isfinite(full.top):
        return None
    if patch is not None:
        full.writable()[patch.ids] = patch.values
        if not np.isfinite(full.top):
            return None
    return full


def _note(row: SampledRow, logits: Logits, drawn: tuple[int, float], scratch: Scratch) -> None:
    """Move the row's Mirostat and record its log-probabilities."""
    token, probability = drawn
    last = row.params.chain.steps[-1:]
    if last and isinstance(last[0], Mirostat):
        last[0].drawn(row, probability)
    if row.params.logprobs is not None:
        row.sampling.scored = score(logits, token, row.params.logprobs, scratch)
