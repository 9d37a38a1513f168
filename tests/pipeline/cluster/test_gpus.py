"""Each worker of this machine sees GPUs of its own, of those that the driver may use; what cannot be shared out so is
refused with the list."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pipeline.api.errors import ConfigError
from pipeline.api.identity import Gpu
from pipeline.api.protocols import UsesModel
from pipeline.cluster.gpus import SERVERS, VARIABLES, shares_of, workers_here
from pipeline.cluster.pool import USUAL_WORKERS
from pipeline.dataflow.graph import Graph, Node
from pipeline.settings import ClusterSettings
from tests.pipeline.ops import Collect, Count, Passes

GIB = 1 << 30
CUDA, VULKAN, HIP = (VARIABLES[backend] for backend in ("CUDA", "Vulkan", "ROCm"))


def gpus(backend: str, count: int, *, shares_memory: bool = False) -> list[Gpu]:
    """GPUs of a backend, no two of the same size."""
    about = "in the processor" if shares_memory else "a card"
    return [Gpu(f"{backend}{i}", about, backend, shares_memory, (i + 1) * GIB) for i in range(count)]


class Finds(Passes, UsesModel):
    """Finds the GPUs that there are, or those of them that variables name: each hides all others of its backend."""

    def __init__(self, there: list[Gpu], first: int = 0) -> None:
        self.there, self.first, self.asked = there, first, 0

    def gpus(self, environment: Mapping[str, str]) -> list[Gpu]:
        self.asked += 1
        found = []
        for backend in dict.fromkeys(gpu.backend for gpu in self.there):
            own = [gpu for gpu in self.there if gpu.backend == backend]
            numbers = environment.get(
                VARIABLES.get(backend, ""), ",".join(str(self.first + i) for i in range(len(own)))
            )
            chosen = [own[int(word) - self.first] for word in numbers.split(",") if word and int(word) >= self.first]
            found += [gpu._replace(name=f"{backend}{i}") for i, gpu in enumerate(chosen)]
        return found


class Tells(Passes, UsesModel):
    """Knows nothing of GPUs."""


def shared(op: Passes, **settings: object):
    """What the workers of a job with `op` have."""
    graph = Graph({"read": Node(Count(1)), "model": Node(op, ("read",)), "write": Node(Collect(), ("model",))})
    return shares_of(ClusterSettings(**settings), graph)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("each", "visible", "words"),
    [
        (1, None, ["0", "1", "2", "3"]),
        (2, None, ["0,1", "2,3"]),
        (3, None, ["0,1,2"]),
        (0.5, None, ["0", "0", "1", "1", "2", "2", "3", "3"]),
        (1, "3, 1", ["3", "1"]),
        (0.5, "2", ["2", "2"]),
        (0.4, "0,1", ["0", "0", "1", "1"]),
        (0.7, "0,1", ["0", "1"]),
        (1 / 3, "2", ["2", "2", "2"]),
    ],
)
@pytest.mark.parametrize(("backend", "variable"), [("CUDA", CUDA), ("ROCm", HIP), ("Vulkan", VULKAN)])
def test_each_worker_sees_gpus_of_its_own(monkeypatch, backend, variable, each, visible, words):
    if visible is not None:
        monkeypatch.setenv(variable, visible)
    shares = shared(Finds(gpus(backend, 4)), gpus=each)
    assert workers_here(ClusterSettings(gpus=each), shares) == len(words)
    assert [shares.environment(place) for place in range(len(words))] == [{variable: word} for word in words]


def test_a_backend_that_sees_the_same_gpus_is_kept_from_them():
    shares = shared(Finds(gpus("CUDA", 2) + gpus("Vulkan", 2)), gpus=1)
    assert shares.environment(1) == {CUDA: "1", VULKAN: ""}


def test_servers_are_kept_from_workers_that_have_gpus():
    assert shared(Finds(gpus("CUDA", 1) + gpus("RPC", 1)), gpus=1).environment(0) == {CUDA: "0", SERVERS: ""}


def test_a_gpu_in_the_processor_counts_only_where_there_is_no_other():
    inside = gpus("Vulkan", 1, shares_memory=True)
    assert shared(Finds(gpus("CUDA", 1) + inside), gpus=1).numbers == ("0",)
    assert shared(Finds(inside), gpus=1).variable == VULKAN
    with pytest.raises(ConfigError, match="2 workers would need 2 GPUs, and here are 1: CUDA0"):
        shared(Finds(gpus("CUDA", 1) + inside), gpus=1, workers=2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"gpus": 1, "workers": 4},
            r"cluster.gpus=1: 4 workers would need 4 GPUs, and here are 3: CUDA0 \(a card, 1.0 ",
        ),
        ({"gpus": 1, "workers": 4}, r"CUDA2 \(a card, 3.0 GiB\); start no more than 3 workers \(cluster.workers\)"),
        ({"gpus": 2, "workers": 2}, "2 workers would need 4 GPUs, .* start no more than 1 workers"),
        ({"gpus": 0.5, "workers": 7}, "7 workers would need 4 GPUs, .* start no more than 6 workers"),
        ({"gpus": 0.4, "workers": 7}, "7 workers would need 4 GPUs, .* start no more than 6 workers"),
        ({"gpus": 1.5}, "two workers would share a GPU; it is a whole number, or a part of one"),
        ({"gpus": 4}, "1 worker would need 4 GPUs, .* leave it out, or ask for fewer"),
    ],
)
def test_more_than_there_are_is_refused_with_the_list(settings, said):
    with pytest.raises(ConfigError, match=said):
        shared(Finds(gpus("CUDA", 3)), **settings)


def test_without_any_gpu_it_is_refused():
    with pytest.raises(ConfigError, match="1 worker would need 1 GPUs, and here are 0: none; leave it out"):
        shared(Finds([]), gpus=1)


@pytest.mark.parametrize(
    ("settings", "visible", "words"),
    [
        ({"gpus": 1}, None, ["0", "1"]),
        ({"gpus": 2, "workers": 2}, None, ["0,1", "2,3"]),
        ({"gpus": 0.5, "workers": 4}, "GPU-a, GPU-b", ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]),
        ({"gpus": 1}, "2", ["2"]),
    ],
)
def test_where_no_operator_tells_of_gpus_they_are_shared_out_by_number(monkeypatch, settings, visible, words):
    """As those of users that compute by other libraries than llama.cpp."""
    if visible is not None:
        monkeypatch.setenv(CUDA, visible)
    for op in (Passes(), Tells()):
        shares = shared(op, **settings)
        assert workers_here(ClusterSettings(**settings), shares) == len(words)
        assert [shares.environment(place) for place in range(len(words))] == [{CUDA: word} for word in words]


def test_more_than_the_variable_has_are_refused_where_no_operator_tells_of_gpus(monkeypatch):
    monkeypatch.setenv(CUDA, "2,3")
    with pytest.raises(ConfigError, match="3 workers would need 3 GPUs, and CUDA_VISIBLE_DEVICES=2,3 has 2"):
        shared(Passes(), gpus=1, workers=3)


def test_a_backend_without_a_variable_is_refused():
    with pytest.raises(ConfigError, match=r"GPUs of Metal it sees .*; this works with CUDA, ROCm, Vulkan\. Leave"):
        shared(Finds(gpus("Metal", 1)), gpus=1)


def test_numbers_that_mean_other_gpus_are_refused_until_they_are_given(monkeypatch):
    """Vulkan's numbers count what llama.cpp leaves out, such as a GPU in the processor: 0 here."""
    op = Finds(gpus("Vulkan", 2), first=1)
    with pytest.raises(ConfigError, match=f"with {VULKAN}=0,1 a process sees Vulkan0 .*; set {VULKAN} to the numbers"):
        shared(op, gpus=1)
    monkeypatch.setenv(VULKAN, "1,2")
    assert shared(op, gpus=1).numbers == ("1", "2")


def test_words_that_name_others_than_are_found_are_refused(monkeypatch):
    op = Finds(gpus("CUDA", 2))
    monkeypatch.setattr(op, "gpus", lambda environment: gpus("CUDA", 2))
    monkeypatch.setenv(CUDA, "GPU-a")
    with pytest.raises(ConfigError, match="with CUDA_VISIBLE_DEVICES=GPU-a a process sees none"):
        shared(op, gpus=1)
    monkeypatch.setenv(CUDA, "GPU-a,GPU-b")
    assert shared(op, gpus=1).environment(1) == {CUDA: "GPU-b"}


@pytest.mark.parametrize("settings", [{}, {"gpus": 0}, {"gpus": 1, "pool": "ray"}, {"workers": 5}])
def test_nothing_is_asked_where_none_are_shared_out(settings):
    op = Finds(gpus("CUDA", 2))
    assert shared(op, **settings) is None
    assert op.asked == 0
    assert workers_here(ClusterSettings(**settings), None) == settings.get("workers", USUAL_WORKERS)
