"""The kinds of instruction that the model can write, answer and judge: each with a maker and a pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from models.tiny.tasks import arithmetic, label, lists, story
from models.tiny.tasks.example import Split, split_of
from models.tiny.tasks.reviews import TOPICS, sentiment_review, topic_review


@dataclass(frozen=True)
class Instruction:
    """An instruction and a right answer to it."""

    kind: str
    text: str
    answer: str


@dataclass(frozen=True)
class Kind:
    """One kind: `about` says what its instructions ask for, `pattern` matches exactly them."""

    about: str
    pattern: re.Pattern[str]
    make: Callable[[Random], tuple[str, str]]


def _sum(rng: Random) -> tuple[str, str]:
    a, b = rng.randint(1, 20), rng.randint(1, 20)
    return arithmetic.PROMPTS["add"][0].format(a=a, op="+", b=b), str(a + b)


def _difference(rng: Random) -> tuple[str, str]:
    b, a = sorted((rng.randint(1, 20), rng.randint(1, 20)))
    return arithmetic.PROMPTS["subtract"][0].format(a=a, op="-", b=b), str(a - b)


def _list(kind: str) -> Callable[[Random], tuple[str, str]]:
    def make(rng: Random) -> tuple[str, str]:
        items = lists.drawn(rng, kind, 4 if kind == "sort" else 5)
        return lists.PROMPTS[kind][0].format(items=", ".join(items)), lists.short_answer(kind, items)

    return make


def _sentiment(rng: Random) -> tuple[str, str]:
    value = rng.choice(label.SENTIMENTS)
    return label.PROMPTS["sentiment"][0].format(review=sentiment_review(rng, value)[0]), value


def _topic(rng: Random) -> tuple[str, str]:
    value = rng.choice(TOPICS)
    return label.PROMPTS["topic"][0].format(review=topic_review(rng, value)[0]), value


def _story(rng: Random) -> tuple[str, str]:
    roles = story.cast(rng)
    words = list(roles.values())
    rng.shuffle(words)
    return story.PROMPTS[0].format(words=", ".join(words)), story.told(rng, roles, long=False)


def _pattern(template: str, slot: str) -> re.Pattern[str]:
    """A pattern for a prompt template with one kind of slot."""
    return re.compile(re.sub(r"\\\{\w+\\\}", lambda _: slot, re.escape(template)))


_WORDS = r"[a-z0-9]+(?:, [a-z0-9]+){1,8}"
_THREE = r"[a-z]+(?:, [a-z]+){2}"
_REVIEW = r"[A-Z][^\n]+[.!]"
KINDS = {
    "sum": Kind("a sum", re.compile(r"What is \d+ \+ \d+\?"), _sum),
    "difference": Kind("a difference", re.compile(r"What is \d+ - \d+\?"), _difference),
    "sort": Kind("a sorted list", _pattern(lists.PROMPTS["sort"][0], _WORDS), _list("sort")),
    "reverse": Kind("a reversed list", _pattern(lists.PROMPTS["reverse"][0], _WORDS), _list("reverse")),
    "count": Kind("a count", _pattern(lists.PROMPTS["count"][0], _WORDS), _list("count")),
    "sentiment": Kind("a sentiment", _pattern(label.PROMPTS["sentiment"][0], _REVIEW), _sentiment),
    "topic": Kind("a topic", _pattern(label.PROMPTS["topic"][0], _REVIEW), _topic),
    "story": Kind("a story", _pattern(story.PROMPTS[0], _THREE), _story),
}


def instruction(rng: Random, kind: str, split: Split) -> Instruction:
    """A new instruction of a kind whose text belongs to the split."""
    while True:
        text, answer = KINDS[kind].make(rng)
        if split_of(text) == split:
            return Instruction(kind, text, answer)


def kind_of(text: str) -> str | None:
    """The kind that a text is an instruction of, or None."""
    for name, kind in KINDS.items():
        if kind.pattern.fullmatch(text):
            return name
    return None
