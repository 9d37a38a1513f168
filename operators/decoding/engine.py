"""The engine: one thread a device that runs the step loop for every node that generates on it.

Nodes share an engine, because two thread teams on the same cores ruin each other. Each has a Client: it submits
sequences, and collects them when they are finished. A row is admitted only when its node has room to take it back, so a
slow reader of one node never stops another, and nothing grows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import pyarrow as pa

from operators.decoding.model import Decoder, Logits
from operators.decoding.scheduler import Decode, Line, Scheduler, Unfilled, Work
from operators.decoding.sequence import Sequence, State
from pipeline.meter import Clock, StageMeter, StageState
from pipeline.protocols import Table

STEPS_SCHEMA = pa.schema(
    [
        pa.field("t_s", pa.float64()),
        pa.field("rows", pa.int32()),
        pa.field("prefill_tokens", pa.int32()),
        pa.field("decode_tokens", pa.int32()),
        pa.field("form_s", pa.float64()),
        pa.field("decode_s", pa.float64()),
        pa.field("sample_s", pa.float64()),
        pa.field("kv_tokens", pa.int64()),
        *(pa.field(f"unfilled_{cause.value}", pa.int32()) for cause in Unfilled),
    ]
)


class Strategy(Protocol):
    """How completions are made: what each call computes for its rows, and what becomes of the logits."""

    def fill(self, work: Work) -> None:
        """Put the tokens of `work` into the decoder's batch."""

    def advance(self, work: Work, logits: Logits) -> None:
        """Take the logits of `work`."""


