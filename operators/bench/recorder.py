"""Records what an engine asks of its decoder, and plays it again with nothing else in the loop.

The schedule does not depend on logits where lengths are given and no token ends a row. So a run on the fake decoder
gives the calls that a run on the real one would make.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from operators.decoding.model import Decoder, Logits

_VALUES = (int, float, str, bool, type(None))


@dataclass(frozen=True)
class DecodeCall:
    """One call of `decode` with the arrays of its batch."""

    token: npt.NDArray[np.int32]
    pos: npt.NDArray[np.int32]
    seq_id: npt.NDArray[np.int32]
    output: npt.NDArray[np.int8]


@dataclass(frozen=True)
class OtherCall:
    """A call of any other method of the decoder, and what it returned."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


Trace = Sequence[DecodeCall | OtherCall]


class Recorder:
    """Stands in for the decoder `inner`, passes everything on to it and keeps a record of it in `trace`."""

    def __init__(self, inner: Decoder) -> None:
        self.trace: list[DecodeCall | OtherCall] = []
        self._inner = inner

    @property
    def decoder(self) -> Decoder:
        """What to give to an engine. Methods but `decode` are found by name, whatever a decoder comes to have."""
        return cast(Decoder, self)

    def decode(self) -> Logits:
        """See Decoder.decode."""
        batch, n = self._inner.batch, self._inner.batch.n_tokens
        call = DecodeCall(
            batch.token[:n].copy(), batch.pos[:n].copy(), batch.seq_id[:n].copy(), batch.output[:n].copy()
        )
        self.trace.append(call)
        return self._inner.decode()

    def __getattr__(self, name: str) -> Any:
        """Whatever else a decoder has and can; calls are recorded."""
        found = getattr(self._inner, name)
        return (lambda *args, **kwargs: self._call(name, args, kwargs)) if callable(found) else found

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method: Callable[..., Any] = getattr(self._inner, name)
        result = method(*args, **kwargs)
        self.trace.append(OtherCall(name, args, kwargs, result))
        return result


def replay(trace: Trace, decoder: Decoder) -> None:
    """Make the calls of `trace` on `decoder`.

    An argument that an earlier call of the trace returned (a saved state) becomes what this decoder returned there.
    """
    made: dict[int, Any] = {}
    batch = decoder.batch
    for call in trace:
        if isinstance(call, DecodeCall):
            n = batch.n_tokens = len(call.token)
            batch.token[:n] = call.token
            batch.pos[:n] = call.pos
            batch.seq_id[:n] = call.seq_id
            batch.output[:n] = call.output
            decoder.decode()
        else:
            args = [made.get(id(a), a) for a in call.args]
            kwargs = {k: made.get(id(v), v) for k, v in call.kwargs.items()}
            result = getattr(decoder, call.name)(*args, **kwargs)
            if not isinstance(call.result, _VALUES):
                made[id(call.result)] = result


def tokens_of(trace: Trace) -> tuple[int, int]:
    """Calls of `decode` in a trace, and the tokens in them."""
    calls = [call for call in trace if isinstance(call, DecodeCall)]
    return len(calls), sum(len(call.token) for call in calls)
