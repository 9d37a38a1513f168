"""The dataset card: README.md beside data/, as the Hugging Face Hub reads it.

It stands beside data/ and not in it, since a reader that is given the folder data/ takes every file in it for data. It
comes from the settings and state.sqlite alone and has no clock, so the same results have the same card.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from pipeline.config.fingerprint import flat
from pipeline.run_dir.manifest import manifest
from pipeline.run_dir.names import CARD, DATA
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.settings import JobSettings
from pipeline.system.atomic_files import write_atomically
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached

SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
LARGER = ((10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"))
SHOWN = ("temperature", "max_tokens")
"""Sampling settings that are named even where they are what they are by default."""
_FEATURES = {"float": "float32", "double": "float64", "halffloat": "float16"} | {
    same: same
    for same in ("bool", "string", "large_string", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
}
"""Arrow types that the Hub's metadata has a plain word for."""
_PATH = re.compile(r"(/[^\s{}/]+){2,}")
_SEAL = "<!-- Replaced by the next run as long as it is as it was written: {} -->\n"
log = logging.getLogger(__name__)


def keep_card(settings: JobSettings, directory: Path, state: RunState) -> None:
    """Write the card of a finished run, unless `output.card` is false or someone has edited the one that is there.

    Raises:
        StorageError: it cannot be written.
    """
    extra = getattr(settings.output, "card", None)
    if extra is None:
        return
    path = directory / CARD
    before = _there(path)
    text = _sealed(card(settings, state, extra.license, extra.text))
    if before == text:
        return
    if before is not None and not _is_as_written(before):
        log.info("%s was edited and stays as it is; remove it to have it written anew", path)
        return
    write_atomically(path, text)
    reached(Failpoint.CARD_WRITTEN)


def remove_card(directory: Path) -> None:
    """Remove the card of results that are about to be replaced, unless someone has edited it: until the new ones are
    whole it would pass for theirs.

    Raises:
        StorageError: it cannot be removed.
    """
    path = directory / CARD
    before = _there(path)
    if before is not None and _is_as_written(before):
        with writing(path):
            path.unlink()


def card(settings: JobSettings, state: RunState, license: str | None, text: str | None) -> str:
    """The card, without its last line.

    Args:
        settings, state: of the finished run.
        license: as the Hub spells it; None leaves it out.
        text: what the user says about the data.
    """
    found = manifest(state, RunStatus.DONE)
    folders = _folders(found)
    rows = next(iter(folders.values())).rows if folders else 0
    front: dict[str, Any] = {} if license is None else {"license": license}
    generated = _generates(found["fingerprint"]["keys"])
    front |= {"pretty_name": found["job"], "size_categories": [_size(rows)]}
    front |= {"tags": ["synthetic"]} if generated else {}
    # A dataset is read by one reader: folders of another format than the first are described and not listed.
    listed = [folder for folder in folders.values() if folder.suffix == next(iter(folders.values())).suffix]
    front["configs"] = [
        {"config_name": folder.config, "data_files": [{"split": "train", "path": f"{folder.path}/*.{folder.suffix}"}]}
        for folder in listed
    ]
    info = [
        {"config_name": folder.config, "features": features}
        for folder in listed
        if (features := _features(folder.columns))
    ]
    front |= {"dataset_info": info} if info else {}
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {found['job']}",
        *([text.strip()] if text else []),
        f"{rows:,} rows{' of text that a language model has generated' if generated else ''}, made by the job"
        f" `{found['job']}` of llama-batch-pipeline, with llama.cpp.",
        *_columns(folders.values()),
        *_counts(found, folders.values()),
        *_making(settings, found["fingerprint"]),
    ]
    return "\n\n".join(parts) + "\n\n"


@dataclass
class _Folder:
    """A folder of shards. `suffix`: of their names, without the dot."""

    path: str
    suffix: str
    columns: Mapping[str, str]
    rows: int = 0

    @property
    def config(self) -> str:
        """Its name as a part of the dataset."""
        return "default" if self.path == DATA else self.path.removeprefix(f"{DATA}/").replace("/", "_")


def _folders(found: Mapping[str, Any]) -> dict[str, _Folder]:
    """The folders of the sinks, data/ itself first."""
    folders: dict[str, _Folder] = {}
    for shard in sorted(found["shards"], key=lambda shard: (shard["path"].count("/"), shard["path"])):
        path, name = PurePath(shard["path"]).parent.as_posix(), PurePath(shard["path"]).name
        if path.split("/")[0] == DATA:
            columns = found["schema"].get(path, {})
            folders.setdefault(path, _Folder(path, name.partition(".")[2], columns)).rows += shard["rows"]
    return folders


