"""model=hub against a small local server that speaks as much of the Hub's protocol as a download needs."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from operators.generation.memory import model_memory
from operators.llama.convert import type_of
from operators.llama.header import content_of
from operators.llama.hub import fetch, inspect, load
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, InputError
from pipeline.system.file_cache import PLACE, weights_cache
from tools.models.make_adapter import write_adapter
from tools.models.make_model import write_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SETTINGS = ModelSettings(loader="operators.llama.hub:load", repo="some/model", file="tiny.gguf", revision=COMMIT)


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, file_type="q8_0")
    return path.read_bytes()


@pytest.fixture
def hub(content, tmp_path):
    """A server with a file, also under the names of two parts. Gives settings that use it with an empty cache, and the
    methods that were asked for."""
    asked: list[str] = []
    names = ("tiny.gguf", "q8/big-00001-of-00002.gguf", "q8/big-00002-of-00002.gguf", "cut-00001-of-00002.gguf")
    paths = [f"/some/model/resolve/{COMMIT}/{name}" for name in names]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.command)
            known = self.path.split("?")[0] in paths
            self.send_response(200 if known else 404)
            if known:
                self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", str(len(content)))
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
            self.end_headers()
            if known and self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options = {"endpoint": f"http://127.0.0.1:{server.server_port}", "cache_dir": str(tmp_path)}
    yield replace(SETTINGS, options=options), asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_is_fetched_once_hashed_and_loaded(hub, content):
    settings, asked = hub
    assert fetch(settings).read_bytes() == content
    assert inspect(settings).fingerprint == f"sha256 {hashlib.sha256(content).hexdigest()}"
    model = load(settings)
    assert model.n_vocab > 256
    model.close()
    assert asked.count("GET") == 1


def test_it_is_converted_after_it_was_fetched(hub, tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "converted"))
    settings = replace(hub[0], weights="bf16")
    facts = inspect(settings)
    model = load(settings)
    (file,) = weights_cache().files()
    assert type_of(file) == "bf16"
    assert model.fingerprint() == facts.fingerprint == content_of(file)
    file.unlink()  # as another process may, which needs the room
    assert model.fingerprint() == facts.fingerprint
    model.close()
    assert hub[1].count("GET") == 1


def test_its_adapters_are_those_of_the_file_that_was_fetched(hub, tmp_path):
    settings = replace(hub[0], adapters={"own": str(write_adapter(fetch(hub[0]), tmp_path / "own.gguf", rank=4))})
    model = load(settings)
    assert dict(zip(model.adapters, model.adapter_contents, strict=True)) == inspect(settings).adapters
    assert model.adapters == ("own",)
    model.close()


def test_its_weights_are_counted(hub, content):
    settings, _ = hub
    sizes = inspect(settings).sizes
    assert sizes is not None
    assert sizes.weights_bytes == len(content)
    weights, *_ = model_memory(settings, EngineSettings(max_sequence_tokens=128), "key")
    assert weights.what == "the weights of tiny.gguf"


def test_all_parts_of_a_split_model_are_fetched(hub):
    settings, _ = hub
    first = fetch(replace(settings, file="q8/big-00001-of-00002.gguf"))
    assert sorted(path.name for path in first.parent.iterdir()) == [
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
    ]
    with pytest.raises(InputError, match=r"cut-00002-of-00002\.gguf of some/model at .* could not be fetched"):
        fetch(replace(settings, file="cut-00001-of-00002.gguf"))


def test_an_option_that_the_download_does_not_know_is_named():
    with pytest.raises(ConfigError, match=r"model\.options has 'cache', which .* knows .*cache_dir"):
        fetch(replace(SETTINGS, options={"cache": "x"}))


def test_a_damaged_file_in_the_cache_is_named(hub):
    settings, _ = hub
    blob = fetch(settings).resolve()
    blob.write_bytes(b"GGUF" + blob.read_bytes()[4:-1] + b"?")
    with pytest.raises(InputError, match="is damaged"):
        inspect(settings)


def test_without_a_network_the_message_says_what_to_do(tmp_path):
    alone = replace(SETTINGS, options={"cache_dir": str(tmp_path), "local_files_only": True})
    with pytest.raises(InputError, match=r"the Hub cannot be reached; .* model=gguf model\.path="):
        fetch(alone)


@pytest.mark.parametrize("key", ["repo", "file", "revision"])
def test_a_missing_key_is_named(key):
    missing: dict[str, Any] = {key: None}
    with pytest.raises(ConfigError, match=f"model.{key} is not set"):
        fetch(replace(SETTINGS, **missing))
