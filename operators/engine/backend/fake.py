"""FakeModel and FakeDecoder: a model without weights, to test the scheduler and to measure everything above the
backend.

The logits depend on every token in the slot's KV cache (through a rolling hash) and on the adapters with which each was
computed, for images on what was encoded, so that a row that is moved, truncated, filled in wrongly or shares with a
wrong one gets other tokens. Ends
are frequent, so lengths are ragged. Tokens are UTF-8 bytes. With `partial` off it has the memory of a recurrent model:
a state after all tokens, which cannot be truncated and is copied whole. With `mixes_adapters` off it raises ValueError
for a call of rows with different adapters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import BatchBuffer, DecodeFailed
from operators.engine.backend.fake_vision import FakeVision
from operators.engine.backend.interface import Buffer, Encoder, Head, Logits, TokenIds
from operators.engine.backend.keys import Keys, keys_of
from operators.engine.backend.loading import ModelFacts, check_options
from operators.engine.backend.placement import ON_CPU
from operators.engine.backend.shape import DecoderShape, Wanted, decoder_shape
from operators.prompts.special_tokens import SpecialTokens
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError

Hashes = npt.NDArray[np.uint64]
N_VOCAB = 320
N_EMBD = 8
END_ID = 257
MASK_ID = 258
_TORN = (2, -3)
"""Codes of llama.cpp after which part of the batch may have been computed."""
_MULTIPLIER = np.uint64(6364136223846793005)
_OF_ADAPTERS = np.uint64(11400714819323198485)
_KINDS = 251
_PIECES = [bytes([i]) for i in range(256)] + [b""] * (N_VOCAB - 256)


class FakeDecoder:
    """A decoder that takes microseconds, and refuses what llama.cpp would refuse.

    Args:
        shape: its sizes.
        fail: called with the batch before each call; returns a code to fail with, 0 for none.
    """

    partial = True
    rollback = 0
    reduces = False
    most_shared = math.inf
    mixes_adapters = True

    def __init__(self, shape: DecoderShape, fail: Callable[[BatchBuffer], int] = lambda _: 0) -> None:
        self.shape = shape
        self.batch = BatchBuffer(shape.call_tokens, shape.streams)
        self.lone_tokens = 0
        self._fail = fail
        # The hash after each token: [s, n] is that of slot s after n tokens.
        self._hashes = np.zeros((shape.slots + 1, shape.max_sequence_tokens + 1), np.uint64)
        self._length = np.zeros(shape.slots + 1, np.int64)
        self._droppable = np.zeros(shape.slots + 1, np.int64)
        self._table = _embedding_table() if shape.wanted is Wanted.EMBEDDINGS else _logit_table()

    def decode(self) -> Logits:
        n = self.batch.n_tokens
        slots, positions = self.batch.seq_id[:n], self.batch.pos[:n]
        adapters = self.batch.adapters[slots]
        if not self.mixes_adapters and len(np.unique(adapters)) > 1:
            raise ValueError(f"rows with different adapters share a call: {adapters} in slots {slots}")
        if code := self._fail(self.batch):
            if code in _TORN:
                half = slots[: (n + 1) // 2]
                np.add.at(self._length, half, 1)
            raise DecodeFailed(code, f"the fake fails with {code}")
        used = int(self._length.sum()) + n
        if not self.shape.per_sequence and used > self.shape.cells:
            raise DecodeFailed(1, f"{used} tokens are more than the {self.shape.cells} that fit")
        inputs = _inputs(self.batch).astype(np.uint64) + np.uint64(1) + adapters * _OF_ADAPTERS
        if self.shape.block:
            hashes = self._blocks(slots, positions, inputs)
        elif (np.diff(slots) > 0).all():
            hashes = self._one_each(slots, positions, inputs)
        else:
            hashes = self._spans(slots, positions, inputs)
        self._droppable = np.bincount(slots, minlength=len(self._droppable)) - 1
        kinds = (hashes[self.batch.output[:n] != 0] >> np.uint64(33)) % np.uint64(_KINDS)
        logits: Logits = self._table[kinds]
        return cast(Logits, likeliest_words(logits, self.shape.candidates)) if self.reduces else logits

    def truncate(self, slot: int, length: int) -> None:
        dropped = int(self._length[slot]) - length
        if not 0 < dropped <= min(self.rollback, self._droppable[slot]):
            self._check_length(slot, length)
        elif length:
            self._droppable[slot] = 0  # once a call
        self._length[slot] = length

    def mark(self, slot: int) -> bytes:
        return bytes(int(self._length[slot]))

    def rewind(self, slot: int, length: int, mark: Buffer) -> None:
        if len(mark) != length or self._length[slot] < length:
            raise DecodeFailed(-1, f"slot {slot} has {self._length[slot]} tokens and was marked at {len(mark)}")
        self._length[slot] = length

    def copy(self, source: int, target: int, length: int) -> None:
        self._check_length(source, length)
        self._hashes[target, : length + 1] = self._hashes[source, : length + 1]
        self._length[target], self._droppable[target] = length, 0

    def save(self, slot: int) -> bytes:
        return self._hashes[slot, : self._length[slot] + 1].tobytes()

    def restore(self, slot: int, saved: Buffer) -> None:
        if self._length[slot]:
            raise DecodeFailed(-1, f"slot {slot} is not empty")
        hashes = np.frombuffer(saved, np.uint64)
        self._hashes[slot, : len(hashes)] = hashes
        self._length[slot] = len(hashes) - 1

    def clear(self) -> None:
        self._length[:] = 0

    def _check_length(self, slot: int, length: int) -> None:
        held = int(self._length[slot])
        if held < length or (not self.partial and length not in (0, held)):
            raise DecodeFailed(-1, f"slot {slot} has {held} tokens and cannot have the first {length} of them")

    def _one_each(self, slots: TokenIds, positions: TokenIds, inputs: Hashes) -> Hashes:
        if (self._length[slots] != positions).any():
            raise DecodeFailed(-1, f"positions {positions} do not follow {self._length[slots]} in slots {slots}")
        hashes: Hashes = self._hashes[slots, positions] * _MULTIPLIER + inputs
        self._length[slots] += 1
        self._hashes[slots, positions + 1] = hashes
        return hashes

    def _spans(self, slots: TokenIds, positions: TokenIds, inputs: Hashes) -> Hashes:
        starts = np.flatnonzero(np.diff(slots, prepend=-1))
        counts = np.diff(starts, append=len(slots))
        rows = slots[starts]
        expected = np.repeat(self._length[rows] - starts, counts) + np.arange(len(slots))
        if (expected != positions).any():
            raise DecodeFailed(-1, f"positions {positions} do not follow {self._length[rows]} in slots {rows}")
        hashes = np.empty(len(slots), np.uint64)
        for step in range(int(counts.max())):
            going = counts > step
            at = starts[going] + step
            places = positions[at]
            hashes[at] = self._hashes[rows[going], places] * _MULTIPLIER + inputs[at]
            self._hashes[rows[going], places + 1] = hashes[at]
        self._length[rows] += counts
        return hashes

    def _blocks(self, slots: TokenIds, positions: TokenIds, inputs: Hashes) -> Hashes:
        """Compute blocks: every token of a row sees the whole block, and the contents of its slot."""
        hashes = np.empty(len(slots), np.uint64)
        starts = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(slots)], strict=True):
            slot, first = slots[start], int(positions[start])
            if self._length[slot] != first or (np.diff(positions[start:end]) != 1).any():
                raise DecodeFailed(-1, f"positions {positions[start:end]} do not follow {self._length[slot]} in {slot}")
            state = self._hashes[slot, first : first + 1]
            for value in inputs[start:end]:
                state = state * _MULTIPLIER + value
            hashes[start:end] = state + np.arange(1, end - start + 1, dtype=np.uint64) * _MULTIPLIER
            self._length[slot] += end - start
            self._hashes[slot, self._length[slot]] = state[0]
        return hashes


def _inputs(batch: BatchBuffer) -> npt.NDArray[np.int64]:
    """Return the tokens of a call, or what stands for its images, int64 [tokens]. Raises ValueError for both."""
    ids = batch.token[: batch.n_tokens]
    if bool(batch.images) != bool((ids < 0).any()) or (batch.images and (ids >= 0).any()):
        raise ValueError(f"a call of {len(batch.images)} images has the tokens {ids}")
    if not batch.images:
        return ids.astype(np.int64)
    contents = np.concatenate([image.embeddings for image in batch.images]).astype(np.int64)
    if len(contents) != len(ids):
        raise ValueError(f"{len(ids)} cells of images have {len(contents)} embeddings")
    return (contents[:, 0] << 16) + contents[:, 1]


class FakeModel:
    """A Model whose decoders are FakeDecoders."""

    kernels = "fake"
    device = "none"
    placement = ON_CPU
    device_mb: Mapping[str, float] = MappingProxyType({})
    n_vocab = N_VOCAB
    n_embd = N_EMBD
    n_ctx_train = 8192
    add_bos = False
    closing_ids: tuple[int, ...] = ()
    bos_token = ""
    eos_token = ""
    chat_template: str | None = None
    tool_template: str | None = None
    end_ids = frozenset({END_ID})
    suppressed_ids: tuple[int, ...] = ()
    mask_id: int | None = MASK_ID
    causal = True
    pooling: str | None = None
    head: Head | None = None
    special_tokens = SpecialTokens(())

    def __init__(
        self,
        fail: Callable[[BatchBuffer], int] = lambda _: 0,
        *,
        adapters: Sequence[str] = (),
        vision: FakeVision | None = None,
    ) -> None:
        self._fail = fail
        self.vision = vision
        self.adapters = self.adapter_contents = tuple(adapters)
        self.decoders: list[FakeDecoder] = []

    def doubt(self, settings: EngineSettings) -> str | None:
        return None

    def limit(self, settings: EngineSettings) -> None:
        """Return None: there is nothing to multiply."""

    def fingerprint(self) -> str:
        return inspect(ModelSettings()).fingerprint

    def tokenize(self, texts: Sequence[bytes], *, special: bool) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32)
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([len(t) for t in texts], out=offsets[1:])
        return ids, offsets

    def pieces(self) -> Sequence[bytes]:
        return _PIECES

    def lease(
        self, settings: EngineSettings, wanted: Wanted = Wanted.NEXT, block: int = 0, draft: int = 0
    ) -> tuple[FakeDecoder, Callable[[], None]]:
        shape = decoder_shape(settings, self.n_ctx_train, wanted, block, draft)
        self.decoders.append(FakeDecoder(shape, self._fail))
        return self.decoders[-1], lambda: None

    def lease_apart(self, settings: EngineSettings) -> tuple[FakeDecoder, Callable[[], None]]:
        return FakeDecoder(decoder_shape(settings, self.n_ctx_train), self._fail), lambda: None

    def lease_encoder(
        self, settings: EngineSettings, most_tokens: int, wanted: Wanted
    ) -> tuple[Encoder, Callable[[], None]]:
        raise ConfigError("the fake model is no encoder and has no classifier head")

    def abort(self) -> None:
        """Do nothing: calls take no time."""


def load(settings: ModelSettings) -> FakeModel:
    """Load `model=fake`."""
    vision = None if settings.mmproj is None else FakeVision(settings.mmproj)
    return FakeModel(adapters=tuple(settings.adapters or ()), vision=vision)


def inspect(settings: ModelSettings) -> ModelFacts:
    check_options(settings, ())
    if settings.converts_to is not None:
        raise ConfigError(f"model.weights={settings.weights} cannot work: the fake model has no weights")
    names = list(settings.adapters or ())
    return ModelFacts("fake-1", FakeModel.n_ctx_train, N_EMBD, adapters=dict(zip(names, names, strict=True)))


def likeliest_words(logits: Logits, count: int) -> Keys:
    """Return the keys of the `count` likeliest words of each row of `logits`. As a device, it takes others of equally
    likely ones than the sampler would."""
    last = np.argsort(logits, axis=1, kind="stable")[:, -count:]
    return keys_of(np.take_along_axis(logits, last, 1), last)


def _logit_table() -> Logits:
    table = np.random.default_rng(0).normal(0, 2, (_KINDS, N_VOCAB)).astype(np.float32)
    table[:, 128:END_ID] -= 8  # mostly ASCII, so that texts are readable
    table[:, END_ID + 1 :] = -np.inf
    table[:16, END_ID] += 20  # one step in sixteen ends the row
    return table


def _embedding_table() -> Logits:
    return np.random.default_rng(1).normal(0, 1, (_KINDS, N_EMBD)).astype(np.float32)
