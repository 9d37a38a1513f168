"""The settings of a job as dataclasses; pipeline.config.compose makes them of conf/, the job file and the command
line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.api.by_batch import OnError
from pipeline.api.errors import ConfigError
from pipeline.api.removed import removed
from pipeline.system.deadlines import ENDING_S, LEAST_S

PROGRESS = ("auto", "log", "json", "none")
PLAN = "plan"
OUTPUTS = "outputs"
LEAST_CHUNK_ROWS = 16
CHUNKS_OF_A_TARGET = 8
"""Minimum number of chunks until a target is reached, so that a run makes few rows too many."""
POOLS = ("ray", "processes")
REFUSE = "refuse"
OTHER_BITS = (REFUSE, "allow")
GROUPS = ("data", "model", "sampling", "decode", "runtime", "output", "store", "bench")
"""Config groups; conf/schemas.yaml names their dataclasses, which belong to the operators."""


@dataclass
class NodeSettings:
    """One entry of `nodes`.

    Args:
        op: `_target_` names the operator's class; the other keys are its constructor's arguments.
        inputs: name of the node that it reads, or a list of names; empty for the source.
        capacity_rows: rows that may wait on each input.
        on_error: fail (an exception of the operator ends the run) or reject (the rows that cause it are rejected).
        step: name of the step that it was made for; null for a node of the job's own.
    """

    op: dict[str, Any] = field(default_factory=dict)
    inputs: Any = field(default_factory=list)
    capacity_rows: int = 1024
    on_error: str = OnError.FAIL.value
    step: str | None = None

    def __post_init__(self) -> None:
        _check(self, "on_error", self.on_error in list(OnError), f"it is one of {', '.join(OnError)}")
        names = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        are_names = isinstance(names, list) and all(isinstance(n, str) for n in names)
        _check(self, "inputs", are_names, "it is the name of a node or a list of names")
        self.inputs = names


@dataclass
class HookSettings:
    """A command that is notified when an attempt has ended. Its failure does not change the exit code.

    Args:
        command: a program and its arguments, run without a shell, with a JSON summary on its standard input.
        timeout_s: time limit of the command, in seconds.
    """

    command: list[str] = field(default_factory=list)
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        _check(self, "on_finish.timeout_s", self.timeout_s > 0, "it is above 0 seconds")
        _check(self, "on_finish.command", "" not in self.command[:1], "its first element is a program")


@dataclass
class TargetSettings:
    """A number of rows to accept, and the budgets for it (`target`). Off unless `accepted_rows` is given.

    Args:
        accepted_rows: rows that are to reach the sink. The source is read round after round until then.
        sink: the node whose rows count, for a graph with several sinks.
        chunk_rows: source rows per chunk; null: accepted_rows / 8, at least 16 and at most the job's chunk_rows. A run
            makes up to about one chunk too many.
        max_rows: limit on source rows, over all rounds.
        max_rounds: limit on rounds; null for none.
        max_tokens: limit on completion tokens, over all attempts. Checked at the end of each chunk.
        max_minutes: limit on running time, over all attempts. Checked at the end of each chunk.
        max_cost: limit on money spent at servers, by `model.price_per_million`, over all attempts. Checked likewise.
    """

    accepted_rows: int | None = None
    sink: str | None = None
    chunk_rows: int | None = None
    max_rows: int | None = None
    max_rounds: int | None = 100
    max_tokens: int | None = None
    max_minutes: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for key in ("accepted_rows", "chunk_rows", "max_rows", "max_rounds", "max_tokens"):
            value = getattr(self, key)
            _check(self, f"target.{key}", value is None or value >= 1, "it is 1 or more, or null")
        for key in ("max_minutes", "max_cost"):
            value = getattr(self, key)
            _check(self, f"target.{key}", value is None or value > 0, "it is above 0, or null")
        if self.accepted_rows is None:
            need = "it needs target.accepted_rows=N, the rows wanted (data.limit=N takes the first N of the input)"
            for other in fields(self):
                _check(self, f"target.{other.name}", getattr(self, other.name) == other.default, need)

    def rows_of_chunk(self, chunk_rows: int) -> int:
        """Return source rows per chunk under this target. `chunk_rows`: the job's setting."""
        if self.chunk_rows is not None:
            return self.chunk_rows
        return min(chunk_rows, max(LEAST_CHUNK_ROWS, (self.accepted_rows or 0) // CHUNKS_OF_A_TARGET))


@dataclass
class ClusterSettings:
    """Workers that compute the nodes around a model (`cluster`); see docs/cluster.md.

    None of it is fingerprinted: a run gives the same bytes with any workers and without.

    Args:
        pool: what starts workers: ray or processes (of this machine).
        workers: how many; null: 2, with Ray as many as fit on the cluster when the run begins.
        address: of Ray: auto (the cluster of this machine, or RAY_ADDRESS), local (starts one here) or host:port.
        cpus: CPUs that Ray keeps for a worker; null: runtime.threads, else all of its node shared by its workers.
        gpus: GPUs that Ray keeps for a worker.
        memory: bytes that Ray keeps for a worker; null: what its contexts take, by the memory check.
        resources: other resources of Ray that a worker takes, by name.
        piece_rows: rows that a worker is sent at a time; null: twice runtime.slots.
        in_flight: pieces that a worker has at a time. With too few its slots run empty between two.
        poison_after: workers that may end with a piece before it is computed alone, and before a row is given up.
        start_timeout_s: seconds to wait for the first worker.
    """

    pool: str = "processes"
    workers: int | None = None
    address: str = "auto"
    cpus: float | None = None
    gpus: float = 0.0
    memory: int | None = None
    resources: dict[str, float] = field(default_factory=dict)
    piece_rows: int | None = None
    in_flight: int = 3
    poison_after: int = 2
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _check(self, "cluster.pool", self.pool in POOLS, f"it is one of {', '.join(POOLS)}")
        for key in ("workers", "piece_rows", "in_flight", "poison_after"):
            value = getattr(self, key)
            _check(self, f"cluster.{key}", value is None or value >= 1, "it is 1 or more")
        for key in ("cpus", "memory", "start_timeout_s"):
            value = getattr(self, key)
            _check(self, f"cluster.{key}", value is None or value > 0, "it is above 0")
        _check(self, "cluster.gpus", self.gpus >= 0, "it is 0 or more")
        client = self.address.startswith("ray://")
        need = "the driver has to run on a node of the cluster: use `ray job submit`, or start it there"
        _check(self, "cluster.address", not client, need)


@dataclass
class JobSettings:
    """A whole job.

    Args:
        name: of the job; its results go to outputs/<name> unless output_dir is set.
        steps: what is asked of a model, by name; operators.steps.step.Step says what each may have. They become nodes.
        nodes: the graph.
        data, model, sampling, decode, runtime, output, store, bench: the config groups, for `${...}` in nodes.
        seed: random seed.
        chunk_rows: source rows per chunk, the unit of commit.
        max_open_chunks: chunks that may be begun and not committed.
        cluster: workers in other processes or on other machines; null for none.
        max_error_rate: share of source rows that may be rejected as errors; above it the exit code is 3.
        other_bits: what a resume does with another build of llama.cpp, on another device or with other bits than those
            that began the run: refuse, or allow.
        output_dir: null for outputs/<name>, relative to the current directory.
        overwrite: replace the results of another configuration.
        dry_run: true checks everything, loads the model, computes for at most half a minute and prints an estimate of
            the run; plan does the checks that need no model and prints the nodes. Both write nothing.
        show: graph prints the graph as Mermaid and stops.
        now: time for `${now:...}`, ISO 8601; null for the start of the run.
        on_finish: notification at the end of an attempt.
        prometheus_file: path of a file for node_exporter's textfile collector; null for none.
        target: repeat the input until enough rows are accepted.
        metrics_interval_s: seconds between two rows of a stage in metrics/stages.parquet.
        progress: log (a line of key=value pairs every ten seconds), json (one JSON object per line for these and all
            other messages on stderr) or none; auto is a progress line on a terminal and log elsewhere.
        report: write report.html at the end of each attempt.
    """

    name: str = "job"
    steps: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, NodeSettings] = field(default_factory=dict)
    data: Any = None
    model: Any = None
    sampling: Any = None
    decode: Any = None
    runtime: Any = None
    output: Any = None
    store: Any = None
    bench: Any = None
    seed: int = 0
    chunk_rows: int = 4096
    max_open_chunks: int = 8
    cluster: Any = None
    max_error_rate: float = 0.01
    other_bits: str = REFUSE
    output_dir: str | None = None
    overwrite: bool = False
    dry_run: Any = False  # false, true or plan
    show: str | None = None
    now: str | None = None
    on_finish: HookSettings = field(default_factory=HookSettings)
    prometheus_file: str | None = None
    target: TargetSettings = field(default_factory=TargetSettings)
    metrics_interval_s: float = 1.0
    progress: str = "auto"
    report: bool = True

    def __post_init__(self) -> None:
        modes = "it is true (estimate, with the model), plan (without) or false"
        is_prom = self.prometheus_file is None or self.prometheus_file.endswith(".prom")
        is_file_name = self.name not in ("", ".", "..") and Path(self.name).name == self.name
        _check(self, "chunk_rows", self.chunk_rows >= 1, "it is 1 or more")
        _check(self, "max_open_chunks", self.max_open_chunks >= 1, "it is 1 or more")
        _check(self, "max_error_rate", 0 <= self.max_error_rate <= 1, "it is a share, 0 to 1")
        _check(self, "other_bits", self.other_bits in OTHER_BITS, f"it is one of {', '.join(OTHER_BITS)}")
        _check(self, "metrics_interval_s", self.metrics_interval_s > 0, "it is above 0 seconds")
        _check(self, "progress", self.progress in PROGRESS, f"it is one of {', '.join(PROGRESS)}")
        _check(self, "dry_run", isinstance(self.dry_run, bool) or self.dry_run == PLAN, modes)
        _check(self, "show", self.show in (None, "graph"), "it is graph or null")
        _check(self, "now", self.now is None or _is_time(self.now), "it is a date or a time, as 2026-01-31T06:00")
        _check(self, "prometheus_file", is_prom, "node_exporter reads only files whose names end in .prom")
        _check(self, "output_dir", self.output_dir != "", "give a directory, or null for outputs/<job>")
        _check(self, "name", is_file_name, "it becomes the name of a directory")

    @property
    def directory(self) -> Path:
        """Directory of the results, relative to the current one unless output_dir is absolute."""
        return Path(self.output_dir) if self.output_dir is not None else Path(OUTPUTS) / self.name

    @property
    def stall_timeout_s(self) -> float | None:
        """Seconds after which a run in which nothing moves is ended; None for never."""
        return getattr(self.runtime, "stall_timeout_s", None)

    @property
    def ending_s(self) -> float:
        """Seconds that a step of the ending of a run may take."""
        return max(self.stall_timeout_s or ENDING_S, LEAST_S)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _check(settings: object, key: str, holds: bool, allowed: str) -> None:
    if not holds:
        gone = removed(f"{key}={getattr(settings, key.rpartition('.')[2])}")
        raise ConfigError(gone or f"{key}={getattr(settings, key.rpartition('.')[2])!r} cannot work: {allowed}")
