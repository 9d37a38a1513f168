"""Model and Decoder: the contracts that operators/llama/ and fake.py implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.limit import MachineLimit
from operators.prompts.special_tokens import SpecialTokens
from operators.settings.runtime import DEFAULT_SEQUENCE_TOKENS, KERNEL_TOKENS, EngineSettings
from pipeline.api.errors import ConfigError

TokenIds = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Buffer = bytes | memoryview

ROLLBACK_ROOM = 2
"""A call must have room for so many tokens more than can be truncated of a row (`Decoder.rollback`)."""


class Wanted(StrEnum):
    """The outputs of a decoder."""

    NEXT = "next"
    """The logits after the last token of a row, to generate."""
    EVERY = "every"
    """The logits after any token."""
    EMBEDDINGS = "embeddings"
    """The embedding of every token."""
    HEAD = "head"
    """The outputs of the classifier head for whole texts."""


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
        wanted: the outputs of `decode`.
        block: tokens that a row brings to each call, and which see each other; 0: as many as there are, and each sees
            those before it (causal attention).
        flash_attention: the model may compute KERNEL_TOKENS and more tokens of a row by another kernel than fewer.
        draft: tokens that a row may bring to a call beyond one, with logits for each.
        exact: every operation computes a token in the same way in any call, so that `deterministic` needs no rules.
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
    flash_attention: bool = True
    draft: int = 0
    exact: bool = False

    @property
    def needs_rules(self) -> bool:
        """True where a row's bits are to depend on the row alone, and would not if any tokens were computed at once."""
        return self.deterministic and not self.exact

    @property
    def call_tokens(self) -> int:
        """Tokens that fit into one call; with blocks, those computed at once."""
        return min(self.n_batch, self.n_ubatch) if self.block else self.n_batch

    @property
    def kernel_tokens(self) -> int:
        """Fewest tokens of a chunk of a prompt that has as many or more, so that the bits do not depend on where it is
        cut: 64 with flash attention, else 2, since a lone token has a kernel of its own; 0: it may be cut anywhere."""
        if not self.needs_rules:
            return 0
        return KERNEL_TOKENS if self.flash_attention else 2

    @property
    def step_tokens(self) -> int:
        """Tokens that a decoding row adds to a call."""
        return self.block or 1

    @property
    def outputs(self) -> int:
        """Tokens of a call that may have outputs: of each row the last, its block or its draft, or of one everything.
        With one slot the last two tokens of a prompt have them."""
        if self.wanted is not Wanted.NEXT:
            return self.n_batch
        drafts = min(self.streams * (1 + self.draft), max(self.n_ubatch, self.streams))
        return max(drafts, self.streams * self.block, 2)

    @property
    def cells(self) -> int:
        """Tokens that fit into the KV cache."""
        return self.n_ctx or self.slots * self.max_sequence_tokens

    @property
    def streams(self) -> int:
        """Sequence ids of a context: one per slot, and one for the dummy token if needed."""
        return max(self.slots, 2) if self.deterministic else self.slots

    @property
    def kv_cells(self) -> int:
        """Tokens that the KV cache has memory for: llama.cpp rounds a stream up."""
        return padded(self.n_ctx or self.max_sequence_tokens) * (1 if self.n_ctx else self.streams)

    def window_cells(self, window: int) -> int:
        """Return the tokens that layers with a sliding window have memory for with runtime.window_cache=small: those
        that a token sees, and those that are computed at once."""
        rows, streams = (1, self.streams) if self.per_sequence else (self.streams, 1)
        return min(self.kv_cells, padded(window * rows + self.n_ubatch) * streams)


class Decoder(Protocol):
    """A context: KV cache and compute for a fixed number of slots. Used by one thread at a time."""

    shape: DecoderShape
    batch: BatchBuffer
    partial: bool
    """True if it can truncate a row, and copy part of one. Recurrent and hybrid models cannot: they keep only the state
    after all tokens. Nor can those that keep only a window of them (runtime.window_cache=small)."""
    rollback: int
    """How many of the last tokens of a row it can truncate all the same, where it is not `partial`: of those that the
    last call had of the row, but not the first of them; and once a call."""
    most_shared: float
    """The longest beginning of a row that another slot may take over: where tokens that a window of attention has
    passed may be overwritten, none or what fits into the window; else any."""
    lone_tokens: int
    """A row of fewer tokens has bit-identical logits alone and beside others; 0: no row has."""
    mixes_adapters: bool
    """True if rows with different adapters (`BatchBuffer.adapters`) may share a call, or there are no adapters."""

    def decode(self) -> Logits:
        """Compute `batch`; returns float32 [outputs, n_vocab] in batch order, a view that is valid until the next call;
        with Wanted.EMBEDDINGS [outputs, n_embd]. Raises DecodeFailed if the backend refuses the batch."""

    def truncate(self, slot: int, length: int) -> None:
        """Keep the first `length` tokens of `slot`. Raises DecodeFailed if it is not `partial` and there are more,
        beyond `rollback`; 0 always works."""

    def mark(self, slot: int) -> Buffer:
        """Return what `rewind` needs, where it is not `partial`, to go back to what is in `slot` now."""

    def rewind(self, slot: int, length: int, mark: Buffer) -> None:
        """Go back in `slot` to the `length` tokens that it had when `mark` was made, and still begins with. Raises
        DecodeFailed if that does not work."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Replace the contents of slot `target` by the first `length` tokens of `source`. Raises DecodeFailed if it is
        not `partial` and `source` has more."""

    def save(self, slot: int) -> Buffer:
        """Return the contents of `slot`, for `restore`."""

    def restore(self, slot: int, saved: Buffer) -> None:
        """Put saved contents into the empty `slot`. Raises DecodeFailed if there is no room."""

    def clear(self) -> None:
        """Clear all slots."""


