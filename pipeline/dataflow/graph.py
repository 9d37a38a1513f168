"""Graph: the named nodes of a job, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

import pyarrow as pa

from pipeline.api.errors import ConfigError, GraphError
from pipeline.api.meter import StageMeter
from pipeline.api.protocols import Operator, Sink, Source, UsesModel
from pipeline.api.roles import hook_without_role, inputs_fit
from pipeline.api.user_code import planning
from pipeline.dataflow.kept_errors import KeptErrors
from pipeline.dataflow.target_progress import TargetProgress

REJECT_WRITER = "rejects"
R = TypeVar("R")


@dataclass(frozen=True)
class Node:
    """A node: an operator and its inputs.

    Args:
        inputs: names of the nodes that it reads; empty for the source.
        capacity_rows: rows that may wait on each input.
        code: the operator's class and the functions among its arguments, as `module.name`.
        step: the step of the job that it was made for, if any.
        kept_as: column for the errors of rows that stay (`on_error: keep`); None: they leave as rejects.
        meters: of the nodes that it stands for (a segment of a cluster); their row counts are committed with its own.
    """

    op: Operator
    inputs: tuple[str, ...] = ()
    capacity_rows: int = 1024
    code: tuple[str, ...] = ()
    step: str | None = None
    kept_as: str | None = None
    meters: Sequence[StageMeter] = ()


@dataclass(frozen=True)
class Graph:
    """Checked nodes, their topological order (`order`), output schemas (`schemas`, None for a sink), and what keeps
    rows with errors (`keepers`, for nodes that do).

    `target`: progress of a run under a target, shared by the source and the node `target`; else None.
    """

    nodes: Mapping[str, Node]
    target: TargetProgress | None = None
    order: tuple[str, ...] = field(init=False)
    schemas: Mapping[str, pa.Schema | None] = field(init=False)
    keepers: dict[str, KeptErrors] = field(init=False, default_factory=dict)
    _depths: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        _check_names(self.nodes)
        object.__setattr__(self, "order", _topological(self.nodes))
        depths: dict[str, int] = {}
        for name in self.order:
            depths[name] = 1 + max((depths[i] for i in self.nodes[name].inputs), default=-1)
        object.__setattr__(self, "_depths", depths)
        object.__setattr__(self, "schemas", _plan(self.nodes, self.order, self.keepers))
        _check_ends(self)

    @property
    def source(self) -> str:
        """Name of the node without inputs."""
        return self.order[0]

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the nodes without an output."""
        return tuple(n for n in self.order if self.schemas[n] is None)

    def with_role(self, role: type[R]) -> dict[str, R]:
        """Return the operators that have a role, by node, in topological order."""
        return {name: op for name in self.order if isinstance(op := self.nodes[name].op, role)}

    @property
    def steps(self) -> dict[str, str]:
        """Name of the step that each node was made for, without nodes of the job's own."""
        return {name: node.step for name, node in self.nodes.items() if node.step is not None}

    def readers(self, name: str) -> tuple[tuple[str, int], ...]:
        """Return (node, port) of every input that reads `name`."""
        return tuple((n, i) for n in self.order for i, src in enumerate(self.nodes[n].inputs) if src == name)

    def depth(self, name: str) -> int:
        """Return the number of edges on the longest path from the source to `name`."""
        return self._depths[name]

    def to_mermaid(self, places: Mapping[str, str] | None = None) -> str:
        """Return the graph as a Mermaid flowchart, the nodes of a step in one box. `places`: where each node runs."""
        boxes: dict[str, list[str]] = {}
        for name in self.order:
            boxes.setdefault(self._box(name), []).append(name)
        lines = ["flowchart LR"]
        for box, names in boxes.items():
            left, right = ("([", "])") if names[0] in (self.source, *self.sinks) else ("[", "]")
            titles = ", ".join(self.nodes[name].op.title for name in names)
            using = [(name, op) for name in names if isinstance(op := self.nodes[name].op, UsesModel)]
            parts = "".join(f"<br/><small>{name}/{part}</small>" for name, op in using for part in op.parts)
            where = dict.fromkeys(places[name] for name in names) if places else {}
            told = "".join(f"<br/><i>{place}</i>" for place in where)
            lines.append(f'    {box}{left}"<b>{box}</b><br/>{titles}{parts}{told}"{right}')
        edges = [(self._box(src), self._box(name)) for name in self.order for src in self.nodes[name].inputs]
        lines += [f"    {before} --> {after}" for before, after in edges if before != after]
        return "\n".join(lines)

    def _box(self, name: str) -> str:
        return self.nodes[name].step or name


