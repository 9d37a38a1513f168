"""Memory check: adds up the memory that the nodes of a graph take, before anything is loaded."""

from __future__ import annotations

from collections.abc import Hashable

from pipeline.api.errors import ConfigError
from pipeline.api.protocols import MemoryNeed
from pipeline.dataflow.graph import Graph
from pipeline.monitor.wording import mib
from pipeline.settings import JobSettings
from pipeline.system.memory import free_memory

REMEDIES = (
    "use fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0, or smaller or more quantised"
    " models"
)


def check_memory(settings: JobSettings, graph: Graph) -> None:
    """Refuse a graph that takes more than `runtime.memory_limit`.

    What is added up is the least that it can take, so whatever is refused could not have worked. Without a limit
    nothing is refused: how much is free changes by the second, and the weights of a model need not be in memory all at
    once (`memory_warning`).

    Raises:
        ConfigError: it takes more; with what each model and context takes, and what helps.
    """
    limit = _limit(settings)
    needs = needs_of(graph)
    total = sum(need.size_bytes for need in needs)
    if limit is not None and total > limit:
        raise ConfigError(
            f"the graph takes at least {mib(total)} of memory, and runtime.memory_limit is {mib(limit)}:\n"
            + "\n".join(_lines(needs))
            + f"\n{REMEDIES[0].upper()}{REMEDIES[1:]}, or raise runtime.memory_limit"
        )


def memory_warning(settings: JobSettings, graph: Graph) -> str | None:
    """Return a warning if a graph without a limit takes more memory than is free."""
    needs = needs_of(graph)
    total, free = sum(need.size_bytes for need in needs), free_memory()
    if _limit(settings) is not None or total <= free:
        return None
    return (
        f"the graph takes at least {mib(total)} of memory and {mib(free)} are free; if it fails or becomes slow,"
        f" {REMEDIES}:\n" + "\n".join(_lines(needs))
    )


def memory_lines(settings: JobSettings, graph: Graph) -> list[str]:
    """Return the lines of a plan about memory; none if no node says."""
    needs = needs_of(graph)
    if not needs:
        return []
    limit = _limit(settings)
    of = f"{mib(free_memory())} free" if limit is None else f"runtime.memory_limit={mib(limit)}"
    return [f"memory, at least: {mib(sum(need.size_bytes for need in needs))} ({of})", *_lines(needs)]


def needs_of(graph: Graph) -> list[MemoryNeed]:
    """Return the memory that the nodes of a graph take; what several share once."""
    found: dict[Hashable, MemoryNeed] = {}
    for name in graph.order:
        for need in graph.nodes[name].op.memory_needs():
            found.setdefault(need.key, need)
    return list(found.values())


def _limit(settings: JobSettings) -> int | None:
    # `runtime` is a settings class of the operators; it may have no such key.
    return getattr(settings.runtime, "memory_limit_bytes", None)


def _lines(needs: list[MemoryNeed]) -> list[str]:
    return [f"  {mib(need.size_bytes):>11}  {need.what}" for need in needs]
