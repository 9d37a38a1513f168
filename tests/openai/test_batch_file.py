"""job=openai_batch: every request has one line, in the shape of the API, in order, whatever happens to the run."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators.openai.parameters import ALL, CHAT, COMPLETIONS, EMBEDDINGS, parameters_of
from operators.openai.write_batch import ERRORS, OUTPUT, WriteBatch
from pipeline.__main__ import main
from pipeline.errors import ExitCode, StorageError
from pipeline.failpoints import VARIABLE, Failpoint
from pipeline.jobs import JOBS, PROJECT
from tests.openai.cases import ACCEPTED, REFUSED, REQUIRED, cases, schema, user
from tests.openai.shapes import ERROR_LINE, OUTPUT_LINES

SHIPPED = (JOBS / "data/openai_batch.jsonl").read_text(encoding="utf-8").splitlines()
FAULTY = {
    "broken-json": "invalid_line",
    "image-1": "unsupported_parameter",
    "sum-1": "duplicate_custom_id",
    "wrong-url": "invalid_url",
    "tools-1": "unsupported_parameter",
    "no id": "invalid_custom_id",
    "unknown-1": "unknown_parameter",
}
"""Of the file that ships; the two that have no custom_id are named by what they say."""
USUAL = ("chunk_rows=8", "runtime.slots=4", "progress=none")
MOST_KILLS = 8
STOPS = ["P", "q", "7", "!"]
"""Some of them come in what the fake model writes."""
IDENTITY = r'"custom_id": "(.+?)".*"url": "(.+?)"'
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@dataclass
class Answered:
    """A run that has ended: its files, and its lines by custom_id."""

    code: int
    directory: Path
    output: dict[str, dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def files(self) -> dict[str, bytes]:
        parts = [p for folder in ("data", "rejects") for p in (self.directory / folder).iterdir()]
        return {p.name: p.read_bytes() for p in [self.directory / OUTPUT, self.directory / ERRORS, *parts]}

    def body(self, custom_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.output[custom_id]["response"]["body"]
        return found

    def text(self, custom_id: str, choice: int = 0) -> str:
        found = self.body(custom_id)["choices"][choice]
        return str(found["text"] if "text" in found else found["message"]["content"])

    def error(self, custom_id: str) -> tuple[str, str]:
        (found,) = [line["error"] for line in self.errors if line["custom_id"] == custom_id]
        return found["code"], found["message"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answered(directory: Path, *overrides: str, job: str = "openai_batch", code: int = ExitCode.DONE) -> Answered:
    """Run the job, with 8 requests a chunk."""
    assert main([f"job={job}", f"output_dir={directory}", *USUAL, *overrides]) == code
    if code == ExitCode.FAILED:
        return Answered(code, directory, {}, [])
    output = {line["custom_id"]: line for line in lines_of(directory / OUTPUT)}
    return Answered(code, directory, output, lines_of(directory / ERRORS))


def on_fake(tmp_path: Path, lines: Sequence[str], *overrides: str, **kwargs: Any) -> Answered:
    """Answers of the fake model to `lines`."""
    return answered(tmp_path / "out", *fake_model(tmp_path, lines), *overrides, **kwargs)


def fake_model(directory: Path, lines: Sequence[str]) -> list[str]:
    """Overrides for a job over `lines`."""
    (directory / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (directory / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    given = [f"data.path={directory / 'in.jsonl'}", "model=fake", f"model.chat_template={directory / 'chat.jinja'}"]
    return [*given, "runtime.max_sequence_tokens=400", "sampling.max_tokens=20", "max_error_rate=1"]


def requests(*asked: tuple[str, str, dict[str, Any]]) -> list[str]:
    """The lines of (custom_id, url, body)."""
    return [json.dumps({"custom_id": c, "method": "POST", "url": url, "body": body}) for c, url, body in asked]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Answered:
    """The file that ships, on the model that ships."""
    return answered(tmp_path_factory.mktemp("shipped") / "out", "sampling.max_tokens=48")


def test_every_request_has_one_line_in_the_order_of_the_input(shipped):
    asked = [json.loads(line)["custom_id"] for line in SHIPPED if not any(f'"{name}"' in line for name in FAULTY)]
    assert list(shipped.output) == ["sum-1", *asked]
    assert len(shipped.output) + len(shipped.errors) == len(SHIPPED)
    assert {line["id"] for line in shipped.output.values()}.isdisjoint(line["id"] for line in shipped.errors)
    assert [line["error"]["code"] for line in shipped.errors] == list(FAULTY.values())
    assert [line["custom_id"] for line in shipped.errors] == [
        None if name in ("broken-json", "no id") else name for name in FAULTY
    ]


def test_an_error_without_custom_id_names_its_line(shipped):
    nameless = [line["error"]["message"] for line in shipped.errors if line["custom_id"] is None]
    numbers = [n for n, line in enumerate(SHIPPED, 1) if "broken-json" in line or '"no id"' in line]
    assert [message.split(":")[0] for message in nameless] == [f"line {n}" for n in numbers]


def test_every_line_has_the_shape_of_the_api(shipped):
    urls = {custom_id: url for line in SHIPPED for custom_id, url in re.findall(IDENTITY, line)}
    assert {urls[custom_id] for custom_id in shipped.output} == set(ALL)
    for custom_id, line in shipped.output.items():
        OUTPUT_LINES[urls[custom_id]].validate(line)
    for line in shipped.errors:
        ERROR_LINE.validate(line)


def test_what_the_shipped_requests_ask_for_is_what_they_get(shipped):
    assert shipped.text("sum-2").endswith("31")
    assert json.loads(shipped.text("person-1")).keys() == {"name", "age"}
    assert isinstance(json.loads(shipped.text("object-1")), dict)
    assert "\n" not in shipped.text("stop-1")
    assert [choice["index"] for choice in shipped.body("story-1")["choices"]] == [0, 1, 2]
    assert len({shipped.text("story-1", i) for i in range(3)}) == 3
    assert shipped.body("short-1")["choices"][0]["finish_reason"] == "length"
    assert shipped.body("short-1")["usage"]["completion_tokens"] == 4
    assert len(shipped.body("embed-3")["data"]) == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Answered:
    """The file that ships, on the fake model, in a run that nothing happened to."""
    return on_fake(tmp_path_factory.mktemp("whole"), SHIPPED)


def test_a_run_that_fails_in_the_middle_and_at_the_end_is_resumed_to_the_same_bytes(whole, tmp_path, monkeypatch):
    flag = tmp_path / "flag"
    flag.touch()
    job = (JOBS / "openai_batch.yaml").read_text(encoding="utf-8")
    fail = f"{{inputs: generate, op: {{_target_: tests.openai.ops.FailOnce, at: 27, flag: {flag}}}}}"
    nodes = f"nodes:\n  fail: {fail}\n  respond: {{inputs: fail}}\n"
    (tmp_path / "job.yaml").write_text(f"{job}\n{nodes}", encoding="utf-8")

    def run(code: int) -> Answered:
        return on_fake(tmp_path, SHIPPED, "max_open_chunks=1", job=str(tmp_path / "job.yaml"), code=code)

    def full(self: WriteBatch, directory: Path) -> None:
        (directory / OUTPUT).write_text("half a", encoding="utf-8")
        raise StorageError(f"{directory / ERRORS} cannot be written: no space", directory / ERRORS, full=True)

    first = run(ExitCode.FAILED)
    assert not (first.directory / OUTPUT).exists()
    assert (first.directory / "data/part-00002.parquet").exists()
    with monkeypatch.context() as patched:
        patched.setattr(WriteBatch, "conclude", full)
        assert run(ExitCode.FAILED).code == ExitCode.FAILED
    assert run(ExitCode.DONE).files == whole.files


@pytest.mark.faults
def test_a_run_that_is_killed_whenever_a_file_is_about_to_be_renamed_is_resumed_to_the_same_bytes(whole, tmp_path):
    """Among these are output.jsonl and errors.jsonl: what has its name is whole."""
    killed = 0
    for nth in range(1, MOST_KILLS):
        for point in (f"{Failpoint.FILE_WRITTEN}:{nth}", f"{Failpoint.SHARD_RENAMED}:{nth}"):
            directory = tmp_path / point.replace(":", "-")
            code = in_a_process(directory, point)
            killed += code == -signal.SIGKILL
            if code == ExitCode.DONE:
                continue
            for name in (OUTPUT, ERRORS):
                path = directory / "out" / name
                assert not path.exists() or path.read_bytes() == whole.files[name]
            assert in_a_process(directory) == ExitCode.DONE
            assert Answered(0, directory / "out", {}, []).files == whole.files
    assert killed >= MOST_KILLS


def in_a_process(directory: Path, failpoint: str = "") -> int:
    """`on_fake` for the file that ships; the exit status."""
    command = [sys.executable, "-m", "pipeline", "job=openai_batch", f"output_dir={directory / 'out'}"]
    directory.mkdir(exist_ok=True)
    command += [*USUAL, *fake_model(directory, SHIPPED)]
    environment = {**os.environ, VARIABLE: failpoint}
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, check=False).returncode


def test_neither_slots_nor_the_order_of_arrival_change_a_byte(whole, tmp_path):
    assert on_fake(tmp_path, SHIPPED, "runtime.slots=7", "runtime.shuffle_window=3").files == whole.files


def test_a_finished_run_that_has_lost_a_file_makes_it_again(whole, capsys):
    before = whole.files
    (whole.directory / ERRORS).unlink()
    assert on_fake(whole.directory.parent, SHIPPED).files == before
    assert "errors.jsonl had gone" in capsys.readouterr().out


def test_too_many_error_lines_are_exit_code_3_and_both_files_are_there(tmp_path):
    run = on_fake(tmp_path, ["{", *SHIPPED[:2], "["], "max_error_rate=0.25", code=ExitCode.REJECTS)
    assert len(run.output) == len(run.errors) == 2


def test_every_accepted_value_is_answered_in_the_shape_of_the_api_and_every_refused_one_is_an_error(tmp_path):
    tried = [
        (f"{what} {url} {name} {i}", url, REQUIRED[url] | {name: value})
        for what, table in (("accepted", ACCEPTED), ("refused", REFUSED))
        for url in ALL
        for name in parameters_of(url)
        for i, value in enumerate(cases(table, url, name))
    ]
    run = on_fake(tmp_path, requests(*tried), "chunk_rows=1000")
    cut = {line["custom_id"] for line in run.errors if "cut by max_tokens" in line["error"]["message"]}
    assert all("response_format" in custom_id for custom_id in cut)  # what a made-up model makes of JSON is long
    assert {line["custom_id"] for line in run.errors} - cut == {c for c, _, _ in tried if c.startswith("refused")}
    assert run.output.keys() | cut == {c for c, _, _ in tried if c.startswith("accepted")}
    for custom_id, url, _ in tried:
        if custom_id in run.output:
            OUTPUT_LINES[url].validate(run.output[custom_id])


@pytest.fixture(scope="module")
def effects(tmp_path_factory) -> Answered:
    """What parameters do, each beside a request that differs in it alone."""
    once = {"model": "m", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0, "min_tokens": 20}
    hot = {**once, "temperature": 1.5}
    chat = {"model": "m", "messages": user("hi"), "temperature": 0, "max_tokens": 20, "min_tokens": 20}
    ids = list(b"Once upon a time")
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("once", COMPLETIONS, once),
        ("short", COMPLETIONS, once | {"max_tokens": 5, "min_tokens": 5}),
        ("default", COMPLETIONS, {"model": "m", "prompt": "Once upon a time", "min_tokens": 16}),
        ("ids", COMPLETIONS, once | {"prompt": ids}),
        ("echo", COMPLETIONS, once | {"echo": True}),
        ("echo ids", COMPLETIONS, once | {"prompt": ids, "echo": True}),
        ("two", COMPLETIONS, once | {"prompt": ["Once upon a time", "hi", "ho"]}),
        ("scored", COMPLETIONS, once | {"logprobs": 2}),
        ("seven", COMPLETIONS, hot | {"seed": 7}),
        ("seven again", COMPLETIONS, hot | {"seed": 7}),
        ("eight", COMPLETIONS, hot | {"seed": 8}),
        ("narrow", COMPLETIONS, hot | {"seed": 8, "top_p": 0}),
        ("top 1", COMPLETIONS, hot | {"seed": 8, "top_k": 1}),
        ("min p", COMPLETIONS, hot | {"seed": 8, "min_p": 0.99}),
        ("several", COMPLETIONS, hot | {"seed": 7, "n": 3}),
        ("stopped", COMPLETIONS, once | {"stop": STOPS}),
        ("stopped scored", COMPLETIONS, once | {"stop": STOPS, "logprobs": 0}),
        ("wished", COMPLETIONS, once | {"logit_bias": {str(ord("A")): 100}}),
        ("frequent", COMPLETIONS, once | {"frequency_penalty": 2}),
        ("present", COMPLETIONS, once | {"presence_penalty": 2}),
        ("repeated", COMPLETIONS, once | {"repetition_penalty": 100}),
        ("chat", CHAT, chat),
        ("developer", CHAT, chat | {"messages": [{"role": "developer", "content": "x"}, *user("hi")]}),
        ("system", CHAT, chat | {"messages": [{"role": "system", "content": "x"}, *user("hi")]}),
        ("parts", CHAT, chat | {"messages": user([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}])}),
        ("joined", CHAT, chat | {"messages": user("h\ni")}),
        ("chat scored", CHAT, chat | {"logprobs": True, "top_logprobs": 3}),
        ("newer", CHAT, {k: v for k, v in chat.items() if k != "max_tokens"} | {"max_completion_tokens": 20}),
        (
            "json",
            CHAT,
            chat | {"max_tokens": 200, "min_tokens": 0, "response_format": schema({"schema": {"enum": ["yes", "no"]}})},
        ),
        ("vector", EMBEDDINGS, {"model": "m", "input": "Once upon a time"}),
        ("vector ids", EMBEDDINGS, {"model": "m", "input": [ids, list(b"hi")]}),
        ("vector text", EMBEDDINGS, {"model": "m", "input": ["Once upon a time", "hi"], "encoding_format": "base64"}),
        ("strange id", COMPLETIONS, once | {"prompt": [5, 999]}),
        ("strange ids", EMBEDDINGS, {"model": "m", "input": [[5], [999]]}),
        ("long", COMPLETIONS, once | {"prompt": "x" * 400}),
        ("cut", CHAT, chat | {"n": 2, "response_format": schema({"schema": {"type": "string", "minLength": 300}})}),
    ]
    return on_fake(tmp_path_factory.mktemp("effects"), requests(*asked))


def test_lengths_and_usage(effects):
    assert effects.body("once")["usage"] == {"prompt_tokens": 16, "completion_tokens": 20, "total_tokens": 36}
    assert effects.body("once")["choices"][0]["finish_reason"] == "length"
    assert effects.text("short") == effects.text("once")[:5]
    assert effects.body("default")["usage"]["completion_tokens"] == 16
    assert effects.body("newer")["usage"]["completion_tokens"] == 20
    assert effects.body("two")["usage"] == {"prompt_tokens": 20, "completion_tokens": 60, "total_tokens": 80}
    assert effects.body("several")["usage"]["prompt_tokens"] == 16


def test_a_prompt_may_be_text_ids_or_several(effects):
    assert effects.text("ids") == effects.text("once") == effects.text("two", 0)
    assert len({effects.text("two", i) for i in range(3)}) == 3
    assert effects.text("echo") == effects.text("echo ids") == "Once upon a time" + effects.text("once")


def test_seeds_and_samples(effects):
    assert effects.text("seven") == effects.text("seven again") == effects.text("several", 0)
    assert effects.text("seven") != effects.text("eight")
    assert len({effects.text("several", i) for i in range(3)}) == 3


def test_cuts_leave_the_likeliest_token(effects):
    assert effects.text("narrow") == effects.text("top 1") == effects.text("min p") == effects.text("once")


def test_penalties_and_bias_change_the_text(effects):
    assert effects.text("once") not in [effects.text(name) for name in ("frequent", "present", "repeated")]
    assert effects.text("wished") == "A" * 20


def test_a_stop_string_is_left_out_of_text_and_logprobs(effects):
    text = effects.text("once")
    cut = text[: min(text.index(stop) for stop in STOPS if stop in text)]
    assert effects.text("stopped") == effects.text("stopped scored") == cut != ""
    assert effects.body("stopped")["choices"][0]["finish_reason"] == "stop"
    assert "".join(effects.body("stopped scored")["choices"][0]["logprobs"]["tokens"]) == cut


def test_messages(effects):
    assert effects.text("developer") == effects.text("system") != effects.text("chat")
    assert effects.text("parts") == effects.text("joined")
    assert effects.text("json") in ('"yes"', '"no"')


def test_log_probabilities_are_those_of_the_tokens(effects):
    scored = effects.body("scored")["choices"][0]
    assert "".join(scored["logprobs"]["tokens"]) == scored["text"] == effects.text("once")
    assert scored["logprobs"]["text_offset"] == list(range(20))
    columns = (scored["logprobs"][key] for key in ("tokens", "token_logprobs", "top_logprobs"))
    for token, own, top in zip(*columns, strict=True):
        assert top[token] == own
        assert len(top) in (2, 3)
        assert sum(map(math.exp, top.values())) <= 1 + 1e-6
    content = effects.body("chat scored")["choices"][0]["logprobs"]["content"]
    spelt = bytes(byte for entry in content for byte in entry["bytes"])
    assert spelt.decode("utf-8", "replace") == effects.text("chat")
    assert {len(entry["top_logprobs"]) for entry in content} == {3}


def test_embeddings(effects):
    (plain,) = effects.body("vector")["data"]
    ids, text = (effects.body(name)["data"] for name in ("vector ids", "vector text"))
    assert [entry["index"] for entry in ids] == [0, 1]
    assert plain["embedding"] == ids[0]["embedding"]
    for one, encoded in zip(ids, text, strict=True):
        decoded = np.frombuffer(base64.b64decode(encoded["embedding"]), "<f4")
        assert decoded.tolist() == np.array(one["embedding"], np.float32).tolist()
        assert np.linalg.norm(decoded) == pytest.approx(1)
    assert effects.body("vector ids")["usage"] == {"prompt_tokens": 18, "total_tokens": 18}


def test_what_goes_wrong_behind_the_parser_is_an_error_line_too(effects):
    code, message = effects.error("strange id")
    assert (code, "token id 999" in message) == ("request_failed", True)
    assert "token id 999" in effects.error("strange ids")[1]
    assert "has 400 tokens" in effects.error("long")[1]
    code, message = effects.error("cut")
    assert (code, message.endswith("cut by max_tokens=20 before the JSON was complete")) == ("request_failed", True)
