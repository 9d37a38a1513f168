"""Files of labels: JSON lines and CSV, as the page of `review` saves them, or made elsewhere.

A file from elsewhere needs `label` and one of `row`, `id` and the name of the job's id column. In CSV an empty field is
null, and commas, semicolons or tabs are between fields, as the header has them. A CSV file with a column `defused`, or
whose name has `.defused`, has a mark (') before texts that a spreadsheet would run, as `output.defuse` puts it there;
it is taken off.
"""

from __future__ import annotations

import base64
import csv
import itertools
import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError
from pipeline.api.records import record_json

MARK, MARKED = "'", "defused"
JSON_LINES = (".jsonl", ".ndjson")
TEXTS = ("label", "reviewer", "run", "folder", "comment", "stratum", "sample")


@dataclass(frozen=True, slots=True)
class Label:
    """What a reviewer says of a row.

    Args:
        label: what the verdict should be, as `text_of` writes it; None if the row was skipped or the label taken back.
        reviewer: who says so; the file's name without its ending if the file does not say.
        run: id of the run; None if the file does not say.
        folder: `data` or `data/NAME`; None if the file does not say.
        row, lineage: of the row in that run; `lineage` is None where rows have none.
        id: value of `data.id_column` as text.
        labelled_at: when, with a time zone.
        stratum, stratum_rows: of a sample of `review`: its stratum, and the rows of the run in that.
        sample: what labels of the same strata have in common; None if the file does not say.
        where: file and line, for messages.
    """

    label: str | None
    reviewer: str
    run: str | None = None
    folder: str | None = None
    row: int | None = None
    lineage: tuple[int, ...] | None = None
    id: str | None = None
    comment: str = ""
    labelled_at: datetime | None = None
    stratum: str | None = None
    stratum_rows: int | None = None
    sample: str | None = None
    where: str = ""

    def joins_by_row(self, run: str, id_column: str | None) -> bool:
        """Return True if the label is of a row by `row` and `lineage`, False if by `id`: rows of another run are known
        by their ids alone.

        Raises:
            ConfigError: it names a row of another run, and there is no id that both have.
        """
        if self.row is not None and self.run in (None, run):
            return True
        if self.id is not None and id_column is not None:
            return False
        if self.row is None:
            raise ConfigError(
                f"{self.where}: the label has an id and no row, and the job of the run names no id column"
                " (data.id_column); give labels with 'row'"
            )
        lacks = "the label has no id" if self.id is None else "the job of this run names no id column (data.id_column)"
        raise ConfigError(
            f"{self.where}: the label is of run {self.run}, not of run {run}, and {lacks}, by which rows of two runs"
            " are joined; give the labels with the run that they are of"
        )


def text_of(value: object) -> str | None:
    """Return a verdict or an id as text, as labels have it: texts as they are, else JSON (true, 3, 0.5); None of null
    and of an empty text."""
    return (value if isinstance(value, str) else record_json(value)) or None if value is not None else None


def plain_stratum(name: str) -> str:
    """Return the name of a stratum as JSON; a blind page has it in base64. Names of other samples stay as they are."""
    try:
        text = base64.b64decode(name, validate=True).decode()
    except ValueError:
        return name
    return text if text.startswith("{") else name


def read_labels(files: Iterable[Path], id_column: str | None = None) -> list[Label]:
    """Return the labels of `files` in their order, those of one reviewer for one row among them; see `latest`.

    Args:
        id_column: `data.id_column` of the run: a file may have the ids under its name.

    Raises:
        ConfigError: a file cannot be read, or a line is no label.
    """
    reviewers = _reviewers(files := list(files))
    return [
        _label(values, path.suffix.lower(), where, id_column, reviewers[path])
        for path in files
        for where, values in _records(path)
    ]


def latest(labels: Iterable[tuple[Hashable, Label]]) -> dict[tuple[Hashable, str], Label]:
    """Return the last label by row and reviewer: the one with the later time or, where one has no time, the one that
    comes later. `labels`: each with what its row is known by."""
    found: dict[tuple[Hashable, str], Label] = {}
    for row, label in labels:
        before = found.get((row, label.reviewer))
        if before and before.labelled_at and label.labelled_at and label.labelled_at < before.labelled_at:
            continue
        found[row, label.reviewer] = label
    return found


