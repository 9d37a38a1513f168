"""Every place that tells how many rows a run had tells the same numbers (docs/metrics.md says which). A reason that
is counted for many rows has what all of them have in common, and placeholders for the rest alone."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.records import Reject, RejectKind, Rejects
from pipeline.cli.main import main
from pipeline.dataflow.reject_writer import RejectTally
from pipeline.results.reader import read_results
from pipeline.results.reject_reasons import of_all_rows
from pipeline.results.report.page import page
from pipeline.results.report.time_spent import time_spent
from pipeline.results.report.totals import totals
from pipeline.run_dir.state import RunState
from pipeline.settings import JobSettings
from tests.pipeline import squares
from tests.pipeline.dataflow import test_target
from tests.pipeline.squares import run
from tests.sets import often

Rows = dict[str, list[int]]
"""By node: rows in, rejected, rows out."""


def resumed(directory: Path) -> JobSettings:
    """A run that has failed at row 27, after it had read on to the end."""
    broken = directory.with_name("broken")
    broken.touch()
    settings = squares.job(directory, square={"fail_at": 27, "broken": str(broken), "bad": [4]}, max_error_rate=1)
    assert run(settings) is ExitCode.FAILED
    broken.unlink()
    return settings


def abandoning(directory: Path, **more: Any) -> JobSettings:
    """60 rows have passed with row 148; by then row 200 has long been read."""
    waits = {"waits": {"_target_": f"{test_target.TARGET_OPS}.WaitsForEver", "row": 200}}
    return test_target.job(directory, middle=waits, max_open_chunks=30, **more)


RUNS: dict[str, tuple[Callable[[Path], JobSettings], ExitCode]] = {
    "simple": (squares.job, ExitCode.DONE),
    "rejects": (lambda out: squares.job(out, square={"bad": [3, 30, 31]}), ExitCode.REJECTS),
    "resumed": (resumed, ExitCode.DONE),
    "target": (abandoning, ExitCode.DONE),
    "budget": (lambda out: test_target.job(out, max_rounds=1), ExitCode.BUDGET),
}


@pytest.mark.parametrize("kind", often(RUNS, *[*RUNS][:2]))
def test_summary_status_accounts_and_report_agree(tmp_path, capsys, kind):
    make, code = RUNS[kind]
    settings = make(tmp_path / "out")
    capsys.readouterr()
    assert run(settings) is code
    shown = capsys.readouterr().out
    assert main(["status", str(tmp_path / "out")]) in (ExitCode.DONE, ExitCode.INTERRUPTED)
    screen = capsys.readouterr().out
    state = RunState(tmp_path / "out/state.sqlite")
    committed, rejected = state.committed_rows, state.rejects().total()
    accounts = {node: [c.rows_in, c.rejected, c.rows_out] for node, c in state.accounts().items()}
    state.close()
    results = read_results(tmp_path / "out")
    output = results.counts["data_rows"]

    assert f"input       {committed:,} rows done" in shown
    assert re.search(rf"rejects +{rejected or 'none'}\b", shown)
    assert f"output {output:,}" in shown

    status = json.loads((tmp_path / "out/status.json").read_text())
    assert {node: [c["rows_in"], c["rejected"], c["rows_out"]] for node, c in status["accounts"].items()} == accounts
    assert (status["rows"], status["errors"] + status["filtered"]) == (committed, rejected)
    assert _table(screen, "node", 1, 3, 2) == accounts
    assert "of 160 rows" in screen if kind == "target" else f"{committed}" in screen

    (panel,) = time_spent(results)
    (stages,) = panel.tables
    report = {str(row[0]): [int(str(row[i])) for i in (1, 3, 4)] for row in stages.rows}
    assert report == accounts
    assert dict(totals(results))["rows done"] == str(committed)
    text = page(results)
    assert f"exit code {int(code)}</span>" in text
    assert ("3 errors in 45 rows are more than max_error_rate=0.01 allows" in text) == (code is ExitCode.REJECTS)


def _table(text: str, head: str, *places: int) -> Rows:
    """By the first cell, the cells at `places` of the lines behind the one that begins with `head`."""
    lines = dropwhile(lambda line: not line.startswith(head), text.replace(",", "").splitlines())
    rows = takewhile(lambda cells: len(cells) > 4 and cells[1].isdigit(), map(str.split, islice(lines, 1, None)))
    return {cells[0]: [int(cells[place]) for place in places] for cells in rows}


PIECES = (
    "7",
    "8",
    "1,234",
    "1.5",
    "'a'",
    "'b 3'",
    "row 3",
    "row 4, lineage [0, 2],",
    "0.9 like row 5",
    "N",
    "None",
    "x1",
)
WORDS = ("is", "says", "says 400:", "the server http://h1:80", "UTF-8", "UTF-16", ",", "it's", "(", "row")


def told(reasons: list[str], kind: RejectKind = RejectKind.ERROR) -> dict[str, str]:
    """Return what is told of rejects with `reasons`, by what they are counted as."""
    tally = RejectTally()
    tally.add(Rejects(0, tuple(Reject(i, why, kind=kind) for i, why in enumerate(reasons)), "read"))
    rejects = pl.LazyFrame({"node": "read", "kind": kind.value, "reason": reasons})
    whole = of_all_rows(rejects, tally.by_reason)
    return {key[2]: whole.get(key, key[2]) for key in tally.by_reason}


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        (["column 'a' has 3 fields of 7", "column 'a' has 12 fields of 7"], "column 'a' has N fields of 7"),
        (["column 'a' has 3 fields", "column 'b' has 3 fields"], "column '…' has 3 fields"),
        (["a 5xx of tier 1, 9 in 3 tries", "a 5xx of tier 1, 10 in 3 tries"], "a 5xx of tier 1, N in 3 tries"),
        (["row 3 and row 4", "row 3 and row 5"], "row 3 and row N"),
    ],
)
def test_what_all_rows_share_is_told_as_it_is(reasons, shown):
    assert list(told(reasons).values()) == [shown]


def test_whatever_the_reasons_are():
    rng = random.Random(0)
    for _ in range(10):
        shape = [rng.choice((PIECES, WORDS)) for _ in range(rng.randrange(1, 7))]
        fixed = [rng.choice(pieces) for pieces in shape]
        drawn = [[rng.choice(s) if s is PIECES else f for s, f in zip(shape, fixed, strict=True)] for _ in range(3)]
        reasons = [" ".join(pieces) for pieces in (fixed, *drawn)]
        for kind in RejectKind:
            found = told(reasons, kind)
            for counted, shown in found.items():
                assert list(told([shown], kind)) == [counted]
                like = re.sub("N|'…'", ".+", re.escape(shown))
                assert len(found) > 1 or all(re.fullmatch(like, reason) for reason in reasons)
            assert set(told([reasons[0]] * 2, kind).values()) == {reasons[0]}
