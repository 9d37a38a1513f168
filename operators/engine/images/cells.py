"""Cells of images in a prompt: places in the KV cache for an image's embeddings, between those of tokens.

`prompt_ids` has a negative id for each, made from the content of the image. So prompts with other images are other
prompts to all that compares ids: the radix tree, duplicates, groups of equal prompts, content keys. Ids also say where
a block of cells begins, which is computed in one piece (docs/engine.md).
"""

from __future__ import annotations

import hashlib

import numpy as np

from operators.engine.backend.interface import TokenIds

_INSIDE = 1 << 30
"""Bit of the ids of all cells of a block but the first."""


def cell_ids(digest: bytes, block: int, cells: int) -> TokenIds:
    """Return the ids of a block of `cells` cells, int32 [cells]: number `block` of the image with this digest."""
    stream = hashlib.shake_256(digest + block.to_bytes(4, "little")).digest(4 * cells)
    ids = np.frombuffer(stream, np.uint32) | np.uint32(1 << 31 | _INSIDE)
    ids[0] &= ~np.uint32(_INSIDE)
    return ids.view(np.int32)


def is_inside(ids: TokenIds, place: int) -> bool:
    """Return whether `place` is inside a block of cells, behind its first."""
    return place < len(ids) and ids[place] < 0 and bool(int(ids[place]) & _INSIDE)


def piece_of(ids: TokenIds, cell: int) -> tuple[int, int]:
    """Return where the piece of a prompt that has `cell` begins, and where it ends: a block of an image, or the tokens
    between two."""
    is_image = ids < 0
    begins = is_image & (ids & _INSIDE == 0)
    begins[1:] |= is_image[:-1] & ~is_image[1:]
    places = np.flatnonzero(begins)
    at = int(np.searchsorted(places, cell, "right"))
    return (int(places[at - 1]) if at else 0), (int(places[at]) if at < len(places) else len(ids))
