"""What a model and a decoder are to the engine. llama.cpp implements them in operators/llama/, the fake in fake.py."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import BatchBuffer
from operators.settings import ModelSettings
from operators.settings.runtime import DEFAULT_SEQUENCE_TOKENS, EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime

TokenIds = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
CELL_PADDING = 256
"""llama.cpp rounds the cells of a stream up to this."""


class Wanted(StrEnum):
    """What a decoder is asked for."""

    NEXT = "next"
    """The logits after the last token of a row: what generates."""
    EVERY = "every"
    """The logits after any token."""
    EMBEDDINGS = "embeddings"
    """The embedding of every token: of each call all tokens are outputs."""


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder.

    Args:
        slots: sequence ids that may hold rows, 0 to slots - 1.
        max_sequence_tokens: prompt and completion tokens of one row.
        n_batch: tokens of one call.
        n_ubatch: tokens computed at once.
        per_sequence: each row has its own KV stream; rows of one call are then best consecutive, with equal counts.
        n_ctx: tokens that fit into the KV cache of the unified layout; None: a row of the greatest length in each slot.
        deterministic: never let the backend see a lone row, so that a row's logits do not depend on its neighbours.
        wanted: what `decode` gives.
        block: tokens that a row brings to each call, and which see each other; 0: as many as there are, and each sees
            those before it (causal attention).
    """

    slots: int
    max_sequence_tokens: int
    n_batch: int
    n_ubatch: int
    per_sequence: bool = True
    deterministic: bool = True
    n_ctx: int | None = None
    wanted: Wanted = Wanted.NEXT
    block: int = 0

    @property
    def call_tokens(self) -> int:
        """Tokens that fit into one call: blocks are computed at once."""
        return min(self.n_batch, self.n_ubatch) if self.block else self.n_batch

    @property
    def step_tokens(self) -> int:
        """Tokens that a row which decodes brings to a call."""
        return self.block or 1

    @property
    def cells(self) -> int:
        """Tokens that fit into the KV cache."""
        return self.n_ctx or self.slots * self.max_sequence_tokens

    @property
    def streams(self) -> int:
        """Sequence ids of a context: one a slot, and one to stand beside a lone row where that is wanted."""
        return max(self.slots, 2) if self.deterministic else self.slots

    @property
    def kv_cells(self) -> int:
        """Tokens that the KV cache has memory for: llama.cpp rounds a stream up."""
        if self.n_ctx:
            return -(-self.n_ctx // CELL_PADDING) * CELL_PADDING
        return -(-self.max_sequence_tokens // CELL_PADDING) * CELL_PADDING * self.streams


class Decoder(Protocol):
    """A context: KV cache and compute for a fixed number of slots. Used by one thread at a time."""

    shape: DecoderShape
    n_vocab: int
    batch: BatchBuffer
    partial: bool
    """Whether it can forget the end of a row, and copy the beginning. Recurrent and hybrid models cannot: they keep a
    state after all tokens."""
    lone_tokens: int
    """A row of fewer tokens has the same logits, to the bit, when it decodes alone and in company; 0: none has."""

    def decode(self) -> Logits:
        """Run `batch`; float32 [outputs, n_vocab] in batch order, a view that holds until the next call.

        With Wanted.EMBEDDINGS it is [outputs, n_embd].

        Raises:
            DecodeFailed: the backend refused the batch.
        """

    def truncate(self, slot: int, length: int) -> None:
        """Forget what is in `slot` but for its first `length` tokens.

        Raises:
            DecodeFailed: it is not `partial`, and more tokens are there; 0 always works.
        """

    def copy(self, source: int, target: int, length: int) -> None:
        """Have the first `length` tokens of slot `source` in `target`, in the place of what was there.

        Raises:
            DecodeFailed: it is not `partial`, and `source` has more tokens.
        """

    def save(self, slot: int) -> bytes:
        """What `slot` holds."""

    def restore(self, slot: int, saved: bytes) -> None:
        """Have what was saved in the empty `slot`.

        Raises:
            DecodeFailed: there is no room for it.
        """

    def clear(self) -> None:
        """Forget all rows."""


class Model(Protocol):
    """A loaded model: vocabulary, template and decoders. Any thread may tokenize, also beside decoding."""

    n_vocab: int
    n_embd: int
    """Numbers of an embedding."""
    n_ctx_train: int
    add_bos: bool
    closing_ids: tuple[int, ...]
    """What the model wants behind a text that is embedded."""
    bos_token: str
    eos_token: str
    chat_template: str | None
    end_ids: frozenset[int]
    """The model's end-of-generation tokens."""
    mask_id: int | None
    """The token that stands for one that is not known yet; None where the vocabulary names none."""
    doubt: str | None
    """Why its logits may depend on neighbours though the scheduler keeps its rules; None: proven not to, to the bit."""

    def fingerprint(self) -> str:
        """Names the content of the model: the same weights and vocabulary, the same string."""

    def tokenize(self, texts: Sequence[bytes]) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """Ids of all texts end to end, and int32 [len(texts) + 1] offsets. Special tokens in the text are parsed."""

    def pieces(self) -> Sequence[bytes]:
        """The bytes of every token; empty for control tokens. Always the same object: what was asked for is kept."""

    def lease(
        self, settings: EngineSettings, wanted: Wanted = Wanted.NEXT, block: int = 0
    ) -> tuple[Decoder, Callable[[], None]]:
        """An empty decoder from the pool, and what gives it back. `block`: see DecoderShape."""

    def lease_apart(self, settings: EngineSettings) -> tuple[Decoder, Callable[[], None]]:
        """A decoder that no pool keeps, and what frees it."""

    def abort(self) -> None:
        """Have the calls that run in its decoders fail at once, with code 2, and all others until the next lease."""


def max_sequence_tokens(settings: EngineSettings, n_ctx_train: int) -> int:
    """How long a row may be: as configured, or 1024, or what the model was trained for if that is less.

    Raises:
        ConfigError: more was asked for than the model was trained for.
    """
    if settings.max_sequence_tokens is None:
        return min(DEFAULT_SEQUENCE_TOKENS, n_ctx_train)
    if settings.max_sequence_tokens > n_ctx_train:
        raise ConfigError(
            f"runtime.max_sequence_tokens={settings.max_sequence_tokens} is more than"
            f" the {n_ctx_train} tokens that the model was trained for"
        )
    return settings.max_sequence_tokens


def row_room(settings: EngineSettings, n_ctx_train: int) -> int:
    """Prompt and completion tokens of one row at most: in the unified layout not more than the KV cache holds.

    Raises:
        ConfigError: see max_sequence_tokens.
    """
    longest = max_sequence_tokens(settings, n_ctx_train)
    return longest if settings.n_ctx is None else min(longest, settings.n_ctx)


def load_model(runtime: Runtime, settings: ModelSettings) -> Model:
    """The model of `settings`: loaded once a process, shared by all nodes and runs."""
    return runtime.shared(model_key(settings), lambda: loader(settings)(settings), close_model)


def model_key(settings: ModelSettings) -> tuple[str, str]:
    """The same for settings that name the same weights."""
    return ("model", repr(replace(settings, chat_template=None, system=None)))


def decoder_shape(
    settings: EngineSettings, n_ctx_train: int, wanted: Wanted = Wanted.NEXT, block: int = 0
) -> DecoderShape:
    """The sizes that `settings` ask of a decoder for a model that was trained for `n_ctx_train` tokens."""
    return DecoderShape(
        slots=settings.slots,
        max_sequence_tokens=max_sequence_tokens(settings, n_ctx_train),
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        per_sequence=settings.kv == "per_sequence",
        deterministic=settings.deterministic,
        n_ctx=settings.n_ctx,
        wanted=wanted,
        block=block,
    )


@dataclass(frozen=True)
class ModelSizes:
    """What of a model takes memory.

    Args:
        weights_bytes: of the weights.
        n_vocab: words of its vocabulary.
        kv_values: numbers that the KV cache has for a token, in all layers; None where that cannot be told (recurrent
            layers, compressed caches).
    """

    weights_bytes: int
    n_vocab: int
    kv_values: int | None = None


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before it is loaded.

    Args:
        fingerprint: names its content: the same weights and vocabulary, the same string.
        n_ctx_train: tokens that it was trained for; None where that cannot be told yet.
        n_embd: numbers of an embedding; None where that cannot be told yet.
        sizes: what of it takes memory; None where that cannot be told, or where there are no weights.
    """

    fingerprint: str
    n_ctx_train: int | None
    n_embd: int | None = None
    sizes: ModelSizes | None = None


def inspect_model(settings: ModelSettings) -> ModelFacts:
    """Check what can be checked without loading: asks the function `inspect` of the loader's module.

    Raises:
        ConfigError: the loader or the model file cannot work.
    """
    module = sys.modules.get(getattr(loader(settings), "__module__", None) or "")
    inspect: Callable[[ModelSettings], ModelFacts] | None = getattr(module, "inspect", None)
    if not callable(inspect):
        raise ConfigError(
            f"model.loader='{settings.loader}' is no loader: its module has no function inspect(settings)"
        )
    return inspect(settings)


def check_options(settings: ModelSettings, known: Iterable[str]) -> None:
    """Raise ConfigError if `model.options` has one that is not `known` to the loader."""
    known = sorted(known)
    if unknown := sorted(settings.options.keys() - set(known)):
        raise ConfigError(
            f"model.options has '{unknown[0]}', which the loader {settings.loader} does not know;"
            f" it knows {', '.join(known) or 'none'}"
        )


def loader(settings: ModelSettings) -> Callable[[ModelSettings], Model]:
    """The function that `settings.loader` names.

    Raises:
        ConfigError: there is no such module or function.
    """
    module, _, name = settings.loader.partition(":")
    try:
        found: Callable[[ModelSettings], Model] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: no module's name at all
        raise ConfigError(f"model.loader='{settings.loader}' cannot be imported: {error}") from error
    return found


def close_model(model: Model) -> None:
    """Free a model that has something to free."""
    close = getattr(model, "close", None)
    if close is not None:
        close()
