"""URLs: every format from an object store, in ranges, resumed; what changes, is missing or does not answer; secrets."""

from __future__ import annotations

import http.server
import random
import re
import sys
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, ExitCode, InputError, SourceError
from pipeline.api.runtime import Resources
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings
from tests.operators.formats.samples import ROWS, SUFFIXES, make
from tests.operators.generation.stores import KEY, Store, put
from tests.operators.sources.reading import drain, read


@pytest.fixture(autouse=True)
def _empty():
    Store.clear()
    yield
    Store.clear()


def lines(rows: int, note_bytes: int = 0) -> bytes:
    note = b', "note": "%s"' % (b"x" * note_bytes) if note_bytes else b""
    return b"".join(b'{"prompt": "p%d"%s}\n' % (i, note) for i in range(rows))


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("url", ["bucket/rows.{}", "bucket", "bucket/r*.{}"])
def test_every_format_gives_the_same_rows_and_tails(tmp_path: Path, suffix: str, url: str) -> None:
    file = make(tmp_path / f"rows.{suffix}")
    put(f"bucket/rows.{suffix}", file.read_bytes())
    for seek in range(4):
        assert read(f"store://{url.format(suffix)}", 10, seek).values == ROWS[seek * 10 :]


def test_several_paths_are_read_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "z.jsonl").write_bytes(b'{"n": 1}\n')
    (tmp_path / "a.csv").write_text("n\n4\n")
    put("b/2.jsonl", b'{"n": 3}\n')
    put("b/1.jsonl", b'{"n": 2}\n')
    paths = [str(tmp_path / "z.jsonl"), "store://b/*.jsonl", f"file://{tmp_path / 'a.csv'}"]
    found = drain(ReadPrompts(DataSettings(path=paths), 2), 2)
    assert [row["n"] for row in found.values] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"means store://b/1.jsonl twice; name it once"):
        find_files(DataSettings(path=["store://b", "store://b/1*"]))


def test_of_parquet_only_the_row_groups_that_are_needed_are_fetched() -> None:
    noise = random.Random(0)
    table = pa.table({"p": [noise.randbytes(100_000) for _ in range(80)]})
    file = pa.BufferOutputStream()
    pq.write_table(table, file, row_group_size=10, compression="none", use_dictionary=False, write_statistics=False)
    url = put("a.parquet", file.getvalue().to_pybytes())
    op = ReadPrompts(DataSettings(path=url), 10)
    op.plan()
    assert op.total_rows() == 80
    assert Store.fetched_bytes < 500_000
    assert len(read(url, 10, seek=7).rows) == 10
    assert Store.fetched_bytes < 2_500_000


def test_of_an_archive_no_more_is_fetched_than_is_read(tmp_path: Path) -> None:
    noise = random.Random(0)
    with pa.output_stream(tmp_path / "a", compression="gzip") as file:
        file.write(b"".join(b'{"p": "%x"}\n' % noise.getrandbits(40_000) for _ in range(800)))
    url = put("a.jsonl.gz", (tmp_path / "a").read_bytes())
    assert len(read(url, limit=10, schema={"p": "string"}).rows) == 10
    assert Store.fetched_bytes < (tmp_path / "a").stat().st_size / 2


def test_the_fingerprint_follows_the_object() -> None:
    def prints() -> dict[str, str]:
        return ReadPrompts(DataSettings(path="store://a.jsonl"), 10).fingerprint()

    put("a.jsonl", b'{"p": 1}\n')
    before = prints()
    assert prints() == before
    assert before["files.0"].startswith("a.jsonl, 9 bytes, created ")
    put("a.jsonl", b'{"p": 2}\n')
    assert prints() != before


def test_an_object_that_changes_while_it_is_read_ends_the_run() -> None:
    op = ReadPrompts(DataSettings(path=put("a.jsonl", lines(3))), 10)
    op.plan()
    put("a.jsonl", lines(4))
    with pytest.raises(InputError, match=r"store://a\.jsonl was written to while the run was reading it \(51 bytes"):
        drain(op, 10)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("store://b/c.jsonl", r"data.path=store://b/c.jsonl does not exist; the directory store://b has a.jsonl"),
        ("store://nowhere/c.jsonl", "does not exist; nor does the directory store://nowhere"),
        ("store://b/*.csv", r"the pattern store://b/\*.csv has no file ending in .* found nothing"),
        ("store://b/d.txt", "has none of the extensions .* it begins like text: 'hello'"),
        ("what://b/a.jsonl", "data.path=what://b/a.jsonl .*: Protocol not known: what"),
        ("https://me:word@host/a.jsonl", r"data.path=https://host/a.jsonl has a password in it; .*options="),
    ],
)
def test_urls_that_lead_nowhere(url: str, says: str) -> None:
    put("b/a.jsonl", lines(1))
    put("b/d.txt", b"hello")
    with pytest.raises(ConfigError, match=says) as caught:
        find_files(DataSettings(path=url))
    assert "me:word" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("zip://a.jsonl::{}/none.zip", r"data.path=zip://a.jsonl::.*none.zip does not exist"),
        ("zip://none.jsonl::{}/a.zip", r"data.path=zip://none.jsonl does not exist"),
        ("zip://a.jsonl::{}/a.jsonl", r"a.jsonl cannot be read: BadZipFile"),
        ("zip://a.jsonl::{}", r"cannot be read: IsADirectoryError"),
        ("tar://a.jsonl::{}/a.jsonl", r"a.jsonl cannot be read: ReadError"),
        ("simplecache::file://{}/b.jsonl", r"did you mean data.path=file:///.*/a.jsonl\?"),
    ],
)
def test_chains_that_lead_nowhere(tmp_path: Path, url: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(2))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.jsonl", "a.jsonl")
    assert len(read(f"zip://a.jsonl::{tmp_path}/a.zip").values) == 2
    with pytest.raises(InputError, match=says):
        find_files(DataSettings(path=url.format(tmp_path)))


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"needs fsspec .*: run pip install -e '\.\[remote\]'"):
        find_files(DataSettings(path="s3://b/a.jsonl"))


