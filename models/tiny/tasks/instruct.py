"""Family `instruct`: write one more instruction like a few given ones."""

from __future__ import annotations

from random import Random

from models.tiny.tasks.example import Example, Meta, Split, last_line, marked
from models.tiny.tasks.kinds import KINDS, instruction, kind_of

PROMPTS = (
    "Here are some instructions:\n{given}\nWrite one more like them.",
    "{given}\nWrite a new instruction of the same kind.",
)


def make(rng: Random, split: Split) -> Example:
    """Two or three instructions of one kind, and another of that kind."""
    kind = rng.choice(tuple(KINDS))
    size, texts = rng.choice((3, 4)), list[str]()
    while len(texts) < size:
        text = instruction(rng, kind, split).text
        if text not in texts:
            texts.append(text)
    *given, new = texts
    think = rng.random() < 0.2
    prompt = rng.choice(PROMPTS).format(given="\n".join(f"{n}. {text}" for n, text in enumerate(given, 1)))
    completion = f"They ask for {KINDS[kind].about}.\n{new}" if think else new
    return Example("instruct", marked(rng, prompt, think), completion, {"kind": kind, "given": given})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the last line is an instruction of the same kind that was not given."""
    del prompt
    text = last_line(completion)
    return kind_of(text) == meta["kind"] and text not in meta["given"]
