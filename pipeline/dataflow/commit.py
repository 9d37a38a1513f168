"""How far the source may run ahead, and when a chunk is committed.

Chunks are committed in order, each once: when chunk k is committed, so are all before it. On this rely
RunState.next_chunk (one number says where a resume begins) and RunState.commit; ChunkWindow (a window, not a set);
Outbox and Inbox (a ChunkEnd never overtakes another); Target and Rounds (which rows are the first ones); the state of
operators (Stateful: only that of the last chunk is kept); and pipeline.run.remake_chunks, which makes chunks again
from a number on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.api.errors import Cancelled, Released
from pipeline.api.meter import StageMeter, StageState
from pipeline.api.records import ChunkEnd, Shard

CommitHook = Callable[[ChunkEnd, Sequence[Shard]], None]


class ChunkWindow:
    """Lets a source begin chunk k only when fewer than `max_open` chunks before it are uncommitted."""

    def __init__(self, max_open: int, first: int = 0) -> None:
        self._max_open = max_open
        self._committed = first
        self._cancelled = False
        self._released = False
        self._changed = threading.Condition()

    def begin(self, chunk: int, meter: StageMeter) -> None:
        """Wait on `meter`'s clock, as blocked, until `chunk` may begin.

        Raises:
            Cancelled: the run is being cancelled.
            Released: every reader of the source has left, so no chunk will be committed any more.
        """

        def must_wait() -> bool:
            return chunk >= self._committed + self._max_open and not self._cancelled and not self._released

        with self._changed:
            if must_wait():
                with meter.clock.during(StageState.BLOCKED):
                    while must_wait():
                        self._changed.wait()
            if self._cancelled:
                raise Cancelled
            if self._released:
                raise Released

    def committed(self, chunk: int) -> None:
        """`chunk` and all before it are done."""
        with self._changed:
            self._committed = max(self._committed, chunk + 1)
            self._changed.notify_all()

    def release(self) -> None:
        """Nobody reads the source any more."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def cancel(self) -> None:
        """End the wait of whoever waits."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()


@dataclass(frozen=True)
class Remembered:
    """What operators remember as of a chunk, by node: `whole` takes the place of what they kept before, `added` does
    not."""

    whole: dict[str, bytes] = field(default_factory=dict)
    added: dict[str, bytes] = field(default_factory=dict)


class ChunkStates:
    """What operators remember as of each chunk that they have ended and that is not committed yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Remembered] = {}

    def keep(self, node: str, chunk: int, state: bytes) -> None:
        """`node`, which is Stateful, is about to end `chunk`.

        Raises:
            TypeError: `state` is not bytes.
        """
        with self._lock:
            self._open.setdefault(chunk, Remembered()).whole[node] = _checked(f"state({chunk})", state)

    def add(self, node: str, chunk: int, added: bytes) -> None:
        """`node`, which is Accumulating, is about to end `chunk`.

        Raises:
            TypeError: `added` is not bytes.
        """
        with self._lock:
            self._open.setdefault(chunk, Remembered()).added[node] = _checked(f"added({chunk})", added)

    def take(self, chunk: int) -> Remembered:
        """What belongs to a chunk that is being committed; handed out once."""
        with self._lock:
            return self._open.pop(chunk, Remembered())


def _checked(what: str, state: bytes) -> bytes:
    if not isinstance(state, bytes):
        raise TypeError(f"{what} gave {type(state).__name__}; it must give bytes")
    return state


@dataclass
class _Pending:
    end: ChunkEnd
    done: set[str] = field(default_factory=set)
    shards: list[Shard] = field(default_factory=list)


class Committer:
    """Commits chunk k when every sink has its end, in order.

    A sink that has left counts as having every later chunk's end; a chunk that none of `sinks` ended is not committed.
    Nothing else commits: not a cancel, not a failure.

    Args:
        sinks: the graph's sinks.
        reject_writer: the name under which the writer of rejects reports.
        commit: called once a chunk, in order.
        window: told of every commit.
        on_last: called when the chunk that `stop_after` named is committed.
    """

    def __init__(
        self,
        sinks: Sequence[str],
        reject_writer: str,
        commit: CommitHook,
        window: ChunkWindow,
        on_last: Callable[[], None] = lambda: None,
    ) -> None:
        self._sinks = frozenset(sinks)
        self._live = {*sinks, reject_writer}
        self._commit = commit
        self._window = window
        self._on_last = on_last
        self._last: int | None = None
        self._committed = -1
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}

    def chunk_done(self, sink: str, end: ChunkEnd, shards: Sequence[Shard]) -> None:
        """`sink` has all rows of the chunk on disk, under temporary names."""
        with self._lock:
            pending = self._pending.setdefault(end.chunk, _Pending(end))
            pending.done.add(sink)
            pending.shards.extend(shards)
            self._commit_ready()

    def sink_left(self, sink: str) -> None:
        """`sink` has ended without failure and will report no more chunks."""
        with self._lock:
            self._live.discard(sink)
            self._commit_ready()

    def stop_after(self, chunk: int) -> None:
        """Commit no chunk after `chunk`, which may be committed already; -1 for none at all. The first call counts."""
        with self._lock:
            if self._last is not None:
                return
            self._last = chunk
            if chunk <= self._committed:
                self._on_last()

    def _commit_ready(self) -> None:
        for chunk in sorted(self._pending):
            pending = self._pending[chunk]
            if self._last is not None and chunk > self._last:
                return
            if not self._live <= pending.done or not self._sinks & pending.done:
                return
            self._commit(pending.end, pending.shards)
            del self._pending[chunk]
            self._committed = chunk
            self._window.committed(chunk)
            if chunk == self._last:
                self._on_last()
