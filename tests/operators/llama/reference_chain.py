"""The chain of samplers that llama.cpp makes of the same values: what our steps are held against."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp._internals import LlamaSampler, LlamaTokenDataArray

from operators.engine.sampling.params import SamplingParams

_LONGEST = 100_000
"""Tokens of a row at most, for a window over all of it: llama.cpp allocates and clears the whole window."""


class ReferenceChain(LlamaSampler):
    """The chain that llama.cpp's `common_sampler_init` makes of `params`, without the sampler that draws.

    Args:
        params: which steps, in which order.
        n_vocab: words.
        vocab: `llama_model_get_vocab` of a model, for DRY.
        breakers: DRY's sequence breakers.
        seed: of XTC and mirostat.
    """

    def __init__(
        self,
        params: SamplingParams,
        n_vocab: int,
        vocab: object | None = None,
        breakers: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._found: Any = LlamaTokenDataArray(n_vocab=n_vocab)
        window = _LONGEST if params.penalty_last_n is None else params.penalty_last_n
        repetition = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
        dry_window = _LONGEST if params.dry_penalty_last_n is None else params.dry_penalty_last_n
        dry = params.dry_multiplier, params.dry_base, params.dry_allowed_length, dry_window, list(breakers)
        temperature = params.temperature, params.dynatemp_range, params.dynatemp_exponent
        steps: dict[str, tuple[Any, ...]] = {
            "penalties": (self.add_penalties, n_vocab, window, *repetition),
            "dry": (self.add_dry, SimpleNamespace(vocab=vocab), *dry),
            "top_n_sigma": (self.add_top_n_sigma, params.top_n_sigma),
            "top_k": (self.add_top_k, params.top_k),
            "typical_p": (self.add_typical, params.typical_p, 0),
            "top_p": (self.add_top_p, params.top_p, 0),
            "min_p": (self.add_min_p, params.min_p, 0),
            "xtc": (self.add_xtc, params.xtc_probability, params.xtc_threshold, 0, seed),
            "temperature": (self.add_temp_ext, *temperature),
            "mirostat": (self.add_mirostat_v2, seed, params.mirostat_tau, params.mirostat_eta),
        }
        self.add_logit_bias(n_vocab, dict(params.logit_bias))
        for name in ("temperature", "mirostat") if params.mirostat else params.order:
            add, *arguments = steps[name]
            add(*arguments)

    def apply(self, logits: npt.NDArray[np.float32]) -> llama_cpp.llama_token_data_array:
        """The candidates that the chain leaves of `logits`, float32 [n_vocab]; read before the next call."""
        self._found.copy_logits(logits)
        self._found.candidates.selected = -1
        llama_cpp.llama_sampler_apply(self.sampler, ctypes.byref(self._found.candidates))
        return self._found.candidates

    def candidates(self, logits: npt.NDArray[np.float32]) -> dict[int, float]:
        """Token to probability, for the candidates that are possible: a softmax over the logits that are left."""
        found, made = self.apply(logits), self._found.candidates_data
        data = ctypes.cast(found.data, ctypes.POINTER(ctypes.c_byte))
        left = np.ctypeslib.as_array(data, (found.size * made.itemsize,))
        entries = left.view(made.dtype)
        values = entries["logit"].astype(np.float64)
        weights = np.exp(values - values.max())
        probabilities = (weights / weights.sum()).tolist()
        return {i: p for i, p in zip(entries["id"].tolist(), probabilities, strict=True) if p > 0}
