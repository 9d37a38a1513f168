"""Groups of rows with the same adapters, where a decoder does not mix these: long runs, in the order of ages, and no
row waits forever. The fake raises for a call of two kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.fake import FakeDecoder
from operators.engine.scheduler import policy
from operators.engine.sequence import Sequence
from tests.operators.engine.fixtures import GREEDY, Bench, prompts, shape
from tests.operators.engine.scheduler.test_radix_tree import calls
from tests.operators.engine.test_adapters import calls_of, row_with

MOST_CALLS = 60
"""Most calls of functions for a row that is admitted."""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDecoder, "mixes_adapters", False)


def runs(keys: Seq[Any]) -> list[Any]:
    return [key for key, _ in itertools.groupby(keys)]


def kinds_of(made: Seq[set[int]]) -> list[int]:
    """The adapters of calls, without repeats."""
    return runs([kind for call in made for kind in call])


def run_out(bench: Bench) -> None:
    """Run steps until nothing can be done."""
    for _ in range(2000):
        if not bench.scheduler.runnable:
            return
        bench.worker.step()
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(4))
def test_each_group_of_an_age_is_one_run_and_the_last_goes_on_into_the_next_age(seed):
    """Whatever priorities say: a change drains the slots."""
    random = np.random.default_rng(seed)
    rows = [
        Sequence(
            i, text, GREEDY, i, int(random.integers(1, 30)), priority=random.random(), chunk=i // 6, adapters=adapters
        )
        for i, (text, adapters) in enumerate(zip(prompts(90), random.choice([0, 1, 2, 4], 90).tolist(), strict=True))
    ]
    bench = Bench(shape(4))
    made = calls_of(bench)
    bench.run(rows)
    admitted = sorted(rows, key=lambda row: row.placement.admission)
    groups = runs([(policy.age(row), row.adapters) for row in admitted])
    assert len(groups) == len({(policy.age(row), row.adapters) for row in rows})
    assert [age for age, _ in groups] == sorted(age for age, _ in groups)
    for (age, last), (later, first) in itertools.pairwise(groups):
        assert age == later or first == last or (later, last) not in groups
    assert kinds_of(made) == runs([kind for _, kind in groups])


def test_a_node_without_credit_neither_keeps_a_group_going_nor_drains_it():
    bench = Bench(shape(3))
    deep, near = bench.client(depth=2, capacity=2), bench.client(depth=1)
    deep.submit([row_with(1, i) for i in range(9)])
    near.submit([row_with(2, i, chunk=8) for i in range(9)])
    near.submit([row_with(1, i, chunk=10) for i in range(9)])
    made = calls_of(bench)
    run_out(bench)
    assert kinds_of(made) == [1, 2, 1]
    assert (deep.waiting, near.waiting) == (7, 0)
    assert deep.collect()
    assert bench.scheduler.runnable


@pytest.mark.parametrize(("deep", "near", "groups"), [(8, 0, [1, 2]), (8, 8, [2, 1]), (0, 8, [2, 1])])
def test_in_empty_slots_the_oldest_begin_then_those_of_the_deepest_node(deep, near, groups):
    bench = Bench(shape(3))
    bench.client(depth=2).submit([row_with(2, i, chunk=deep) for i in range(9)])
    bench.client(depth=1).submit([row_with(1, i, chunk=near) for i in range(9)])
    made = calls_of(bench)
    run_out(bench)
    assert kinds_of(made) == groups


def test_rows_of_one_kind_are_admitted_as_if_all_were_mixed(monkeypatch):
    def admitted(mixes: bool) -> list[list[int]]:
        monkeypatch.setattr(FakeDecoder, "mixes_adapters", mixes)
        bench = Bench(shape(3))
        clients = [bench.client(depth) for depth in (1, 2)]
        rows = [
            [row_with(6, i, chunk=i * 5 % 9 + 9 * depth, text=t) for i, t in enumerate(prompts(30))] for depth in (0, 1)
        ]
        for client, own in zip(clients, rows, strict=True):
            client.submit(own)
            assert bool(client.by_adapters) != mixes
        run_out(bench)
        return [[row.placement.admission for row in own] for own in rows]

    assert admitted(False) == admitted(True)


def test_the_work_of_an_admission_grows_neither_with_groups_nor_with_rows():
    def work(groups: int, times: int) -> int:
        bench = Bench(shape(4))
        bench.client().submit([row_with(kind, i) for i, kind in enumerate([*range(groups)] * times)])
        bench.worker.step()
        return sum(calls(lambda: bench.queue.take(lambda _: True, bench.scheduler.slots.adapters)) for _ in range(5))

    assert max(work(2, 20), work(50, 20), work(2, 200)) <= 5 * MOST_CALLS


def test_an_engine_that_drains_ranks_by_what_may_join():
    bench = Bench(shape(4))
    client = bench.client()
    client.submit([row_with(1, 2), *(row_with(2, i) for i in range(3, 11))])
    bench.scheduler.schedule(0.0)
    assert bench.scheduler.rank()[0] == 1 / 4
    client.submit([row_with(1, 9)])
    assert bench.scheduler.rank()[0] == 2 / 4


class Stage:
    """A node of a chain: gives what it has finished to the next, as far as that takes it.

    Args:
        of: returns the adapters of a row.
        room: rows that may wait in its queue.
    """

    def __init__(self, bench: Bench, depth: int, capacity: int, room: int, of: Callable[[int], int]) -> None:
        self.client = bench.client(depth, capacity)
        self._room, self._of = room, of
        self.held: list[int] = []

    def takes(self) -> int:
        return self._room - self.client.waiting

    def submit(self, numbers: Seq[int]) -> None:
        self.client.submit([row_with(self._of(i), i, chunk=i // 8) for i in numbers])

    def hand_on(self, after: Stage | None) -> list[int]:
        """Give as many rows to the stage `after` as it takes, then collect if it has none left; return them."""
        count = len(self.held) if after is None else max(0, after.takes())
        given, self.held = self.held[:count], self.held[count:]
        if after is not None:
            after.submit(given)
        if not self.held:
            self.held = [int(str(row.handle)) for row in self.client.collect()]
        return given


def checks_ages(bench: Bench) -> list[Sequence]:
    """Check that no sequence is admitted before an older one with other adapters, which a node with credit has; return
    the list of those that are admitted from now on."""
    take, found = bench.queue.take, list[Sequence]()

    def checked(*args: Any) -> Any:
        waiting = [row for node in bench.queue.nodes if node.admissible for row in node.heap.rows()]
        if isinstance(row := take(*args), Sequence):
            ages = [policy.age(other) for other in waiting if other.adapters != row.adapters]
            assert policy.age(row) <= min(ages, default=policy.age(row))
            found.append(row)
        return row

    bench.queue.take = checked  # type: ignore[method-assign, assignment]
    return found


@pytest.mark.parametrize("capacity", [1, 3, 50])
@pytest.mark.parametrize("room", [1, 4, 50])
@pytest.mark.parametrize("of", [lambda depth, i: depth, lambda depth, i: i * 7 % (2 + depth)], ids=["each", "columns"])
def test_nodes_with_different_adapters_that_feed_each_other_end(capacity, room, of):
    """On one engine, whatever credit they have."""
    bench = Bench(shape(3))
    admitted = checks_ages(bench)
    first, *_, last = stages = [Stage(bench, depth, capacity, room, partial(of, depth)) for depth in (1, 2, 3)]
    todo, done = list(range(60)), list[int]()
    for _ in range(5000):
        given = max(0, first.takes())
        first.submit(todo[:given])
        del todo[:given]
        done += last.hand_on(None)
        for stage, after in reversed([*itertools.pairwise(stages)]):
            stage.hand_on(after)
        if bench.scheduler.runnable:
            bench.worker.step()
        if len(done) == 60:
            break
    assert sorted(done) == list(range(60))
    assert len(admitted) == 180
