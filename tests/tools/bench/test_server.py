"""The client of llama-server, against a small server that answers as it does."""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.tools.bench.work import spec
from tools.bench.child import Child, ChildFailed, run_child
from tools.bench.server import ask_all, command, measure, requests, wait_until_ready

FAKE = """\
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.answer({"status": "ok"})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"tokens_evaluated": len(body["prompt"]), "tokens_predicted": body["n_predict"]})
    def answer(self, values):
        text = json.dumps(values).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(text))); self.end_headers()
        self.wfile.write(text)
port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Handler(BaseHTTPRequestHandler):
    """Answers a completion; keeps what it was asked and how many were there at once."""

    protocol_version = "HTTP/1.1"
    bodies: list[dict[str, object]]
    at_once = 0
    most = 0
    lock = threading.Lock()
    released: threading.Event
    answered: list[bool]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = type(self)
        with kind.lock:
            kind.at_once += 1
            kind.most = max(kind.most, kind.at_once)
            kind.bodies.append(body)
        with kind.lock:
            kind.at_once -= 1
        if "slow" in body["prompt"]:
            kind.answered.append(kind.released.wait(60))
        status = 500 if "fail" in body["prompt"] else 200
        text = json.dumps({"tokens_evaluated": len(body["prompt"]), "tokens_predicted": body["n_predict"]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format, *args):
        pass


@pytest.fixture
def server():
    handler = type("Counting", (Handler,), {"bodies": [], "released": threading.Event(), "answered": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running.server_address[1], handler
        running.shutdown()
        thread.join()


def test_every_row_is_asked_once(tmp_path, server):
    port, handler = server
    made = spec(tmp_path, rows=9)
    rows = made.rows.rendered()
    answers = ask_all(port, requests(rows, made.sampling, share_prefix=False), clients=4)
    assert [a["tokens_predicted"] for a in answers] == rows["max_tokens"].to_pylist()
    assert {b["prompt"] for b in handler.bodies} == set(rows["prompt_text"].to_pylist())
    assert all(b["ignore_eos"] and b["temperature"] == 0 and not b["cache_prompt"] for b in handler.bodies)
    assert handler.most <= 4


def test_a_refused_request_is_an_error(server):
    port, _ = server
    with pytest.raises(ChildFailed, match="status 500"):
        ask_all(port, [{"prompt": "fail", "n_predict": 1}] * 3, clients=2)


def test_a_failure_does_not_wait_for_the_other_answers(server):
    """Nor does SIGTERM, after which the server must end soon."""
    port, handler = server
    with pytest.raises(ChildFailed, match="status 500"):
        ask_all(port, [{"prompt": "fail", "n_predict": 1}, {"prompt": "slow", "n_predict": 1}], clients=2)
    assert handler.answered == []
    handler.released.set()


def test_a_server_that_is_gone_is_an_error():
    with pytest.raises(ChildFailed, match="not answered"):
        ask_all(9, [{"prompt": "x", "n_predict": 1}], clients=1)


def test_a_server_that_ends_says_why(tmp_path):
    child = Child([sys.executable, "-S", "-c", "import sys; sys.exit('no model')"], tmp_path)
    with pytest.raises(ChildFailed, match="ended with 1: no model"):
        wait_until_ready(child, 9)


def test_it_is_given_our_sizes(tmp_path):
    made = spec(tmp_path, slots=8)
    words = command(made, 1234)
    for option, value in {"--parallel": "8", "--ctx-size": str(8 * 256), "--ubatch-size": "512"}.items():
        assert words[words.index(option) + 1] == value
    assert "--no-cache-prompt" in words
    made.share_prefix = True
    assert "--cache-prompt" in command(made, 1234)


def test_a_whole_measurement(tmp_path):
    made = spec(tmp_path, rows=7)
    program = tmp_path / "llama-server"
    program.write_text(f"#!{sys.executable} -S\n{FAKE}")
    program.chmod(0o755)
    made.model.path = "any.gguf"
    figures = measure(made)
    assert figures.new_tokens == made.rows.facts.new_tokens
    assert figures.work_s > 0
    assert (figures.cpu_s or 0) > 0
    assert (figures.peak_rss_mb or 0) > 1


def test_the_server_ends_when_its_measurement_is_cancelled(tmp_path):
    made = spec(tmp_path)
    program = tmp_path / "llama-server"
    program.write_text(
        f"#!{sys.executable} -S\nimport os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()) + '.')\n"
        "time.sleep(60)\n"
    )
    program.chmod(0o755)
    made.model.path = "any.gguf"
    pid = tmp_path / "pid"

    def started() -> bool:
        return pid.exists() and pid.read_text().endswith(".")

    command = [sys.executable, "-m", "tools.bench", "tools.bench.server:measure", made.save()]
    with pytest.raises(ChildFailed, match="cancelled"):
        run_child(command, 60, started)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()[:-1]), 0)
