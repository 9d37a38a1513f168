"""BlockDiffusion, the decode strategy of SDAR: denoises a block of mask tokens in several steps, then the next block.

In each denoising step the model sees the known tokens of the block, and masks for the others; from its logits at the
masks a token is proposed for each, and the most confident ones are committed. These steps only read the KV cache: their
own entries are truncated at once. A complete block is computed once more (the store pass), and its entries stay. Every
sequence adds one block to every call, whether of its prompt, in denoising or to be stored, so all of them share each
call, and llama.cpp splits nothing.

docs/block_diffusion.md has the algorithm and its sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from operators.engine.backend.interface import Decoder, Logits, Model, TokenIds
from operators.engine.sampling.candidates import Flags
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.strategies.base import DraftContext, Strategy
from operators.engine.strategies.block_diffusion.block_rows import Before, BlockChunking, BlockRow, TokenBlock
from operators.engine.strategies.block_diffusion.remasking import Confidences, committed, confidences_of
from operators.engine.strategies.block_diffusion.setup import BlockDiffusionSetup, mask_of
from operators.settings import DecodeSettings
from operators.settings.block_diffusion import BlockDiffusionSettings, Remasking
from pipeline.api.numbers import counted


@dataclass
class PassCounts:
    """Counts. A pass is one block of one row in one call."""

    prompt_passes: float = counted("blocks of prompts in calls", "passes")
    denoise_passes: float = counted("blocks that were denoised in calls", "passes")
    store_passes: float = counted("blocks that were stored in calls", "passes")
    committed_tokens: float = counted("tokens that were committed", "tokens")
    discarded_tokens: float = counted("committed tokens after the end of a text", "tokens")
    output_rows: float = counted("rows of logits", "rows")


@dataclass(slots=True)  # not frozen: one is made for every row and call, and freezing doubles the cost
class Pass:
    """One block of one row in one call.

    Args:
        row: None for the dummy token beside a lone row.
        slot, first: the sequence id, and the position of its first token.
        tokens: int32 [L].
        wanted: bool [L], where logits are wanted. With decode.shift_logits that is one position before the tokens that
            are to be made, for the first of a block in the block before it.
        block: the block that is denoised or stored; None for a block of the prompt.
    """

    row: BlockRow | None
    slot: int
    first: int
    tokens: TokenIds
    wanted: Flags
    block: TokenBlock | None = None


class BlockDiffusion(Strategy):
    """Makes completions block by block. Overwrites the decoder's logits of the mask token, and of
    those that the model's file suppresses."""

    settings: BlockDiffusionSettings
    setup = BlockDiffusionSetup

    def __init__(
        self, settings: DecodeSettings, decoder: Decoder, model: Model, draft: DraftContext | None = None
    ) -> None:
        super().__init__(settings, decoder, model, draft)
        self._length = self.settings.block_length
        self.chunking = BlockChunking(self._length, shift=self.settings.shift_logits)
        self.counts = PassCounts()
        self._mask_id = mask_of(decoder, model, self.settings.mask_token_id)
        self._never = [self._mask_id, *model.suppressed_ids]
        self._passes: list[Pass] = []
        self._outputs: Flags = np.empty((0, self._length), np.bool_)

    def fill(self, step: StepBatch) -> None:
        """Put the blocks of all sequences into the decoder's buffer, in slot order."""
        self._passes = sorted(self._passes_of(step), key=lambda one: one.slot)
        self._outputs = np.stack([one.wanted for one in self._passes])
        slots = [one.slot for one in self._passes]
        if self.decoder.shape.needs_rules:
            no_lone_output(self._outputs, slots)
        batch = self.decoder.batch
        step.begin(batch)
        firsts = [one.first for one in self._passes]
        batch.add_spans([one.tokens for one in self._passes], firsts, slots, [0] * len(slots))
        batch.output[: batch.n_tokens] = self._outputs.ravel()

    def advance(self, step: StepBatch, logits: Logits) -> None:
        """Commit tokens by the logits of `step`, float32 [outputs, n_vocab], and update every row."""
        self.counts.output_rows += len(logits)
        logits[:, self._never] = -np.inf
        # The row of its logits for each token that has one.
        lines = (self._outputs.cumsum() - 1).reshape(self._outputs.shape)
        by_pass = np.array([_temperature(one.row) for one in self._passes], np.float32)
        temperatures = np.repeat(by_pass, self._outputs.sum(axis=1))
        entropies = self.settings.remasking == Remasking.ENTROPY
        confidences = confidences_of(logits, temperatures, entropies=entropies)
        for one, rows in zip(self._passes, lines, strict=True):
            if one.row is not None:
                self._move(one.row, one, logits, confidences, rows[one.wanted].tolist())

    def own_counts(self) -> list[PassCounts]:
        return [self.counts]

    def _passes_of(self, step: StepBatch) -> Iterator[Pass]:
        for chunk in step.chunks:
            row = cast(BlockRow, chunk.row)
            tokens = row.next_tokens(chunk.count)
            wanted = np.zeros(tokens.shape, np.bool_)
            wanted[-1] = self.settings.shift_logits and chunk.completes
            yield Pass(row, row.slot.index, row.slot.num_cached, tokens, wanted)
        for row in cast(list[BlockRow], step.decoding):
            block = row.block or row.begin_block(self._mask_id)
            wanted = _one_before(~block.known) if self.settings.shift_logits else ~block.known
            yield Pass(row, row.slot.index, row.slot.num_cached, block.ids, wanted, block)
        if step.dummy is not None:
            tokens = np.zeros(self._length, np.int32)
            yield Pass(None, step.dummy.index, step.dummy.num_cached, tokens, np.ones(tokens.shape, np.bool_))

    def _move(self, row: BlockRow, one: Pass, logits: Logits, confidences: Confidences, lines: Sequence[int]) -> None:
        """Update a sequence by its pass; `lines` are its rows of `logits`."""
        if one.block is not None and not one.block.is_complete:
            row.slot.truncate(one.first)
            self._denoise(row, one.block, logits, confidences, lines)
            return
        if one.wanted[-1]:
            row.before = Before(logits[lines[0]].copy(), confidences.alone(lines[0]))
        if one.block is None:
            self.counts.prompt_passes += 1
        else:
            self.counts.store_passes += 1
            row.block = None
        row.update_state()

    def _denoise(
        self, row: BlockRow, block: TokenBlock, logits: Logits, confidences: Confidences, lines: Sequence[int]
    ) -> None:
        """Commit some of the unknown tokens of `block`; append the block once it is complete."""
        places = np.flatnonzero(~block.known).tolist()
        predictions = [(logits[line], confidences, line) for line in lines]
        if row.before is not None and not block.known[0]:
            predictions.insert(0, (row.before.logits, row.before.confidences, 0))
        first = row.slot.num_cached
        tokens: list[int] = []
        for place, (own, of, line) in zip(places, predictions, strict=True):
            token = self._candidate(row, first + place, block.step, own, int(of.tops[line]))
            if token is None or not np.isfinite(of.maxima[line]):
                row.error = f"the logits for position {first + place} are no distribution (NaN or -inf everywhere)"
                return
            tokens.append(token)
        temperature = _temperature(row)
        sure = [
            of.probability(line, float(own[token]), temperature)
            for (own, of, line), token in zip(predictions, tokens, strict=True)
        ]
        nats = [float(of.entropies[line]) for _, of, line in predictions if of.entropies is not None]
        chosen = committed(self.settings, block.step, sure, nats or None)
        for place in chosen:
            block.ids[places[place]] = tokens[place]
            block.known[places[place]] = True
        block.step += 1
        self.counts.denoise_passes += 1
        self.counts.committed_tokens += len(chosen)
        if block.is_complete:
            self.counts.discarded_tokens += row.end_block()

    def _candidate(self, row: BlockRow, position: int, step: int, logits: Logits, top: int) -> int | None:
        """Propose a token for `position`. Its random number depends on the position and the step of the block."""
        if row.params.chain.greedy:
            return top
        return self.sampler.draw_one(logits, row, row.sampling.uniforms.at(position, step))


def no_lone_output(outputs: Flags, slots: Sequence[int]) -> None:
    """Add an output wherever llama.cpp would have a single one in a micro-batch, which it computes with other kernels.

    A micro-batch is a run of consecutive slots. `outputs`: bool [rows, L], of rows in `slots`, in ascending order.
    """
    cuts = [at for at, (one, other) in enumerate(pairwise(slots), 1) if other != one + 1]
    for start, end in pairwise([0, *cuts, len(slots)]):
        run = outputs[start:end].reshape(-1)  # a view
        if run.sum() == 1 and len(run) > 1:
            run[int(run.argmin())] = True


def _one_before(unknown: Flags) -> Flags:
    """Return the positions that need logits if each token is predicted one position before it. `unknown`, bool [L]: the
    tokens to predict. The last token of a complete block predicts the one after it."""
    return np.append(unknown[1:], not unknown.any())


def _temperature(row: BlockRow | None) -> float:
    """Return the temperature for confidences, which is 1 for a greedy row."""
    return 1.0 if row is None else row.params.temperature or 1.0
