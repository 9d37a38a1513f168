"""A graph whose model is a server: rows in = rows out + rejected whatever it does, and nothing is paid twice."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from operators.endpoint.estimate import TRIED
from pipeline import Job, estimate, run
from pipeline.api.errors import ConfigError, ExitCode, NodeFailed
from tests.operators.endpoint.fault_server import Fault, FaultServer, Script, at
from tests.operators.endpoint.real_server import TINY, llama_cpp_server

ROWS = 24
KEY = "sk-do-not-write-me-down"


def asked(server: FaultServer | str, directory: Path, rows: int = ROWS, **settings):
    url = server if isinstance(server, str) else server.url
    known = {"model.url": url, "model.retries": 2, "model.timeout_s": 5, "model.patience_s": 20, "max_error_rate": 1.0}
    return run(
        "generate",
        known | {key.replace("__", "."): value for key, value in settings.items()},
        rows=[{"id": i, "prompt": f"the prompt of row {i}"} for i in range(rows)],
        model="endpoint",
        directory=directory,
        progress="none",
    )


def texts(result) -> dict[int, str]:
    found = result.rows().select("row", "completion").collect()
    return dict(zip(found["row"], found["completion"], strict=True))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with FaultServer() as server:
        return texts(asked(server, tmp_path_factory.mktemp("plain") / "out"))


def test_each_row_is_asked_once_and_answered(tmp_path, expected):
    assert len(expected) == ROWS
    assert len(set(expected.values())) == ROWS
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", model__price_per_million={"input": 1.0, "output": 2.0, "cached": 0.5})
        assert set(server.served.values()) == {1}
        again = asked(server, tmp_path / "second", store__path=str(tmp_path / "out/completions.sqlite"))
        assert server.requests == ROWS  # the second run has all answers from the store
    assert texts(result) == expected == texts(again)
    (totals,) = result.metrics("run").select("totals").collect()["totals"]
    assert json.loads(totals)["cost"] == pytest.approx(ROWS * (6 * 1.0 + 4 * 0.5 + 5 * 2.0) / 1e6)


LATER = {
    "429": Fault(429, {"error": {"message": "slow down"}}),
    "429 with seconds": Fault(429, {}, {"Retry-After": "0.2"}),
    "429 with a date of a wrong clock": Fault(
        429, {}, {"Date": formatdate(4e9, usegmt=True), "Retry-After": formatdate(4e9 + 1, usegmt=True)}
    ),
    "500": Fault(500, {"error": "oops"}),
    "503 while loading": Fault(503, {"error": {"message": "Loading model"}}),
    "reset in the middle": Fault(cut=60),
    "closed before an answer": Fault(cut=0),
    "half of the JSON": Fault(200, '{"choices": [{"mess', {"Content-Type": "application/json"}),
    "no JSON": Fault(200, "<html>a proxy says hello</html>"),
    "a hang": Fault(hang_s=3.0),
}


@pytest.mark.parametrize("fault", LATER.values(), ids=LATER)
def test_a_request_that_fails_is_sent_again(tmp_path, expected, fault):
    with FaultServer(at([0, 7], fault)) as server:
        result = asked(server, tmp_path / "out", model__timeout_s=1 if fault.hang_s else 5)
        assert sum(server.served.values()) >= ROWS - 2
        assert max(server.served.values()) == 1
    assert texts(result) == expected


NEVER = {
    "400": (Fault(400, {"error": {"message": "max_tokens is too large"}}), "max_tokens is too large"),
    "no choices": (Fault(200, {"choices": []}), "no choices"),
    "a filter": (
        Fault(200, {"choices": [{"finish_reason": "content_filter", "message": {"content": "x"}}]}),
        "content filter",
    ),
    "a refusal": (
        Fault(200, {"choices": [{"finish_reason": "stop", "message": {"content": None, "refusal": "I will not"}}]}),
        "I will not",
    ),
    "types": (Fault(200, {"choices": [{"finish_reason": 3, "message": []}]}), "message"),
    "always 500": (Fault(500, {"error": "oops"}), "in 3 tries"),
    "a slow byte": (Fault(200, {"choices": []}, slow_s=0.5), "gave no answer within"),
}


@pytest.mark.parametrize(("fault", "reason"), NEVER.values(), ids=NEVER)
def test_a_row_without_an_answer_is_a_reject_with_the_reason(tmp_path, expected, fault, reason):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return fault if body["messages"][0]["content"].endswith("row 5") else None

    with FaultServer(faults) as server:
        result = asked(server, tmp_path / "out", model__timeout_s=1 if fault.slow_s else 5)
    assert texts(result) == {row: text for row, text in expected.items() if row != 5}
    (reject,) = result.rejects().collect().to_dicts()
    assert reject["row"] == 5
    assert reason in reject["reason"]


ENDS = {
    "the key": (Fault(401, {"error": {"message": "wrong key"}}), "wrong key"),
    "the model": (Fault(404, {"error": {"message": "no such model"}}), "no such model"),
    "a redirection": (Fault(302, "", {"Location": "https://elsewhere.example/v1?key=1"}), "https://elsewhere.example,"),
}


@pytest.mark.parametrize(("fault", "said"), ENDS.values(), ids=ENDS)
def test_what_no_row_can_pass_ends_the_run_and_the_same_call_goes_on(tmp_path, expected, fault, said):
    with FaultServer(lambda number, body: fault if number >= 9 else None) as server:
        with pytest.raises(NodeFailed, match=re.escape(said)) as error:
            asked(server, tmp_path / "out", model__concurrency=2)
        assert error.value.exit_code == ExitCode.CONFIG
        answered = sum(server.served.values())
        server.faults = None
        result = asked(server, tmp_path / "out", model__concurrency=2)
        assert sum(server.served.values()) == ROWS
        assert answered >= 8
        assert max(server.served.values()) == 1
    assert texts(result) == expected


def test_a_server_that_dies_and_returns_loses_no_row(tmp_path, expected):
    def returns() -> None:
        server.stop()
        time.sleep(1.0)
        server.start()

    def dies(number: int, body: dict[str, Any]) -> Fault | None:
        if number == 10:
            threading.Thread(target=returns).start()
        return None

    with FaultServer(dies, delay_s=0.05) as server:
        result = asked(server, tmp_path / "out", model__retries=3)
        assert max(server.served.values()) == 1
    assert texts(result) == expected


def test_a_dead_url_is_left_out(tmp_path, expected):
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", model__url=["http://127.0.0.1:9/v1", server.url])
    assert texts(result) == expected


def test_a_server_that_is_not_there_ends_the_run_after_the_patience(tmp_path):
    with pytest.raises(NodeFailed, match=r"cannot be reached.*patience_s=1") as error:
        asked("http://127.0.0.1:9/v1", tmp_path / "out", model__patience_s=1)
    assert error.value.exit_code == ExitCode.FAILED


def test_too_many_requests_halve_the_concurrency_and_cost_no_row(tmp_path, expected):
    with FaultServer(delay_s=0.05, limit=3) as server:
        result = asked(server, tmp_path / "out", model__retries=0)
    assert texts(result) == expected


def test_the_longest_wait_that_a_server_asks_for_holds_for_all(tmp_path):
    came: list[float] = []

    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        came.append(time.monotonic())
        return {0: Fault(429, {}, {"Retry-After": "1"}), 1: Fault(429, {}, hang_s=0.2)}.get(number)

    with FaultServer(faults) as server:
        asked(server, tmp_path / "out", model__concurrency=2)
    assert came[3] - came[0] >= 0.9  # the third is the second one again


def test_samples_are_asked_for_one_by_one_where_no_seed_is_sent(tmp_path):
    settings = {"sampling__n": 2, "sampling__temperature": 1.0, "model__extra_body": {"seed": None}}
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", 5, **settings)
        assert set(server.served.values()) == {2}
    assert result.rows().collect().height == 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampling.typical_p": 0.5, "sampling.temperature": 1.0}, "typical_p"),
        ({"output.completion_ids": True}, "completion_ids"),
        ({"model.key_env": "NO_SUCH_VARIABLE_IS_SET"}, "NO_SUCH_VARIABLE_IS_SET"),
        ({"model.name": "another"}, "none of the server's models: stub"),
        ({"model.url": "http://u:p@127.0.0.1/v1"}, "user or password"),
        ({"model.url": "http://127.0.0.1/v1/chat/completions"}, "leave /chat/completions out"),
        ({"model.api": "embeddings"}, "makes no texts"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_sent(tmp_path, settings, said):
    with FaultServer() as server:
        with pytest.raises((ConfigError, NodeFailed), match=re.escape(said)) as error:
            asked(server, tmp_path / "out", **{key.replace(".", "__"): value for key, value in settings.items()})
        assert error.value.exit_code == ExitCode.CONFIG
        assert server.requests == 0


def test_neither_key_nor_headers_nor_prompts_are_written_down(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("ENDPOINT_KEY_OF_TEST", KEY)

    def echoes(number: int, body: dict[str, Any]) -> Fault | None:
        text = body["messages"][0]["content"]
        return Fault(400, {"error": {"message": f"{KEY} may not say {text}"}}) if text.endswith("row 5") else None

    with FaultServer(echoes) as server:
        headers = {"X-Secret": "header-do-not-write"}
        asked(server, tmp_path / "out", model__key_env="ENDPOINT_KEY_OF_TEST", model__headers=headers)
        assert server.headers["Authorization"] == f"Bearer {KEY}"
        assert server.headers["X-Secret"] == "header-do-not-write"
    printed = "".join(capfd.readouterr())
    for path in (tmp_path / "out").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert KEY.encode() not in content, path
        assert b"header-do-not-write" not in content, path
        if path.name == "run.log":
            assert b"the prompt of row" not in content
    assert "the prompt of row" not in printed
    assert KEY not in printed


PROGRAM = """
import sys
from pathlib import Path
from tests.operators.endpoint.test_endpoint import asked
asked(sys.argv[1], Path(sys.argv[2]), 60, model__concurrency=4, chunk_rows=20)
"""


def started(server: FaultServer, directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, server.url, str(directory)], stderr=subprocess.PIPE)


def killed_at_random(tmp_path: Path, kills: int, faults: Script | None = None) -> None:
    """Kill a run `kills` times, let it end, and compare it with one that was left alone."""
    rng = random.Random(kills)
    with FaultServer() as server:
        expected = texts(asked(server, tmp_path / "left alone", 60, chunk_rows=20))
    with FaultServer(faults, delay_s=0.1) as server:
        for _ in range(kills):
            process = started(server, tmp_path / "out")
            before = server.requests
            until = time.monotonic() + 60
            while (
                server.requests < before + rng.randrange(1, 12) and process.poll() is None and time.monotonic() < until
            ):
                time.sleep(0.01)
            process.kill()
            process.communicate()
        result = asked(server, tmp_path / "out", 60, model__concurrency=4, chunk_rows=20)
        # An answer that arrived half a second before the kill is in the store; those in flight are asked for again.
        assert sum(server.served.values()) <= 60 + kills * (4 + 20)
    assert texts(result) == expected
    assert len(expected) == 60


def test_a_killed_run_goes_on_with_the_same_rows(tmp_path):
    killed_at_random(tmp_path, 2)


@pytest.mark.faults
def test_fifty_kills_lose_and_double_nothing(tmp_path):
    killed_at_random(tmp_path, 50)


def test_an_interrupt_ends_within_seconds_and_keeps_what_is_answered(tmp_path):
    with FaultServer(lambda number, body: Fault(hang_s=60) if number >= 20 else None) as server:
        process = started(server, tmp_path / "out")
        until = time.monotonic() + 60
        while server.requests < 24 and time.monotonic() < until:
            time.sleep(0.02)
        began = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=30)
        took = time.monotonic() - began
        answered = set(server.served)
        server.faults = None
        asked(server, tmp_path / "out", 60, model__concurrency=4, chunk_rows=20)
        assert len(answered) == 20
        assert all(server.served[body] == 1 for body in answered)
    assert took < 20  # 3 s are asked of a quiet machine, and no test is to depend on the time


def test_a_graph_may_have_a_server_and_a_model_of_this_process(tmp_path):
    job = Job("both", model="endpoint", sampling={"max_tokens": 4})
    job.step("answer", prompt="{{ question }}")
    job.step("verdict", prompt="Right? {{ answer }}", choices=["yes", "no"], model={"path": str(TINY)})
    with FaultServer() as server:
        settings = {"model.url": server.url}
        result = run(job, settings, rows=[{"question": "2 + 3?"}], directory=tmp_path / "out", progress="none")
        assert server.requests == 1
    (row,) = result.rows().collect().to_dicts()
    assert row["answer"].startswith("answer ")
    assert row["verdict"] in ("yes", "no")


def test_a_target_ends_when_its_money_is_spent_over_all_attempts(tmp_path):
    price = {"input": 0.0, "cached": 0.0, "output": 2e5}  # 5 tokens cost 1
    target = {
        "target__accepted_rows": 200,
        "target__chunk_rows": 10,
        "model__price_per_million": price,
        "chunk_rows": 10,
    }
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", 300, **target, target__max_cost=35.0, max_open_chunks=1)
        assert result.outcome == ExitCode.BUDGET
        spent = server.requests
        assert 35 <= spent < 100
        asked(server, tmp_path / "out", 300, **target, target__max_cost=spent - 1, max_open_chunks=1)
        assert server.requests == spent
        result = asked(server, tmp_path / "out", 300, **target, max_open_chunks=1)
        assert result.outcome == ExitCode.DONE
    assert result.rows().collect().height == 200


def test_vectors_come_from_a_server_once_and_a_bad_text_costs_itself(tmp_path):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return Fault(400, {"error": {"message": "too long"}}) if "bad" in body["input"] else None

    settings = {"model": "endpoint", "model.api": "embeddings", "max_error_rate": 1.0, "progress": "none"}
    rows = [{"prompt": "bad" if i == 7 else f"text {i}"} for i in range(40)]
    with FaultServer(faults) as server:
        price = {"model.price_per_million": {"input": 1e6, "output": 0.0}}
        result = run("embed", settings | price | {"model.url": server.url}, rows=rows, directory=tmp_path / "out")
        assert server.requests == 3 + 16
    found = result.rows().select("row", "embedding").collect()
    assert sorted(found["row"]) == [i for i in range(40) if i != 7]
    first = list(hashlib.sha256(b"text 0").digest()[:4])
    vector = found.filter(found["row"] == 0)["embedding"][0].to_list()
    length = sum(x * x for x in first) ** 0.5
    assert vector == pytest.approx([x / length for x in first])
    (reject,) = result.rejects().collect().to_dicts()
    assert "too long" in reject["reason"]
    (totals,) = result.metrics("run").select("totals").collect()["totals"]
    assert json.loads(totals)["cost"] == 39 * 3


def test_an_operator_that_needs_the_model_itself_says_so(tmp_path):
    settings = {"model": "endpoint", "model.url": "http://127.0.0.1:9/v1"}
    with pytest.raises(ConfigError, match="this operator needs a model of this process"):
        run("rerank", settings, directory=tmp_path / "out", progress="none")


def test_a_dry_run_sends_a_handful_and_tells_the_cost(tmp_path):
    price = {"input": 1e6, "output": 0.0, "cached": 1e6}
    with FaultServer() as server:
        settings = {"model.url": server.url, "model.price_per_million": price}
        found = estimate("generate", settings, rows=[f"prompt {i}" for i in range(500)], model="endpoint")
        assert server.requests == TRIED
    assert found.forecast is not None
    assert found.forecast.tokens_in.likely == 5000
    assert "cost 5,000.00" in found.text


@pytest.mark.parametrize("rows", [30, pytest.param(200, marks=pytest.mark.faults)])
def test_greedy_texts_of_a_real_server_are_those_of_the_local_job(tmp_path, rows):
    """llama-cpp-python's server has one slot and no flash attention."""
    settings = {"sampling": "greedy", "data.limit": rows, "progress": "none"}
    with llama_cpp_server(tmp_path / "log") as url:
        there = {"model": "endpoint", "model.url": url}
        theirs = texts(run("quickstart", settings | there, directory=tmp_path / "theirs"))
    ours = texts(run("quickstart", settings | {"runtime.flash_attention": False}, directory=tmp_path / "ours"))
    assert len(ours) == rows
    assert theirs == ours
