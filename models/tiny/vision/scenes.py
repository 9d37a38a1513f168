"""Scenes for pictures, and the questions about them; needs only the standard library.

A scene is a word, a number or a shape in one colour. One scene in twenty, by a hash of what it shows and its colour, is
held out: its words, colours and shapes are seen in training, but never together; its number never.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from models.tiny.tasks.example import HELDOUT_PARTS, Split
from models.tiny.tasks.words import ANIMALS, OBJECTS

COLOURS = ("red", "orange", "yellow", "green", "brown", "pink", "black", "white")
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "moon", "heart")
LONGEST = 5
"""Letters of the longest word: what is legible across the picture."""
WORDS = tuple(word for word in ANIMALS + OBJECTS if len(word) <= LONGEST and word not in SHAPES)
DIGITS = 3
"""Of the longest number."""
KINDS = ("word", "number", "shape")

READ = ("What does the picture say?", "Read the picture.", "What is written here?")
QUESTIONS = {
    "word": (*READ, "Read the word."),
    "number": (*READ, "Read the number.", "Which number is it?"),
    "shape": ("What shape is it?", "Which shape do you see?", "Name the shape."),
    "colour": ("What colour is it?", "Which colour do you see?", "Name the colour."),
    "caption": ("Describe the picture.", "Write a caption.", "Caption the picture."),
}
"""By what is asked for."""


@dataclass(frozen=True)
class Scene:
    """What a picture shows: `kind` is one of KINDS, `content` the word, the digits or the name of the shape."""

    kind: str
    content: str
    colour: str

    @property
    def split(self) -> Split:
        """Whether it may be trained on."""
        shown = self.content if self.kind == "number" else f"{self.colour} {self.content}"
        digest = hashlib.sha256(shown.encode()).digest()
        return "heldout" if int.from_bytes(digest[:4], "big") % HELDOUT_PARTS == 0 else "train"

    def answer(self, family: str) -> str:
        """The right answer to a question of `family`, a key of QUESTIONS."""
        if family == "caption":
            return f"{self.content} in {self.colour}"
        return self.colour if family == "colour" else self.content


def families(kind: str) -> tuple[str, ...]:
    """What can be asked about a scene."""
    return (kind, "colour", "caption")


def drawn_scene(rng: Random, kind: str, split: Split) -> Scene:
    """A scene of `kind` and `split`."""
    while True:
        if kind == "number":
            content = str(rng.randrange(10 ** rng.randint(1, DIGITS)))
        else:
            content = rng.choice(WORDS if kind == "word" else SHAPES)
        scene = Scene(kind, content, rng.choice(COLOURS))
        if scene.split == split:
            return scene


def scenes(seed: int, split: Split, weights: tuple[int, ...] = (1, 1, 1)) -> Iterator[Scene]:
    """An endless stream, the kinds drawn with `weights`; scenes come again."""
    rng = Random(f"{split}/{seed}")
    while True:
        yield drawn_scene(rng, rng.choices(KINDS, weights)[0], split)


def right(completion: str, answer: str) -> bool:
    """Whether a completion is the answer, in whichever case, with or without a stop."""
    return completion.strip().rstrip(".").lower() == answer.rstrip(".").lower()
