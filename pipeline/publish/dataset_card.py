"""The dataset card: README.md beside data/, in the format of the Hugging Face Hub.

It is not inside data/, since readers of that folder take every file in it for data. It depends on the settings and
state.sqlite alone, not on the clock, so the same results have the same card.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

import jinja2
import polars as pl
import yaml

from pipeline.api.groups import DataFields, DecodeFields, ModelFields
from pipeline.config.fingerprint import flat
from pipeline.run_dir.calibration_file import read_calibration
from pipeline.run_dir.manifest import manifest
from pipeline.run_dir.names import CARD, DATA, split_of
from pipeline.run_dir.state import RunState, RunStatus
from pipeline.settings import AGAIN, JobSettings
from pipeline.system.atomic_files import write_atomically
from pipeline.system.disk_errors import writing
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.known_secrets import hidden
from pipeline.system.result_files import format_of, newest, scan
from pipeline.system.terminal import visible
from pipeline.system.yaml_text import write_yaml

SIZES = {
    **{"n<1K": 10**3, "1K<n<10K": 10**4, "10K<n<100K": 10**5, "100K<n<1M": 10**6},
    **{"1M<n<10M": 10**7, "10M<n<100M": 10**8, "100M<n<1B": 10**9},
}
"""The Hub's size categories, each with its upper bound in rows."""
SHOWN = ("temperature", "max_tokens")
"""Sampling settings that are listed even if they have their defaults."""
_FEATURES = {"float": "float32", "double": "float64", "halffloat": "float16"} | {
    same: same
    for same in ("bool", "string", "large_string", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
}
"""dtype in the Hub's metadata by Arrow type."""
_PATH = re.compile(r"(/[^\s{}/]+){2,}")
_SEAL = "<!-- Replaced by the next run as long as it is as it was written: {} -->\n"
_HEADING = "\n## What people say of it\n\n"
_PEOPLE = re.compile(_HEADING + r"People would [^\n]*\n\Z")
"""The last section, of what `calibrate` has written."""
log = logging.getLogger(__name__)


def keep_card(settings: JobSettings, directory: Path, state: RunState) -> None:
    """Write the card of a finished run, if it is to have one and a user has not edited the existing card. Raises
    StorageError if the card cannot be written."""
    extra = None if settings.output is None else settings.output.card_settings()
    if extra is None:
        return
    path = directory / CARD
    text = card(settings, state, extra.license, extra.text, _superseded(settings, directory, state))
    text = _sealed(text + people_say(directory, state.run_id, manifest(state, RunStatus.DONE)))
    if _is_edited(path):
        log.info("%s was edited and stays as it is; remove it to have it written anew", path)
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)
        reached(Failpoint.CARD_WRITTEN)


def renew_card(directory: Path, run: str, found: Mapping[str, Any]) -> Path | None:
    """Have a card that is there, and no user has edited, say what the labels of now do. Returns its path; None if there
    is none to change. `run`, `found`: id and manifest of the run. Raises StorageError if it cannot be written."""
    path = directory / CARD
    if not path.exists() or _is_edited(path):
        return None
    body = path.read_text(encoding="utf-8").rpartition(_SEAL.partition("{}")[0])[0]
    write_atomically(path, _sealed(_PEOPLE.sub("", body) + people_say(directory, run, found)))
    return path


def people_say(directory: Path, run: str, found: Mapping[str, Any]) -> str:
    """Return the section of the card on what people say of the rows; empty if nobody has, or it was of other rows."""
    figures = read_calibration(directory)
    if figures is None or figures.about.folder != DATA:
        return ""
    if stale := figures.stale(run, found):
        log.warning("the dataset card leaves out what people say of the rows: %s; calibrate again", stale)
        return ""
    about, labels = figures.about, sum(line.rows or 0 for line in figures.of("labels") if line.value == "used")
    rate = figures.one("corrected_rate", about.positive or "")
    if rate is None:
        rate, would = figures.one("agreement"), f"have agreed with `{about.verdict}` in"
    else:
        would = "have passed" if about.passes else f"have said `{about.positive}` as `{about.verdict}` of"
    if rate is None or rate.estimate is None or rate.low is None or rate.high is None:
        return ""
    people = f"{len(about.reviewers):,} reviewer{'s' * (len(about.reviewers) != 1)}"
    interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f} % with a confidence of 95 %"
    rows = f"the {about.judged:,} rows with a verdict" if about.unjudged else "these rows"
    return (
        f"{_HEADING}People would {would} {100 * rate.estimate:.1f} % ({interval}) of {rows}, by {labels:,} labels"
        f" of {people}.\n"
    )


