"""Score, Rerank and Embed with a server."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.endpoint.api.checks import Unusable
from operators.endpoint.estimate import TRIED
from operators.endpoint.scoring import EndpointEmbed
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from pipeline import Job, estimate, run
from pipeline.api.errors import ConfigError, NodeFailed
from tests.operators.endpoint.fault_server import Fault, FaultServer
from tests.sets import often_cases

ROWS = [
    {"prompt": "say it", "query": "abc", "documents": ["xyz", "abx", "abc", "bca"], "answer": "one three eleven"},
    {"prompt": "say it again", "query": "bad", "documents": ["b"], "answer": "bad"},
    {"prompt": "say nothing", "query": "", "documents": ["b"], "answer": ""},
]


def asked(server: FaultServer, job: str, directory: Any, **settings: Any):
    known = {
        "model": "endpoint",
        "model.url": server.url,
        "max_error_rate": 1.0,
        "progress": "none",
        "model.retries": 0,
    }
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return run(job, known | given, rows=ROWS, directory=directory)


def refuses_bad(number: int, body: dict[str, Any]) -> Fault | None:
    bad = body.get("query") == "bad" or "bad" in str(body.get("prompt"))
    return Fault(400, {"error": {"message": "too bad"}}) if bad else None


RERANK = {"model__api": "rerank"}
EMBED = {"model__api": "embeddings"}
SCORE = {"model__api": "completions", "nodes__score__op__given_column": "prompt", "nodes__score__op__joint": True}


def test_documents_are_ordered_by_a_servers_scores(tmp_path):
    with FaultServer(refuses_bad) as server:
        result = asked(server, "rerank", tmp_path / "out", nodes__rerank__op__top_n=3, **RERANK)
        assert server.requests == 2
    (row,) = result.rows().collect().to_dicts()
    assert row["rerank_order"] == [2, 3, 1]
    assert row["rerank_scores"] == [0.03, 0.03, 0.02]
    assert row["rerank_documents"] == ["abc", "bca", "abx"]
    assert row["rerank_tokens"] == 7
    reasons = dict(result.rejects().select("row", "reason").collect().iter_rows())
    assert "too bad" in reasons[1]
    assert reasons[2] == "column 'query' is empty"


def test_texts_are_scored_after_what_is_given(tmp_path):
    with FaultServer(refuses_bad) as server:
        result = asked(server, "score_perplexity", tmp_path / "out", **SCORE)
    (row,) = result.rows().collect().to_dicts()
    assert row["token_count"] == 3
    assert row["is_greedy"]
    assert row["logprob_sum"] == sum(row["logprobs"])
    reasons = dict(result.rejects().select("row", "reason").collect().iter_rows())
    assert "too bad" in reasons[1]
    assert reasons[2] == "column 'answer' is empty; there is nothing to score"


def test_a_step_has_the_probability_of_a_choice_from_a_server_and_from_the_store_then(tmp_path):
    """A token has the logarithm -1 for each of its characters there."""
    job = Job("label", model="endpoint")
    job.step("label", prompt="{{ prompt }}", choices=[" a bc", " d"], probability=True, where="query <> 'bad'")
    known = {"model.api": "completions", "model.retries": 0, "max_error_rate": 1.0, "progress": "none"}
    known["store.path"] = str(tmp_path / "all.sqlite")
    with FaultServer(lambda number, body: refuses_bad(number, body or {})) as server:
        first, again = (
            run(job, known | {"model.url": server.url}, rows=ROWS, directory=tmp_path / name) for name in ("a", "b")
        )
        assert server.requests == 4
    rows = first.rows().collect().sort("row")
    assert rows["label"].to_list() == [" d", None, " d"]
    assert rows["label_probability"].to_list() == [pytest.approx(1 / (1 + math.exp(2 - 5))), None, rows[0, -1]]
    assert again.rows().collect().sort("row").equals(rows)


@pytest.mark.parametrize(
    ("job", "settings", "cost"), often_cases([("rerank", RERANK, 14), ("score_perplexity", SCORE, 9)], "rerank")
)
def test_an_answer_is_kept_when_the_run_ends_before_its_time(tmp_path, job, settings, cost):
    price = {"model__price_per_million": {"input": 1e6, "output": 1e6}, "model__concurrency": 1}
    with FaultServer(lambda number, body: Fault(402, {}) if number == 1 else None) as server:
        with pytest.raises(NodeFailed):
            asked(server, job, tmp_path / "out", **settings, **price)
        result = asked(server, job, tmp_path / "out", **settings, **price)
        assert server.requests == 3
        assert set(server.served.values()) == {1}
    assert result.rows().collect()["row"].to_list() == [0, 1]
    totals = [json.loads(each) for each in result.metrics("run").collect()["totals"]]
    assert sum(each["cost"] for each in totals) == cost


STORED = [("rerank", RERANK), ("score_perplexity", SCORE), ("embed", EMBED)]


@pytest.mark.parametrize(
    ("job", "settings"), often_cases([*STORED, ("generate", {}), ("generate", {"model__api": "completions"})], "embed")
)
def test_a_dry_run_neither_writes_the_store_nor_takes_its_answers(tmp_path, job, settings):
    store = tmp_path / "all.sqlite"
    with FaultServer() as server:

        def tried() -> int:
            before = server.requests
            given = {key.replace("__", "."): value for key, value in settings.items()}
            estimate(job, {"model.url": server.url, "store.path": str(store)} | given, rows=ROWS, model="endpoint")
            return server.requests - before

        first = tried()
        assert not list(tmp_path.iterdir())
        asked(server, job, tmp_path / "out", store__path=str(store), **settings)
        before = store.read_bytes()
        assert tried() == first > 0
        assert store.read_bytes() == before


@pytest.mark.parametrize(("job", "settings"), often_cases(STORED, "score_perplexity"))
def test_the_jobs_store_is_taken(tmp_path, job, settings):
    with FaultServer() as server:
        asked(server, job, tmp_path / "first", store__path=str(tmp_path / "all.sqlite"), **settings)
        asked_for = server.requests
        found = asked(server, job, tmp_path / "again", store__path=str(tmp_path / "all.sqlite"), **settings)
        assert server.requests == asked_for > 0
        (totals,) = found.metrics("run").collect()["totals"]
        node = job.partition("_")[0]
        assert json.loads(totals)[f"{node}/found_earlier"] == found.rows().collect().height > 0
        asked(server, job, tmp_path / "none", store__enabled=False, **settings)
        assert server.requests == 2 * asked_for
    assert [path.name for path in tmp_path.rglob("*.sqlite")].count("completions.sqlite") == 0


@pytest.mark.parametrize(
    ("job", "api", "asked_for"),
    often_cases([("generate", "chat", TRIED), ("rerank", "rerank", TRIED), ("embed", "embeddings", 1)], TRIED),
)
def test_a_dry_run_sends_a_handful_and_tells_the_cost(tmp_path, job, api, asked_for):
    rows = [{"prompt": f"text {i}", "query": f"a{i}", "documents": ["a", "b"]} for i in range(500)]
    with FaultServer() as server:
        price = {"model.price_per_million": {"input": 1e6, "output": 0.0}}
        found = estimate(job, {"model.url": server.url, "model.api": api} | price, rows=rows, model="endpoint")
        assert server.requests == asked_for
    assert found.forecast is not None
    tokens = {"generate": 10, "rerank": 7, "embed": 3}[job] * 500
    assert found.forecast.tokens_in.likely == tokens
    assert f"cost {tokens:,.2f}" in found.text


@pytest.mark.parametrize(
    ("job", "owner", "settings", "said"),
    often_cases(
        [
            ("score_perplexity", "llamacpp", SCORE, "model.dialect=llama_server: such a server has nothing for Score"),
            ("rerank", "me", RERANK, "model.dialect=llama_cpp_python: such a server has nothing for Rerank"),
            ("rerank", "vllm", RERANK | {"model__dialect": "llama_cpp_python"}, "has nothing for Rerank"),
            ("rerank", "vllm", {}, "Rerank with a server needs model.api=rerank; it is chat"),
            ("rerank", "vllm", RERANK | {"nodes__rerank__op__normalize": False}, "normalize=false is up to the server"),
            ("score_perplexity", "vllm", SCORE | {"nodes__score__op__joint": False}, "add joint=true"),
        ],
        "llamacpp",
        "has nothing for Rerank",
    ),
)
def test_what_a_server_has_not_is_said_before_anything_is_sent(tmp_path, job, owner, settings, said):
    with FaultServer(owner=owner) as server:
        with pytest.raises((ConfigError, NodeFailed), match=said) as error:
            asked(server, job, tmp_path / "out", **settings)
        assert error.value.exit_code == 2
        assert server.requests == 0


@pytest.mark.parametrize(
    ("body", "made"),
    [
        ([[3.0, 4.0]], [[0.6, 0.8]]),
        ([[3.0, 4.0, 12.0]], [[0.6, 0.8]]),
        ([[3.0]], "the embeddings have 1 numbers, and dimensions is 2"),
    ],
)
def test_dimensions_are_sent_and_of_a_longer_vector_the_first_are_kept(body, made):
    settings = EndpointSettings(url="http://127.0.0.1:1", api="embeddings")
    op = EndpointEmbed(settings, EngineSettings(), dimensions=2)
    assert op.plan(pa.schema([("text", pa.string())])).field("embedding").type == pa.list_(pa.float32(), 2)
    assert op._body([("a",)]) == {"input": ["a"], "dimensions": 2}
    answer = {"data": [{"embedding": vector} for vector in body]}
    if isinstance(made, str):
        with pytest.raises(Unusable, match=made):
            op._read(answer, [("a",)])
        return
    (array,) = op._arrays([("a",)], [tuple(np.array(one) for one in op._read(answer, [("a",)])[0])])
    assert [pytest.approx(one) for one in made] == array.to_pylist()
    with pytest.raises(ConfigError, match="dimensions=0 cannot work"):
        EndpointEmbed(settings, EngineSettings(), dimensions=0)


def test_vectors_come_from_a_server_once_and_a_bad_text_costs_itself(tmp_path):
    def faults(number: int, body: dict[str, Any]) -> Fault | None:
        return Fault(400, {"error": {"message": "too long"}}) if "bad" in body["input"] else None

    settings = {"model": "endpoint", "model.api": "embeddings", "max_error_rate": 1.0, "progress": "none"}
    rows = [{"prompt": "bad" if i == 7 else f"text {i}"} for i in range(40)]
    with FaultServer(faults) as server:
        price = {"model.price_per_million": {"input": 1e6, "output": 0.0}}
        result = run("embed", settings | price | {"model.url": server.url}, rows=rows, directory=tmp_path / "out")
        assert server.requests == 3 + 16
    found = result.rows().select("row", "embedding").collect()
    assert sorted(found["row"]) == [i for i in range(40) if i != 7]
    first = list(hashlib.sha256(b"text 0").digest()[:4])
    vector = found.filter(found["row"] == 0)["embedding"][0].to_list()
    length = sum(x * x for x in first) ** 0.5
    assert vector == pytest.approx([x / length for x in first])
    (reject,) = result.rejects().collect().to_dicts()
    assert "too long" in reject["reason"]
    (totals,) = result.metrics("run").select("totals").collect()["totals"]
    assert json.loads(totals)["cost"] == 39 * 3


def test_the_adapter_of_a_row_or_a_node_is_the_model_that_is_asked_for(tmp_path):
    """Equal prompts for two of them are asked for twice."""
    names: list[list[str | None]] = [["law"], ["poems"], [None], ["base"], ["law"], ["law", "poems"], [""]]
    rows = [{"prompt": f"{i // 2}", "own": each} for i, each in enumerate(names)]
    common = {"model.name": "stub", "max_error_rate": 1.0, "progress": "none", "store.enabled": False}
    common |= {"sampling.temperature": 0}
    with FaultServer() as server:

        def asked_for(job: str, name: str, text: str, **settings: Any) -> tuple[list[tuple[str, str]], int]:
            server.served.clear()
            known = common | {"model.url": server.url} | {key.replace("__", "."): v for key, v in settings.items()}
            result = run(job, known, rows=rows, model="endpoint", directory=tmp_path / name)
            bodies = [json.loads(body) for body in server.served.elements()]
            return sorted((str(body[text]), body["model"]) for body in bodies), result.counts.get("error_rejects", 0)

        completions = {"model__api": "completions"}
        asked, rejects = asked_for("generate", "column", "prompt", data__adapter_column="own", **completions)
        assert asked == [("0", "law"), ("0", "poems"), ("1", "stub"), ("2", "law")]
        assert rejects == 2
        asked, _ = asked_for("generate", "node", "prompt", nodes__generate__op__adapter="law", **completions)
        assert asked == [(f"{i}", "law") for i in range(4)]
        for i, extra in enumerate([{}, {"model__extra_body": {"model": "x"}}]):  # the node says it last
            asked, _ = asked_for("embed", f"embed{i}", "input", nodes__embed__op__adapter="law", **EMBED, **extra)
            assert {model for _, model in asked} == {"law"}
    logs = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*/run.log"))
    assert "an alias?" not in logs
