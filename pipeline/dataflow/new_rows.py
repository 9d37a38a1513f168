"""NewRows: the source of a run with `append`, which sends the rows of its input that the run has not taken yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.api.errors import ConfigError, GraphError, InputError, SchemaError
from pipeline.api.protocols import Inbox, ListInbox, Runtime, Source
from pipeline.api.records import LINEAGE, ROW, SUPERSEDES, Batch, ChunkEnd, Item, Rejects
from pipeline.dataflow.graph import Graph, Node
from pipeline.dataflow.seen_rows import CONTENT, ChunkKeys, RowKey, SeenRows, Taken, key_of_bad, keys_of
from pipeline.dataflow.wrapped_source import WrappedSource, part, renumbered
from pipeline.system.seen_hashes import HASH

ROW_ID = pa.field("row_id", pa.string())
"""The key of each row, where the input has no ids."""
CHANGED = (
    "{} of the input: the id of one that was taken, and other content; left out. append_changed=again takes such rows"
    " again, and whoever reads the results gets the newest"
)
SAME_ID = "{} of the input: the id of one before it, and other content; taken as newer ones, which readers get"
GONE = "not in the input any more as they were taken: {} of chunk {}"
GONE_BACK = "{} of the input: what it was before it was taken again, and is left out"


class NewRows(WrappedSource):
    """Sends those rows of `source` that were not taken before, numbered on behind them, in chunks of `chunk_rows`.

    Each reading begins at the first row of the input, whatever was committed: what a run has taken it knows by the keys
    in its state, not by places. So the input may grow, lose and change files and be put in another order.

    A seek to a chunk that is committed sends that chunk and those after it again, row by row as they were (repair).

    Args:
        id_column: whose value a row is known by; ROW_ID, if the input has no such column: its content, and the column
            is added.
        again: a row whose content has changed is taken again, with the number of the other in SUPERSEDES.
    """

    append = True

    def __init__(self, source: Source, chunk_rows: int, id_column: str, *, again: bool = False) -> None:
        super().__init__(source)
        self._chunk_rows = chunk_rows
        self._id_column = id_column
        self._again = again
        self._seen = SeenRows(again=again)
        self._committed: list[ChunkKeys] = []
        """The chunks to send again; empty where the run goes on."""
        self._first_row = 0
        """The number of the first row to send."""
        self._sent = 0
        """Rows of the current chunk that were sent."""
        self._taken: list[RowKey] = []
        """Those rows whose chunk has not ended, in order."""
        self._input_schema = b""
        """Of the rows that were taken; empty before the first one."""
        self._schema_to_keep = b""
        self.enough: Callable[[], bool] = lambda: False
        """Returns True where no other chunk is to begin (a target is reached)."""

    @property
    def title(self) -> str:
        return f"{self._source.title}, new rows"

    def plan(self) -> pa.Schema:
        self._source_schema = schema = super().plan()
        self._adds_id = self._id_column == ROW_ID.name and ROW_ID.name not in schema.names
        if not self._adds_id and self._id_column not in schema.names:
            raise SchemaError(
                f"append knows rows by data.id_column={self._id_column}, and the input has no such column; it has"
                f" {', '.join(schema.names)}. Name one of them, or take the key out: rows are known by their content"
            )
        if self._again and self._adds_id:
            raise ConfigError(
                "append_changed=again needs ids, as a changed row cannot be told from a new one without: name their"
                " column with data.id_column"
            )
        for field in [SUPERSEDES] * self._again:
            if field.name in schema.names:
                raise SchemaError(
                    f"append_changed=again adds a column '{field.name}', and the input has one; rename it"
                )
        return pa.schema([*schema, *[ROW_ID] * self._adds_id, *[SUPERSEDES] * self._again])

    def fingerprint(self) -> Mapping[str, Any]:
        """Return nothing of the input, which may grow."""
        return {}

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        self._log = runtime.log
        runtime.numbers(self._seen.counts)

    def restore(self, states: Iterable[bytes]) -> None:
        chunks = [ChunkKeys.unpacked(state) for state in states]
        self._input_schema = next((chunk.schema for chunk in chunks if chunk.schema), b"")
        self._committed = chunks[self._chunk :]
        self._seen.restore(chunks)
        self._first_row = self._seen.count - sum(len(chunk.keys) for chunk in self._committed)

    def state(self, chunk: int) -> bytes:
        """Return the keys of the rows that `chunk` has, which were sent."""
        rows, self._taken = self._taken[: self._ended_rows], self._taken[self._ended_rows :]
        schema, self._schema_to_keep = self._schema_to_keep, b""
        keys = np.array([row.key for row in rows], HASH)
        return ChunkKeys(keys, np.array([row.content for row in rows], CONTENT), schema).packed()

    def total_rows(self) -> int | None:
        return None  # how many of them are new only reading tells

    def fraction_read(self) -> float | None:
        return self._source.fraction_read()

    def has_new(self) -> bool:
        """Return True if the input has a row that is to be taken. What was taken has to be restored."""
        return not self.enough() and any(True for _ in self._new_items(ListInbox()))

    def notes(self) -> Iterator[str]:
        """Yield sentences on rows of the input, once it is read, that are not what one expects."""
        counts = ((CHANGED, self._seen.counts.rows_changed), (SAME_ID, self._seen.same_ids))
        for sentence, rows in (*counts, (GONE_BACK, self._seen.gone_back)):
            if rows:
                yield sentence.format(f"{rows:,} row{'s' * (rows != 1)}")

    def run(self, inbox: Inbox) -> Iterator[Item]:
        if self._committed:
            yield from self._as_they_were(inbox)
            return
        if self.enough():
            return
        for items, stop in self._new_items(inbox):
            while self._first_row < stop:
                last = min(stop, self._first_row + self._chunk_rows - self._sent)
                yield from self._part(items, last)
                if self._sent == self._chunk_rows:
                    yield self._end()
                    if self.enough():
                        return
        for note in self.notes():
            self._log.warning("%s", note)
        if self._sent or (self._chunk == 0 and self._seen.count == 0):
            yield self._end()

    def _new_items(self, inbox: Inbox) -> Iterator[tuple[list[Batch | Rejects], int]]:
        """Yield the new rows of each chunk of the source that has some, and the number behind the last of them."""
        self._seen.begin_reading()
        for items, keys in self._read(inbox):
            taken = self._seen.take(list(keys.values()))
            new = {row: one for row, one in zip(keys, taken, strict=True) if one is not None}
            if new:
                self._check_schema()
                self._taken += [keys[row]._replace(key=one.key) for row, one in new.items()]
                yield [self._renumbered(item, new) for item in items], self._seen.count

    def _as_they_were(self, inbox: Inbox) -> Iterator[Item]:
        """Send committed chunks again."""
        readings = self._readings(inbox)
        for chunk in self._committed:
            # By key and content: a chunk may have two versions of a row.
            rows = zip(chunk.keys.tolist(), chunk.contents.tolist(), strict=True)
            places = {row: number for number, row in enumerate(rows, self._first_row)}
            stop, self._readings_begun, found = self._first_row + len(places), 0, list[RowKey]()
            while places:
                items, named = next(readings)
                if self._readings_begun > 1:
                    # Without those that were rejected the others may still be the bytes that were written.
                    self._log.warning(GONE.format(f"{len(places):,} row{'s' * (len(places) != 1)}", self._chunk))
                    break
                new: dict[int, Taken] = {}
                for row, key in named.items():
                    listed = key.key.rstrip(b"\0"), key.content  # as NumPy gives them
                    if listed in places:
                        new[row] = self._seen.taken_as(places.pop(listed), key.key)
                        found.append(key)
                yield from (item for item in (self._renumbered(i, new) for i in items) if item.num_rows)
            self._taken += found
            self._sent, self._first_row = len(found), stop
            yield self._end()

    def _readings(self, inbox: Inbox) -> Iterator[tuple[list[Batch | Rejects], dict[int, RowKey]]]:
        """Read the input again and again, and yield its rows under the keys that they were taken by."""
        while True:
            self._readings_begun += 1
            self._seen.begin_reading()
            for items, keys in self._read(inbox):
                yield items, dict(zip(keys, self._seen.named(list(keys.values())), strict=True))
            yield [], {}  # the end, also of an input without rows

    def _read(self, inbox: Inbox) -> Iterator[tuple[list[Batch | Rejects], dict[int, RowKey]]]:
        """Read the input, and yield the items of each chunk of the source, with the keys of their rows in order."""
        self._source.seek(0)
        id_column = None if self._adds_id else self._id_column
        items: list[Batch | Rejects] = []
        keys: dict[int, RowKey] = {}
        for item in self._source.run(inbox):
            if isinstance(item, Batch):
                rows = item.data.column(ROW.name).to_pylist()
                keys |= zip(rows, keys_of(item.data, id_column, (ROW.name, LINEAGE.name)), strict=True)
            elif isinstance(item, Rejects):
                keys |= {reject.row: key_of_bad(reject.record or reject.reason) for reject in item.rows}
            if isinstance(item, Batch | Rejects):
                items.append(item)
            elif isinstance(item, ChunkEnd):
                yield items, dict(sorted(keys.items()))
                items, keys = [], {}

    def _renumbered(self, item: Batch | Rejects, taken: Mapping[int, Taken]) -> Batch | Rejects:
        """Return the rows of `item` that are taken, with the columns that are added."""
        new = renumbered(item, {row: one.number for row, one in taken.items()})
        if isinstance(new, Rejects):
            return replace(new, chunk=self._chunk)
        by_number = {one.number: one for one in taken.values()}
        rows = [by_number[row] for row in new.data.column(ROW.name).to_pylist()]
        columns = [*new.data.columns]
        if self._adds_id:
            columns.append(pa.array([one.key.ljust(HASH.itemsize, b"\0").hex() for one in rows], ROW_ID.type))
        if self._again:
            columns.append(pa.array([one.supersedes for one in rows], SUPERSEDES.type))
        added = [*[ROW_ID] * self._adds_id, *[SUPERSEDES] * self._again]
        data = pa.record_batch(columns, schema=pa.schema([*new.data.schema, *added]))
        return replace(new, chunk=self._chunk, data=data)

    def _part(self, items: Sequence[Batch | Rejects], last: int) -> Iterator[Item]:
        """Yield the rows up to number `last` as rows of the current chunk."""
        cuts = (part(item, self._chunk, self._first_row, last) for item in items)
        yield from (cut for cut in cuts if cut.num_rows)
        self._sent, self._first_row = self._sent + last - self._first_row, last

    def _end(self) -> ChunkEnd:
        end = ChunkEnd(self._chunk, self._sent)
        self._ended_rows, self._sent, self._chunk = self._sent, 0, self._chunk + 1
        return end

    def _check_schema(self) -> None:
        """Refuse new rows whose columns are not those of the rows that were taken."""
        schema = self._source_schema.remove_metadata()
        if not self._input_schema:
            self._input_schema = self._schema_to_keep = schema.serialize().to_pybytes()
        before = pa.ipc.read_schema(pa.py_buffer(self._input_schema))
        then, now = ({field.name: str(field.type) for field in one} for one in (before, schema))
        if then != now:
            differing = [name for name in then | now if then.get(name) != now.get(name)]
            each = [
                f"'{name}' ({then.get(name, 'not there')} then, {now.get(name, 'not there')} now)" for name in differing
            ]
            raise InputError(
                f"new rows have other columns than those that the run has taken: {', '.join(each)}. data.schema"
                " says which columns there are, and data.types their types (from the first night on, where they may be"
                " taken for another); or begin anew in another output_dir"
            )


def appending(nodes: Mapping[str, Node], chunk_rows: int, id_column: str | None, *, again: bool) -> dict[str, Node]:
    """Return `nodes` with the source wrapped in NewRows."""
    name = next((name for name, node in nodes.items() if not node.inputs), None)
    if name is None:
        return dict(nodes)  # it is refused as a graph
    source = nodes[name].op
    if not isinstance(source, Source):
        raise GraphError(
            name, f"{type(source).__name__} is no pipeline.api.Source, which append needs to read it again"
        )
    new_rows = NewRows(source, chunk_rows, id_column or ROW_ID.name, again=again)
    return {**nodes, name: replace(nodes[name], op=new_rows)}


def check_sinks(graph: Graph) -> None:
    """Refuse a job with `append_changed=again` whose results do not say which rows are the newest."""
    columns = graph.schemas[graph.source]
    for sink in graph.sinks if columns is not None and SUPERSEDES.name in columns.names else ():
        for columns in (graph.schemas[name] for name in graph.nodes[sink].inputs):
            if columns is not None and SUPERSEDES.name not in columns.names:
                raise GraphError(
                    sink,
                    f"gets no column '{SUPERSEDES.name}', by which readers find the newest rows (append_changed=again);"
                    " a Select before it has to keep it",
                )
