"""Each rule of the graph, by the error that names the node."""

from __future__ import annotations

import pytest

from pipeline.api.errors import ConfigError, GraphError, SchemaError
from pipeline.api.protocols import UsesModel
from pipeline.dataflow.graph import Graph, Node
from tests.pipeline.ops import Apply, Collect, Count, Join, KeepEven


def test_order_schemas_depth_and_readers():
    graph = Graph(
        {
            "sink": Node(Collect(), ("join",)),
            "join": Node(Join(), ("even", "count")),
            "even": Node(KeepEven(), ("count",)),
            "count": Node(Count(5)),
        }
    )
    assert graph.order == ("count", "even", "join", "sink")
    assert (graph.source, graph.sinks) == ("count", ("sink",))
    assert graph.readers("count") == (("even", 0), ("join", 1))
    assert [graph.depth(n) for n in graph.order] == [0, 1, 2, 3]
    assert graph.schemas["sink"] is None


def test_the_depth_behind_many_diamonds_is_found_at_once():
    nodes, last = {"count": Node(Count(1))}, "count"
    for i in range(40):  # each doubles the paths from the source
        nodes |= {f"a{i}": Node(KeepEven(), (last,)), f"b{i}": Node(KeepEven(), (last,))}
        last = f"union{i}"
        nodes[last] = Node(Join(), (f"a{i}", f"b{i}"))
    assert Graph({**nodes, "sink": Node(Collect(), (last,))}).depth("sink") == 81


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ({"a": Node(Count(1)), "b": Node(Collect(), ("c",))}, "node 'b': unknown input 'c'; the nodes are a, b"),
        ({"a": Node(KeepEven(), ("b",)), "b": Node(KeepEven(), ("a",))}, "cycle: (b -> a -> b|a -> b -> a)"),
        ({"a": Node(KeepEven(), ("a",))}, "cycle: a -> a"),
        (
            {"a": Node(Count(1)), "b": Node(Count(1)), "s": Node(Join(), ("a", "b"))},
            "node 'b': has no inputs; write inputs: NODE .*there is 'a'",
        ),
        ({"a": Node(Count(1)), "b": Node(KeepEven(), ("a",))}, "node 'b': its output is read by no node"),
        (
            {"a": Node(Count(1)), "s": Node(Collect(), ("a",)), "t": Node(Collect(), ("s",))},
            "node 't': reads 's', which",
        ),
        ({"a": Node(Count(1)), "s": Node(Collect(), ("a", "a"))}, "node 's': Collect does not take 2 inputs"),
        ({"a b": Node(Count(1))}, "node 'a b': a node's name is an identifier"),
        ({"rejects": Node(Count(1))}, "node 'rejects': a node's name is an identifier and not 'rejects'"),
        ({"a": Node(Count(1)), "s": Node(Collect(), ("a",), capacity_rows=0)}, "node 's': capacity_rows is 0"),
    ],
)
def test_a_graph_that_breaks_a_rule(nodes, says):
    with pytest.raises(GraphError, match=says):
        Graph(nodes)


def test_no_nodes():
    with pytest.raises(ConfigError, match="the job has no nodes"):
        Graph({})


def test_columns_that_do_not_fit_are_told_with_the_node():
    nodes = {"count": Node(Count(1)), "a": Node(Apply(abs), ("count",)), "b": Node(Apply(abs), ("a",))}
    with pytest.raises(SchemaError, match=r"node 'b': would write the column 'y', which the input.*\(drop: \[y\]\)"):
        Graph({**nodes, "sink": Node(Collect(), ("b",))})


class InParts(Apply, UsesModel):
    """With a model of two parts."""

    parts = ("decode", "sample")


def test_mermaid():
    drawn = Graph(
        {"count": Node(Count(1)), "a": Node(InParts(abs), ("count",)), "sink": Node(Collect(), ("a",))}
    ).to_mermaid()
    assert drawn.splitlines() == [
        "flowchart LR",
        '    count(["<b>count</b><br/>Count"])',
        '    a["<b>a</b><br/>InParts<br/><small>a/decode</small><br/><small>a/sample</small>"]',
        '    sink(["<b>sink</b><br/>Collect"])',
        "    count --> a",
        "    a --> sink",
    ]
