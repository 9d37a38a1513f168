"""What a Generate takes: some of its rows are generated on its own engine, and the others are reckoned from them."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from operators.engine.backend.interface import Decoder
from operators.engine.loop.engine import Engine
from operators.engine.loop.worker import Worker
from operators.engine.sequence import Sequence
from operators.estimate.lengths import REPLICATES, Floats, Lengths
from operators.estimate.noise import Noise
from operators.estimate.pace import StepCost, fitted, step_times
from operators.estimate.schedule import computed_share, steps_until_done
from operators.estimate.trial import Seen, Trial, ended_by_itself
from operators.settings.runtime import EngineSettings
from pipeline.api.forecast import NOTHING, Range, is_unbounded, share

MOST_REPLAYED = 4000
_FEW_STEPS = 3
_DISTURBED_S = Range(0.0, 0.0001, 0.001)
"""What the other threads of a run take from the one that decodes, a call: it shows where calls take a few ms."""
_KV_TOKENS = 32
_TRIAL_SHARE = 0.6
"""Of the time, for rows that are generated; the rest is for steps at the depth of the job."""


@dataclass(frozen=True)
class Device:
    """What rows are generated on: a job's own engine, whose threads do not run."""

    engine: Engine
    worker: Worker
    settings: EngineSettings

    @property
    def decoder(self) -> Decoder:
        """Of the first context."""
        return self.worker.decoder

    @property
    def one_by_one(self) -> bool:
        """Whether a row brings one token to each step."""
        return not self.decoder.shape.block


@dataclass(frozen=True)
class Reckoned:
    """What generating rows takes.

    Args:
        tokens_in, tokens_out: that are computed.
        seconds: of the device; None where no step could be measured.
        steps: decode steps, about.
        begun: the rows that were begun to find out, as far as they came.
        kv_bytes: of the KV cache of all contexts.
        notes: how sure that is.
    """

    tokens_in: Range
    tokens_out: Range
    seconds: Range | None
    steps: float
    begun: Seq[Sequence]
    kv_bytes: float
    notes: Seq[str]


def reckon(
    device: Device, rows: Seq[Sequence], count: Range, seconds: float, *, whole: bool, fixed_lengths: bool
) -> Reckoned:
    """What `count` rows like `rows` take.

    Args:
        rows: some or all of them, none begun; in an order in which any first part stands for all.
        seconds: how long this may compute, about.
        whole: whether they are all.
        fixed_lengths: whether each row gets as many tokens as it may have.
    """
    if not rows:
        return Reckoned(NOTHING, NOTHING, NOTHING, 0.0, (), 0.0, ())
    if is_unbounded(count):
        least = Range(count.low, count.likely, count.likely)
        found = reckon(device, rows, least, seconds, whole=whole, fixed_lengths=fixed_lengths)
        return replace(
            found,
            tokens_in=_open_ended(found.tokens_in),
            tokens_out=_open_ended(found.tokens_out),
            seconds=None if found.seconds is None else _open_ended(found.seconds),
        )
    random = np.random.default_rng(0)
    noise = Noise()
    until = device.engine.now() + seconds
    seen = Trial(device.engine, device.worker).run(rows, _TRIAL_SHARE * seconds)
    lengths = _lengths(rows, seen, fixed_lengths=fixed_lengths)
    prompts = np.array([len(row.prompt) for row in rows], np.float64)
    cost = _step_cost(device, seen, float(prompts.mean()) + lengths.likely / 2, count, until)
    kv_bytes = _kv_bytes(device) if device.engine.now() < until else 0.0
    shared = _computed_share(device, rows, seen)

    steps_a_token = 1.0 if device.one_by_one and not seen.constrained else seen.row_steps / max(seen.tokens, 1)
    each = np.maximum(np.round(lengths.each * steps_a_token).astype(np.int64) - (1 if lengths.exact else 0), 0)
    steps = _steps(each, count.likely, device)
    decode_s = 0.0 if cost is None else _decode_s(cost, each, prompts, steps, count.likely)
    read = prompts.mean() * shared * count.likely
    prompt_s = read * seen.prompt_token_s

    # Nine of ten of what may be lie between the 5th and the 95th of a hundred.
    factors = noise.factors(random)
    counts = random.triangular(count.low, count.likely, count.high, REPLICATES) if not count.is_exact else count.likely
    many = counts / max(count.likely, 1e-9)
    doubt = 0.0 if whole else float(prompts.std() / np.sqrt(len(prompts)))
    longer = np.maximum(random.normal(1.0, doubt / max(prompts.mean(), 1e-9), REPLICATES), 0.0)
    outs = lengths.replicates(random, whole=whole, count=count.likely)
    slower = (prompt_s * longer + decode_s * outs / max(lengths.likely, 1e-9)) * many * factors
    contexts = device.settings.contexts
    taking = _range(prompt_s + decode_s, slower) + _DISTURBED_S.times(steps)
    return Reckoned(
        tokens_in=_range(read, read * longer * many),
        tokens_out=_range(lengths.likely * count.likely, outs * counts),
        seconds=None if cost is None else taking.times(1 / contexts),
        steps=steps,
        begun=seen.rows,
        kv_bytes=kv_bytes,
        notes=[*_notes(seen, lengths, shared, device), *noise.notes(), *([] if cost else [_TOO_SLOW])],
    )


