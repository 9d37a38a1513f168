"""Every piece is answered once, whatever workers do; a row is given up only if it ends its workers by itself. Pieces
hold all rows of their chunk once; what is sent is no larger than its rows."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.records import Batch
from pipeline.cluster.assignments import Assignments
from pipeline.cluster.pieces import Cutter, WorkItem, from_ipc, to_ipc

AFTER = 2


def piece(assignments: Assignments, rows: range) -> WorkItem:
    data = pa.record_batch({"row": pa.array(list(rows), pa.int64())})
    return WorkItem(next(assignments.numbers), "workers_1", Batch(0, data))


def rows_of(one: WorkItem) -> list[int]:
    found: list[int] = one.batch.data.column("row").to_pylist()
    return found


class Run:
    """Assignments and their workers, of which some are ended by rows that they compute, and those of `sick` by any."""

    def __init__(self, assignments: Assignments, poison: frozenset[int]) -> None:
        self.assignments = assignments
        self.sick: set[str] = set()
        self.poison = poison
        self.answers: Counter[int] = Counter()
        self.late: list[tuple[str, int]] = []
        self.given_up: list[int] = []
        self.born = 0

    def start_worker(self, *, sick: bool = False) -> None:
        self.assignments.join(f"{self.born}")
        if sick:
            self.sick.add(f"{self.born}")
        self.born += 1

    def kill(self, worker: str) -> None:
        self.late += [(worker, one.number) for one in self.assignments.pieces_of(worker)]
        for lost in self.assignments.leave(worker):
            self.given_up += rows_of(lost)
        self.start_worker(sick=worker in self.sick)

    def assign(self) -> None:
        """Give out what can be given out: a piece that workers ended with has its worker alone."""
        list(self.assignments.assign())
        for worker in self.assignments.workers:
            held = self.assignments.pieces_of(worker)
            assert len(held) < 2 or all(one.deaths < AFTER for one in held)

    def work(self, worker: str) -> None:
        """Compute the oldest piece of a worker, or end with it."""
        held = self.assignments.pieces_of(worker)
        if not held:
            return
        if worker in self.sick or any(self.poison & set(rows_of(one)) for one in held):
            self.kill(worker)
            return
        found = held[0]
        if self.assignments.answered(worker, found.number):
            self.answers.update(rows_of(found))

    def answer_late(self) -> None:
        """Answer as workers that were taken for dead: none of it counts."""
        for worker, number in self.late:
            assert not self.assignments.answered(worker, number)


@given(
    poison=st.frozensets(st.integers(0, 39), max_size=3),
    events=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=60),
    size=st.integers(1, 9),
    workers=st.integers(1, 4),
)
def test_every_row_is_answered_once_or_was_poison(poison, events, size, workers) -> None:
    assignments = Assignments(2, AFTER)
    run = Run(assignments, poison)
    for _ in range(workers):
        run.start_worker()
    for start in range(0, 40, size):
        assignments.add(piece(assignments, range(start, min(start + size, 40))))
    for which, event in events:
        run.assign()
        run.answer_late()
        there = assignments.workers
        if event == 9:  # ended from outside
            run.kill(there[which % len(there)])
        else:
            run.work(there[which % len(there)])
    for _ in range(5000):
        run.assign()
        if not assignments.waiting and not any(map(assignments.pieces_of, assignments.workers)):
            break
        for worker in assignments.workers:
            run.work(worker)
    run.answer_late()
    assert poison >= set(run.given_up) or any(event == 9 for _, event in events)
    assert sorted([*run.answers.elements(), *run.given_up]) == list(range(40))
    if not any(event == 9 for _, event in events):
        assert set(run.given_up) == poison


@given(
    turns=st.lists(st.integers(0, 5), max_size=200),
    size=st.integers(1, 9),
    well=st.integers(1, 2),
    sick=st.integers(1, 4),
)
def test_a_machine_on_which_all_workers_end_has_no_row_given_up(turns, size, well, sick) -> None:
    """However fast they end, and however long the others take for their first answer."""
    run = Run(Assignments(2, AFTER), frozenset())
    for number in range(sick + well):
        run.start_worker(sick=number < sick)
    for start in range(0, 40, size):
        run.assignments.add(piece(run.assignments, range(start, min(start + size, 40))))
    for turn in (*turns, *range(sick)):
        run.assign()
        there = sorted(run.assignments.workers, key=lambda worker: worker not in run.sick)
        run.work(there[turn % sick])
    while run.answers.total() + len(run.given_up) < 40:
        run.assign()
        for worker in run.assignments.workers:
            run.work(worker)
    assert not run.given_up
    assert sorted(run.answers.elements()) == list(range(40))


def test_a_worker_that_ends_costs_only_its_pieces_another_try() -> None:
    assignments = Assignments(2, AFTER)
    assignments.join("a")
    assignments.join("b")
    pieces = [piece(assignments, range(i, i + 1)) for i in range(6)]
    for one in pieces:
        assignments.add(one)
    assert [(w, p.number) for w, p in assignments.assign()] == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]
    assert assignments.leave("a") == []
    assignments.join("c")
    assert [(w, p.number) for w, p in assignments.assign()] == [("c", 0), ("c", 2)]  # before 4 and 5, which came later
    assert assignments.redone == 2


def test_a_suspect_is_computed_alone_and_halved() -> None:
    assignments = Assignments(2, AFTER)
    bad = piece(assignments, range(4))
    assignments.add(bad)
    for number in range(AFTER):
        assignments.join(f"{number}")
        list(assignments.assign())
        assert assignments.leave(f"{number}") == []
    assignments.join("x")
    assignments.add(piece(assignments, range(4, 8)))
    assert [p.num_rows for _, p in assignments.assign()] == [2]  # alone: the other half and the new piece wait
    assert assignments.waiting == 2


@given(sizes=st.lists(st.integers(0, 30), max_size=12), rows=st.integers(1, 12))
def test_a_cutter_keeps_rows_and_order(sizes: list[int], rows: int) -> None:
    made: list[Batch] = []
    cutter, first = Cutter(rows), 0
    for size in sizes:
        data = pa.record_batch({"row": pa.array(range(first, first + size), pa.int64())})
        made += cutter.add(Batch(3, data))
        first += size
    full = list(made)
    made += cutter.flush()
    assert [row for batch in made for row in batch.data.column("row").to_pylist()] == list(range(first))
    assert all(batch.num_rows == rows and batch.chunk == 3 for batch in full)
    assert all(1 <= batch.num_rows <= rows for batch in made)


def test_a_piece_of_another_chunk_does_not_join() -> None:
    cutter = Cutter(10)
    data = pa.record_batch({"row": pa.array([1], pa.int64())})
    assert list(cutter.add(Batch(0, data))) == []
    assert [batch.chunk for batch in cutter.add(Batch(1, data))] == [0]
    assert [batch.chunk for batch in cutter.flush()] == [1]


def test_a_slice_is_sent_without_the_rest() -> None:
    large = pa.record_batch({"text": pa.array([f"{i:06}" * 20 for i in range(10_000)])})
    sent = to_ipc(large.slice(500, 3))
    assert len(sent) < 2000
    assert from_ipc(sent).to_pylist() == large.slice(500, 3).to_pylist()
    assert from_ipc(to_ipc(large.slice(0, 0))).num_rows == 0
