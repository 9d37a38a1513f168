"""EmitCases, the source of a benchmark: each row is a case, one run of a contender on a scenario. Discard, a sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from operators.settings import OutputSettings
from operators.settings.checks import check
from pipeline.api import ROW, Batch, ChunkEnd, ConfigError, Inbox, Item, Operator, Output, Source, require_column
from tools.bench.scenarios import ALL, SCENARIOS, TOGGLES
from tools.bench.settings import BenchSettings

_TEXTS, _NUMBERS = ("scenario", "contender"), ("slots", "repeat", "rows")
CASE_SCHEMA = pa.schema([*((n, pa.string()) for n in _TEXTS), *((n, pa.int32()) for n in _NUMBERS), ROW])


@dataclass(frozen=True)
class Case:
    """One measurement to make. `rows`: prompts of the scenario, before a contender's copies."""

    scenario: str
    contender: str
    slots: int
    repeat: int
    rows: int


def cases(bench: BenchSettings) -> list[Case]:
    """Return all cases. Within a scenario and a number of slots the contenders alternate, A B A B: machines drift."""
    lists = (("scenarios", bench.scenarios, tuple(SCENARIOS)), ("toggle", bench.toggle, TOGGLES))
    for key, chosen, known in lists:
        unknown = [name for name in chosen if name not in known]
        check(not unknown, f"bench.{key}", unknown, f"there are {', '.join(known)}")
    names = [*bench.scenarios, *(f"toggle_{name}" for name in bench.toggle)]
    all_cases = [case for name in names for case in _of_scenario(name, bench)]
    if not all_cases:
        contenders = sorted({c.name for name in names for c in ALL[name].contenders})
        raise ConfigError(
            f"bench.contenders={bench.contenders} leaves nothing to measure; there are {', '.join(contenders)}"
        )
    return all_cases


def _of_scenario(name: str, bench: BenchSettings) -> Iterator[Case]:
    plan = ALL[name]
    for slots in plan.slots or bench.slots:
        rows = min(plan.rows or (plan.rows_per_slot or bench.rows_per_slot) * slots, bench.max_rows)
        for repeat in range(bench.repeats):
            for contender in plan.contenders:
                asked_for = not bench.contenders or contender.name in bench.contenders
                if asked_for and not (contender.once and repeat):
                    yield Case(name, contender.name, slots, repeat, rows)


class EmitCases(Source):
    """Emits the cases of a benchmark, in the order in which they are to be measured.

    Args:
        chunk_rows: cases per chunk; a resumed benchmark does not repeat committed chunks.
    """

    def __init__(self, bench: BenchSettings, chunk_rows: int) -> None:
        check(chunk_rows >= 1, "chunk_rows", chunk_rows, "it is 1 or more")
        self._cases = cases(bench)
        self._chunk_rows = chunk_rows
        self._sent = 0

    def plan(self) -> pa.Schema:
        return CASE_SCHEMA

    def seek(self, chunk: int) -> None:
        self._sent = min(chunk * self._chunk_rows, len(self._cases))

    def run(self, inbox: Inbox) -> Iterator[Item]:
        """Emit the cases, one per batch, so that each is measured when its turn comes."""
        for first in range(self._sent, len(self._cases), self._chunk_rows):
            chunk, part = first // self._chunk_rows, self._cases[first : first + self._chunk_rows]
            for row, case in enumerate(part, first):
                yield Batch(chunk, pa.RecordBatch.from_pylist([{**asdict(case), ROW.name: row}], schema=CASE_SCHEMA))
                self._sent = row + 1
            yield ChunkEnd(chunk, len(part))

    def fraction_read(self) -> float | None:
        return self._sent / len(self._cases)


class Discard(Operator):
    """Replaces WriteRows and drops its rows, to measure a dataflow without its files; `output` is ignored."""

    def __init__(self, output: OutputSettings) -> None:
        self._output = output

    def plan(self, schema: pa.Schema) -> None:
        require_column(schema, ROW.name, [ROW.type])

    def process(self, batch: Batch) -> Iterable[Output]:
        return ()
