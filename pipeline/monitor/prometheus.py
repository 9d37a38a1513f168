"""Prometheus metrics: a file for node_exporter's textfile collector, with the values of status.json.

Counters are of the run over all its attempts. They fall only when the run is begun anew, which Prometheus takes for a
restart. Format: version 0.0.4 of prometheus.io/docs/instrumenting/exposition_formats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.api.histogram import BOUNDS_S
from pipeline.api.meter import CLOCKS
from pipeline.run_dir.state import RunStatus

PREFIX = "llama_batch_"
COUNTERS = {
    "rows_in": ("stage_rows_in_total", "Rows that a stage took from its inputs."),
    "rows_out": ("stage_rows_out_total", "Rows that a stage passed on or wrote."),
    "rejected": ("stage_rows_rejected_total", "Rows that a stage took out."),
    "batches": ("stage_batches_total", "Batches that a stage took in, or calls of the model."),
    "tokens_in": ("prompt_tokens_total", "Prompt tokens of rows that drew their first token."),
    "tokens_out": ("completion_tokens_total", "Completion tokens drawn."),
}
"""Metric name and help text by key of the counters in status.json."""
CACHES = {
    "queries": (
        "cache_queries_total",
        "Looked up in a cache: prompt tokens (prefix), or completions (the others).",
    ),
    "hits": ("cache_hits_total", "What of these was there."),
}
"""Metric name and help text by key of the caches in status.json."""
WORKERS = {
    "workers": "Workers that have begun in the last attempt, replacements among them.",
    "workers_wanted": "Workers that the run asked for.",
    "workers_open": "Workers that are open now.",
    "workers_lost": "Workers that have ended before the run.",
    "workers_stalled": "Workers that were ended since nothing moved in them.",
    "pieces": "Pieces that were sent to workers.",
    "pieces_redone": "Pieces that were sent again since their worker ended.",
    "rows_given_up": "Rows that ended every worker that computed them.",
}
"""Help text by key of the counts of workers in status.json; the metric is called cluster_KEY."""
HISTOGRAMS = {
    "prefill_call": "Calls of the model that compute prompts.",
    "decode_call": "Calls of the model that only decode.",
    "token": "Decode steps, once for each row that drew a token in it.",
    "first_token": "Time of completions from the slot to the first token.",
}
"""Help text by name of the histograms in status.json; the metric is called NAME_seconds."""
Samples = list[tuple[str, dict[str, Any], float]]
"""Suffix of the name, labels and value of each sample of a metric family."""


def check_prometheus_file(path: str | None) -> None:
    """Check before a run that the file can be created.

    Raises:
        ConfigError: its directory does not exist.
    """
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise ConfigError(
            f"prometheus_file={path}: there is no directory {Path(path).parent}; make it, or name the one that"
            " node_exporter was given as --collector.textfile.directory"
        )


def exposition(status: Mapping[str, Any]) -> str:
    """Return the text of the file. `status`: the values of status.json."""
    lines = []
    for name, kind, help_, samples in _families(status):
        lines += [f"# HELP {PREFIX}{name} {help_}", f"# TYPE {PREFIX}{name} {kind}"] if samples else []
        for suffix, labels, value in samples:
            shown = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in labels.items())
            lines.append(f"{PREFIX}{name}{suffix}{{{shown}}} {float(value):.15g}")
    return "".join(f"{line}\n" for line in lines)


def _families(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Samples]]:
    """Yield name, type, help and samples of each metric family."""
    job = {"job": status["job"]}
    counters = status["counters"]
    for key, (name, help_) in COUNTERS.items():
        yield name, "counter", help_, [("", {**job, "node": node}, values[key]) for node, values in counters.items()]
    for key, (name, help_) in CACHES.items():
        uses = [(node, cache, use[key]) for node, caches in status["caches"].items() for cache, use in caches.items()]
        samples: Samples = [("", {**job, "node": node, "cache": cache}, value) for node, cache, value in uses]
        yield name, "counter", help_, samples
    for what, help_ in HISTOGRAMS.items():
        found = {node: times[what] for node, times in status["histograms"].items() if what in times}
        samples = [one for node, times in found.items() for one in _histogram({**job, "node": node}, times)]
        yield f"{what}_seconds", "histogram", help_, samples
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
    for key, help_ in WORKERS.items():
        count = status.get("workers", {}).get(key)
        yield f"cluster_{key}", "gauge", help_, [] if count is None else [("", job, count)]
    for name, help_, value in _gauges(status):
        yield name, "gauge", help_, [] if value is None else [("", job, value)]


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


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