def job(out: Path, key: str | None = KEY) -> JobSettings:
    """Copies store://rows.jsonl in chunks of twenty rows."""
    data = {"path": "store://rows.jsonl", "storage_options": {"key": key}, "schema": {"prompt": "string"}}
    read = {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": data, "chunk_rows": 20}
    write = {"_target_": "tests.pipeline.job_ops.Parquet"}
    nodes = {"read": NodeSettings(read), "write": NodeSettings(write, "read")}
    return JobSettings(name="copy", nodes=nodes, output_dir=str(out), progress="none", max_open_chunks=1)


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


def data(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "data").iterdir()}


def test_a_line_that_goes_dead_is_exit_1_and_the_same_command_goes_on_to_the_same_bytes(tmp_path) -> None:
    rows = lines(60, 60_000)
    put("rows.jsonl", rows)
    assert run(job(tmp_path / "whole")) is ExitCode.DONE
    Store.fails_behind = len(rows) * 2 // 3
    assert run(job(tmp_path / "out")) is ExitCode.FAILED
    log = tmp_path / "out/run.log"
    assert "store://rows.jsonl cannot be reached: ConnectionResetError: the line went dead" in log.read_text()
    assert 1 <= len(data(tmp_path / "out")) < 3
    Store.fails_behind = None
    assert run(job(tmp_path / "out")) is ExitCode.DONE
    assert data(tmp_path / "out") == data(tmp_path / "whole")
    assert "resuming: " in log.read_text()


def test_credentials_are_used_and_stand_nowhere(tmp_path, capsys) -> None:
    put("rows.jsonl", rows := lines(60, 60_000))
    Store.fails_behind = len(rows) * 2 // 3
    assert run(job(tmp_path)) is ExitCode.FAILED
    assert "signed with (left out)" in (tmp_path / "run.log").read_text()
    Store.fails_behind = None
    assert run(job(tmp_path)) is ExitCode.DONE
    with pytest.raises(InputError, match=r"rows.jsonl may not be read \(PermissionError: 403 for \(left out\)\)"):
        read("store://rows.jsonl", storage_options={"key": "wrong-one"})
    assert "(left out)" in (tmp_path / "config.yaml").read_text()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    told = capsys.readouterr()
    assert KEY not in told.out + told.err
    # They say who reads, not what: the run is found finished without them.
    assert run(job(tmp_path, None)) is ExitCode.DONE
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_line_that_goes_dead_is_told_in_words_whatever_the_format(tmp_path: Path, suffix: str) -> None:
    noise = random.Random(0)
    table = pa.table({"prompt": [f"{noise.getrandbits(4000):x}" for _ in range(3000)]})
    file = make(tmp_path / f"rows.{suffix}", table)
    url = put(f"rows.{suffix}", file.read_bytes())
    op = ReadPrompts(DataSettings(path=url, storage_options={"key": KEY}), 100)
    op.plan()
    Store.fails_behind = file.stat().st_size * 3 // 4
    with pytest.raises(SourceError, match=rf"^store://rows.{suffix} cannot be reached: .* signed with .left out."):
        drain(op, 100)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def web(tmp_path: Path):
    """The URL of a web server over `tmp_path`. It knows no ranges, as many plain ones do not."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_of_a_signed_url_the_signature_is_used_and_told_to_nobody(tmp_path: Path, web: str) -> None:
    with pa.output_stream(tmp_path / "a.jsonl.gz", compression="gzip") as file:
        file.write(b'{"p": 1}\n{"p"\n')
    found = read(f"{web}/a.jsonl.gz?sig=5ec2e7")
    assert found.values == [{"p": 1}]
    assert found.rejects[1].file == f"{web}/a.jsonl.gz?(left out)"
    named = ReadPrompts(DataSettings(path=f"{web}/a.jsonl.gz?sig=5ec2e7"), 10).fingerprint()["files.0"]
    assert re.fullmatch(r"a\.jsonl\.gz, \d+ bytes, Last-Modified .*", named)
    with pytest.raises(InputError, match=r"b\.jsonl\?\(left out\) does not exist") as caught:
        read(f"{web}/b.jsonl?sig=5ec2e7")
    assert "5ec2e7" not in str(caught.value)


def test_a_web_server_without_ranges_cannot_give_parquet_and_the_error_says_so(tmp_path: Path, web: str) -> None:
    table = pa.table({"p": [random.Random(i).randbytes(1000) for i in range(300)]})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(InputError, match=r"a\.parquet cannot be read: ValueError: The HTTP server doesn't appear to"):
        read(f"{web}/a.parquet")
