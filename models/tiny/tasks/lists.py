"""Family `lists`: sort, reverse or count the items of a list."""

from __future__ import annotations

from random import Random

from models.tiny.tasks.example import Example, Meta, Split, last_line, marked
from models.tiny.tasks.words import ANIMALS, ITEMS, OBJECTS

PROMPTS = {
    "sort": (
        "Sort these items alphabetically: {items}",
        "Put these words in alphabetical order: {items}",
        "Sort this list from A to Z: {items}",
    ),
    "ascending": (
        "Sort these numbers from smallest to largest: {items}",
        "Put these numbers in ascending order: {items}",
    ),
    "descending": (
        "Sort these numbers from largest to smallest: {items}",
        "Put these numbers in descending order: {items}",
    ),
    "reverse": (
        "Reverse the order of these items: {items}",
        "Write this list backwards: {items}",
    ),
    "count": (
        "How many items are in this list: {items}",
        "Count the items: {items}",
    ),
}
LARGEST = {"sort": 5, "ascending": 5, "descending": 5, "reverse": 5, "count": 9}


def drawn(rng: Random, kind: str, largest: int) -> list[str]:
    """Distinct items for a list of the given kind, two to `largest` of them."""
    size = rng.randint(2 if kind == "count" else 3, largest)
    if kind in ("ascending", "descending") or (kind in ("reverse", "count") and rng.random() < 0.2):
        return [str(number) for number in rng.sample(range(10, 100), size)]
    return rng.sample(rng.choice((ITEMS, ITEMS, ANIMALS, OBJECTS)), size)


def solved(kind: str, items: list[str]) -> list[str]:
    """The items in the order asked for."""
    if kind == "reverse":
        return items[::-1]
    if kind == "sort":
        return sorted(items)
    return sorted(items, key=int, reverse=kind == "descending")


def short_answer(kind: str, items: list[str]) -> str:
    """The plain answer."""
    return str(len(items)) if kind == "count" else ", ".join(solved(kind, items))


def worked(kind: str, items: list[str]) -> str:
    """The answer reached one item at a time."""
    ordered = items if kind == "count" else solved(kind, items)
    lines = [f"{index}: {item}" for index, item in enumerate(ordered, 1)]
    return "\n".join([*lines, f"Answer: {short_answer(kind, items)}"])


def make(rng: Random, split: Split) -> Example:
    """A list and what was asked of it."""
    del split
    kind = rng.choices(tuple(PROMPTS), (4, 2, 1, 2, 2))[0]
    items = drawn(rng, kind, LARGEST[kind])
    think = rng.random() < 0.2
    bullets = rng.random() < 0.3
    text = "\n" + "\n".join(f"- {item}" for item in items) if bullets else ", ".join(items)
    prompt = rng.choice(PROMPTS[kind]).format(items=text).replace(": \n", ":\n")
    completion = worked(kind, items) if think else short_answer(kind, items)
    return Example("lists", marked(rng, prompt, think), completion, {"answer": short_answer(kind, items)})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the last line is the list, or the count, that was asked for."""
    del prompt
    return bool(last_line(completion).removeprefix("Answer:").strip() == meta["answer"])
