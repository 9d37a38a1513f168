"""What is refused is refused before anything is destroyed or recorded, and is told."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import pipeline
from operators.engine.backend import fake
from operators.sinks.write_rows import WriteRows
from pipeline.api.errors import ConfigError, ExitCode, PipelineError
from pipeline.api.groups import EngineFields
from pipeline.api.protocols import MemoryNeed, Operator, Runtime, Scope, UsesModel
from pipeline.api.records import Batch, Output
from pipeline.api.runtime import Resources
from pipeline.cli import verify
from pipeline.cluster.start import POOLS
from pipeline.run_dir.names import INPUT, RUN_LOG
from pipeline.runs.run import run_job
from pipeline.settings import ClusterSettings, JobSettings, NodeSettings
from tests.pipeline.monitor.test_prometheus import parsed
from tests.pipeline.runs.test_on_finish import noting, told
from tests.pipeline.squares import job

pytestmark = pytest.mark.slow("refuses runs over the results of others at each place, also from Python")

HERE = __name__


class Refuses(Operator, UsesModel):
    """Passes rows, and refuses at the hook `at`."""

    def __init__(self, at: str) -> None:
        self.at = at

    def _refuse(self, hook: str) -> None:
        if hook == self.at:
            raise RuntimeError("the model is not what it says")

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self._refuse("plan")
        return schema

    def fingerprint(self) -> dict[str, Any]:
        self._refuse("fingerprint")
        return {}

    def memory_needs(self) -> list[MemoryNeed]:
        return [MemoryNeed("x", "much", 1 << 40)]

    def open(self, runtime: Runtime) -> None:
        self._refuse("open")

    def identity(self) -> None:
        self._refuse("identity")

    def process(self, batch: Batch) -> list[Output]:
        return [batch]


def _node(at: str) -> Callable[[JobSettings], None]:
    def add(settings: JobSettings) -> None:
        settings.nodes["more"] = NodeSettings({"_target_": f"{HERE}.Refuses", "at": at}, "square")
        settings.nodes["write"].inputs = ["more"]

    return add


def _with(key: str, value: Any) -> Callable[[JobSettings], None]:
    return lambda settings: setattr(settings, key, value)


def _bad_input(settings: JobSettings) -> None:
    settings.nodes["write"].inputs = ["nowhere"]


def _bad_argument(settings: JobSettings) -> None:
    settings.nodes["square"].op = {**settings.nodes["square"].op, "fast": True}


def _no_module(settings: JobSettings) -> None:
    settings.nodes["square"].op = {"_target_": "no.such.Operator"}


def _little_memory(settings: JobSettings) -> None:
    _node("never")(settings)
    settings.runtime = EngineFields(memory_limit_bytes=1 << 20)


class Computes(Refuses):
    """The same, in workers."""

    scope = Scope.MODEL


def _ray(settings: JobSettings) -> None:
    _node("never")(settings)
    settings.nodes["more"].op["_target_"] = f"{HERE}.Computes"
    settings.cluster = ClusterSettings(pool="ray")


def _no_pool(*_: Any) -> Any:
    raise ConfigError("there is no Ray")


REFUSALS: dict[str, Callable[[JobSettings], None]] = {
    "graph": _bad_input,
    "argument": _bad_argument,
    "module": _no_module,
    "plan": _node("plan"),
    "fingerprint": _node("fingerprint"),
    "memory": _little_memory,
    "cluster-without-a-model": _with("cluster", ClusterSettings(pool="processes")),
    "ray": _ray,
    "publish": _with("output", SimpleNamespace(publish="nosuch://place", storage_options={}, retries=0, card=None)),
    "prometheus": _with("prometheus_file", "/no/such/folder/run.prom"),
}
OPENING = {"open": _node("open"), "identity": _node("identity")}
"""What fails when operators are open: where there is nothing to keep it is an attempt, and recorded as one."""


def snapshot(directory: Path) -> dict[str, bytes]:
    skip = (".lock", RUN_LOG)
    files = (path for path in directory.rglob("*") if path.is_file() and path.name not in skip)
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def job_of(tmp_path: Path) -> JobSettings:
    return job(tmp_path / "out", square={"fail_at": 25, "broken": str(tmp_path / "broken")}, max_open_chunks=1)


def prepared(tmp_path: Path, before: str) -> dict[str, bytes]:
    """Leave no run, a part of one, or all of it in the directory of the job; return the files."""
    if before == "unfinished":
        (tmp_path / "broken").touch()
    if before != "fresh":
        ended = run_job(job_of(tmp_path), Resources())
        assert ended is (ExitCode.FAILED if before == "unfinished" else ExitCode.DONE)
    (tmp_path / "broken").unlink(missing_ok=True)
    return snapshot(tmp_path / "out")


@pytest.mark.parametrize("before", ["fresh", "unfinished", "finished"])
def test_a_refusal_leaves_what_is_there_and_is_told(tmp_path, before, monkeypatch):
    monkeypatch.setitem(POOLS, "ray", _no_pool)
    there = prepared(tmp_path, before)
    prometheus = tmp_path / "run.prom"
    for name, spoil in {**REFUSALS, **(OPENING if before == "finished" else {})}.items():
        settings = job_of(tmp_path)
        settings.overwrite = before == "finished"
        settings.on_finish, settings.prometheus_file = noting(tmp_path / name), str(prometheus)
        spoil(settings)
        code = ExitCode.FAILED
        if name in OPENING:
            with contextlib.suppress(RuntimeError):
                assert run_job(settings, Resources()) is code
        else:
            with pytest.raises(Exception) as refused:  # noqa: PT011 - of any class
                run_job(settings, Resources())
            code = getattr(refused.value, "exit_code", ExitCode.FAILED)
        assert snapshot(tmp_path / "out") == there, name
        summary, variables = told(tmp_path / name)
        assert variables == f"squares failed {int(code)}", name
        assert summary["error"]
        if name != "prometheus":
            samples, _ = parsed(prometheus.read_text())
            assert samples["llama_batch_exit_code", 'job="squares"'] == code, name
            assert samples["llama_batch_running", 'job="squares"'] == 0
            prometheus.unlink()
    assert run_job(job_of(tmp_path), Resources()) is ExitCode.DONE
    assert len(list((tmp_path / "out/data").glob("*.parquet"))) == 5


def test_a_live_run_is_left_alone_with_its_prometheus_file(tmp_path):
    there = prepared(tmp_path, "finished")
    settings = job_of(tmp_path)
    settings.overwrite, settings.on_finish = True, noting(tmp_path / "note")
    settings.prometheus_file = str(tmp_path / "run.prom")
    with (tmp_path / "out/.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="another run"):
            run_job(settings, Resources())
    assert told(tmp_path / "note")[1] == "squares failed 2"
    assert not (tmp_path / "run.prom").exists()
    assert snapshot(tmp_path / "out") == there


@pytest.mark.parametrize(("error", "heals"), [(OSError(errno.ENOSPC, "full"), True), (KeyboardInterrupt(), False)])
def test_a_move_that_fails_loses_nothing(tmp_path, monkeypatch, error, heals):
    """Neither does the way back if that fails too: the next run, or `verify`, goes on with it."""
    there = prepared(tmp_path, "finished")
    (tmp_path / "out/notes.txt").write_text("mine")
    (tmp_path / "out/data/notes.txt").write_text("mine")
    there |= {"notes.txt": b"mine", "data/notes.txt": b"mine"}
    settings = job_of(tmp_path)
    settings.overwrite = True
    rename = Path.rename
    for nth in itertools.count(1):
        calls = itertools.count(1)

        def fails(path: Path, target: Path, calls=calls, nth=nth) -> Path:
            if ".replaced" in f"{path}{target}" and (next(calls) == nth if heals else next(calls) >= nth):
                raise error
            return rename(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", fails)
            try:
                ended = run_job(settings, Resources())
            except (PipelineError, KeyboardInterrupt):
                ended = ExitCode.FAILED
        if ended is ExitCode.DONE:
            break
        if not heals:
            assert verify.main([str(tmp_path / "out")]) == 0
        assert snapshot(tmp_path / "out") == there, nth
    assert nth > 10


ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no rows": (7, {}),
    "empty": ([], {}),
    "a bad row": (["b", None], {}),
    "another column": ([{"question": "b"}], {}),
    "no model": (["b"], {"model": "no/such.gguf"}),
    "a bad key": (["b"], {"sampling": {"max_tokens": -1}}),
    "a model that does not load": (["b"], {"model.loader": f"{HERE}:does_not_load"}),
}
QUIET: dict[str, Any] = {"progress": "none", "report": False, "model": "fake"}
inspect = fake.inspect


def does_not_load(settings: Any) -> Any:
    raise RuntimeError("the weights are cut")


@pytest.mark.parametrize("live", [False, True])
def test_rows_replace_the_input_of_a_run_only_when_they_can_be_run(tmp_path, live, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{INPUT}.tmp").touch()  # of a process that was killed while it wrote rows
    settings: dict[str, Any] = {"sampling": {"max_tokens": 2}, **QUIET}
    pipeline.run(rows=["a"], directory=out, **settings)
    (out / "final.jsonl").touch()
    monkeypatch.setattr(WriteRows, "concluded", ("final.jsonl",))
    there = snapshot(out)
    assert there.keys() >= {INPUT, "final.jsonl"}
    assert f"{INPUT}.tmp" not in there
    with (out / ".lock").open("w") as file:
        if live:
            fcntl.flock(file, fcntl.LOCK_EX)
        for name, (rows, wrong) in ROWS.items():
            keys = {key: value for key, value in wrong.items() if "." in key}
            groups = {**settings, **{key: value for key, value in wrong.items() if "." not in key}}
            with pytest.raises(PipelineError, match="another run" if live and name != "a bad key" else "."):
                pipeline.run("generate", keys, rows=rows, directory=out, overwrite=True, **groups)
            assert snapshot(out) == there, name
    monkeypatch.undo()
    again = pipeline.run(rows=["b"], directory=out, overwrite=True, **settings)
    assert again.rows().collect()["prompt"].to_list() == ["b"]
    assert not [path for path in out.iterdir() if path.name.startswith(".replaced")]
    assert json.loads((out / "status.json").read_text())["state"] == "done"


def test_of_two_threads_with_rows_for_one_directory_one_waits(tmp_path):
    """The second goes on with the same rows, and is refused with others."""
    ended: dict[str, Any] = {}
    start = threading.Barrier(3)

    def run(name: str, rows: list[str]) -> None:
        start.wait()
        try:
            made = pipeline.run(rows=rows, directory=tmp_path / "out", sampling={"max_tokens": 2}, **QUIET)
            ended[name] = made.rows().collect()["prompt"].to_list()
        except ConfigError as error:
            ended[name] = str(error)

    given = {"a": ["a"] * 9, "also a": ["a"] * 9, "b": ["b"] * 9}
    threads = [threading.Thread(target=run, args=item) for item in given.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [name for name, found in ended.items() if isinstance(found, str)]
    assert refused in (["b"], ["a", "also a"], ["also a", "a"])
    assert all("a run with other rows" in ended[name] for name in refused)
    assert all(ended[name] == given[name] for name in given.keys() - set(refused))
