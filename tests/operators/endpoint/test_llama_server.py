"""llama-server in the place of a model of this process, where `make peers` has built it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline import PROJECT, load, run
from pipeline.api.errors import NodeFailed
from tests.operators.endpoint.asking import texts
from tests.operators.endpoint.real_server import LLAMA_SERVER, llama_server

pytestmark = [
    pytest.mark.laws,  # starts llama-server
    pytest.mark.skipif(not LLAMA_SERVER.exists(), reason="there is no llama-server; `make peers` builds it"),
]

HERE = {"progress": "none", "max_error_rate": 1.0}
LOCAL = HERE | {"runtime.flash_attention": False, "runtime.threads": 1, "runtime.kernels": "llama.cpp"}
ROWS = [{"id": i, "prompt": f"What is {i} plus {i * 7}?"} for i in range(12)]
RERANKER = PROJECT / "tests/families/encoders/reranker.gguf"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[dict[str, Any]]:
    """The settings of a job that use it."""
    with llama_server(tmp_path_factory.mktemp("server") / "log") as url:
        yield HERE | {"model": "endpoint", "model.url": url}


def completed(settings: dict[str, Any], directory: Path, **given: Any) -> list[dict[str, Any]]:
    named = {f"sampling.{key.replace('__', '.')}": value for key, value in given.items()}
    known = {"sampling": "greedy", "model": "tiny", "sampling.max_tokens": 12} | settings | named
    return run("generate", known, rows=ROWS, directory=directory).rows().collect().sort("row").to_dicts()


def test_log_probabilities_are_those_of_the_local_job(tmp_path, server):
    ours = completed(LOCAL, tmp_path / "ours", logprobs=2)
    theirs = completed(server, tmp_path / "theirs", logprobs=2)
    assert [row["completion"] for row in theirs] == [row["completion"] for row in ours]
    for our, their in zip(ours, theirs, strict=True):
        made = len(our["logprobs"])  # the server counts the end token too
        assert len(their["logprobs"]) == made + (our["finish_reason"] == "stop")
        assert their["logprobs"][:made] == pytest.approx(our["logprobs"], abs=1e-3)
        assert [len(place) for place in their["top_logprobs"]] == [2] * len(their["logprobs"])


def is_json_of_a_number(text: str) -> bool:
    return isinstance(json.loads(text)["n"], int)


SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 22]}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ({"structured__json_schema": SCHEMA}, is_json_of_a_number),
        ({"structured__choices": ["yes", "no, it is not"]}, lambda text: text in ("yes", "no, it is not")),
        ({"structured__grammar": 'root ::= "a" [0-9] "b"\n'}, lambda text: len(text) == 3 and text[0] == "a"),
    ],
    ids=["json_schema", "choices", "grammar"],
)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_constraints_hold(tmp_path, server, api, constraint, fits):
    rows = completed(server | {"model.api": api}, tmp_path / "out", max_tokens=30, **constraint)
    assert all(fits(row["completion"]) for row in rows)
    rejects = load(tmp_path / "out").rejects().collect().to_dicts()
    assert len(rows) + len(rejects) == len(ROWS)
    assert rows
    assert all("cut by max_tokens=30" in row["reason"] for row in rejects)  # white space in JSON


def test_what_it_has_not_is_exit_code_2(tmp_path, server):
    with pytest.raises(NodeFailed, match=r"structured\.regex cannot be sent: llama_server has no key") as error:
        completed(server, tmp_path / "out", structured__regex="a+")
    assert error.value.exit_code == 2


def test_vectors_are_those_of_the_local_job(tmp_path):
    local = LOCAL | {"nodes.embed.op.pooling": "mean", "model": "tiny"}
    ours = run("embed", local, rows=ROWS, directory=tmp_path / "ours")
    with llama_server(tmp_path / "log", "--embeddings", "--pooling", "mean") as url:
        there = HERE | {"model": "endpoint", "model.url": url, "model.api": "embeddings"}
        theirs = run("embed", there, rows=ROWS, directory=tmp_path / "theirs")
    a, b = (np.array(result.rows().collect().sort("row")["embedding"].to_list()) for result in (ours, theirs))
    assert a.shape == b.shape
    assert (a * b).sum(axis=1).min() > 0.9999


def test_documents_are_ordered_as_by_the_local_job(tmp_path):
    ours = run("rerank", LOCAL | {"nodes.rerank.op.normalize": False}, directory=tmp_path / "ours")
    with llama_server(tmp_path / "log", "--reranking", model=RERANKER) as url:
        there = HERE | {"model": "endpoint", "model.url": url, "model.api": "rerank"}
        theirs = run("rerank", there, directory=tmp_path / "theirs")
    our, their = (result.rows().collect().sort("row") for result in (ours, theirs))
    assert their["rerank_order"].to_list() == our["rerank_order"].to_list()
    assert their["rerank_tokens"].to_list() == our["rerank_tokens"].to_list()
    for ours_, theirs_ in zip(our["rerank_scores"], their["rerank_scores"], strict=True):
        assert theirs_.to_list() == pytest.approx(ours_.to_list(), abs=1e-3)


def test_two_hundred_greedy_texts_are_those_of_the_local_job(tmp_path, server):
    theirs = texts(run("quickstart", {"sampling": "greedy"} | server, directory=tmp_path / "theirs"))
    ours = texts(run("quickstart", {"sampling": "greedy"} | LOCAL, directory=tmp_path / "ours"))
    assert len(ours) == 200
    assert theirs == ours


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


@pytest.mark.parametrize("budget", [0, 9])
def test_the_budget_for_thinking_gives_the_texts_of_the_servers_own(tmp_path, budget):
    (tmp_path / "t.jinja").write_text(TEMPLATE, encoding="utf-8")
    rows = [{"prompt": f"Number {i}: what is {i} plus {i * 7}?"} for i in range(30)]
    both = HERE | {"sampling": "greedy", "sampling.max_tokens": 40}

    def parts(settings: dict[str, Any], name: str) -> list[tuple[str, str]]:
        """Reasoning and answers without the white space around them, which the server takes off."""
        made = run("generate", both | settings, rows=rows, directory=tmp_path / name).rows().collect().sort("row")
        return [((r or "").strip(), (text or "").strip()) for r, text in made.select("reasoning", "completion").rows()]

    given = {"model": "tiny", "model.chat_template": str(tmp_path / "t.jinja"), "sampling.thinking_budget": budget}
    ours = parts(LOCAL | given | {"sampling.logit_bias": dict.fromkeys(ENDS, -1000.0)}, "ours")
    own = ("--chat-template-file", str(tmp_path / "t.jinja"), "--reasoning-format", "deepseek")
    with llama_server(tmp_path / "log", *own, "--reasoning-budget", str(budget)) as url:
        banned = {"logit_bias": [[token, False] for token in ENDS]}
        theirs = parts({"model": "endpoint", "model.url": url, "model.extra_body": banned}, "theirs")
    assert ours == theirs
    assert len(set(theirs)) > len(theirs) / 2


def test_images_say_what_they_say_to_the_local_model(tmp_path):
    """Also those of a kind that the server cannot read. They have a size that neither side has to change."""
    folder, images = PROJECT / "tests/families/images", tmp_path / "photos"
    images.mkdir()
    for i, kind in enumerate(("png", "webp", "tiff", "bmp")):
        colours = np.random.default_rng(i).integers(0, 256, (48, 64, 3), np.uint8)
        Image.fromarray(colours).save(images / f"{i}.{kind}", lossless=True)
    data = {"data.path": str(images), "data.image_column": "image", "data.prompt_template": "What is it?"}
    known = HERE | data | {"sampling": "greedy", "sampling.max_tokens": 12}
    model, reader = folder / "qwen2vl.gguf", folder / "mmproj-qwen2vl.gguf"
    with llama_server(tmp_path / "log", "--mmproj", str(reader), model=model) as url:
        theirs = run("generate", known | {"model": "endpoint", "model.url": url}, directory=tmp_path / "theirs")
    local = LOCAL | known | {"model.path": str(model), "model.mmproj": str(reader)}
    ours = run("generate", local, directory=tmp_path / "ours")
    their, our = (list(result.rows().collect().sort("row")["completion"]) for result in (theirs, ours))
    assert len(set(our)) == 4
    assert [text.rstrip("\ufffd") for text in their] == [text.rstrip("\ufffd") for text in our]  # cut characters
