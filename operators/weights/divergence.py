"""Divergence of the predictions of a model with other weights from given ones, on a sample of texts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from operators.engine.backend.interface import Logits, Model, TokenIds, Wanted
from operators.scoring.prefix_tree import Text
from operators.scoring.text_batches import Reader, reading_settings
from operators.settings.runtime import EngineSettings
from pipeline.system.disk_errors import writing

TEXT_TOKENS = 256
"""Most tokens of a text."""
_ROWS = 4
"""Distributions that are compared at a time, so that they stay in the cache of a core."""


@dataclass(frozen=True)
class Divergence:
    """The predictions of a model on a sample. `mean_kl`: nats, of the given distributions from the model's."""

    perplexity: float
    mean_kl: float
    same_top: float


def sample_of(prompts: Seq[TokenIds], tokens: int) -> list[TokenIds]:
    """Return about `tokens` tokens of prompts from all over `prompts`, each cut at TEXT_TOKENS."""
    order = np.random.default_rng(0).permutation(len(prompts))
    found: list[TokenIds] = []
    for index in order:
        cut = prompts[index][:TEXT_TOKENS]
        if len(cut) > 1:
            found.append(cut)
        if sum(map(len, found)) >= tokens:
            break
    return found


class Predictions:
    """The predictions of a model for a sample of texts, kept in a file without a name. `close` removes it.

    Args:
        model: needed only while they are made.
        texts: token ids, of two or more tokens each.
        folder: for the file, of four bytes per token of the texts and word of the vocabulary.
    """

    def __init__(self, model: Model, texts: Seq[TokenIds], settings: EngineSettings, folder: Path) -> None:
        self._texts, self._settings, self._folder = texts, settings, folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed by close
        for _, _, logits in _logits(model, texts, settings):
            with writing(folder):
                self._file.write(_log_softmax(logits).tobytes())

    def compare(self, model: Model) -> Divergence:
        """Return how far the predictions of `model`, which has the same vocabulary, are from these."""
        self._file.seek(0)
        surprise, total, same, count = _Surprise(self._texts), 0.0, 0, 0
        for text, start, logits in _logits(model, self._texts, self._settings):
            kept = np.frombuffer(self._file.read(4 * logits.size), np.float32).reshape(logits.shape)
            found = _log_softmax(logits)
            surprise.add(text, start, found)
            total += float((np.exp(kept) * (kept - found)).sum(axis=1, dtype=np.float64).sum())
            same += int((kept.argmax(axis=1) == found.argmax(axis=1)).sum())
            count += len(found)
        return Divergence(surprise.perplexity, max(total / count, 0.0), same / count)

    def close(self) -> None:
        self._file.close()


class _Surprise:
    """Adds up the log-probabilities of the tokens of `texts`, each after those before it."""

    def __init__(self, texts: Seq[TokenIds]) -> None:
        self._texts, self._sum, self._count = texts, 0.0, 0

    def add(self, text: int, start: int, logprobs: Logits) -> None:
        """Add those after the tokens from `start` on, by their `logprobs`: float32 [tokens, n_vocab]."""
        targets = self._texts[text][start + 1 : start + 1 + len(logprobs)]
        self._sum += float(logprobs[np.arange(len(targets)), targets].sum(dtype=np.float64))
        self._count += len(targets)

    @property
    def perplexity(self) -> float:
        return math.exp(min(-self._sum / self._count, 700.0))


def _logits(model: Model, texts: Seq[TokenIds], settings: EngineSettings) -> Iterator[tuple[int, int, Logits]]:
    """Yield the number of a text, the position of a token, and the logits after it and after some tokens behind it; in
    the same order for each model."""
    longest = min(1 + max(map(len, texts)), model.n_ctx_train)  # a lone token at the end is read with one more
    own = replace(settings, max_sequence_tokens=longest, kv="per_sequence", n_ctx=None, admission="reserve")
    reading = reading_settings(own, model.n_vocab)
    with ExitStack() as stack:
        decoder, give_back = model.lease(replace(reading, slots=min(reading.slots or 1, len(texts))), Wanted.EVERY)
        stack.callback(give_back)
        reader = Reader(decoder, flash_attention=decoder.shape.flash_attention, sharing=False)
        for parts in reader.read([Text(ids) for ids in texts]):
            for part in parts:
                for first in range(0, len(part.rows), _ROWS):
                    yield part.texts[0], part.start + first, part.rows[first : first + _ROWS]


def _log_softmax(logits: Logits) -> Logits:
    """Return the log-probabilities of each row: float32 [rows, n_vocab]."""
    shifted: Logits = logits - logits.max(axis=1, keepdims=True)
    total: npt.NDArray[np.float64] = np.exp(shifted).sum(axis=1, keepdims=True, dtype=np.float64)
    shifted -= np.log(total).astype(np.float32)
    return shifted
