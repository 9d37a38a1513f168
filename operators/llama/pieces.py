"""The bytes of the tokens of a vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp


class Pieces(Sequence[bytes]):
    """The bytes of every token, read on first use and cached; empty for control tokens."""

    def __init__(self, vocab: ctypes.c_void_p, n_vocab: int) -> None:
        self._vocab = vocab
        self._known: list[bytes | None] = [None] * n_vocab

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, token: int) -> bytes:  # type: ignore[override]  # a slice is never asked for
        known = self._known[token]
        if known is None:
            known = self._known[token] = self._piece(token, 64)
        return known

    def _piece(self, token: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
        return buffer.raw[:count] if count >= 0 else self._piece(token, -count)
