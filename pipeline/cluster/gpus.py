"""The GPUs of workers on one machine: each worker's process is told by a variable which it sees."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.api.errors import ConfigError
from pipeline.api.identity import Gpu, for_workers, listed
from pipeline.api.protocols import UsesModel
from pipeline.api.user_code import planning
from pipeline.cluster.pool import USUAL_WORKERS
from pipeline.dataflow.graph import Graph
from pipeline.settings import ClusterSettings

VARIABLES: Mapping[str, str] = {
    "CUDA": "CUDA_VISIBLE_DEVICES",
    "ROCm": "HIP_VISIBLE_DEVICES",
    "Vulkan": "GGML_VK_VISIBLE_DEVICES",
    "Fake": "FAKE_GPU_VISIBLE_DEVICES",  # of tests/devices
}
"""By backend of ggml: the variable that has the GPUs which a process sees, separated by commas; empty: none."""

SERVERS = "LLAMA_ARG_RPC"
"""The variable that lists servers whose devices a process has, too."""


@dataclass(frozen=True)
class Shares:
    """The GPUs of this machine, shared out to workers.

    Args:
        each: GPUs of a worker; workers that have a part of one share it.
        variable: that says which a process sees.
        numbers: its words for all of them.
        hides: variables that keep a worker from the GPUs of other backends, which may be the same ones.
    """

    each: float
    variable: str
    numbers: tuple[str, ...]
    hides: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        """How many workers have GPUs."""
        return _most_workers(len(self.numbers), self.each)

    def environment(self, place: int) -> dict[str, str]:
        """Return what the process of worker number `place`, from 0, has in its environment."""
        count = math.ceil(self.each)
        first = place // workers_of_a_gpu(self.each) * count
        behind = first + count
        return {self.variable: ",".join(self.numbers[first:behind]), **dict.fromkeys(self.hides, "")}


def workers_of_a_gpu(each: float) -> int:
    """Return how many workers share a GPU, where a worker has `each`."""
    return 1 if each >= 1 else math.floor(1 / each + 1e-9)


def _most_workers(gpus: int, each: float) -> int:
    return gpus // math.ceil(each) * workers_of_a_gpu(each)


def _needed(workers: int, each: float) -> int:
    """Return how many GPUs so many workers take."""
    return math.ceil(workers / workers_of_a_gpu(each)) * math.ceil(each)


def shares_of(cluster: ClusterSettings, graph: Graph) -> Shares | None:
    """Return how the GPUs of this machine are shared out to the workers of a job; None if the job does not ask for it,
    or on Ray, which does that itself. `graph`: the job's; its operators are asked which GPUs there are.

    Raises:
        ConfigError: there are too few, or workers cannot be told which are theirs. The message lists them.
    """
    if not cluster.gpus or cluster.pool != "processes":
        return None
    key = f"cluster.gpus={cluster.gpus:g}"
    if cluster.gpus > 1 and cluster.gpus != int(cluster.gpus):
        raise ConfigError(f"{key}: two workers would share a GPU; it is a whole number, or a part of one GPU")
    if (found := _asked(graph, os.environ)) is None:
        return _unknown(cluster)
    gpus = for_workers(found)
    backend = gpus[0].backend if gpus else ""
    if (needed := _needed(cluster.workers or 1, cluster.gpus)) > len(gpus):
        fits = _most_workers(len(gpus), cluster.gpus)
        remedy = f"start no more than {fits} workers (cluster.workers)" if fits else "leave it out, or ask for fewer"
        of = f"{cluster.workers or 1} worker{'s' * ((cluster.workers or 1) > 1)}"
        raise ConfigError(
            f"{key}: {of} would need {needed} GPUs, and here are {len(gpus)}: {listed(gpus)}; {remedy}."
            " `python -m pipeline doctor` lists what llama.cpp finds"
        )
    if (variable := VARIABLES.get(backend)) is None:
        raise ConfigError(
            f"{key}: a process cannot be told which GPUs of {backend} it sees ({listed(gpus)}); this works with"
            f" {', '.join(name for name in VARIABLES if name != 'Fake')}. Leave cluster.gpus out"
        )
    hides = {VARIABLES[gpu.backend] for gpu in found if gpu.backend in VARIABLES} - {variable}
    hides |= {SERVERS} if any(gpu.backend == "RPC" for gpu in found) else set()
    return Shares(cluster.gpus, variable, _numbers(graph, gpus, variable), tuple(sorted(hides)))


def workers_here(cluster: ClusterSettings, shares: Shares | None) -> int:
    """Return how many workers there are on this machine, where all are."""
    return cluster.workers or (shares.workers if shares else USUAL_WORKERS)


def _unknown(cluster: ClusterSettings) -> Shares:
    """Return the shares where no operator tells which GPUs there are, as those of users that compute by other libraries
    than llama.cpp: the words of CUDA's variable, else as many numbers as the workers take. Raises ConfigError if the
    variable has too few."""
    variable, workers = VARIABLES["CUDA"], cluster.workers or USUAL_WORKERS
    most = _needed(workers, cluster.gpus)
    given = os.environ.get(variable)
    numbers = tuple(map(str, range(most)) if given is None else filter(None, map(str.strip, given.split(","))))
    if _needed(cluster.workers or 1, cluster.gpus) > len(numbers):
        raise ConfigError(
            f"cluster.gpus={cluster.gpus:g}: {workers} workers would need {most} GPUs, and {variable}={given} has"
            f" {len(numbers)}; start fewer workers (cluster.workers)"
        )
    return Shares(cluster.gpus, variable, numbers)


def _numbers(graph: Graph, gpus: list[Gpu], variable: str) -> tuple[str, ...]:
    """Return the words of `variable` for `gpus`: those that it has, else their numbers, as a process sees them that is
    given these. Vulkan counts others, such as an integrated one beside them, which llama.cpp leaves out."""
    if (given := os.environ.get(variable)) is not None:
        numbers = tuple(word.strip() for word in given.split(",") if word.strip())
        seen = gpus if len(numbers) == len(gpus) else []
    else:
        numbers = tuple(str(number) for number in range(len(gpus)))
        seen = [gpu for gpu in _asked(graph, {**os.environ, variable: ",".join(numbers)}) or () if gpu in gpus]
    if seen != gpus:
        raise ConfigError(
            f"cluster.gpus: with {variable}={','.join(numbers)} a process sees {listed(seen)}, and not"
            f" {listed(gpus)}; set {variable} to the numbers of the GPUs that workers are to have"
        )
    return numbers


def _asked(graph: Graph, environment: Mapping[str, str]) -> list[Gpu] | None:
    """Return the GPUs that a process with `environment` sees, by the first operator that finds some; None: no operator
    can tell."""
    gpus: list[Gpu] | None = None
    for name, op in graph.with_role(UsesModel).items():
        with planning(name, "gpus"):
            found: Iterable[Gpu] | None = op.gpus(environment)
        gpus = gpus if found is None else list(found)
        if gpus:
            break
    return gpus
