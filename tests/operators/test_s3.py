"""s3://, against moto's server on this machine: globs, a resume, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from operators.bench.spec import written
from operators.settings import DataSettings
from operators.sources import ReadPrompts
from pipeline.__main__ import main
from pipeline.errors import ExitCode
from pipeline.failpoints import VARIABLE
from pipeline.jobs import PROJECT
from tests.operators.reading import drain

SECRET = "s3cr3t-4711"
ROWS = 60


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Storage options of a server with the bucket `prompts`: two Parquet files and a packed JSONL file."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    given = {"key": "me", "secret": SECRET, "endpoint_url": f"http://{host}:{port}"}
    fs = fsspec.filesystem("s3", **given)
    fs.mkdir("prompts")
    for part in range(2):
        rows = range(part * ROWS // 2, (part + 1) * ROWS // 2)
        file = pa.BufferOutputStream()
        pq.write_table(pa.table({"prompt": [f"p{i}" for i in rows]}), file, row_group_size=10)
        fs.pipe(f"prompts/parts/{part}.parquet", file.getvalue().to_pybytes())
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "gzip") as file:
        file.write(b"".join(b'{"prompt": "p%d"}\n' % i for i in range(ROWS)))
    fs.pipe("prompts/all.jsonl.gz", packed.getvalue().to_pybytes())
    yield given
    server.stop()


def arguments(options: dict[str, Any], path: str, out: Path, *settings: str) -> list[str]:
    fixed = ["job=generate", "model=fake", f"data.path={path}", f"output_dir={out}", "progress=none"]
    return [*fixed, f"data.storage_options={written(options)}", "chunk_rows=10", "sampling.max_tokens=2", *settings]


def data(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "data").iterdir()}


def test_globs_directories_and_archives_give_the_rows_and_their_tails(options) -> None:
    wanted = [{"prompt": f"p{i}"} for i in range(ROWS)]
    for path in ("s3://prompts/parts/*.parquet", "s3://prompts/parts", "s3://prompts/all.jsonl.gz"):
        for seek in (0, 4):
            op = ReadPrompts(DataSettings(path=path, storage_options=options), 10)
            assert drain(op, 10, seek).values == wanted[seek * 10 :]


def test_the_etag_names_the_content(options) -> None:
    def prints() -> str:
        op = ReadPrompts(DataSettings(path="s3://prompts/x.jsonl", storage_options=options), 10)
        return str(op.fingerprint()["files.0"])

    fs = fsspec.filesystem("s3", **options)
    fs.pipe("prompts/x.jsonl", b'{"p": 1}\n')
    first = prints()
    fs.pipe("prompts/x.jsonl", b'{"p": 2}\n')
    assert first.startswith("x.jsonl, 9 bytes, ETag ")
    assert prints() != first
    fs.pipe("prompts/x.jsonl", b'{"p": 1}\n')
    assert prints() == first


def test_a_run_that_is_interrupted_resumes_to_the_same_bytes_and_keeps_no_secret(options, tmp_path) -> None:
    path = "s3://prompts/parts/*.parquet"
    command = [sys.executable, "-m", "pipeline", *arguments(options, path, tmp_path / "out", "max_open_chunks=1")]
    stopped = {**os.environ, VARIABLE: "shard-renamed:3=TERM"}
    died = subprocess.run(command, cwd=PROJECT, env=stopped, capture_output=True, text=True, timeout=120)
    assert died.returncode == ExitCode.INTERRUPTED, died.stderr
    assert 0 < len(data(tmp_path / "out")) < ROWS // 10
    assert main(command[3:]) == ExitCode.DONE
    assert main(arguments(options, path, tmp_path / "whole")) == ExitCode.DONE
    assert data(tmp_path / "out") == data(tmp_path / "whole")
    assert SECRET not in died.stderr + died.stdout
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s3://nowhere/*.parquet", "the pattern s3://nowhere/*.parquet has no file ending in"),
        ("s3://nowhere/a.parquet", "data.path=s3://nowhere/a.parquet does not exist"),
        ("s3://prompts/parts/7.parquet", "s3://prompts/parts has 0.parquet, 1.parquet"),
    ],
)
def test_a_bucket_or_key_that_is_not_there_is_exit_2(options, tmp_path, capsys, path: str, says: str) -> None:
    assert main(arguments(options, path, tmp_path / "out")) == ExitCode.CONFIG
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_server_that_does_not_answer_is_exit_1(options, tmp_path, capsys) -> None:
    away = {**options, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    fs = fsspec.filesystem("s3", **away)
    fs.retries = 1  # of the instance, which is kept by its options: the waits between five would be ten seconds
    assert main(arguments(away, "s3://prompts/all.jsonl.gz", tmp_path / "out")) == ExitCode.FAILED
    assert "s3://prompts/all.jsonl.gz cannot be reached: EndpointConnectionError" in capsys.readouterr().err
