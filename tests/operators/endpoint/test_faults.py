"""A graph whose model is a server: rows in = rows out + rejected whatever it does."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
from email.utils import formatdate
from typing import Any

import pytest

from operators.endpoint.connection import http
from operators.endpoint.connection.concurrency import Adaptive
from pipeline.api.errors import ExitCode, NodeFailed
from tests.operators.endpoint.asking import ROWS, asked, texts
from tests.operators.endpoint.fault_server import Fault, FaultServer, at
from tests.sets import often

pytestmark = pytest.mark.slow("waits for servers that fail")

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


@pytest.mark.parametrize("name", often(LATER, "500", "reset in the middle"))
def test_a_request_that_fails_is_sent_again(tmp_path, expected, name):
    fault = LATER[name]
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
    "500 for a day": (Fault(500, {"error": "oops"}, {"Retry-After": "86400"}), "patience_s=20 leaves, in 1 try"),
    "a slow byte": (Fault(200, {"choices": []}, slow_s=0.5), "gave no answer within"),
}


@pytest.mark.parametrize("name", often(NEVER, "a refusal", "always 500"))
def test_a_row_without_an_answer_is_a_reject_with_the_reason(tmp_path, expected, name):
    fault, reason = NEVER[name]

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


SAID = {
    "a login page": (Fault(200, "<html>log in</html>"), "bytes of text/html that are no JSON: '<html>log in</html>'"),
    "an endless body": (Fault(200, "x" * (3 << 20), has_length=False), "answers with more than 1 MiB"),
    "a bad header": (Fault(200, {}, {"X-Bad": "a\x00b"}), "Invalid"),
    "an error in 200": (Fault(200, {"error": {"code": 500, "message": "upstream"}}), "says 500: the server says: upst"),
}


@pytest.mark.parametrize("name", often(SAID, "an endless body", "an error in 200"))
def test_a_reject_says_what_came_instead_of_an_answer(tmp_path, monkeypatch, name):
    fault, said = SAID[name]
    monkeypatch.setattr(http, "_MOST_BYTES", 1 << 20)
    with FaultServer(lambda number, body: fault if "row 5" in str(body["messages"]) else None) as server:
        result = asked(server, tmp_path / "out", model__retries=1)
    (reject,) = result.rejects().collect().to_dicts()
    assert said in reject["reason"]


def test_https_where_http_is_spoken_ends_the_run_at_once(tmp_path):
    class Http(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Http) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(NodeFailed, match="it may speak http:// there") as error:
            asked(f"https://127.0.0.1:{server.server_address[1]}/v1", tmp_path / "out")
        server.shutdown()
    assert error.value.exit_code == ExitCode.CONFIG


def test_a_server_is_asked_not_to_stream_and_the_key_of_an_answer_does_not_depend_on_it(tmp_path, expected):
    def streams(number: int, body: dict[str, Any]) -> Fault | None:
        return None if body.get("stream") is False else Fault(200, "data: {}", {"Content-Type": "text/event-stream"})

    with FaultServer(streams) as server:
        assert texts(asked(server, tmp_path / "out")) == expected
    with FaultServer() as server:
        asked(server, tmp_path / "taken out", model__extra_body={"stream": None})
        assert not any("stream" in json.loads(body) for body in server.served)


@pytest.mark.parametrize("name", often(ENDS, "the key"))
def test_what_no_row_can_pass_ends_the_run_and_the_same_call_goes_on(tmp_path, expected, name):
    fault, said = ENDS[name]
    with FaultServer(lambda number, body: fault if number >= 9 else None) as server:
        with pytest.raises(NodeFailed, match=re.escape(said)) as error:
            asked(server, tmp_path / "out", 60, model__concurrency=2)
        assert error.value.exit_code == ExitCode.CONFIG
        answered = sum(server.served.values())
        server.faults = None
        result = asked(server, tmp_path / "out", 60, model__concurrency=2)
        assert sum(server.served.values()) == 60
        assert answered >= 8
        assert max(server.served.values()) == 1
    assert expected.items() <= texts(result).items()
    assert not result.rejects().collect().height


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


def test_a_server_that_is_not_there_halves_the_concurrency_and_ends_the_run_after_the_patience(tmp_path, monkeypatch):
    refused: list[int] = []
    monkeypatch.setattr(Adaptive, "refused", lambda self: refused.append(self.limit))
    with pytest.raises(NodeFailed, match=r"cannot be reached.*patience_s=1") as error:
        asked("http://127.0.0.1:9/v1", tmp_path / "out", model__patience_s=1)
    assert error.value.exit_code == ExitCode.FAILED
    assert refused


def test_a_wait_that_the_patience_does_not_cover_ends_the_run_at_once_and_the_same_call_goes_on(tmp_path, expected):
    day = Fault(429, {"error": {"message": "quota"}}, {"Retry-After": "86400"})
    with FaultServer(lambda number, body: day if number >= 9 else None) as server:
        with pytest.raises(NodeFailed, match=r"quota; it asks for 86400 s .* more than model.patience_s=20") as error:
            asked(server, tmp_path / "out", model__concurrency=2)
        assert error.value.exit_code == ExitCode.FAILED
        server.faults = None
        result = asked(server, tmp_path / "out", model__concurrency=2)
        assert max(server.served.values()) == 1
    assert texts(result) == expected


@pytest.mark.parametrize(
    ("fault", "halves"),
    [
        (Fault(429, {}), True),
        *(pytest.param(fault, True, marks=pytest.mark.laws) for fault in (Fault(503, {}), Fault(hang_s=3.0))),
        (Fault(500, {}), False),
    ],
    ids=["429", "503", "no answer in time", "500"],
)
def test_what_halves_the_concurrency(tmp_path, monkeypatch, fault, halves):
    refused: list[int] = []
    monkeypatch.setattr(Adaptive, "refused", lambda self: refused.append(self.limit))
    with FaultServer(at([3], fault)) as server:
        asked(server, tmp_path / "out", model__timeout_s=1)
    assert bool(refused) == halves


def test_the_longest_wait_that_a_server_asks_for_holds_for_all(tmp_path):
    came: list[float] = []

    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        came.append(time.monotonic())
        return {0: Fault(429, {}, {"Retry-After": "1"}), 1: Fault(429, {}, hang_s=0.2)}.get(number)

    with FaultServer(faults) as server:
        asked(server, tmp_path / "out", model__concurrency=2)
    assert came[3] - came[0] >= 0.9  # the third is the second one again
