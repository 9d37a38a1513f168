"""A run under a target gives the first rows that pass, counted over endless rounds of the source, and no others."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.meter import RowCounts, StageMeter
from pipeline.api.protocols import ListInbox
from pipeline.api.records import LINEAGE, ROW, Batch, ChunkEnd, Rejects
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.cli.main import main
from pipeline.config.build import build_graph
from pipeline.dataflow.target import Target
from pipeline.dataflow.target_progress import TargetProgress
from pipeline.dry_run.estimate import plan_lines
from pipeline.results.report.totals import WORDS
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.settings import JobSettings, NodeSettings, TargetSettings
from tests.pipeline.squares import files, run
from tests.pipeline.target_ops import passes
from tests.sets import often, often_cases

OPS, TARGET_OPS = "tests.pipeline.job_ops", "tests.pipeline.target_ops"
N = 45
"""Rows of a round; the source's own chunks have 10."""


def job(directory: Path, wanted: int = 60, rows: int = N, batch_rows: int = 3, **more: Any) -> JobSettings:
    target = {key: more.pop(key) for key in list(more) if key in TargetSettings.__dataclass_fields__}
    middle = more.pop("middle", {})
    nodes = {
        "numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": rows, "batch_rows": batch_rows}),
        "picky": NodeSettings({"_target_": f"{TARGET_OPS}.Picky"}, "numbers"),
    }
    for name, op in middle.items():
        nodes[name] = NodeSettings(op, next(reversed(nodes)))
    nodes["write"] = NodeSettings({"_target_": f"{OPS}.Parquet"}, next(reversed(nodes)))
    return JobSettings(
        name="picky",
        nodes=nodes,
        output_dir=str(directory),
        progress="none",
        target=TargetSettings(accepted_rows=wanted, **target),
        **more,
    )


def rows(directory: Path, folder: str = "data") -> list[dict[str, int]]:
    return [row for path in sorted((directory / folder).glob("part-*")) for row in pq.read_table(path).to_pylist()]


def first_passing(wanted: int) -> list[dict[str, int]]:
    numbers = itertools.islice(filter(passes, itertools.count()), wanted)
    return [{"row": row, "x": row % N} for row in numbers]


@pytest.mark.parametrize(("wanted", "chunk_rows"), often_cases([(1, 7), (60, 7), (60, 64)], 64))
def test_the_rows_are_the_first_that_pass_over_all_rounds(tmp_path, wanted, chunk_rows):
    settings = job(tmp_path, wanted)
    settings.target.chunk_rows = chunk_rows
    assert run(settings) is ExitCode.DONE
    assert rows(tmp_path) == first_passing(wanted)


def test_how_far_the_source_runs_ahead_changes_no_byte(tmp_path):
    for name, more in (("a", {"max_open_chunks": 1}), ("b", {"max_open_chunks": 50, "batch_rows": 1})):
        assert run(job(tmp_path / name, **more)) is ExitCode.DONE
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("fail_at", often([46, 140], 140))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, fail_at):
    broken = tmp_path / "broken"
    fails = {"fails": {"_target_": f"{TARGET_OPS}.FailAtRow", "row": fail_at, "broken": str(broken)}}
    assert run(job(tmp_path / "whole", middle=fails)) is ExitCode.DONE
    broken.touch()
    assert run(job(tmp_path / "out", middle=fails)) is ExitCode.FAILED
    broken.unlink()
    assert run(job(tmp_path / "out", middle=fails)) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert rows(tmp_path / "out") == first_passing(60)


def test_what_is_in_flight_is_neither_waited_for_nor_kept(tmp_path):
    """60 rows have passed with row 148. What is done for row 200 would never end."""
    waits = {"waits": {"_target_": f"{TARGET_OPS}.WaitsForEver", "row": 200}}
    assert run(job(tmp_path / "out", middle=waits, max_open_chunks=30)) is ExitCode.DONE
    assert run(job(tmp_path / "plain")) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "plain")


