"""Memory check: add up the memory that the nodes of a graph need, before anything is loaded."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pipeline.api.errors import ConfigError
from pipeline.api.identity import DeviceMemory
from pipeline.api.protocols import MemoryNeed, UsesModel
from pipeline.api.user_code import planning
from pipeline.cluster.gpus import shares_of, workers_here, workers_of_a_gpu
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
OF_DEVICES = (
    "use fewer model.gpu_layers, fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0, or"
    " smaller or more quantised models"
)


class MemoryNeeds:
    """What all nodes of a graph need together; shared memory counts once. Each worker of this machine has contexts of
    its own, and all have the pages of the model file once; on devices each has its own of everything, and where
    `cluster.gpus` is given also devices of its own. The sums are lower bounds; what is needed at most, of caches, is
    added up apart."""

    def __init__(self, settings: JobSettings, graph: Graph) -> None:
        self._limit = settings.engine.memory_limit_bytes
        cluster = settings.cluster
        here = cluster is not None and cluster.pool != "ray"  # on which machine Ray puts a worker is not known
        self._workers = workers_here(cluster, shares_of(cluster, graph)) if here else 1
        gpus = cluster.gpus if cluster is not None else 0.0
        on_each_device = min(workers_of_a_gpu(gpus), self._workers) if gpus else self._workers
        in_workers = {name for segment in segments_of(graph) for name in segment.nodes} if self._workers > 1 else set()
        found: dict[Hashable, tuple[MemoryNeed, int]] = {}
        for name, op in graph.with_role(UsesModel).items():
            with planning(name, "memory_needs"):
                needs = tuple(op.memory_needs())
            for need in needs:
                times = on_each_device if need.device else 1 if need.shared else self._workers
                found.setdefault(need.key, (need, times if name in in_workers else 1))
        self.shared_keys = {need.key for need, _ in found.values() if need.shared}
        """Keys of resources of the process that the graph uses."""
        self._machine = _Sum([each for each in found.values() if each[0].device is None])
        rooms = {need.device.name: need.device for need, _ in found.values() if need.device}
        self._devices = [
            (room, _Sum([each for each in found.values() if each[0].device and each[0].device.name == room.name]))
            for room in rooms.values()
        ]

    def check(self) -> None:
        """Refuse a graph that may need more than `runtime.memory_limit`, where caches count in full, as rows may fill
        them, or more than a device has. Raises ConfigError, whose message lists the needs and the remedies."""
        machine = self._machine
        if self._limit is not None and machine.least + machine.more > self._limit:
            remedies = self._remedies(self._limit)
            raise ConfigError(
                f"the graph takes {machine.words()} of memory, and runtime.memory_limit is {mib(self._limit)}:\n"
                + "\n".join(machine.lines)
                + f"\n{remedies[0].upper()}{remedies[1:]}, or raise runtime.memory_limit"
            )
        for device, needs in self._devices:
            if needs.least > device.total_bytes:
                raise ConfigError(_too_much(device, needs, f"it has {mib(device.total_bytes)}; {OF_DEVICES}"))

    def warning(self) -> str | None:
        """Return a warning if there is no limit and the graph needs more memory than is free, of the machine or of a
        device, else None. It is no refusal: free memory changes all the time, and the weights of a model need not all
        be in the machine's memory."""
        free, said = free_memory(), list[str]()
        if self._limit is None and self._machine.least > free:
            said.append(
                f"the graph takes at least {mib(self._machine.least)} of memory and {mib(free)} are free; if it fails"
                f" or becomes slow, {self._remedies(free)}:\n" + "\n".join(self._machine.lines)
            )
        for device, needs in self._devices:
            if needs.least > device.free_bytes:
                said.append(_too_much(device, needs, f"{mib(device.free_bytes)} are free; if it fails, {OF_DEVICES}"))
        return "\n".join(said) or None

    def plan_lines(self) -> list[str]:
        """Return the lines of a dry run's plan; none if no node has needs."""
        of = f"{mib(free_memory())} free" if self._limit is None else f"runtime.memory_limit={mib(self._limit)}"
        lines = [f"memory, {self._machine.words('at least: ')} ({of})", *self._machine.lines]
        for device, needs in self._devices:
            room = f"{mib(device.free_bytes)} of {mib(device.total_bytes)} free"
            lines += [f"memory of {device.name}, {needs.words('at least: ')} ({room})", *needs.lines]
        return lines if self._machine.lines or self._devices else []

    def _remedies(self, room: int) -> str:
        """Return what can be done to need no more than `room` bytes of the machine's memory."""
        needs = self._machine
        fewer = needs.each and self._workers - -(-(needs.least + needs.more - room) // needs.each)
        return f"use cluster.workers={fewer}, or {REMEDIES}" if fewer > 0 else REMEDIES


class _Sum:
    """The needs of one memory, each with how many times it is needed: `least` bytes, `more` at most beside them, and
    of the least `each` for a worker; and their `lines`."""

    def __init__(self, needs: Sequence[tuple[MemoryNeed, int]]) -> None:
        self.least = sum(need.size_bytes * times for need, times in needs if not need.at_most)
        self.more = sum(need.size_bytes * times for need, times in needs if need.at_most)
        self.each = sum(need.size_bytes for need, times in needs if times > 1)
        self.lines = [
            f"  {mib(need.size_bytes * times):>11}  {'at most: ' * need.at_most}{f'{times} x ' if times > 1 else ''}"
            f"{need.what}"
            for need, times in needs
        ]

    def words(self, least: str = "at least ") -> str:
        """Return both sums in words."""
        return f"{least}{mib(self.least)}{f', and at most {mib(self.more)} more' if self.more else ''}"


def _too_much(device: DeviceMemory, needs: _Sum, but: str) -> str:
    lines = "\n".join(needs.lines)
    return f"the graph takes at least {mib(needs.least)} of the memory of {device.name} and {but}:\n{lines}"
