"""Settings of a server: what cannot be is said before anything is sent, and no secret is written down."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline import run
from pipeline.api.errors import ConfigError, ExitCode, NodeFailed
from tests.operators.endpoint.asking import asked, started
from tests.operators.endpoint.fault_server import Fault, FaultServer, answer_to
from tests.sets import often_cases

KEY = "sk-do-not-write-me-down"


def test_samples_are_asked_for_one_by_one_where_no_seed_is_sent(tmp_path):
    settings = {"sampling__n": 2, "sampling__temperature": 1.0, "model__extra_body": {"seed": None}}
    with FaultServer() as server:
        result = asked(server, tmp_path / "out", 5, **settings)
        assert set(server.served.values()) == {2}
    assert result.rows().collect().height == 10


@pytest.mark.parametrize(
    ("settings", "said"),
    often_cases(
        [
            ({"sampling.typical_p": 0.5, "sampling.temperature": 1.0}, "typical_p"),
            ({"output.completion_ids": True}, "completion_ids"),
            ({"model.key_env": "NO_SUCH_VARIABLE_IS_SET"}, "NO_SUCH_VARIABLE_IS_SET"),
            ({"model.url": "http://127.0.0.1/v1?key=1"}, "model.query={NAME: VALUE}"),
            ({"model.query": {"api-version": 1}}, "a number in quotes"),
            ({"model.url": "http://u:p@127.0.0.1/v1"}, "user or password"),
            ({"model.url": "http://127.0.0.1/v1/chat/completions"}, "leave /chat/completions out"),
            ({"model.api": "embeddings"}, "makes no texts"),
        ],
        "typical_p",
        "NO_SUCH_VARIABLE_IS_SET",
        "user or password",
    ),
)
def test_what_cannot_be_is_said_before_anything_is_sent(tmp_path, settings, said):
    with FaultServer() as server:
        with pytest.raises((ConfigError, NodeFailed), match=re.escape(said)) as error:
            asked(server, tmp_path / "out", **{key.replace(".", "__"): value for key, value in settings.items()})
        assert error.value.exit_code == ExitCode.CONFIG
        assert server.requests == 0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A file with a certificate for 127.0.0.1, that no authority has signed, and its key."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", *options, *names, "-keyout", f"{path}.key", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_a_certificate_that_nobody_signed_is_refused_and_the_remedy_helps(tmp_path, certificate):
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, f"{certificate}.key")
    with FaultServer(tls=tls) as server:
        said = rf"{server.url[:-3]} has a certificate.*self-signed.*SSL_CERT_FILE"
        with pytest.raises(NodeFailed, match=said) as error:
            asked(server, tmp_path / "out", 1)
        assert error.value.exit_code == ExitCode.CONFIG
        assert server.requests == 0
        started(server, tmp_path / "2", SSL_CERT_FILE=str(certificate)).communicate(timeout=60)
        assert sum(server.served.values()) == 60


def test_an_answer_of_another_model_is_said_once(tmp_path):
    def other(number: int, body: dict[str, Any]) -> Fault | None:
        return Fault(200, answer_to(body) | {"model": "stub-2026"})

    named = {"model__extra_body": {"model": "stub-2026"}}
    for n, (faults, settings, count) in enumerate(((other, {}, 1), (None, {}, 0), (other, named, 0))):
        with FaultServer(faults) as server:
            asked(server, tmp_path / f"{n}", 5, **settings)
        log = (tmp_path / f"{n}/run.log").read_text(encoding="utf-8")
        assert log.count("was asked for, and the server says that 'stub-2026' answers") == count


def test_a_message_of_the_server_may_name_the_model_and_quotes_no_prompt(tmp_path):
    def unknown(number: int, body: dict[str, Any]) -> Fault | None:
        told = f"model {body['user']} of the assistant cannot answer {body['messages'][0]['content']}"
        return Fault(400, {"error": {"message": told}})

    with FaultServer(unknown) as server:
        result = asked(server, tmp_path / "out", 1, model__extra_body={"user": "long-model-name-4711"})
    (reject,) = result.rejects().collect().to_dicts()
    assert "model long-model-name-4711 of the assistant cannot answer (left out)" in reject["reason"]


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


def test_an_operator_that_needs_the_model_itself_says_so(tmp_path):
    settings = {"model": "endpoint", "model.url": "http://127.0.0.1:9/v1"}
    with pytest.raises(ConfigError, match="this operator needs a model of this process"):
        run("classify_head", settings, directory=tmp_path / "out", progress="none")


def test_the_likeliest_tokens_are_told_by_their_text(tmp_path):
    place = {"token": "a", "logprob": -0.5, "top_logprobs": [{"id": 7, "token": "b", "logprob": -0.25}]}
    choice = {"finish_reason": "stop", "message": {"content": "a"}, "logprobs": {"content": [place]}}
    with FaultServer(lambda number, body: Fault(200, {"choices": [choice]})) as server:
        result = asked(server, tmp_path / "out", 1, sampling__logprobs=1)
    (row,) = result.rows().collect().to_dicts()
    assert row["logprobs"] == [-0.5]
    assert row["top_logprobs"] == [[{"token": "b", "logprob": -0.25}]]
