"""Reduction: a context's device leaves of each row's logits those of the likeliest words, by samplers of llama.cpp.

Each sequence has a chain of one sampler, top-k, which becomes a part of the graph of a call (llm_graph_context::
build_sampling in llama.cpp, as vendored by llama-cpp-python 0.3.36). Traps:

- where each output of a call is of a sequence with a chain, all logits are not copied, and llama_get_logits gives those
  of an earlier call without a word; so all sequences have one, or none;
- a call with more outputs of a sequence than n_outputs_max_per_seq is refused;
- a chain is borrowed: it must outlive what it is set for, and be set once alone (GGML_ASSERT);
- to set or remove chains has the next call plan all graphs anew;
- only a top-k that comes first saves the copy, and a greedy behind it gives the place among the candidates, not the
  token. So the words are drawn in operators/engine/sampling/reduced.py;
- the order of the candidates is not defined, nor which of equally likely words are among them.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import llama_cpp
import numpy as np

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.keys import Keys, keys_of
from operators.engine.backend.shape import DecoderShape
from pipeline.api.errors import ConfigError

log = logging.getLogger(__name__)

OUTPUTS = 2
"""Most outputs of a sequence in a call: a prompt that ends alone has two."""


class Reduction:
    """The chains of a context.

    Args:
        candidates: words that are left of a row.
        n_vocab: words of the vocabulary; more than that.
        sequences: how many the context has.
    """

    def __init__(self, candidates: int, n_vocab: int, sequences: int) -> None:
        self._candidates, self._n_vocab, self._sequences = candidates, n_vocab, sequences
        self._set = True
        self._chains: list[Any] = []  # of pointers
        self._make()
        self._configs = (llama_cpp.llama_sampler_seq_config * sequences)()
        for number, (config, chain) in enumerate(zip(self._configs, self._chains, strict=True)):
            config.seq_id, config.sampler = number, ctypes.cast(chain, ctypes.c_void_p)

    def enter(self, params: llama_cpp.llama_context_params) -> None:
        """Have a context that is made with `params` begin with the chains, so that its memory is reserved with them."""
        params.samplers, params.n_samplers = self._configs, self._sequences
        params.n_outputs_max_per_seq = OUTPUTS

    def tried(self, context: ctypes.c_void_p | None, *, asked: bool) -> Reduction | None:
        """Return this, now that `context` is made; None if its device has no such operation: then the logits would come
        whole, one row after the other, and the chains are removed. Raises ConfigError then if it was `asked` for."""
        first = llama_cpp.llama_sampler_chain_get(self._chains[0], 0)
        if llama_cpp.llama_sampler_name(first).startswith(b"+"):
            return self
        why = "llama.cpp has no top-k on the device that makes the logits"
        self.use(context, reduces=False)
        self.free()
        if asked:
            llama_cpp.llama_free(context)
            raise ConfigError(f"runtime.device_sampling=true cannot work: {why}; leave it at auto")
        log.info("logits are copied whole: %s (runtime.device_sampling)", why)
        return None

    def use(self, context: ctypes.c_void_p | None, *, reduces: bool) -> None:
        """Set or remove the chains for the calls of `context` from now on."""
        if reduces == self._set:
            return
        if reduces:
            self.free()
            self._make()
        for number, chain in enumerate(self._chains):
            llama_cpp.llama_set_sampler(context, number, chain if reduces else None)
        self._set = reduces

    def read(self, context: ctypes.c_void_p | None, outputs: int) -> Keys:
        """Return the keys of what the last call has left, uint64 [outputs, candidates]. Raises DecodeFailed if it has
        not left so many words."""
        first = -outputs
        count = llama_cpp.llama_get_sampled_candidates_count_ith(context, first)
        if count != self._candidates:
            raise DecodeFailed(-1, f"the device left {count} words of a row, not {self._candidates}")
        size = outputs * self._n_vocab
        logits = llama_cpp.llama_get_sampled_logits_ith(context, first)
        ids = llama_cpp.llama_get_sampled_candidates_ith(context, first)
        lines = np.ctypeslib.as_array(logits, (size,)).reshape(outputs, self._n_vocab)[:, : self._candidates]
        words = np.ctypeslib.as_array(ids, (size,)).reshape(outputs, self._n_vocab)[:, : self._candidates]
        return keys_of(lines, words.astype(np.int64))

    def free(self) -> None:
        """Free the chains; none may be set for a context that is used again."""
        for chain in self._chains:
            llama_cpp.llama_sampler_free(chain)
        self._chains.clear()

    def _make(self) -> None:
        for _ in range(self._sequences):
            chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
            llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_k(self._candidates))
            self._chains.append(chain)


def reduction_for(shape: DecoderShape, n_vocab: int, params: llama_cpp.llama_context_params) -> Reduction | None:
    """Return the chains of a context that is made with `params`, entered there; None if all words are left."""
    if not 0 < shape.candidates < n_vocab:
        return None
    reduction = Reduction(shape.candidates, n_vocab, shape.streams)
    reduction.enter(params)
    return reduction
