"""The job that appends, its input, and the rows that it has given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from operators.settings import DataSettings
from pipeline.python.result import load
from pipeline.run_dir.state_reading import reading
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.squares import OPS

BAD = "no row"
Row = Mapping[str, Any] | str


def job(here: Path, data: Mapping[str, Any] | None = None, **more: Any) -> JobSettings:
    given = DataSettings(**{"path": str(here / "in"), "id_column": "id", **(data or {})})
    middle: dict[str, Any] = more.pop("middle", {})
    square: Mapping[str, Any] = more.pop("square", {})
    nodes = {
        "read": NodeSettings(
            {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": given, "chunk_rows": 3}
        ),
        "square": NodeSettings({"_target_": f"{OPS}.Square", **square}, "read"),
    }
    for name, op in middle.items():
        nodes[name] = NodeSettings(op, next(reversed(nodes)))
    output = {"format": more.pop("format", "parquet"), **more.pop("write", {})}
    nodes["write"] = NodeSettings(
        {"_target_": "operators.sinks.write_rows.WriteRows", "output": output}, next(reversed(nodes))
    )
    settings: dict[str, Any] = {"nodes": nodes, "data": given, "chunk_rows": 5, "append": True}
    return JobSettings(**settings | {"output_dir": str(here / "out"), "progress": "none", "max_error_rate": 1.0} | more)


def put(here: Path, *parts: Sequence[Row]) -> None:
    """Make the input anew: a file of JSON lines of each part."""
    folder = here / "in"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for i, rows in enumerate(parts):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{i:02}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def attempts(here: Path) -> int:
    with reading(here / "out") as state:
        return state.attempts


def rows(directory: Path, without: Sequence[str] = ("row", "supersedes")) -> list[dict[str, Any]]:
    """The rows that readers get, in an order of their own."""
    frame = load(directory).rows().collect().drop(without, strict=False)
    return sorted(frame.to_dicts(), key=repr)
