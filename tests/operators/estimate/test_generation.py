"""What generating rows takes, on a decoder whose calls take what a formula says: the estimate is the outcome."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest

from operators.engine.backend.fake import END_ID, FakeDecoder
from operators.engine.backend.interface import DecoderShape, Logits
from operators.engine.loop.engine import Engine
from operators.engine.loop.threads import EngineThreads
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.estimate.generation import Device, Reckoned, reckon
from operators.estimate.pace import StepTime, fitted
from operators.estimate.schedule import computed_share, steps_until_done
from pipeline.api.forecast import Range
from pipeline.api.meter import StageMeter
from tests.operators.engine.fixtures import Table, prompts, queue_for, settings_for, shape, worker_on

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


def device(decoder: Timed) -> Device:
    settings = settings_for(decoder.shape)
    queue = queue_for(settings)
    worker = worker_on(decoder, settings, queue)
    engine = Engine([worker], queue, Table(), EngineThreads(lambda: decoder.now))
    return Device(engine, worker, settings)


def rows(texts: Seq[np.ndarray], params: SamplingParams = ENDLESS, max_tokens: int = 40) -> list[Sequence]:
    return [Sequence(i, text, params, seed=1000 + i, max_tokens=max_tokens) for i, text in enumerate(texts)]


def outcome(decoder: Timed, given: list[Sequence]) -> tuple[float, int]:
    """Seconds and completion tokens of all rows."""
    made = device(decoder)
    client = made.engine.connect(StageMeter("node"), 1, len(given), lambda: None, steps=False)
    client.submit(given)
    client.end()
    while made.worker.scheduler.runnable:
        made.worker.step()
    return decoder.now, sum(len(row.tokens) for row in given)


def reckoned(decoder: Timed, given: list[Sequence], count: int | None = None, *, fixed: bool = True) -> Reckoned:
    whole = count is None
    number = Range.exact(len(given) if count is None else count)
    return reckon(device(decoder), given, number, 30.0, whole=whole, fixed_lengths=fixed)


@pytest.mark.parametrize("count", [3, 8, 70])
def test_with_known_lengths_the_estimate_is_the_outcome(count):
    texts = prompts(count)
    found = reckoned(Timed(shape(8)), rows(texts))
    seconds, tokens = outcome(Timed(shape(8)), rows(texts))
    assert found.tokens_out == Range.exact(tokens)
    assert found.tokens_in == Range.exact(sum(map(len, texts)))
    assert found.seconds is not None
    assert found.seconds.likely == pytest.approx(seconds, rel=0.08)
    assert found.seconds.low < seconds < found.seconds.high


def test_some_rows_stand_for_many():
    texts = prompts(400)
    found = reckoned(Timed(shape(8)), rows(texts[:60]), count=400)
    seconds, tokens = outcome(Timed(shape(8)), rows(texts))
    assert found.tokens_out == Range.exact(tokens)
    assert found.tokens_in.low < sum(map(len, texts)) < found.tokens_in.high
    assert found.seconds is not None
    assert found.seconds.low < seconds < found.seconds.high


def test_of_an_input_without_a_known_end_it_is_a_lower_bound():
    texts = prompts(20)
    found = reckon(device(Timed(shape(8))), rows(texts), Range(20, 20, np.inf), 30.0, whole=False, fixed_lengths=True)
    assert (found.tokens_out.low, found.tokens_out.high) == (20 * 40, np.inf)
    assert found.seconds is not None
    assert 0 < found.seconds.low < found.seconds.high == np.inf


def test_with_unknown_lengths_the_range_holds_in_eight_of_ten():
    held = 0
    for trial in range(5):
        texts = prompts(120, seed=trial)
        decoder = Timed(shape(8), call_s=0.5)  # so slow that many rows are cut off
        found = reckoned(decoder, rows(texts[:60], ENDING, max_tokens=100), count=120, fixed=False)
        seconds, tokens = outcome(Timed(shape(8), call_s=0.5), rows(texts, ENDING, max_tokens=100))
        assert found.seconds is not None
        held += found.tokens_out.low <= tokens <= found.tokens_out.high
        held += found.seconds.low <= seconds <= found.seconds.high
    assert held >= 8


@pytest.mark.parametrize("token_s", [0.01, 0.1, 0.5])
def test_however_slow_the_model_its_first_call_and_the_time_bound_the_calibration(token_s):
    decoder = Timed(shape(8), call_s=0.1, token_s=token_s)
    texts = [np.arange(200, dtype=np.int32) + i for i in range(20)]
    found = reckoned(decoder, rows(texts, max_tokens=40))
    first_call = 0.1 + 64 * token_s + 1
    assert decoder.now <= first_call + 30.0 + 2 * decoder.longest
    assert found.seconds is not None


def test_what_prompts_share_is_computed_once():
    common = np.arange(96, dtype=np.int32) % 250
    own = [np.resize(text, 64 + i % 9) for i, text in enumerate(prompts(40))]
    texts = [np.concatenate([common, text]) for text in own]
    counted = Timed(shape(8))
    made = device(counted)
    given = rows(texts, max_tokens=1)
    client = made.engine.connect(StageMeter("node"), 1, 40, lambda: None, steps=False)
    client.submit(given)
    client.end()
    while made.worker.scheduler.runnable:
        made.worker.step()
    computed = 1 - made.worker.scheduler.counts.shared_tokens / sum(map(len, texts))
    assert computed < 0.9
    assert computed_share(rows(texts), counted.shape, made.settings) == pytest.approx(computed)
    assert reckoned(Timed(shape(8)), rows(texts)).tokens_in.likely == pytest.approx(computed * sum(map(len, texts)))


def test_the_cost_of_a_step_is_found_from_steps():
    times = [StepTime(n, d, 0.5 + 0.25 * n + 0.01 * n * d) for n, d in ((16, 50), (16, 200), (4, 200))]
    cost = fitted(times)
    assert (cost.fixed, cost.row, cost.cell) == pytest.approx((0.5, 0.25, 0.01))
    assert cost.total(2, 6, 30) == pytest.approx(2 * 0.5 + 6 * 0.25 + 30 * 0.01)


def test_no_part_of_a_cost_is_negative():
    cost = fitted([StepTime(16, 50, 1.0), StepTime(16, 200, 0.9), StepTime(4, 200, 0.95)])
    assert min(cost.fixed, cost.row, cost.cell) >= 0


@pytest.mark.parametrize(
    ("lengths", "slots", "steps"), [([5] * 16, 16, 5), ([5] * 17, 16, 10), ([9, 1, 1, 1], 2, 9), ([], 4, 0)]
)
def test_steps_are_counted_as_slots_are_filled_again(lengths, slots, steps):
    assert steps_until_done(lengths, slots) == steps
