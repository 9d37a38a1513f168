"""Settings, options, commands and variables that this version has no more, and what to write instead.

An entry stays for one version, and is all that a removal leaves: each place that refuses an unknown name asks `removed`
first, and config.yaml of an older run is read without what stands here (`without_removed`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

REMOVED: Mapping[str, str] = {
    # A key by its full name, an option or a value as KEY=VALUE, a command or a variable by its name.
    "model.weights=auto": "name a type (docs/weights.md); for a run that has begun, weights_chosen of its config.yaml",
    "model.weights_chosen": "write the type as model.weights=TYPE",
    "weights": "name a type with model.weights=TYPE, and compare the estimates of dry_run=true",
    "on_finish.url": "let on_finish.command be a curl that posts its standard input (docs/monitoring.md has the line)",
    "progress=full": "leave it out; `status DIR --nodes` has the rows of all nodes, and report.html their times",
    "progress=bar": "leave it out; auto shows a bar on a terminal and in a notebook, and log lines elsewhere",
    "PIPELINE_REPORT": "write report=false in the job or on the command line",
    "cluster.copies": "leave it out; a piece is sent a second time only if the worker that had it ended",
    "cluster.mixed": "leave it out; unlike workers are refused, so give a run those with one build and processor",
    "cluster=threads": "write cluster=processes, whose workers are processes of this machine",
    "cluster.pool=threads": "write cluster.pool=processes, or cluster=processes",
    "runtime.contexts": "leave it out; raise runtime.slots for more rows at a time, or use cluster=processes",
    "runtime.refill": "leave it out; a free slot is filled at once",
    "runtime.state_dir": "leave it out; a resumed run computes the common beginnings of prompts again",
    "runtime.shuffle_window": "leave it out; it was for tests",
    "runtime.preempt_every": "leave it out; it was for tests",
    "runtime.swap_mb": "leave it out; a row that gave up its slot computes its tokens again",
    "runtime.n_batch=0": "leave it out, and it is 2048; runtime=auto chooses slots and flash attention",
    "runtime.n_ubatch=0": "leave it out, and it is 512; runtime=auto chooses slots and flash attention",
}


def removed(name: str) -> str | None:
    """Return the error message for `name` (`runtime.refill`, `progress=full`, `weights`), if it has been removed."""
    return f"{name} has been removed: {REMOVED[name]}" if name in REMOVED else None


def removed_variable() -> str | None:
    """Return the error message for an environment variable that is set and has been removed."""
    return next((removed(name) for name in REMOVED if name.isupper() and name in os.environ), None)


def without_removed(values: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Return settings of an older version without removed keys and values, whose defaults then hold.

    Args:
        values: nested settings, as config.yaml has them.
        group: name of the innermost group that they belong to.
    """
    kept: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{group}.{name}" if group else str(name)
        if key in REMOVED or f"{key}={value}" in REMOVED:
            continue
        kept[name] = without_removed(value, str(name)) if isinstance(value, Mapping) else value
    return kept
