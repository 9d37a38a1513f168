"""Integrity checks: `verify` reads all files of a run, a resume only compares sizes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pipeline.api.errors import ConfigError
from pipeline.run_dir import metrics_files
from pipeline.run_dir.manifest import manifest
from pipeline.run_dir.names import COMPLETIONS, CONFIG, MANIFEST, METRICS, parts
from pipeline.run_dir.state import STATE_FILE, RunState, RunStatus, ShardRecord
from pipeline.run_dir.state_file import APPLICATION_ID, seal_damage
from pipeline.run_dir.store_check import RowCheck, check_rows
from pipeline.system.atomic_files import sha256_of
from pipeline.system.yaml_text import read_yaml


class DamageKind(StrEnum):
    """Kinds of damaged files. The value says how `repair` restores one."""

    STATE = "moved aside and begun anew: the rows come from the stored completions"
    UNFINISHED = "the run goes on: the rows come from the stored completions"
    SHARD = "its chunk is made again: the rows come from the stored completions"
    MANIFEST = f"written again from {STATE_FILE}"
    CONFIG = f"written again from {STATE_FILE}"
    COMPLETIONS = "moved aside and begun anew: committed rows lose nothing, others are generated again"
    STORED_ROWS = "removed from the store: committed rows lose nothing, others are generated again"
    STORE = "left to you, since other runs may use it: move it away when none does, and it is begun anew"
    METRICS = "moved aside: no result is lost"


@dataclass(frozen=True)
class Damage:
    """A damaged file. `path`: relative to the output directory. `what`: the damage. `chunk`: of a shard."""

    path: str
    what: str
    kind: DamageKind
    chunk: int | None = None


@dataclass
class Findings:
    """Result of an examination: intact files, damaged ones and remarks."""

    whole: list[str] = field(default_factory=list)
    damaged: list[Damage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def of(self, kind: DamageKind) -> list[Damage]:
        """Return the damaged files of one kind."""
        return [damage for damage in self.damaged if damage.kind is kind]


def missing_or_cut(directory: Path, shards: Sequence[ShardRecord]) -> dict[str, str]:
    """Return the committed files that are missing or have another size, each with its damage. Reads no file."""
    damages: dict[str, str] = {}
    for shard in shards:
        try:
            size = (directory / shard.path).stat().st_size
        except OSError as error:
            damages[shard.path] = "is missing" if isinstance(error, FileNotFoundError) else f"is lost: {error.strerror}"
            continue
        if size != shard.size_bytes:
            damages[shard.path] = f"has {size:,} bytes, {shard.size_bytes:,} were written"
    return damages


def _database_damage(
    path: Path, content: Callable[[sqlite3.Connection], str | None], application_id: int | None = None
) -> str | None:
    """Return the damage of a SQLite database; None if it is intact.

    Args:
        content: returns what is wrong with the values of a database whose structure is whole.
        application_id: the expected one; None for any.
    """
    if not path.exists():
        return "is missing"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10)) as db:
            db.text_factory = lambda text: text.decode(errors="replace")  # damaged names are in what it says, too
            ours = application_id in (None, db.execute("PRAGMA application_id").fetchone()[0])
            # A database without tables comes from a process that was killed while it created it.
            if not ours and db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                return "is not marked as the state of a run"
            verdict = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
            if verdict == "ok":
                return content(db)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise ConfigError(f"{path} is in use by another process ({error}); try again when it is done") from error
        return f"cannot be opened: {error}"
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # of a message with a damaged name in it
        return f"is damaged: {error}"
    return f"is damaged: {verdict.splitlines()[-1]}"


def state_damage(directory: Path) -> str | None:
    """Return the damage of the state.sqlite in `directory`; None if it is intact. Raises ConfigError if another process
    holds it locked."""
    return _database_damage(directory / STATE_FILE, seal_damage, APPLICATION_ID)


def examine(directory: Path, state: RunState | None) -> Findings:
    """Read all files in `directory` and compare them with `state`; None checks only files that need no state."""
    findings = Findings()
    if state is not None:
        _examine_shards(directory, state.shards(), findings)
        ended = state.status is RunStatus.DONE or (state.status is RunStatus.BUDGET and not findings.remarks)
        if state.salvaged and not ended:  # files of the run before may be all that there is of committed rows
            damage = "replaces a damaged one, and the run that makes all rows again has not ended"
            findings.damaged.insert(0, Damage(STATE_FILE, damage, DamageKind.UNFINISHED))
        else:
            findings.whole.insert(0, STATE_FILE)
        _examine_manifest(directory, state, findings)
    _examine_config(directory, state, findings)
    for path, kind in (
        (directory / COMPLETIONS, DamageKind.COMPLETIONS),
        (named_store(directory, state), DamageKind.STORE),
    ):
        if path is not None and path.exists():
            _examine_store(path, COMPLETIONS if kind is DamageKind.COMPLETIONS else str(path), kind, findings)
    _examine_metrics(directory, findings)
    return findings


def _examine_shards(directory: Path, shards: Sequence[ShardRecord], findings: Findings) -> None:
    cut = missing_or_cut(directory, shards)
    intact: dict[str, list[int]] = {}
    for shard in shards:
        if damage := cut.get(shard.path) or _content_damage(directory / shard.path, shard):
            findings.damaged.append(Damage(shard.path, damage, DamageKind.SHARD, shard.chunk))
        else:
            intact.setdefault(Path(shard.path).parent.as_posix(), []).append(shard.rows)
    findings.whole += [f"{folder}/: {len(rows):,} files, {sum(rows):,} rows" for folder, rows in sorted(intact.items())]
    committed = {shard.path for shard in shards}
    for path in parts(directory):
        if (name := path.relative_to(directory).as_posix()) not in committed:
            findings.remarks.append(f"{name} belongs to no committed chunk; the next run removes it")


def _content_damage(path: Path, shard: ShardRecord) -> str | None:
    try:
        digest = sha256_of(path)
        if digest != shard.sha256:
            return f"has other bytes than were written (sha256 {digest[:12]}..., not {shard.sha256[:12]}...)"
        rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else shard.rows
    except (pa.ArrowException, OSError) as error:
        return f"cannot be read: {error}"
    return None if rows == shard.rows else f"has {rows:,} rows, {shard.rows:,} were written"


def _examine_manifest(directory: Path, state: RunState, findings: Findings) -> None:
    content, fault = _parsed(directory / MANIFEST, json.loads)
    status = state.status
    if content == json.loads(json.dumps(manifest(state, status))):
        findings.whole.append(MANIFEST)
    elif status in (RunStatus.RUNNING, RunStatus.NEW) and (content is not None or not (directory / MANIFEST).exists()):
        findings.remarks.append(
            f"{MANIFEST} is missing or of an earlier attempt: the last one was killed; a resume writes it"
        )
    else:
        findings.damaged.append(Damage(MANIFEST, fault or "is not what the state of the run says", DamageKind.MANIFEST))


def _examine_config(directory: Path, state: RunState | None, findings: Findings) -> None:
    kept = None if state is None else state.config
    content, fault = _parsed(directory / CONFIG, read_yaml if kept is None else str)
    damage = fault or "is not what the run wrote"
    if isinstance(content, dict) if kept is None else content == kept:
        findings.whole.append(CONFIG)
    elif state is not None and (state.status is RunStatus.RUNNING or kept is None):
        findings.remarks.append(
            f"{CONFIG} {damage}; the last attempt was killed or had not begun, and the next one writes it"
        )
    else:
        findings.damaged.append(Damage(CONFIG, damage, DamageKind.CONFIG))


def _parsed(path: Path, parse: Callable[[str], Any]) -> tuple[Any, str | None]:
    """Return the parsed text file and None, or None and the reason why it cannot be read."""
    try:
        return parse(path.read_text(encoding="utf-8")), None
    except FileNotFoundError:
        return None, "is missing"
    except (OSError, ValueError, yaml.YAMLError) as error:
        return None, f"cannot be read: {error}"


def named_store(directory: Path, state: RunState | None) -> Path | None:
    """Return the completion store that the settings of the run name; None if it has its own."""
    text = state and state.config
    try:
        text = text or (directory / CONFIG).read_text(encoding="utf-8")
        path = read_yaml(text)["store"]["path"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return None
    path = None if path is None else Path(state.origin.get("directory", "") if state else "", path)
    return None if path == (directory / COMPLETIONS).absolute() else path


def _examine_store(path: Path, name: str, kind: DamageKind, findings: Findings) -> None:
    rows = RowCheck(0, 0)

    def content(db: sqlite3.Connection) -> None:
        nonlocal rows
        rows = check_rows(db)

    if damage := _database_damage(path, content):
        findings.damaged.append(Damage(name, damage, kind))
    elif rows.damaged:
        damage = f"has {rows.damaged:,} rows with other values than were written"
        findings.damaged.append(Damage(name, damage, DamageKind.STORED_ROWS))
    else:
        findings.whole.append(name)
    if rows.unsealed:
        findings.remarks.append(
            f"{name} has {rows.unsealed:,} rows of an earlier version, whose values cannot be checked"
        )


def _examine_metrics(directory: Path, findings: Findings) -> None:
    tables, older = 0, 0
    for path in [*sorted((directory / METRICS).glob("*.parquet")), *sorted((directory / METRICS).glob("*/part-*"))]:
        name = path.relative_to(directory).as_posix()
        try:
            older += not metrics_files.check(path)
            tables += 1
        except metrics_files.UNREADABLE as error:
            if path.suffix == ".arrows" and not isinstance(error, metrics_files.ChangedError):
                findings.remarks.append(f"{name} ends early, as that of a killed attempt may: {error}")
            else:
                findings.damaged.append(Damage(name, f"cannot be read: {error}", DamageKind.METRICS))
    if tables:
        findings.whole.append(f"{METRICS}/: {tables} tables")
    if older:
        findings.remarks.append(f"{METRICS}/ has {older} tables of an earlier version, whose values cannot be checked")
