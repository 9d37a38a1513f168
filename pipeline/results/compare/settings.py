"""Compare the settings of two runs, by the keys that users type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.fingerprint import ABSENT, differences
from pipeline.results.reader import Results

ABOUT_THE_RUN = ("output_dir", "overwrite", "dry_run", "show")
"""Keys that do not describe the job."""
_IN_A_NODE = ".op."


def setting_differences(a: Results, b: Results) -> list[str]:
    """Return `key: a -> b` for each setting in config.yaml that differs.

    A group that is passed to a node is listed once, by the key that users type: `runtime.slots`, not
    `nodes.generate.op.runtime.slots`.
    """
    flat_a, flat_b = (dict(_flat("", run.config)) for run in (a, b))
    keys = {k for k in {**flat_a, **flat_b} if flat_a.get(k, ABSENT) != flat_b.get(k, ABSENT)}
    keys -= set(ABOUT_THE_RUN)

    def said_already(key: str) -> bool:
        outer = key.partition(_IN_A_NODE)[2]
        return outer in keys and all(flat.get(outer, ABSENT) == flat.get(key, ABSENT) for flat in (flat_a, flat_b))

    shown = {key for key in keys if not said_already(key)}
    return differences({k: v for k, v in flat_a.items() if k in shown}, {k: v for k, v in flat_b.items() if k in shown})


def content_differences(a: Results, b: Results) -> list[str]:
    """Return `key: a -> b` for the rest of the fingerprints: content of inputs and model, and user code."""
    known = {key for run in (a, b) for key, _ in _flat("", run.config)}
    sides = [run.manifest.get("fingerprint", {}).get("keys", {}) for run in (a, b)]
    return differences(*({k: v for k, v in side.items() if k not in known} for side in sides))


def _flat(key: str, value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}" if key else str(name), inner)
    else:
        yield key, value
