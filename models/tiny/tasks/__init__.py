"""The corpus of the small model: task families whose answers a program can check.

`generate(seed, n, split)` makes examples, the same for the same arguments; `check(family, prompt, completion,
meta)` says whether a completion is right. Only the standard library is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from models.tiny.tasks import arithmetic, extract, instruct, judge, label, lists, story
from models.tiny.tasks.example import Checker, Example, Maker, Meta, Split, split_of

__all__ = [
    "BROAD_WEIGHTS",
    "FAMILIES",
    "FOCUSED_WEIGHTS",
    "LATE_WEIGHTS",
    "Example",
    "Meta",
    "Split",
    "check",
    "examples",
    "generate",
    "split_of",
]

_MAKERS: dict[str, Maker] = {
    "arithmetic": arithmetic.make,
    "extract": extract.make,
    "label": label.make,
    "lists": lists.make,
    "story": story.make,
    "instruct": instruct.make,
    "judge": judge.make,
}
_CHECKERS: dict[str, Checker] = {
    "arithmetic": arithmetic.check,
    "extract": extract.check,
    "label": label.check,
    "lists": lists.check,
    "story": story.check,
    "instruct": instruct.check,
    "judge": judge.check,
}
FAMILIES = tuple(_MAKERS)
# How often training sees each family, in the order of FAMILIES: first all, then more of those that are learnt late,
# lists before the judging of answers, which needs all the others.
BROAD_WEIGHTS = (6, 4, 2, 5, 2, 1, 3)
FOCUSED_WEIGHTS = (6, 5, 2, 10, 1, 1, 2)
LATE_WEIGHTS = (6, 8, 2, 6, 1, 1, 9)


def _example(rng: Random, family: str, split: Split) -> Example:
    while True:
        example = _MAKERS[family](rng, split)
        if split_of(example.prompt) == split:
            return example


def examples(seed: int, split: Split = "train", weights: tuple[int, ...] = BROAD_WEIGHTS) -> Iterator[Example]:
    """An endless stream of examples, the families drawn with `weights`; prompts may come again."""
    rng = Random(f"{split}/{seed}")
    while True:
        yield _example(rng, rng.choices(FAMILIES, weights)[0], split)


def generate(seed: int, n: int, split: Split = "train") -> list[Example]:
    """`n` examples with different prompts, the families in turn."""
    rng = Random(f"{split}/{seed}")
    chosen: dict[str, Example] = {}
    while len(chosen) < n:
        example = _example(rng, FAMILIES[len(chosen) % len(FAMILIES)], split)
        chosen.setdefault(example.prompt, example)
    return list(chosen.values())


def check(family: str, prompt: str, completion: str, meta: Meta | str) -> bool:
    """Whether a completion is a right answer to a prompt of `family`.

    `meta` is an example's, or its JSON text. Any completion is judged, also an empty one. Raises KeyError for an
    unknown family.
    """
    known: Meta = json.loads(meta) if isinstance(meta, str) else meta
    return _CHECKERS[family](prompt, completion, known)
