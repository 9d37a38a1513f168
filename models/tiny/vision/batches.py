"""Training batches: questions about scenes with their answers, and pictures of the scenes, drawn on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.tiny.chat import END, START
from models.tiny.tasks.example import Split
from models.tiny.vision.draw import Pixels, drawn
from models.tiny.vision.scenes import COLOURS, DIGITS, KINDS, LONGEST, QUESTIONS, SHAPES, WORDS, Scene, families, scenes
from models.tiny.vision.spelling import Speller

CELL = -1
"""Stands for a cell of a picture among token ids."""
LETTERS = " abcdefghijklmnopqrstuvwxyz0123456789"
TOLD = (len(KINDS), len(COLOURS), len(SHAPES) + 1, len(WORDS) + 1, *[11] * DIGITS)
"""How many answers there are to each thing that a scene is told by: see `told_of`."""
BEHIND_SHARE = 0.1
"""Of the prompts in which the picture stands behind the question."""
SCENE_WEIGHTS = (4, 4, 2)
FAMILY_WEIGHTS = (4, 2, 3)
"""Of what is asked, in the order of `families`."""


@dataclass(frozen=True)
class Asked:
    """A scene, a question of `family` about it, and its answer. `seed` says how the scene is drawn."""

    scene: Scene
    family: str
    question: str
    seed: int

    @property
    def answer(self) -> str:
        return self.scene.answer(self.family)


@dataclass(frozen=True)
class PromptBatch:
    """`ids` int64 [rows, tokens] with CELL where cells stand; `targets` int64 and `weights` float32 [rows, tokens], 0
    where nothing is to be learnt."""

    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class PictureBatch:
    """`pixels` uint8 [rows, side, side, 3]; `places` and `letters` int64 [rows, patches]: which letter of the text is
    in the middle of a patch, and what it is."""

    pixels: Pixels
    places: NDArray[np.int64]
    letters: NDArray[np.int64]


def asked(seed: int, count: int, split: Split) -> list[Asked]:
    """`count` questions, each about a scene of its own, the same for the same arguments."""
    rng = Random(f"asked/{split}/{seed}")
    made = []
    for scene in islice(scenes(seed, split, SCENE_WEIGHTS), count):
        family = rng.choices(families(scene.kind), FAMILY_WEIGHTS)[0]
        made.append(Asked(scene, family, rng.choice(QUESTIONS[family]), rng.getrandbits(32)))
    return made


def told_of(rows: Sequence[Asked]) -> NDArray[np.int64]:
    """What the scenes are, int64 [rows, len(TOLD)]: the places of kind, colour, shape, word (behind the last: none) and
    digits (10: none) in their lists."""
    made = []
    for scene in (row.scene for row in rows):
        shape = SHAPES.index(scene.content) if scene.kind == "shape" else len(SHAPES)
        word = WORDS.index(scene.content) if scene.kind == "word" else len(WORDS)
        digits = [int(digit) for digit in scene.content] if scene.kind == "number" else []
        digits += [10] * (DIGITS - len(digits))
        made.append([KINDS.index(scene.kind), COLOURS.index(scene.colour), shape, word, *digits])
    return np.array(made)


def prompt_of(tokenizer: Tokenizer, question: str, cells: int, behind: bool = False) -> list[int]:
    """Token ids of a chat prompt with one picture of so many cells, before the question or behind it."""
    head, tail = f"{START}user\n", f"{END}\n{START}assistant\n"
    before, after = (head + question, tail) if behind else (head, question + tail)
    return [*tokenizer.encode(before).ids, *[CELL] * cells, *tokenizer.encode(after).ids]


def prompts_of(tokenizer: Tokenizer, speller: Speller, rows: Sequence[Asked], cells: int) -> PromptBatch:
    """The rows' prompts and answers as one batch. An answer of n tokens weighs sqrt(n)."""
    coded = []
    for row in rows:
        prompt = prompt_of(tokenizer, row.question, cells, Random(row.seed).random() < BEHIND_SHARE)
        coded.append((prompt, [*speller.spell(row.answer), tokenizer.token_to_id(END)]))
    width = max(len(prompt) + len(answer) for prompt, answer in coded) - 1
    ids, targets = (np.zeros((len(rows), width), np.int64) for _ in range(2))
    weights = np.zeros((len(rows), width), np.float32)
    for index, (prompt, answer) in enumerate(coded):
        whole = prompt + answer
        size = len(whole) - 1
        ids[index, :size], targets[index, :size] = whole[:-1], whole[1:]
        weights[index, len(prompt) - 1 : size] = len(answer) ** -0.5
    return PromptBatch(ids, targets, weights)


def pictures_of(rows: Sequence[Asked]) -> PictureBatch:
    """The rows' pictures as one batch."""
    pictures = [drawn(row.scene, Random(row.seed)) for row in rows]
    places = np.stack([places.ravel() for _, places in pictures])
    texts = ["" if row.scene.kind == "shape" else row.scene.content for row in rows]
    known = np.array([[LETTERS.index(letter) for letter in f" {text}".ljust(LONGEST + 1)] for text in texts])
    return PictureBatch(np.stack([pixels for pixels, _ in pictures]), places, np.take_along_axis(known, places, axis=1))
