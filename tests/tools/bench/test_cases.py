"""The cases of a benchmark and their order."""

from __future__ import annotations

import itertools

import pytest

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import ListInbox
from pipeline.api.records import Batch, ChunkEnd
from tools.bench.cases import EmitCases, cases
from tools.bench.contenders import JobContender
from tools.bench.scenarios import ALL, PEERS, SCENARIOS, TOGGLES
from tools.bench.settings import BenchSettings


def test_contenders_take_turns():
    found = cases(BenchSettings(scenarios=["outputs_10_50"], slots=[4], repeats=3))
    assert [(case.contender, case.repeat) for case in found] == [
        (name, repeat) for repeat in range(3) for name in ("job", "llama-server")
    ]


def test_numbers_of_slots_and_scenarios_come_one_after_the_other():
    found = cases(BenchSettings(scenarios=["outputs_10_50", "few_shot"], slots=[16, 32], repeats=2))
    groups = [key for key, _ in itertools.groupby(found, lambda case: (case.scenario, case.slots))]
    assert groups == [("outputs_10_50", 16), ("outputs_10_50", 32), ("few_shot", 16), ("few_shot", 32)]


def test_what_takes_long_runs_once():
    slow = {contender.name for contender in PEERS if contender.once}
    found = cases(BenchSettings(scenarios=["peers"], slots=[4], repeats=3))
    assert slow
    assert {case.contender for case in found if case.repeat} == {c.name for c in PEERS} - slow


@pytest.mark.parametrize(
    ("settings", "slots_and_rows"),
    [
        ({"scenarios": ["ladder"], "slots": [16, 32], "rows_per_slot": 4, "max_rows": 100}, {(16, 64), (32, 100)}),
        ({"scenarios": ["ladder_small"]}, {(5, 160)}),
        ({"scenarios": ["diffusion"]}, {(1, 1), (8, 8), (32, 32)}),
    ],
)
def test_rows_grow_with_slots_unless_a_scenario_has_its_own(settings, slots_and_rows):
    assert {(case.slots, case.rows) for case in cases(BenchSettings(**settings))} == slots_and_rows


@pytest.mark.parametrize("name", TOGGLES)
def test_a_toggle_is_a_pair_on_the_same_work(name):
    found = cases(BenchSettings(scenarios=[], toggle=[name], slots=[4], repeats=2))
    assert [case.contender for case in found] == [f"with {name}", f"without {name}"] * 2
    with_it, without = (each for each in ALL[f"toggle_{name}"].contenders if isinstance(each, JobContender))
    assert with_it.copies == without.copies
    assert set(with_it.overrides) ^ set(without.overrides) == {
        f"runtime.optimise.{name}=true",
        f"runtime.optimise.{name}=false",
    }


def test_contenders_of_a_scenario_have_names_of_their_own():
    for plan in ALL.values():
        names = [contender.name for contender in plan.contenders]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scenarios": []}, "name a scenario"),
        ({"slots": [0]}, "1 to 255"),
        ({"repeats": 0}, "1 or more"),
        ({"scenarios": ["peers", "laddder"]}, rf"\['laddder'\] cannot work: there are {', '.join(SCENARIOS)}"),
        ({"toggle": ["speed"]}, "compaction"),
        ({"scenarios": ["peers"], "contenders": ["vllm"]}, "create_completion"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        cases(BenchSettings(**settings))


def test_a_source_that_seeks_sends_the_rest():
    settings = BenchSettings(scenarios=["peers"], slots=[4], repeats=2)
    whole = EmitCases(settings, chunk_rows=3)
    rest = EmitCases(settings, chunk_rows=3)
    rest.seek(1)
    assert list(rest.run(ListInbox())) == list(whole.run(ListInbox()))[4:]
    assert rest.fraction_read() == 1.0


def test_a_chunk_ends_after_its_rows():
    items = list(EmitCases(BenchSettings(scenarios=["one_worker"], slots=[4], repeats=1), 1).run(ListInbox()))
    assert [type(item) for item in items] == [Batch, ChunkEnd, Batch, ChunkEnd]