class Client:
    """A node's line to the engine. Its methods are called from the node's thread.

    Args:
        engine: the engine.
        meter: of the node; counts prompt and completion tokens.
        depth: the node's distance from the source.
        capacity: rows that are in slots or finished and not collected, at most.
        wake: called from the engine's thread when rows were finished or the engine failed.
    """

    def __init__(self, engine: Engine, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> None:
        self._engine = engine
        self._capacity = capacity
        self._finished: deque[Sequence] = deque()
        self.meter = meter
        self.wake = wake
        self.line = Line(depth, self._credit)

    @property
    def waiting(self) -> int:
        """Rows that wait for a slot."""
        return len(self.line.waiting)

    def submit(self, rows: Iterable[Sequence]) -> None:
        """Queue `rows`, to be admitted in this order."""
        now = self._engine.now()
        for row in rows:
            row.queued_at = now
            row.owner = self
            self.line.waiting.append(row)
        self._engine.wake()

    def collect(self) -> list[Sequence]:
        """The rows that were finished since the last call.

        Raises:
            BaseException: what ended the engine's thread, if anything did.
        """
        self._engine.raise_failure()
        rows = self._take()
        if rows:
            self._engine.wake()
        return rows

    def end(self) -> None:
        """No more rows will be submitted."""
        self.line.ended = True

    def leave(self) -> list[Sequence]:
        """No longer be served, once the step that runs is done; returns rows that were finished and not collected."""
        self._engine.drop(self)
        return self._take()

    def finished(self, row: Sequence) -> None:
        """Called from the engine's thread."""
        self._finished.append(row)

    def _take(self) -> list[Sequence]:
        rows = [self._finished.popleft() for _ in range(len(self._finished))]
        self.line.returned += len(rows)
        return rows

    def _credit(self) -> int:
        return self._capacity - (self.line.admitted - self.line.returned)


class Engine:
    """Runs the step loop until it is closed.

    Args:
        decoder: the context.
        scheduler: who runs.
        strategy: what is computed.
        steps: the table of steps, one row a call.
        meters: of decode and of sample.
        clock: seconds.
    """

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        strategy: Strategy,
        steps: Table,
        meters: tuple[StageMeter, StageMeter],
        clock: Clock = time.perf_counter,
    ) -> None:
        self._decoder = decoder
        self._scheduler = scheduler
        self._strategy = strategy
        self._steps = steps
        self._meters = meters
        self._clock = clock
        self._began = clock()
        self._changed = threading.Condition()
        self._requests: deque[Callable[[], None]] = deque()
        self._closing = False
        self._failure: BaseException | None = None
        self._clients: list[Client] = []
        self._thread = threading.Thread(target=self._run, name="engine")
        self.totals = dict.fromkeys(
            ("steps", "slot_steps", "slot_steps_used", "form_s", "decode_s", "sample_s", "prefill_tokens"), 0.0
        )

    def connect(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client for a node; the thread starts with the first."""
        client = self.client(meter, depth, capacity, wake)
        with self._changed:
            self._requests.append(lambda: self.add(client))
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()
        return client

    def client(self, meter: StageMeter, depth: int, capacity: int, wake: Callable[[], None]) -> Client:
        """A client that is not served yet."""
        return Client(self, meter, depth, capacity, wake)

    def drop(self, client: Client) -> None:
        """Forget a client and its rows; returns when the step that runs is done."""
        done = threading.Event()

        def remove() -> None:
            self._remove(client)
            done.set()

        with self._changed:
            self._requests.append(remove)
            self._changed.notify()
        while self._thread.is_alive() and not done.wait(0.05):
            pass

    def close(self) -> None:
        """End the thread after its step."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._clock()

    def wake(self) -> None:
        """Rows were queued, or room was made."""
        with self._changed:
            self._changed.notify()

    def raise_failure(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def active_slots(self) -> str:
        """For the progress line."""
        return f"slots {len(self._scheduler.slots)}/{self._scheduler.slots.size}"

    def _run(self) -> None:
        for meter in self._meters:
            meter.clock.start(StageState.STARVED)
        try:
            while self._wait_for_work():
                self.step()
        except BaseException as error:  # reaches the nodes through collect()
            self._failure = error
        finally:
            for meter in self._meters:
                meter.clock.stop()
            for client in list(self._clients):
                client.wake()

    def _wait_for_work(self) -> bool:
        with self._changed:
            while True:
                while self._requests:
                    self._requests.popleft()()
                if self._closing:
                    return False
                if self._scheduler.runnable:
                    return True
                state = StageState.BLOCKED if self._scheduler.waiting else StageState.STARVED
                for meter in self._meters:
                    meter.clock.enter(state)
                self._changed.wait()

    def step(self) -> None:
        """Schedule, decode, sample, hand over. Only for the engine's own thread, or where that does not run."""
        decode_meter, sample_meter = self._meters
        began = self._clock()
        work = self._scheduler.schedule(began)
        if work is None:
            return
        self._strategy.fill(work)
        tokens = self._decoder.batch.n_tokens

        filled = self._clock()
        with decode_meter.clock.during(StageState.BUSY):
            logits = self._decoder.decode()

        decoded = self._clock()
        with sample_meter.clock.during(StageState.BUSY):
            self._strategy.advance(work, logits)

        ended = self._clock()
        self._record(work, tokens, began, (filled - began, decoded - filled, ended - decoded))
        self._hand_over(work.sequences, ended)

    def _record(self, work: Work, tokens: int, began: float, seconds: tuple[float, float, float]) -> None:
        unfilled = work.unfilled if isinstance(work, Decode) else {}
        rows = len(work.sequences)
        decode_tokens = rows if isinstance(work, Decode) else 0
        kv_tokens = sum(row.n_past for row in work.sequences)
        prefill_tokens = 0 if isinstance(work, Decode) else tokens
        causes = (unfilled.get(cause, 0) for cause in Unfilled)
        self._steps.append(began - self._began, rows, prefill_tokens, decode_tokens, *seconds, kv_tokens, *causes)
        for meter in self._meters:
            meter.batches += 1
            meter.rows_in += rows
            meter.rows_out += rows
        self._total(work, prefill_tokens, seconds)

    def _total(self, work: Work, prefill_tokens: int, seconds: tuple[float, float, float]) -> None:
        self.totals["steps"] += 1
        self.totals["prefill_tokens"] += prefill_tokens
        for key, value in zip(("form_s", "decode_s", "sample_s"), seconds, strict=True):
            self.totals[key] += value
        if isinstance(work, Decode):
            self.totals["slot_steps"] += self._scheduler.slots.size
            self.totals["slot_steps_used"] += len(work.rows)

    def _hand_over(self, rows: Iterable[Sequence], now: float) -> None:
        owners: dict[Client, None] = {}
        for row in rows:
            if row.tokens and not row.first_token_at:
                row.first_token_at = now
            if row.finish_reason is not None or row.error is not None:
                row.finished_at = now
                owner = self._free(row)
                owner.finished(row)
                owners[owner] = None
        for owner in owners:
            owner.wake()

    def _free(self, row: Sequence) -> Client:
        self._decoder.remove(row.slot)
        self._scheduler.release(row)
        row.state = State.FINISHED
        if not isinstance(row.owner, Client):
            raise TypeError("a sequence in a slot has no owner")
        return row.owner

    def add(self, client: Client) -> None:
        """Serve `client`. Only for the engine's own thread, or where that does not run."""
        self._scheduler.add_line(client.line)
        self._clients.append(client)

    def _remove(self, client: Client) -> None:
        self._scheduler.drop_line(client.line)
        if client in self._clients:
            self._clients.remove(client)
        for row in self._scheduler.slots.rows():
            if row.owner is client:
                self._free(row)