_TOO_SLOW = "no decode step could be made in the time that a dry run takes, so how long the run takes is not known"


@dataclass(frozen=True)
class _Known:
    """What is known of the lengths of rows. `each`: tokens of some rows, as they come. `exact`: so they will be."""

    each: Floats
    likely: float
    exact: bool
    model: Lengths | None = None
    done: Seq[int] = ()
    """Of rows that were completed to find out."""

    def replicates(self, random: np.random.Generator, *, whole: bool, count: float) -> Floats:
        """What the mean of `count` rows may be as well."""
        if self.exact and whole:
            return np.full(REPLICATES, self.likely)
        means = np.full(REPLICATES, self.likely) if self.model is None else self.model.replicates(random)
        # Rows that were completed to find out will be as long again; it is the others that may differ.
        done = min(share(len(self.done), count), 1.0) if whole and self.done else 0.0
        others = count * (1 - done) if self.model else len(self.each)
        means = means + random.normal(0.0, float(self.each.std()) / np.sqrt(max(others, 1)), REPLICATES)
        return done * float(np.mean(self.done or (0,))) + (1 - done) * np.maximum(means, 0.0)


def _lengths(rows: Seq[Sequence], seen: Seen, *, fixed_lengths: bool) -> _Known:
    most = np.array([row.max_tokens for row in rows], np.float64)
    if fixed_lengths:
        return _Known(most, float(most.mean()), exact=True)
    begun = [] if seen.cut_prompts else seen.rows
    done = [row for row in begun if row.finish_reason is not None]
    if len(done) == len(rows):
        each = np.array([len(row.tokens) for row in done], np.float64)
        return _Known(each, float(each.mean()), exact=True)
    model = Lengths([len(row.tokens) for row in begun], [ended_by_itself(row) for row in begun], int(most.max()))
    drawn = np.minimum(model.draw(MOST_REPLAYED, np.random.default_rng(0)), np.resize(most, MOST_REPLAYED))
    likely = min(model.mean(), float(most.mean())) if begun else float(drawn.mean())
    return _Known(drawn.astype(np.float64), likely, exact=False, model=model, done=[len(row.tokens) for row in done])


