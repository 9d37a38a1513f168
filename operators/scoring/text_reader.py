"""ReadsTexts: the base of operators that read texts with a model, a context of their own, and the engine's thread."""

from __future__ import annotations

import hashlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from operators.engine.backend.interface import TokenIds
from operators.engine.backend.loading import gpus_of, identity_with_adapters, inspect_model, load_model
from operators.engine.backend.shape import Wanted, max_sequence_tokens
from operators.engine.backend.text_columns import TextColumns
from operators.estimate.texts import forecast_texts
from operators.generation.adapters import UNUSED_ADAPTERS, adapters_of_node, contents_of, mask_of
from operators.generation.canary import fixed_texts
from operators.generation.memory import model_memory
from operators.generation.wiring import (
    check_room,
    engine_thread,
    identity_of,
    of_engine,
    row_identity,
    warn_unless_exact,
)
from operators.scoring.answers_rows import Answer, AnswersRows, StoredAnswers
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import DecoderReader, Part, reading_settings
from operators.scoring.text_tokens import TEXT_TYPES, ReadsTokens
from operators.scoring.whole_texts import WholeTexts, encoder_settings, most_tokens
from operators.settings import DataSettings, ModelSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline.api import Forecast, Forecasts, Identity, MemoryNeed, Number, Runtime, Scope, Task, UsesModel
from pipeline.api.errors import Cancelled, ConfigError
from pipeline.api.identity import Gpu
from pipeline.api.records import Batch, require_column

Result = TypeVar("Result")


