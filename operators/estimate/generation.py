"""Estimate the cost of a Generate node: generate some of its rows on its engine, and extrapolate to all.

Time for prompts: their tokens without shared prefixes, times the measured seconds per prompt token. Time for
completions: their tokens at the measured tokens per second of full slots. Time for the tail, in which slots are empty
while the longest rows finish: between none and as many full steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from operators.engine.scheduler.radix_tree import BLOCK
from operators.engine.sequence import Sequence
from operators.estimate.ranges import Ints, draw, load_notes, mean_length, mean_of, of_run, survival, total
from operators.estimate.trial import Device, Trial
from operators.settings.runtime import KERNEL_TOKENS
from operators.tuning.calibration import StepTimer
from operators.tuning.machine_load import OtherWork
from pipeline.api.forecast import Forecast, Range, share

_MOST_DRAWN = 4000
_TRIAL_SHARE = 0.6
"""Share of the time for generating rows; the rest is for a step at the job's depth."""
_READ_SHARE = 0.4
"""Share of the rest for the prompt before that step."""
_BESIDE_S = Range(0.0, 0.0003, 0.0006)
"""Seconds that other threads of a run take from the decoding one, per step or row. They matter where calls take a few
ms."""
_TOO_SLOW = "no decode step could be made in the time that a dry run takes, so how long the run takes is not known"


@dataclass(frozen=True)
class Generated(Forecast):
    """The cost of generating rows, in about `steps` decode steps. `begun`: the rows of the trial, with the tokens they
    got."""

    steps: float = 0.0
    begun: Seq[Sequence] = ()


class _Lengths(NamedTuple):
    """Lengths of completions. `mean`: of all; `each`: a sample; `judged`: estimated from the trial."""

    mean: Range
    each: Ints
    judged: bool = False


def generated(
    device: Device, rows: Seq[Sequence], count: Range, seconds: float, *, whole: bool, fixed_lengths: bool
) -> Generated:
    """Estimate the cost of `count` rows like `rows`.

    Args:
        rows: some or (`whole`) all of them, none begun; in an order in which any first part is representative.
        seconds: about the time that this may take.
        fixed_lengths: whether each row gets all of its max_tokens.
    """
    if not rows:
        return Generated(count)
    work, until = OtherWork(), device.engine.now() + seconds
    trial = Trial(device)
    trial.run(rows, _TRIAL_SHARE * seconds)
    lengths = _lengths(rows, trial, count, whole=whole, fixed=fixed_lengths)
    prompts = _array(len(row.prompt) for row in rows)
    full = max(int(min(device.decoder.shape.slots, count.likely)), 1)
    token_s = _token_s(device, trial, full, _depth(prompts, lengths.each), until)
    others = work.share()

    computed = computed_share(device, rows)
    tokens_in = total(mean_of(prompts, whole=whole).times(computed), count)
    tokens_out = total(lengths.mean, count)
    # The first token of a row comes with its prompt, unless rows are made block by block.
    first = 0 if device.decoder.shape.block else 1
    decoded = tokens_out.times(share(max(lengths.mean.likely - first, 0.0), lengths.mean.likely))
    idle = last_ends(lengths.each.tolist(), full) * full - float(lengths.each.sum())
    steps = decoded.likely / full
    taking = tokens_in.times(trial.prompt_token_s) + _BESIDE_S.times(steps + count.likely)
    taking += (decoded + Range(0.0, 0.5, 1.0).times(idle)).times(token_s or 0.0)
    known = token_s is not None or not decoded.likely
    return Generated(
        count,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        seconds=of_run(taking, others) if known else None,
        steps=steps,
        begun=trial.rows,
        notes=[*_notes(device, trial, lengths, computed), *load_notes(others), *([] if known else [_TOO_SLOW])],
    )


