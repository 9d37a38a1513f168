"""The settings of a job as plain objects: what conf/ and the command line become at the door (see pipeline.config)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.adapter import OnError
from pipeline.errors import ConfigError

PROGRESS = ("auto", "bar", "log", "none")
SHOW = (None, "graph")
PLAN = "plan"
DRY_RUNS = (False, True, PLAN)
OUTPUTS = "outputs"
GROUPS = ("data", "model", "sampling", "decode", "runtime", "output", "store", "bench")
"""The config groups whose schema is a dataclass of the operators (conf/schemas.yaml says which)."""


@dataclass
class NodeSettings:
    """One entry of `nodes`.

    Args:
        op: `_target_` names the operator's class, the other keys are its constructor's arguments.
        inputs: name of the node that it reads, or a list of names; empty for the source.
        capacity_rows: rows that may wait on each of its inputs.
        on_error: fail (an exception of the operator ends the run) or reject (it takes out the rows that cause it).
    """

    op: dict[str, Any] = field(default_factory=dict)
    inputs: Any = field(default_factory=list)
    capacity_rows: int = 1024
    on_error: str = OnError.FAIL.value

    def __post_init__(self) -> None:
        _check(self.on_error in list(OnError), "on_error", self.on_error, f"it is one of {', '.join(OnError)}")
        names = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        _check(
            isinstance(names, list) and all(isinstance(n, str) for n in names),
            "inputs",
            self.inputs,
            "it is the name of a node or a list of names",
        )
        self.inputs = names


@dataclass
class JobSettings:
    """A whole job.

    Args:
        name: of the job; its results go to outputs/<name> unless output_dir says otherwise.
        nodes: the graph.
        data, model, sampling, decode, runtime, output, store, bench: the config groups, for `${...}` in nodes.
        seed: of everything that is drawn.
        chunk_rows: source rows of a chunk, the unit of commit.
        max_open_chunks: chunks that may be begun and not committed.
        max_error_rate: share of the source's rows that may end as errors before the exit code is 3.
        output_dir: null for outputs/<name>, relative to the current directory.
        overwrite: replace the results of another configuration.
        dry_run: true checks all that can be checked, loads the model, computes for half a minute at most and prints
            what the run will take; plan checks what needs no model and prints the graph. Either stops there, and
            writes nothing.
        show: graph prints the graph as Mermaid and stops.
        metrics_interval_s: seconds between two rows of a stage in metrics/stages.parquet.
        progress: bar, log (a line every ten seconds), none; auto takes the bar on a terminal and else log.
    """

    name: str = "job"
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
    max_error_rate: float = 0.01
    output_dir: str | None = None
    overwrite: bool = False
    dry_run: Any = False  # false, true or plan
    show: str | None = None
    metrics_interval_s: float = 1.0
    progress: str = "auto"

    def __post_init__(self) -> None:
        _check(self.chunk_rows >= 1, "chunk_rows", self.chunk_rows, "it is 1 or more")
        _check(self.max_open_chunks >= 1, "max_open_chunks", self.max_open_chunks, "it is 1 or more")
        _check(0 <= self.max_error_rate <= 1, "max_error_rate", self.max_error_rate, "it is a share, 0 to 1")
        _check(self.metrics_interval_s > 0, "metrics_interval_s", self.metrics_interval_s, "it is above 0 seconds")
        _check(self.progress in PROGRESS, "progress", self.progress, f"it is one of {', '.join(PROGRESS)}")
        _check(
            any(self.dry_run is mode or self.dry_run == mode == PLAN for mode in DRY_RUNS),
            "dry_run",
            self.dry_run,
            "it is true (estimate, with the model), plan (without) or false",
        )
        _check(self.show in SHOW, "show", self.show, "it is graph or null")
        _check(self.output_dir != "", "output_dir", self.output_dir, "give a directory, or null for outputs/<job>")
        _check(
            self.name not in ("", ".", "..") and Path(self.name).name == self.name,
            "name",
            self.name,
            "it becomes the name of a directory",
        )

    @property
    def directory(self) -> Path:
        """Where the results go."""
        return Path(self.output_dir) if self.output_dir is not None else Path(OUTPUTS) / self.name


def _check(holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{key}={value!r} cannot work: {allowed}")
