"""What a node leaves out is filled in by name and type, and is part of what the run is recognised by."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from operators.settings import (
    DataSettings,
    DecodeSettings,
    ModelSettings,
    OutputSettings,
    SamplingSettings,
    StoreSettings,
)
from operators.settings.runtime import EngineSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.protocols import Operator
from pipeline.config.expand import expanded, typed_key
from pipeline.config.fingerprint import differences
from pipeline.settings import JobSettings, NodeSettings

MODEL = ModelSettings(path="a.gguf")
DATA = DataSettings()


class Op(Operator):
    """An operator with arguments that are named like settings."""

    def __init__(
        self, model: ModelSettings, data: str = "x", seed: int = 0, chunk_rows: int | None = None, decode: Any = None
    ) -> None:
        """Takes them."""


class Source(Operator):
    """A source that has to be told its chunks."""

    def __init__(self, chunk_rows: int) -> None:
        """Takes them."""


def op_of(name: str = "Op", **given: Any) -> dict[str, Any]:
    sys.modules["my_ops"] = sys.modules[__name__]
    node = NodeSettings({"_target_": f"my_ops.{name}", **given})
    settings = JobSettings(nodes={"n": node}, model=MODEL, data={"a": 1}, decode={"b": 2}, seed=7, chunk_rows=9)
    return expanded(settings).nodes["n"].op


def test_arguments_that_are_left_out_are_filled_in_where_the_type_fits():
    filled = {"model": MODEL, "seed": 7, "decode": {"b": 2}}  # `data` is a text here, `chunk_rows` has a default
    assert op_of() == {"_target_": "my_ops.Op", **filled}
    assert op_of("Source") == {"_target_": "my_ops.Source", "chunk_rows": 9}


def test_what_is_given_stays_a_null_too():
    given: dict[str, Any] = {"model": None, "seed": 3, "chunk_rows": None, "decode": 1}
    assert op_of(**given) == {"_target_": "my_ops.Op", **given}


@pytest.mark.parametrize("node", [NodeSettings({}), NodeSettings({"_target_": "no.such"}), "x"])
def test_what_is_no_operator_is_left_for_the_graph_to_refuse(node):
    settings = JobSettings(nodes={"n": node})
    assert expanded(settings) == settings


def test_beside_steps_too():
    with pytest.raises(GraphError, match="node 'n': is 'x', and must be a mapping with op and inputs"):
        expanded(JobSettings(nodes={"n": "x"}, steps={"x": {"op": {}}}, data=DATA))  # type: ignore[dict-item]


def test_a_job_without_steps_keeps_its_nodes_and_one_with_steps_has_them_no_more():
    steps = {"x": {"op": {"_target_": "my_ops.Op"}}}
    settings = JobSettings(nodes={}, steps=steps, model=MODEL, data=DATA)
    found = expanded(settings)
    assert (list(found.nodes), found.steps) == (["read", "x", "write"], {})
    assert [node.inputs for node in found.nodes.values()] == [[], ["read"], ["x"]]
    assert [node.step for node in found.nodes.values()] == [None, "x", None]
    with pytest.raises(ConfigError, match=r"^steps\.x has no key 'opp'; did you mean op\?"):
        expanded(JobSettings(steps={"x": {"opp": 1}}))


def of_step(data: DataSettings = DATA, **given: Any) -> dict[str, Any]:
    """The op of the node that asks the model in a job of one step."""
    settings = JobSettings(
        steps={"x": {"prompt": "x", **given}},
        model=MODEL,
        data=data,
        sampling=SamplingSettings(max_tokens=7, structured=StructuredSettings(skip_forced=False)),
        decode=DecodeSettings(),
        runtime=EngineSettings(),
        store=StoreSettings(),
        output=OutputSettings(),
    )
    return expanded(settings).nodes["x"].op


def test_a_step_changes_single_keys_of_a_group_deep_down_too():
    op = of_step(sampling={"temperature": 0.5, "structured": {"regex": "a+"}}, seed=3)
    found = op["sampling"]
    assert (found.temperature, found.max_tokens, op["seed"]) == (0.5, 7, 3)
    assert found.structured == StructuredSettings(regex="a+", skip_forced=False)


@pytest.mark.parametrize("model", [{}, {"path": "b.gguf"}, {"url": "http://127.0.0.1/v1"}], ids=str)
def test_a_model_of_a_step_has_room_for_the_runtime_of_the_step(model):
    """And is that of the job, for the fingerprint, where it differs in nothing else."""
    op = of_step(model=model, runtime={"slots": 77})
    assert op["model"].room == op["runtime"]
    assert op["runtime"].slots == 77
    assert (op["model"] == MODEL) == (not model)


def test_nodes_that_came_and_went_are_told_in_a_line_each():
    before = {"nodes.a.op.x": 1, "nodes.a.inputs": [], "nodes.b.op.x": 1, "seed": 0}
    now = {"nodes.c.op.x": 1, "nodes.d.op.x": 2, "nodes.b.op.x": 2, "seed": 0}
    assert differences(before, now) == ["nodes that are new: c, d", "nodes that are gone: a", "nodes.b.op.x: 1 -> 2"]


PROBABILITY: dict[str, Any] = {"choices": ["a", "b"], "probability": True}


@pytest.mark.parametrize("kind", [{}, PROBABILITY], ids=["generate", "choose"])
def test_the_adapter_of_a_step_is_that_of_its_node(kind):
    assert of_step(**kind, adapter=["one", "two"])["adapter"] == ["one", "two"]
    assert "adapter" not in of_step(**kind)
    assert typed_key("nodes.x.op.adapter", {"x": "x", "x_prompt": "x"}) == "steps.x.adapter"


@pytest.mark.parametrize("kind", [{}, PROBABILITY], ids=["generate", "choose"])
def test_the_node_of_a_step_knows_the_column_of_adapters(kind):
    data = DataSettings(adapter_column="own")
    assert of_step(data, **kind)["data"] == data
