"""Training batches: examples drawn on the fly, tokenised, sorted by length and padded in a few groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.tiny.chat import END, chat_prompt
from models.tiny.tasks import BROAD_WEIGHTS, FOCUSED_WEIGHTS, LATE_WEIGHTS, Example, examples

SYSTEM_MESSAGES = ("You are a helpful assistant.", "You do short text tasks.", "Answer briefly.")
SYSTEM_SHARE = 0.1
FOCUSED_FROM = 1000  # stories, labels and instructions are learnt by then; lists, extraction and sums are not
LATE_FROM = 1900  # all but the judging of answers, and extraction with worked answers
ADAPTED_WEIGHTS = (6, 6, 2, 6, 1, 1, 5)  # of a model that has learnt them all and learns to make them another way


@dataclass(frozen=True)
class View:
    """Where tokens stand and what they see: `positions` int64 [rows, tokens]; `sees` bool [rows, tokens, tokens]."""

    positions: NDArray[np.int64]
    sees: NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """Padded token rows. `ids`, `targets` int64 [rows, tokens]; `weights` float32, 0 where nothing is to be learnt.
    Without a `view` tokens stand in order and see themselves and those before them."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    tokens: int  # without padding
    view: View | None = None


Coded: TypeAlias = tuple[list[int], int]  # the ids of an example with the end mark, and where its completion begins


def tokenised(tokenizer: Tokenizer, chosen: list[Example], rng: Random) -> list[Coded]:
    """Each example's ids with the end mark, and where its completion begins."""
    systems = [rng.choice(SYSTEM_MESSAGES) if rng.random() < SYSTEM_SHARE else None for _ in chosen]
    prompts = tokenizer.encode_batch([chat_prompt(e.prompt, s) for e, s in zip(chosen, systems, strict=True)])
    answers = tokenizer.encode_batch([e.completion + END for e in chosen])
    return [(p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers, strict=True)]


def padded(rows: Sequence[Coded]) -> Batch:
    """Rows as one batch. A completion of n tokens weighs sqrt(n): long stories must not drown one-word labels."""
    width = max(len(ids) for ids, _ in rows) - 1
    ids, targets = (np.zeros((len(rows), width), np.int64) for _ in range(2))
    weights = np.zeros((len(rows), width), np.float32)
    for index, (row, start) in enumerate(rows):
        size = len(row) - 1
        ids[index, :size], targets[index, :size] = row[:-1], row[1:]
        weights[index, start - 1 : size] = (size - start + 1) ** -0.5
    return Batch(ids, targets, weights, sum(len(row) for row, _ in rows))


def grouped(rows: list[Coded], groups: int) -> list[list[Coded]]:
    """Rows sorted by length and cut where the groups come out about equally large when they are padded."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    share = sum(len(ids) for ids, _ in rows) / groups
    cuts, filled = [0], 0
    for index, (ids, _) in enumerate(rows):
        if filled >= share * len(cuts):
            cuts.append(index)
        filled += len(ids)
    cuts.append(len(rows))
    return [rows[a:b] for a, b in pairwise(cuts) if b > a]


def weights_at(step: int) -> tuple[int, ...]:
    """How often the families are drawn at a step."""
    if step < FOCUSED_FROM:
        return BROAD_WEIGHTS
    return FOCUSED_WEIGHTS if step < LATE_FROM else LATE_WEIGHTS


def drawn_steps(
    tokenizer: Tokenizer, seed: int, first: int, rows: int, groups: int, weights: Callable[[int], tuple[int, ...]]
) -> Iterator[tuple[int, list[list[Coded]]]]:
    """The groups of step `first`, `first + 1` ...; step k is the same whether the run was resumed or not.

    Args:
        weights: how often the families are drawn at a step.
    """
    step = first
    while True:
        drawn = list(islice(examples(seed * 1_000_003 + step, "train", weights(step)), rows))
        yield step, grouped(tokenised(tokenizer, drawn, Random(step)), groups)
        step += 1
