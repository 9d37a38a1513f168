"""What a graph takes of memory is added up, and refused, before anything is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.groups import EngineFields
from pipeline.api.identity import DeviceMemory
from pipeline.api.protocols import MemoryNeed, Scope, UsesModel
from pipeline.api.records import Batch
from pipeline.config.build import build_graph
from pipeline.dry_run.estimate import plan_lines
from pipeline.runs.memory_check import MemoryNeeds
from pipeline.settings import ClusterSettings, JobSettings, NodeSettings
from pipeline.system.machine import free_memory
from tests.pipeline.ops import Passes
from tests.pipeline.squares import OPS, job, run

MIB = 1 << 20


class Large(Passes, UsesModel):
    """Changes nothing, and says that it takes 300 MiB, 100 of which it shares with others of its kind."""

    opened = 0

    def __init__(self, extra_mib: int = 0) -> None:
        self.extra_mib = extra_mib

    def process(self, batch: Batch):
        yield batch

    def memory_needs(self):
        yield MemoryNeed("shared", "what all share", 100 * MIB)
        yield MemoryNeed(id(self), f"own things of {200 + self.extra_mib} MiB", (200 + self.extra_mib) * MIB)

    def open(self, runtime):
        type(self).opened += 1


class Cached(Large):
    """The same, with a cache that may take 900 MiB."""

    def memory_needs(self):
        yield from super().memory_needs()
        yield MemoryNeed("cache", "a cache", 900 * MIB, at_most=True)


class OfWorkers(Large):
    """The same, with a model that workers may have, whose pages they share."""

    scope = Scope.MODEL

    def memory_needs(self):
        yield from (replace(need, shared=need.key == "shared") for need in super().memory_needs())


class OnDevice(OfWorkers):
    """The same, and its own things and the shared ones are on a device with 2,000 MiB, of which `free_mib` are free."""

    def __init__(self, extra_mib: int = 0, free_mib: int = 2000) -> None:
        super().__init__(extra_mib)
        self.free_mib = free_mib

    def memory_needs(self):
        device = DeviceMemory("CUDA0", self.free_mib * MIB, 2000 * MIB)
        yield MemoryNeed("host", "the table of tokens", 50 * MIB)
        yield from (replace(need, device=device, shared=False) for need in super().memory_needs())


def two(directory: Path, limit: int | None, extra_mib: int = 0) -> JobSettings:
    """A job with two such steps: 500 MiB."""
    settings = job(directory, runtime=EngineFields(memory_limit_bytes=limit))
    step = {"_target_": "tests.pipeline.runs.test_memory_check.Large", "extra_mib": extra_mib}
    settings.nodes["square"] = NodeSettings(step, "numbers")
    settings.nodes["again"] = NodeSettings(step, "square")
    settings.nodes["write"] = NodeSettings({"_target_": f"{OPS}.Parquet"}, "again")
    return settings


def test_a_graph_above_the_limit_is_refused_with_the_figures_and_nothing_is_opened_or_written(tmp_path):
    Large.opened = 0
    with pytest.raises(ConfigError) as refusal:
        run(two(tmp_path / "out", 500 * MIB - 1))
    assert refusal.value.exit_code is ExitCode.CONFIG
    assert Large.opened == 0
    assert not (tmp_path / "out").exists()
    said = str(refusal.value)
    assert "at least 500 MiB" in said
    assert "runtime.memory_limit" in said
    assert said.count("own things of 200 MiB") == 2
    assert said.count("what all share") == 1
    assert "runtime.slots" in said


def test_a_graph_at_the_limit_runs(tmp_path):
    assert run(two(tmp_path / "out", 500 * MIB)) is ExitCode.DONE


def test_what_a_cache_may_take_counts_for_the_limit_and_not_among_what_is_taken_at_least(tmp_path):
    cached = {"_target_": "tests.pipeline.runs.test_memory_check.Cached"}
    settings = two(tmp_path / "out", 1 << 30)
    settings.nodes["square"].op |= cached
    said = "\n".join(plan_lines(settings, build_graph(settings)))
    assert "memory, at least: 500 MiB, and at most 900 MiB more (runtime.memory_limit=1,024 MiB)" in said
    assert "900 MiB  at most: a cache" in said
    with pytest.raises(ConfigError, match="takes at least 500 MiB, and at most 900 MiB more of memory, and runtime"):
        run(settings)


def test_without_a_limit_it_runs_and_the_log_warns_where_memory_is_short(tmp_path):
    assert run(two(tmp_path / "small", None)) is ExitCode.DONE
    assert run(two(tmp_path / "huge", None, extra_mib=free_memory() // MIB)) is ExitCode.DONE
    assert "the graph takes at least" not in (tmp_path / "small/run.log").read_text()
    assert "the graph takes at least" in (tmp_path / "huge/run.log").read_text()


def test_a_plan_says_what_is_taken_and_of_how_much(tmp_path):
    settings = two(tmp_path / "out", 1 << 30)
    said = "\n".join(plan_lines(settings, build_graph(settings)))
    assert "memory, at least: 500 MiB (runtime.memory_limit=1,024 MiB)" in said
    assert "100 MiB  what all share" in said
    assert "at most" not in said
    plain = job(tmp_path / "out")
    assert "memory" not in "\n".join(plan_lines(plain, build_graph(plain)))


def test_workers_have_contexts_of_their_own_and_the_pages_of_the_model_once(tmp_path):
    settings = two(tmp_path / "out", 899 * MIB)
    settings.nodes["square"].op["_target_"] = "tests.pipeline.runs.test_memory_check.OfWorkers"
    assert run(settings) is ExitCode.DONE, "500 MiB without workers"
    settings.cluster = ClusterSettings(pool="processes", workers=2)
    with pytest.raises(ConfigError) as refusal:
        run(replace(settings, output_dir=str(tmp_path / "other")))
    said = str(refusal.value)
    assert "at least 900 MiB" in said
    assert said.count("400 MiB  2 x own things of 200 MiB") == 2
    assert "use cluster.workers=1, or use fewer runtime.slots" in said.lower()


def on_device(
    directory: Path, cluster: ClusterSettings | None = None, **of_node: int
) -> tuple[JobSettings, MemoryNeeds]:
    """A job with such a step, and what it needs."""
    settings = job(directory, runtime=EngineFields(memory_limit_bytes=100 * MIB))
    settings.nodes["square"] = NodeSettings(
        {"_target_": "tests.pipeline.runs.test_memory_check.OnDevice", **of_node}, "numbers"
    )
    settings.nodes["write"] = NodeSettings({"_target_": f"{OPS}.Parquet"}, "square")
    settings.cluster = cluster
    return settings, MemoryNeeds(settings, build_graph(settings))


def test_memory_of_a_device_is_a_sum_of_its_own_which_no_limit_of_the_machine_holds_for(tmp_path):
    _, needs = on_device(tmp_path / "out")
    needs.check()
    assert needs.warning() is None
    assert needs.plan_lines() == [
        "memory, at least: 50 MiB (runtime.memory_limit=100 MiB)",
        "       50 MiB  the table of tokens",
        "memory of CUDA0, at least: 300 MiB (2,000 MiB of 2,000 MiB free)",
        "      100 MiB  what all share",
        "      200 MiB  own things of 200 MiB",
    ]


def test_a_device_that_has_too_little_refuses_and_one_of_which_too_little_is_free_warns(tmp_path):
    _, short = on_device(tmp_path / "short", free_mib=299)
    short.check()
    said = short.warning() or ""
    assert "the graph takes at least 300 MiB of the memory of CUDA0 and 299 MiB are free" in said
    assert "fewer model.gpu_layers" in said
    settings, none = on_device(tmp_path / "out", extra_mib=1701)
    with pytest.raises(ConfigError, match="2,001 MiB of the memory of CUDA0 and it has 2,000 MiB; use fewer model"):
        none.check()
    with pytest.raises(ConfigError, match="memory of CUDA0"):
        run(settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("gpus", "size"), [(0, 900), (1, 300), (0.5, 600), (0.7, 300), (0.1, 900)])
def test_workers_have_all_of_it_for_themselves_on_devices_that_they_share_or_have(tmp_path, gpus, size):
    cluster = ClusterSettings(pool="processes", workers=3, gpus=gpus)
    lines = on_device(tmp_path, cluster)[1].plan_lines()
    assert f"memory of CUDA0, at least: {size} MiB (2,000 MiB of 2,000 MiB free)" in lines
