"""The calibration, on a decoder whose calls cost what the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from operators.engine.backend.fake import FakeDecoder
from operators.engine.backend.interface import Logits
from operators.engine.backend.shape import decoder_shape
from operators.settings.runtime import OPEN, EngineSettings
from operators.tuning.calibration import Calibration, Choice
from pipeline.api.errors import ConfigError

GIGABYTE = 1 << 30
AUTO = EngineSettings(**OPEN)


pytestmark = pytest.mark.usefixtures("memory")


class Costly(FakeDecoder):
    """Its calls take what `cost` says of (tokens, rows, settings), on a clock of its own."""

    clock = 0.0

    def __init__(
        self, settings: EngineSettings, cost: Callable[[int, int, EngineSettings], float], exact: bool = False
    ) -> None:
        super().__init__(replace(decoder_shape(settings, 4096), exact=exact))
        self.settings, self.cost = settings, cost

    def decode(self) -> Logits:
        slots = self.batch.seq_id[: self.batch.n_tokens]
        Costly.clock += self.cost(len(slots), len(set(slots.tolist())), self.settings)
        return super().decode()


def choose(
    cost: Callable[[int, int, EngineSettings], float],
    settings: EngineSettings = AUTO,
    free_bytes: int = GIGABYTE,
    rows: int | None = None,
    *,
    exact: bool = False,
    draft: int = 0,
) -> Choice:
    opened: list[int] = []

    def lease(settings: EngineSettings) -> tuple[Costly, Callable[[], None]]:
        opened.append(1)
        return Costly(settings, cost, exact), opened.clear

    choice = Calibration(lease, settings, [50, 70, 90], 64, free_bytes, lambda: Costly.clock, rows, draft).choose()
    assert not opened  # every context is freed
    return choice


def linear(fixed: float, each: float) -> Callable[[int, int, EngineSettings], float]:
    return lambda tokens, rows, settings: fixed + each * tokens


def test_the_least_number_of_slots_within_the_tolerance():
    # (f + 0.01 n) / n for f = 0.1: 8: 0.0225, 16: 0.01625, 32: 0.0131, 64: 0.0116; for f = 0.02: 16: 0.0113, 32: 0.0106
    assert choose(linear(0.1, 0.01)).values["slots"] == 64
    assert choose(linear(0.02, 0.01)).values["slots"] == 32


def test_few_rows_need_few_slots():
    assert choose(linear(1.0, 0.0001), rows=16).values["slots"] == 16
    assert choose(linear(1.0, 0.0001), rows=20).values["slots"] == 20  # in 16 a second round would be made for 4 rows
    assert choose(linear(1.0, 0.0001), rows=1).values["slots"] == 1
    assert choose(linear(1.0, 0.0001), rows=100).values["slots"] == 64
    assert choose(linear(0.0, 0.01), rows=100).values["slots"] == 4


def test_memory_bounds_the_slots():
    # The fake keeps 8 bytes a token: 1024 tokens a row.
    few = choose(linear(1.0, 0.0001), free_bytes=2 * 20 * 1024 * 8)
    assert few.values["slots"] == 16
    assert "room for 19" in few.reasons[-1]
    assert choose(linear(1.0, 0.0001), free_bytes=0).values["slots"] == 1


def test_states_that_are_kept_for_drafts_take_room():
    """The fake's has 64 bytes here, and a row 8 KiB."""
    room = 2 * 20 * 1024 * 8
    usual, drafts = (choose(linear(1.0, 0.0001), free_bytes=room, draft=draft).values["slots"] for draft in (0, 128))
    assert drafts == (usual if FakeDecoder.partial else usual / 2)


def test_a_slow_machine_is_not_kept_busy_for_long():
    before = Costly.clock
    choose(linear(0.5, 0.02))  # 2.6 s for a prompt of the usual length
    assert Costly.clock - before < 60


def test_a_value_that_is_given_stays():
    settings = EngineSettings(**(OPEN | {"slots": 24}))
    choice = choose(linear(1.0, 0.0001), settings)
    done = choice.apply(settings)
    assert done.slots == 24
    assert not done.open_keys()
    assert "slots" not in settings.open_keys()


def test_the_layout_in_which_texts_do_not_depend_on_neighbours_is_taken():
    settings = EngineSettings(**OPEN, deterministic=False)
    assert choose(linear(1.0, 0.0001), settings).apply(settings).kv == "per_sequence"


def test_flash_attention_is_dropped_where_steps_are_clearly_faster_without():
    def cost(without: float) -> Callable[[int, int, EngineSettings], float]:
        return lambda tokens, rows, settings: 1.0 if settings.flash_attention else without

    assert choose(cost(0.5)).values["flash_attention"] is False
    assert choose(cost(0.98)).values["flash_attention"] is True
    assert choose(cost(1.5)).values["flash_attention"] is True
    choice = choose(cost(0.5), exact=True)  # not measured: without it rules of the scheduler are needed
    assert choice.values["flash_attention"] is True
    assert "kernels" in choice.reasons[0]


@pytest.mark.parametrize(("usable", "physical", "threads"), [(8, 4, 4), (3, 4, 3), (2, 1, 2), (8, None, 8)])
def test_there_is_a_thread_for_each_physical_core_that_may_be_used(monkeypatch, usable, physical, threads):
    monkeypatch.setattr("operators.tuning.calibration.usable_cores", lambda: usable)
    monkeypatch.setattr("psutil.cpu_count", lambda logical: physical)
    monkeypatch.setattr("os.cpu_count", lambda: usable)
    assert choose(linear(1.0, 0.0001)).values["threads"] == threads


def test_a_call_has_a_token_of_each_slot():
    settings = EngineSettings(**OPEN, deterministic=False, n_ubatch=20)
    assert choose(linear(1.0, 0.0001), settings).apply(settings).slots == 16


def test_what_cannot_work_is_refused_beside_open_values_too():
    with pytest.raises(ConfigError, match=r"runtime\.kv_type"):
        EngineSettings(**OPEN, kv_type="f8")


def test_fewer_tokens_of_a_call_than_slots_are_refused():
    with pytest.raises(ConfigError, match=r"runtime\.n_ubatch=128 cannot work: at least slots=200"):
        EngineSettings(slots=200, n_ubatch=128)
