"""manifest.json: the committed files of a run, for readers. It is derived from state.sqlite alone, so it can be written
again at any time and is the same for the same results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.run_dir.names import DATA, MANIFEST
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.system.atomic_files import sync_directory, write_atomically
from pipeline.system.failpoints import Failpoint, reached


def manifest(state: RunState, status: RunStatus) -> dict[str, Any]:
    """Return the manifest of the committed part of a run."""
    fingerprint = state.fingerprint or {}
    shards = state.shards()
    rejects = state.rejects()
    return {
        "job": state.job,
        "status": status.value,
        "fingerprint": {"sha256": digest(fingerprint), "keys": fingerprint},
        "counts": {
            "chunks": state.committed_chunks,
            "source_rows": state.committed_rows,
            "data_rows": sum(s.rows for s in shards if s.path.startswith(f"{DATA}/")),
            "error_rejects": rejects.errors,
            "filtered_rejects": rejects.filtered,
            "kept_with_error": rejects.kept,
        },
        "rejects": rejects.listed(),
        "warnings": state.warnings(),
        "schema": state.schemas(),
        "shards": [dataclasses.asdict(s) for s in shards],
    }


def empty_manifest(state: RunState) -> dict[str, Any]:
    """Return a manifest without files, for a destination whose upload is not complete."""
    values = manifest(state, RunStatus.RUNNING)
    return {key: values[key] for key in ("job", "status", "fingerprint")} | {"shards": []}


def as_text(manifest: Mapping[str, Any]) -> str:
    """Return the text of manifest.json."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def write_manifest(directory: Path, state: RunState, status: RunStatus) -> None:
    """Replace manifest.json."""
    write_atomically(directory / MANIFEST, as_text(manifest(state, status)))
    sync_directory(directory)  # it is there when the state says that the attempt has ended
    reached(Failpoint.MANIFEST_WRITTEN)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the content of manifest.json; {} if it is missing or damaged."""
    return read_values(directory / MANIFEST)


def read_values(path: Path, parse: Callable[[str], Any] = json.loads) -> dict[str, Any]:
    """Return the mapping in a file of JSON, or YAML; {} if it is missing or damaged."""
    try:
        values = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return values if isinstance(values, dict) else {}


def digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the fingerprint's canonical JSON, in hex."""
    canonical = json.dumps(fingerprint, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
