"""What operators say at the end of a finished run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from pipeline.api.errors import ExitCode, StorageError
from pipeline.api.protocols import Concludes
from pipeline.api.records import LONGEST_REASON, Reject, RejectKind, Rejects
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.reject_writer import MAX_REASONS, RejectTally
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.monitor.summary import Outcome, closing_lines, report_lines, summary_lines
from pipeline.monitor.wording import of_the_limit, one_line
from pipeline.results.reject_reasons import with_reason
from pipeline.run_dir.chunk_record import RejectCounts
from pipeline.run_dir.state import RunStatus
from pipeline.settings import TargetSettings
from tests.pipeline.ops import Collect, Count


class Says(Collect, Concludes):
    def report(self, directory: Path, node: str) -> Iterable[str]:
        yield f"results of {directory.name}"


class SaysLines(Collect, Concludes):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return self._lines


class Fails(Collect, Concludes):
    def report(self, directory: Path, node: str) -> Iterable[str]:
        raise OSError("the disk is gone")


def test_a_report_that_fails_is_named_and_spoils_no_other(tmp_path):
    nodes = {"count": Node(Count(1)), "fails": Node(Fails(), ("count",)), "says": Node(Says(), ("count",))}
    assert report_lines(Graph(nodes), tmp_path / "out") == [
        "node 'fails' cannot report: OSError: the disk is gone",
        "results of out",
        "",
    ]


def test_what_operators_say_is_set_apart_from_the_summary_by_one_empty_line(tmp_path):
    for said in ([], ["one"], ["one", ""]):
        graph = Graph({"count": Node(Count(1)), "says": Node(SaysLines(said), ("count",))})
        assert report_lines(graph, tmp_path) == (["one", ""] if said else [])


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ((500, 40), "tokens      500 in, 40 out (250 and 20 tokens/s)"),
        ((500, 0), "tokens      500 in (250 tokens/s)"),
        ((0, 0), None),
    ],
)
def test_tokens_that_there_are_none_of_are_not_counted(tmp_path, tokens, says):
    lines = summary_lines(outcome(tmp_path, *tokens))
    assert next((line for line in lines if line.startswith("tokens")), None) == says


def test_an_interrupted_run_does_not_look_as_if_its_finished_rows_were_lost(tmp_path):
    stopped = replace(
        outcome(tmp_path, 5, 5), status=RunStatus.INTERRUPTED, exit_code=ExitCode.INTERRUPTED, rows=160, uncommitted=16
    )
    assert "input       160 rows committed; output 1 rows" in summary_lines(stopped)
    assert closing_lines(stopped) == ["exit code 4: 160 rows are committed; the same command resumes"]
    storing = replace(stopped, totals={"generate/store_queries": 0.0})
    assert "input       160 rows committed (16 more in the store); output 1 rows" in summary_lines(storing)
    kept = "every finished completion is in the store; the same command resumes"
    assert closing_lines(storing) == [f"exit code 4: 160 rows are committed, and {kept}"]
    assert closing_lines(replace(storing, rows=1)) == [f"exit code 4: one row is committed, and {kept}"]
    assert closing_lines(replace(storing, rows=0)) == [f"exit code 4: no row is committed, and {kept}"]


@pytest.mark.parametrize("data_rows", [0, 1])
def test_results_are_named_once_there_are_any(tmp_path, data_rows):
    lines = summary_lines(replace(outcome(tmp_path, 5, 5), data_rows=data_rows))
    assert [line for line in lines if line.startswith("results")] == [f"results     {tmp_path / 'data'}"] * data_rows


@pytest.mark.parametrize(
    ("data_rows", "accepted", "says"),
    [(3, 3, "output 3 of 3 rows"), (7, 3, "output 3 of 3 rows, 7 in all sinks"), (2, 3, "output 2 of 3 rows")],
)
def test_a_target_counts_the_rows_of_its_own_sink(tmp_path, data_rows, accepted, says):
    target = TargetProgress(TargetSettings(accepted_rows=3))
    target.accepted = accepted
    lines = summary_lines(replace(outcome(tmp_path, 5, 5), data_rows=data_rows, target=target))
    assert lines[1].endswith(says)


def test_a_run_that_failed_says_where_the_whole_error_is(tmp_path):
    failed = replace(outcome(tmp_path, 5, 5), status=RunStatus.FAILED, exit_code=ExitCode.FAILED)
    assert closing_lines(failed)[-1].endswith(f"the same command resumes; {tmp_path / 'run.log'} has the whole error")
    full = replace(failed, error=StorageError("the disk is full", tmp_path, full=True))
    assert closing_lines(full)[-1].endswith("the same command resumes")


@pytest.mark.parametrize(("rows", "data_rows", "told"), [(12, 0, True), (12, 1, False), (0, 0, False)])
def test_a_run_without_a_row_says_where_to_look(tmp_path, rows, data_rows, told):
    done = replace(outcome(tmp_path, 5, 5), rows=rows, data_rows=data_rows)
    says = "no row reached data/: the rejects above say at which node they left, and why"
    assert closing_lines(done) == ([says] if told else [])


def test_a_summary_has_ten_lines_at_most_and_cuts_reasons_between_words(tmp_path):
    rejects = RejectCounts({("node", "error", f"reason {letter} " + "is long " * 40): 9 for letter in "abcde"})
    tokens = {"shared_tokens": 412.0, "slot_steps": 8.0, "slot_steps_used": 6.0}
    whole = replace(outcome(tmp_path, 500, 40), rejects=rejects, totals=tokens, exit_code=ExitCode.REJECTS, attempt=2)
    lines = summary_lines(whole)
    assert len(lines) + len(["report"]) + len(closing_lines(whole)) == 10
    assert "rejects     45: the first 3 of 5 reasons; rejects/ has all" in lines
    assert all(line.endswith(("long ...", "is ...")) for line in lines if "at node" in line)
    assert (
        "tokens      500 in, 412 of them from the prefix cache, 40 out (250 and 20 tokens/s) in this attempt;"
        " slots 75.0% full"
    ) in lines


def test_the_share_of_the_limit_is_told_with_what_it_is_a_share_of():
    sums = {"work_s": 2.0, "work_limit_s": 0.8, "work_bytes": 24.8e9, "work_bytes_s": 0.8, "work_macs": 2e11}
    sums["work_macs_s"] = 0.25
    assert of_the_limit(sums) == "12.4 of 31 GB/s and 100 of 800 GMAC/s: 40.0 % of this machine's limit"
    several = {key: 3 * value for key, value in sums.items()}  # attempts and workers are added up
    assert of_the_limit(several) == of_the_limit(sums)
    assert of_the_limit({}) == of_the_limit(dict.fromkeys(sums, 0.0)) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [("one two", "one two"), ("one\ntwo", "one two"), ("one two three", "one two ..."), ("x" * 30, "xxxxxxx ...")],
)
def test_a_text_on_one_line_is_cut_between_words_where_it_has_any(text, shown):
    assert one_line(text, 11) == shown


@pytest.mark.parametrize(
    ("kind", "reason", "explained"),
    [
        ("error", "has N fields, the header has N", True),
        ("error", "column '…' is not UTF-8", True),
        ("error", "NaN is no number", False),
        ("filtered", "more than N words", False),
        ("filtered", "equal to row N in prompt", True),
    ],
)
def test_what_stands_for_the_values_of_rows_is_explained_where_it_is_shown(tmp_path, kind, reason, explained):
    lines = summary_lines(replace(outcome(tmp_path, 0, 0), rejects=RejectCounts({("read", kind, reason): 2})))
    assert ("N and '…' differ from row to row; rejects/ has all" in "\n".join(lines)) == explained


def outcome(directory: Path, tokens_in: int, tokens_out: int) -> Outcome:
    return Outcome(
        job="job",
        run_id="",
        status=RunStatus.DONE,
        exit_code=ExitCode.DONE,
        error=None,
        attempt=1,
        started_at="",
        directory=directory,
        rows=1,
        new_rows=1,
        uncommitted=0,
        data_rows=1,
        rejects=RejectCounts(),
        new_rejects=RejectCounts(),
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        wall_s=2.0,
        totals={},
        max_error_rate=0.0,
        target=None,
    )


@pytest.mark.parametrize(
    ("kind", "reasons", "counted_as"),
    [
        ("error", ["column 'a' is not UTF-8: 'x1'", "column 'b' is not UTF-8: 'y'"], "column '…' is not UTF-8: '…'"),
        ("error", ["has 3 fields", "has 12 fields"], "has N fields"),
        ("error", ["has 67,108,864 bytes, 9 may be", "has 1.5 bytes, 1,234 may be"], "has N bytes, N may be"),
        ("error", ["the text is UTF-16, not UTF-8, at 7"], "the text is UTF-16, not UTF-8, at N"),
        (
            "error",
            ["the server http://h1:9101 says 400: 7 is too long", "the server http://h1:9101 says 400: 12 is too long"],
            "the server http://h1:9101 says 400: N is too long",
        ),
        ("error", ["the server says 1234: 7", "the server says 4001: 7"], "the server says N: N"),
        ("error", ["tokens 7,8 and 1,2.", "tokens 1,2 and 3,4."], "tokens N,N and N,N."),
        ("error", ["bad beside row 3", "bad beside row 12, lineage [0, 2],"], "bad beside row N"),
        ("filtered", ["equal to row 3 in b2", "equal to row 12, lineage [0, 2], in b2"], "equal to row N in b2"),
        ("filtered", ["0.81 like row 3 in a", "1.00 like row 4, lineage [7], in a"], "N like row N in a"),
        ("filtered", ["where: x > 3 AND y LIKE 'a'"], "where: x > 3 AND y LIKE 'a'"),
    ],
)
def test_rows_are_counted_by_reason_without_their_values(kind, reasons, counted_as):
    tally = RejectTally()
    tally.add(Rejects(0, tuple(Reject(i, why, kind=RejectKind(kind)) for i, why in enumerate(reasons)), "read"))
    assert dict(tally.by_reason) == {("read", kind, counted_as): len(reasons)}
    rows = pl.LazyFrame({"node": "read", "kind": kind, "reason": reasons})  # as the report counts them
    assert with_reason(rows, tally.by_reason).collect().height == len(reasons)


def test_long_reasons_lose_their_middle_and_a_run_counts_so_many_reasons_over_all_attempts():
    long = Reject(0, "begin " + "x" * 200_000 + " remedy")
    assert len(long.reason) < LONGEST_REASON + 40
    assert (long.reason[:7], long.reason[-8:]) == ("begin x", "x remedy")
    assert "(198,013 more characters)" in long.reason
    counts: Counter[tuple[str, str, str]] = Counter()
    for attempt in range(3):
        tally = RejectTally()
        tally.know(counts)
        words = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}{'abc'[attempt]}" for i in range(80)]
        counts += tally.add(Rejects(attempt, tuple(Reject(i, word) for i, word in enumerate(words)), "read"))
    assert len(counts) == MAX_REASONS + 1
    assert counts["read", "error", "(other reasons)"] == 3 * 80 - MAX_REASONS
