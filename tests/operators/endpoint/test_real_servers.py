"""Real servers in the place of a model of this process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from pipeline import Job, run
from tests.operators.endpoint.asking import texts
from tests.operators.endpoint.fault_server import FaultServer
from tests.operators.endpoint.real_server import TINY, llama_cpp_server

pytestmark = [pytest.mark.laws, pytest.mark.slow("starts llama-cpp-python's server")]


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


def begins_texts(model: Path, path: Path) -> Path:
    """Copy `model` to `path`, as one that begins each text with its beginning-of-text token."""
    shutil.copy(model, path)
    field = GGUFReader(path, "r+").fields["tokenizer.ggml.add_bos_token"]
    field.parts[field.data[0]][0] = True
    return path


SCORED = [
    {"before": "Where is the harbour? ", "text": "It is by the sea."},
    {"before": "Once upon a time there was", "text": " a fox."},
    {"before": "Say", "text": " " + "one two three " * 20 + "four"},
    {"before": "Name a fruit:", "text": "\nna\u00efve apples"},  # a character of two tokens, which have no text here
]


def scored(rows: Any, directory: Path, **given: Any) -> list[dict[str, Any]]:
    graph = {
        "nodes.score.op.text_column": "text",
        "nodes.score.op.given_column": "before",
        "nodes.score.op.joint": True,
        "data.prompt_column": "before",
        "progress": "none",
        "max_error_rate": 1.0,
    }
    result = run("score_perplexity", graph | given, rows=rows, directory=directory)
    return result.rows().collect().sort("row").to_dicts()


def test_scores_of_a_real_server_are_those_of_the_local_job(tmp_path):
    """llama-cpp-python's server has them right for models with a beginning-of-text token alone."""
    model = begins_texts(TINY, tmp_path / "begins.gguf")
    local = {
        "model": "gguf",
        "model.path": str(model),
        "runtime.flash_attention": False,
        "runtime.kernels": "llama.cpp",
    }
    ours = scored(SCORED, tmp_path / "ours", **local)
    with llama_cpp_server(tmp_path / "log", model) as url:
        theirs = scored(
            SCORED, tmp_path / "theirs", **{"model": "endpoint", "model.url": url, "model.api": "completions"}
        )
    assert (len(theirs), len(ours)) == (3, 4)
    for our, their in zip(ours, theirs, strict=False):
        assert their["token_count"] == our["token_count"]
        assert their["logprobs"] == pytest.approx(our["logprobs"], abs=1e-3)
        assert their["is_greedy"] == our["is_greedy"]


def test_the_probability_of_a_choice_is_that_of_the_local_job(tmp_path):
    """As the scores above; the server tokenizes choice and question together, so the local node does so, too."""
    model = begins_texts(TINY, tmp_path / "begins.gguf")
    ask = {"prompt": "{{ before }} Answer:", "raw": True, "choices": [" yes", " no", " a fox"], "probability": True}
    theirs_job = Job("theirs", model="endpoint")
    theirs_job.step("label", **ask, columns=["choice_logprobs"])
    ours_job = Job("ours", model="gguf")
    ours_job.step("asked", op={"_target_": "operators.render.Render", "template": ask["prompt"]})
    ours_job.step(
        "label", op={"_target_": "operators.choose.Choose", "options": ask["choices"], "joint": True, "as": "label"}
    )
    local = {"model.path": str(model), "runtime.flash_attention": False, "runtime.kernels": "llama.cpp"}
    rows = [row for row in SCORED if row["before"].isascii()]
    ours = run(ours_job, local | {"progress": "none"}, rows=rows, directory=tmp_path / "ours").rows().collect()
    with llama_cpp_server(tmp_path / "log", model) as url:
        there = {"model.url": url, "model.api": "completions", "progress": "none"}
        theirs = run(theirs_job, there, rows=rows, directory=tmp_path / "theirs").rows().collect()
    for our, their in zip(ours.sort("row").to_dicts(), theirs.sort("row").to_dicts(), strict=True):
        assert their["label"] == our["label_choice"]
        assert their["label_probability"] == pytest.approx(our["label_choice_probability"], abs=1e-4)
        assert their["label_choice_logprobs"] == pytest.approx(our["label_choice_logprobs"], abs=1e-3)


def test_two_hundred_greedy_texts_of_a_real_server_are_those_of_the_local_job(tmp_path):
    """llama-cpp-python's server has one slot and no flash attention."""
    settings = {"sampling": "greedy", "progress": "none"}
    with llama_cpp_server(tmp_path / "log") as url:
        there = {"model": "endpoint", "model.url": url}
        theirs = texts(run("quickstart", settings | there, directory=tmp_path / "theirs"))
    ours = texts(
        run(
            "quickstart",
            settings | {"runtime.flash_attention": False, "runtime.kernels": "llama.cpp"},
            directory=tmp_path / "ours",
        )
    )
    assert len(ours) == 200
    assert theirs == ours
