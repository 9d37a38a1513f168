"""What the engine adds up for the machine's limit is what its decoder computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.limit import MachineLimit, ModelWork, Peaks
from tests.operators.engine.fixtures import Bench, prompts, sequences, shape


class Noting(MachineLimit):
    """Keeps the tokens, outputs and earlier tokens of each call, and its seconds."""

    def __init__(self) -> None:
        super().__init__(Peaks(1.0, 1.0), ModelWork(macs=1), 2.0)
        self.calls: list[tuple[int, int, float]] = []

    def add(self, spans: Iterable[tuple[int, int]], outputs: int, seconds: float) -> None:
        spans = list(spans)
        super().add(spans, outputs, seconds)
        seen = sum(depth - before for count, depth in spans for before in range(count))
        self.calls.append((sum(count for count, _ in spans), outputs, seen))


@pytest.mark.parametrize("sizes", [{}, {"per_sequence": False, "n_ctx": 600}], ids=["per sequence", "unified"])
def test_a_call_is_added_up_as_the_decoder_gets_it(sizes):
    bench, limit, computed = Bench(shape(deterministic=False, **sizes)), Noting(), []
    decode, buffer = bench.decoder.decode, bench.decoder.batch

    def noting() -> Any:
        n = buffer.n_tokens
        computed.append((n, int(np.count_nonzero(buffer.output[:n])), int((buffer.pos[:n] + 1).sum())))
        return decode()

    bench.decoder.decode = noting  # type: ignore[method-assign]
    bench.worker.log.limit = limit
    texts = prompts(12)
    bench.run(sequences([*texts, *texts[:4]]))  # some begin with the logits of an equal prompt: no call
    assert limit.calls == computed
    assert max(tokens for tokens, _, _ in computed) > 4
    totals = bench.engine.totals()
    assert totals["work_macs"] == sum(tokens for tokens, _, _ in computed)
    assert 0 < totals["work_s"] <= totals["decode_s"]


def test_an_engine_without_a_limit_has_no_such_totals():
    bench = Bench(shape())
    bench.run(sequences(prompts(2)))
    assert not [key for key in bench.engine.totals() if key.startswith("work_")]