def _features(columns: Mapping[str, str]) -> list[dict[str, str]]:
    """The columns as the Hub's metadata has them; none where a type has no plain word: readers find it in the files."""
    if not all(kind in _FEATURES for kind in columns.values()):
        return []
    return [{"name": name, "dtype": _FEATURES[kind]} for name, kind in columns.items()]


def _columns(folders: Iterable[_Folder]) -> Iterator[str]:
    for folder in folders:
        yield f"## Columns of {folder.path}/"
        yield _table(("column", "type"), [(f"`{name}`", f"`{kind}`") for name, kind in folder.columns.items()])


def _counts(found: Mapping[str, Any], folders: Iterable[_Folder]) -> Iterator[str]:
    counts = found["counts"]
    yield "## Rows"
    lines = [
        ("prompts read", counts["source_rows"]),
        *((f"rows in {folder.path}/", folder.rows) for folder in folders),
        ("rejected: something was wrong with them", counts["error_rejects"]),
        ("rejected: filtered out", counts["filtered_rejects"]),
    ]
    yield _table(("", "rows"), [(what, f"{rows:,}") for what, rows in lines])
    if found["rejects"]:
        reasons = [(r["node"], r["kind"], r["reason"], f"{r['rows']:,}") for r in found["rejects"]]
        yield _table(("rejected at", "kind", "reason", "rows"), reasons)


def _making(settings: JobSettings, fingerprint: Mapping[str, Any]) -> Iterator[str]:
    usual = _usual(settings.sampling)
    keys = {
        key: _private(value)
        for key, value in fingerprint["keys"].items()
        if not ("sampling." in key and usual.get(key[key.rindex("sampling.") :], ...) == value)
    }
    model = settings.model
    repo, path = getattr(model, "repo", None), getattr(model, "path", None)
    named = f"{repo} ({model.file}, {model.revision})" if repo else PurePath(path).name if path else None
    template = next((v for k, v in keys.items() if k.endswith(".op.template") and v), None)
    facts = [("model", f"`{named}`")] if named else []
    if _generates(fingerprint["keys"]):
        facts.append(("prompt", f"`{template}`" if template else "the chat template of the model"))
        facts += [(f"sampling.{name}", f"`{_typed(_private(value))}`") for name, value in _chosen(settings.sampling)]
    facts.append(("seed", f"`{settings.seed}`"))
    yield "## How it was made"
    yield _table(("", ""), facts if settings.model is not None else facts[-1:])
    yield (
        f"`python -m pipeline job={settings.name}` with these settings, which decide every byte of the data (sampling"
        " settings that are what they are by default are left out):"
    )
    yield f"```yaml\n{yaml.safe_dump(keys, allow_unicode=True, sort_keys=True)}```"
    yield f"Fingerprint: `{fingerprint['sha256']}`"


def _usual(sampling: Any) -> dict[str, Any]:
    """The sampling settings by key, at their defaults."""
    made = is_dataclass(sampling) and not isinstance(sampling, type)
    return dict(flat("sampling", type(sampling)())) if made else {}


def _generates(keys: Mapping[str, Any]) -> bool:
    """Whether a node of the run sampled: a fingerprint has the keys of a group only where a node takes it."""
    return any(key.startswith("sampling.") or ".op.sampling." in key for key in keys)


def _chosen(sampling: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The sampling settings that are asked for first, and those that are not what they are by default."""
    if not is_dataclass(sampling) or isinstance(sampling, type):
        return
    plain = type(sampling)()
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if field.name in SHOWN or value != getattr(plain, field.name):
            inside = list(_chosen(value, f"{prefix}{field.name}."))
            yield from inside or [(f"{prefix}{field.name}", value)]


def _typed(value: Any) -> str:
    """As one types it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _private(value: Any) -> Any:
    """Of a path on this machine only the name."""
    return PurePath(value).name if isinstance(value, str) and _PATH.fullmatch(value) else value


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(c.replace("|", "\\|").split()) for c in line) + " |" for line in lines)


def _size(rows: int) -> str:
    return next((name for below, name in (*SIZES, *LARGER) if rows < below), "n>1B")


def _there(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None


def _sealed(text: str) -> str:
    return text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def _is_as_written(text: str) -> bool:
    body, _, _ = text.rpartition(_SEAL.partition("{}")[0])
    return text == _sealed(body)
