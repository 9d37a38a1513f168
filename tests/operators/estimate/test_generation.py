"""What generating rows takes, on a decoder whose calls take what a formula says: the estimate is the outcome; and how
long completions become, judged by some that were cut off."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import pytest

from operators.engine.backend.fake import END_ID, FakeDecoder
from operators.engine.backend.images import Encoded, ImageSpan
from operators.engine.backend.interface import Logits
from operators.engine.backend.shape import DecoderShape
from operators.engine.images.cells import cell_ids
from operators.engine.loop.engine import Engine
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import FinishReason, Sequence
from operators.estimate.generation import completion_lengths, computed_share, generated, last_ends
from operators.estimate.trial import Trial, mean_of
from pipeline.api.forecast import Forecast, Range
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import prompts, settings_for, shape, worker_on
from tests.sets import often_cases

ENDLESS = SamplingParams()
ENDING = SamplingParams(temperature=1.0, top_k=40, stop_ids=frozenset({END_ID}))


class Timed(FakeDecoder):
    """A call takes `call_s`, and each token `token_s` and `cell_s` for each token before it. `now`: its clock."""

    def __init__(self, sizes: DecoderShape, call_s: float = 0.02, token_s: float = 0.003, cell_s: float = 2e-5) -> None:
        super().__init__(sizes)
        self.costs, self.now, self.longest = (call_s, token_s, cell_s), 0.0, 0.0

    def decode(self) -> Logits:
        n = self.batch.n_tokens
        call_s, token_s, cell_s = self.costs
        seconds = call_s + token_s * n + cell_s * float(self.batch.pos[:n].sum())
        self.now += seconds
        self.longest = max(self.longest, seconds)
        return super().decode()


def engine_on(decoder: Timed) -> Engine:
    settings = settings_for(decoder.shape)
    thread = EngineThread(lambda: decoder.now)
    return Engine(worker_on(decoder, settings, clock=thread.clock), thread)


def rows(texts: Seq[np.ndarray], params: SamplingParams = ENDLESS, max_tokens: int = 40) -> list[Sequence]:
    return [Sequence(i, text, params, seed=1000 + i, max_tokens=max_tokens) for i, text in enumerate(texts)]


def outcome(decoder: Timed, given: list[Sequence]) -> tuple[float, int]:
    """Seconds and completion tokens of all rows."""
    complete(engine_on(decoder), given)
    return decoder.now, sum(len(row.tokens) for row in given)


def complete(engine: Engine, given: list[Sequence]) -> None:
    client = engine.connect(StageMeter("node"), 1, len(given), lambda: None, steps=False)
    client.submit(given)
    client.end()
    while engine.loop.scheduler.runnable:
        engine.loop.step()


def estimated(
    decoder: Timed, given: list[Sequence], count: int | Range | None = None, *, fixed: bool = True
) -> Forecast:
    number = count if isinstance(count, Range) else Range.exact(len(given) if count is None else count)
    settings = settings_for(decoder.shape)
    return generated(engine_on(decoder), settings, given, number, 30.0, whole=count is None, fixed_lengths=fixed)[0]


@pytest.mark.parametrize("count", [3, 8, 70])
def test_with_known_lengths_the_estimate_is_the_outcome(count):
    texts = prompts(count)
    found = estimated(Timed(shape(8)), rows(texts))
    seconds, tokens = outcome(Timed(shape(8)), rows(texts))
    assert found.tokens_out == Range.exact(tokens)
    assert found.tokens_in == Range.exact(sum(map(len, texts)))
    assert found.seconds is not None
    assert found.seconds.likely == pytest.approx(seconds, rel=0.08)


def test_some_rows_stand_for_many():
    texts = prompts(400)
    found = estimated(Timed(shape(8)), rows(texts[:60]), count=400)
    seconds, tokens = outcome(Timed(shape(8)), rows(texts))
    assert found.tokens_out == Range.exact(tokens)
    assert found.tokens_in.low < sum(map(len, texts)) < found.tokens_in.high
    assert found.seconds is not None
    assert found.seconds.low < seconds < found.seconds.high


def test_time_in_which_images_are_encoded_counts_by_their_cells():
    """Prompts of images and of texts: the one cost is no part of the other, nor of the steps."""

    def with_images(decoder: Timed) -> list[Sequence]:
        def encode() -> Encoded:
            decoder.now += 2.0
            return Encoded(np.ones((20, 2), np.float32), None, 20)

        made = rows([np.concatenate([cell_ids(bytes([i]), 0, 20), text]) for i, text in enumerate(prompts(30))])
        for row in made[::2]:
            row.images = (ImageSpan(0, 20, encode),)
        for row in made[1::2]:
            row.prompt = row.prompt[20:]
        return made

    decoder, real = Timed(shape(8)), Timed(shape(8))
    found = estimated(decoder, with_images(decoder))
    seconds, _ = outcome(real, with_images(real))
    assert found.seconds is not None
    assert seconds > 30
    assert found.seconds.likely == pytest.approx(seconds, rel=0.12)


def test_of_an_input_without_a_known_end_it_is_a_lower_bound():
    texts = prompts(20)
    found = estimated(Timed(shape(8)), rows(texts), Range(20, 20, np.inf))
    assert (found.tokens_out.low, found.tokens_out.high) == (20 * 40, np.inf)
    assert found.seconds is not None
    assert 0 < found.seconds.low < found.seconds.high == np.inf


def test_with_unknown_lengths_the_range_holds_in_eight_of_ten():
    held = 0
    for trial in range(5):
        texts = prompts(120, seed=trial)
        decoder = Timed(shape(8), call_s=0.5)  # so slow that many rows are cut off
        found = estimated(decoder, rows(texts[:60], ENDING, max_tokens=100), count=120, fixed=False)
        seconds, tokens = outcome(Timed(shape(8), call_s=0.5), rows(texts, ENDING, max_tokens=100))
        assert found.seconds is not None
        held += found.tokens_out.low <= tokens <= found.tokens_out.high
        held += found.seconds.low <= seconds <= found.seconds.high
    assert held >= 8


@pytest.mark.parametrize("token_s", [0.01, 0.1, 0.5])
def test_however_slow_the_model_its_first_call_and_the_time_bound_the_calibration(token_s):
    decoder = Timed(shape(8), call_s=0.1, token_s=token_s)
    texts = [np.arange(200, dtype=np.int32) + i for i in range(20)]
    found = estimated(decoder, rows(texts, max_tokens=40))
    first_call = 0.1 + 64 * token_s + 1
    assert decoder.now <= first_call + 30.0 + 2 * decoder.longest
    assert found.seconds is not None


def test_where_other_nodes_have_taken_the_time_of_a_dry_run_a_node_has_its_first_call():
    """By which it is known how long its rows take at most, though none got a token."""
    decoder, texts = Timed(shape(8), call_s=0.1, token_s=0.5), prompts(20)
    engine, settings = engine_on(decoder), settings_for(decoder.shape)
    found, trial = generated(engine, settings, rows(texts), Range.exact(20), 0.0, whole=True, fixed_lengths=True)
    assert decoder.now == decoder.longest
    assert len(trial.prompts) == 1
    assert found.seconds is not None
    assert found.seconds.low < outcome(Timed(shape(8), call_s=0.1, token_s=0.5), rows(texts))[0] < found.seconds.high


@pytest.mark.parametrize("partial", [True, False], ids=["attention", "recurrent"])
@pytest.mark.parametrize(
    ("prompt", "costs"),
    [(20, (2.0, 0.01, 0.002)), (150, (0.5, 0.05, 0.0001))],
    ids=["rows get deeper than the trial", "prompts for few slots are read"],
)
def test_where_a_trial_had_to_be_cut_short_the_range_is_wide_enough(partial, prompt, costs, monkeypatch):
    monkeypatch.setattr(Timed, "partial", partial)
    texts = [np.arange(prompt, dtype=np.int32) % 7 + i for i in range(24)]
    found = estimated(Timed(shape(8), *costs), rows(texts, max_tokens=100))
    seconds, tokens = outcome(Timed(shape(8), *costs), rows(texts, max_tokens=100))
    assert found.tokens_out == Range.exact(tokens)
    assert found.seconds is not None
    assert found.seconds.likely == pytest.approx(seconds, rel=0.35)
    assert found.seconds.low < seconds < found.seconds.high < 3 * found.seconds.low


def test_rows_that_begin_alike_are_not_the_first_that_a_trial_begins():
    """A trial that is cut short would judge all rows by them."""
    kinds = np.random.default_rng(2).integers(0, 30, 100)
    texts = [np.concatenate([SHARED + kind, OWN[i % 40]]) for i, kind in enumerate(kinds)]
    trial = Trial(engine_on(Timed(shape(8), call_s=0.3)))
    trial.run(rows(texts, max_tokens=4), 30.0)
    begun = [row.seed - 1000 for row in trial.rows]
    assert 20 < len(begun) < 80
    assert max(begun) < len(begun) + 8  # rows in slots may have got no token yet


def test_lengths_are_those_of_the_rows_that_were_begun_early():
    """Nearly all that are begun late are cut short, and would say little."""
    trial = Trial(engine_on(Timed(shape(4), call_s=0.3)))
    trial.run(rows(prompts(200), ENDING, max_tokens=100), 30.0)
    assert trial.early == trial.rows[: len(trial.early)]
    unfinished = [sum(row.finish_reason is None for row in some) / len(some) for some in (trial.early, trial.rows)]
    assert unfinished[0] < unfinished[1]
    trial = Trial(engine_on(Timed(shape(4))))
    trial.run(rows(prompts(9), max_tokens=4), 30.0)
    assert len(trial.early) == len(trial.rows) == 9


SHARED = np.arange(96, dtype=np.int32)
OWN = [np.resize(text, 64 + i % 9) for i, text in enumerate(prompts(40))]


LONG_AND_SHORT = [np.concatenate([SHARED[:48] + i // 4, np.resize(text, 1 + i % 4 * 10)]) for i, text in enumerate(OWN)]


@pytest.mark.parametrize(
    ("texts", "sizes", "share"),
    [
        ([np.concatenate([SHARED, text]) for text in OWN], shape(8), 0.43),
        (list(np.repeat(np.stack([np.resize(text, 80) for text in OWN]), 4, axis=0)), shape(8), 0.25),
        (OWN, shape(8), 1.0),
        (LONG_AND_SHORT, shape(8, exact=True), 0.43),
    ],
    ids=["a prefix", "samples of a prompt", "nothing", "prefixes, with one kernel for all lengths"],
)
def test_what_prompts_share_is_computed_once(texts, sizes, share):
    engine, settings = engine_on(Timed(sizes)), settings_for(sizes)
    complete(engine, rows(texts, max_tokens=1))
    computed = 1 - engine.loop.scheduler.counts.shared_tokens / sum(map(len, texts))
    assert computed == pytest.approx(share, abs=0.02)
    assert computed_share(engine, settings, rows(texts)) == pytest.approx(computed, rel=0.01)
    found = estimated(Timed(sizes), rows(texts, max_tokens=1))
    assert found.tokens_in.likely == pytest.approx(computed * sum(map(len, texts)), rel=0.01)


@pytest.mark.parametrize(
    ("lengths", "slots", "steps"), [([5] * 16, 16, 5), ([5] * 17, 16, 10), ([9, 1, 1, 1], 2, 9), ([], 4, 0)]
)
def test_steps_are_counted_as_slots_are_filled_again(lengths, slots, steps):
    assert last_ends(lengths, slots) == steps


def mean(tokens: Iterable[int], ended: Iterable[bool], most: int, *, whole: bool = False, samples: int = 1) -> Range:
    """Judge rows with so many tokens, `samples` of each prompt."""
    rows = []
    for i, (count, done) in enumerate(zip(tokens, ended, strict=True)):
        row = Sequence(i, np.array([i // samples], np.int32), SamplingParams(), seed=i, max_tokens=most)
        row.tokens = [1] * int(count)
        row.finish_reason = FinishReason.STOP if done else None
        rows.append(row)
    return completion_lengths(rows, whole=whole, fixed=False)[0]


def test_where_all_have_ended_it_is_their_mean():
    assert mean([3, 5, 5, 11], [True] * 4, most=100, whole=True) == Range.exact(6)
    some = mean([3, 5, 5, 11], [True] * 4, most=100)
    assert some.low < some.likely == 6 < some.high


def test_one_that_was_cut_off_is_between_what_it_has_and_the_most():
    found = mean([10, 10, 10, 10], [True, True, True, False], most=50, whole=True)
    assert (found.low, found.high) == (10, 20)
    assert 10 < found.likely < 20


@pytest.mark.parametrize(("typical", "watched"), often_cases([(30, 400), (80, 60), (80, 30), (80, 10), (300, 60)], 10))
def test_the_range_holds_in_eight_of_ten_however_early_they_are_cut_off(typical, watched):
    random, held, trials = np.random.default_rng(typical + watched), 0, 40
    for _ in range(trials):
        all_of_them = np.minimum(random.geometric(1 / typical, 4000), 256)
        some = all_of_them[:32]
        found = mean(np.minimum(some, watched), some <= watched, most=256)
        held += found.low <= all_of_them.mean() <= found.high
    assert held >= 0.8 * trials


def test_what_is_likely_is_right_where_ends_come_at_a_constant_rate():
    random = np.random.default_rng(0)
    all_of_them = np.minimum(random.geometric(1 / 80, 4000), 256)
    found = mean(np.minimum(all_of_them, 40), all_of_them <= 40, most=256)
    assert found.likely == pytest.approx(all_of_them.mean(), rel=0.05)


def test_completions_of_one_prompt_tell_less_than_those_of_as_many_prompts():
    tokens, ended = np.repeat([10, 90] * 8, 4), [True] * 64
    alike, apart = mean(tokens, ended, most=100, samples=4), mean(tokens, ended, most=100)
    assert alike.high - alike.low > 1.5 * (apart.high - apart.low)


def test_the_mean_of_some_rows_is_known_by_its_standard_error():
    values = np.random.default_rng(1).normal(50, 10, 400)
    found = mean_of(values, whole=False)
    assert found.high - found.likely == pytest.approx(1.645 * values.std() / 20)
    assert mean_of(values, whole=True) == Range.exact(values.mean())
    assert mean_of([], whole=False) == Range.exact(0.0)
