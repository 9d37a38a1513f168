"""Draws the scenes as pictures of SIDE times SIDE pixels; needs Pillow, whose own font writes the words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import cos, pi, sin
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from models.tiny.vision.scenes import Scene

SIDE, PATCH = 64, 8
FINE = 4
"""Shapes are drawn so many times larger and then reduced, for soft edges."""
RGB = {
    "red": (220, 35, 35),
    "orange": (245, 140, 20),
    "yellow": (245, 225, 45),
    "green": (35, 150, 55),
    "brown": (125, 75, 30),
    "pink": (250, 130, 195),
    "black": (20, 20, 20),
    "white": (245, 245, 245),
}
ON_DARK, ON_LIGHT = ("yellow", "white"), ("black", "brown")
"""Colours that are seen only before a dark or a light ground."""
JITTER = 14
"""How far a channel of a colour may be from RGB."""
LARGEST, SMALLEST = 20, 18
"""Sizes of the letters."""
BARRED = 0.1
"""How many pictures are made as if they had not been square."""
NOISE = 8.0
"""The largest standard deviation of a picture's noise."""

Pixels = NDArray[np.uint8]
Places = NDArray[np.int64]
"""For each patch of a picture, which letter of its text is in its middle, from 1 on; 0 where none is."""


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


@dataclass(frozen=True)
class Letters:
    """A text, cut out, in shades of grey; `edges`: where each letter begins, and the last one ends, in pixels."""

    image: Image.Image
    edges: NDArray[np.float32]


@lru_cache(maxsize=4096)
def _letters(text: str, size: int) -> Letters:
    left, top, right, bottom = (round(edge) for edge in _font(size).getbbox(text))
    made = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(made).text((-left, -top), text, 255, _font(size))
    edges = [_font(size).getlength(text[:end]) - left for end in range(len(text) + 1)]
    return Letters(made, np.array(edges, np.float32))


def _written(text: str, rng: Random) -> tuple[Pixels, Places]:
    """Where the ink is, uint8 [SIDE, SIDE]: the text in a size that fits, at any place; and its letters' places."""
    sizes = [size for size in range(SMALLEST, LARGEST + 1) if _letters(text, size).image.width <= SIDE - 4]
    letters = _letters(text, rng.choice(sizes))
    width, height = letters.image.size
    x, y = rng.randint(1, SIDE - 1 - width), rng.randint(1, SIDE - 1 - height)
    made = Image.new("L", (SIDE, SIDE))
    made.paste(letters.image, (x, y))
    middles = np.arange(PATCH // 2, SIDE, PATCH)
    column = np.searchsorted(letters.edges + x, middles, side="right")
    column[column > len(text)] = 0
    row = (middles > y - 2) & (middles < y + height + 2)
    return np.asarray(made), (row[:, None] * column).astype(np.int64)


def _corners(shape: str) -> list[tuple[float, float]]:
    """The outline of a shape about 0, within 1."""
    if shape == "star":
        radii = [1.0, 0.42] * 5
        return [(r * sin(pi * n / 5), -r * cos(pi * n / 5)) for n, r in enumerate(radii)]
    if shape == "heart":
        turns = [2 * pi * n / 40 for n in range(40)]
        high = [13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t) for t in turns]
        return [(sin(t) ** 3, -h / 16) for t, h in zip(turns, high, strict=True)]
    a, b = 0.32, 0.95
    outlines = {
        "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
        "triangle": [(0.0, -0.9), (0.95, 0.75), (-0.95, 0.75)],
        "cross": [
            (-a, -b),
            (a, -b),
            (a, -a),
            (b, -a),
            (b, a),
            (a, a),
            (a, b),
            (-a, b),
            (-a, a),
            (-b, a),
            (-b, -a),
            (-a, -a),
        ],
    }
    return outlines[shape]


def _shaped(shape: str, rng: Random) -> Pixels:
    """Where the ink is, uint8 [SIDE, SIDE]: the shape in any size, at any place, a little turned."""
    radius = rng.uniform(14, 29)
    x, y = (FINE * rng.uniform(radius + 1, SIDE - 1 - radius) for _ in range(2))
    radius *= FINE
    made = Image.new("L", (SIDE * FINE, SIDE * FINE))
    pen = ImageDraw.Draw(made)
    if shape in ("circle", "ring", "moon"):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), 255)
        if shape == "ring":
            hole = radius * rng.uniform(0.5, 0.68)
            pen.ellipse((x - hole, y - hole, x + hole, y + hole), 0)
        if shape == "moon":
            beside = radius * rng.uniform(0.45, 0.6)
            pen.ellipse((x - radius + beside, y - radius, x + radius + beside, y + radius), 0)
    else:
        angle = rng.uniform(-0.2, 0.2)
        c, s = radius * cos(angle), radius * sin(angle)
        pen.polygon([(x + c * u - s * v, y + s * u + c * v) for u, v in _corners(shape)], 255)
    return np.asarray(made.reduce(FINE))


def _bar(made: NDArray[np.float32], ink: Pixels, rng: Random) -> None:
    """Fill what is above and below the ink, or beside it, with black, as llama.cpp does to make a picture square."""
    across = rng.random() < 0.7
    covered = np.flatnonzero(ink.any(1 if across else 0))
    most = int(min(covered[0], SIDE - 1 - covered[-1]))
    bar, turned = rng.randint(0, most), made if across else made.swapaxes(0, 1)
    turned[:bar] = turned[SIDE - bar :] = 0


def drawn(scene: Scene, rng: Random, noise: float = NOISE) -> tuple[Pixels, Places]:
    """A picture of the scene, uint8 [SIDE, SIDE, 3], and where its letters are, int64 [SIDE / PATCH, SIDE / PATCH].

    Args:
        noise: the largest standard deviation of its noise; half of the pictures have none.
    """
    if scene.kind == "shape":
        ink, places = _shaped(scene.content, rng), np.zeros((SIDE // PATCH, SIDE // PATCH), np.int64)
    else:
        ink, places = _written(scene.content, rng)
    dark = scene.colour in ON_DARK or (scene.colour not in ON_LIGHT and rng.random() < 0.3)
    grey = rng.randint(0, 50) if dark else rng.randint(200, 255)
    ground = np.array([grey + rng.randint(-6, 6) for _ in range(3)], np.float32)
    colour = np.array([part + rng.randint(-JITTER, JITTER) for part in RGB[scene.colour]], np.float32)
    share = ink[:, :, None].astype(np.float32) / 255
    made: NDArray[np.float32] = (ground + (colour - ground) * share).astype(np.float32)
    if rng.random() < BARRED:
        _bar(made, ink, rng)
    if noise and rng.random() < 0.5:
        noisy = np.random.default_rng(rng.getrandbits(32)).standard_normal(made.shape, np.float32)
        made += noisy * rng.uniform(2.0, noise)
    return np.clip(np.rint(made), 0, 255).astype(np.uint8), places
