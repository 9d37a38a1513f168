"""Log-probabilities of completions, as Arrow columns and as bytes for the store."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from operators.engine.sampling.logprobs import Scored
from operators.settings import SamplingSettings

LOGPROBS = pa.field("logprobs", pa.list_(pa.float32()))
_ENTRY = pa.struct([pa.field("id", pa.int32()), pa.field("logprob", pa.float32())])
TOP_LOGPROBS = pa.field("top_logprobs", pa.list_(pa.list_(_ENTRY)))


def logprob_fields(sampling: SamplingSettings) -> list[pa.Field]:
    """Return the columns that `sampling` asks for."""
    if LOGPROBS.name in sampling.per_row:
        return [LOGPROBS, TOP_LOGPROBS]
    if sampling.logprobs is None:
        return []
    return [LOGPROBS, TOP_LOGPROBS] if sampling.logprobs else [LOGPROBS]


def to_bytes(scores: Sequence[Scored]) -> bytes:
    """Encode, little-endian: the number of top entries (int32) of each token, its logprob (float32), their ids and
    logprobs."""
    counts = np.array([len(s.top) for s in scores], "<i4")
    own = np.array([s.logprob for s in scores], "<f4")
    ids = np.array([token for s in scores for token, _ in s.top], "<i4")
    tops = np.array([logprob for s in scores for _, logprob in s.top], "<f4")
    return b"".join([np.array([len(scores)], "<i4").tobytes(), *(a.tobytes() for a in (counts, own, ids, tops))])


def from_bytes(content: bytes) -> list[Scored]:
    """Decode the result of `to_bytes`; logprobs are float32."""
    count = int(np.frombuffer(content, "<i4", 1)[0])
    counts = np.frombuffer(content, "<i4", count, 4)
    own = np.frombuffer(content, "<f4", count, 4 + 4 * count).tolist()
    start, entries = 4 + 8 * count, int(counts.sum())
    ids = np.frombuffer(content, "<i4", entries, start).tolist()
    tops = np.frombuffer(content, "<f4", entries, start + 4 * entries).tolist()
    pairs = list(zip(ids, tops, strict=True))
    ends = counts.cumsum().tolist()
    return [
        Scored(logprob, tuple(pairs[end - n : end])) for logprob, n, end in zip(own, counts.tolist(), ends, strict=True)
    ]
