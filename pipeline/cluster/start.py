"""Make the driver's graph of a job with a cluster: segments in place of the nodes that workers run."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.api.errors import ConfigError, install
from pipeline.api.protocols import UsesModel
from pipeline.api.runtime import RunContext
from pipeline.cluster.assignments import Assignments
from pipeline.cluster.dispatcher import Dispatcher
from pipeline.cluster.gpus import Shares, shares_of
from pipeline.cluster.identity import contents_of, keep_or_compare
from pipeline.cluster.members import Members
from pipeline.cluster.pool import Pool
from pipeline.cluster.process_pool import ProcessPool
from pipeline.cluster.remote_segment import RemoteSegment
from pipeline.cluster.segment_runner import SegmentPlan
from pipeline.cluster.segments import ClusterSize, Segment, segments_of
from pipeline.cluster.worker import WorkerPlan
from pipeline.dataflow.graph import Graph, Node
from pipeline.run_dir.metrics_table import MetricsTables
from pipeline.run_dir.state import RunState
from pipeline.settings import REFUSE, ClusterSettings, JobSettings

LEAST_PIECE_ROWS = 8
USUAL_PIECE_ROWS = 32
STALL_SHARE = 0.8
"""A worker in which nothing moves is ended before the run would be: at this share of runtime.stall_timeout_s."""
MORE_CALLS = 3
"""Calls besides pieces that a worker answers at a time."""


def driver_graph(
    settings: JobSettings,
    graph: Graph,
    context: RunContext,
    tables: MetricsTables,
    state: RunState,
) -> tuple[Graph, int]:
    """Return the driver's graph and how many chunks may be open, so that no worker waits for rows. Raises ConfigError
    if the cluster or the graph cannot work so."""
    cluster: ClusterSettings = settings.cluster
    segments = segments_of(graph)
    content = contents_of(graph, (name for segment in segments for name in segment.nodes))
    plans = tuple(_segment_plan(segment, settings) for segment in segments)
    plan = WorkerPlan(plans, context.run_id, context.attempt, str(context.output_dir), content)
    needs, make = _needs(cluster, graph, segments), POOLS[cluster.pool]
    pool = context.resources.get(("pool",), lambda: make(settings, plan, needs), lambda made: made.close())
    size = _size(settings, pool)
    began_with = partial(keep_or_compare, state) if settings.other_bits == REFUSE else lambda nodes: None
    stall_s = settings.engine.stall_timeout_s and STALL_SHARE * settings.engine.stall_timeout_s

    def start_dispatcher() -> Dispatcher:
        meters = {meter.name: meter for remote in remotes for meter in remote.meters}
        members = Members(cluster, size.workers, pool, context, tables, meters, began_with, stall_s)
        dispatcher = Dispatcher(members, Assignments(cluster.in_flight, cluster.poison_after), context, segments)
        dispatcher.start()
        return dispatcher

    remotes = [RemoteSegment(segment, size, start_dispatcher) for segment in segments]
    chunk_rows = settings.chunk_rows if graph.target is None else settings.target.rows_of_chunk(settings.chunk_rows)
    open_chunks = max(settings.max_open_chunks, math.ceil(size.rows_in_flight / chunk_rows) + 2)
    return Graph(_replaced(graph, remotes), graph.target), open_chunks


def _size(settings: JobSettings, pool: Pool) -> ClusterSize:
    """Return the size of a job's cluster, with the values that follow from other settings and from the machines."""
    cluster: ClusterSettings = settings.cluster
    slots = settings.engine.slots
    rows = cluster.piece_rows or (max(LEAST_PIECE_ROWS, 2 * slots) if slots else USUAL_PIECE_ROWS)
    return ClusterSize(cluster.workers or pool.fits, rows, cluster.in_flight)


def _segment_plan(segment: Segment, settings: JobSettings) -> SegmentPlan:
    nodes = {name: settings.nodes[name] for name in segment.nodes}
    return SegmentPlan(segment.name, nodes, segment.schema.serialize().to_pybytes())


def _replaced(graph: Graph, remotes: Sequence[RemoteSegment]) -> Mapping[str, Node]:
    """Return the nodes of `graph` with `remotes` in place of the nodes that they stand for."""
    nodes: dict[str, Node] = {}
    begins = {remote.segment.nodes[0]: remote for remote in remotes}
    ends = {remote.segment.nodes[-1]: remote.segment.name for remote in remotes}
    inside = {name for remote in remotes for name in remote.segment.nodes}
    for name, node in graph.nodes.items():
        inputs = tuple(ends.get(source, source) for source in node.inputs)
        if (remote := begins.get(name)) is not None:
            nodes[remote.segment.name] = replace(node, op=remote, inputs=inputs, meters=remote.meters, kept_as=None)
        elif name not in inside:
            nodes[name] = replace(node, inputs=inputs)
    return nodes


@dataclass(frozen=True)
class WorkerNeeds:
    """What a worker needs of its machine.

    Args:
        own_memory: bytes of its memory that the worker has for itself.
        on_cpu: no model computes on devices.
        gpus: how those of this machine are shared out; None: they are not.
    """

    own_memory: int
    on_cpu: bool
    gpus: Shares | None


def _needs(cluster: ClusterSettings, graph: Graph, segments: tuple[Segment, ...]) -> WorkerNeeds:
    gpus = shares_of(cluster, graph)
    on_cpu = gpus is None and not any(any(op.devices()) for op in graph.with_role(UsesModel).values())
    return WorkerNeeds(_own_memory(graph, segments), on_cpu, gpus)


def _own_memory(graph: Graph, segments: tuple[Segment, ...]) -> int:
    """Return the bytes of its machine's memory that a worker needs for itself: contexts, not the model file, whose
    pages a machine has once."""
    inside = {name for segment in segments for name in segment.nodes}
    models = graph.with_role(UsesModel).items()
    needs = [need for name, op in models if name in inside for need in op.memory_needs()]
    return sum({need.key: need.size_bytes for need in needs if not need.shared and need.device is None}.values())


def calls_at_a_time(cluster: ClusterSettings) -> int:
    """Return how many calls a worker answers at a time: all its pieces, and the questions of the driver."""
    return cluster.in_flight + MORE_CALLS


def _processes(settings: JobSettings, plan: WorkerPlan, needs: WorkerNeeds) -> Pool:
    cluster: ClusterSettings = settings.cluster
    calls, threads = calls_at_a_time(cluster), settings.engine.threads
    return ProcessPool(cluster, plan, calls, threads, on_cpu=needs.on_cpu, gpus=needs.gpus)


def _ray(settings: JobSettings, plan: WorkerPlan, needs: WorkerNeeds) -> Pool:
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"cluster=ray needs the package ray; {install('ray')}")
    from pipeline.cluster.ray_pool import RayPool

    cluster: ClusterSettings = settings.cluster
    return RayPool(cluster, plan, calls_at_a_time(cluster), settings.engine.threads, cluster.memory or needs.own_memory)


POOLS: dict[str, Callable[[JobSettings, WorkerPlan, WorkerNeeds], Pool]] = {"processes": _processes, "ray": _ray}
"""What makes the pool, by `cluster.pool`; given the settings, and what each worker begins with and needs."""
