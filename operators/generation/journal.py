"""However a node ends, what its engine has finished is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from operators.engine.loop.client import Client
from operators.engine.sequence import Sequence as Row
from operators.generation.store import CompletionStore, StoredCompletion


@contextmanager
def journaled(
    client: Client,
    store: CompletionStore | None,
    stored: Callable[[Sequence[Row]], dict[bytes, StoredCompletion]],
    finish: Callable[[Sequence[Row]], object],
) -> Iterator[None]:
    """Within the block what is finished is journaled also while the node waits for a slow reader; at its end, however
    it ends, what was not collected.

    Args:
        stored: finished rows as the store takes them.
        finish: takes the rows that are left.
    """
    given = set[Row]()

    def uncollected() -> dict[bytes, StoredCompletion]:
        """What has come since the last call."""
        nonlocal given
        rows = client.uncollected()
        fresh = [row for row in rows if row not in given]
        given = set(rows)
        return stored(fresh)

    if store is not None:
        store.watch(uncollected)
    try:
        yield
    finally:
        finish(client.leave())
        if store is not None:
            store.forget(uncollected)
