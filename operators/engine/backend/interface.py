"""Model and Decoder: the contracts that operators/llama/ and fake.py implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.images import Vision
from operators.engine.backend.limit import MachineLimit
from operators.engine.backend.placement import LayerPlacement
from operators.engine.backend.shape import DecoderShape, Wanted
from operators.prompts.special_tokens import SpecialTokens
from operators.settings.runtime import EngineSettings

TokenIds = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]
Buffer = bytes | memoryview

ROLLBACK_ROOM = 2
"""A call must have room for so many tokens more than can be truncated of a row (`Decoder.rollback`)."""


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
    reduces: bool
    """Set before a call: whether it leaves of the logits of each row those of the likeliest `shape.candidates` words,
    where that is not 0."""
    mixes_adapters: bool
    """True if rows with different adapters (`BatchBuffer.adapters`) may share a call, or there are no adapters."""

    def decode(self) -> Logits:
        """Compute `batch`; returns float32 [outputs, n_vocab] in batch order, a view that is valid until the next call;
        with Wanted.EMBEDDINGS [outputs, n_embd]. Where it `reduces` they are keys of candidates, uint64 [outputs,
        shape.candidates] (keys.py). Raises DecodeFailed if the backend refuses the
        batch."""

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
    placement: LayerPlacement
    """Where its layers are."""
    device_mb: Mapping[str, float]
    """Of each device of its placement, the most MiB that were in use when it made a context."""
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
    def vision(self) -> Vision | None:
        """The part that reads images; None: it takes none."""

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
