"""Batch files of /v1/rerank and /v1/score, on the small reranker: every request has its answer in the shape of other
servers, or an error line that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from operators.openai.ranking import RANKING, RERANK, SCORE
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

QUERY, ONE, TWO, THREE = "Where is the train?", "The train is late.", "Water boils.", "The train to the coast."
ASKED = {"model": "m", "query": QUERY, "documents": [ONE, TWO, THREE]}


def answered(out: Path, *requests: tuple[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The bodies of the responses and the messages of the errors, by the number of the request."""
    lines = [
        {"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, (url, body) in enumerate(requests)
    ]
    data = out.with_suffix(".jsonl")
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    arguments = ["job=openai_rerank", f"data.path={data}", f"output_dir={out}", "progress=none", "max_error_rate=1"]
    assert main(arguments) == ExitCode.DONE
    output, errors = (
        {line["custom_id"]: line for line in map(json.loads, (out / name).read_text(encoding="utf-8").splitlines())}
        for name in ("output.jsonl", "errors.jsonl")
    )
    bodies = {custom_id: line["response"]["body"] for custom_id, line in output.items()}
    return bodies, {custom_id: line["error"]["message"] for custom_id, line in errors.items()}


def test_every_form_of_a_request_has_the_same_scores(tmp_path):
    pairs = {"model": "m", "text_1": [QUERY] * 3, "text_2": [ONE, TWO, THREE]}
    bodies, errors = answered(
        tmp_path / "out",
        (RERANK, ASKED),
        (RERANK, ASKED | {"top_n": 2, "return_documents": False, "documents": [{"text": ONE}, TWO, {"text": THREE}]}),
        (SCORE, {"model": "m", "text_1": QUERY, "text_2": [ONE, TWO, THREE]}),
        (SCORE, pairs),
        (SCORE, {"model": "m", "text_1": QUERY, "text_2": TWO}),
    )
    assert errors == {}
    results = bodies["0"]["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in results) == [0, 1, 2]
    assert all(result["document"]["text"] == ASKED["documents"][result["index"]] for result in results)
    assert bodies["1"]["results"] == [{k: v for k, v in r.items() if k != "document"} for r in results[:2]]
    by_index = [score for _, score in sorted((result["index"], result["relevance_score"]) for result in results)]
    assert [row["score"] for row in bodies["2"]["data"]] == [row["score"] for row in bodies["3"]["data"]] == by_index
    assert [(row["index"], row["object"]) for row in bodies["3"]["data"]] == [(i, "score") for i in range(3)]
    assert [row["score"] for row in bodies["4"]["data"]] == [by_index[1]]
    assert bodies["0"]["usage"] == bodies["2"]["usage"] == bodies["3"]["usage"]
    assert bodies["4"]["usage"]["total_tokens"] < bodies["3"]["usage"]["total_tokens"]
    assert bodies["0"].keys() == {"id", "model", "usage", "results"}
    assert bodies["2"].keys() == {"id", "object", "created", "model", "data", "usage"}


BAD: list[tuple[str, Any, str]] = [
    (RERANK, ASKED | {"query": ""}, "query is"),
    (RERANK, ASKED | {"documents": []}, "documents is"),
    (RERANK, ASKED | {"documents": ["a", ""]}, "documents is"),
    (RERANK, ASKED | {"documents": [{"image": "a"}]}, "documents is"),
    (RERANK, ASKED | {"top_n": 0}, "top_n is"),
    (RERANK, ASKED | {"beam": 1}, "has no parameter 'beam'"),
    (RERANK, {"model": "m", "query": "a"}, "documents is missing"),
    (RERANK, ASKED | {"documents": ["late " * 300]}, "document 0 with its query: the text has"),
    (SCORE, {"model": "m", "text_1": ["a", "b"], "text_2": ["a"]}, "text_1 has 2 texts and text_2 has 1"),
    (SCORE, {"model": "m", "text_1": "a"}, "text_2 is missing"),
    ("/v1/embeddings", {"model": "m", "input": "a"}, "url must be one of /v1/rerank, /v1/score"),
]


def test_what_cannot_be_answered_is_an_error_line_of_its_own(tmp_path):
    bodies, errors = answered(tmp_path / "out", *((url, body) for url, body, _ in BAD), (RERANK, ASKED))
    assert list(bodies) == [str(len(BAD))]
    for number, (_, _, said) in enumerate(BAD):
        assert said in errors[str(number)]


@pytest.mark.parametrize("url", RANKING)
def test_the_page_names_every_field(url):
    page = (PROJECT / "docs/openai_batch.md").read_text(encoding="utf-8").partition("## Reranking")[2]
    assert [name for name in RANKING[url] if f"`{name}`" not in page.partition("\n## ")[0]] == []
