"""Memory check: add up the memory that the nodes of a graph need, before anything is loaded."""

from __future__ import annotations

from collections.abc import Hashable

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import MemoryNeed, UsesModel
from pipeline.api.user_code import planning
from pipeline.cluster.gpus import shares_of, workers_here
from pipeline.cluster.segments import segments_of
from pipeline.dataflow.graph import Graph
from pipeline.monitor.wording import mib
from pipeline.settings import JobSettings
from pipeline.system.machine import free_memory

REMEDIES = (
    "use fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0, runtime.window_cache=small"
    " (models with a sliding window), less runtime.image_mb or runtime.snapshot_mb, smaller or more quantised"
    " models, or runtime.kernels=llama.cpp, which need not have all weights in memory"
)


class MemoryNeeds:
    """What all nodes of a graph need together; shared memory counts once. Each worker of this machine has contexts of
    its own, and all have the pages of the model file once. The sum is a lower bound; what is needed at most, of caches,
    is added up apart."""

    def __init__(self, settings: JobSettings, graph: Graph) -> None:
        self._limit = settings.engine.memory_limit_bytes
        cluster = settings.cluster
        here = cluster is not None and cluster.pool != "ray"  # on which machine Ray puts a worker is not known
        self._workers = workers_here(cluster, shares_of(cluster, graph)) if here else 1
        in_workers = {name for segment in segments_of(graph) for name in segment.nodes} if self._workers > 1 else set()
        found: dict[Hashable, tuple[MemoryNeed, int]] = {}
        for name, op in graph.with_role(UsesModel).items():
            with planning(name, "memory_needs"):
                needs = tuple(op.memory_needs())
            for need in needs:
                times = self._workers if name in in_workers and not need.shared else 1
                found.setdefault(need.key, (need, times))
        self.shared_keys = {need.key for need, _ in found.values() if need.shared}
        """Keys of resources of the process that the graph uses."""
        self._total = sum(need.size_bytes * times for need, times in found.values() if not need.at_most)
        self._more = sum(need.size_bytes * times for need, times in found.values() if need.at_most)
        self._each = sum(need.size_bytes for need, times in found.values() if times > 1)
        self._lines = [
            f"  {mib(need.size_bytes * times):>11}  {'at most: ' * need.at_most}{f'{times} x ' if times > 1 else ''}"
            f"{need.what}"
            for need, times in found.values()
        ]

    def check(self) -> None:
        """Refuse a graph that may need more than `runtime.memory_limit`: caches count in full, as rows may fill them.
        Raises ConfigError, whose message lists the needs and the remedies."""
        if self._limit is not None and self._total + self._more > self._limit:
            remedies = self._remedies(self._limit)
            raise ConfigError(
                f"the graph takes {self._sum()} of memory, and runtime.memory_limit is {mib(self._limit)}:\n"
                + "\n".join(self._lines)
                + f"\n{remedies[0].upper()}{remedies[1:]}, or raise runtime.memory_limit"
            )

    def warning(self) -> str | None:
        """Return a warning if there is no limit and the graph needs more memory than is free, else None. It is no
        refusal: free memory changes all the time, and the weights of a model need not all be in memory."""
        free = free_memory()
        if self._limit is not None or self._total <= free:
            return None
        return (
            f"the graph takes at least {mib(self._total)} of memory and {mib(free)} are free; if it fails or becomes"
            f" slow, {self._remedies(free)}:\n" + "\n".join(self._lines)
        )

    def plan_lines(self) -> list[str]:
        """Return the lines of a dry run's plan; none if no node has needs."""
        of = f"{mib(free_memory())} free" if self._limit is None else f"runtime.memory_limit={mib(self._limit)}"
        return [f"memory, {self._sum('at least: ')} ({of})", *self._lines] if self._lines else []

    def _sum(self, least: str = "at least ") -> str:
        return f"{least}{mib(self._total)}{f', and at most {mib(self._more)} more' if self._more else ''}"

    def _remedies(self, room: int) -> str:
        """Return what can be done to need no more than `room` bytes."""
        fewer = self._each and self._workers - -(-(self._total + self._more - room) // self._each)
        return f"use cluster.workers={fewer}, or {REMEDIES}" if fewer > 0 else REMEDIES
