"""SeenHashes and KeptRows: which row has a hash, at the cost of the hash and the row."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.rows.duplicates import HASH, HASH_BYTES, KeptRows, SeenHashes


def hashes(values: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), HASH)


KEYS = st.binary(min_size=1, max_size=3).map(lambda b: b.ljust(HASH_BYTES, b"\0")) | st.binary(
    min_size=HASH_BYTES, max_size=HASH_BYTES
)
"""Also such that end in zero bytes, or differ in nothing else."""


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sets(KEYS, max_size=9), max_size=9), st.lists(KEYS, max_size=9))
def test_it_is_a_mapping_from_hashes_to_numbers(added, others):
    seen, known = SeenHashes(), dict[bytes, int]()
    for keys in added:
        new = list(keys - known.keys())
        seen.add(hashes(new), len(known))
        known |= {key: len(known) + i for i, key in enumerate(new)}
        asked = [*keys, *others]
        assert seen.find(hashes(asked)).tolist() == [known.get(key, -1) for key in asked]
    assert sum(len(run) for run, _ in seen._runs) == len(known)


IDENTITIES = st.tuples(st.integers(0, 2**40), st.lists(st.integers(0, 2**31 - 1), max_size=3))


@given(st.lists(st.lists(IDENTITIES, max_size=5), max_size=5), st.binary(max_size=9))
def test_kept_rows_are_named_also_after_they_were_packed(chunks, behind):
    rows, restored = KeptRows(), KeptRows()
    for chunk in chunks:
        packed = rows.add(chunk)
        assert restored.restore(packed + behind) == len(packed) == 8 + sum(9 + 4 * len(b) for _, b in chunk)
    names = [f"row {row}, lineage {lineage}," if lineage else f"row {row}" for c in chunks for row, lineage in c]
    assert [rows.name(i) for i in range(rows.count)] == names
    assert [restored.name(i) for i in range(restored.count)] == names


def test_a_hash_costs_its_16_bytes_and_the_number_of_its_row_8():
    """Not what a Python dict takes, which is about 150."""
    rng = np.random.default_rng(0)
    seen = SeenHashes()
    tracemalloc.start()
    try:
        for i in range(50):
            seen.add(np.frombuffer(rng.bytes(HASH_BYTES * 4096), HASH), 4096 * i)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(len(run) for run, _ in seen._runs)
    assert kept == 50 * 4096
    assert held < 25 * kept
    assert most < 3 * (HASH_BYTES + 8) * kept
    assert len(seen._runs) < 20
