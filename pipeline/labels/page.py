"""Write review.html: one file with a sample of rows and what labels them, which works without network and server.

Texts of rows are data in it: JSON in a script that no browser runs, which the page puts on screen as text. A policy in
the page forbids every request and every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.api.records import LINEAGE, ROW, value_as_text
from pipeline.labels.label_files import text_of
from pipeline.labels.sample import PLACE, ReviewSample
from pipeline.results.reader import Results
from pipeline.results.report.pictures import pictures
from pipeline.results.report.rows import shown
from pipeline.system.atomic_files import write_atomically
from pipeline.system.known_secrets import without_data_urls
from pipeline.system.result_files import shown_rows

PICTURE_SIDE = 480
"""Pixels of the longer side of a picture, at most."""
SCRIPTS = ("review_kept.js", "review_files.js", "review.js")
"""Parts of the page's one script, in their order: what is kept, files, what is seen and pressed."""
_IN_SCRIPT = str.maketrans({"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""What could end the script that holds the data, or a line of it, by what JSON has for it."""


@dataclass(frozen=True)
class ReviewPage:
    """What the page shows.

    Args:
        folder: of the rows, `data` or `data/NAME`.
        columns: whose values are shown, in this order.
        choices: labels that have a button.
        question: stands above the buttons; it may have several lines.
        blind: the strata's names are not readable at a glance.
    """

    folder: str
    columns: Sequence[str]
    choices: Sequence[str]
    question: str
    blind: bool = False

    def write(self, path: Path, results: Results, sample: ReviewSample) -> None:
        """Write the page to `path`, with the rows of `sample` of the run `results`. Raises StorageError."""
        of_place = dict(self._rows(results, sample))
        records = [of_place[place] for place in sample.places.tolist()]
        head = {
            "run": results.run_id or None,
            "job": results.job,
            "folder": self.folder,
            "columns": self.columns,
            "choices": self.choices,
            "question": self.question,
            "sample": sample.name(results.run_id, self.folder),
            "strata": [[stratum.name(blind=self.blind), len(stratum.places)] for stratum in sample.strata],
        }
        text = as_data(head)
        digest = hashlib.sha256("\n".join([text, *records]).encode()).hexdigest()[:16]
        before, _, after = _template().partition("{{ data }}")
        data = [f'{{"head":{text[:-1]},"digest":"{digest}"}},"rows":[\n', ",\n".join(records), "\n]}"]
        write_atomically(path, [before, *data, after])

    def _rows(self, results: Results, sample: ReviewSample) -> Iterator[tuple[int, str]]:
        """Yield the place of each row of the sample and its JSON: row, lineage, id, stratum, values, pictures. Rows are
        read of one file at a time."""
        id_column = (results.config.get("data") or {}).get("id_column") or ""
        names = dict.fromkeys([ROW.name, LINEAGE.name, id_column, *self.columns])
        stratum = dict(zip(sample.places.tolist(), sample.stratum.tolist(), strict=True))
        places, start = np.sort(sample.places), 0
        for path, rows in results.shards(self.folder):
            here = places[np.searchsorted(places, start) : np.searchsorted(places, start + rows)] - start
            table = results.scanned(self.folder, [path]) if len(here) else None
            if table is not None:
                there = [name for name in names if name in table.collect_schema()]  # files of JSON lines may differ
                chosen = table.select(there).with_row_index(PLACE).filter(pl.col(PLACE).is_in(here.tolist()))
                for row in shown_rows(chosen.collect()):
                    place = start + row.pop(PLACE)
                    keys = [row.get(ROW.name), row.get(LINEAGE.name), text_of(row.get(id_column))]
                    values = {name: row.get(name) for name in self.columns}
                    images = pictures(values, results.config, PICTURE_SIDE)
                    fields = ["" if images.get(n) and not isinstance(v, str) else _field(v) for n, v in values.items()]
                    yield place, as_data([*keys, stratum[place], fields, [images.get(name, []) for name in values]])
            start += rows


def as_data(value: object) -> str:
    """Return `value` as JSON that can stand in a script of a page, whatever texts it has."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=value_as_text)
    return text.translate(_IN_SCRIPT).encode("utf-8", "backslashreplace").decode()  # half a character has no UTF-8


def _field(value: object) -> object:
    """Return a value for the page: a text, null, {turns: [role, text] ...} of a conversation, {json: text} of other
    lists and objects."""
    if value is None or isinstance(value, str):
        return value and without_data_urls(value)
    if isinstance(value, list) and not any(isinstance(inner, str | list | dict) for inner in value):
        return shown(value)
    if isinstance(value, list) and all(isinstance(turn, Mapping) and turn.get("role") for turn in value):
        return {"turns": [[str(turn["role"]), _said(turn)] for turn in value]}
    if isinstance(value, list | dict):
        return {"json": _pretty(value)}
    return value_as_text(value) if isinstance(value, bytes) else text_of(value)


def _said(turn: Mapping[str, Any]) -> str:
    """Return what a turn says: its content, and what else it has, as calls of tools, as JSON."""
    content = turn.get("content")
    more = {key: value for key, value in turn.items() if key not in ("role", "content") and value not in (None, [])}
    said = without_data_urls(content) if isinstance(content, str) else "" if content is None else _pretty(content)
    return "\n".join([*([said] if said else []), *([_pretty(more)] if more else [])])


def _pretty(value: object) -> str:
    return without_data_urls(json.dumps(value, ensure_ascii=False, indent=2, default=value_as_text))


def _template() -> str:
    """Return the page with style, script and the policy that names them by digest."""
    text = _file("review.html")
    script = "\n".join(map(_file, SCRIPTS))
    for name, content in (("css", _file("review.css")), ("js", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        text = text.replace(f"{{{{ {name} }}}}", content).replace(f"{{{{ {name}_digest }}}}", digest)
    return text


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
