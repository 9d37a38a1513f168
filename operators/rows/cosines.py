"""Cosines of vectors that are the same on any machine.

A product of matrices (BLAS, float32) finds the pairs that may be near enough (`above`); how it sums, and so its last
bits, depend on the library, the processor and the shape of the matrices. It decides nothing: each pair that it leaves
is computed anew by `cosines`, in float64 and in one order.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
PAIR_NUMBERS = 1 << 20
"""Numbers of the vectors that are computed with together in float64."""


def margin(size: int) -> float:
    """Return how much the cosine of two vectors of `size` numbers may differ from what a product in float32 says.

    With u = 2**-24, half the last place of 1. The one vector q has length 1 and is rounded to float32: its product with
    another one k changes by u |k| at most. The sum of `size` products in float32 is off by g |q||k| at most, where
    g = size u / (1 - size u), in whatever order it is made, with fused multiplication or without (Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, section 3.1). The bound that it is compared with is rounded once more: u.
    Since 1/2 <= |k| < 1, what underflows adds less than size 2**-125. Together, as a cosine, that is less than
    (size + 3) u / (1 - size u), and less than twice (size + 4) u for any size up to 2**22, where the half that is left
    is far more than `cosines` errs by: 4.6e-5 for 384 numbers, 4.9e-4 for 4096.
    """
    return 2 * (size + 4) * 2.0**-24


def cosines(a: Floats, b: Floats) -> Doubles:
    """Return the cosine of each pair of rows of `a` and `b` (float32 [n, size], scaled by `scaled`): float64 [n]."""
    return dots(a, b) / np.sqrt(dots(a, a) * dots(b, b))


def dots(a: Floats, b: Floats) -> Doubles:
    """Return the sum of the products of each pair of rows. A product of two float32 is exact in float64, and halves are
    added to halves, number by number: no library chooses an order, and IEEE 754 says each bit."""
    sums = a.astype(np.float64) * b
    while (size := sums.shape[1]) > 1:
        half = (size + 1) // 2
        sums[:, : size - half] += sums[:, half:]
        sums = sums[:, :half]
    return sums[:, 0]


def scaled(vectors: Floats) -> Floats:
    """Return the vectors, each multiplied by the power of two that gives it a length from 1/2 to 1. So no product is
    too large or too small, and their numbers stay as they are, but for those below 2**-126 of the largest one."""
    made: Floats = np.ldexp(vectors, -np.frexp(np.sqrt(squares(vectors)))[1][:, None])
    return made


def squares(vectors: Floats) -> Doubles:
    """Return the squares of the lengths of vectors: float64 [n]."""
    return np.concatenate([np.zeros(0), *(dots(vectors[part], vectors[part]) for part in slices(*vectors.shape))])


def above(queries: Floats, vectors: Floats, lengths: Doubles, least: float) -> tuple[Indices, Indices, Doubles]:
    """Return the pairs whose cosine reaches `least` by a product in float32: the rows of `queries` and of `vectors`,
    and what it says."""
    found = queries @ vectors.T
    at, places = np.divmod(np.flatnonzero(found >= (lengths * least).astype(np.float32)), len(vectors))
    return at, places, found[at, places] / lengths[places]


def slices(rows: int, size: int) -> Iterator[slice]:
    """Yield the parts of `rows` vectors of `size` numbers that are computed with together."""
    each = max(1, PAIR_NUMBERS // size)
    return (slice(first, first + each) for first in range(0, rows, each))
