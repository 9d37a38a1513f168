"""Lookup in runs: broken off, night after night, in workers, and with the results of another run as the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from pipeline.api.errors import ConfigError, ExitCode, InputError
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.config.build import build_graph
from pipeline.dry_run.estimate import dry_run_lines
from pipeline.runs.memory_check import MemoryNeeds
from pipeline.settings import JobSettings
from tests.pipeline.cluster.thread_pool import ThreadPool, workers_in_threads
from tests.pipeline.nights import job, put, rows
from tests.pipeline.squares import files, run

pytestmark = pytest.mark.slow("runs jobs")

NAMES = "x,name\n1,one\n2,two\n2,zwei\n"
HEAD = {"defaults": [{"override /model": "tiny"}], "chunk_rows": 4, "report": False}


def looking_up(here: Path, how: str = "left", table: dict[str, Any] | None = None, **more: Any) -> JobSettings:
    """The job of nights, whose rows have a name from names.csv."""
    if not (here / "names.csv").exists():
        (here / "names.csv").write_text(NAMES)
    settings = {"path": str(here / "names.csv"), **(table or {})}
    op = {"_target_": "operators.lookup.Lookup", "table": settings, "on": "x", "how": how}
    return job(here, middle={"who": op}, **more)


@pytest.mark.parametrize("how", ["left", "anti"])
def test_a_run_that_breaks_off_ends_as_one_that_does_not(tmp_path, how):
    every = [{"id": str(i), "x": i % 5} for i in range(23)]
    for name in ("whole", "broken_off"):
        (tmp_path / name).mkdir()
        put(tmp_path / name, every)
    broken = tmp_path / "broken_off/broken"
    broken.touch()
    fails = {"fail_at": 4, "broken": str(broken)}
    assert run(looking_up(tmp_path / "whole", how, append=False)) is ExitCode.DONE
    settings = looking_up(tmp_path / "broken_off", how, append=False, square=fails)
    assert run(settings) is ExitCode.FAILED
    broken.unlink()
    assert run(settings) is ExitCode.DONE
    assert files(tmp_path / "broken_off/out") == files(tmp_path / "whole/out")
    counts = json.loads((tmp_path / "whole/out/manifest.json").read_text())["counts"]
    assert (counts["data_rows"], counts["filtered_rejects"]) == ((28, 0) if how == "left" else (13, 10))


def test_nights_look_up_in_one_table_and_another_one_is_refused(tmp_path):
    settings = looking_up(tmp_path)
    put(tmp_path, [{"id": "a", "x": 2}])
    assert run(settings) is ExitCode.DONE
    put(tmp_path, [{"id": "a", "x": 2}, {"id": "b", "x": 1}, {"id": "c", "x": 7}])
    assert run(settings) is ExitCode.DONE
    there = files(tmp_path / "out")
    found = sorted((row["id"], row["name"]) for row in rows(tmp_path / "out") if row["name"] is not None)
    assert found == [("a", "two"), ("a", "zwei"), ("b", "one")]
    put(tmp_path, [{"id": "d", "x": 1}])
    (tmp_path / "elsewhere").mkdir()
    moved = {"path": str((tmp_path / "names.csv").rename(tmp_path / "elsewhere/names.csv")), "memory_limit": "1MiB"}
    assert run(looking_up(tmp_path, table=moved)) is ExitCode.DONE
    there = files(tmp_path / "out")
    (tmp_path / "names.csv").write_text(NAMES)
    put(tmp_path, [{"id": "e", "x": 1}])
    with pytest.raises(ConfigError, match=r"nodes\.who\.op\.table\.types"):
        run(looking_up(tmp_path, table={"types": {"name": "json"}}))
    (tmp_path / "names.csv").write_text(NAMES + "7,seven\n")
    with pytest.raises(ConfigError, match=r'nodes\.who\.files\.0: "names\.csv, 26 bytes, sha256:.* -> "names\.csv, 34'):
        run(settings)
    assert files(tmp_path / "out") == there


def test_the_plan_tells_the_size_of_the_table_and_a_limit_refuses_it(tmp_path):
    put(tmp_path, [{"id": "a", "x": 2}])
    settings = looking_up(tmp_path)
    (line,) = MemoryNeeds(settings, build_graph(settings)).plan_lines()[1:]
    assert line.endswith(f"table {tmp_path}/names.csv: 3 rows, 94 bytes")
    assert any("who" in line for line in dry_run_lines(settings, build_graph(settings), Resources()))
    with pytest.raises(InputError, match=r"names\.csv: the keys of its first 3 rows take 72 bytes"):
        run(looking_up(tmp_path, table={"memory_limit": "71"}))
    assert not (tmp_path / "out/state.sqlite").exists()


def written(here: Path, text: dict[str, Any]) -> str:
    """The path of a job file with topics and names, whose table is names.csv."""
    (here / "topics.csv").write_text("topic\n2\n9\n1\n1\n2\n")
    (here / "names.csv").write_text(NAMES)
    path = here / "job.yaml"
    values = HEAD | {"data": {"path": str(here / "topics.csv")}} | text
    path.write_text(yaml.safe_dump(values, sort_keys=False).replace("'on':", "on:"))
    return str(path)


def lookup_of(path: Path, **more: Any) -> dict[str, Any]:
    return {"_target_": "operators.lookup.Lookup", "table": {"path": str(path)}, "on": {"topic": "x"}, **more}


def test_on_is_a_word_in_steps_and_in_nodes_and_on_the_command_line(tmp_path):
    read = {"_target_": "operators.sources.read_prompts.ReadPrompts"}
    write = {"_target_": "operators.sinks.write_rows.WriteRows"}
    op = lookup_of(tmp_path / "names.csv", matches="list")
    nodes = {"read": {"op": read}, "who": {"inputs": "read", "op": op}, "write": {"inputs": "who", "op": write}}
    for name, text in (("steps", {"steps": {"who": {"op": op}}}), ("nodes", {"nodes": nodes})):
        path = written(tmp_path, text)
        assert main([f"job={path}", f"output_dir={tmp_path}/{name}", "progress=none"]) == ExitCode.DONE
    assert files(tmp_path / "steps") == files(tmp_path / "nodes")
    found = pl.read_parquet(tmp_path / "steps/data")["name"].to_list()
    assert found == [["two", "zwei"], None, ["one"], ["one"], ["two", "zwei"]]
    other = "nodes.who.op.on.topic=name"
    assert main([f"job={path}", f"output_dir={tmp_path}/other", "progress=none", other]) == ExitCode.CONFIG


def test_the_results_of_a_run_are_a_table_when_it_is_done(tmp_path):
    path = written(tmp_path, {"steps": {"who": {"op": lookup_of(tmp_path / "names.csv")}}})
    assert main([f"job={path}", f"output_dir={tmp_path}/first", "progress=none"]) == ExitCode.DONE
    op = lookup_of(tmp_path / "first", on="row", columns=["name"], matches="list", prefix="old_")
    path = written(tmp_path, {"steps": {"who": {"op": op}}})
    command = [f"job={path}", f"output_dir={tmp_path}/second", "progress=none"]
    assert main(command) == ExitCode.DONE
    found = pl.read_parquet(tmp_path / "second/data")["old_name"].to_list()
    assert found == [["two", "zwei"], [None], ["one"], ["one"], ["two", "zwei"]]
    manifest = tmp_path / "first/manifest.json"
    manifest.write_text(manifest.read_text().replace('"status": "done"', '"status": "interrupted"'))
    assert main([*command, "overwrite=true"]) == ExitCode.CONFIG
    assert files(tmp_path / "second")


def test_workers_change_no_byte_and_read_the_same_table(tmp_path, monkeypatch, capsys):
    reply = {"prompt": "{{ topic }} {{ name }}", "sampling": {"max_tokens": 2}}
    text = {"steps": {"who": {"op": lookup_of(tmp_path / "names.csv", how="inner")}, "reply": reply}}
    path = written(tmp_path, text)
    command = [f"job={path}", "progress=none", "max_error_rate=1", "runtime.slots=2", "runtime.threads=1"]
    workers = ("cluster=processes", "cluster.workers=2", "cluster.piece_rows=1")
    assert main([*command, f"output_dir={tmp_path}/alone"]) == ExitCode.DONE
    with workers_in_threads():
        assert main([*command, *workers, f"output_dir={tmp_path}/two"]) == ExitCode.DONE
        assert files(tmp_path / "two") == files(tmp_path / "alone")
        capsys.readouterr()
        assert main([*command, *workers, "dry_run=plan"]) == ExitCode.DONE
        assert re.search(r"who +Lookup <- read: .* \(in the workers\)", capsys.readouterr().out)
        start = ThreadPool.start_worker

        def elsewhere(self: ThreadPool, name: str) -> Any:
            if name == "1":
                (tmp_path / "names.csv").write_text("x,name\n1,uno\n")
            return start(self, name)

        monkeypatch.setattr(ThreadPool, "start_worker", elsewhere)
        assert main([*command, *workers, f"output_dir={tmp_path}/other"]) == ExitCode.CONFIG
    assert "the driver and a worker differ in nodes.who.files.0" in capsys.readouterr().err
