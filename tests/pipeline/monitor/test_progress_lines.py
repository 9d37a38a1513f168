"""What is shown while a run runs: log lines, JSON, and a bar where there is a terminal."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace

import pytest

from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.display import (
    Bar,
    Display,
    Lines,
    details_text,
    fields,
    make_display,
    pairs_text,
    rows_text,
)
from pipeline.monitor.run_log import run_log
from pipeline.monitor.wording import duration
from pipeline.settings import TargetSettings
from tests.pipeline.monitor.test_display import Run, Source


def test_the_texts():
    run = Run(Source(total=2000))
    run.meters["generate"].queue_rows = lambda: 80
    run.generated("generate", 50, 20, mean=20)
    shot = run.at(10.0, read=50, written=20)
    assert rows_text(shot) == "20/2,000 rows 1.0%"
    assert details_text(shot) == "10s, 16m30s left, 0 tok/s in, 40 tok/s out, slots 3/4, queue generate 80/100"
    assert [duration(s) for s in (7, 245, 7380)] == ["7s", "4m05s", "2h03m"]


def test_a_log_line_is_pairs_that_a_program_can_take_apart():
    run = Run(Source(total=2000))
    run.generated("generate", 50, 20, mean=20)
    values = fields(run.at(10.0, read=50, written=20))
    assert dict(pair.split("=", 1) for pair in pairs_text(values).split(" ")) == {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }
    assert (values["rows"], values["eta_s"], values["slots"], values["queue"]) == (20, 990.0, "3/4", None)
    assert pairs_text({"a": "b c", "d": 'e"'}) == 'a="b c" d="e\\""'


def test_under_a_target_progress_is_that_of_accepted_rows():
    """Of 60 rows 20 were there before; 10 more took 4 s, so the other 30 take 12 s, whatever the source's."""
    target = TargetProgress(TargetSettings(accepted_rows=60))
    target.resume(20)
    run = Run(Source(fraction=0.5), 100, names="read generate target", target=target)
    assert run.at(1.0, read=10, written=0).eta_s is None
    target.arrived += 10
    shot = run.at(5.0, read=90, written=70)
    assert (shot.fraction, shot.eta_s, shot.accepted, shot.wanted) == (0.5, 12.0, 30, 60)
    assert rows_text(shot) == "30/60 accepted 50.0% of 170 rows"
    target.arrived += 99  # of which none may be among the first
    shot = run.at(6.0, read=90, written=70)
    assert (shot.accepted, shot.eta_s) == (59, None)
    target.accepted = 60
    assert run.at(7.0, read=90, written=70).fraction == 1.0


def test_log_lines_come_every_ten_seconds(caplog):
    run, lines = Run(Source(total=100)), Lines()
    with caplog.at_level(logging.INFO):
        for now in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0):
            lines.show(run.at(now, read=50, written=20))
    assert [message.partition(" rows_total")[0] for message in caplog.messages] == ["progress rows=20"] * 2


def test_with_progress_json_every_line_on_the_terminal_is_an_object(tmp_path, capsys):
    with run_log(tmp_path, "json"):
        logging.getLogger("pipeline.x").warning("a disk\nis full")
        Lines().show(Run(Source(total=100)).at(10.0, read=50, written=20))
    said, progress = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["level"], said["logger"], said["message"]) == ("warning", "pipeline.x", "a disk\nis full")
    assert (progress["message"], progress["rows"], progress["rows_total"]) == ("progress", 20, 100)
    assert "progress rows=20" in (tmp_path / "run.log").read_text()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("progress", "stream", "kind"),
    [
        ("auto", Terminal(), Bar),
        ("auto", io.StringIO(), Lines),
        *(("log", Terminal(), Lines), ("json", Terminal(), Lines), ("none", Terminal(), Display)),
    ],
)
def test_auto_means_a_bar_on_a_terminal_and_log_lines_elsewhere(progress, stream, kind):
    display = make_display(progress, stream)
    assert type(display) is kind
    display.show(Run(Source(total=100)).at(10.0, read=50, written=20))
    display.close()
    assert ("20/100 rows 20.0%" in stream.getvalue()) == (kind is Bar)


def test_60_columns_have_room_for_the_time_left():
    run, stream = Run(Source(total=12_000)), io.StringIO()
    run.generated("generate", 50, 20, mean=20)
    bar = Bar(stream)
    bar.show(run.at(3700.0, read=50, written=20))
    bar.close()
    shown = stream.getvalue().split("\r")[-1].rstrip()
    assert "| 20/12,000 rows 0.2%, 1h01m, 615h38m left" in shown[:60]


def test_a_run_that_is_stopped_has_no_time_left(tmp_path):
    """Only the time that it took."""
    shot = replace(Run(Source(total=100)).at(10.0, read=50, written=20), eta_s=None, ending=True)
    assert details_text(shot) == "10s, 2 rows/s, slots 3/4"


def test_the_bar_shows_a_status_on_one_line_and_without_what_a_terminal_obeys():
    stream = io.StringIO()
    bar = Bar(stream)
    bar.show(replace(Run(Source(total=100)).at(1.0, read=1, written=1), statuses=("a\nb\x1b[2J\u202e",)))
    bar.close()
    assert r"a\nb\x1b[2J\u202e" in stream.getvalue()
    assert "\u202e" not in stream.getvalue()
