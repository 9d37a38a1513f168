"""Draws from the likeliest words of each row, where a device has left out the others (`runtime.device_sampling`).

A row of what is left is the `to_keys` of these words, falling: likeliest first, equal ones by id. A device says which
words are the likeliest, in no order, and which of several with the last logit is its choice. So they say what is drawn
only if the last word that a row can draw has a larger logit than the last one of all; else the call is made again, with
all logits (`Reducing` in operators/engine/strategies/reducing.py). What is drawn is then, to the bit, what Sampler
draws from all logits: both cut the same words to the same `Few`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from operators.engine.backend.interface import Logits
from operators.engine.backend.keys import Keys, from_keys, is_reduced, to_keys
from operators.engine.sampling.candidates import Few, Flags
from operators.engine.sampling.logit_edits import Change, changes_of, find
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.row_state import DRAW, SampledRow
from operators.settings.sampling import SamplingSettings


def suffice(keys: Keys, rows: Sequence[SampledRow]) -> bool:
    """Return whether the candidates say what each of `rows` draws; none of them `needs_all` logits."""
    plain = all(row.params.plain for row in rows)
    least = keys[:, 0] if plain else np.array([own[-1] for own in _cut(keys, rows)], np.uint64)
    last = from_keys(keys[:, -1])[1]
    return bool(((from_keys(least)[1] > last) | np.isneginf(last) | ~_sane(keys)).all())


def serves(logits: Logits, row: SampledRow) -> bool:
    """Return whether `row` can draw from `logits`, float32 [n_vocab] or the keys of candidates, of an equal prompt."""
    return not is_reduced(logits) or (row.params.needs_all is None and suffice(logits[None], [row]))


def draw(keys: Keys, rows: Sequence[SampledRow], places: Sequence[int]) -> list[int | None]:
    """Draw a token for each of the rows at `places`, as Sampler.draw does. `keys`: those of all rows, which suffice."""
    picked = [rows[i] for i in places]
    own = keys[list(places)]
    if all(row.params.plain for row in picked):
        tokens: list[int | None] = from_keys(own[:, 0])[0].tolist()
    else:
        tokens = [None] * len(picked)
        chosen = _cut(own, picked)
        groups: dict[int, list[int]] = {}
        for at, row in enumerate(picked):
            groups.setdefault(id(row.params), []).append(at)
        for group in groups.values():
            drawn = _draw_alike(np.stack([chosen[at] for at in group]), [picked[at] for at in group])
            for at, token in zip(group, drawn, strict=True):
                tokens[at] = token
    return [token if ok else None for token, ok in zip(tokens, _sane(own).tolist(), strict=True)]


def _draw_alike(keys: Keys, rows: Sequence[SampledRow]) -> list[int | None]:
    """Draw a token for each of `rows`, which share their parameters, from the words that it can draw."""
    ids, logits = from_keys(keys)
    chain = rows[0].params.chain
    possible = np.isfinite(logits[:, 0]).tolist()
    if chain.greedy:
        return [token if ok else None for token, ok in zip(ids[:, 0].tolist(), possible, strict=True)]
    drawn: list[int | None] = [None] * len(rows)
    if some := [at for at, ok in enumerate(possible) if ok]:
        few, of_few = Few(ids[some], logits[some], np.full(len(some), ids.shape[1])), [rows[at] for at in some]
        for step in chain.steps[1:]:
            step.few(few, of_few)
        uniforms = np.array([row.sampling.uniforms.at(len(row.tokens), DRAW) for row in of_few])
        for at, picked in zip(some, few.pick(uniforms), strict=True):
            drawn[at] = None if picked is None else picked[0]
    return drawn


def _cut(keys: Keys, rows: Sequence[SampledRow]) -> list[Keys]:
    """Return for each row the keys of the words that it can draw: its top k after its changes."""
    chosen = []
    for own, row in zip(keys, rows, strict=True):
        edited = _edited(own, changes) if (changes := changes_of(row)) else own
        chosen.append(edited[: row.params.chain.top_k or 1])
    return chosen


def _edited(keys: Keys, changes: Sequence[Change]) -> Keys:
    """Return the `keys` of a row after its changes, uint64 [n], falling."""
    ids, values = from_keys(keys)
    for change in changes:
        if len(change.ids):
            at, hit = find(change.ids, ids)
            values[hit] = change.apply(values[hit], at[hit])
    edited = to_keys(values, ids)
    edited.sort()
    return edited[::-1]


def _sane(keys: Keys) -> Flags:
    """Return bool [rows]: which are a distribution."""
    return np.isfinite(from_keys(keys[:, 0])[1])


def why_all(settings: SamplingSettings) -> str | None:
    """Return why rows with `settings` need all logits, as `SamplingParams.needs_all`; None: they do not, or it depends
    on their own columns."""
    if settings.per_row:
        return None
    if (kind := settings.structured.kind) is not None:
        return f"sampling.structured.{kind} may allow none of them"
    given: dict[str, Any] = {each.name: getattr(settings, each.name, None) for each in fields(SamplingParams)}
    given = {name: value for name, value in given.items() if value is not None or name == "logprobs"}
    biases = tuple(enumerate((settings.logit_bias or {}).values()))
    return SamplingParams(**(given | {"order": tuple(settings.order), "logit_bias": biases, "bad_words": ()})).needs_all
