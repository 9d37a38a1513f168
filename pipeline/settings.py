"""The settings of a job as dataclasses; pipeline.config.compose makes them of conf/, the job file and the command
line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.api.by_batch import OnError
from pipeline.api.groups import EngineFields
from pipeline.api.keys import above_0, at_least, check, check_values, in_data, key, not_in_data, one_of, read_by
from pipeline.system.deadlines import ENDING_S, LEAST_S

PROGRESS = ("auto", "log", "json", "none")
PLAN = "plan"
OUTPUTS = "outputs"
LEAST_CHUNK_ROWS = 16
CHUNKS_OF_A_TARGET = 8
"""Minimum number of chunks until a target is reached, so that a run makes few rows too many."""
POOLS = ("ray", "processes")
REFUSE = "refuse"
SKIP, AGAIN = "skip", "again"
OTHER_BITS = (REFUSE, "allow")
GROUPS = ("data", "model", "sampling", "decode", "runtime", "output", "store", "bench")
"""Config groups; conf/schemas.yaml names their dataclasses, which belong to the operators."""
WITH_OPTIONS = (*GROUPS, "cluster", "flow", "metric")
"""Groups of which a job names options; those of the last two are nodes and steps, and have no keys of their own."""


_ONE, _ONE_OR_NULL = at_least(1, "it is 1 or more"), at_least(1, "it is 1 or more, or null")
_ABOVE_0, _ABOVE_0_OR_NULL = above_0("it is above 0"), above_0("it is above 0, or null")
_ON_A_NODE = "the driver has to run on a node of the cluster: use `ray job submit`, or start it there"
_MODES = "it is true (estimate, with the model), plan (without) or false"
_REPORT = "it is true, false, or has `images`, which is true or false"
_PROM = "node_exporter reads only files whose names end in .prom"


@dataclass
class NodeSettings:
    """One entry of `nodes`.

    Args:
        op: `_target_` names the operator's class; the other keys are its constructor's arguments.
        inputs: name of the node that it reads, or a list of names; empty for the source.
        capacity_rows: rows that may wait on each input.
        on_error: fail (an exception of the operator ends the run), reject (the rows that cause it are rejected) or keep
            (they stay, as all rows with an error do: null in the new columns, the reason in `<node>_error`).
        step: name of the step that it was made for; null for a node of the job's own.
    """

    op: dict[str, Any] = field(default_factory=dict)
    inputs: Any = field(default_factory=list)
    capacity_rows: int = 1024
    on_error: str = key(OnError.FAIL.value, *one_of(list(OnError)))
    step: str | None = None

    def __post_init__(self) -> None:
        check_values(self)
        names = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        are_names = isinstance(names, list) and all(isinstance(n, str) for n in names)
        check(are_names, "inputs", names, "it is the name of a node or a list of names")
        self.inputs = names


@dataclass
class HookSettings:
    """A command that is notified when an attempt has ended. Its failure does not change the exit code.

    Args:
        command: a program and its arguments, run without a shell, with a JSON summary on its standard input.
        timeout_s: time limit of the command, in seconds.
    """

    command: list[str] = key([], "its first element is a program", lambda v: "" not in v[:1])
    timeout_s: float = key(30.0, *above_0("it is above 0 seconds"))

    def __post_init__(self) -> None:
        check_values(self, "on_finish")


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

    accepted_rows: int | None = in_data(None, *_ONE_OR_NULL)
    sink: str | None = in_data(None)
    chunk_rows: int | None = in_data(None, *_ONE_OR_NULL)
    max_rows: int | None = in_data(None, *_ONE_OR_NULL)
    max_rounds: int | None = in_data(100, *_ONE_OR_NULL)
    # They end a run between two chunks, and a resume continues there.
    max_tokens: int | None = not_in_data(None, *_ONE_OR_NULL)
    max_minutes: float | None = not_in_data(None, *_ABOVE_0_OR_NULL)
    max_cost: float | None = not_in_data(None, *_ABOVE_0_OR_NULL)

    def __post_init__(self) -> None:
        check_values(self, "target")
        if self.accepted_rows is None:
            need = "it needs target.accepted_rows=N, the rows wanted (data.limit=N takes the first N of the input)"
            for other in fields(self):
                value = getattr(self, other.name)
                check(value == other.default, f"target.{other.name}", value, need)

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
        workers: how many; null: 2, or as many as have GPUs, with Ray as many as fit on the cluster when the run begins.
        address: of Ray: auto (the cluster of this machine, or RAY_ADDRESS), local (starts one here) or host:port.
        cpus: CPUs that Ray keeps for a worker; null: runtime.threads, else all of its node shared by its workers.
        gpus: GPUs of a worker. As processes each sees only its own; Ray keeps so many for it.
        memory: bytes that Ray keeps for a worker; null: what its contexts take, by the memory check.
        resources: other resources of Ray that a worker takes, by name.
        piece_rows: rows that a worker is sent at a time; null: twice runtime.slots.
        in_flight: pieces that a worker has at a time. With too few its slots run empty between two.
        poison_after: workers that may end with a piece before it is computed alone, and before a row is given up.
        start_timeout_s: seconds to wait for the first worker.
    """

    pool: str = key("processes", *one_of(POOLS))
    workers: int | None = key(None, *_ONE)
    address: str = key("auto", _ON_A_NODE, lambda v: not v.startswith("ray://"))
    cpus: float | None = key(None, *_ABOVE_0)
    gpus: float = key(0.0, *at_least(0, "it is 0 or more"))
    memory: int | None = key(None, *_ABOVE_0)
    resources: dict[str, float] = field(default_factory=dict)
    piece_rows: int | None = key(None, *_ONE)
    in_flight: int = key(3, *_ONE)
    poison_after: int = key(2, *_ONE)
    start_timeout_s: float = key(600.0, *_ABOVE_0)

    def __post_init__(self) -> None:
        check_values(self, "cluster")


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
        append: add the rows of the input that the results do not have yet. They are known by data.id_column or, without
            one, by their content.
        append_changed: what happens to a row with a known id and other content: skip, or again (it is added as a newer
            one, and readers take the newest).
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
        report: write report.html at the end of each attempt; with `report.images=false` without thumbnails of images.
    """

    name: str = key("job", "it becomes the name of a directory", lambda v: v != ".." and Path(v).name == v != "")
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
    chunk_rows: int = key(4096, *_ONE)
    max_open_chunks: int = key(8, *_ONE)
    cluster: Any = None
    max_error_rate: float = key(0.01, "it is a share, 0 to 1", lambda v: 0 <= v <= 1)
    other_bits: str = key(REFUSE, *one_of(OTHER_BITS))
    output_dir: str | None = key(None, "give a directory, or null for outputs/<job>", lambda v: v != "")
    overwrite: bool = False
    append: bool = False
    append_changed: str = key(SKIP, *one_of((SKIP, AGAIN)))
    dry_run: Any = key(False, _MODES, lambda v: isinstance(v, bool) or v == PLAN)
    show: str | None = key(None, "it is graph or null", lambda v: v in (None, "graph"))
    now: str | None = key(None, *read_by(datetime.fromisoformat, "it is a date or a time, as 2026-01-31T06:00"))
    on_finish: HookSettings = field(default_factory=HookSettings)
    prometheus_file: str | None = key(None, _PROM, lambda v: v is None or v.endswith(".prom"))
    target: TargetSettings = field(default_factory=TargetSettings)
    metrics_interval_s: float = key(1.0, *above_0("it is above 0 seconds"))
    progress: str = key("auto", *one_of(PROGRESS))
    report: Any = key(lambda: {"images": True}, _REPORT, lambda v: isinstance(v, bool) or _has_booleans(v, {"images"}))

    def __post_init__(self) -> None:
        check_values(self)
        check(self.append or self.append_changed == SKIP, "append_changed", self.append_changed, "it needs append=true")
        for each in ("max_rows", "max_rounds") if self.append else ():
            value, default = (getattr(target, each) for target in (self.target, TargetSettings()))
            check(value == default, f"target.{each}", value, "append reads each row once; data.limit bounds the input")

    @property
    def directory(self) -> Path:
        """Directory of the results, relative to the current one unless output_dir is absolute."""
        return Path(self.output_dir) if self.output_dir is not None else Path(OUTPUTS) / self.name

    @property
    def engine(self) -> EngineFields:
        """What the engine reads of `runtime`."""
        engine: EngineFields = EngineFields() if self.runtime is None else self.runtime
        return engine

    @property
    def ending_s(self) -> float:
        """Seconds that a step of the ending of a run may take."""
        return max(self.engine.stall_timeout_s or ENDING_S, LEAST_S)


def _has_booleans(value: object, keys: Collection[str]) -> bool:
    return isinstance(value, Mapping) and all(k in keys and isinstance(v, bool) for k, v in value.items())
