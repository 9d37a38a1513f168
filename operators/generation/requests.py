"""From rows to sequences: the sampling values of each row, its seed, and what cannot be generated at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.engine.backend.interface import Model, TokenIds
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.stop_strings import StopWatcher
from operators.engine.sequence import Sequence
from operators.generation.sampling_params import ParamsMaker, token_ids
from operators.rows.row_hash import hash_of, mix, row_hashes
from operators.rows.token_lists import PROMPT_IDS, list_views
from operators.settings import SamplingSettings
from operators.settings.sampling_rules import plain_value, sampling_rules
from operators.settings.structured import StructuredSettings, parse_schema
from pipeline.api.errors import ConfigError
from pipeline.api.records import ROW, Batch

SEED_BITS = 63
MOST_DRAWINGS = 10_000
"""Combinations of columns' values that are remembered."""
MOST_SCHEMAS = 256
"""The same where each brings a compiled schema, which takes some 100 kB."""


@dataclass(slots=True)  # not frozen: one is made for every row, and freezing doubles the cost
class Place:
    """Where a row stands: row `index` of `batch`, number `row` of the source."""

    batch: Batch
    index: int
    row: int


def place_of(row: Sequence) -> Place:
    """Where a row stands that Requests has made.

    Raises:
        TypeError: another node has made it.
    """
    if not isinstance(row.handle, Place):
        raise TypeError(f"a row of another node came back: {row.handle!r}")
    return row.handle


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that cannot be generated, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The values of a row in the form that its sequence needs."""

    params: SamplingParams
    stops: Seq[bytes]
    keep_stop: bool


class Requests:
    """Makes the sequences of a Generate node.

    Args:
        sampling: the job's values; the columns of `per_row` override them.
        model: gives the end-of-generation tokens and the bytes of tokens.
        max_sequence_tokens: prompt and completion tokens of a row at most.
        seed: the job's seed.
        node: the node's name; two nodes draw different numbers for the same row.
        id_column: whose value, where it is not null, seeds the row instead of its position.
        make: makes a sequence, as the decode strategy has it.
        round_of: the round over the source to which rows (int64) belong. Ids come again in every round, and the numbers
            that are drawn must not.
        limit: the key that sets max_sequence_tokens, for the reasons of rejects.

    Raises:
        ConfigError: a token id of the job's values is not in the vocabulary, or a text has no tokens.
    """

    def __init__(
        self,
        sampling: SamplingSettings,
        model: Model,
        max_sequence_tokens: int,
        seed: int,
        node: str,
        id_column: str | None,
        make: Callable[..., Sequence] = Sequence,
        round_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] = np.zeros_like,
        limit: str = "runtime.max_sequence_tokens",
    ) -> None:
        self._make = make
        self._round_of = round_of
        self._sampling = sampling
        self._room = max_sequence_tokens
        self._limit = limit
        self._base = hash_of(f"{seed}|{node}")
        self._id_column = id_column
        self._model = model
        self._pieces = model.pieces()
        self._maker = ParamsMaker(model)
        self._schema_column = sampling.structured.json_schema_column
        self._columns = [*sampling.per_row, *([self._schema_column] if self._schema_column is not None else [])]
        self._drawings: dict[str, Drawing | str] = {}
        self._plain = self._drawing(vars(sampling))

    def too_short(self) -> str | None:
        """What to say where not even the shortest of `sampling.structured.choices` fits into `max_tokens`."""
        choices, most = self._sampling.structured.choices, self._sampling.max_tokens
        if not choices or "max_tokens" in self._sampling.per_row:
            return None
        least = min(len(token_ids(self._model, choice.encode())) for choice in choices)
        if least <= most:
            return None
        return f"sampling.max_tokens={most} is too few: the shortest of sampling.structured.choices has {least} tokens"

    def sequences(self, batch: Batch) -> list[Sequence | Refused]:
        """A sequence for each row of `batch`, or why there can be none."""
        prompts = list_views(batch.data.column(PROMPT_IDS.name))
        overrides = [batch.data.column(name).to_pylist() for name in self._columns]
        each = zip(*overrides, strict=True) if overrides else iter([()] * len(prompts))
        numbers = batch.data.column(ROW.name).to_pylist()
        places = [Place(batch, i, number) for i, number in enumerate(numbers)]
        return list(map(self._sequence, places, prompts, each, self._seeds(batch.data)))

    def _sequence(
        self, place: Place, prompt: TokenIds, values: tuple[Any, ...], seed: int | None
    ) -> Sequence | Refused:
        drawing = self._drawing_of(values)
        room = self._room - len(prompt)
        if isinstance(drawing, str):
            return Refused(place.index, drawing)
        if seed is None:
            return Refused(
                place.index, f"column 'seed' has {place.batch.data['seed'][place.index]}; allowed: whole numbers"
            )
        if not len(prompt):
            return Refused(place.index, "the prompt is empty; the model needs at least one token")
        if room < 1:
            return Refused(
                place.index,
                f"the prompt has {len(prompt)} tokens and leaves no room for a completion:"
                f" {self._limit} is {self._room}",
            )
        stops = StopWatcher(drawing.stops, self._pieces, drawing.keep_stop) if drawing.stops else None
        return self._make(place, prompt, drawing.params, seed, min(drawing.params.max_tokens, room), stops)

    def _drawing_of(self, values: tuple[Any, ...]) -> Drawing | str:
        """What applies under these overrides, or why they cannot work; remembered, since few differ."""
        if not values:
            return self._plain
        named = dict(zip(self._sampling.per_row, values, strict=False))
        named.pop("seed", None)
        named.pop("n", None)
        schema = None if self._schema_column is None else values[-1]
        key = repr((*named.values(), schema))
        if key not in self._drawings:
            if len(self._drawings) >= (MOST_DRAWINGS if self._schema_column is None else MOST_SCHEMAS):
                self._drawings.clear()
            self._drawings[key] = self._overridden({k: v for k, v in named.items() if v is not None}, schema)
        return self._drawings[key]

    def _overridden(self, overrides: dict[str, Any], schema: str | None) -> Drawing | str:
        """The job's values under `overrides` and the row's JSON `schema`, or why these cannot work."""
        try:
            values = vars(self._sampling) | {k: plain_value(k, v) for k, v in overrides.items()}
            if self._schema_column is not None:
                values["structured"] = self._of_row(self._schema_column, schema)
            broken = [(k, text) for k, (holds, text) in sampling_rules(values).items() if not holds]
            if not broken:
                return self._drawing(values)
        except ConfigError as error:
            return str(error) if schema is None else f"column '{self._schema_column}': {error}"
        except (TypeError, ValueError, AttributeError):
            return f"the columns {overrides!r} have values of a type that cannot be used"
        name, allowed = broken[0]
        where = f"column '{name}' has" if name in overrides else f"under its columns the row has {name}"
        return f"{where} {values[name]!r}; allowed: {allowed}"

    def _of_row(self, column: str, schema: str | None) -> StructuredSettings:
        """What the text of a row whose `column` has `schema` has to be."""
        if schema is None and self._sampling.structured.optional:
            return StructuredSettings()
        if schema is None:
            raise ConfigError(f"column '{column}' is null; it has to hold the JSON schema of the row")
        parsed = parse_schema(schema, "its value")
        return replace(self._sampling.structured, json_schema=parsed, json_schema_column=None, optional=False)

    def _drawing(self, values: Mapping[str, Any]) -> Drawing:
        stops = [stop.encode() for stop in values["stop"]]
        return Drawing(self._maker.make(values), stops, values["keep_stop"])

    def _seeds(self, data: pa.RecordBatch) -> Seq[int | None]:
        """The seed of each row: the one its `seed` column gives, else a hash of job seed, node, id and lineage. None
        where the column has no whole number."""
        seeds = row_hashes(data, self._identities(data), self._base)
        made: list[int] = (seeds >> np.uint64(1)).tolist()
        if "seed" in self._sampling.per_row:
            given = data.column("seed").to_pylist()
            return [m if g is None else _seed_of(g) for m, g in zip(made, given, strict=True)]
        return made

    def _identities(self, data: pa.RecordBatch) -> npt.NDArray[np.uint64]:
        numbers = np.asarray(data.column(ROW.name))
        if self._id_column is None:
            return numbers.astype(np.uint64)
        given = zip(data.column(self._id_column).to_pylist(), numbers.tolist(), strict=True)
        ids = np.array([number if i is None else hash_of(str(i)) for i, number in given], np.uint64)
        rounds = self._round_of(numbers)
        return np.where(rounds == 0, ids, mix(ids + rounds.astype(np.uint64)))


def _seed_of(given: float) -> int | None:
    """The seed that a column gives, None if it is no whole number."""
    return int(given) & (2**SEED_BITS - 1) if given == given // 1 else None


def key_parameters(row: Sequence, settings: bytes) -> bytes:
    """Every value of the row, besides its prompt, that can change its text: its `settings`, which are those of
    `setting_parameters`, and the seed where numbers are drawn. Not max_tokens, which only says where the text is cut.
    """
    return settings if row.params.greedy else settings + row.seed.to_bytes(8, "little")


def setting_parameters(row: Sequence) -> bytes:
    """The sampling values of the row. Rows of one job share them, or a few."""
    stops = None if row.stops is None else (row.stops.stops, row.stops.keep)
    return repr((row.params.identity, stops)).encode()


def misfit(row: Sequence) -> str | None:
    """Why the text of a finished row is not what its constraint asks for; None where it is, or where it has none."""
    if row.fits or row.params.constraint is None:
        return None
    end = f"before the {row.params.constraint.noun} was complete"
    if row.max_tokens == row.params.max_tokens:
        return f"cut by max_tokens={row.max_tokens} {end}"
    room = len(row.prompt) + row.max_tokens
    return (
        f"cut by runtime.max_sequence_tokens (or runtime.n_ctx) at {room} tokens, after {row.max_tokens} tokens, {end}"
    )


def completion_text(row: Sequence, pieces: Seq[bytes]) -> str:
    """The text of a finished row: the bytes of its tokens, up to a stop string; what is no UTF-8 becomes U+FFFD."""
    if row.stops is not None:
        return bytes(row.stops.text[: row.stops.cut]).decode("utf-8", "replace")
    return b"".join([pieces[t] for t in row.tokens]).decode("utf-8", "replace")
