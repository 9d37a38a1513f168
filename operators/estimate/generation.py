"""Estimate the cost of a Generate node: generate some of its rows on its engine, and extrapolate to all.

A completion that the time cut short becomes at least as long as it is, and at most max_tokens long: so far apart are
the ends of the range. What is likely is that completions end at a constant rate.

Time for prompts: their tokens without shared prefixes, times the measured seconds per prompt token, and cells of images
times the seconds in which one was encoded. Time for completions: their tokens at the measured tokens per second of full
slots. Time for the tail, in which slots are empty while the longest rows finish: between none and as many full steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from itertools import pairwise

import numpy as np

from operators.engine.loop.engine import Engine
from operators.engine.scheduler.radix_tree import BLOCK
from operators.engine.sequence import Sequence
from operators.estimate.trial import Floats, Trial, depth_of, mean_of
from operators.settings.runtime import EngineSettings
from pipeline.api.forecast import Forecast, Range, share

_MOST_DRAWN = 4000
_BESIDE_S = 0.0003
"""Seconds that other threads of a run take from the decoding one, per step or row. They matter where calls take a few
ms."""
_TAIL = Range(0.0, 0.5, 1.0)
"""Share of a full step that a step with empty slots takes for these."""


def generated(
    engine: Engine,
    settings: EngineSettings,
    rows: Seq[Sequence],
    count: Range,
    seconds: float,
    *,
    whole: bool,
    fixed_lengths: bool,
) -> tuple[Forecast, Trial]:
    """Estimate the cost of `count` rows like `rows`; return it, and the trial with those that were begun and the tokens
    they got. Rows like those that failed cost nothing.

    Args:
        engine: its thread is not started.
        rows: some or (`whole`) all of them, none begun; in an order in which any first part is representative.
        seconds: about the time that this may take.
        fixed_lengths: whether each row gets all of its max_tokens.
    """
    trial = Trial(engine)
    if not rows:
        return Forecast(count), trial
    shape = engine.loop.decoder.shape
    trial.run(rows, seconds)
    count = count.times(share(len(trial.rows), len(trial.rows) + len(trial.failed)))
    some = rows if fixed_lengths or not trial.early else trial.early
    mean, each = completion_lengths(some, whole=whole and len(some) == len(rows), fixed=fixed_lengths)
    full = max(int(min(shape.slots, count.likely)), 1)
    token_s = trial.token_s(full, depth_of(some, each))

    computed = computed_share(engine, settings, rows)
    tokens_in = mean_of([len(row.prompt) for row in rows], whole=whole).times(computed).times(count)
    cells_in = mean_of([sum(image.cells for image in row.images) for row in rows], whole=whole)
    tokens_out = mean.times(count)
    # The first token of a row comes with its prompt, unless rows are made block by block.
    decoded = tokens_out.times(share(max(mean.likely - (0 if shape.block else 1), 0.0), mean.likely))
    lengths = np.resize(each, int(min(round(count.likely), _MOST_DRAWN)))
    idle = last_ends(lengths.tolist(), full) * full - float(lengths.sum())
    encoding = cells_in.times(computed * trial.cell_s).times(count)
    taking = encoding + tokens_in.times(trial.prompt_token_s)
    taking += Range.exact(_BESIDE_S * (decoded.likely / full + count.likely))
    taking += (decoded + _TAIL.times(idle)).times(token_s or 0.0)
    known = token_s is not None or not decoded.likely
    forecast = Forecast(
        count,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        seconds=taking if known else None,
        encode_s=encoding.likely,
        notes=_notes(trial, computed, known=known, judged=not fixed_lengths and not mean.is_exact),
    )
    return forecast, trial


def computed_share(engine: Engine, settings: EngineSettings, rows: Seq[Sequence]) -> float:
    """Return the share of the prompt tokens of `rows` that must be computed in the best case of the prefix cache: each
    prompt, in token order, shares a prefix with the one before it."""
    loop, optimise = engine.loop, settings.optimise
    if not loop.decoder.partial and not settings.snapshot_mb:
        return 1.0
    shape = loop.decoder.shape
    chunking, shared = loop.strategy.chunking, 0
    # Prompts computed by different kernels cannot share a prefix; where there is one kernel, that is nobody.
    ordered = sorted(rows, key=lambda row: (len(row.prompt) >= shape.kernel_tokens, row.prompt.tobytes()))
    for last, row in pairwise(ordered):
        if optimise.sample_sharing and not shape.block and np.array_equal(last.prompt, row.prompt):
            shared += len(row.prompt)
        elif optimise.prefix_sharing and (count := chunking.shared(row.prompt, last.prompt)) >= BLOCK:
            shared += count
    return 1 - shared / sum(len(row.prompt) for row in rows)


def last_ends(lengths: Seq[float], slots: int) -> float:
    """Return the step in which the last row ends, for rows of these `lengths` that fill `slots` slots in order."""
    ends = [0.0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def completion_lengths(some: Seq[Sequence], *, whole: bool, fixed: bool) -> tuple[Range, Floats]:
    """Return the mean length of all completions, and what is likely for each of `some`. Those of one prompt are
    alike."""
    most = np.array([row.max_tokens for row in some], np.float64)
    have = most if fixed else np.array([len(row.tokens) for row in some], np.float64)
    ended = np.array([fixed or row.finish_reason is not None for row in some])
    left = float(have.sum()) / max(float(np.count_nonzero(ended)), 0.5) or float(most.mean())  # tokens up to an end
    each = np.where(ended, have, have + left * (1 - np.exp((have - most) / left)))
    prompts = [row.prompt.tobytes() for row in some]
    low = mean_of(have, whole=whole, alike=prompts).low
    return Range(low, float(each.mean()), mean_of(np.where(ended, have, most), whole=whole, alike=prompts).high), each


def _notes(trial: Trial, computed: float, *, known: bool, judged: bool) -> list[str]:
    notes = []
    if computed < 0.99:
        notes.append(f"{1 - computed:.0%} of the prompt tokens are computed once for several rows")
    if not known:
        notes.append("no row got a token in the time that a dry run takes, so how long the run takes is not known")
    elif not trial.steps:
        notes.append("no row got a second token in the time that a dry run takes: the range is a wide one")
    if judged and trial.early:
        ended = sum(row.finish_reason is not None for row in trial.early)
        longest = max(len(row.tokens) for row in trial.early)
        notes.append(
            f"how long completions become is not known: {ended} of {len(trial.early)} that were watched ended, within"
            f" {longest} tokens"
        )
    return notes