def remove_card(directory: Path) -> None:
    """Remove the card before the results are replaced, unless a user has edited it: it would not describe the new ones.
    Raises StorageError if the card cannot be removed."""
    path = directory / CARD
    if not _is_edited(path):
        with writing(path):
            path.unlink(missing_ok=True)


def _superseded(settings: JobSettings, directory: Path, state: RunState) -> int:
    """Return how many rows of data/ have a newer one there (`append_changed=again`)."""
    files = [directory / shard.path for shard in state.shards() if Path(shard.path).parent == Path(DATA) and shard.rows]
    rows = scan(files, state.schemas().get(DATA, {})) if settings.append_changed == AGAIN else None
    if rows is None:
        return 0
    every, latest = pl.collect_all([rows.select(pl.len()), newest(rows).select(pl.len())])
    return int(every.item() - latest.item())


def card(settings: JobSettings, state: RunState, license: str | None, text: str | None, superseded: int = 0) -> str:
    """Return the text of the card, without its last line, the hash. `text`: the user's description of the data.
    `superseded`: rows that have a newer one."""
    found = manifest(state, RunStatus.DONE)
    keys = found["fingerprint"]["keys"]
    folders = _folders(found)
    rows = folders[0].rows if folders else 0
    # The fingerprint has the keys of a group only if a node uses it.
    generated = any(key.startswith("sampling.") or ".op.sampling." in key for key in keys)
    usual = dict(flat("sampling", type(settings.sampling)()))
    chosen = {
        key: _private(value)
        for key, value in keys.items()
        if not ("sampling." in key and usual.get(key[key.rindex("sampling.") :], ...) == value)
    }
    front = _front(found["job"], license, generated, rows, folders)
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {
        "number": "{:,}".format,
        "cell": lambda text: " ".join(visible(text).replace("|", "\\|").split()),
    }
    template = environment.from_string(Path(__file__).with_name("dataset_card.md.jinja").read_text(encoding="utf-8"))
    return hidden(
        template.render(
            front=write_yaml(front),
            manifest=found,
            command=f"python -m pipeline job={settings.name}",
            text=text,
            rows=rows - superseded,
            superseded=superseded,
            generated=generated,
            folders=folders,
            facts=list(_facts(settings, generated)),
            keys=yaml.safe_dump(chosen, allow_unicode=True, sort_keys=True),
        )
    )


@dataclass
class _Folder:
    """A folder of shards. `suffix`: of the file names, without the dot. `splits`: the rows of each, if it has some."""

    path: str
    suffix: str
    columns: Mapping[str, str]
    rows: int = 0
    splits: dict[str, int] = field(default_factory=dict)

    @property
    def data_files(self) -> list[dict[str, str]]:
        """The files of each split, the one with most rows first: `train`, if the folder has none."""
        names = sorted(self.splits, key=lambda name: (-self.splits[name], name))
        of = [(name, f"*-{name}") for name in names] or [("train", "*")]
        return [{"split": name, "path": f"{self.path}/{files}.{self.suffix}"} for name, files in of]

    @property
    def config(self) -> str:
        """Name of the dataset configuration for this folder."""
        return "default" if self.path == DATA else self.path.removeprefix(f"{DATA}/").replace("/", "_")


def _folders(found: Mapping[str, Any]) -> list[_Folder]:
    """Return the folders of the sinks, data/ itself first."""
    folders: dict[str, _Folder] = {}
    for shard in sorted(found["shards"], key=lambda shard: (shard["path"].count("/"), shard["path"])):
        path, name = PurePath(shard["path"]).parent.as_posix(), PurePath(shard["path"]).name
        if path.split("/")[0] == DATA:
            columns = found["schema"].get(path, {})
            folder = folders.setdefault(path, _Folder(path, name.partition(".")[2], columns))
            folder.rows += shard["rows"]
            if (split := split_of(name)) is not None:
                folder.splits[split] = folder.splits.get(split, 0) + shard["rows"]
    return list(folders.values())


