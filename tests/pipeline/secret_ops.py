"""An operator with secrets, as users write them: used, told in statuses and reasons, and raised in errors."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.api.protocols import Runtime
from pipeline.api.records import Batch, Output, Reject, Rejects
from pipeline.api.secret import Secret
from tests.pipeline.ops import Passes

SEEN: list[dict[str, Any]] = []
"""The arguments of every Calls that was made."""


@dataclass
class Client:
    """Settings of a client."""

    handle: Secret
    retries: int = 3


class Calls(Passes):
    """Passes rows through; rejects row 3 and warns with its secrets; raises with them where `fails`."""

    def __init__(
        self,
        marked: Secret | None = None,
        api_key: str | None = None,
        client: Client | None = None,
        options: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        url: str | None = None,
        note: str | None = None,
        fails: bool = False,
    ) -> None:
        given = [marked, api_key, client and client.handle, *(options or {}).values(), *(headers or {}).values(), url]
        self.texts = [text for text in (*given, note) if isinstance(text, str)]
        self._fails = fails
        SEEN.append({"marked": marked, "api_key": api_key, "client": client, "headers": headers, "note": note})

    def open(self, runtime: Runtime) -> None:
        logging.getLogger("pipeline.secret_ops").warning("called with %s", self.texts)
        runtime.status(lambda: f"asks {self.texts}")

    def process(self, batch: Batch) -> Iterable[Output]:
        if self._fails:
            raise ValueError(f"refused: {self.texts}")
        x = batch.data.column("x").to_pylist()
        if 3 in x:
            yield Rejects(batch.chunk, (Reject(3, f"no answer with {self.texts!r}"),))
        told = [(value, f"said {self.texts}") for value in x if value != 3][:1]
        yield batch.with_data(batch.data.filter(pa.array([value != 3 for value in x])), told=told)
