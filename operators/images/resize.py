"""Sizes to which models' training resized pictures, and Pillow's resizing, to the bit as transformers has it.

libmtmd copies a picture that has its size already. What it would make of others differs: it keeps the aspect and adds
black borders, rounds halves up, and has limits of its own (llama.cpp's tools/mtmd, clip.cpp and mtmd-image.cpp).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operators.images.read import BadImage, pillow
from pipeline.api.errors import ConfigError, InputError

MOST_ASPECT = 200
"""Longer side by shorter side, above which Qwen's training takes no picture."""
MOST_TILED = 4096
"""The longest edge that Idefics3's training makes."""
TOKENS = "model.image_tokens"
"""The key of the limits that `tokens` are."""
AS_LIBMTMD = "clip.vision.resized_by_libmtmd"
"""What a header has, and is true, if training resized as libmtmd does."""
_LEAST_CELLS, _MOST_CELLS = 8, 4096
"""llama.cpp's limits for the Qwen-VL families."""
_PUBLISHED = {("qwen3vl_merger", 16): 65_536}
"""Pixels that a picture has at least in the published preprocessor_config.json, by projector and patch; no header has
them. That of Qwen2-VL and Qwen2.5-VL is below llama.cpp's limit."""


class ResizeRule(StrEnum):
    """How a size is made."""

    CELLS = "cells"
    """Both sides are rounded to multiples of a cell, then scaled into limits of pixels (smart_resize of Qwen-VL)."""
    TILES = "tiles"
    """The longest edge is set, then both sides are raised to multiples of a tile (Idefics3, SmolVLM)."""
    SQUARE = "square"
    """Stretched to a square (Gemma 3)."""
    KEEP = "keep"
    """Left to libmtmd."""


_FILTERS = {ResizeRule.CELLS: "BICUBIC", ResizeRule.TILES: "LANCZOS", ResizeRule.SQUARE: "BILINEAR"}