def _front(job: str, license: str | None, generated: bool, rows: int, folders: Sequence[_Folder]) -> dict[str, Any]:
    """Return the metadata for the Hub (YAML front matter)."""
    front: dict[str, Any] = {} if license is None else {"license": license}
    front["pretty_name"] = job
    front["size_categories"] = [next((name for name, most in SIZES.items() if rows < most), "n>1B")]
    front |= {"tags": ["synthetic"]} if generated else {}
    # The Hub reads all files of a dataset in one format: folders of another one are described, but not listed.
    listed = [folder for folder in folders if folder.suffix == folders[0].suffix]
    front["configs"] = [{"config_name": folder.config, "data_files": folder.data_files} for folder in listed]
    # If a type is not in _FEATURES, readers take all types from the files.
    info = [
        {"config_name": f.config, "features": [{"name": n, "dtype": _FEATURES[kind]} for n, kind in f.columns.items()]}
        for f in listed
        if f.columns and all(kind in _FEATURES for kind in f.columns.values())
        if (form := format_of(f.suffix)) is not None and form.on_card
    ]
    return front | ({"dataset_info": info} if info else {})


def _facts(settings: JobSettings, generated: bool) -> Iterator[tuple[str, str]]:
    """Yield names and values for the table of main settings: model, prompts, sampling, seed; those of a step
    are named by it where steps differ from the job."""
    model: ModelFields | None = settings.model
    decode: DecodeFields | None = settings.decode
    if model is not None:
        converted = f", its weights as `{model.converts_to}`" if model.converts_to else ""
        if model.repo:
            yield "model", f"`{model.repo} ({model.file}, {model.revision})`{converted}"
        elif model.path:
            yield "model", f"`{PurePath(model.path).name}`{converted}"
    if model is not None and model.adapters:
        yield "adapters", ", ".join(f"`{name}`" for name in model.adapters)
    if decode is not None and decode.draft_model is not None and decode.draft_model.path:
        yield "draft model", f"`{PurePath(decode.draft_model.path).name}`, which changes no text"
    if model is not None and (model.repo or model.path) and (long_rows := settings.engine.long_rows):
        yield "long rows", long_rows
    if generated and model is not None:
        named = {node.step or name: node.op for name, node in settings.nodes.items() if _has_prompt(node.op)}
        for name, op in named.items():
            yield f"prompt of {name}" if len(named) > 1 else "prompt", _prompt(op, settings.data)
        used = {n.step or name: n.op["sampling"] for name, n in settings.nodes.items() if n.op.get("sampling")}
        differ = any(sampling != settings.sampling for sampling in used.values())
        for name, sampling in used.items() if differ else [("", settings.sampling)]:
            for key, value in _chosen(sampling):
                shown = _private(value)
                text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, default=str)
                yield f"sampling.{key}{f' of {name}' if differ else ''}", f"`{text}`"
    yield "seed", f"`{settings.seed}`"


def _has_prompt(op: Mapping[str, Any]) -> bool:
    return bool("template" in op or "messages" in op)


def _prompt(op: Mapping[str, Any], data: DataFields | None) -> str:
    """Return what a node makes its prompts of. `data`: of the job, which the node has too or not."""
    text = op.get("template") or (data.prompt_template if data is not None and op.get("data") == data else None)
    if messages := op.get("messages"):
        each = [messages] if isinstance(messages, str) else [f"{m['role']}: {m['content']}" for m in messages]
        text = each[0].removeprefix("user: ") if len(each) == 1 else "; ".join(each)
    if file := op.get("template_file"):
        return f"`{PurePath(file).name}`"
    return f"`{text}`" if text else "the chat template of the model"


def _chosen(sampling: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the sampling settings in SHOWN and all that differ from their defaults."""
    if not is_dataclass(sampling) or isinstance(sampling, type):
        return
    plain = type(sampling)()
    for each in fields(sampling):
        value = getattr(sampling, each.name)
        if each.name in SHOWN or value != getattr(plain, each.name):
            inside = list(_chosen(value, f"{prefix}{each.name}."))
            yield from inside or [(f"{prefix}{each.name}", value)]


def _private(value: Any) -> Any:
    """Return only the file name if `value` is a path, which is private to this machine."""
    return PurePath(value).name if isinstance(value, str) and _PATH.fullmatch(value) else value


def _sealed(text: str) -> str:
    return text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def _is_edited(path: Path) -> bool:
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8", errors="replace")
    body, _, _ = text.rpartition(_SEAL.partition("{}")[0])
    return text != _sealed(body)
