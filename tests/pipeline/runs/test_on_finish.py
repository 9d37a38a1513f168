"""on_finish: told at every end that the process survives, and never a reason for the run to end otherwise."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.runs.job import run_job
from pipeline.settings import HookSettings, JobSettings, NodeSettings
from pipeline.system.redaction import shown_url
from tests.pipeline.runs.test_job import OPS, data, job

NOTE = 'cat > "$0.json"; echo "$PIPELINE_JOB $PIPELINE_STATE $PIPELINE_EXIT_CODE" > "$0.env"; echo noted'


def noting(note: Path) -> HookSettings:
    """A command that keeps what it was told in <note>.json and <note>.env."""
    return HookSettings(["/bin/sh", "-c", NOTE, str(note)])


def told(note: Path) -> tuple[dict[str, Any], str]:
    text = Path(f"{note}.json").read_text()
    assert text.endswith("}\n")  # appended to a file, every end is a line
    return json.loads(text), Path(f"{note}.env").read_text().strip()


def run(settings: JobSettings) -> ExitCode:
    return run_job(settings, Resources())


class Server(HTTPServer):
    """Keeps what is posted; answers with `code`, or not at all while `silent` is not set."""

    def __init__(self, code: int, hurry: threading.Event) -> None:
        self.code, self.hurry = code, hurry
        self.posted: list[tuple[str, str | None, str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Keep)


class Keep(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        user = base64.b64decode((self.headers["Authorization"] or "").removeprefix("Basic ")).decode()
        self.server.posted.append((self.path, self.headers["Content-Type"], user, json.loads(body)))
        self.server.hurry.wait()
        self.send_response(self.server.code)
        if self.server.code == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the terminal."""


@contextmanager
def serving(code: int = 200, *, answers: bool = True) -> Iterator[tuple[Server, str]]:
    hurry = threading.Event()
    if answers:
        hurry.set()
    server = Server(code, hurry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, f"http://user:pass@127.0.0.1:{server.server_port}/token-abc?key=def"
    finally:
        hurry.set()
        server.shutdown()
        thread.join()
        server.server_close()


def ends(directory: Path, how: str) -> JobSettings:
    """A job that ends so."""
    broken = directory.with_name("broken")
    broken.touch()
    if how == "failed":
        return job(directory, square={"fail_at": 25, "broken": str(broken)}, max_open_chunks=1)
    if how == "interrupted":
        settings = job(directory, max_open_chunks=1)
        stop = {"_target_": f"{OPS}.InterruptAt", "at": 25, "flag": str(broken)}
        settings.nodes["stop"] = NodeSettings(stop, "square")
        settings.nodes["write"].inputs = ["stop"]
        return settings
    return job(directory, square={"bad": [3, 4] if how == "rejects" else []})


@pytest.mark.parametrize(
    ("how", "state", "code", "error"),
    [
        ("done", "done", 0, None),
        ("rejects", "done", 3, None),
        ("failed", "failed", 1, "node 'square' failed: RuntimeError: the machine caught fire"),
        ("interrupted", "interrupted", 4, "interrupted; run the same command again to resume"),
    ],
)
def test_a_command_is_told_how_it_ended(tmp_path, how, state, code, error):
    settings = ends(tmp_path / "out", how)
    settings.on_finish = noting(tmp_path / "note")
    assert run(settings) == code
    summary, variables = told(tmp_path / "note")
    assert variables == f"squares {state} {code}"
    assert (summary["state"], summary["exit_code"], summary["attempt"]) == (state, code, 1)
    assert summary["error"] == error or summary["error"].startswith(f"{error} (row 25; /")
    assert summary["directory"] == str(tmp_path / "out")
    assert summary["rows"] == (45 if state == "done" else 20)
    assert sum(reject["rows"] for reject in summary["rejects"]) == (2 if how == "rejects" else 0)
    assert "said: noted" in (tmp_path / "out/run.log").read_text()


def test_a_refusal_is_no_end_of_a_run(tmp_path):
    run(job(tmp_path / "out"))
    other = job(tmp_path / "out", square={"add": 1})
    other.on_finish = noting(tmp_path / "note")
    with pytest.raises(ConfigError):
        run(other)
    again = job(tmp_path / "out")
    again.on_finish = noting(tmp_path / "note")
    assert run(again) is ExitCode.DONE
    assert not Path(f"{tmp_path / 'note'}.json").exists()


def test_a_url_gets_the_same_summary(tmp_path):
    with serving() as (server, url):
        settings = job(tmp_path / "out")
        settings.on_finish = noting(tmp_path / "note")
        settings.on_finish.url = url
        assert run(settings) is ExitCode.DONE
    summary, _ = told(tmp_path / "note")
    assert server.posted == [("/token-abc?key=def", "application/json", "user:pass", summary)]


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (["/bin/sh", "-c", "echo no room >&2; exit 7"], "it ended with 7 (no room)"),
        (["/no/such/program"], "it cannot be run: No such file or directory"),
        (["a\0b"], "it cannot be run: embedded null byte"),
        (["/bin/sh", "-c", "sleep 1000"], "it was ended after on_finish.timeout_s=0.05 s"),
    ],
)
def test_a_command_that_fails_is_a_warning(tmp_path, capsys, command, fault):
    settings = job(tmp_path / "out")
    settings.on_finish = HookSettings(command, timeout_s=0.05 if "sleep" in command[-1] else 30)
    assert run(settings) is ExitCode.DONE
    assert f"{fault}. The results are not affected" in (tmp_path / "out/run.log").read_text()
    assert fault in capsys.readouterr().err


