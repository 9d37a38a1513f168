"""The rejects of a chunk as lines of errors.jsonl: one for each request, in the order of the input."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from operators.openai.bodies import digest_of
from operators.openai.faults import Code, parse_reason
from operators.sources.lines import LINE, TEXT

Reject = Mapping[str, Any]
"""A row of rejects/."""


def error_lines(rejects: Sequence[Reject]) -> Iterator[str]:
    """A line for each source row of `rejects`, which are those of one chunk, sorted by (row, lineage)."""
    by_row: dict[int, list[Reject]] = {}
    for reject in rejects:
        by_row.setdefault(reject["row"], []).append(reject)
    for row, group in by_row.items():
        yield json.dumps(_line(row, _cause(group)), ensure_ascii=False)


def _cause(group: Sequence[Reject]) -> Reject:
    """Why the request failed; that its other choices went with it is no cause."""
    return next((r for r in group if parse_reason(r["reason"])[0] is not Code.INCOMPLETE), group[0])


def _line(row: int, reject: Reject) -> dict[str, Any]:
    custom_id, number = _origin(reject)
    code, message = parse_reason(reject["reason"])
    if reject["file"] is not None:  # only what could not be read at all comes with its file
        code = Code.INVALID_LINE
    where = "" if number is None else f"line {number}: "
    return {
        "id": f"batch_req_{digest_of(row, custom_id)}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code.value, "message": where + message},
    }


def _origin(reject: Reject) -> tuple[str | None, int | None]:
    """custom_id and the number of the line, as far as they are known."""
    record = _object(reject["record"])
    number = reject["line"] if reject["line"] is not None else record.get(LINE.name)
    given = record.get("custom_id", _object(record.get(TEXT.name)).get("custom_id"))
    return (given if isinstance(given, str) and given else None), number


def _object(text: object) -> Mapping[str, Any]:
    """The object that `text` holds; empty where it holds none."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