def _check_names(nodes: Mapping[str, Node]) -> None:
    if not nodes:
        raise ConfigError("the job has no nodes; give it a flow (flow=generate) or nodes of its own")
    for name, node in nodes.items():
        if name == REJECT_WRITER or not name.isidentifier():
            raise GraphError(name, f"a node's name is an identifier and not '{REJECT_WRITER}'")
        for source in node.inputs:
            if source not in nodes:
                raise GraphError(name, f"unknown input '{source}'; the nodes are {', '.join(nodes)}")
        if node.capacity_rows < 1:
            raise GraphError(name, f"capacity_rows is {node.capacity_rows}; it must be 1 or more")
        if wrong := hook_without_role(node.op):
            raise GraphError(name, wrong)


def _topological(nodes: Mapping[str, Node]) -> tuple[str, ...]:
    sorter = TopologicalSorter({name: node.inputs for name, node in nodes.items()})
    try:
        order = tuple(sorter.static_order())
    except CycleError as error:
        cycle: list[str] = error.args[1]
        raise GraphError(cycle[0], f"is on a cycle: {' -> '.join(cycle)}") from error
    sources = [n for n in order if not nodes[n].inputs]
    if len(sources) > 1:
        # Name the node whose operator needs an input; if none does, the second source.
        lost = next((n for n in sources if not inputs_fit(nodes[n].op, [])), sources[1])
        others = " and ".join(f"'{n}'" for n in sources if n != lost)
        raise GraphError(lost, f"has no inputs; write inputs: NODE (a graph has one source, and there is {others})")
    return order


def _plan(
    nodes: Mapping[str, Node], order: tuple[str, ...], keepers: dict[str, KeptErrors]
) -> dict[str, pa.Schema | None]:
    schemas: dict[str, pa.Schema | None] = {}
    for name in order:
        node = nodes[name]
        given: list[pa.Schema] = []
        for source in node.inputs:
            schema = schemas[source]
            if schema is None:
                raise GraphError(name, f"reads '{source}', which is a sink and has no output")
            given.append(schema)
        if not inputs_fit(node.op, given):
            raise GraphError(name, f"{type(node.op).__name__} does not take {len(given)} inputs")
        with planning(name, "plan"):
            if node.kept_as is None:
                schemas[name] = node.op.plan(*given)
            else:
                keeper = keepers[name] = KeptErrors(node.kept_as, node.op, given)
                schemas[name] = keeper.plan(node.op.plan(keeper.asked))
    return schemas


def _check_ends(graph: Graph) -> None:
    for name in graph.order:
        op, kind = graph.nodes[name].op, type(graph.nodes[name].op).__name__
        if isinstance(op, Source) and name != graph.source:
            raise GraphError(name, f"{kind} is a pipeline.api.Source, and has inputs; inherit Operator")
        if isinstance(op, Sink) and name not in graph.sinks:
            raise GraphError(name, f"{kind} is a pipeline.api.Sink, and its plan returns columns; inherit Operator")
        if graph.schemas[name] is not None and not graph.readers(name):
            sink = next(iter(graph.sinks), "write")
            raise GraphError(
                name, f"its output is read by no node; give it to one (nodes.{sink}.inputs: {name}), or remove the node"
            )
    if graph.source in graph.sinks:
        raise GraphError(graph.source, "is the source and gives no rows")
