"""Compute the model's outputs at every token of whole texts, several texts per call.

Nothing is sampled or kept. A batch of texts is a tree of pieces (prefix_tree.py). Every slot computes a path of it, the
deepest piece first, and goes back to the last fork by truncation; a slot without work copies the beginning of another
one and takes a branch of it. Pieces of equal length share a call, in consecutive slots if possible. The bits of a text
depend on the text alone, by the rules of operators/engine/scheduler/step_batch.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from operators.engine.backend.interface import Decoder, Logits
from operators.engine.scheduler.step_batch import Chunking
from operators.scoring.prefix_tree import Cuts, Text, TokenSpan
from operators.settings.runtime import KERNEL_TOKENS, EngineSettings

OUTPUT_BYTES = 256 << 20
"""Memory for the logits of a call. llama.cpp has a second buffer of that size."""
SLOTS = 16
"""Most texts per call. More would fill a call only with texts of fewer than 32 tokens, and each costs KV cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """The model's outputs for consecutive tokens of texts.

    Args:
        texts: the numbers of the texts that have these tokens, after equal beginnings.
        start: position of the first token.
        rows: float32 [tokens, n_vocab or n_embd], a view that holds until the next parts are asked for.
    """

    texts: Seq[int]
    start: int
    rows: Logits

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


class DecoderReader:
    """Reads texts with a decoder that has the settings of `reading_settings`, and Wanted.EVERY or EMBEDDINGS.

    Args:
        sharing: compute what texts begin with in common once, if the decoder can truncate a slot.
        adapters: of all texts, as a row has them.

    Attributes:
        decoded: tokens computed so far, each common beginning once.
    """

    def __init__(self, decoder: Decoder, *, sharing: bool = True, adapters: int = 0) -> None:
        self._decoder = decoder
        self._adapters = adapters
        self._room = min(decoder.shape.n_batch, decoder.shape.n_ubatch)
        self._cuts = Cuts(self._room, Chunking(decoder.shape.kernel_tokens), sharing=sharing and decoder.partial)
        self.decoded = 0

    def read(self, texts: Seq[Text]) -> Iterator[list[Part]]:
        """Make a call for each item that is asked for; yield its outputs, of each text from its `first` or earlier.

        A piece of one token gets a second one after it, which does not affect the first and whose output is dropped:
        the backend computes a lone token with other kernels.
        """
        root = self._cuts.tree(texts)
        firsts = [text.first for text in texts]
        self._decoder.clear()
        paths = [[root] for _ in range(self._decoder.shape.slots)]
        work: dict[int, TokenSpan] = {}
        while self._take(paths, work):
            group = self._next(work)
            yield self._compute(group, firsts)
            for slot, _ in group:
                del work[slot]

    def _take(self, paths: list[list[TokenSpan]], work: dict[int, TokenSpan]) -> bool:
        """Put the next piece of each slot without `work` at the end of its path; return whether there is any work."""
        for slot, path in enumerate(paths):
            if slot not in work and (parent := next((piece for piece in reversed(path) if piece.left), None)):
                work[slot] = self._follow(paths, slot, path, parent)
        taken = sorted(work)
        for slot in sorted(set(range(len(paths))) - work.keys()):
            forks = ((len(piece.left), other, piece) for other in taken for piece in paths[other][1:-1] if piece.left)
            _, other, parent = max(forks, key=lambda fork: fork[:2], default=(0, 0, None))
            if parent is None:
                break
            if parent not in paths[slot]:
                self._decoder.copy(other, slot, parent.end)
            work[slot] = self._follow(paths, slot, paths[other], parent)
        return bool(work)

    def _follow(self, paths: list[list[TokenSpan]], slot: int, path: list[TokenSpan], parent: TokenSpan) -> TokenSpan:
        """Leave in `slot` what it has up to `parent`, which is on `path`; return the next piece that follows it."""
        if paths[slot][-1] is not parent:
            self._decoder.truncate(slot, parent.end)
        paths[slot] = [*path[: path.index(parent) + 1], parent.left.pop()]
        return paths[slot][-1]

    def _next(self, work: dict[int, TokenSpan]) -> list[tuple[int, TokenSpan]]:
        """Return the slots, in order, with the longest pieces: as many as fit into a call, those that wait longest."""
        length = max(len(piece.ids) for piece in work.values())
        longest = [(slot, piece) for slot, piece in work.items() if len(piece.ids) == length]
        return sorted(longest[: max(1, self._room // max(length, 2))], key=lambda each: each[0])

    def _compute(self, work: Seq[tuple[int, TokenSpan]], firsts: Seq[int]) -> list[Part]:
        """Compute pieces of equal length, in slot order; `firsts`: of each text the first output that is wanted."""
        decoder, length = self._decoder, len(work[0][1].ids)
        lone = length == 1 and decoder.shape.needs_rules
        fed = [np.repeat(piece.ids, 2) if lone else piece.ids for _, piece in work]
        # At least two: the backend computes a lone output with other kernels.
        wanted = [piece.end - min(firsts[i] for i in piece.texts) for _, piece in work]
        outputs = [min(len(ids), max(2, count)) if count > 0 else 0 for ids, count in zip(fed, wanted, strict=True)]
        decoder.batch.clear()
        decoder.batch.adapters[:] = self._adapters
        decoder.batch.add_spans(fed, [piece.start for _, piece in work], [slot for slot, _ in work], outputs)
        rows = decoder.decode()
        self.decoded += decoder.batch.n_tokens
        ends = np.cumsum(outputs).tolist()
        return [
            Part(piece.texts, max(piece.end - count, piece.start), rows[end - count : end - count + min(count, length)])
            for (_, piece), count, end in zip(work, outputs, ends, strict=True)
            if count
        ]


def reading_settings(settings: EngineSettings, n_vocab: int) -> EngineSettings:
    """Return `settings` for a decoder with an output per token: as many tokens per call as OUTPUT_BYTES allow."""
    settings = settings.with_defaults()
    least = 2 * KERNEL_TOKENS if settings.deterministic else 1
    tokens = max(least, min(settings.n_ubatch, OUTPUT_BYTES // (4 * n_vocab)))
    return whole_calls(settings, min(settings.slots, SLOTS, tokens), tokens)


def whole_calls(settings: EngineSettings, slots: int, tokens: int) -> EngineSettings:
    """Return `settings` for a context of so many slots whose calls have up to `tokens`, all computed at once."""
    sizes = replace(settings, slots=slots, n_batch=tokens, n_ubatch=tokens)
    return replace(sizes, kv="per_sequence", n_ctx=None, admission="reserve")
