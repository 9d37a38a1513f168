"""The rungs do the same work, and a replay makes the calls that were recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from operators.bench.loop import NoSampler, complete, sequences
from operators.bench.recorder import OtherCall, Recorder, replay, tokens_of
from operators.bench.rungs import RUNGS, Rungs
from operators.bench.scenarios import SCENARIOS, Kind
from operators.bench.workload import Workload
from operators.decoding.fake import FakeDecoder, FakeModel
from operators.decoding.model import decoder_shape
from operators.decoding.sampler import Sampler
from operators.engine_settings import EngineSettings
from tests.bench.work import spec


def recorded(case):
    model = FakeModel()
    shape = decoder_shape(case.runtime, model.n_ctx_train)
    recorder = Recorder(FakeDecoder(shape))
    rows = sequences(
        Workload(Path(case.workload)).rendered(), model, case.sampling, case.runtime, shape.max_sequence_tokens
    )
    return recorder, complete(rows, recorder.decoder, NoSampler(), case.runtime), shape


@pytest.fixture
def case(tmp_path):
    return spec(tmp_path, slots=4, rows=11)


def test_a_trace_has_the_tokens_of_the_run(case):
    recorder, loop, _ = recorded(case)
    calls, tokens = tokens_of(recorder.trace)
    prompts = sum(len(row.prompt) for row in loop.rows)
    lone = sum(step["rows"] == 1 for step in loop.steps if step["decode_tokens"])  # a lone row gets company
    computed = prompts - loop.counts.shared_tokens
    # The last token of a row is drawn and not computed.
    assert tokens == computed + loop.new_tokens - len(loop.rows) + lone
    assert calls == len(loop.steps)


def test_the_schedule_does_not_depend_on_the_tokens(case):
    recorder, _, shape = recorded(case)
    other = Recorder(FakeDecoder(shape))
    rows = sequences(Workload(Path(case.workload)).rendered(), FakeModel(), case.sampling, case.runtime, 256)
    complete(rows, other.decoder, Sampler(), case.runtime)
    assert len(other.trace) == len(recorder.trace)
    for one, two in zip(recorder.trace, other.trace, strict=True):
        if isinstance(one, OtherCall) or isinstance(two, OtherCall):
            assert one == two
        else:
            assert np.array_equal(one.pos, two.pos)
            assert np.array_equal(one.seq_id, two.seq_id)


def test_a_replay_makes_the_recorded_calls(case):
    recorder, _, shape = recorded(case)
    again = Recorder(FakeDecoder(shape))  # refuses positions that do not follow
    replay(recorder.trace, again.decoder)
    assert [str(call) for call in again.trace] == [str(call) for call in recorder.trace]


def test_whatever_a_decoder_can_is_recorded():
    class Saving(FakeDecoder):
        def save(self, slot):
            return f"{id(self)} {slot}".encode()

        def restore(self, slot, saved):
            assert saved.startswith(str(id(self)).encode())  # not the state of the decoder that was recorded

    shape = FakeDecoder(decoder_shape(EngineSettings(), 512)).shape
    recorder = Recorder(Saving(shape))
    recorder.restore(2, saved=recorder.save(1))
    assert [getattr(call, "name", None) for call in recorder.trace] == ["save", "restore"]
    replay(recorder.trace, Saving(shape))


def test_all_rungs_do_the_same_work(case):
    figures = {name: RUNGS[name](Rungs(case, FakeModel())) for name in RUNGS}
    for name, found in figures.items():
        assert (found.prompt_tokens, found.new_tokens) == (
            figures["engine"].prompt_tokens,
            case_tokens(case),
        ), name
        assert found.work_s > 0
    assert figures["bare"].steps == figures["engine"].steps == figures["sampling"].steps


def case_tokens(case) -> int:
    return sum(Workload(Path(case.workload)).rendered()["max_tokens"].to_pylist())


def test_every_rung_of_a_scenario_is_there():
    named = {c.rung or c.name for plan in SCENARIOS.values() for c in plan.contenders if c.kind is Kind.RUNG}
    assert named == set(RUNGS)
