"""What Score and Embed have in common: a model, a context of their own from its pool, and the engine's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import Model, TokenIds, Wanted, inspect_model, load_model, max_sequence_tokens
from operators.generation.memory_need import model_memory
from operators.generation.wiring import engine_threads, warn_unless_exact
from operators.scoring.text_batches import Part, Reader, reading_settings
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import Cancelled
from pipeline.api.protocols import MemoryNeed, Runtime

TEXT_TYPES = (pa.string(), pa.list_(pa.int32()))
"""A text, or its token ids."""


class TextReader:
    """Reads texts on the thread of the run's engine. `close` gives the context back.

    Args:
        runtime: of the node.
        model, settings: the config groups `model` and `runtime`.
        wanted: logits or embeddings.
    """

    def __init__(self, runtime: Runtime, model: ModelSettings, settings: EngineSettings, wanted: Wanted) -> None:
        self.model = load_model(runtime, model)
        self.room = max_sequence_tokens(settings, self.model.n_ctx_train)
        """Tokens of a text at most."""
        how = reading_settings(settings, self.model.n_vocab)
        decoder, self._give_back = self.model.lease(how, wanted)
        warn_unless_exact(runtime, settings, self.model)
        self._reader = Reader(decoder)
        runtime.when_stuck(self.model.abort)
        self._threads = engine_threads(runtime)
        self._runtime = runtime
        self._groups, self._seconds = 0, 0.0
        node = runtime.node
        runtime.totals(lambda: {f"{node}/groups": float(self._groups), f"{node}/read_s": self._seconds})

    def read(self, texts: Seq[TokenIds], first: Seq[int], take: Callable[[int, Part], None]) -> None:
        """Read `texts`, each from the position `first` on at the latest; the engine's thread is to `take` what comes.

        `take` is called with the index of a text and its parts, in order; another text may come between.

        Raises:
            DecodeFailed: the backend refused a call.
            Cancelled: the run is being cancelled.
        """
        for group in self._reader.groups([len(ids) for ids in texts]):
            if self._runtime.cancelled:
                raise Cancelled

            def work(group: Seq[int] = group) -> None:
                began = time.perf_counter()
                for part in self._reader.read([texts[i] for i in group], [first[i] for i in group]):
                    take(group[part.index], part)
                self._seconds += time.perf_counter() - began

            self._threads.call(work)
            self._groups += 1
            self._runtime.meter.tokens_in += sum(len(texts[i]) for i in group)

    def close(self) -> None:
        """Nothing is read any more."""
        self._give_back()


def check_room(model: ModelSettings, settings: EngineSettings) -> None:
    """Check what can be checked before the model is loaded.

    Raises:
        ConfigError: the model cannot work, or `runtime.max_sequence_tokens` is more than it was trained for.
    """
    facts = inspect_model(model)
    if facts.n_ctx_train is not None:
        max_sequence_tokens(settings, facts.n_ctx_train)


def reading_memory(
    model: ModelSettings, settings: EngineSettings, key: Hashable, wanted: Wanted
) -> Iterable[MemoryNeed]:
    """What a TextReader takes; see `model_memory`."""
    sizes = inspect_model(model).sizes
    return () if sizes is None else model_memory(model, reading_settings(settings, sizes.n_vocab), key, wanted)


def arithmetic_of(model: ModelSettings, settings: EngineSettings) -> dict[str, Any]:
    """For a fingerprint: the model's content, and what can change the last bits where these matter."""
    return {"model": inspect_model(model).fingerprint, **settings.exactness()}


def text_ids(column: pa.Array, model: Model, *, begins: bool) -> Iterator[TokenIds | None]:
    """int32 token ids of each text of `column`, None for null. Lists of ids are taken as they are; a null in one is -1.

    Special tokens in a text are parsed. `begins`: a BOS is put first where the model wants one.
    """
    if pa.types.is_list(column.type):
        for ids in column.to_pylist():
            yield None if ids is None else np.array([-1 if i is None else i for i in ids], np.int32)
        return
    texts = column.cast(pa.binary()).to_pylist()
    flat, offsets = model.tokenize([text or b"" for text in texts])
    skipped = 1 if model.add_bos and not begins else 0
    for text, start, end in zip(texts, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield None if text is None else flat[start + skipped : end]


def why_unreadable(ids: TokenIds, room: int, n_vocab: int) -> str | None:
    """Why a model with a vocabulary of `n_vocab` words cannot read `ids`; None if it can."""
    if len(ids) > room:
        return f"the text has {len(ids)} tokens, and runtime.max_sequence_tokens is {room}"
    unknown = ids[(ids < 0) | (ids >= n_vocab)]
    if len(unknown):
        return f"token id {unknown[0]} is not in the vocabulary, which has the ids 0 to {n_vocab - 1}"
    return None
