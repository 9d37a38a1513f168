"""The client of llama-server, against a small server that answers as it does; children are timed, weighed, and
ended."""

from __future__ import annotations

import os
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from tests.tools.bench import fake_server
from tests.tools.bench.work import spec
from tools.bench import alternatives
from tools.bench.alternatives import ask_all, requests, server_command, wait_until_ready
from tools.bench.child import ChildFailed, run_child, start
from tools.bench.scenarios import SERVER


@pytest.fixture
def server():
    handler = type("Handler", (fake_server.Handler,), {"bodies": [], "released": threading.Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running.server_address[1], handler
        running.shutdown()
        thread.join()


def program(folder: Path, code: str) -> Path:
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable} -S\n{code}")
    path.chmod(0o755)
    return path


def test_every_row_is_asked_once(tmp_path, server):
    port, handler = server
    made = spec(tmp_path, rows=9)
    rows = made.workload.rows
    answers = ask_all(port, requests(made), clients=4)
    assert [a["tokens_predicted"] for a in answers] == rows["max_tokens"].to_pylist()
    assert sorted(b["prompt"] for b in handler.bodies) == sorted(rows["prompt_text"].to_pylist())
    assert all(b["ignore_eos"] and b["temperature"] == 0 and not b["cache_prompt"] for b in handler.bodies)


def test_a_failure_does_not_wait_for_the_other_answers(server):
    """Nor does SIGTERM, after which the server must end soon."""
    port, handler = server
    with pytest.raises(ChildFailed, match="status 500"):
        ask_all(port, [{"prompt": "fail", "n_predict": 1}, {"prompt": "slow", "n_predict": 1}], clients=2)
    assert not handler.released.is_set()
    handler.released.set()


def test_a_server_that_is_gone_is_an_error():
    with pytest.raises(ChildFailed, match="not answered"):
        ask_all(9, [{"prompt": "x", "n_predict": 1}], clients=1)


def test_a_server_that_ends_says_why(tmp_path):
    log = tmp_path / "log"
    server = start([sys.executable, "-S", "-c", "import sys; sys.exit('no model')"], log, log)
    with pytest.raises(ChildFailed, match="ended with 1: no model"):
        wait_until_ready(server, 9, log)


def test_it_is_given_our_sizes(tmp_path):
    made = spec(tmp_path, slots=8)
    words = server_command(made, 1234)
    for option, value in {"--parallel": "8", "--ctx-size": str(8 * 256), "--ubatch-size": "512"}.items():
        assert words[words.index(option) + 1] == value
    assert "--no-cache-prompt" in words
    made.share_prefix = True
    assert "--cache-prompt" in server_command(made, 1234)


def test_a_whole_measurement(tmp_path):
    made = spec(tmp_path, rows=7)
    program(tmp_path, Path(fake_server.__file__).read_text())
    made.model.path = "any.gguf"
    figures = alternatives.server(made)
    assert figures.new_tokens == made.workload.new_tokens
    assert figures.work_s > 0
    assert (figures.cpu_s or 0) > 0
    assert (figures.peak_rss_mb or 0) > 1


def test_the_server_ends_when_its_measurement_is_cancelled(tmp_path):
    made = spec(tmp_path)
    pid = tmp_path / "pid"
    program(tmp_path, f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid()) + '.')\ntime.sleep(60)\n")
    made.model.path = "any.gguf"

    def started() -> bool:
        return pid.exists() and pid.read_text().endswith(".")

    with pytest.raises(ChildFailed, match="cancelled"):
        run_child(SERVER.command(made), 60, started)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()[:-1]), 0)


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_what_it_cost_is_told():
    big = "x = bytearray(80 * 2**20); import time; t = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    done = run_child(python(f"{big}\nprint('hello')"), timeout_s=60)
    assert done.output == "hello\n"
    assert 0.2 <= done.cpu_s <= done.wall_s + 1
    assert 80 <= done.peak_rss_mb < 400


def test_memory_is_its_own_and_not_its_parents():
    held = bytearray(300 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    done = run_child(python("import time; time.sleep(0.2)"), timeout_s=60)
    if sys.platform == "linux":
        assert done.peak_rss_mb < 150


def test_a_failure_has_its_last_words():
    with pytest.raises(ChildFailed, match=r"ended with 3: why \| it failed"):
        run_child(python("import sys; sys.stderr.write('why\\nit failed'); sys.exit(3)"), timeout_s=60)


def test_a_program_that_is_not_there_is_a_failure(tmp_path):
    with pytest.raises(ChildFailed, match="cannot be started"):
        run_child([str(tmp_path / "nothing")], timeout_s=60)


def test_one_that_takes_too_long_is_ended():
    with pytest.raises(ChildFailed, match="timeout_s"):
        run_child(python("import time; time.sleep(60)"), timeout_s=0.1)


def test_its_own_children_end_with_it(tmp_path):
    pid = tmp_path / "pid"
    nested = f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\nopen({str(pid)!r}, 'w')"
    code = f"import subprocess, sys, time; {nested}.write(f'{{child.pid}}.')\ntime.sleep(60)"
    with pytest.raises(ChildFailed, match="cancelled"):
        run_child(python(code), 60, lambda: pid.exists() and pid.read_text().endswith("."))
    deadline = time.monotonic() + 10
    while (alive := psutil.pid_exists(number := int(pid.read_text()[:-1]))) and time.monotonic() < deadline:
        if psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.02)
    assert not alive
