"""Memory check: add up the memory that the nodes of a graph need, before anything is loaded."""

from __future__ import annotations

from collections.abc import Hashable

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import MemoryNeed
from pipeline.dataflow.graph import Graph
from pipeline.monitor.wording import mib
from pipeline.settings import JobSettings
from pipeline.system.machine import free_memory

REMEDIES = (
    "use fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0, or smaller or more quantised"
    " models"
)


def check_memory(settings: JobSettings, graph: Graph) -> None:
    """Refuse a graph that needs more than `runtime.memory_limit`.

    The sum is a lower bound, so no job is refused that could have run. Without a limit nothing is refused: free memory
    changes all the time, and the weights of a model need not all be in memory (see `memory_warning`).

    Raises:
        ConfigError: it needs more. The message lists the needs and the remedies.
    """
    limit = _limit(settings)
    total, lines = _needs(graph)
    if limit is not None and total > limit:
        raise ConfigError(
            f"the graph takes at least {mib(total)} of memory, and runtime.memory_limit is {mib(limit)}:\n"
            + "\n".join(lines)
            + f"\n{REMEDIES[0].upper()}{REMEDIES[1:]}, or raise runtime.memory_limit"
        )


def memory_warning(settings: JobSettings, graph: Graph) -> str | None:
    """Return a warning if there is no limit and the graph needs more memory than is free, else None."""
    (total, lines), free = _needs(graph), free_memory()
    if _limit(settings) is not None or total <= free:
        return None
    return (
        f"the graph takes at least {mib(total)} of memory and {mib(free)} are free; if it fails or becomes slow,"
        f" {REMEDIES}:\n" + "\n".join(lines)
    )


def memory_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """Return the lines on memory of a dry run's plan; none if no node has needs."""
    total, lines = _needs(graph)
    limit = _limit(settings)
    of = f"{mib(free_memory())} free" if limit is None else f"runtime.memory_limit={mib(limit)}"
    return [f"memory, at least: {mib(total)} ({of})", *lines] if lines else []


def _needs(graph: Graph) -> tuple[int, list[str]]:
    """Return the bytes that all nodes need together, and a line per need; shared memory counts once."""
    found: dict[Hashable, MemoryNeed] = {}
    for name in graph.order:
        for need in graph.nodes[name].op.memory_needs():
            found.setdefault(need.key, need)
    lines = [f"  {mib(need.size_bytes):>11}  {need.what}" for need in found.values()]
    return sum(need.size_bytes for need in found.values()), lines


def _limit(settings: JobSettings) -> int | None:
    # The class of `runtime` belongs to the operators and need not have this property.
    return getattr(settings.runtime, "memory_limit_bytes", None)