def computed_share(device: Device, rows: Seq[Sequence]) -> float:
    """Return the share of the prompt tokens of `rows` that must be computed in the best case of the prefix cache: each
    prompt, in token order, shares a prefix with the one before it."""
    if not device.decoder.partial and not device.settings.snapshot_mb:
        return 1.0
    optimise, shape = device.settings.optimise, device.decoder.shape
    chunking, shared = device.worker.strategy.chunking(shape), 0
    # Prompts computed by different kernels cannot share a prefix.
    ordered = sorted(rows, key=lambda row: (len(row.prompt) >= KERNEL_TOKENS, row.prompt.tobytes()))
    for before, row in pairwise(ordered):
        if optimise.sample_sharing and not shape.block and np.array_equal(before.prompt, row.prompt):
            shared += len(row.prompt)
        elif optimise.prefix_sharing and (count := chunking.shared(row, before.prompt)) >= BLOCK:
            shared += count
    return 1 - shared / sum(len(row.prompt) for row in rows)


def last_ends(lengths: Seq[int], slots: int) -> int:
    """Return the step in which the last row ends, for rows of these `lengths` that fill `slots` slots in order."""
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def _lengths(rows: Seq[Sequence], trial: Trial, count: Range, *, whole: bool, fixed: bool) -> _Lengths:
    most = _array(row.max_tokens for row in rows)
    longest, number = int(most.max()), int(min(round(count.likely), _MOST_DRAWN))
    if fixed:
        return _Lengths(mean_of(most, whole=whole), np.sort(np.resize(most, number))[::-1])
    if not trial.rows:
        return _Lengths(Range(1.0, max(longest / 2, 1.0), longest), np.full(number, max(longest // 2, 1)))
    tokens = _array(len(row.tokens) for row in trial.rows)
    ended = np.array([row.finish_reason is not None for row in trial.rows])
    if whole and len(tokens) == len(rows) and ended.all():
        return _Lengths(Range.exact(float(tokens.mean())), tokens)
    mean = mean_length(tokens, ended, [row.prompt.tobytes() for row in trial.rows], longest)
    return _Lengths(mean, draw(survival(tokens, ended, longest), number), judged=True)


def _depth(prompts: Ints, lengths: Ints) -> float:
    """Return the tokens before a decode step, averaged over the tokens of completions."""
    behind = np.resize(prompts, len(lengths)) + lengths / 2
    return float((lengths * behind).sum() / max(lengths.sum(), 1))


def _token_s(device: Device, trial: Trial, full: int, depth: float, until: float) -> float | None:
    """Return the seconds per token in steps of `full` rows, `depth` tokens deep; None if rows are made in blocks and
    none was.

    If all rows of a trial ended, its steps are representative. Else such a step is timed, and corrected by those of the
    trial, which include sampling. If no time is left, the trial's steps or those of a lone row are used.
    """
    decoder, now, steps = device.decoder, device.engine.now, trial.full_steps
    tokens, seconds = sum(step.tokens for step in steps), sum(step.seconds for step in steps)
    measured = seconds / tokens if tokens else None
    if decoder.shape.block or (measured is not None and trial.complete):
        return measured
    affordable = _READ_SHARE * (until - now()) / max(trial.prompt_token_s, 1e-9)
    if affordable < 1:
        return StepTimer(decoder, 2, now).step_s(1) if measured is None else measured
    room = min(decoder.shape.max_sequence_tokens, decoder.shape.cells // full) - 1
    deep = max(int(min(depth, affordable, room)), 1)
    token_s = StepTimer(decoder, deep, now).step_s(full) / full
    if measured is not None:
        rows = round(sum(step.rows for step in steps) / len(steps))
        seen = _depth(_array(len(row.prompt) for row in trial.rows), _array(len(row.tokens) for row in trial.rows))
        token_s *= measured / (StepTimer(decoder, min(int(seen), deep), now).step_s(rows) / rows)
    decoder.clear()
    return token_s


def _array(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _notes(device: Device, trial: Trial, lengths: _Lengths, computed: float) -> list[str]:
    notes = []
    if computed < 0.99:
        notes.append(f"{1 - computed:.0%} of the prompt tokens are computed once for several rows")
    if not trial.rows:
        notes.append(
            "the model is too slow for a dry run to read a whole prompt: it goes by the beginning of one and by a step"
            " of few rows; many together may be faster"
        )
    if lengths.judged:
        ended = sum(row.finish_reason is not None for row in trial.rows)
        longest = max(len(row.tokens) for row in trial.rows)
        notes.append(
            f"how long completions become is not known: {ended} of {len(trial.rows)} that were begun ended, within"
            f" {longest} tokens"
        )
    return notes
