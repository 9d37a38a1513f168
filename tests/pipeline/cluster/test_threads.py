"""Workers change no byte: jobs that ship give with workers, in threads here, what they give without."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from operators.generate import Generate
from operators.scoring.text_reader import ReadsTexts
from pipeline.api.errors import ExitCode
from pipeline.cluster.segment_runner import SegmentRunner
from pipeline.monitor.prometheus import exposition
from pipeline.results.reader import read_results
from pipeline.results.report.time_spent import numbers
from pipeline.run_dir.state import RunState
from tests.pipeline.cluster.cluster_runs import ROUNDS, assert_a_line_for_each_row, bytes_of, run, stages
from tests.pipeline.cluster.thread_pool import workers_in_threads
from tests.sets import often

pytestmark = pytest.mark.slow("runs jobs with workers and without")

JOBS = {"quickstart": ("chunk_rows=16",), "self_instruct": ROUNDS}  # tests/test_jobs.py has all, over one round
BITS = "the bits of fixed texts"
CLUSTERS = ((1, 7), (2, 64), (3, 1), (8, 7))
"""Workers and rows of a piece; a chunk has as many rows or more."""


@pytest.fixture(scope="module", autouse=True)
def in_threads() -> Iterator[None]:
    with workers_in_threads():
        yield


def once(tmp_path_factory, *cluster: str) -> Callable[[str], Path]:
    """A function: the results of a job, run once."""
    made: dict[str, Path] = {}

    def get(job: str) -> Path:
        if job not in made:
            made[job] = tmp_path_factory.mktemp(job) / "out"
            assert run(job, made[job], *JOBS[job], *cluster) == ExitCode.DONE
        return made[job]

    return get


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return once(tmp_path_factory)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    return once(tmp_path_factory, "cluster=processes", "cluster.piece_rows=5")


@pytest.mark.parametrize("job", often(JOBS, "quickstart"))
def test_two_workers_give_the_same_files(job: str, local, by_two) -> None:
    out = by_two(job)
    assert bytes_of(out) == bytes_of(local(job))
    assert accounts(out) == accounts(local(job))


@pytest.mark.parametrize("size", often(CLUSTERS, (3, 1)), ids=str)
def test_neither_workers_nor_pieces_change_a_byte(size: tuple[int, int], local, tmp_path: Path) -> None:
    workers, rows = size
    sizes = (f"cluster.workers={workers}", f"cluster.piece_rows={rows}")
    of_chunk = ("chunk_rows=16",) if rows <= 16 else (f"chunk_rows={rows}", f"data.limit={rows + 6}")
    assert run("quickstart", tmp_path / "out", *of_chunk, "cluster=processes", *sizes) == ExitCode.DONE
    if rows > 16:
        assert run("quickstart", tmp_path / "alone", *of_chunk) == ExitCode.DONE
    assert bytes_of(tmp_path / "out") == bytes_of(local("quickstart") if rows <= 16 else tmp_path / "alone")


def test_the_metrics_name_workers_and_count_rows_once(local, by_two) -> None:
    out = by_two("quickstart")
    clocks: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for row in stages(out):
        rows[row["node"]] += row["rows_out"]
        tokens[row["node"]] += row["tokens_out"]
        clocks[row["node"], row["worker"]].update({k: row[k] for k in ("busy_s", "starved_s", "blocked_s", "wall_s")})
    assert rows["generate"] == rows["render"] == 40
    assert tokens["generate"] == sum(
        row["tokens_out"] for row in stages(local("quickstart")) if row["node"] == "generate"
    )
    assert_a_line_for_each_row(out, 16)
    for worker in ("1", "2"):
        for node in ("render", "generate", "generate/decode", "generate/sample"):
            each = clocks[node, worker]
            assert each["wall_s"] > 0
            assert each["wall_s"] == pytest.approx(each["busy_s"] + each["starved_s"] + each["blocked_s"])
    status = json.loads((out / "status.json").read_text())
    assert status["accounts"]["generate"]["rows_out"] == 40
    assert "workers 2/2" in status["statuses"]
    pieces = status["workers"]["pieces"]
    assert pieces >= 8
    assert status["workers"]["workers"] == 2
    assert f'llama_batch_cluster_pieces{{job="quickstart"}} {pieces:g}\n' in exposition(status)
    (panel,) = numbers(read_results(out))
    shown = [row for table in panel.tables for row in table.rows]
    assert ["cluster", "Pieces that were sent to workers.", f"{pieces:g}"] in shown
    steps = sum(json.loads(run["totals"])["steps"] for run in pq.read_table(out / "metrics/run.parquet").to_pylist())
    assert ["", "steps of engines", f"{steps:g} steps"] in shown  # what the workers say of their numbers
    older = status | {"workers": status["workers"] | {"pieces_copied": 1.0}}
    assert exposition(older) == exposition(status)


def test_without_ray_the_remedy_is_said(tmp_path: Path, capsys, monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else found(name, *more))
    assert run("quickstart", tmp_path / "out", "cluster=ray") == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "cluster=ray needs the package ray; " in said
    assert "pip install" in said


def test_a_run_goes_on_without_workers_and_with_them(local, tmp_path: Path, monkeypatch) -> None:
    """Chunks of one run may be made by workers, the next ones without, the next ones by workers again."""
    out, commit = tmp_path / "out", RunState.commit
    stop_after: list[int | None] = [1]

    def stopping(self, attempt, record):
        commit(self, attempt, record)
        if record.chunk + 1 == stop_after[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunState, "commit", stopping)
    patient = ("cluster=processes", "cluster.workers=3", "runtime.row_timeout_s=600")  # no machine is another for that
    for chunks, cluster in ((1, ("cluster=processes",)), (2, ()), (None, patient)):
        stop_after[0] = chunks
        code = run("quickstart", out, *JOBS["quickstart"], *cluster)
    assert code == ExitCode.DONE
    assert bytes_of(out) == bytes_of(local("quickstart"))


@pytest.mark.parametrize(
    "begun", often([(), ("cluster=processes",)], ("cluster=processes",)), ids=["here", "by workers"]
)
def test_a_machine_with_other_bits_does_not_go_on(begun, tmp_path: Path, capsys, monkeypatch) -> None:
    """The run is refused with other bits, another build or another device, unless that is allowed."""
    out, commit = tmp_path / "out", RunState.commit

    def stopping(self, attempt, record):
        commit(self, attempt, record)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunState, "commit", stopping)
        run("quickstart", out, "chunk_rows=8", *begun)
    found = Generate.identity
    for key, what in (("bits", BITS), ("build", "llama.cpp"), ("device", "the device")):
        changed = {key: "0123456789abcdef"}
        monkeypatch.setattr(Generate, "identity", lambda self, changed=changed: replace(found(self), **changed))
        for cluster in ((), ("cluster=processes",)) if key == "bits" else ((),):
            capsys.readouterr()
            assert run("quickstart", out, "chunk_rows=8", *cluster) == ExitCode.CONFIG
            said = capsys.readouterr().err
            assert f"{what} of node 'generate'" in said
            assert "0123456789abcdef" in said
            assert "other_bits=allow" in said
    monkeypatch.setattr(RunState, "commit", stopping)
    for cluster in ((), ("cluster=processes",)):
        run("quickstart", out, "chunk_rows=8", *cluster, "other_bits=allow")
    assert len(list((out / "data").glob("*.parquet"))) == 3
    monkeypatch.undo()
    assert run("quickstart", out, "chunk_rows=8") == ExitCode.DONE


@pytest.mark.parametrize("name", often(["score_perplexity", "embed", "label", "rerank", "classify_head"], "embed"))
def test_readers_of_texts_refuse_other_bits(name, tmp_path: Path, capsys, monkeypatch) -> None:
    """One flipped bit of what a worker computes is refused, before a row is given out."""
    few = ("cluster=processes", "cluster.workers=2", "data.limit=4")
    assert run(name, tmp_path / "out", *few) == ExitCode.DONE
    made, count, second = ReadsTexts._new_reader, itertools.count(), threading.Event()

    def flipped(self, lent):
        reader, number = made(self, lent), next(count)
        if number:
            second.set()
        second.wait(60)  # else one of them may have done all rows before the other is there
        read = reader.read

        def other(texts):
            for parts in read(texts):
                for part in parts if number else ():
                    part.rows.view(np.uint32)[0, 0] ^= 1
                yield parts

        monkeypatch.setattr(reader, "read", other)
        return reader

    monkeypatch.setattr(ReadsTexts, "_new_reader", flipped)
    assert run(name, tmp_path / "other", *few) == ExitCode.CONFIG
    assert f"differ in {BITS} of node '" in capsys.readouterr().err
    assert not list((tmp_path / "other/data").glob("*.parquet"))


def test_what_nodes_in_workers_report_is_there(tmp_path: Path, capsys) -> None:
    assert run("classify", tmp_path / "out", "cluster=processes", "data.limit=4") == ExitCode.DONE
    said = capsys.readouterr()
    assert "generate: structured output:" in said.err + said.out
    assert "cannot report" not in said.err + said.out


def test_unlike_workers_are_refused_by_name(tmp_path: Path, capsys, monkeypatch) -> None:
    found, seen = Generate.identity, iter("abcdefgh")
    monkeypatch.setattr(Generate, "identity", lambda self: replace(found(self), build=next(seen)))
    assert run("quickstart", tmp_path / "out", *JOBS["quickstart"], "cluster=processes") == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "worker " in said
    assert "differ in llama.cpp of node 'generate'" in said
    any_bits = ("runtime.deterministic=false", "other_bits=allow")  # of one machine, not of several at a time
    assert run("quickstart", tmp_path / "any", *JOBS["quickstart"], "cluster=processes", *any_bits) == ExitCode.CONFIG
    assert "differ in llama.cpp of node 'generate'" in capsys.readouterr().err


@pytest.mark.parametrize("what", often(["nodes.generate.model", "the program's code"], "nodes.generate.model"))
def test_a_worker_with_another_file_than_the_driver_is_refused(what, tmp_path: Path, capsys, monkeypatch) -> None:
    """All workers may be alike, and still have another model at the same path, or an older checkout."""
    found, loads = SegmentRunner.content, []
    monkeypatch.setattr(SegmentRunner, "content", lambda self: found(self) | {what: "another"})
    monkeypatch.setattr(Generate, "open", lambda self, runtime: loads.append(self))
    assert run("quickstart", tmp_path / "out", *JOBS["quickstart"], "cluster=processes") == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert f"the driver and a worker differ in {what}: " in said
    assert "the same model file at this path" in said
    assert not loads


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cluster.workers=0",), "cluster.workers=0 cannot work"),
        (("cluster.address=ray://host:1",), "the driver has to run on a node of the cluster"),
        (("runtime=auto",), "cannot be left open with a cluster"),
    ],
)
def test_what_cannot_work_is_said(arguments, says, tmp_path: Path, capsys) -> None:
    assert run("quickstart", tmp_path / "out", "cluster=processes", *arguments) == ExitCode.CONFIG
    assert says in capsys.readouterr().err


def test_a_graph_without_a_model_has_nothing_for_workers(tmp_path: Path, capsys) -> None:
    job = tmp_path / "plain.yaml"
    job.write_text("""
