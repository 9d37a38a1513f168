"""How far, how fast, how long: on meters and a clock that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from operators.union import Union
from pipeline import api
from pipeline.api.meter import Completed, StageMeter, StageState
from pipeline.api.protocols import Operator
from pipeline.api.records import Reject, Rejects
from pipeline.dataflow.executor import Executor
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.display import (
    details_text,
    rows_text,
)
from pipeline.monitor.snapshot import Observer, Snapshot
from pipeline.run_dir.chunk_record import RejectCounts
from tests.pipeline.ops import Collect, Count, KeepEven


class Source(Count, api.Source):
    """Knows its size, or how much it has read, or neither."""

    def __init__(self, total: int | None = None, fraction: float | None = None) -> None:
        super().__init__(0)
        self.total, self.fraction = total, fraction

    def seek(self, chunk: int) -> None: ...

    def total_rows(self) -> int | None:
        return self.total

    def fraction_read(self) -> float | None:
        return self.fraction


class Run:
    """Three nodes in a row with meters that the test sets, and an observer."""

    def __init__(
        self,
        source: Operator,
        rows_before: int = 0,
        rejects_before: RejectCounts | None = None,
        names: str = "read generate write",
        union: bool = False,
        target: TargetProgress | None = None,
    ) -> None:
        first, *middle, last = names.split()
        self.sink = last
        self.meters = {name: StageMeter(name) for name in (first, *middle, last)}
        for name in (*middle, last):
            self.meters[name].queue_capacity = 100
        nodes = {first: Node(source)}
        for name in middle:
            nodes[name] = Node(KeepEven(), (next(reversed(nodes)),))
        if union:  # of the source with itself
            nodes[middle[0]] = Node(Union(), (first, first))
        nodes[last] = Node(Collect(), (next(reversed(nodes)),))
        self.tally = RejectTally()
        self.executor = SimpleNamespace(source_ended=False, tally=self.tally)
        self.observer = Observer(
            Graph(nodes, target),
            cast(Executor, self.executor),
            [lambda: "slots 3/4", lambda: ""],
            rows_before,
            rejects_before or RejectCounts(),
        )
        self._take(0.0)

    def _take(self, now_s: float) -> Snapshot:
        self.executor.meters = list(self.meters.values())
        return self.observer.take(now_s)

    def at(self, now_s: float, read: int, written: int) -> Snapshot:
        self.meters["read"].rows_out, self.meters[self.sink].rows_in = read, written
        return self._take(now_s)

    def generated(self, node: str, entered: int, finished: int, mean: int, in_flight: int = 0) -> None:
        """`node` has finished so many rows of `mean` tokens, and has made `in_flight` tokens of others."""
        meter = self.meters[node]
        before = meter.completed or Completed()
        meter.completed = Completed(finished, finished * mean, before.recalled)
        meter.rows_in, meter.rows_out = entered, finished + before.recalled
        meter.tokens_out = finished * mean + in_flight


def test_time_left_is_the_tokens_that_are_left_by_their_rate():
    run = Run(Source(total=100))
    run.generated("generate", 50, 20, mean=30, in_flight=200)
    shot = run.at(10.0, read=50, written=20)
    assert (shot.rows, shot.rows_total, shot.fraction) == (20, 100, 0.2)
    assert shot.tokens_out_per_s == 80
    assert shot.eta_s == (80 * (600 + 200 / 2) / 20 - 200) / 80
    assert shot.statuses == ("slots 3/4",)


def test_a_row_that_has_outlived_the_mean_still_needs_time():
    run = Run(Source(total=21))
    run.generated("generate", 21, 20, mean=30, in_flight=400)
    assert run.at(10.0, read=21, written=20).eta_s == 0.5 * (600 + 400 / 2) / 20 / 100


def test_before_the_first_row_is_finished_the_time_is_unknown_and_it_says_why():
    run = Run(Source(total=100))
    run.generated("generate", 50, 0, mean=0, in_flight=300)
    shot = run.at(10.0, read=50, written=0)
    assert (shot.eta_s, shot.eta_unknown) == (None, "generate has finished no row yet")
    assert "time left unknown" in details_text(shot)


def test_rows_from_the_store_make_the_others_no_cheaper():
    """A resumed run: 60 rows are there at once, and the 40 that are not cost what generated rows cost."""
    run = Run(Source(total=100))
    run.meters["generate"].completed = Completed(recalled=60)
    run.meters["generate"].rows_in = run.meters["generate"].rows_out = 60
    shot = run.at(1.0, read=100, written=60)
    assert (shot.recalled, shot.eta_s) == (60, None)
    run.generated("generate", 100, 10, mean=50)
    shot = run.at(11.0, read=100, written=70)
    assert shot.eta_s == 30 * 50 / (500 / 11)
    assert "at most 33s left" in details_text(shot)


def test_each_of_two_generates_has_work_of_its_own():
    """The first is ahead; the second, which gets half of its rows, has three times the tokens a row."""
    run = Run(Source(total=100), names="read draft keep judge write")
    run.generated("draft", 60, 40, mean=10)
    run.meters["keep"].rows_in, run.meters["keep"].rows_out, run.meters["keep"].rejected = 40, 20, 20
    run.meters["judge"].completed = Completed()
    assert run.at(5.0, read=60, written=0).eta_unknown == "judge has finished no row yet"
    run.generated("judge", 20, 10, mean=30)
    left = 60 * 10 + (100 * 0.5 - 10) * 30
    assert run.at(10.0, read=60, written=10).eta_s == left / ((40 * 10 + 10 * 30) / 10)


def test_samples_are_completions_of_their_own():
    run = Run(Source(total=100))
    run.generated("generate", 50, 80, mean=10)
    run.meters["generate"].expanded = 150
    assert run.at(10.0, read=50, written=80).eta_s == (400 - 80) * 10 / 80


def test_where_nothing_is_generated_the_tokens_that_are_read_are_the_work_else_the_rows():
    run = Run(Source(total=100))
    run.meters["generate"].tokens_in, run.meters["generate"].rows_out = 400, 20
    assert run.at(10.0, read=50, written=20).eta_s == 80 * 20 / 40
    assert Run(Source(total=100)).at(10.0, read=50, written=20).eta_s == 80 / 2


def test_the_time_in_which_nothing_had_begun_is_no_part_of_a_rate():
    """A model that takes 100 s to load is not a slow one."""
    run = Run(Source(total=100))
    for now in (50.0, 100.0):
        assert run.at(now, read=0, written=0).eta_unknown == "nothing is done yet"
    assert run.at(101.0, read=50, written=20).rows_per_s == 20


def test_a_run_that_stands_still_has_no_end_in_sight():
    run = Run(Source(total=100))
    for now in (1.0, 30.0, 60.0):
        shot = run.at(now, read=50, written=20)
    assert (shot.rows_per_s, shot.eta_s, shot.eta_unknown) == (0, None, "nothing was finished in the last 20 s")


def test_rejected_rows_are_finished_rows():
    run = Run(Source(total=100))
    run.tally.add(Rejects(0, (Reject(row=1, reason="bad"), Reject(row=2, reason="bad"))))
    shot = run.at(10.0, read=50, written=20)
    assert (shot.rows, shot.errors, shot.filtered) == (22, 2, 0)


@pytest.mark.parametrize(
    ("source", "ended", "before", "total", "text"),
    [
        (Source(fraction=0.25), False, 0, (200, False), "20/~200 rows 10.0%"),
        (Source(fraction=0.9), True, 30, (80, True), "50/80 rows 62.5%"),
        (Count(0), False, 0, (None, False), "20 rows"),
    ],
    ids=["by the share that is read", "by what an ended source has sent", "not known"],
)
def test_the_total_is_estimated_and_says_so(source, ended, before, total, text):
    run = Run(source, before)
    run.executor.source_ended = ended
    shot = run.at(1.0, read=50, written=20)
    assert (shot.rows_total, shot.rows_total_exact, rows_text(shot)) == (*total, text)
    assert (shot.eta_unknown == "how many rows the source has is not known yet") == (total[0] is None)


def test_rows_and_rejects_of_earlier_attempts_are_done_and_not_part_of_the_rate():
    shot = Run(Source(total=100), 40, RejectCounts({("n", "error", ""): 3, ("n", "filtered", ""): 2})).at(
        10.0, read=50, written=20
    )
    assert (shot.rows, shot.rows_per_s, shot.eta_s) == (60, 2, 20)
    assert (shot.errors, shot.filtered) == (3, 2)


def test_rows_that_are_merged_again_are_shared_out_too():
    """Of 100 rows, 60 are read; three samples of each, and 90 of 180 are merged to 30 rows."""
    run = Run(Source(total=100), names="read draft whole write")
    run.generated("draft", 60, 180, mean=10)
    run.meters["draft"].expanded = 120
    whole = run.meters["whole"]
    whole.rows_in, whole.rows_out, whole.expanded = 180, 30, -60
    assert run.at(10.0, read=60, written=30).rows == 30 * 60 // (60 + 120 - 60)
    whole.rows_out, whole.expanded = 60, -120
    assert run.at(20.0, read=60, written=60).rows == 60


def test_branches_are_shared_out_and_may_all_be_merged():
    """A union makes two rows of one, and a Gather one of two: together they make none."""
    run = Run(Source(total=100), names="read both whole write", union=True)
    assert run.at(1.0, read=50, written=0).rows == 0
    run.meters["both"].rows_out = run.meters["whole"].rows_in = 100
    run.meters["whole"].rows_out, run.meters["whole"].expanded = 40, -40
    assert run.at(10.0, read=50, written=40).rows == 40 * 50 // (50 + 50 - 40)
    run.meters["whole"].rows_out, run.meters["whole"].expanded = 50, -50
    assert run.at(20.0, read=50, written=50).rows == 50


def test_rows_that_wait_to_be_merged_do_not_count_as_many():
    """Two samples of each row; of 80 rows the samples of 20 are merged, of 10 judged."""
    run = Run(Source(total=100), names="read draft whole judge write")
    run.generated("draft", 80, 160, mean=10)
    run.meters["draft"].expanded = 80
    whole = run.meters["whole"]
    whole.rows_in, whole.rows_out, whole.expanded = 160, 20, -20
    run.generated("judge", 20, 10, mean=30)
    left = 40 * 10 + (100 - 10) * 30
    assert run.at(10.0, read=80, written=10).eta_s == left / ((1600 + 300) / 10)


@pytest.mark.parametrize(
    ("waiting", "slowest"), [((100, 100), "write"), ((100, 3), "generate"), ((0, 2), "write"), ((0, 0), None)]
)
def test_the_queue_that_is_shown_is_the_last_of_the_fullest(waiting, slowest):
    run = Run(Source(total=100))
    run.meters["generate"].queue_rows, run.meters["write"].queue_rows = (lambda: waiting[0]), (lambda: waiting[1])
    assert run.at(1.0, read=50, written=20).queue == slowest


def test_clocks_are_shares_of_the_window():
    now = [0.0]
    run = Run(Source(total=100))
    meter = run.meters["generate"] = StageMeter("generate", lambda: now[0])
    meter.clock.start()
    for now[0] in (1.0, 50.0):
        run.at(now[0], read=1, written=1)
    with meter.clock.during(StageState.STARVED):
        now[0] = 65.0
    now[0] = 70.0
    (view,) = [node for node in run.at(70.0, read=2, written=2).nodes if node.name == "generate"]
    assert (view.busy, view.starved, view.blocked) == (0.25, 0.75, 0)
