"""Training batches: examples drawn on the fly, tokenised, sorted by length and padded in a few groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.tiny.chat import END, chat_prompt
from models.tiny.tasks import BROAD_WEIGHTS, FOCUSED_WEIGHTS, LATE_WEIGHTS, Example, examples

SYSTEM_MESSAGES = ("You are a helpful assistant.", "You do short text tasks.", "Answer briefly.")
SYSTEM_SHARE = 0.1
FOCUSED_FROM = 1000  # stories, labels and instructions are learnt by then; lists, extraction and sums are not
LATE_FROM = 1900  # all but the judging of answers, and extraction with worked answers


@dataclass(frozen=True)
class Batch:
    """Padded token rows. `ids`, `targets` int64 [rows, tokens]; `weights` float32, 0 where nothing is to be learnt."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    tokens: int  # without padding


def tokenised(tokenizer: Tokenizer, chosen: list[Example], rng: Random) -> list[tuple[list[int], int]]:
    """Each example's ids with the end mark, and where its completion begins."""
    systems = [rng.choice(SYSTEM_MESSAGES) if rng.random() < SYSTEM_SHARE else None for _ in chosen]
    prompts = tokenizer.encode_batch([chat_prompt(e.prompt, s) for e, s in zip(chosen, systems, strict=True)])
    answers = tokenizer.encode_batch([e.completion + END for e in chosen])
    return [(p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers, strict=True)]


def padded(rows: list[tuple[list[int], int]]) -> Batch:
    """Rows as one batch. A completion of n tokens weighs sqrt(n): long stories must not drown one-word labels."""
    width = max(len(ids) for ids, _ in rows) - 1
    ids, targets = (np.zeros((len(rows), width), np.int64) for _ in range(2))
    weights = np.zeros((len(rows), width), np.float32)
    for index, (row, start) in enumerate(rows):
        size = len(row) - 1
        ids[index, :size], targets[index, :size] = row[:-1], row[1:]
        weights[index, start - 1 : size] = (size - start + 1) ** -0.5
    return Batch(ids, targets, weights, sum(len(row) for row, _ in rows))


def grouped(rows: list[tuple[list[int], int]], groups: int) -> list[Batch]:
    """Rows sorted by length and cut where the padded groups come out about equally large."""
    rows = sorted(rows, key=lambda row: len(row[0]))
    share = sum(len(ids) for ids, _ in rows) / groups
    cuts, filled = [0], 0
    for index, (ids, _) in enumerate(rows):
        if filled >= share * len(cuts):
            cuts.append(index)
        filled += len(ids)
    cuts.append(len(rows))
    return [padded(rows[a:b]) for a, b in pairwise(cuts) if b > a]


def weights_at(step: int) -> tuple[int, ...]:
    """How often the families are drawn at a step."""
    if step < FOCUSED_FROM:
        return BROAD_WEIGHTS
    return FOCUSED_WEIGHTS if step < LATE_FROM else LATE_WEIGHTS


def training_steps(tokenizer: Tokenizer, seed: int, first: int, rows: int, groups: int) -> Iterator[list[Batch]]:
    """The batches of step `first`, `first + 1` ...; step k is the same whether the run was resumed or not."""
    step = first
    while True:
        drawn = list(islice(examples(seed * 1_000_003 + step, "train", weights_at(step)), rows))
        yield grouped(tokenised(tokenizer, drawn, Random(step)), groups)
        step += 1
