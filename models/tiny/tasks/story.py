"""Family `story`: a short story from three given words that uses all three."""

from __future__ import annotations

import re
from random import Random

from models.tiny.tasks.example import Example, Meta, Split, marked
from models.tiny.tasks.words import ANIMALS, OBJECTS, PLACES

PROMPTS = (
    "Write a short story with these words: {words}",
    "Tell me a story that uses the words {words}.",
    "Use all three words in a short story: {words}",
)
SHORTEST_WORDS = 25
OPENINGS = (
    "Once there was {a} {animal} who lived near the {place}.",
    "One morning a young {animal} walked to the {place}.",
    "Long ago, an old {animal} lived alone in the {place}.",
    "Every evening the little {animal} came to the {place} to rest.",
    "Nobody at the {place} had ever seen {a} {animal} before.",
)
FINDINGS = (
    "There it found a shiny {object} in the grass.",
    "Behind a wall lay a dusty {object}.",
    "It was looking for a lost {object}.",
    "Someone had left a small {object} there.",
    "In the mud it saw a broken {object}.",
)
TURNS = (
    "The {animal} was curious and took the {object} home.",
    "The {animal} asked everyone who had lost the {object}.",
    "But a strong wind blew the {object} away.",
    "Then a child came and began to cry about the {object}.",
    "The {animal} tried to mend the {object}, but it was hard work.",
    "At night the {object} began to glow.",
)
EVENTS = (
    "A friend came by and offered to help.",
    "Together they looked behind every tree.",
    "It rained all day, and the path was full of mud.",
    "They were tired, but they did not give up.",
    "The sun went down and the stars came out.",
    "They shared some bread and told old jokes.",
    "A kind woman gave them a warm place to sleep.",
    "In the morning they tried once more.",
)
ENDINGS = (
    "In the end the {animal} gave the {object} back, and all were happy.",
    "From that day on the {object} stayed safe at the {place}.",
    "The {animal} smiled and never felt alone again.",
    "And so the {place} became a happy home for the {animal}.",
    "The {animal} learned that a {object} is best when it is shared.",
)


def cast(rng: Random) -> dict[str, str]:
    """An animal, an object and a place."""
    return {"animal": rng.choice(ANIMALS), "object": rng.choice(OBJECTS), "place": rng.choice(PLACES)}


def told(rng: Random, roles: dict[str, str], long: bool) -> str:
    """A story with these roles: about 45 words, or about 120 where `long`."""
    turns = rng.sample(TURNS, rng.randint(3, 5) if long else 1)
    events = rng.sample(EVENTS, rng.randint(3, 8) if long else rng.randint(0, 1))
    middle = [*turns[1:], *events]
    rng.shuffle(middle)
    parts = [rng.choice(OPENINGS), rng.choice(FINDINGS), turns[0], *middle, rng.choice(ENDINGS)]
    article = "an" if roles["animal"][0] in "aeiou" else "a"
    text = " ".join(parts).format(a=article, **roles)
    return re.sub(r"\ba (?=[aeiou])", "an ", text)


def make(rng: Random, split: Split) -> Example:
    """Three words in any order and a story; with `/think` a plan and a longer story."""
    del split
    roles = cast(rng)
    words = list(roles.values())
    rng.shuffle(words)
    think = rng.random() < 0.25
    prompt = rng.choice(PROMPTS).format(words=", ".join(words))
    story = told(rng, roles, think)
    if think:
        plan = "Plan: the {animal} goes to the {place} and finds the {object}.".format(**roles)
        story = f"{plan}\n{story}"
    return Example("story", marked(rng, prompt, think), story, {"words": words})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether a story of some length uses all three words and ends with a full sentence."""
    del prompt
    story = re.sub(r"^Plan:.*\n", "", completion.strip())
    used = set(re.findall(r"[a-z]+", story.lower()))
    long_enough = len(story.split()) >= SHORTEST_WORDS
    return long_enough and story.endswith((".", "!")) and used.issuperset(meta["words"])
