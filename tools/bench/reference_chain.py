"""llama.cpp's own sampler chain through ctypes: what our sampler is tested and measured against."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from operators.engine.sampling.params import SamplingParams

_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_LONGEST = 100_000
"""Tokens of a row at most, for a window over all of it: llama.cpp allocates and clears the whole window."""


class ReferenceChain:
    """A chain of llama.cpp's samplers for one row at a time.

    Args:
        n_vocab: words.
        samplers: made by `llama_sampler_init_*`; owned by the chain from here on.
    """

    def __init__(self, n_vocab: int, samplers: Sequence[object]) -> None:
        self._chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for sampler in samplers:
            llama_cpp.llama_sampler_chain_add(self._chain, sampler)
        self._entries = np.zeros(n_vocab, _ENTRY)
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._data = self._entries.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))

    def apply(self, logits: npt.NDArray[np.float32]) -> llama_cpp.llama_token_data_array:
        """The candidates that the chain leaves of `logits`, float32 [n_vocab]; read before the next call."""
        self._entries["id"] = self._ids
        self._entries["logit"] = logits
        self._entries["p"] = 0
        found = llama_cpp.llama_token_data_array(data=self._data, size=len(logits), selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(found))
        return found

    def draw(self, logits: npt.NDArray[np.float32]) -> int:
        """The token that a chain ending in `dist`, `greedy` or `mirostat` selects."""
        found = self.apply(logits)
        return int(found.data[found.selected].id)

    def candidates(self, logits: npt.NDArray[np.float32]) -> dict[int, float]:
        """Token to probability, for the candidates that are possible: a softmax over the logits that are left."""
        found = self.apply(logits)
        left = np.ctypeslib.as_array(ctypes.cast(found.data, ctypes.POINTER(ctypes.c_byte)), (found.size * 12,))
        entries = left.view(_ENTRY)
        values = entries["logit"].astype(np.float64)
        weights = np.exp(values - values.max())
        probabilities = weights / weights.sum()
        ids = entries["id"].tolist()
        return {i: p for i, p in zip(ids, probabilities.tolist(), strict=True) if p > 0}

    def accept(self, tokens: Sequence[int]) -> None:
        """Tell penalties and DRY what came before."""
        for token in tokens:
            llama_cpp.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the chain and its samplers."""
        llama_cpp.llama_sampler_free(self._chain)


def reference_chain(
    params: SamplingParams,
    n_vocab: int,
    vocab: object | None = None,
    breakers: Sequence[str] = (),
    seed: int = 0,
    last: Sequence[object] = (),
) -> ReferenceChain:
    """The chain that llama.cpp's `common_sampler_init` makes of the same values, without the sampler that draws.

    Args:
        params: which steps, in which order.
        n_vocab: words.
        vocab: `llama_model_get_vocab` of a model, for DRY.
        breakers: DRY's sequence breakers.
        seed: of XTC and mirostat.
        last: samplers to add at the end.
    """
    if params.mirostat:
        names: Sequence[str] = ("temperature", "mirostat")
    else:
        names = params.order
    makers: Mapping[str, Callable[[], object]] = {
        "penalties": lambda: llama_cpp.llama_sampler_init_penalties(
            n_vocab,
            _window(params.penalty_last_n),
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        ),
        "dry": lambda: _dry(params, vocab, breakers),
        "top_n_sigma": lambda: llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma),
        "top_k": lambda: llama_cpp.llama_sampler_init_top_k(params.top_k),
        "typical_p": lambda: llama_cpp.llama_sampler_init_typical(params.typical_p, 0),
        "top_p": lambda: llama_cpp.llama_sampler_init_top_p(params.top_p, 0),
        "min_p": lambda: llama_cpp.llama_sampler_init_min_p(params.min_p, 0),
        "xtc": lambda: llama_cpp.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 0, seed),
        "temperature": lambda: llama_cpp.llama_sampler_init_temp_ext(
            params.temperature, params.dynatemp_range, params.dynatemp_exponent
        ),
        "mirostat": lambda: llama_cpp.llama_sampler_init_mirostat_v2(seed, params.mirostat_tau, params.mirostat_eta),
    }
    bias = (llama_cpp.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
    first = llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(params.logit_bias), bias)
    return ReferenceChain(n_vocab, [first, *(makers[name]() for name in names), *last])


def _window(last_n: int | None) -> int:
    return _LONGEST if last_n is None else last_n


def _dry(params: SamplingParams, vocab: object | None, breakers: Sequence[str]) -> object:
    texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
    return llama_cpp.llama_sampler_init_dry(
        vocab,
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        _window(params.dry_penalty_last_n),
        texts,
        len(breakers),
    )
