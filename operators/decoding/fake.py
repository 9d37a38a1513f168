"""A model without weights, for tests of the scheduler and for measuring what stands above the backend.

Its logits depend on every token in the slot's KV cache (through a rolling hash), so that a row that is moved, cut or
fed wrongly gives other tokens. Ends are frequent, so lengths are ragged. Tokens are UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from operators.decoding.model import (
    BatchBuffer,
    DecodeFailed,
    DecoderShape,
    Logits,
    ModelFacts,
    TokenIds,
    decoder_shape,
)
from operators.settings import EngineSettings, ModelSettings

N_VOCAB = 320
END_ID = 257
_MULTIPLIER = np.uint64(6364136223846793005)
_KINDS = 251


class FakeDecoder:
    """A decoder that computes in microseconds and refuses what llama.cpp would refuse or be slow at.

    Args:
        shape: its sizes.
        fail: called before each call with the batch; returns a code to fail with, 0 to go on.
    """

    def __init__(self, shape: DecoderShape, fail: Callable[[BatchBuffer], int] = lambda _: 0) -> None:
        self.shape = shape
        self.n_vocab = N_VOCAB
        self.batch = BatchBuffer(shape.n_batch)
        self.calls: list[tuple[int, ...]] = []
        """For each call the slots of its tokens' rows, in order, without repeats."""
        self.keep_calls = False
        self._fail = fail
        self._hash = np.zeros(shape.slots + 1, np.uint64)
        self._length = np.zeros(shape.slots + 1, np.int64)
        self._table = _logit_table()

    def decode(self) -> Logits:
        """See Decoder.decode."""
        n = self.batch.n_tokens
        slots, positions = self.batch.seq_id[:n], self.batch.pos[:n]
        if code := self._fail(self.batch):
            raise DecodeFailed(code, f"the fake fails with {code}")
        if self.keep_calls:
            self.calls.append(tuple(dict.fromkeys(slots.tolist())))
        hashes = self._one_each(slots, positions) if self._is_decode(slots) else self._spans(slots, positions)
        kinds = (hashes[self.batch.output[:n] != 0] >> np.uint64(33)) % np.uint64(_KINDS)
        logits: Logits = self._table[kinds]
        return logits

    def remove(self, slot: int) -> None:
        """See Decoder.remove."""
        self._hash[slot] = 0
        self._length[slot] = 0

    def move(self, source: int, target: int) -> None:
        """See Decoder.move."""
        if self._length[target]:
            raise DecodeFailed(-1, f"slot {target} is not empty")
        self._hash[target], self._length[target] = self._hash[source], self._length[source]
        self.remove(source)

    def clear(self) -> None:
        """See Decoder.clear."""
        self._hash[:] = 0
        self._length[:] = 0

    def _is_decode(self, slots: npt.NDArray[np.int32]) -> bool:
        return bool((np.diff(slots) > 0).all())

    def _one_each(self, slots: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
        if (self._length[slots] != positions).any():
            raise DecodeFailed(-1, f"positions {positions} do not follow {self._length[slots]} in slots {slots}")
        tokens = self.batch.token[: self.batch.n_tokens].astype(np.uint64)
        self._hash[slots] = self._hash[slots] * _MULTIPLIER + tokens + np.uint64(1)
        self._length[slots] += 1
        return self._hash[slots]

    def _spans(self, slots: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]) -> npt.NDArray[np.uint64]:
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
            token = self.batch.token[at].astype(np.uint64)
            hashes[at] = self._hash[rows[going]] = self._hash[rows[going]] * _MULTIPLIER + token + np.uint64(1)
        self._length[rows] += counts
        return hashes


class FakeModel:
    """The Model that goes with FakeDecoder."""

    n_vocab = N_VOCAB
    n_ctx_train = 8192
    add_bos = False
    bos_token = ""
    eos_token = ""
    chat_template: str | None = None
    end_ids = frozenset({END_ID})
    exact = True

    def __init__(self, fail: Callable[[BatchBuffer], int] = lambda _: 0) -> None:
        self._fail = fail
        self.decoders: list[FakeDecoder] = []

    def fingerprint(self) -> str:
        """See Model.fingerprint."""
        return inspect(ModelSettings()).fingerprint

    def tokenize(self, texts: Sequence[bytes]) -> tuple[TokenIds, npt.NDArray[np.int32]]:
        """One token a byte."""
        ids = np.frombuffer(b"".join(texts), np.uint8).astype(np.int32)
        offsets = np.zeros(len(texts) + 1, np.int32)
        np.cumsum([len(t) for t in texts], out=offsets[1:])
        return ids, offsets

    def pieces(self) -> Sequence[bytes]:
        """A byte for each of the first 256 tokens, nothing for the others."""
        return [bytes([i]) for i in range(256)] + [b""] * (N_VOCAB - 256)

    def lease(self, settings: EngineSettings) -> tuple[FakeDecoder, Callable[[], None]]:
        """A new decoder."""
        self.decoders.append(FakeDecoder(decoder_shape(settings, self.n_ctx_train), self._fail))
        return self.decoders[-1], lambda: None


def load(settings: ModelSettings) -> FakeModel:
    """The fake, for `model=fake`."""
    return FakeModel()


def inspect(settings: ModelSettings) -> ModelFacts:
    """The facts of the fake."""
    return ModelFacts("fake-1", FakeModel.n_ctx_train)


def _logit_table() -> Logits:
    table = np.random.default_rng(0).normal(0, 2, (_KINDS, N_VOCAB)).astype(np.float32)
    table[:, 128:END_ID] -= 8  # mostly ASCII, so that texts can be read
    table[:, END_ID + 1 :] = -np.inf
    table[:16, END_ID] += 20  # one step in sixteen ends the row
    return table
