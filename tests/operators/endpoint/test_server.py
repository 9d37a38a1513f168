"""What servers say of their models: which one is asked, whether all have the same, what its answers are kept under."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode, NodeFailed
from tests.operators.endpoint.asking import ROWS, asked
from tests.operators.endpoint.fault_server import Fault, FaultServer
from tests.sets import often

pytestmark = pytest.mark.slow("starts a run for each thing that a server may say")
META = {"n_params": 7, "size": 9, "n_ctx": 256}
CARD = {"id": "stub", "owned_by": "llamacpp", "meta": META, "max_model_len": 256}


def log_of(directory) -> str:
    return (directory / "run.log").read_text(encoding="utf-8")


LISTS: dict[str, Fault | list[dict[str, Any]]] = {
    "401": Fault(401, {"error": "no"}),
    "403": Fault(403, {"error": "Missing scopes: api.model.read."}),
    "404": Fault(404, {}),
    "no JSON": Fault(200, "<html>"),
    "no models": Fault(200, {"data": None}),
    "no mapping": Fault(200, []),
    "a wildcard": [{"id": "openai/*", "owned_by": "openai"}],
    "others": [{"id": "other"}, {"id": "third"}],
    "one with a tag": [{"id": "m:latest", "owned_by": "library"}],
}


@pytest.mark.parametrize("name", often(LISTS, "403", "others"))
def test_a_model_that_is_named_is_asked_for_whatever_is_listed(tmp_path, name):
    models = LISTS[name]
    with FaultServer(models=models) as server:
        result = asked(server, tmp_path / "out", 3, model__name="openai/m", model__retries=0)
    assert result.rows().collect().height == 3
    is_listed = isinstance(models, list) and models[0]["id"] == "openai/*"
    assert ("openai/m is asked for" in log_of(tmp_path / "out").replace("model.name=", "")) == (
        not is_listed and isinstance(models, Fault)
    )
    assert ("is none of those that" in log_of(tmp_path / "out")) == (not is_listed and isinstance(models, list))


NAMELESS: dict[str, tuple[Fault | list[dict[str, Any]], str]] = {
    "403": (Fault(403, {}), "name the model with model.name="),
    "none": (Fault(200, {"data": []}), "name one with model.name="),
    "a wildcard": ([{"id": "openai/*"}], "name one with model.name= (openai/*)"),
    "two": ([{"id": "a"}, {"id": "b"}], "name one with model.name= (a, b)"),
}


@pytest.mark.parametrize("name", often(NAMELESS, "two"))
def test_a_model_without_a_name_is_the_only_one(tmp_path, name):
    models, said = NAMELESS[name]
    with FaultServer(models=models) as server:
        with pytest.raises((ConfigError, NodeFailed), match=re.escape(said)) as error:
            asked(server, tmp_path / "out", 3)
        assert error.value.exit_code == ExitCode.CONFIG
        assert server.requests == 0


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "another id": ({"id": "another"}, {}, "different models: stub is none of those of"),
    "another size": ({"meta": META | {"size": 10}}, {}, "different models: meta.size of stub is 9 at"),
    "another kind": ({"owned_by": "vllm"}, {}, "different kinds: owned_by of stub is llamacpp at"),
    "another id beside a name": ({"id": "another"}, {"model__name": "stub"}, None),
    "an alias": ({"id": "another", "aliases": ["stub"]}, {}, None),
    "another root": ({"root": "elsewhere"}, {}, None),
    "another kind beside a dialect": ({"owned_by": "vllm"}, {"model__dialect": "openai"}, None),
    "another context": ({"meta": META | {"n_ctx": 512}, "max_model_len": 512}, {}, ""),
    "not loaded": ({"meta": None}, {}, ""),
}
"""What the second server says otherwise than the first, settings, and the error; None: a warning; empty: neither."""


@pytest.mark.parametrize("name", often(PAIRS, "another size", "another root", "another context"))
def test_servers_with_unlike_models_are_refused_or_told(tmp_path, name):
    other, settings, said = PAIRS[name]
    first = CARD | {"root": "here"}
    with FaultServer(models=[first]) as one, FaultServer(models=[first | other]) as two:
        settings = settings | {"model__url": [one.url, two.url]}
        if said:
            with pytest.raises((ConfigError, NodeFailed), match=re.escape(said)) as error:
                asked(one, tmp_path / "out", 6, **settings)
            assert error.value.exit_code == ExitCode.CONFIG
            assert all(server.url in str(error.value) for server in ([two] if "none of" in said else [one, two]))
            assert one.requests + two.requests == 0
        else:
            asked(one, tmp_path / "out", 6, **settings)
            assert ("WARNING" in log_of(tmp_path / "out")) == (said is None)


def test_a_server_that_says_nothing_at_the_start_is_told(tmp_path):
    dead = "http://127.0.0.1:9/v1"
    with FaultServer() as server:
        assert asked(server, tmp_path / "out", model__url=[dead, server.url]).rows().collect().height == ROWS
    log = log_of(tmp_path / "out")
    assert f"{dead} does not say whether it has the same model: " in log
    assert "patience_s" not in log  # which is not what the start waits for


LIKE: dict[str, dict[str, Any]] = {
    "another context": {"meta": META | {"n_ctx": 512}, "max_model_len": 512},
    "not loaded": {"meta": None},
    "another version, which says more": {"meta": META | {"ftype": "q8_0"}, "created": 3},
}


@pytest.mark.parametrize("back", often([False, True], False))
@pytest.mark.parametrize("name", often(LIKE, "another context"))
def test_answers_outlive_a_restart_of_the_server(tmp_path, name, back):
    cards = [CARD, CARD | LIKE[name]][:: -1 if back else 1]
    with FaultServer(models=[cards[0]]) as server:
        asked(server, tmp_path / "out", 6)
        server.models = [cards[1]]
        asked(server, tmp_path / "out", 6, overwrite=True)
        assert server.requests == 6


def test_answers_of_another_model_do_not_count_which_is_told_and_those_of_before_do(tmp_path):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return Fault(402, {}) if number == 6 else None

    with FaultServer(faults, models=[CARD]) as server:
        with pytest.raises(NodeFailed):
            asked(server, tmp_path / "out", 9, model__concurrency=1)
        server.models = [CARD | {"meta": META | {"size": 10, "n_ctx": 512}}]
        asked(server, tmp_path / "out", 9, model__concurrency=1)
        assert server.requests == 7 + 9
        said = "6 answers of this run do not count: the server describes its model otherwise (meta.size 9, now 10)"
        assert log_of(tmp_path / "out").count(said) == 1
        server.models = [CARD | {"meta": META | {"n_ctx": 1024}}]
        asked(server, tmp_path / "2", 6, store__path=str(tmp_path / "out/completions.sqlite"))
        assert server.requests == 7 + 9


def test_a_query_is_sent_and_not_written_down(tmp_path, capfd):
    version = "2024-10-21-secret&=/ü"
    with FaultServer(lambda number, body: Fault(400, {"error": f"no {version}"}) if number == 3 else None) as server:
        asked(server, tmp_path / "out", 6, model__query={"api-version": version})
    assert server.asked_for
    assert {path.partition("?")[2] for path in server.asked_for} == {"api-version=2024-10-21-secret%26%3D/%C3%BC"}
    assert not any(version.encode() in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert version not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", often(["http_proxy", "HTTP_PROXY", "ALL_PROXY"], "HTTP_PROXY"))
def test_the_proxy_of_the_environment_is_taken_and_told(tmp_path, monkeypatch, name):
    with FaultServer() as proxy:
        at = proxy.url.removesuffix("/v1").removeprefix("http://")
        monkeypatch.setenv(name, f"http://user:pass-word@{at}")
        asked("http://there.invalid/v1", tmp_path / "out", 3)
        assert proxy.requests == 3
        assert set(proxy.asked_for) == {f"http://there.invalid/v1/{api}" for api in ("models", "chat/completions")}
        assert proxy.headers["Proxy-Authorization"] == "Basic dXNlcjpwYXNzLXdvcmQ="
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with FaultServer() as server:
            asked(server, tmp_path / "2", 3)
            assert server.requests == 3
    log = log_of(tmp_path / "out")
    assert log.count(f"http://there.invalid/v1 is asked through the proxy http://{at} of the environment") == 1
    assert "pass-word" not in log
    assert "through the proxy" not in log_of(tmp_path / "2")


@pytest.mark.parametrize(
    ("proxy", "said", "code"),
    [
        ("socks5://127.0.0.1:9", "socks5://127.0.0.1:9 as the proxy for http://there.invalid/v1", ExitCode.CONFIG),
        ("127.0.0.1:9", "http://there.invalid cannot be reached", ExitCode.FAILED),
    ],
)
def test_a_proxy_that_cannot_be_used_ends_the_run(tmp_path, monkeypatch, proxy, said, code):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises((ConfigError, NodeFailed), match=re.escape(said)) as error:
        asked("http://there.invalid/v1", tmp_path / "out", 3, model__patience_s=0)
    assert error.value.exit_code == code


def test_a_proxy_that_wants_a_password_ends_the_run(tmp_path, monkeypatch):
    with FaultServer(models=Fault(407, {})) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removesuffix("/v1"))
        with pytest.raises((ConfigError, NodeFailed), match="its user and password") as error:
            asked("http://there.invalid/v1", tmp_path / "out", 3)
    assert error.value.exit_code == ExitCode.CONFIG
