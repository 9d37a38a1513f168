"""job=openai_batch: every request has one line, in the shape of the API, in order, whatever happens to the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from operators.openai.requests import PARAMETERS
from operators.openai.write_batch import ERRORS, OUTPUT, WriteBatch
from pipeline import PROJECT
from pipeline.api.errors import ExitCode, StorageError
from pipeline.config.jobs import JOBS
from pipeline.system.failpoints import VARIABLE, Failpoint
from tests.operators.engine.rules import scheduled
from tests.operators.openai.answered import USUAL, Answered, answered, fake_model, on_fake, requests
from tests.operators.openai.cases import ACCEPTED, REFUSED, REQUIRED, cases
from tests.operators.openai.shapes import ERROR_LINE, OUTPUT_LINES

pytestmark = pytest.mark.slow("kills runs over batch files")

SHIPPED = (JOBS / "data/openai_batch.jsonl").read_text(encoding="utf-8").splitlines()
FAULTY = {
    "broken-json": "invalid_line",
    "image-1": "unsupported_parameter",
    "sum-1": "duplicate_custom_id",
    "wrong-url": "invalid_url",
    "tools-1": "unsupported_parameter",
    "no id": "invalid_custom_id",
    "unknown-1": "unknown_parameter",
}
"""Of the file that ships; the two that have no custom_id are named by what they say."""
MOST_KILLS = 8
IDENTITY = r'"custom_id": "(.+?)".*"url": "(.+?)"'


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Answered:
    """The file that ships, on the model that ships."""
    return answered(tmp_path_factory.mktemp("shipped") / "out", "sampling.max_tokens=48")


def test_every_request_has_one_line_in_the_order_of_the_input(shipped):
    asked = [json.loads(line)["custom_id"] for line in SHIPPED if not any(f'"{name}"' in line for name in FAULTY)]
    assert list(shipped.output) == ["sum-1", *asked]
    assert len(shipped.output) + len(shipped.errors) == len(SHIPPED)
    assert {line["id"] for line in shipped.output.values()}.isdisjoint(line["id"] for line in shipped.errors)
    assert [line["error"]["code"] for line in shipped.errors] == list(FAULTY.values())
    assert [line["custom_id"] for line in shipped.errors] == [
        None if name in ("broken-json", "no id") else name for name in FAULTY
    ]


def test_an_error_without_custom_id_names_its_line(shipped):
    nameless = [line["error"]["message"] for line in shipped.errors if line["custom_id"] is None]
    numbers = [n for n, line in enumerate(SHIPPED, 1) if "broken-json" in line or '"no id"' in line]
    assert [message.split(":")[0] for message in nameless] == [f"line {n}" for n in numbers]


def test_every_line_has_the_shape_of_the_api(shipped):
    urls = {custom_id: url for line in SHIPPED for custom_id, url in re.findall(IDENTITY, line)}
    assert {urls[custom_id] for custom_id in shipped.output} == set(PARAMETERS)
    for custom_id, line in shipped.output.items():
        OUTPUT_LINES[urls[custom_id]].validate(line)
    for line in shipped.errors:
        ERROR_LINE.validate(line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Answered:
    """The file that ships, on the fake model, in a run that nothing happened to."""
    return on_fake(tmp_path_factory.mktemp("whole"), SHIPPED)


def test_a_run_that_fails_in_the_middle_and_at_the_end_is_resumed_to_the_same_bytes(whole, tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    flag.touch()
    job = (JOBS / "openai_batch.yaml").read_text(encoding="utf-8")
    fail = f"{{inputs: generate, op: {{_target_: tests.pipeline.target_ops.FailAtRow, row: 27, broken: {flag}}}}}"
    nodes = f"nodes:\n  fail: {fail}\n  respond: {{inputs: fail}}\n"
    (tmp_path / "job.yaml").write_text(f"{job}\n{nodes}", encoding="utf-8")

    def run(code: int) -> Answered:
        return on_fake(tmp_path, SHIPPED, "max_open_chunks=1", job=str(tmp_path / "job.yaml"), code=code)

    def full(self: WriteBatch, directory: Path) -> None:
        (directory / OUTPUT).write_text("half a", encoding="utf-8")
        raise StorageError(f"{directory / ERRORS} cannot be written: no space", directory / ERRORS, full=True)

    first = run(ExitCode.FAILED)
    flag.unlink()
    assert not (first.directory / OUTPUT).exists()
    assert (first.directory / "data/part-00002.parquet").exists()
    with monkeypatch.context() as patched:
        patched.setattr(WriteBatch, "conclude", full)
        assert run(ExitCode.FAILED).code == ExitCode.FAILED
    assert run(ExitCode.DONE).files == whole.files


@pytest.mark.faults
def test_a_run_that_is_killed_whenever_a_file_is_about_to_be_renamed_is_resumed_to_the_same_bytes(whole, tmp_path):
    """Among these are output.jsonl and errors.jsonl: what has its name is whole."""
    killed = 0
    for nth in range(1, MOST_KILLS):
        for point in (f"{Failpoint.FILE_WRITTEN}:{nth}", f"{Failpoint.SHARD_RENAMED}:{nth}"):
            directory = tmp_path / point.replace(":", "-")
            code = in_a_process(directory, point)
            killed += code == -signal.SIGKILL
            if code == ExitCode.DONE:
                continue
            for name in (OUTPUT, ERRORS):
                path = directory / "out" / name
                assert not path.exists() or path.read_bytes() == whole.files[name]
            assert in_a_process(directory) == ExitCode.DONE
            assert Answered(0, directory / "out", {}, []).files == whole.files
    assert killed >= MOST_KILLS


def in_a_process(directory: Path, failpoint: str = "") -> int:
    """`on_fake` for the file that ships; the exit status."""
    command = [sys.executable, "-m", "pipeline", "job=openai_batch", f"output_dir={directory / 'out'}"]
    directory.mkdir(exist_ok=True)
    command += [*USUAL, *fake_model(directory, SHIPPED)]
    environment = {**os.environ, VARIABLE: failpoint}
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, check=False).returncode


def test_neither_slots_nor_the_order_of_arrival_change_a_byte(whole, tmp_path):
    with scheduled(shuffle=3):
        assert on_fake(tmp_path, SHIPPED, "runtime.slots=7").files == whole.files


def test_a_finished_run_that_has_lost_a_file_makes_it_again(whole, capsys):
    before = whole.files
    (whole.directory / ERRORS).unlink()
    assert on_fake(whole.directory.parent, SHIPPED).files == before
    assert "errors.jsonl had gone" in capsys.readouterr().out


def test_too_many_error_lines_are_exit_code_3_and_both_files_are_there(tmp_path):
    run = on_fake(tmp_path, ["{", *SHIPPED[:2], "["], "max_error_rate=0.25", code=ExitCode.REJECTS)
    assert len(run.output) == len(run.errors) == 2


def test_every_accepted_value_is_answered_in_the_shape_of_the_api_and_every_refused_one_is_an_error(tmp_path):
    tried = [
        (f"{what} {url} {name} {i}", url, REQUIRED[url] | {name: value})
        for what, table in (("accepted", ACCEPTED), ("refused", REFUSED))
        for url in PARAMETERS
        for name in PARAMETERS[url]
        for i, value in enumerate(cases(table, url, name))
    ]
    run = on_fake(tmp_path, requests(*tried), "chunk_rows=1000")
    cut = {line["custom_id"] for line in run.errors if "cut by max_tokens" in line["error"]["message"]}
    assert all("response_format" in custom_id for custom_id in cut)  # what a made-up model makes of JSON is long
    assert {line["custom_id"] for line in run.errors} - cut == {c for c, _, _ in tried if c.startswith("refused")}
    assert run.output.keys() | cut == {c for c, _, _ in tried if c.startswith("accepted")}
    for custom_id, url, _ in tried:
        if custom_id in run.output:
            OUTPUT_LINES[url].validate(run.output[custom_id])
