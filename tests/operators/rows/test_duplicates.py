"""SeenHashes: a set that costs what its hashes do."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.rows.duplicates import HASH, HASH_BYTES, SeenHashes


def hashes(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), HASH)


KEYS = st.binary(min_size=1, max_size=3).map(lambda b: b.ljust(HASH_BYTES, b"\0")) | st.binary(
    min_size=HASH_BYTES, max_size=HASH_BYTES
)
"""Also such that end in zero bytes, or differ in nothing else."""


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sets(KEYS, max_size=9), max_size=9), st.lists(KEYS, max_size=9))
def test_it_is_a_set(added, others):
    seen, known = SeenHashes(), set[bytes]()
    for keys in added:
        new = keys - known
        seen.add(hashes(list(new)))
        known |= new
        asked = [*keys, *others]
        assert seen.contain(hashes(asked)).tolist() == [key in known for key in asked]
    assert sum(map(len, seen._runs)) == len(known)


def test_a_hash_costs_its_16_bytes():
    """Not what a Python set takes, which is about 100."""
    rng = np.random.default_rng(0)
    seen = SeenHashes()
    tracemalloc.start()
    try:
        for _ in range(50):
            seen.add(np.frombuffer(rng.bytes(HASH_BYTES * 4096), HASH))
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(map(len, seen._runs))
    assert kept == 50 * 4096
    assert held < 17 * kept
    assert most < 3 * HASH_BYTES * kept
    assert len(seen._runs) < 20
