"""Files at the end of a run: there when it is done, gone while it is not, made again when one is lost. A run that a
budget has ended is not done: its files are whole, and nothing beside them says that they are all."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from operators.settings import OutputSettings
from pipeline.api.errors import ExitCode
from pipeline.api.protocols import Concludes, Runtime
from pipeline.api.records import Batch, Output
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.monitor.recorder import Recorder
from pipeline.run_dir.names import CARD
from pipeline.run_dir.state import STATE_FILE
from pipeline.runs.run import run_job
from pipeline.settings import HookSettings, JobSettings, NodeSettings, TargetSettings
from tests.pipeline.dataflow.test_target import TARGET_OPS, first_passing, job, rows
from tests.pipeline.faulty import URL, Faulty, register
from tests.pipeline.job_ops import Parquet
from tests.pipeline.ops import Passes
from tests.pipeline.squares import OPS, files, run
from tests.pipeline.squares import job as squares

COMPLETE = {CARD, "manifest.json"}


@pytest.fixture(autouse=True)
def place():
    register()


def everything(out: Path, **more: Any) -> JobSettings:
    """60 rows wanted, with two sinks, files of all results, a card, a URL, a hook and a file for Prometheus."""
    settings = job(
        out,
        sink="write",
        output=OutputSettings(publish=URL, retries=0),
        prometheus_file=str(out.with_name("run.prom")),
        on_finish=HookSettings(["/bin/sh", "-c", f"cat > {out.with_name('told')}"]),
        **more,
    )
    settings.nodes["write"].op["_target_"] = f"{__name__}.Totalling"
    settings.nodes["aside"] = NodeSettings({"_target_": f"{TARGET_OPS}.Aside"}, "numbers")
    return settings


def listed_at_the_url() -> list[str]:
    return [shard["path"] for shard in json.loads(Faulty.files()["manifest.json"])["shards"]]


def test_nothing_is_published_concluded_or_described_until_the_target_is_reached(tmp_path, capsys):
    out = tmp_path / "out"
    assert run(everything(out, max_tokens=1)) is ExitCode.BUDGET
    says = f"published   nothing yet: manifest.json at {URL} lists no file until the run is done"
    assert says in capsys.readouterr().out
    assert listed_at_the_url() == []
    assert [name for name in (TOTAL, CARD) if (out / name).exists()] == []
    assert run(everything(out)) is ExitCode.DONE
    assert rows(out) == first_passing(60)
    assert (out / TOTAL).read_text() == str(len(list((out / "data").iterdir())))
    assert set(listed_at_the_url()) == files(out).keys() == Faulty.files().keys() - COMPLETE
    assert {name: Faulty.files()[name] for name in COMPLETE} == {name: (out / name).read_bytes() for name in COMPLETE}


def test_whoever_asks_or_is_told_hears_of_the_budget(tmp_path, capsys):
    out = tmp_path / "out"
    run(everything(out, max_rows=50))
    told = json.loads((tmp_path / "told").read_text())
    assert (told["state"], told["exit_code"], told["rows"], told["error"]) == ("budget", 5, 50, None)
    gauges = (tmp_path / "run.prom").read_text()
    assert 'llama_batch_running{job="picky"} 0\n' in gauges
    assert 'llama_batch_exit_code{job="picky"} 5\n' in gauges
    capsys.readouterr()
    assert main(["status", str(out)]) == ExitCode.INTERRUPTED
    says = (
        "run.log say what makes it go on (a budget was spent before the target was reached, exit code 5; last heartbeat"
    )
    assert says in capsys.readouterr().out
    assert main(["report", str(out)]) == ExitCode.DONE
    assert "ended by a budget, before its target was reached" in (out / "report.html").read_text()
    assert main(["compare", str(out), str(out)]) == ExitCode.DONE


def test_the_card_of_replaced_results_does_not_stand_beside_the_new_ones(tmp_path):
    out = tmp_path / "out"
    assert run(everything(out)) is ExitCode.DONE
    assert (out / CARD).exists()
    assert run(everything(out, max_rows=50, overwrite=True)) is ExitCode.BUDGET
    assert not (out / CARD).exists()


def test_a_repair_that_a_budget_ends_keeps_the_files_that_it_has_not_made_again(tmp_path):
    """The state is lost, and with it what had been spent."""
    out = tmp_path / "out"
    assert run(job(out, max_tokens=300, max_open_chunks=1)) is ExitCode.BUDGET
    before = files(out)
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("max_tokens: 300", "max_tokens: 1"))
    (out / "state.sqlite").write_bytes(b"no database" * 500)
    assert main(["verify", str(out), "repair=true"]) == ExitCode.FAILED  # until the job's command has ended it
    assert files(out) == before
    assert run(job(out)) is ExitCode.DONE
    assert rows(out) == first_passing(60)


def test_where_a_node_takes_no_more_rows_the_source_does_not_go_on_for_the_other_sinks(tmp_path, capsys):
    limit = {"limit": {"_target_": "operators.limit.Limit", "rows": 10}}
    settings = job(tmp_path, middle=limit, sink="write", max_rounds=5)
    settings.nodes["aside"] = NodeSettings({"_target_": f"{TARGET_OPS}.Aside"}, "numbers")
    for _ in range(2):  # the same command again has nothing to add
        assert run(settings) is ExitCode.BUDGET
        assert "exit code 5: a node took no more rows before the target was reached" in capsys.readouterr().out
        assert rows(tmp_path) == first_passing(10)
        assert [row["row"] for row in rows(tmp_path, "data/aside")] == list(range(32))


class Spends(Passes):
    """Makes 10 tokens, at a price, and dies while the file `broken` is there."""

    twice = False

    def __init__(self, broken: str) -> None:
        self.broken = Path(broken)

    def open(self, runtime: Runtime) -> None:
        self.meter = runtime.meter
        self.database = runtime.output_dir / STATE_FILE
        self.before = self.noted()

    def noted(self) -> float:
        with closing(sqlite3.connect(self.database)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'spent'").fetchone()
        return json.loads(row[0])["cost"] if row else 0.0

    def process(self, batch: Batch) -> list[Output]:
        self.meter.tokens_out += 10
        self.meter.cost += 0.5
        if self.broken.exists():
            for _ in range(2000):  # a tick notes it
                if self.noted() > self.before:
                    break
                time.sleep(0.01)
            raise RuntimeError("dies before a chunk is committed")
        return [batch]


@pytest.mark.parametrize("budget", [{"max_tokens": 25}, {"max_cost": 1.2}])
def test_a_budget_holds_over_attempts_that_commit_nothing(tmp_path, budget):
    broken = tmp_path / "broken"
    broken.touch()
    settings = squares(tmp_path / "out", target=TargetSettings(accepted_rows=1000, **budget))
    settings.nodes["square"] = NodeSettings({"_target_": f"{__name__}.Spends", "broken": str(broken)}, "numbers")
    for _ in range(3):
        assert run_job(settings, Resources()) is ExitCode.FAILED
    broken.unlink()
    assert run_job(settings, Resources()) is ExitCode.BUDGET
    assert not list((tmp_path / "out/data").glob("*"))


def test_what_is_spent_is_recorded_while_a_run_works(tmp_path, monkeypatch):
    """A killed attempt has no end at which it could be."""
    monkeypatch.setattr(Recorder, "finish", lambda recorder: recorder._observer.take(0.0))
    test_a_budget_holds_over_attempts_that_commit_nothing(tmp_path, {"max_cost": 1.2})


TOTAL = "total.txt"


class Totalling(Parquet, Concludes):
    """Says how many files there are, unless the file `broken` is there."""

    concluded = (TOTAL, "second.txt")
    broken: Path | None = None

    def conclude(self, directory: Path) -> None:
        if self.broken is not None and self.broken.exists():
            (directory / TOTAL).write_text("half")
            raise RuntimeError("as the test wants it")
        for name in self.concluded:
            (directory / name).write_text(str(len(list((directory / "data").iterdir()))))


def total(directory: Path, rows: int = 45, *, overwrite: bool = False) -> ExitCode:
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": rows}),
        "write": NodeSettings({"_target_": f"{__name__}.Totalling"}, "numbers"),
    }
    settings = JobSettings(name="totals", nodes=nodes, output_dir=str(directory), progress="none", overwrite=overwrite)
    return run_job(settings, Resources())


@pytest.fixture
def broken(tmp_path, monkeypatch) -> Iterator[Path]:
    path = tmp_path / "broken"
    path.touch()
    monkeypatch.setattr("tests.pipeline.runs.test_budget_ends.Totalling.broken", path)
    return path


def test_they_are_made_when_everything_is_committed(tmp_path):
    assert total(tmp_path / "out") is ExitCode.DONE
    assert (tmp_path / "out" / TOTAL).read_text() == "5"


def test_a_run_that_fails_while_it_makes_them_is_not_done_and_the_next_one_makes_them(tmp_path, broken):
    out = tmp_path / "out"
    assert total(out) is ExitCode.FAILED
    broken.unlink()
    assert total(out) is ExitCode.DONE
    assert (out / TOTAL).read_text() == "5"


def test_those_of_another_run_are_gone_before_the_first_row(tmp_path, broken):
    out = tmp_path / "out"
    broken.rename(tmp_path / "later")
    assert total(out) is ExitCode.DONE
    (tmp_path / "later").rename(broken)
    assert total(out, rows=25, overwrite=True) is ExitCode.FAILED
    assert not (out / "second.txt").exists()


def test_a_finished_run_makes_one_again_that_is_lost_and_says_so(tmp_path, capsys):
    out = tmp_path / "out"
    total(out)
    (out / TOTAL).unlink()
    assert total(out) is ExitCode.DONE
    assert (out / TOTAL).read_text() == "5"
    assert "total.txt had gone" in capsys.readouterr().out
    total(out)
    assert "had gone" not in capsys.readouterr().out