data: {path: "${project:jobs/data/quickstart.jsonl}"}
nodes:
  read: {op: {_target_: operators.sources.read_prompts.ReadPrompts}}
  write: {inputs: read, op: {_target_: operators.sinks.write_rows.WriteRows}}
""")
    assert run(str(job), tmp_path / "out", "cluster=processes") == ExitCode.CONFIG
    assert "no node of this graph has a model" in capsys.readouterr().err


def test_the_plan_and_the_graph_say_where_each_node_runs(tmp_path: Path, capsys) -> None:
    assert run("self_instruct", tmp_path / "out", "cluster=processes", "dry_run=plan") == ExitCode.DONE
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert lines["answer"].endswith("(in the workers)")
    assert lines["dataset"].endswith("(in the workers)")  # its rows go to the sink without passing another chain
    assert lines["distinct"].endswith("(in the driver: it does not say that its rows are independent)")
    assert lines["read"].endswith("(in the driver: it is the source)")
    assert run("self_instruct", tmp_path / "out", "cluster=processes", "show=graph") == ExitCode.DONE
    assert "<i>in the driver: it writes files</i>" in capsys.readouterr().out


def accounts(directory: Path) -> list[tuple[object, ...]]:
    """Row counts of each node that ships rows, as the state of the run has them."""
    with closing(sqlite3.connect(directory / "state.sqlite")) as db:
        found = db.execute("SELECT * FROM accounts WHERE node NOT LIKE 'workers_%' ORDER BY node").fetchall()
    return list(found)
