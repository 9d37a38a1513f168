"""Several blocks of a row in one call of llama.cpp, each of which sees itself and those before it.

Without causal attention a token sees every cell that has the first of its own sequence ids. So each slot has some ids
beside its own: with m blocks, block j has the ids of j to m - 1, and looks through that of j, which blocks 0 to j have.
What stays is then given the slot's own id, and the others are dropped.

Which id is the first is not specified: llama.cpp keeps the ids of a token in an unordered set ("if a token has multiple
sequences they are assumed equivalent"). With libstdc++ it is the one that was listed last, where ids follow each other.
So this is used only where operators/engine/strategies/chaining.py has seen it work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np

from operators.engine.backend.batch import Chain
from operators.engine.backend.interface import DecoderShape
from operators.llama.pointers import PointerTables


class ChainIds:
    """The further sequence ids of the slots of a context.

    Args:
        memory: of the context.
        shape: its sizes; `chain` ids a slot, behind those of the slots.
        tables: where the ids of the tokens of a batch are.
    """

    def __init__(self, memory: ctypes.c_void_p, shape: DecoderShape, tables: PointerTables) -> None:
        self._memory = memory
        self._tables = tables
        self._most = shape.chain
        ids = shape.slots + np.arange(shape.slots * shape.chain, dtype=np.int32).reshape(shape.slots, shape.chain)
        self._ids: list[list[int]] = ids.tolist()
        # Of each slot in falling order: the end of a line, from the id of block j on, ends in that id.
        self._falling = np.ascontiguousarray(ids[:, ::-1])

    def begin(self, chains: Sequence[Chain]) -> None:
        """Let the blocks of `chains`, which are in the batch, see what they may."""
        for chain in chains:
            for own in self._ids[chain.slot][: chain.blocks]:
                llama_cpp.llama_memory_seq_cp(self._memory, chain.slot, own, -1, -1)
            line = self._falling.ctypes.data + 4 * (chain.slot * self._most + self._most - chain.blocks)
            for block in range(chain.blocks):
                start = chain.start + block * chain.length
                self._tables.point(start, start + chain.length, line, chain.blocks - block)

    def end(self, chains: Sequence[Chain], *, done: bool) -> None:
        """Keep of the blocks of `chains` what is to be kept, if the call was `done`, and forget the others."""
        for chain in chains:
            ids = self._ids[chain.slot][: chain.blocks]
            if done:
                last = chain.first + chain.kept * chain.length
                llama_cpp.llama_memory_seq_cp(self._memory, ids[chain.kept - 1], chain.slot, chain.first, last)
            for own in ids:
                llama_cpp.llama_memory_seq_rm(self._memory, own, -1, -1)
            self._tables.reset(chain.start, chain.start + chain.blocks * chain.length)