def _step_cost(device: Device, seen: Seen, depth: float, count: Range, until: float) -> StepCost | None:
    """From steps at the job's depth, and set right by those of the trial, which had rows to sample too."""
    rows = int(min(device.decoder.shape.slots, max(count.likely, 1)))
    left = until - device.engine.now()
    times = []
    # What is measured now takes the place of what rows have left in the slots.
    device.worker.scheduler.clear()
    if device.one_by_one and device.decoder.partial and left > 0:
        step_s = max((step.seconds / step.rows for step in seen.steps), default=0.0) * rows
        times = step_times(device.decoder, rows, int(depth), seen.prompt_token_s, step_s, left, device.engine.now)
    if not times:
        return fitted(seen.steps) if seen.steps else None
    cost = fitted(times)
    usual = [step for step in seen.steps if step.rows > rows / 2]
    if len(usual) < _FEW_STEPS:
        return cost
    expected = sum(cost.total(1, step.rows, step.rows * step.depth) for step in usual)
    return cost.times(float(np.clip(sum(step.seconds for step in usual) / expected, 0.5, 2.0)) if expected else 1.0)


def _steps(each: Floats, count: float, device: Device) -> float:
    """Decode steps until `count` rows of such lengths are done."""
    slots = device.decoder.shape.slots
    replayed = np.resize(each, int(min(round(count), MOST_REPLAYED)))
    if device.settings.optimise.longest_first:
        window = device.settings.lookahead_rows
        replayed = np.concatenate([np.sort(replayed[i : i + window])[::-1] for i in range(0, len(replayed), window)])
    done = steps_until_done(replayed.astype(int).tolist(), slots)
    return done + max(count - len(replayed), 0.0) * float(each.mean()) / slots


def _decode_s(cost: StepCost, each: Floats, prompts: Floats, steps: float, count: float) -> float:
    size = max(len(each), len(prompts))
    lengths, begin = np.resize(each, size).astype(np.float64), np.resize(prompts, size)
    cells = float((begin * lengths + lengths**2 / 2).mean())
    return cost.total(steps, float(lengths.mean()) * count, cells * count)


def _computed_share(device: Device, rows: Seq[Sequence], seen: Seen) -> float:
    if not device.decoder.partial:
        return 1.0
    if device.one_by_one and device.decoder.shape.per_sequence:
        return computed_share(rows, device.decoder.shape, device.settings)
    begun = sum(len(row.prompt) for row in seen.rows)
    return min(seen.prompt_tokens / begun, 1.0) if begun else 1.0


def _kv_bytes(device: Device) -> float:
    """Of all slots, from what some tokens of one take."""
    decoder = device.decoder
    decoder.clear()
    if not decoder.partial or not device.one_by_one:
        return 0.0
    decoder.batch.clear()
    decoder.batch.add_spans([np.arange(_KV_TOKENS, dtype=np.int32)], [0], [0], [2])
    decoder.decode()
    whole = len(decoder.save(0))
    decoder.truncate(0, _KV_TOKENS // 2)
    half = len(decoder.save(0))
    decoder.clear()
    return (whole - half) / (_KV_TOKENS // 2) * decoder.shape.cells * device.settings.contexts


def _open_ended(found: Range) -> Range:
    return replace(found, high=math.inf)


def _range(likely: float, replicates: Floats | float) -> Range:
    low, high = np.quantile(replicates, [0.05, 0.95])
    likely = float(likely)
    return Range(min(float(low), likely), likely, max(float(high), likely))


def _notes(seen: Seen, lengths: _Known, shared: float, device: Device) -> list[str]:
    notes = []
    if shared < 0.99:
        notes.append(f"{1 - shared:.0%} of the prompt tokens are computed once for several rows")
    if seen.cut_prompts:
        notes.append(
            "the model is too slow for a dry run to read whole prompts: it goes by the beginning of one, alone in its"
            " steps; many together may be faster"
        )
    if lengths.model is not None and not seen.cut_prompts:
        ends = sum(map(ended_by_itself, seen.rows))
        notes.append(
            f"how long completions become is not known: {ends} of {len(seen.rows)} that were begun ended by themselves,"
            f" within {max((len(row.tokens) for row in seen.rows), default=0)} tokens"
        )
    if device.settings.contexts > 1:
        notes.append("one context was measured; beside others it may be slower")
    return notes
