"""A file that is read round after round is one endless source, which can be begun anew at the end of any chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.meter import StageMeter
from pipeline.api.records import Batch, ChunkEnd, Rejects
from pipeline.dataflow.inbox import NodeInbox
from pipeline.dataflow.target import Rounds
from pipeline.dataflow.target_progress import Budget, TargetProgress
from pipeline.settings import TargetSettings

ROWS, BAD, ROUNDS = 25, 12, 3
CSV = "n\n" + "".join(f"{i}\n" for i in range(ROWS))
"""How many rows a CSV file has is known when it has been read."""
JSONL = "".join("{bad\n" if i == BAD else f'{{"n": {i}}}\n' for i in range(ROWS))


@dataclass
class Sent:
    """What a source has sent, by chunk: (row, n) of its rows, n None for a reject; its length; the state at its end."""

    rows: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)


def read(path: Path, source_rows: int, chunk_rows: int, chunk: int = 0, state: bytes | None = None) -> Sent:
    target = TargetProgress(TargetSettings(accepted_rows=10**6, max_rounds=ROUNDS))
    op = Rounds(ReadPrompts(DataSettings(path=str(path)), source_rows), target, chunk_rows)
    op.plan()
    if state is not None:
        op.restore([state])
        op.seek(chunk)
    sent = Sent()
    for item in op.run(NodeInbox(StageMeter("read"))):
        if isinstance(item, Batch):
            columns = [item.data.column(name).to_pylist() for name in ("row", "n")]
            sent.rows.setdefault(item.chunk, []).extend(zip(*columns, strict=True))
        elif isinstance(item, Rejects):
            sent.rows.setdefault(item.chunk, []).extend((reject.row, None) for reject in item.rows)
        elif isinstance(item, ChunkEnd):
            sent.ends[item.chunk] = item.rows
            sent.states[item.chunk] = op.state(item.chunk)
    assert target.spent is Budget.ROUNDS
    return sent


@pytest.mark.parametrize("source_rows", [4, 100])
@pytest.mark.parametrize("chunk_rows", [1, 10, 60])
@pytest.mark.parametrize(("name", "text", "bad"), [("a.csv", CSV, None), ("a.jsonl", JSONL, BAD)], ids=["csv", "jsonl"])
def test_rows_are_numbered_on_and_a_resume_gives_the_tail(tmp_path, name, text, bad, source_rows, chunk_rows):
    path = tmp_path / name
    path.write_text(text)
    whole = read(path, source_rows, chunk_rows)
    rows = [pair for chunk in sorted(whole.rows) for pair in sorted(whole.rows[chunk])]
    assert rows == [(i, None if i % ROWS == bad else i % ROWS) for i in range(ROUNDS * ROWS)]
    assert all(row // chunk_rows == chunk for chunk, pairs in whole.rows.items() for row, _ in pairs)
    assert sum(whole.ends.values()) == ROUNDS * ROWS
    assert {rows for chunk, rows in whole.ends.items() if chunk < len(whole.ends) - 1} <= {chunk_rows}
    for chunk, state in list(whole.states.items())[:-1]:
        tail = read(path, source_rows, chunk_rows, chunk + 1, state)
        assert tail.rows == {k: pairs for k, pairs in whole.rows.items() if k > chunk}
        assert tail.ends == {k: n for k, n in whole.ends.items() if k > chunk}
