"""The budget for thinking beside llama-server's `--reasoning-budget`, on the same model and the same prompts."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tools.build.peers import PROGRAMS

pytestmark = pytest.mark.laws  # starts llama-server

SERVER = PROJECT / ".cache/peers/bin" / PROGRAMS[0]
MODEL = PROJECT / "models/tiny/tiny-q8_0.gguf"
ENDS = (0, 2)
"""The model's end tokens, which neither side may draw: the server draws them within reasoning, too."""
TEMPLATE = """
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|user|>{{ m.content }}
{% else -%}<|bot|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|bot|>
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% else %}<think>{% endif %}
{%- endif -%}"""
"""The server looks at what a template makes of reasoning and of `enable_thinking` to see that the model reasons."""
PROMPTS = [f"Number {i}: what is {i} plus {i * 7}?" for i in range(30)]
TOKENS = 40


@contextmanager
def server(*arguments: str) -> Iterator[str]:
    """The address of a llama-server of one slot and one thread."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    usual = ["-m", str(MODEL), "--port", str(port), "-np", "1", "-c", "512", "-t", "1", "--jinja", "--no-webui"]
    process = subprocess.Popen([SERVER, *usual, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answer(address: str, prompt: str) -> tuple[str, str]:
    """The reasoning and the answer of the server, asked again until it has started."""
    bias = [[token, False] for token in ENDS]
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": TOKENS,
        "logit_bias": bias,
    }
    asked = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(600):
        try:
            with urllib.request.urlopen(asked, timeout=120) as response:
                message = json.load(response)["choices"][0]["message"]
            return parts(message.get("reasoning_content"), message.get("content"))
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError("llama-server did not start")


def parts(reasoning: str | None, text: str | None) -> tuple[str, str]:
    """Both without the white space around them, which the server takes off."""
    return (reasoning or "").strip(), (text or "").strip()


def ours(folder: Path, *settings: str) -> Sequence[dict[str, Any]]:
    (folder / "in.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in PROMPTS), encoding="utf-8")
    given = [
        f"data.path={folder / 'in.jsonl'}",
        f"output_dir={folder / 'out'}",
        f"model.chat_template={folder / 't.jinja'}",
    ]
    bias = f"sampling.logit_bias={{{', '.join(f'{token}: -1000' for token in ENDS)}}}"
    usual = ["job=generate", "model=tiny", "sampling=greedy", bias, f"sampling.max_tokens={TOKENS}", "progress=none"]
    assert main([*usual, *given, *settings]) == ExitCode.DONE
    found: list[dict[str, Any]] = pq.read_table(folder / "out/data").sort_by("row").to_pylist()
    return found


@pytest.mark.skipif(not SERVER.exists(), reason="there is no llama-server; `make peers` builds it")
@pytest.mark.parametrize("budget", [0, 9])
def test_the_texts_are_those_of_llama_server(tmp_path, budget):
    (tmp_path / "t.jinja").write_text(TEMPLATE, encoding="utf-8")
    rows = ours(tmp_path, f"sampling.thinking_budget={budget}")
    assert {row["reasoning_token_count"] for row in rows} == {budget}
    given = ("--chat-template-file", str(tmp_path / "t.jinja"), "--reasoning-format", "deepseek")
    with server(*given, "--reasoning-budget", str(budget)) as address:
        theirs = [answer(address, prompt) for prompt in PROMPTS]
    assert [parts(row["reasoning"], row["completion"]) for row in rows] == theirs
    assert len(set(theirs)) > len(theirs) / 2
