"""Training batches: pictures with a question each and its answer, drawn on the fly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.tiny.batches import SYSTEM_MESSAGES, SYSTEM_SHARE
from models.tiny.chat import END, START
from models.tiny.tasks.example import Split
from models.tiny.vision.draw import Pixels, draw
from models.tiny.vision.scenes import COLOURS, KINDS, LONGEST, QUESTIONS, SHAPES, Scene, families, scenes

CELL = -1
"""Stands for a cell of a picture among token ids."""
LETTERS = " abcdefghijklmnopqrstuvwxyz0123456789"
TOLD = (len(KINDS), len(COLOURS), len(SHAPES) + 1, *[len(LETTERS)] * LONGEST)
"""How many answers there are to each thing that helpers of the training ask of a picture."""
BEHIND_SHARE = 0.15
"""Of the prompts in which the picture stands behind the question."""
SCENE_WEIGHTS = (4, 3, 2)


@dataclass(frozen=True)
class Asked:
    """A picture, a question of `family` about it, and its answer."""

    scene: Scene
    pixels: Pixels
    family: str
    question: str

    @property
    def answer(self) -> str:
        return self.scene.answer(self.family)


@dataclass(frozen=True)
class PictureBatch:
    """`pixels` uint8 [rows, side, side, 3]; `ids` int64 [rows, tokens] with CELL where cells stand; `targets` int64 and
    `weights` float32 [rows, tokens], 0 where nothing is to be learnt; `told` int64 [rows, len(TOLD)]."""

    pixels: Pixels
    ids: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]
    told: NDArray[np.int64]


def asked(seed: int, count: int, split: Split) -> list[Asked]:
    """`count` pictures with a question each, the same for the same arguments."""
    rng = Random(f"asked/{split}/{seed}")
    made = []
    for scene in islice(scenes(seed, split, SCENE_WEIGHTS), count):
        family = rng.choices(families(scene.kind), (2, 1, 1))[0]
        made.append(Asked(scene, draw(scene, rng), family, rng.choice(QUESTIONS[family])))
    return made


def told_of(scene: Scene) -> list[int]:
    """The kind, the colour, the shape (the last: none) and the letters, as places in their lists."""
    shape = SHAPES.index(scene.content) if scene.kind == "shape" else len(SHAPES)
    letters = "" if scene.kind == "shape" else scene.content
    kind, colour = KINDS.index(scene.kind), COLOURS.index(scene.colour)
    return [kind, colour, shape, *(LETTERS.index(letter) for letter in letters.ljust(LONGEST))]


def prompt_of(tokenizer: Tokenizer, question: str, cells: int, behind: bool = False, system: str = "") -> list[int]:
    """Token ids of a chat prompt with one picture of so many cells, before the question or behind it."""
    head = (f"{START}system\n{system}{END}\n" if system else "") + f"{START}user\n"
    tail = f"{END}\n{START}assistant\n"
    before, after = (head + question, tail) if behind else (head, question + tail)
    return [*tokenizer.encode(before).ids, *[CELL] * cells, *tokenizer.encode(after).ids]


def batch_of(tokenizer: Tokenizer, rows: Sequence[Asked], cells: int, rng: Random) -> PictureBatch:
    """The rows as one batch. An answer of n tokens weighs sqrt(n)."""
    coded = []
    for row in rows:
        system = rng.choice(SYSTEM_MESSAGES) if rng.random() < SYSTEM_SHARE else ""
        prompt = prompt_of(tokenizer, row.question, cells, rng.random() < BEHIND_SHARE, system)
        coded.append((prompt, tokenizer.encode(row.answer + END).ids))
    width = max(len(prompt) + len(answer) for prompt, answer in coded) - 1
    ids, targets = (np.zeros((len(rows), width), np.int64) for _ in range(2))
    weights = np.zeros((len(rows), width), np.float32)
    for index, (prompt, answer) in enumerate(coded):
        whole = prompt + answer
        size = len(whole) - 1
        ids[index, :size], targets[index, :size] = whole[:-1], whole[1:]
        weights[index, len(prompt) - 1 : size] = len(answer) ** -0.5
    told = np.array([told_of(row.scene) for row in rows])
    return PictureBatch(np.stack([row.pixels for row in rows]), ids, targets, weights, told)
