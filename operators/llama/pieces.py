"""The tokens of a vocabulary: their bytes, their names, and which of them are special."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp

from operators.prompts.special_tokens import SpecialToken, SpecialTokens

_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
"""What llama.cpp reads only where it is told to read special tokens."""
_SPECIAL = _CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED


class Pieces(Sequence[bytes]):
    """The bytes of every token, read on first use and cached; empty for control tokens."""

    def __init__(self, vocab: ctypes.c_void_p, n_vocab: int) -> None:
        self._vocab = vocab
        self._cache: list[bytes | None] = [None] * n_vocab

    def __len__(self) -> int:
        return len(self._cache)

    def __getitem__(self, token: int) -> bytes:  # type: ignore[override]  # a slice is never asked for
        piece = self._cache[token]
        if piece is None:
            piece = self._cache[token] = self._piece(token, 64)
        return piece

    def _piece(self, token: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
        return buffer.raw[:count] if count >= 0 else self._piece(token, -count)


def special_tokens_of(vocab: ctypes.c_void_p, n_vocab: int) -> SpecialTokens:
    """Read the special tokens of a vocabulary; takes some 50 ms at 150,000 tokens."""
    attributes = [llama_cpp.llama_vocab_get_attr(vocab, token) for token in range(n_vocab)]
    special = [
        (token, attribute, text_of(vocab, token)) for token, attribute in enumerate(attributes) if attribute & _SPECIAL
    ]
    names = {name for _, _, name in special}
    tokens = []
    for token, attribute, name in special:
        # llama.cpp makes this one user-defined: it ends a part of an answer of gpt-oss, and not the whole.
        is_part = name == "<|end|>" and {"<|return|>", "<|call|>"} <= names and not attribute & _CONTROL
        strips = (attribute & llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP, attribute & llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
        tokens.append(SpecialToken(token, name, bool(attribute & _CONTROL) or is_part, is_part, *map(bool, strips)))
    return SpecialTokens(tokens)


def text_of(vocab: ctypes.c_void_p, token: int) -> str:
    """Return the name of a token as it stands in the vocabulary; an empty text for none (-1)."""
    text = llama_cpp.llama_vocab_get_text(vocab, token) if token >= 0 else None
    return text.decode("utf-8", "replace") if text else ""
