"""Prometheus metrics: a file for node_exporter's textfile collector, with the values of status.json.

Counters are of the run over all its attempts. They fall only when the run is begun anew, which Prometheus takes for a
restart. Format: version 0.0.4 of prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pipeline.api.meter import BOUNDS_S, CLOCKS, COUNTS
from pipeline.api.numbers import is_peak, number_of
from pipeline.api.runtime import OF_WORKERS
from pipeline.run_dir.state import RunStatus

PREFIX = "llama_batch_"
Samples = list[tuple[str, dict[str, Any], float]]
"""Suffix of the name, labels and value of each sample of a metric family."""


def exposition(status: Mapping[str, Any]) -> str:
    """Return the text of the file. `status`: the values of status.json."""
    lines: dict[str, list[str]] = {}
    for name, kind, help_, samples in _families(status):
        if samples and name not in lines:  # an operator may register a name that is taken
            lines[name] = [f"# HELP {PREFIX}{name} {_escaped(help_)}", f"# TYPE {PREFIX}{name} {kind}"]
            for suffix, labels, value in samples:
                shown = ",".join(f'{key}="{_escaped(str(text), quotes=True)}"' for key, text in labels.items())
                lines[name].append(f"{PREFIX}{name}{suffix}{{{shown}}} {float(value):.15g}")
    return "".join(f"{line}\n" for of_family in lines.values() for line in of_family)


def _families(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Samples]]:
    """Yield name, type, help and samples of each metric family."""
    job = {"job": status["job"]}
    counters, numbers = status["counters"], status.get("numbers", {})  # an earlier version kept none of these
    for key, (metric, help_) in COUNTS.items():
        if metric is not None:
            each = [("", {**job, "node": node}, values[key]) for node, values in counters.items()]
            yield metric, "counter", help_, each
    looked_up = "Looked up in a cache: prompt tokens (prefix), or completions (the others)."
    for key, help_ in (("queries", looked_up), ("hits", "What of these was there.")):
        uses = [(node, cache, use[key]) for node, caches in status["caches"].items() for cache, use in caches.items()]
        samples: Samples = [("", {**job, "node": node, "cache": cache}, value) for node, cache, value in uses]
        yield f"cache_{key}_total", "counter", help_, samples
    for what in dict.fromkeys(what for times in status["histograms"].values() for what in times):
        by_node = {node: times[what] for node, times in status["histograms"].items() if what in times}
        samples = [sample for node, times in by_node.items() for sample in _histogram({**job, "node": node}, times)]
        yield f"{what}_seconds", "histogram", number_of(status, what).about, samples
    seconds: Samples = [
        ("", {**job, "node": node, "state": clock.removesuffix("_s")}, values[clock])
        for node, values in counters.items()
        for clock in CLOCKS
    ]
    yield "stage_seconds_total", "counter", "Seconds in which a stage worked, starved or was blocked.", seconds
    queues = [({**job, "node": n["name"]}, n) for n in status["nodes"] if n["queue_capacity"]]
    for key, help_ in (("queue_rows", "Rows that wait for a stage."), ("queue_capacity", "Rows that may wait.")):
        yield key, "gauge", help_, [("", labels, node[key]) for labels, node in queues]
    kinds = (("error", "errors"), ("filtered", "filtered"))
    rejects: Samples = [("", {**job, "kind": kind}, status[key]) for kind, key in kinds]
    yield "rows_rejected", "gauge", "Rows of the run that were rejected.", rejects
    for key, count in status.get("workers", {}).items():
        samples = [("", job, count)] if key in numbers or not numbers else []
        yield f"cluster_{key}", "gauge", number_of(status, key).about, samples
    for name, help_, value in _gauges(status):
        yield name, "gauge", help_, [] if value is None else [("", job, value)]
    totals: dict[str, Samples] = {}
    for key, value in status.get("totals", {}).items():
        node, _, name = key.rpartition("/")
        if name in numbers and not key.startswith(OF_WORKERS):
            totals.setdefault(name, []).append(("", {**job, **({"node": node} if node else {})}, value))
    for name, samples in totals.items():
        shown = (name, "gauge") if is_peak(name) else (f"{name}_total", "counter")
        yield *shown, number_of(status, name).about, samples


def _histogram(labels: Mapping[str, Any], times: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield the samples of one histogram: cumulative counts by upper bound, sum and count."""
    count = 0
    for bound in BOUNDS_S:
        count += times["buckets"].get(str(bound), 0)
        yield "_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else bound}, count
    yield "_sum", {**labels}, times["sum_s"]
    yield "_count", {**labels}, count


def _gauges(status: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None]]:
    """Yield name, help and value of each gauge of the whole run; the value is None if unknown."""
    running = status["state"] == RunStatus.RUNNING
    yield "running", "1 while an attempt runs; it stays 1 when that is killed, see updated_timestamp_seconds.", running
    updated = datetime.fromisoformat(status["updated_at"]).timestamp()
    yield "updated_timestamp_seconds", "When this was written.", updated
    yield "attempt", "Number of the last attempt.", status["attempt"]
    yield "exit_code", "Of the last attempt, when it has ended.", status["exit_code"]
    yield "rows_finished", "Rows of the input that are finished.", status["rows"]
    yield "rows_expected", "Rows of the input, if that is known.", status["rows_total"]
    yield "rows_committed", "Rows of the input that are safe in data/ or rejects/.", status["committed_rows"]
    yield "eta_seconds", "Seconds to the end, if that is known.", status["eta_s"] if running else None


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
