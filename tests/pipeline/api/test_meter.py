"""Three clocks that add up to the wall clock, on a clock that the test sets. A number takes two places: where it is
registered and where it is counted; all that shows numbers follows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.api.meter import RowCounts, StageClock, StageMeter, StageState
from pipeline.api.numbers import Number, added, counted
from pipeline.api.protocols import Runtime
from pipeline.api.records import Batch, Output
from pipeline.results.reader import read_results
from pipeline.results.report.page import page
from pipeline.settings import NodeSettings
from tests.pipeline.monitor.test_prometheus import parsed
from tests.pipeline.ops import Passes
from tests.pipeline.squares import job, run


class FakeClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_interval_counts_for_the_state_it_was_in():
    fake = FakeClock()
    clock = StageClock(fake)
    clock.start()
    fake.now += 1
    with clock.during(StageState.STARVED):
        fake.now += 2
        with clock.during(StageState.BLOCKED):
            fake.now += 4
    fake.now += 8
    clock.stop()
    fake.now += 16
    assert clock.seconds() == {"busy_s": 9, "starved_s": 2, "blocked_s": 4, "wall_s": 15}


def test_a_clock_that_does_not_run_counts_nothing():
    fake = FakeClock()
    clock = StageClock(fake)
    with clock.during(StageState.STARVED):
        fake.now += 5
    assert set(clock.seconds().values()) == {0.0}


@given(st.lists(st.tuples(st.sampled_from(StageState), st.integers(0, 1000), st.booleans())))
def test_the_three_clocks_add_up_to_the_wall_clock_at_any_moment(steps):
    fake = FakeClock()
    clock = StageClock(fake)
    clock.start()
    for state, seconds, look in steps:
        clock.enter(state)
        fake.now += seconds
        if look:
            found = clock.seconds()
            assert found["busy_s"] + found["starved_s"] + found["blocked_s"] == found["wall_s"]
    assert clock.seconds()["wall_s"] == fake.now - 100


def test_counts_carry_the_rows_that_wait():
    meter = StageMeter("node", FakeClock())
    meter.queue_rows = lambda: 7
    meter.rows_in = 3
    assert (meter.counts()["queue_rows"], meter.counts()["rows_in"], meter.counts()["rejected"]) == (7, 3, 0)


def test_what_workers_tell_of_rows_comes_with_their_counts():
    meter = StageMeter("node", FakeClock())
    for _ in range(2):
        meter.add(3, RowCounts(rows_in=2, rows_out=2, told=Counter(odd=1)))
    assert (meter.rows_in, meter.take(3).told) == (4, {"odd": 2})


@dataclass
class Flock:
    """What Shepherd counts."""

    sheep: int = counted("sheep that went by", "sheep")
    told: int = 0


class Shepherd(Passes):
    """Counts rows."""

    def open(self, runtime: Runtime) -> None:
        self.flock = Flock()
        runtime.numbers(self.flock, "flock")
        self.watch = runtime.meter.histogram("watch", "Watches of a batch.")
        self.wool = runtime.cache("wool", "wool in stock", "fleeces")

    def process(self, batch: Batch) -> Iterable[Output]:
        self.flock.sheep += batch.num_rows
        self.watch.add(0.003)
        self.wool.queries += 2
        self.wool.hits += 1
        yield batch


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A finished run whose operator has numbers of its own, beside the file for Prometheus."""
    here = tmp_path_factory.mktemp("numbers")
    settings = job(here / "out", prometheus_file=str(here / "out.prom"))
    settings.nodes["count"] = NodeSettings({"_target_": f"{__name__}.Shepherd"}, "numbers")
    settings.nodes["square"].inputs = ["count"]
    run(settings)
    return here / "out"


def test_a_number_is_shown_everywhere_once_it_is_registered(out):
    status = json.loads((out / "status.json").read_text())
    assert status["totals"]["count/sheep"] == 45
    assert status["numbers"]["sheep"] == {"about": "sheep that went by", "unit": "sheep", "group": "flock"}
    batches = status["counters"]["count"]["batches"]
    assert status["caches"]["count"] == {"wool": {"queries": 2 * batches, "hits": batches}}
    assert status["histograms"]["count"]["watch"]["buckets"] == {"0.005": batches}
    (totals,) = pl.read_parquet(out / "metrics/run.parquet")["totals"]
    ended = json.loads(totals)
    assert min(each.pop("peak_memory_mb") for each in (ended, status["totals"])) > 1
    assert ended == status["totals"]
    assert {"count/sheep", "count/wool_hits"} <= ended.keys()
    samples, types = parsed(out.with_suffix(".prom").read_text())
    assert samples["llama_batch_sheep_total", 'job="squares",node="count"'] == 45
    assert samples["llama_batch_cache_hits_total", 'job="squares",node="count",cache="wool"'] == batches
    assert types["llama_batch_watch_seconds"] == "histogram"
    assert "llama_batch_wool_hits_total" not in types  # it has a metric already
    assert types["llama_batch_peak_memory_mb"] == "gauge"
    text = page(read_results(out))
    assert "sheep that went by" in text
    assert "45 sheep" in text
    assert "most memory of a process, of the run or of a worker" in text
    assert "wool in stock" in text
    assert "watch: Watches of a batch." in text


@pytest.mark.parametrize("name", ["Sheep", "sheep dogs", "9", ""])
def test_a_name_that_files_could_not_have_is_refused(tmp_path, name):
    runtime = Runtime.__new__(Runtime)
    with pytest.raises(ValueError, match="a number's name has a to z, 0 to 9 and _ alone"):
        runtime.number(name, Number("sheep"), lambda: 0)


@given(st.lists(st.dictionaries(st.sampled_from("xyz"), st.integers(-99, 99)), max_size=4))
def test_sums_have_every_key_and_do_not_depend_on_the_order(each):
    assert added(*each) == added(added(*each[1:]), *each[:1])
    assert added(*({"n": one} for one in each)).get("n", {}) == added(*each)


@given(st.lists(st.integers(-99, 99), min_size=1))
def test_of_peaks_the_largest_counts(each):
    assert added(*({"node/peak_mb": one} for one in each)) == {"node/peak_mb": max(each)}
