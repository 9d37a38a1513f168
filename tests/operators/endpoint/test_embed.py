"""Embed with a server."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.endpoint.api.checks import Unusable
from operators.endpoint.scoring import EndpointEmbed
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from pipeline import run
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.fault_server import Fault, FaultServer


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