def test_a_sink_that_was_ahead_keeps_no_more_than_the_others(tmp_path):
    settings = job(tmp_path, sink="write", max_open_chunks=30)
    settings.nodes["aside"] = NodeSettings({"_target_": f"{TARGET_OPS}.Aside"}, "numbers")
    assert run(settings) is ExitCode.DONE
    assert rows(tmp_path) == first_passing(60)
    assert [row["row"] for row in rows(tmp_path, "data/aside")] == list(range(160))  # ten chunks of 16


def test_the_accounts_of_all_attempts_add_up(tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.touch()
    settings = job(
        tmp_path / "out",
        middle={"fails": {"_target_": f"{TARGET_OPS}.FailAtRow", "row": 100, "broken": str(broken)}},
    )
    assert run(settings) is ExitCode.FAILED
    broken.unlink()
    capsys.readouterr()
    assert run(settings) is ExitCode.DONE
    state = RunState(tmp_path / "out/state.sqlite")
    accounts = state.accounts()
    state.close()
    assert list(build_graph(settings).order) == ["numbers", "picky", "fails", "target", "write"]
    for node in accounts.values():
        assert node.rows_in + node.expanded == node.rows_out + node.rejected
    assert [accounts[n].rows_in for n in ("numbers", "picky", "fails", "target", "write")] == [160, 160, 64, 64, 60]
    assert accounts["picky"] == RowCounts(160, 0, 96, 64)
    shown = capsys.readouterr().out
    assert "input       160 rows done (3.6 rounds of 45); output 60 of 60 rows\n" in shown
    assert "4  filtered at target: target of 60 rows was reached" in shown


@pytest.mark.parametrize(
    ("budget", "source_rows", "says"),
    often_cases(
        [
            ({"max_rows": 50}, 50, "target.max_rows=50"),
            ({"max_rounds": 1}, 45, "target.max_rounds=1"),
            ({"max_rounds": 3, "max_rows": 1000}, 135, "target.max_rounds=3"),
            ({"max_tokens": 1}, 16, "target.max_tokens=1"),
            ({"max_minutes": 1e-9}, 0, "target.max_minutes=1e-09"),
        ],
        {"max_rounds": 3, "max_rows": 1000},
        {"max_tokens": 1},
        {"max_minutes": 1e-9},
    ),
)
def test_a_spent_budget_is_exit_code_5_and_says_which(tmp_path, capsys, budget, source_rows, says):
    for _ in range(2):  # the same command again finds it spent
        assert run(job(tmp_path, **budget)) is ExitCode.BUDGET
        shown = capsys.readouterr().out
        assert f"budget spent ({says})" in shown
        assert f"exit code 5: {says} is spent and the target is not reached" in shown
    read = {row["row"] for folder in ("data", "rejects") for row in rows(tmp_path, folder)}
    assert read == set(range(source_rows))
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "budget"


def test_a_report_has_words_for_every_state_of_a_run():
    assert set(WORDS) == set(RunStatus)


def test_tokens_can_be_raised_and_change_no_byte(tmp_path):
    assert run(job(tmp_path / "whole")) is ExitCode.DONE
    assert run(job(tmp_path / "out", max_tokens=1)) is ExitCode.BUDGET
    assert run(job(tmp_path / "out")) is ExitCode.DONE
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_tokens_of_earlier_attempts_count(tmp_path):
    """16 rows of 5 tokens a chunk. The second attempt may make 50 more, so it ends with its first chunk."""
    assert run(job(tmp_path, max_tokens=1, max_open_chunks=1)) is ExitCode.BUDGET
    spent = int(pq.read_table(tmp_path / "metrics/run.parquet")["tokens_out"][0].as_py())  # also of rows not written
    assert run(job(tmp_path, max_tokens=spent + 50, max_open_chunks=1)) is ExitCode.BUDGET
    assert len({row["row"] for folder in ("data", "rejects") for row in rows(tmp_path, folder)}) == 32


def test_what_decides_a_row_cannot_be_changed(tmp_path):
    assert run(job(tmp_path)) is ExitCode.DONE
    for change in ({"wanted": 61}, {"max_rows": 1000}, {"max_rounds": 9}):
        with pytest.raises(ConfigError, match=r"target\.(accepted_rows|max_rows|max_rounds): "):
            run(job(tmp_path, **change))
    assert run(job(tmp_path, max_minutes=60.0)) is ExitCode.DONE


def test_an_input_without_rows_ends(tmp_path, capsys):
    assert run(job(tmp_path, rows=0)) is ExitCode.BUDGET
    assert "exit code 5: the input has no rows" in capsys.readouterr().out


def test_a_node_that_loses_rows_is_found_out(tmp_path, caplog):
    """Also where it is left before it has ended: then over the chunks that are committed."""
    loses, waits = {"_target_": f"{OPS}.Loses"}, {"_target_": f"{TARGET_OPS}.WaitsForEver", "row": 350}
    settings = job(tmp_path, middle={"loses": loses, "waits": waits}, max_open_chunks=30, batch_rows=10)
    assert run(settings) is ExitCode.FAILED
    assert "node 'loses': " in caplog.text


def test_a_damaged_chunk_of_a_later_round_is_made_again(tmp_path):
    assert run(job(tmp_path, middle={"round": {"_target_": f"{TARGET_OPS}.AddRound"}})) is ExitCode.DONE
    assert [row["round"] for row in rows(tmp_path)] == [row["row"] // N for row in first_passing(60)]
    before = files(tmp_path)
    shard = tmp_path / "data/part-00005.parquet"
    shard.write_bytes(b"?")
    assert main(["verify", str(tmp_path), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path) == before


def test_the_cut_goes_by_row_and_lineage_and_not_by_arrival(tmp_path):
    schema = pa.schema([ROW, LINEAGE])
    target = Target(TargetProgress(TargetSettings(accepted_rows=3)))
    target.plan(schema)

    def batch(*identities: tuple[int, list[int]]) -> Batch:
        rows, lineages = zip(*identities, strict=True)
        return Batch(0, pa.record_batch([pa.array(rows, pa.int64()), pa.array(lineages, LINEAGE.type)], schema=schema))

    told: list[int] = []
    context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get, stop_after_chunk=told.append)
    target.open(Runtime(context, "target", 1, StageMeter("target")))
    rows = [batch((4, [1]), (2, [1])), batch((2, [0]), (9, []), (3, [0, 1]))]
    out = list(target.run(ListInbox([*rows, ChunkEnd(0, 5)])))
    kept = [(r["row"], r["lineage"]) for item in out if isinstance(item, Batch) for r in item.data.to_pylist()]
    cut = [(r.row, r.lineage) for item in out if isinstance(item, Rejects) for r in item.rows]
    assert sorted(kept) == [(2, [0]), (2, [1]), (3, [0, 1])]
    assert sorted(cut) == [(4, (1,)), (9, ())]
    assert told == [0, 0]  # the target is reached, and the input has ended


def test_what_a_graph_must_have(tmp_path):
    settings = job(tmp_path)
    settings.nodes["aside"] = NodeSettings({"_target_": f"{TARGET_OPS}.Aside"}, "picky")
    with pytest.raises(ConfigError, match=r"has the sinks write, aside; say whose rows count: target.sink=write"):
        build_graph(settings)
    settings.target.sink = "picky"
    with pytest.raises(ConfigError, match=r"target.sink=picky is no sink; the graph has write, aside"):
        build_graph(settings)
    with pytest.raises(ConfigError, match=r"node 'target': has the name of the node"):
        build_graph(job(tmp_path, middle={"target": {"_target_": f"{TARGET_OPS}.Picky"}}))
    settings = job(tmp_path)
    settings.nodes["numbers"].op = {"_target_": "tests.pipeline.ops.Count", "rows": 45}
    with pytest.raises(ConfigError, match=r"node 'numbers': Count has no seek"):
        build_graph(settings)
    with pytest.raises(ConfigError, match=r"target.max_rows=0 cannot work"):
        job(tmp_path, max_rows=0)


def test_the_plan_says_until_when(tmp_path):
    settings = job(tmp_path, wanted=400, max_minutes=2.5)
    lines = plan_lines(settings, build_graph(settings))
    assert "chunks of 50 rows" in lines[0]
    assert "numbers  Numbers, in rounds" in lines[1]
    assert (
        lines[-2]
        == "rows are made until 400 have passed all nodes, or until max_rounds=100 or max_minutes=2.5 is spent"
    )
