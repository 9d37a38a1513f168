"""Generate for a server: asks it to complete the prompts of its input."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from operators.endpoint.api.bodies import Bodies
from operators.endpoint.completions import AnswerColumns, answer_fields
from operators.endpoint.connection.client import Endpoint
from operators.endpoint.connection.request import Request
from operators.endpoint.estimate import PolledInbox, forecast_of
from operators.endpoint.metrics import AnswerMetrics, usage_lines
from operators.endpoint.rows import AnswerLookup, EndpointRow, EndpointRowMaker
from operators.endpoint.server import server_of
from operators.generation.node import GenerateNode, RowBackend
from operators.generation.structured import answer_check
from operators.generation.wiring import shared_store
from operators.prompts.arguments import TemplateArguments, tools_of_job
from operators.rows.token_lists import PROMPT_TEXT
from operators.settings import StoreSettings
from operators.settings.endpoint import AUTO, EndpointSettings
from pipeline.api.errors import ConfigError
from pipeline.api.forecast import Forecast, Task
from pipeline.api.protocols import Inbox, Runtime
from pipeline.api.records import Batch, ChunkEnd, Item, require_column

APIS = ("chat", "completions")
TAKEN_ROWS, TAKEN_S = 64, 0.05
"""Answers are passed on when there are so many, or so long after the first of them."""
NOT_EXACT = "what a server answers may depend on its other requests, so runtime.deterministic does not hold for it"


class EndpointGenerate(GenerateNode[EndpointRow]):
    """Completes the prompts of its input at a server; operators.generate.Generate has the arguments."""

    title = "Generate"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.model, EndpointSettings)
        self._model = model = self.model
        if model.api not in APIS:
            raise ConfigError(f"model.api={model.api} makes no texts; Generate needs {' or '.join(APIS)}")
        is_raw = self.completion_text == "raw"
        for key, is_given, remedy in (
            ("output.completion_ids=true", self.completion_ids, "leave it out"),
            ("output.completion_text=raw", is_raw, "the server keeps reasoning and answer apart"),
            ("runtime.priority", self.runtime.priority is not None, "leave it out"),
        ):
            if is_given:
                raise ConfigError(f"{key} cannot be with a server; {remedy}")

    def _adapter_names(self) -> None:
        return None

    def _planned(self, schema: pa.Schema) -> list[pa.Field]:
        require_column(schema, PROMPT_TEXT.name, [pa.string()])
        self._check = answer_check(self.sampling.structured)
        if self._model.dialect != AUTO:
            self._bodies(self._model)
        self._arguments = TemplateArguments(self._model, self._data)
        self._columns = self._arguments.plan(schema)
        calls = self.tool_calls and self._data.has_tools and self.sampling.tools != "none"
        return answer_fields(self.sampling, reasons=self.reasoning and self._model.api == "chat", calls=calls)

    def open(self, runtime: Runtime) -> None:
        super().open(runtime)
        store = shared_store(runtime, self.store)
        server = server_of(runtime, self._model)
        self._endpoint = server.endpoint
        if self._adapters.chosen or self._adapters.column is not None:
            self._endpoint.attempts.model = None  # answers name the adapter
        if self.runtime.deterministic:
            runtime.resource(("warned", NOT_EXACT), lambda: runtime.log.info(NOT_EXACT))
        if store is not None:
            self._lookup = AnswerLookup(runtime, store, self.store.retry.finish_reason)
        self._requests = EndpointRowMaker(
            self.sampling,
            self._seeds(runtime),
            self._model.api,
            self._bodies(server.settings),
            self._arguments,
            self._columns,
            server.identity(store, runtime),
            self._adapters,
        )
        tools = None if self._data.tools is None else json.dumps(tools_of_job(self._data.tools))
        self._completions = AnswerColumns(
            self._kept, self._fields, self._schema, self._check, self.sampling, tools, self._data.tools_column
        )
        self._metrics = AnswerMetrics(runtime, server.settings)

    def _forecast(self, runtime: Runtime, batches: Sequence[Batch], task: Task) -> Forecast:
        if not batches:
            return Forecast(task.rows)
        self.store = StoreSettings(enabled=False)  # a dry run writes nothing, and times what is answered
        self.open(runtime)

        def run(few: Batch) -> Iterator[Item]:
            return self.run(PolledInbox([few, ChunkEnd(few.chunk, few.num_rows)]))

        return forecast_of(run, batches, task, self._token_counts, self._samples.each, self._model)

    def _token_counts(self, output: Sequence[Batch]) -> tuple[list[float], list[float]]:
        def of(name: str) -> list[float]:
            return [n or 0 for batch in output for n in batch.data.column(f"{self._prefix}{name}").to_pylist()]

        return of("prompt_token_count"), of("completion_token_count")

    def report(self, directory: Path, node: str) -> Iterable[str]:
        return usage_lines(node, directory)

    def _bodies(self, model: EndpointSettings) -> Bodies:
        return Bodies(model, self.sampling, self._data, "model=endpoint")

    def _connect(self, inbox: Inbox) -> RowBackend[EndpointRow]:
        keep = (lambda row: None) if self._lookup is None else self._lookup.keep
        return EndpointClient(self._endpoint, keep, inbox.wake)


def _taken(request: Request) -> None:
    """Hear of a request whose answer was taken."""


class EndpointClient:
    """A node's connection to an endpoint. Its methods are called from the node's thread.

    Args:
        endpoint: sends the requests.
        keep: stores an answer; called in the endpoint's thread.
        wake: called when there are rows to collect.
    """

    def __init__(self, endpoint: Endpoint, keep: Callable[[EndpointRow], None], wake: Callable[[], None]) -> None:
        self._endpoint, self._keep, self._wake = endpoint, keep, wake
        self._finished: deque[EndpointRow] = deque()
        self._sent = 0
        self._ringing = False

    @property
    def waiting(self) -> int:
        return self._sent - self._endpoint.active

    def submit(self, rows: Sequence[EndpointRow]) -> None:
        requests = [row.request for row in rows if row.request is not None]
        for row, request in zip(rows, requests, strict=True):
            request.owner, request.done = self, partial(self._take, row)
        self._sent += len(rows)
        self._endpoint.submit(requests)

    def collect(self) -> list[EndpointRow]:
        count = len(self._finished)
        self._endpoint.check()  # in this order, since rows come after the failure that has ended them
        return self._collected(count)

    def end(self) -> None:
        pass

    def leave(self) -> list[EndpointRow]:
        if self._sent:
            self._endpoint.leave(self)
        return self._collected(len(self._finished))

    def _collected(self, count: int) -> list[EndpointRow]:
        self._sent -= count
        return [self._finished.popleft() for _ in range(count)]

    def _take(self, row: EndpointRow, request: Request) -> None:
        """Take an answer, in the endpoint's thread."""
        row.answer, row.error = request.result, request.error
        request.done, request.filled = _taken, None  # else row and request would hold each other, with images
        try:
            self._keep(row)
        except Exception as failed:  # of the store: what is not kept would be paid for again
            self._endpoint.fail(failed)
        self._finished.append(row)
        if len(self._finished) == TAKEN_ROWS:
            self._wake()
        elif not self._ringing:  # answers that come one by one would leave in batches of one
            self._ringing = True
            self._endpoint.after(TAKEN_S, self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._wake()