@dataclass(frozen=True)
class Resize:
    """How the training of a model resized pictures."""

    rule: ResizeRule
    unit: int = 1
    """Pixels of the side of a cell, a tile or the square."""
    least: int = 0
    most: int = 0
    """Pixels of a picture by CELLS."""
    longest: int = 0
    """Pixels of the longest edge by TILES, a multiple of `unit`."""
    doubt: str = ""
    """Why pictures may not be as in training; empty if they are."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) of what `apply` makes of a picture.

        Raises:
            BadImage: the model's training takes no picture of that shape, or no size of it is within the limits.
        """
        return self._steps(width, height)[-1]

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize a picture: uint8 [height, width, 3]. One that has the size already is returned as it is. Raises
        BadImage as `size` does."""
        height, width = pixels.shape[:2]
        steps = [size for size in self._steps(width, height) if size != (width, height)]
        if not steps:
            return pixels
        image = pillow().fromarray(pixels)
        for size in steps:
            image = image.resize(size, pillow().Resampling[_FILTERS[self.rule]])
        return np.asarray(image)

    def _steps(self, width: int, height: int) -> list[tuple[int, int]]:
        """Return the sizes that a picture is given one after the other."""
        if self.rule is ResizeRule.CELLS:
            return [self._in_cells(width, height)]
        if self.rule is ResizeRule.TILES:
            scaled = _with_longest(width, height, self.longest)
            return [scaled, _raised(*scaled, self.unit)]
        return [(self.unit, self.unit) if self.rule is ResizeRule.SQUARE else (width, height)]

    def _in_cells(self, width: int, height: int) -> tuple[int, int]:
        cell, pixels = self.unit, width * height
        if width % cell == height % cell == 0 and self.least <= pixels <= self.most:
            return width, height  # whatever its shape: rounding may have made it
        if max(width, height) > MOST_ASPECT * min(width, height):
            raise BadImage(
                f"the picture is {width} x {height} pixels: one side is more than {MOST_ASPECT} times the other, which"
                " the model was not trained on; cut it into parts"
            )
        across, down = (round(side / cell) * cell for side in (width, height))  # halves go to the even one
        if across * down > self.most:
            scale = math.sqrt(pixels / self.most)
            across, down = (max(cell, math.floor(side / scale / cell) * cell) for side in (width, height))
        elif across * down < self.least:
            scale = math.sqrt(self.least / pixels)
            across, down = (math.ceil(side * scale / cell) * cell for side in (width, height))
        if not self.least <= across * down <= self.most:
            fewest, area = math.ceil(self.least / cell**2), cell**2
            raise BadImage(
                f"the picture is {width} x {height} pixels: a size of that shape has {across * down // area} tokens,"
                f" which is not within {TOKENS}={{min: {fewest}, max: {self.most // area}}}; set them further apart"
            )
        return across, down


def _with_longest(width: int, height: int, longest: int) -> tuple[int, int]:
    """Scale a size so that its longest edge has `longest` pixels and the other one an even number."""
    aspect = width / height
    if width >= height:
        other = int(longest / aspect)
        return longest, max(1, other + other % 2)
    other = int(longest * aspect)
    return max(1, other + other % 2), longest


def _raised(width: int, height: int, tile: int) -> tuple[int, int]:
    """Raise the sides of a size to multiples of a tile."""
    aspect = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        return width, math.ceil(max(1, int(width / aspect)) / tile) * tile
    height = math.ceil(height / tile) * tile
    return math.ceil(max(1, int(height * aspect)) / tile) * tile, height


def resize_of(values: Mapping[str, Any], tokens: Mapping[str, int | None] | None = None) -> Resize:
    """Read from the header of an mmproj file how pictures are resized.

    Args:
        values: the header's values by key, as numbers or texts.
        tokens: `min` and `max`, the tokens that a picture may have, in place of llama.cpp's limits, which libmtmd must
            be given, too.

    Raises:
        InputError: a number is missing that llama.cpp needs, or is none that it takes.
        ConfigError: `tokens` are given and the family has none to choose.
    """
    family = str(values.get("clip.projector_type") or values.get("clip.vision.projector_type"))
    given = {name: count for name, count in (tokens or {}).items() if count is not None}
    if family in ("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o", "qwen3vl_merger"):
        return _cells(family, values, given)
    if family == "gemma3":
        found = Resize(ResizeRule.SQUARE, _number(values, "image_size"))
    elif family == "idefics3":
        found = _tiles(values)
    else:
        doubt = f"pictures of the family '{family}' are resized by llama.cpp, which may not be as in its training"
        return Resize(ResizeRule.KEEP, doubt="" if values.get(AS_LIBMTMD) else doubt)
    if given:
        raise ConfigError(
            f"{TOKENS}={given}: the model's pictures ({family}) have the sizes that it was trained with; leave the key"
            " out"
        )
    return found


def _cells(family: str, values: Mapping[str, Any], given: Mapping[str, int]) -> Resize:
    patch = _number(values, "patch_size")
    cell = patch * _number(values, "spatial_merge_size", 2)
    area = cell * cell
    most = (
        given["max"] * area
        if "max" in given
        else min(_MOST_CELLS * area, _number(values, "image_max_pixels", _MOST_CELLS * area))
    )
    trained = _number(values, "image_min_pixels", _PUBLISHED.get((family, patch), 1))
    least = given["min"] * area if "min" in given else max(_LEAST_CELLS * area, trained if trained <= most else 1)
    if least > most:
        raise ConfigError(f"{TOKENS}: min is {math.ceil(least / area)}, max {most // area}; give both, min below max")
    return Resize(ResizeRule.CELLS, cell, least, most)


def _tiles(values: Mapping[str, Any]) -> Resize:
    tile, longest = _number(values, "image_size"), _number(values, "preproc_image_size", 0)
    if longest == 0:
        doubt = (
            "the mmproj file has no clip.vision.preproc_image_size, so pictures are not resized as in training; convert"
            " the model anew"
        )
        return Resize(ResizeRule.KEEP, doubt=doubt)
    if longest % tile or tile % 2 or longest > MOST_TILED:  # libmtmd does the same steps, and would do them again
        return Resize(ResizeRule.KEEP)
    return Resize(ResizeRule.TILES, tile, longest=longest)


def _number(values: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    key = f"clip.vision.{name}"
    value = values.get(key, otherwise)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < (1 if otherwise != 0 else 0):
        raise InputError(f"the header of model.mmproj has {key}={value}, where a whole number from 1 is needed")
    return number


def digest_of(pixels: NDArray[np.uint8]) -> bytes:
    """Hash shape and pixels (uint8 [height, width, 3]) of a resized picture to 16 bytes, by which it is known."""
    digest = hashlib.blake2b(np.array(pixels.shape, "<i8").tobytes(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()
