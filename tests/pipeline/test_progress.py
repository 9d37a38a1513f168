"""How far, how fast, how long: on meters and a clock that the test sets."""

from __future__ import annotations

import io
import logging

import pytest

from pipeline.goal import Goal, Spent
from pipeline.meter import StageMeter
from pipeline.progress import Bar, Lines, Silent, details_text, duration, make_display, rows_text
from pipeline.records import Reject, Rejects
from pipeline.rejects import RejectTally
from pipeline.settings import TargetSettings
from pipeline.snapshot import Observer, Snapshot


class Source:
    """Knows its size, or how much it has read, or neither."""

    def __init__(self, total: int | None = None, fraction: float | None = None) -> None:
        self.total_rows = lambda: total
        self.fraction_read = lambda: fraction


class Run:
    """Three meters and an observer."""

    def __init__(self, source: object, committed: int = 0, goal: Goal | None = None) -> None:
        self.read, self.generate, self.write = (StageMeter(n) for n in ("read", "generate", "write"))
        self.tally = RejectTally()
        meters = [self.read, self.generate, self.write]
        self.observer = Observer(
            lambda: meters, "read", ["write"], self.tally, [lambda: "slots 3/4", lambda: ""], source, committed, goal
        )
        self.observer.take(0.0)

    def at(self, now_s: float, read: int, written: int, tokens: int) -> Snapshot:
        self.read.rows_out, self.write.rows_in, self.generate.tokens_out = read, written, tokens
        return self.observer.take(now_s)


def test_eta_is_remaining_rows_by_tokens_of_a_row_by_token_rate():
    shot = Run(Source(total=100)).at(10.0, read=50, written=20, tokens=400)
    assert (shot.rows, shot.rows_total, shot.fraction) == (20, 100, 0.2)
    assert shot.tokens_out_per_s == 40
    assert shot.eta_s == 80 * (400 / 20) / 40
    assert shot.statuses == ("slots 3/4",)


def test_without_tokens_the_rows_are_the_work():
    assert Run(Source(total=100)).at(10.0, read=50, written=20, tokens=0).eta_s == 80 / 2


def test_rejected_rows_are_finished_rows():
    run = Run(Source(total=100))
    run.tally.add(Rejects(0, (Reject(row=1, reason="bad"), Reject(row=2, reason="bad"))))
    shot = run.at(10.0, read=50, written=20, tokens=0)
    assert (shot.rows, shot.errors, shot.filtered) == (22, 2, 0)


def test_the_total_is_estimated_from_the_share_that_is_read():
    assert Run(Source(fraction=0.25)).at(1.0, read=50, written=20, tokens=0).rows_total == 200
    assert Run(object()).at(1.0, read=50, written=20, tokens=0).eta_s is None


def test_rows_of_earlier_attempts_are_done_and_not_part_of_the_rate():
    shot = Run(Source(total=100), committed=40).at(10.0, read=50, written=20, tokens=0)
    assert (shot.rows, shot.rows_per_s, shot.eta_s) == (60, 2, 20)


def test_expanded_rows_are_shared_out():
    run = Run(Source(total=100))
    run.generate.expanded = 50
    assert run.at(10.0, read=50, written=40, tokens=0).rows == 20


def test_rates_forget_what_is_older_than_the_window():
    run = Run(Source(total=1000))
    run.at(30.0, read=30, written=30, tokens=0)
    run.at(40.0, read=30, written=30, tokens=0)
    assert run.at(50.0, read=30, written=30, tokens=0).rows_per_s == 0


def test_the_texts():
    shot = Run(Source(total=2000)).at(10.0, read=50, written=20, tokens=400)
    assert rows_text(shot) == "20/2,000 rows 1.0%"
    assert details_text(shot) == "in 0 out 40 tok/s, slots 3/4, 16m30s left"
    assert [duration(s) for s in (7, 245, 7380)] == ["7s", "4m05s", "2h03m"]


def test_under_a_target_progress_is_that_of_accepted_rows():
    """Of 60 rows 20 were there before; 10 more took 5 s, so the other 30 take 15 s, whatever the source's."""
    goal = Goal(TargetSettings(accepted_rows=60))
    goal.go_on_from(Spent(accepted=20))
    run = Run(Source(fraction=0.5), committed=100, goal=goal)
    assert run.at(1.0, read=10, written=0, tokens=100).eta_s is None
    goal.arrived += 10
    shot = run.at(5.0, read=90, written=70, tokens=900)
    assert (shot.fraction, shot.eta_s, shot.accepted, shot.wanted) == (0.5, 15.0, 30, 60)
    assert rows_text(shot) == "30/60 accepted 50.0% of 170 rows"
    goal.arrived += 99  # of which none may be among the first
    shot = run.at(6.0, read=90, written=70, tokens=900)
    assert (shot.accepted, shot.eta_s) == (59, None)
    goal.accepted = 60
    assert run.at(7.0, read=90, written=70, tokens=900).fraction == 1.0


def test_log_lines_come_every_ten_seconds(caplog):
    run, lines = Run(Source(total=100)), Lines()
    with caplog.at_level(logging.INFO):
        for now in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0):
            lines.show(run.at(now, read=50, written=20, tokens=0))
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("progress", "kind"), [("auto", Lines), ("log", Lines), ("bar", Bar), ("none", Silent)])
def test_without_a_terminal_auto_means_log_lines(progress, kind):
    stream = io.StringIO()
    display = make_display(progress, stream)
    assert type(display) is kind
    display.show(Run(Source(total=100)).at(10.0, read=50, written=20, tokens=0))
    display.close()
    assert ("20/100 rows 20.0%" in stream.getvalue()) == (kind is Bar)
