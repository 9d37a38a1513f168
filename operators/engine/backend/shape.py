"""DecoderShape: the sizes of a decoder, as the settings of the engine and the model give them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from operators.settings.model import AUTO
from operators.settings.runtime import DEFAULT_SEQUENCE_TOKENS, KERNEL_TOKENS, EngineSettings
from pipeline.api.errors import ConfigError

CANDIDATES = 128
"""Words of a row that a device may leave of its logits."""


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
        candidates: words of a row that a device may leave of its logits (`Decoder.reduces`); 0: it leaves all.
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
    candidates: int = 0
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
    def output_copies(self) -> int:
        """Numbers that llama.cpp has room for on the host of each word of an output: its logit, and with candidates
        their ids, logits and probabilities."""
        return 4 if self.candidates else 1

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
    settings: EngineSettings,
    n_ctx_train: int,
    wanted: Wanted = Wanted.NEXT,
    block: int = 0,
    draft: int = 0,
    *,
    on_device: bool = False,
) -> DecoderShape:
    """Return the sizes of a decoder with `settings`, for a model trained for `n_ctx_train` tokens. `on_device`:
    whether a GPU makes its logits."""
    reduces = settings.device_sampling is True or (settings.device_sampling == AUTO and on_device)
    next_alone = wanted is Wanted.NEXT and not block and not draft
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
        candidates=CANDIDATES if reduces and next_alone else 0,
    )