class ReadsTexts(ReadsTokens, AnswersRows, UsesModel, Forecasts):
    """Base of operators that compute columns from texts, with a context of their own. `columns` are joined into one."""

    scope = Scope.MODEL
    wanted: ClassVar[Wanted]
    """Outputs to ask of the model: logits, embeddings, or those of its classifier head."""
    broken: ClassVar[str]
    """Reason to reject a row whose answer is NaN."""
    adapter: Any = None
    """The adapters of the node, as RowAdapters takes them."""
    data: DataSettings | None = None
    told_by_fingerprint = ("data",)  # it changes no answer

    def __init__(
        self,
        model: ModelSettings,
        settings: EngineSettings,
        columns: Seq[str],
        store: StoreSettings | None,
        where: str | None = None,
    ) -> None:
        super().__init__(columns, store, where)
        self._model = of_engine(model, settings)
        self._adapters = adapters_of_node(self.adapter, self.data, list(model.adapters or ()))
        self._settings = settings
        self._lent: ExitStack | None = None

    @abstractmethod
    def _asked(self, text: Any) -> Seq[TokenIds]:
        """Return the token ids that a row's answer depends on, of what `_texts` found."""

    @abstractmethod
    def _answers(self, texts: Seq[Any]) -> Iterator[tuple[int, Answer | None]]:
        """Read the texts of rows; yield the number and the answer of each row when it is there, None if it is NaN."""

    def _options(self) -> tuple[object, ...]:
        """Return the arguments that an answer depends on. Called when the model is loaded."""
        return ()

    def _check(self, schema: pa.Schema) -> None:
        check_room(self._model, self._settings, continues=self.wanted is Wanted.EVERY)
        if self._adapters and inspect_model(self._model).encoder is not None:
            raise ConfigError(f"adapter={self.adapter}: adapters of encoders are not supported; leave it out")
        for name in self._columns:
            require_column(schema, name, TEXT_TYPES)

    def fingerprint(self) -> dict[str, Any]:
        return identity_with_adapters(self._model)

    def memory_needs(self) -> Iterable[MemoryNeed]:
        facts = inspect_model(self._model)
        if facts.sizes is not None:
            if facts.encoder is None and self.wanted is not Wanted.HEAD:
                settings, contexts = reading_settings(self._settings, facts.sizes.n_vocab), 1
            else:
                longest = max_sequence_tokens(self._settings, facts.n_ctx_train or 0)
                settings, contexts = encoder_settings(self._settings, longest, on_cpu=facts.placement.on_cpu)
            yield from model_memory(self._model, settings, id(self), self.wanted, contexts=contexts)

    def devices(self) -> Iterable[str]:
        return inspect_model(self._model).placement.devices

    def gpus(self, environment: Mapping[str, str]) -> Iterable[Gpu] | None:
        return gpus_of(self._model, environment)

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loaded = load_model(runtime, self._model)
        if self._model.adapters and self.adapter is None:
            runtime.log.warning(UNUSED_ADAPTERS, runtime.node)
        self._tokens_of = TextColumns(self._loaded, self._model.special_tokens_in_text)
        self._room = max_sequence_tokens(self._settings, self._loaded.n_ctx_train)
        model = self._loaded
        self._mask = mask_of(self._adapters, model.adapters)
        of_adapters = contents_of(self._mask, model.adapter_contents)
        context = self._options(), row_identity(model, self._settings.with_defaults()), *of_adapters
        self._stored = StoredAnswers(runtime, self._store, self.kind, type(self).__name__, *context)

    def identity(self) -> Identity:
        self._take_context()
        bits = self._thread.call(self._canary)
        return replace(identity_of(self._loaded, self._settings), bits=bits)

    def _canary(self) -> str:
        """Return a hash of the outputs for three fixed texts, to the bit. Runs on the engine's thread."""
        hashes: dict[tuple[int, int], bytes] = {}
        for parts in self._reader.read([Text(ids) for ids in fixed_texts(self._loaded.n_vocab, self._room)]):
            for part in parts:
                hashes[part.texts[0], part.start] = hashlib.blake2b(part.rows.tobytes(), digest_size=8).digest()
        return hashlib.blake2b(b"".join(hashes[key] for key in sorted(hashes)), digest_size=8).hexdigest()

    def close(self) -> None:
        if self._lent is not None:
            self._lent.close()

    def forecast(self, runtime: Runtime, batches: Seq[Batch], task: Task) -> Forecast:
        began = time.perf_counter()
        self._store = StoreSettings(enabled=False)  # a dry run writes nothing, and times what is computed
        self.open(runtime)
        try:
            prepare_s = time.perf_counter() - began
            of_own = partial(forecast_texts, self.process, self._token_counts, self._columns)
            forecast = self._where.forecast(batches, task, of_own, self._kept, self._schema)
            return replace(forecast, prepare_s=prepare_s)
        finally:
            self.close()

    def _unread(self, data: pa.RecordBatch) -> Mapping[int, str]:
        return self._tokens_of.refused(data, self._columns)

    def _key(self, text: Any) -> bytes:
        return self._stored.key(ids.tobytes() for ids in self._asked(text))

    def _read_new(self, texts: Mapping[bytes, Any]) -> dict[bytes, Answer | str]:
        keys = list(texts)
        answers: dict[bytes, Answer | str] = {}
        for number, answer in self._answers(list(texts.values())):
            answers[keys[number]] = self.broken if answer is None else answer
            if answer is not None:
                self._stored.keep({keys[number]: answer})
        return answers

    def _told(self, rows: pa.RecordBatch) -> list[tuple[int, str]]:
        return self._tokens_of.told(rows, self._columns)

    def _take_context(self) -> None:
        if self._lent is not None:
            return
        self._lent = ExitStack()
        runtime, model = self._runtime, self._loaded
        reader = self._reader = self._new_reader(self._lent)
        warn_unless_exact(runtime, self._settings, model)
        runtime.when_stuck(model.abort)
        self._thread = engine_thread(runtime)
        self._calls, self._seconds = 0, 0.0
        runtime.number("groups", Number("calls that read texts", "calls"), lambda: self._calls)
        runtime.number("read_s", Number("calls that read texts", "s"), lambda: self._seconds)
        tokens = Number("tokens computed by calls that read texts, common beginnings once", "tokens")
        runtime.number("decoded_tokens", tokens, lambda: reader.decoded)

    def _new_reader(self, lent: ExitStack) -> DecoderReader | WholeTexts:
        """Lease contexts, to be given back by `lent`, and return what reads texts with them."""
        model, settings = self._loaded, self._settings
        if self.wanted is Wanted.HEAD or not model.causal:
            each, contexts = encoder_settings(settings, self._room, on_cpu=model.placement.on_cpu)
            encoders = []
            for _ in range(contexts):
                encoder, give_back = model.lease_encoder(each, most_tokens(self._room), self.wanted)
                lent.callback(give_back)
                encoders.append(encoder)
            return lent.enter_context(closing(WholeTexts(encoders, self.wanted)))
        decoder, give_back = model.lease(reading_settings(settings, model.n_vocab), self.wanted)
        lent.callback(give_back)
        return DecoderReader(decoder, sharing=settings.optimise.prefix_sharing, adapters=self._mask)

    def _read(self, texts: Seq[Text], take: Callable[[Part], None], counts: Seq[int] | None = None) -> Iterator[int]:
        """Read `texts`, have the engine's thread `take` the outputs, and yield the number of each text that is read:
        its outputs come in order; those of another text may come between. `counts`: the tokens that each text adds to
        the meter; default: all it has."""
        ends = [len(text.ids) for text in texts]
        calls = self._reader.read(texts)

        def call() -> list[int] | None:
            """Make a call; return the numbers of the texts that it finished, None if there was nothing left."""
            began = time.perf_counter()
            if (parts := next(calls, None)) is None:
                return None
            for part in parts:
                take(part)
            self._seconds += time.perf_counter() - began
            return [i for part in parts for i in part.texts if ends[i] == part.end]

        while not self._runtime.cancelled:
            if (read := self._thread.call(call)) is None:
                return
            self._calls += 1
            self._runtime.meter.tokens_in += sum((counts or ends)[i] for i in read)
            yield from read
        raise Cancelled

    @staticmethod
    def _by_row(sizes: Seq[int], results: Iterable[tuple[int, Result]]) -> Iterator[tuple[int, list[Result]]]:
        """Yield the number of each row and what was found for all its texts, when that is complete.

        Args:
            sizes: texts of each row.
            results: for texts, by their numbers through all rows.
        """
        owners = np.repeat(np.arange(len(sizes)), sizes)
        ends, waiting = np.cumsum(sizes), dict[int, Result]()
        left = list(sizes)
        for text, one in results:
            waiting[text] = one
            row = int(owners[text])
            left[row] -= 1
            if not left[row]:
                yield row, [waiting.pop(i) for i in range(ends[row] - sizes[row], ends[row])]

    def _token_counts(self, data: pa.RecordBatch) -> list[int | None]:
        """Return the number of tokens to read for each row; None if it is rejected."""
        return [None if isinstance(text, str) else self._tokens(text) for text in self._texts(data)]

    def _tokens(self, text: Any) -> int:
        """Return the number of tokens to read for a row, of what `_texts` found."""
        return len(text.ids)