def test_a_summary_that_has_no_room_is_a_warning(tmp_path, monkeypatch, capsys):
    settings = job(tmp_path / "out")
    settings.on_finish = HookSettings(["true"])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    assert run(settings) is ExitCode.DONE
    assert "on_finish command true: it cannot be run: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "answers", "fault"), [(500, True, "HTTP 500"), (302, True, "HTTP 302"), (200, False, "timeout_s=")]
)
def test_a_url_that_fails_is_a_warning_without_its_secrets(tmp_path, capsys, code, answers, fault):
    with serving(code, answers=answers) as (server, url):
        settings = job(tmp_path / "out")
        settings.on_finish = HookSettings(url=url, timeout_s=30 if answers else 0.3)
        assert run(settings) is ExitCode.DONE
    where = f"on_finish url http://127.0.0.1:{server.server_port}/...: "
    shown = capsys.readouterr()
    assert where in shown.err
    assert fault in shown.err
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    for secret in ("token-abc", "key=def", "user:pass"):
        assert secret not in shown.out + shown.err
        assert secret.encode() not in written


def test_a_url_where_nobody_listens_is_a_warning(tmp_path, caplog):
    settings = job(tmp_path / "out")
    settings.on_finish = HookSettings(url="http://127.0.0.1:1/secret")
    with caplog.at_level(logging.WARNING):
        assert run(settings) is ExitCode.DONE
    assert "Connection refused" in caplog.text
    assert "secret" not in caplog.text


def test_it_is_no_part_of_the_results(tmp_path):
    assert run(job(tmp_path / "plain")) is ExitCode.DONE
    settings = job(tmp_path / "told")
    settings.on_finish = noting(tmp_path / "note")
    assert run(settings) is ExitCode.DONE
    assert data(tmp_path / "told") == data(tmp_path / "plain")
    settings.on_finish = HookSettings()
    assert run(settings) is ExitCode.DONE  # finished already, not another run


def test_a_repair_tells_nobody(tmp_path):
    settings = job(tmp_path / "out")
    settings.on_finish = noting(tmp_path / "note")
    run(settings)
    Path(f"{tmp_path / 'note'}.json").unlink()
    (tmp_path / "out/state.sqlite").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert not Path(f"{tmp_path / 'note'}.json").exists()


NO_URLS = ("https://user:secret", "https://host:99999/x", "https://[::1", "https:///path")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "ftp://user:pass@host/x"}, "on_finish.url='ftp...' cannot work"),
        *(({"url": url}, r"on_finish.url='https://...' cannot work: write") for url in NO_URLS),
        ({"timeout_s": 0}, "on_finish.timeout_s=0 cannot work"),
        ({"command": [""]}, "its first element is a program"),
    ],
)
def test_what_cannot_work_is_refused(given, says):
    with pytest.raises(ConfigError, match=says):
        HookSettings(**given)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@hooks.example.com:8443/T/B?x=1", "https://hooks.example.com:8443/..."),
        ("http://localhost/x", "http://localhost/..."),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url, shown):
    assert shown_url(url) == shown
