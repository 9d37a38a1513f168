"""Servers that refuse: a row's fault costs the row, a server's fault costs none, and nothing is sent into a wall."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from operators.endpoint.connection import patience
from operators.endpoint.connection.concurrency import Adaptive
from pipeline.api.errors import ExitCode, NodeFailed
from tests.operators.endpoint.asking import ROWS, asked, texts
from tests.operators.endpoint.fault_server import Fault, FaultServer
from tests.sets import often

pytestmark = pytest.mark.slow("asks servers that refuse")

HTML = Fault(200, "<html>a login page</html>")
FAULTS = {
    "400": Fault(400, {"error": {"message": "Unrecognized request argument"}}),
    "401": Fault(401, {"error": {"message": "wrong key"}}),
    "402": Fault(402, {"error": {"message": "no credit"}}),
    "403": Fault(403, {"error": {"message": "no"}}),
    "404": Fault(404, "default backend - 404"),
    "405": Fault(405, {}),
    "413": Fault(413, {}),
    "424": Fault(424, {}),
    "429": Fault(429, {"error": {"message": "slow down"}}),
    "429 for a day": Fault(429, {}, {"Retry-After": "86400"}),
    "429 without quota": Fault(429, {"error": {"code": "insufficient_quota"}}),
    "498": Fault(498, {"error": {"message": "capacity exceeded"}}),
    "500": Fault(500, {"error": "oops"}),
    "501": Fault(501, {}),
    "502": Fault(502, "<html>bad gateway</html>"),
    "503": Fault(503, {"error": {"message": "Loading model"}}),
    "503 with seconds": Fault(503, {}, {"Retry-After": "3"}),
    "504": Fault(504, "gateway timeout"),
    "507": Fault(507, {}),
    "202": Fault(202, {}),
    "302": Fault(302, "", {"Location": "https://elsewhere.example/"}),
    "reset": Fault(cut=60),
    "closed": Fault(cut=0),
    "half of the JSON": Fault(200, '{"choices": [{"mess', {"Content-Type": "application/json"}),
    "HTML": HTML,
    "events": Fault(200, "data: {}\n\ndata: [DONE]\n\n", {"Content-Type": "text/event-stream"}),
    "an error in 200": Fault(200, {"error": {"code": 429, "message": "rate limited"}}),
    "an error in 200, in words": Fault(200, {"error": {"code": "502", "message": "upstream"}}),
    "abort": Fault(200, {"choices": [{"finish_reason": "abort", "message": {"content": "x"}}]}),
    "no choices": Fault(200, {"choices": []}),
    "null choices": Fault(200, {"choices": None}),
    "no text": Fault(
        200, {"choices": [{"finish_reason": "stop", "message": {"content": None}}], "usage": {"completion_tokens": 9}}
    ),
    "an unknown end": Fault(200, {"choices": [{"finish_reason": "?", "message": {"content": "x"}}]}),
    "a filter": Fault(200, {"choices": [{"finish_reason": "content_filter", "message": {"content": "x"}}]}),
    "the context": Fault(400, {"error": {"message": "exceeds the available context size"}}),
}
OF_ROWS = ("a filter", "the context")
"""The server has read each of the rows, and works."""
IN_ALL = ["400", "401", "429 for a day", "HTML"]


@pytest.mark.parametrize("first", often([True, False], True), ids=["first", "second"])
@pytest.mark.parametrize("name", often(FAULTS, *IN_ALL))
def test_of_two_urls_one_that_always_fails_costs_no_row(tmp_path, monkeypatch, expected, name, first):
    halved: list[Adaptive] = []
    answered: list[Adaptive] = []
    counted = Adaptive.answered

    def count(self: Adaptive, seconds: float, tokens: int) -> None:
        answered.append(self)
        counted(self, seconds, tokens)

    monkeypatch.setattr(Adaptive, "refused", lambda self: halved.append(self))
    monkeypatch.setattr(Adaptive, "answered", count)
    with FaultServer(lambda number, body: FAULTS[name]) as bad, FaultServer(delay_s=0.05) as good:
        urls = [bad.url, good.url] if first else [good.url, bad.url]
        result = asked(good, tmp_path / "out", model__url=urls, model__concurrency="auto")
        assert bad.requests < ROWS
        assert max(good.served.values()) == 1
    assert texts(result) == expected
    assert not set(halved) & {limit for limit in answered if answered.count(limit) > 2}  # /models is answered, too


ROWS_OF_WALL = {"generate": 3000, "embed": 3000, "small": 8}


@pytest.mark.parametrize("job", often(ROWS_OF_WALL, "small"))
def test_a_wall_in_a_small_job_or_for_groups_of_texts_is_one_too(tmp_path, monkeypatch, job):
    monkeypatch.setattr(patience, "PASSES_S", 3.0)
    api = {"model.api": "embeddings"} if job == "embed" else {}
    with FaultServer(lambda number, body: FAULTS["400"]) as server:
        with pytest.raises(NodeFailed, match=r"Unrecognized request argument.* in a row got no answer"):
            asked(server, tmp_path / "out", ROWS_OF_WALL[job], job="embed" if api else "generate", **api)
        assert server.requests < 100
    assert not list((tmp_path / "out").rglob("part-*"))


@pytest.mark.parametrize("name", often(FAULTS, *IN_ALL))
def test_a_wall_gets_fewer_than_100_requests_and_nothing_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr(patience, "PASSES_S", 3.0)
    with FaultServer(lambda number, body: FAULTS[name]) as server:
        if name in OF_ROWS:
            assert asked(server, tmp_path / "out", 100).rejects().collect().height == 100
            return
        with pytest.raises(NodeFailed) as error:
            asked(server, tmp_path / "out", 3000, model__patience_s=4, model__retries=5)
        assert error.value.exit_code in (ExitCode.CONFIG, ExitCode.FAILED)
        assert server.requests < 100
    assert not list((tmp_path / "out").rglob("part-*"))


PLACES = {
    f"{status} from {at} on, {many} at a time": (status, at, many)
    for status, at, many in itertools.product([400, 401, 403, 404, 405, 500], [0, 11, 21], [1, 8])
}


@pytest.mark.parametrize("name", often(PLACES, "403 from 0 on, 1 at a time", "500 from 11 on, 8 at a time"))
def test_rows_that_are_refused_cost_themselves_wherever_they_are(tmp_path, expected, name):
    status, at, concurrency = PLACES[name]
    poison = {at, at + 1, at + 2}

    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        row = int(body["messages"][0]["content"].rpartition(" ")[2])
        return Fault(status, {"error": {"message": "flagged"}}) if row in poison else None

    with FaultServer(faults, delay_s=0.01) as server:
        result = asked(server, tmp_path / "out", model__concurrency=concurrency, model__retries=1)
    assert texts(result) == {row: text for row, text in expected.items() if row not in poison}
    assert {row["row"] for row in result.rejects().collect().to_dicts() if "flagged" in row["reason"]} == poison


def test_one_row_is_asked_of_the_other_url_too(tmp_path):
    with FaultServer(lambda number, body: FAULTS["401"]) as bad, FaultServer() as good:
        assert len(texts(asked(good, tmp_path / "out", 1, model__url=[bad.url, good.url]))) == 1


def test_a_bad_text_in_each_group_is_no_wall(tmp_path):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return FAULTS["400"] if any(text.endswith("5") for text in body["input"]) else None

    with FaultServer(faults) as server:
        result = asked(server, tmp_path / "out", 48, job="embed", model__api="embeddings")
    assert {row["row"] for row in result.rejects().collect().to_dicts()} == {5, 15, 25, 35, 45}


@pytest.mark.parametrize("until", [9, pytest.param(35, marks=pytest.mark.laws)])
def test_a_server_that_fails_for_a_while_costs_no_row(tmp_path, expected, until):
    with FaultServer(lambda number, body: FAULTS["500"] if number < until else None) as server:
        result = asked(server, tmp_path / "out", model__retries=1)
    assert texts(result) == expected


@pytest.mark.parametrize("status", often([401, 403, 404], 403))
def test_one_refusal_between_answers_costs_nothing(tmp_path, expected, status):
    with FaultServer(lambda number, body: Fault(status, "default backend") if number == 3 else None) as server:
        result = asked(server, tmp_path / "out", model__concurrency=2)
    assert texts(result) == expected


def test_any_number_of_refusals_can_be_allowed(tmp_path):
    with FaultServer(lambda number, body: Fault(400, {"error": "no"})) as server:
        result = asked(server, tmp_path / "out", model__refusals_in_a_row=None)
    assert result.rejects().collect().height == ROWS
