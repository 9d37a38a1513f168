"""BatchBuffer: the tokens of one decode call, filled in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from operators.engine.backend.images import Encoded
from pipeline.api.errors import PipelineError


class DecodeFailed(PipelineError):
    """The backend refused a batch. `code` is its return code (llama_decode: 1 no KV room, 2 aborted, -1 bad batch)."""

    of_row = True

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class BatchBuffer:
    """The tokens of one decode call, filled in place and read by the backend without a copy.

    Attributes:
        token, pos, seq_id: int32 [capacity]; output: int8 [capacity], 1 where logits are wanted.
        n_tokens: how many are filled.
        images: whose cells its tokens are, in their order; empty: they are tokens. A call has one or the other.
        adapters: uint64 [streams], those of the row with each sequence id: bit i is the i-th of the model; 0: none.
    """

    def __init__(self, capacity: int, streams: int = 0) -> None:
        self.token = np.zeros(capacity, np.int32)
        self.pos = np.zeros(capacity, np.int32)
        self.seq_id = np.zeros(capacity, np.int32)
        self.output = np.zeros(capacity, np.int8)
        self.n_tokens = 0
        self.images: list[Encoded] = []
        self.adapters = np.zeros(streams, np.uint64)

    @property
    def capacity(self) -> int:
        """Number of tokens that fit."""
        return len(self.token)

    def clear(self) -> None:
        """Empty the batch; no row has adapters."""
        self.n_tokens = 0
        self.images = []
        self.adapters[:] = 0

    def add_rows(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """Add one token to each of several rows, all with logits."""
        span = self._take(len(tokens))
        self.token[span] = tokens
        self.pos[span] = positions
        self.seq_id[span] = slots
        self.output[span] = 1

    def add_spans(
        self,
        tokens: Sequence[npt.NDArray[np.int32] | Sequence[int]],
        first_positions: Sequence[int],
        slots: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        """Add consecutive tokens to each of several rows, with logits for the last `outputs` of each."""
        start = self._take(sum(map(len, tokens))).start
        for text, position, slot, wanted in zip(tokens, first_positions, slots, outputs, strict=True):
            end = start + len(text)
            self.token[start:end] = text
            self.pos[start:end] = np.arange(position, position + len(text), dtype=np.int32)
            self.seq_id[start:end] = slot
            self.output[start:end] = 0
            self.output[end - wanted : end] = 1
            start = end

    def _take(self, count: int) -> slice:
        end = self.n_tokens + count
        if end > self.capacity:
            raise DecodeFailed(-1, f"a batch of {end} tokens is larger than n_batch={self.capacity}")
        span = slice(self.n_tokens, end)
        self.n_tokens = end
        return span
