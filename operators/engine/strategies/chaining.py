"""Whether a context can be trusted with several blocks of a row in one call: tried on tokens of no meaning.

How llama.cpp is told who sees whom rests on an order that it does not promise (operators/llama/chains.py). Where the
order is another, nothing fails: blocks see what comes behind them, and texts are other texts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Decoder, Logits

MOST_DIFFERENCE = 0.1
"""In standard deviations of the logits. Other kernels and a quantised cache change them by some thousandths, a block
that sees one too many by about one."""


def chain_difference(decoder: Decoder) -> float:
    """How much logits differ between three blocks in one call and in three, in standard deviations; it leaves the
    decoder empty.

    Of the three blocks two are to stay. What is compared are the logits of the second, which must not see the third, of
    the third, which must see both, and of another block behind the two that stay, which shows what they left.
    Infinite where the backend refuses such calls, or there is no room to try.
    """
    length = decoder.shape.block
    if decoder.shape.cells < 4 * length:
        return np.inf
    blocks = np.arange(1, 4 * length + 1, dtype=np.int32).reshape(4, length) % decoder.n_vocab
    try:
        one_by_one = _apart(decoder, blocks)
        together = _together(decoder, blocks)
    except DecodeFailed:
        return np.inf
    finally:
        decoder.clear()
    finite = np.isfinite(one_by_one) & np.isfinite(together)
    return float(np.abs(one_by_one[finite] - together[finite]).max() / one_by_one[finite].std())


def _apart(decoder: Decoder, blocks: npt.NDArray[np.int32]) -> Logits:
    length = decoder.shape.block
    decoder.clear()
    _store(decoder, blocks[0], 0)
    found = [_store(decoder, blocks[1], length), _store(decoder, blocks[2], 2 * length)]
    decoder.truncate(0, 2 * length)
    return np.concatenate([*found, _store(decoder, blocks[3], 2 * length)])


def _together(decoder: Decoder, blocks: npt.NDArray[np.int32]) -> Logits:
    length = decoder.shape.block
    decoder.clear()
    _store(decoder, blocks[0], 0)
    found = []
    for output in (1, 2):  # a row has outputs in one block of a call
        outputs = np.zeros((2, length), np.bool_)
        outputs[output - 1] = True
        decoder.truncate(0, length)
        decoder.batch.clear()
        decoder.batch.add_chain(blocks[1:3], length, 0, outputs, kept=1)
        found.append(decoder.decode().copy())
    return np.concatenate([*found, _store(decoder, blocks[3], 2 * length)])


def _store(decoder: Decoder, block: npt.NDArray[np.int32], first: int) -> Logits:
    """The logits of a block behind what is in slot 0, which stays there."""
    decoder.batch.clear()
    decoder.batch.add_blocks(block[None], [first], [0], np.ones((1, len(block)), np.bool_))
    return decoder.decode().copy()
