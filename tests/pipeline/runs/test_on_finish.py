"""on_finish: told at every end that the process survives, and never a reason for the run to end otherwise."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.settings import HookSettings, JobSettings, NodeSettings
from tests.pipeline.squares import OPS, job, run
from tests.sets import often_cases

NOTE = 'cat > "$0.json"; echo "$PIPELINE_JOB $PIPELINE_STATE $PIPELINE_EXIT_CODE" > "$0.env"; echo noted'


def noting(note: Path) -> HookSettings:
    """A command that keeps what it was told in <note>.json and <note>.env."""
    return HookSettings(["/bin/sh", "-c", NOTE, str(note)])


def told(note: Path) -> tuple[dict[str, Any], str]:
    text = Path(f"{note}.json").read_text()
    assert text.endswith("}\n")  # appended to a file, every end is a line
    return json.loads(text), Path(f"{note}.env").read_text().strip()


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
    often_cases(
        [
            ("done", "done", 0, None),
            ("rejects", "done", 3, None),
            ("failed", "failed", 1, "node 'square' failed: RuntimeError: the machine caught fire"),
            ("interrupted", "interrupted", 4, "interrupted; run the same command again to resume"),
        ],
        "rejects",
        "failed",
    ),
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


def test_a_run_that_is_finished_already_is_told_once(tmp_path):
    run(job(tmp_path / "out"))
    again = job(tmp_path / "out")
    again.on_finish = noting(tmp_path / "note")
    assert run(again) is ExitCode.DONE
    assert not Path(f"{tmp_path / 'note'}.json").exists()


@pytest.mark.parametrize(
    ("command", "fault"),
    often_cases(
        [
            (["/bin/sh", "-c", "echo no room >&2; exit 7"], "it ended with 7 (no room)"),
            (["/no/such/program"], "it cannot be run: No such file or directory"),
            (["a\0b"], "it cannot be run: embedded null byte"),
            (["/bin/sh", "-c", "sleep 1000"], "it was ended after on_finish.timeout_s=0.05 s"),
        ],
        ["/no/such/program"],
        ["/bin/sh", "-c", "sleep 1000"],
    ),
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


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted in `posted`; a path that ends with `bad` does not exist."""

    posted: ClassVar[list[tuple[str, str | None, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(404 if self.path.endswith("bad") else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not on the terminal."""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_of_the_page_posts_the_summary(tmp_path, monkeypatch):
    page = (PROJECT / "docs/monitoring.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.lstrip().startswith("command: [curl, "))
    monkeypatch.setattr(Receiver, "posted", [])
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        for name in ("good", "bad"):
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            settings = job(tmp_path / name)
            settings.on_finish.command = yaml.safe_load(line.replace("${secret:BATCH_WEBHOOK}", url))["command"]
            assert settings.on_finish.command[-1] == url
            assert run(settings) is ExitCode.DONE
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [(path, kind, summary["directory"]) for path, kind, summary in Receiver.posted] == [
        (f"/{name}", "application/json", str(tmp_path / name)) for name in ("good", "bad")
    ]
    assert "on_finish" not in (tmp_path / "good/run.log").read_text()
    warning = (tmp_path / "bad/run.log").read_text().splitlines()[-1]
    assert "on_finish command curl: it ended with 22 (" in warning
    assert "404" in warning


def test_a_repair_tells_nobody(tmp_path):
    settings = job(tmp_path / "out")
    settings.on_finish = noting(tmp_path / "note")
    run(settings)
    Path(f"{tmp_path / 'note'}.json").unlink()
    (tmp_path / "out/state.sqlite").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert not Path(f"{tmp_path / 'note'}.json").exists()
