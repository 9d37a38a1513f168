"""s3://, against moto's server on this machine: globs, what names the content, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ExitCode, InputError, SourceError
from pipeline.cli.main import main
from tests.operators.sources.reading import drain
from tests.operators.sources.s3_server import arguments, serving

pytestmark = pytest.mark.laws  # starts a server of S3

ROWS = 60


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with serving(ROWS) as given:
        yield given


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


def test_an_object_that_another_program_writes_to_is_noticed(options) -> None:
    other = fsspec.filesystem("s3", **options, skip_instance_cache=True)
    other.pipe("prompts/y/0.jsonl", b'{"p": 1}\n')
    op = ReadPrompts(DataSettings(path="s3://prompts/y", storage_options=options), 10)
    op.plan()
    other.pipe("prompts/y/0.jsonl", b'{"p": 2}\n')
    with pytest.raises(InputError, match=r"written to while the run was reading it \(9 bytes then, 9 now\)"):
        drain(op, 10)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s3://nowhere/*.parquet", "the pattern s3://nowhere/*.parquet has no file ending in"),
        ("s3://nowhere/a.parquet", "data.path=s3://nowhere/a.parquet does not exist"),
        ("s3://prompts/parts/7.parquet", "s3://prompts/parts has 0.parquet, 1.parquet"),
    ],
)
def test_a_bucket_or_key_that_is_not_there_is_an_input_error(options, path: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        find_files(DataSettings(path=path, storage_options=options))


def test_a_server_that_does_not_answer_can_be_tried_again(options) -> None:
    away = {**options, "endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    fs = fsspec.filesystem("s3", **away)
    fs.retries = 1  # of the instance, which is kept by its options: the waits between five would be ten seconds
    with pytest.raises(SourceError, match=r"s3://prompts/all.jsonl.gz cannot be reached: EndpointConnectionError"):
        find_files(DataSettings(path="s3://prompts/all.jsonl.gz", storage_options=away))


def test_a_wrong_key_is_exit_2_and_stands_in_no_message(options, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)  # from now on it asks who is there
    wrong = {**options, "key": "AKIAWRONG", "secret": "not-the-secret"}
    assert main(arguments(wrong, "s3://prompts/all.jsonl.gz", tmp_path / "out")) == ExitCode.CONFIG
    told = capsys.readouterr().err
    assert "s3://prompts/all.jsonl.gz may not be read (PermissionError: " in told
    assert "AKIAWRONG" not in told
    assert "not-the-secret" not in told