@dataclass(frozen=True)
class Head:
    """The classifier head of a model.

    Args:
        labels: names of its outputs.
        normalized: whether its outputs are probabilities; else they are logits.
        separator: tokens between a query and a document.
        template: what a reranker is to read instead, with `{query}` and `{document}`; None if the file has none.
    """

    labels: tuple[str, ...]
    normalized: bool = False
    separator: tuple[int, ...] = ()
    template: str | None = None


class Encoder(Protocol):
    """A context that computes whole texts and remembers nothing between calls. Used by one thread at a time."""

    most_tokens: int
    """Tokens of a call."""
    most_spans: int
    """Spans of a call."""
    packs: bool
    """False if a call has one text, since others would change its bits: the model keeps a KV cache."""

    def encode(self, spans: Sequence[TokenIds]) -> Logits:
        """Compute spans of tokens, each of which sees itself alone; returns float32 [tokens of all spans, n_embd], with
        Wanted.HEAD [spans, labels], a view that is valid until the next call. Raises DecodeFailed if the backend
        refuses them."""


class Model(Protocol):
    """A loaded model: vocabulary, template and decoders. Any thread may tokenize, also during decoding."""

    kernels: str
    """Build and processor features: where it is equal, the same code computes."""
    device: str
    """What it runs on: the CPU, or the layers on a GPU and the GPUs."""
    n_vocab: int
    n_embd: int
    """Length of an embedding."""
    n_ctx_train: int
    """Tokens of the context that it was trained for."""
    add_bos: bool
    closing_ids: tuple[int, ...]
    """Tokens that the model wants at the end of a text to embed."""
    bos_token: str
    eos_token: str
    chat_template: str | None
    tool_template: str | None
    """The one for conversations with tools, where the model has another for these."""
    end_ids: frozenset[int]
    """The model's end-of-generation tokens."""
    suppressed_ids: tuple[int, ...]
    """Tokens that the model's file bans from completions."""
    mask_id: int | None
    """The mask token for block diffusion; None if the vocabulary has none."""
    causal: bool
    """False if a token sees those after it too, so that a text has to be computed whole."""
    pooling: str | None
    """How it makes the embedding of a text: mean, cls or last; None if it does not say."""
    head: Head | None
    """Its classifier head, if it has one."""
    adapters: tuple[str, ...]
    """Names of its adapters, in the order of their bits."""
    adapter_contents: tuple[str, ...]
    """An id of the content of each, with its scale."""

    def doubt(self, settings: EngineSettings) -> str | None:
        """Say why its logits with `settings` may depend on neighbours despite the scheduler's rules; None: they are
        proven not to, to the bit."""

    def limit(self, settings: EngineSettings) -> MachineLimit | None:
        """Return the limit of this machine for an engine with `settings`; None if it is not known."""

    def fingerprint(self) -> str:
        """Return an id of the content: equal for equal weights and vocabulary."""

    def tokenize(self, texts: Sequence[bytes], *, special: bool) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """Return the concatenated ids of all texts, and int32 [len(texts) + 1] offsets. `special`: the
        name of a control token in a text is that token, and not a text."""

    def pieces(self) -> Sequence[bytes]:
        """Return the bytes of every token, empty for control tokens; always the same object."""

    @property
    def special_tokens(self) -> SpecialTokens:
        """Its special tokens; always the same object."""

    def lease(
        self, settings: EngineSettings, wanted: Wanted = Wanted.NEXT, block: int = 0, draft: int = 0
    ) -> tuple[Decoder, Callable[[], None]]:
        """Return an empty decoder from the pool, and a function that gives it back. `block`, `draft`: see
        DecoderShape."""

    def lease_apart(self, settings: EngineSettings) -> tuple[Decoder, Callable[[], None]]:
        """Return a decoder outside of the pool, and a function that frees it."""

    def lease_encoder(
        self, settings: EngineSettings, most_tokens: int, wanted: Wanted
    ) -> tuple[Encoder, Callable[[], None]]:
        """Return an encoder from the pool for calls of so many tokens, and a function that gives it back. `wanted`:
        EMBEDDINGS or HEAD."""

    def abort(self) -> None:
        """Abort all running calls of its decoders, with code 2, and further calls until the next lease."""


def padded(cells: int) -> int:
    """Return the cells that llama.cpp gives to a stream of so many."""
    return -(-cells // 256) * 256


def max_sequence_tokens(settings: EngineSettings, n_ctx_train: int) -> int:
    """Return the most tokens of a row: as configured, else 1024, or the context that the model was trained for if that
    is less. Raises ConfigError if more was asked for than the model was trained for, with `runtime.rope`."""
    most = settings.rope.most_tokens(n_ctx_train)
    if settings.max_sequence_tokens is None:
        return min(DEFAULT_SEQUENCE_TOKENS, most)
    if settings.max_sequence_tokens > most:
        scaled = f", {most} with runtime.rope" if most != n_ctx_train else "; runtime.rope allows more"
        raise ConfigError(
            f"runtime.max_sequence_tokens={settings.max_sequence_tokens} is more than"
            f" the {n_ctx_train} tokens that the model was trained for{scaled}"
        )
    return settings.max_sequence_tokens


def decoder_shape(
    settings: EngineSettings, n_ctx_train: int, wanted: Wanted = Wanted.NEXT, block: int = 0, draft: int = 0
) -> DecoderShape:
    """Return the sizes of a decoder with `settings`, for a model trained for `n_ctx_train` tokens."""
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
        flash_attention=settings.flash_attention is not False,
        draft=draft,
    )
