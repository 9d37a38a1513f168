"""Family `judge`: say whether an answer fits its question."""

from __future__ import annotations

from random import Random

from models.tiny.tasks.example import Example, Meta, Split, last_line, marked
from models.tiny.tasks.kinds import KINDS, Instruction, instruction

PROMPTS = (
    "Question: {question}\nAnswer: {answer}\nDoes the answer fit the question? Reply yes or no.",
    "Does this answer fit the question? Reply yes or no.\nQuestion: {question}\nAnswer: {answer}",
)


def wrong_answer(rng: Random, asked: Instruction, split: Split) -> str:
    """An answer to another instruction, of the same kind or of any, that differs from the right one."""
    while True:
        kind = asked.kind if rng.random() < 0.5 else rng.choice(tuple(KINDS))
        answer = instruction(rng, kind, split).answer
        if answer != asked.answer:
            return answer


def reasoned(asked: Instruction, verdict: str) -> str:
    """The verdict with its reason."""
    if asked.kind == "story":
        words = asked.text.rsplit(": ", 1)[1]
        return f"The answer should be a story with {words}.\n{verdict}"
    return f"The answer should be {asked.answer}.\n{verdict}"


def make(rng: Random, split: Split) -> Example:
    """A question with a right or a wrong answer, half of each."""
    asked = instruction(rng, rng.choice(tuple(KINDS)), split)
    verdict = rng.choice(("yes", "no"))
    answer = asked.answer if verdict == "yes" else wrong_answer(rng, asked, split)
    think = rng.random() < 0.3
    prompt = rng.choice(PROMPTS).format(question=asked.text, answer=answer)
    completion = reasoned(asked, verdict) if think else verdict
    return Example("judge", marked(rng, prompt, think), completion, {"verdict": verdict, "kind": asked.kind})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the verdict stands last."""
    del prompt
    return bool(last_line(completion) == meta["verdict"])
