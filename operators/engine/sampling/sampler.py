"""Draws one token for each row from its logits, in float32 NumPy, without a sort of the vocabulary.

Rows that share their parameters go through the steps together; what a row draws depends, to the bit, on that row alone.

A row with a constraint draws as if it had none. Only if its token does not fit, the tokens that do are listed, and it
draws once more among these. For p over all tokens, of which those that fit have together the mass m, a token that fits
comes with p + (1 - m) p / m = p / m: as if it had been drawn among these at once. Cuts (top-k, top-p ...) are made anew
for the second draw, as llama.cpp does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from operators.engine.backend.interface import Logits
from operators.engine.backend.keys import is_reduced
from operators.engine.sampling import reduced
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
        self._scratch = Scratch(0)
        self._masked: Logits = np.empty((0, 0), np.float32)

    def draw(self, logits: Logits, rows: Sequence[SampledRow], places: Sequence[int] | None = None) -> list[int | None]:
        """Draw a token for each row, and with `logprobs` set its `scored`.

        Args:
            logits: float32 [rows, n_vocab]; only read. Rows may be equal or share memory. Or the keys of candidates
                that suffice (reduced.py).
            rows: the sequences, in the order of the logits.
            places: indices of the rows that draw; None: all.

        Returns:
            token ids; None for a row whose logits are no distribution (NaN, or -inf everywhere), and for one that has
            an error: no token fits its constraint.
        """
        places = range(len(rows)) if places is None else places
        if is_reduced(logits):
            return reduced.draw(logits, rows, places)
        if all(rows[i].params.plain for i in places):
            return likeliest(logits, places)
        self._prepare(logits.shape[1])
        drawn = self._draw_rows(logits, rows, places, DRAW)
        if misfits := [i for i in places if _misfits(rows[i], drawn[i])]:
            chosen = [rows[i] for i in misfits]
            again = self._draw_rows(self._only_allowed(logits, misfits, chosen), chosen, range(len(chosen)), AGAIN)
            for at, i in enumerate(misfits):
                drawn[i] = again[at]
                if again[at] is None:
                    rows[i].error = no_token(rows[i])
        for i in places:
            if (token := drawn[i]) is not None:
                self._note(rows[i], logits[i], *token)
        return [None if (token := drawn[i]) is None else token[0] for i in places]

    def draw_ahead(self, lines: Logits, rows: Sequence[SampledRow]) -> list[list[int | None]] | None:
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
        self._prepare(len(logits))
        drawn = self._draw_alone(logits, row, None, uniform)
        return None if drawn is None else drawn[0]

    def _prepare(self, n_vocab: int) -> None:
        if self._scratch.n_vocab != n_vocab:
            self._scratch = Scratch(n_vocab)

    def _only_allowed(self, logits: Logits, places: Sequence[int], rows: Sequence[SampledRow]) -> Logits:
        """Return float32 [len(rows), n_vocab]: the logits at `places`, -inf where the constraints of `rows` forbid."""
        if self._masked.shape[0] < len(rows) or self._masked.shape[1] != logits.shape[1]:
            self._masked = np.empty((len(rows), logits.shape[1]), np.float32)
        masked = self._masked[: len(rows)]
        masked.fill(-np.inf)
        for line, place, row in zip(masked, places, rows, strict=True):
            if row.sampling.matcher is not None:
                np.copyto(line, logits[place], where=row.sampling.matcher.allowed())
        return masked

    def _draw_rows(
        self, logits: Logits, rows: Sequence[SampledRow], places: Iterable[int], draw: int
    ) -> dict[int, Drawn]:
        """Draw a token for each of the rows at `places`, by the random number `draw` of the step. Those with the same
        parameters go through the steps together."""
        groups: dict[int, list[int]] = {}
        for i in places:
            groups.setdefault(id(rows[i].params), []).append(i)
        drawn: dict[int, Drawn] = {}
        for group in groups.values():
            chain = rows[group[0]].params.chain
            patches = {i: Patch(logits[i], changes) for i in group if (changes := changes_of(rows[i]))}
            if chain.greedy:
                drawn |= self._likeliest(logits, group, patches)
                continue
            if fits(self._scratch, chain.top_k):
                drawn |= self._draw_by_top_k(logits, rows, group, patches, draw)
            for i in group:
                if i not in drawn:
                    drawn[i] = self._draw_alone(logits[i], rows[i], patches.get(i), _uniform(rows[i], draw))
        return drawn

    def _likeliest(self, logits: Logits, places: Sequence[int], patches: Mapping[int, Patch]) -> dict[int, Drawn]:
        """Take the token with the largest logit of each of the rows at `places`, after its changes."""
        tokens = likeliest(logits, places)
        drawn: dict[int, Drawn] = {
            i: None if token is None else (token, 1.0) for i, token in zip(places, tokens, strict=True)
        }
        for i, patch in patches.items():
            full = self._patched(logits[i], patch)
            drawn[i] = None if full is None else (int(full.values.argmax()), 1.0)
        return drawn

    def _draw_by_top_k(
        self, logits: Logits, rows: Sequence[SampledRow], places: Sequence[int], patches: Mapping[int, Patch], draw: int
    ) -> dict[int, Drawn]:
        """Draw for all rows together: cut to the top k, then do the other steps on these few. Leaves out rows with too
        many equal logits for that."""
        chain, scratch = rows[places[0]].params.chain, self._scratch
        maxima = block_maxima(logits, places, scratch)
        sane = np.isfinite(largest(logits, places, maxima, scratch))
        drawn: dict[int, Drawn] = {i: None for i, ok in zip(places, sane, strict=True) if not ok}
        if drawn:
            places, maxima = [i for i in places if i not in drawn], maxima[sane]
        if places:
            inside = {at: patches[i] for at, i in enumerate(places) if i in patches}
            patch_maxima(logits, places, maxima, inside, scratch)
            done, ids, values = top_tokens(logits, places, maxima, chain.top_k, inside, scratch)
            quick = [places[at] for at in done]
            few, of_few = Few(ids, values, np.full(len(ids), chain.top_k)), [rows[i] for i in quick]
            tokens = _finish(few, chain.steps[1:], of_few, [_uniform(row, draw) for row in of_few])
            drawn |= zip(quick, tokens, strict=True)
        return drawn

    def _draw_alone(self, logits: Logits, row: SampledRow, patch: Patch | None, uniform: float) -> Drawn:
        """Draw for one row, beginning with its whole vocabulary. `logits`: float32 [n_vocab]."""
        full = self._patched(logits, patch)
        if full is None:
            return None
        steps = row.params.chain.steps
        for number, step in enumerate(steps):
            step.full(full, row)
            if full.few is not None:
                return _finish(full.few, steps[number + 1 :], [row], [uniform])[0]
        return full.pick(uniform)

    def _patched(self, logits: Logits, patch: Patch | None) -> Full | None:
        """Return the row with its changes; None if it is no distribution before or after them."""
        full = Full(logits, self._scratch)
        if patch is not None and np.isfinite(full.top):
            full.writable()[patch.ids] = patch.values
        return full if np.isfinite(full.top) else None

    def _note(self, row: SampledRow, logits: Logits, token: int, probability: float) -> None:
        """Move the row's Mirostat and record its log-probabilities."""
        last = row.params.chain.steps[-1:]
        if last and isinstance(last[0], Mirostat):
            last[0].drawn(row, probability)
        if row.params.logprobs is not None:
            row.sampling.scored = score(logits, token, row.params.logprobs, self._scratch)


def likeliest(logits: Logits, places: Sequence[int]) -> list[int | None]:
    """Return the token with the largest logit of the rows at `places` of `logits`, float32 [rows, n_vocab]; None for
    one that is no distribution. One pass: argmax takes NaN as largest."""
    ids = (
        logits.argmax(axis=1)
        if len(places) == len(logits)
        else np.array([logits[i].argmax() for i in places], np.int64)
    )
    sane = np.isfinite(logits[places, ids])
    tokens: list[int | None] = ids.tolist()
    return tokens if sane.all() else [token if ok else None for token, ok in zip(tokens, sane, strict=True)]


def _misfits(row: SampledRow, drawn: Drawn) -> bool:
    return drawn is not None and row.sampling.matcher is not None and not row.sampling.matcher.allows(drawn[0])


def _uniform(row: SampledRow, draw: int) -> float:
    return row.sampling.uniforms.at(len(row.tokens), draw)


def _finish(few: Few, steps: Sequence[ChainStep], rows: Sequence[SampledRow], uniforms: Sequence[float]) -> list[Drawn]:
    """Do the `steps` that are left on rows with few candidates, and draw."""
    if not rows:
        return []
    for step in steps:
        step.few(few, rows)
    return few.pick(np.array(uniforms))