def _reviewers(files: Iterable[Path]) -> dict[Path, str]:
    """Return the reviewer of each file whose labels name none: its name without endings, after as many folders as tell
    it from the other files (`ann/labels`), with its ending if no folder does."""

    def name(path: Path, parts: int) -> str:
        whole = path.resolve()
        bare = whole.name.removesuffix(whole.suffix).replace(f".{MARKED}", "")
        return "/".join([*whole.parts[-parts:-1], bare]) if parts <= len(whole.parts) else str(whole)

    found = {}
    for path in files:
        others = [other for other in files if other.resolve() != path.resolve()]
        parts = next(n for n in itertools.count(1) if name(path, n) not in {name(other, n) for other in others})
        found[path] = name(path, parts)
    return found


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each record of a file with its place."""
    try:
        if path.suffix.lower() == ".csv":
            with path.open(encoding="utf-8-sig", newline="") as file:
                header = file.readline()
                file.seek(0)
                lines = csv.DictReader(file, delimiter=next((each for each in ";\t" if each in header), ","))
                columns = lines.fieldnames or []
                marked = MARKED in columns or f".{MARKED}" in path.name  # a browser may have renamed it
                if "label" not in columns:
                    has = f"it has {', '.join(columns) or 'none'}{_renamed(columns, 'label')}"
                    raise ConfigError(f"{path} has no column 'label'; {has}")
                for fields in lines:
                    values = {k: v.removeprefix(MARK) if marked else v for k, v in fields.items() if k and v}
                    yield f"{path} line {lines.line_num}", values
        elif path.suffix.lower() in JSON_LINES:
            with path.open(encoding="utf-8-sig") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield f"{path} line {number}", _object(line, f"{path} line {number}")
        else:
            raise ConfigError(f"{path}: labels are JSON lines ({' or '.join(JSON_LINES)}) or CSV (.csv)")
    except OSError as error:
        raise ConfigError(f"labels in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8; save it as UTF-8, in a spreadsheet as 'CSV UTF-8'") from error
    except csv.Error as error:
        raise ConfigError(f"labels in {path} cannot be read: {error}") from error


def _renamed(there: Iterable[str], *wanted: str) -> str:
    """Return which of the names `there` to write otherwise, for the end of a message; nothing if none is near."""
    near = [(name, want) for name in there for want in wanted if name.strip().lower() == want.lower()]
    return "".join(f"; write '{want}' instead of '{name}'" for name, want in near)


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where} is no JSON object; a label is one, with 'label' and 'row' or 'id'")
    return values


def _label(values: Mapping[str, Any], ending: str, where: str, id_column: str | None, reviewer: str) -> Label:
    name, row = values.get("id"), values.get("row")
    if name is None and id_column is not None:
        name = values.get(id_column)
    if row is None and name is None:
        column = f", '{id_column}'" if id_column not in (None, "id", "row") else ""
        has = (
            f"it has {', '.join(values)}{_renamed(values, 'row', 'id', *([id_column] if column and id_column else []))}"
        )
        raise ConfigError(f"{where} names no row: it has neither 'row' nor 'id'{column}; {has}")
    if "label" not in values and ending != ".csv":  # of CSV an empty field is null
        raise ConfigError(f"{where} has no 'label'; it has {', '.join(values)}{_renamed(values, 'label')}")
    try:
        lineage, at = values.get("lineage"), values.get("labelled_at")
        texts = {field: _text(field, values.get(field)) for field in TEXTS}
        stratum, rows = texts["stratum"], values.get("stratum_rows")
        if rows is not None and _whole(rows) < 1:
            raise ValueError(f"stratum_rows is {rows}; the stratum has this row, so it is 1 at least")
        return Label(
            label=texts["label"],
            reviewer=texts["reviewer"] or reviewer,
            run=texts["run"],
            folder=texts["folder"],
            row=None if row is None else _whole(row),
            lineage=_lineage(lineage),
            id=_text("id", name),
            comment=texts["comment"] or "",
            labelled_at=None if at is None else datetime.fromisoformat(at).astimezone(),
            stratum=plain_stratum(stratum) if stratum else None,
            stratum_rows=None if rows is None else _whole(rows),
            sample=texts["sample"],
            where=where,
        )
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"{where} is no label: {error}") from error


def _text(field: str, value: object) -> str | None:
    if isinstance(value, list | dict):
        raise ValueError(f"'{field}' is a {'list' if isinstance(value, list) else 'object'}; it is a text or one value")
    text = text_of(value)
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"'{field}' has half a character, {text[:40]!a}; write the file anew as UTF-8")
    return text


def _lineage(value: Sequence[int] | str | None) -> tuple[int, ...] | None:
    if value is None or value == []:
        return None
    return tuple(_whole(part) for part in (value.split(".") if isinstance(value, str) else value))


def _whole(value: object) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(f"{value!r} is no whole number")
    if isinstance(value, str) and value.removesuffix(".0").isdecimal():  # 7.0: pandas writes numbers so beside null
        value = value.removesuffix(".0")
    number = int(value)  # type: ignore[call-overload]
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{str(value)[:40]} is no number of a row: it has more than 64 bits")
    return int(number)
