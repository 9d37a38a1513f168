"""Write the prompt files that ship with the jobs: `python -m models.tiny.prompts` from the repository's root.

quickstart.jsonl and evaluate_tiny.jsonl hold held-out prompts of all families, in turn, as JSONL with the columns id,
family, prompt, answer (one right completion) and meta (what the checker needs, as a JSON string: its keys differ by
family). extract.jsonl asks for the same two fields of every record: id, prompt and answer. classify.jsonl has reviews
whose sentiment is asked for, extract_long.jsonl records of which four fields are asked for with /think, so that answers
quote each twice, chat.jsonl conversations (id, messages, answer) whose last word is the user's.
self_instruct_seeds.jsonl shows three instructions of a kind and asks for one more: id, kind and prompt.
evaluate.jsonl has questions with the answer and four choices, or as many as there are: id, subject, question, choices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from random import Random

from models.tiny.tasks import Example, extract, generate, instruct, label, split_of
from models.tiny.tasks.extract import laid_out, person
from models.tiny.tasks.kinds import KINDS, instruction
from models.tiny.tasks.reviews import TOPICS

EVALUATION_SEED = 7
EVALUATION_ROWS = 500
QUICKSTART_ROWS = 200
EXTRACT_SEED = 11
EXTRACT_ROWS = 40
LONG_SEED = 19
LONG_ROWS = 100
LONG_FIELDS = 4
SEEDS_SEED = 13
SEEDS_ROWS = 50
GIVEN = 3
"""Instructions in a prompt that asks for one more."""
CLASSIFY_SEED = 13
CLASSIFY_ROWS = 40
CHAT_SEED = 17
CHAT_ROWS = 24
QUESTIONS_SEED = 23
QUESTIONS_ROWS = 60
CHOICES = 4
SUBJECTS = ("count", "sort", "reverse", "sentiment", "topic", "sum")
"""Kinds of instruction with an answer that one can compare."""
SYSTEM = ("You answer briefly.", None)
"""System prompts of the conversations, in turn."""


def row(identifier: str, example: Example) -> dict[str, str]:
    """One line of a prompt file."""
    return {
        "id": identifier,
        "family": example.family,
        "prompt": example.prompt,
        "answer": example.completion,
        "meta": json.dumps(example.meta),
    }


def write_rows(path: Path, prefix: str, chosen: Iterable[Example]) -> None:
    """Write examples as JSONL, numbered from zero."""
    lines = (json.dumps(row(f"{prefix}-{n:03d}", example)) for n, example in enumerate(chosen))
    path.write_text("\n".join(lines) + "\n")


def extract_rows(count: int) -> Iterator[dict[str, str]]:
    """Held-out records of people, of each of whom the name and the age are asked for."""
    rng = Random(EXTRACT_SEED)
    made = 0
    while made < count:
        record = person(rng)
        prompt = f"Extract name and age as JSON.\n{laid_out(rng, 'person', record)}"
        if split_of(prompt) == "heldout":
            answer = json.dumps({"name": record["name"], "age": record["age"]})
            yield {"id": f"extract-{made:03d}", "prompt": prompt, "answer": answer}
            made += 1


def long_extracts(count: int) -> Iterator[Example]:
    """Held-out records with the longest answers of their family: each field is named in a sentence and then as JSON."""
    rng = Random(LONG_SEED)
    made: set[str] = set()
    while len(made) < count:
        example = extract.make(rng, "heldout")
        long = "/think" in example.prompt and len(example.meta["answer"]) == LONG_FIELDS
        if long and split_of(example.prompt) == "heldout" and example.prompt not in made:
            made.add(example.prompt)
            yield example


def seed_rows(count: int) -> Iterator[dict[str, str]]:
    """Prompts that ask for one more instruction like three held-out ones, of all kinds in turn."""
    rng = Random(SEEDS_SEED)
    for number, kind in zip(range(count), cycle(KINDS), strict=False):
        given: list[str] = []
        while len(given) < GIVEN:
            text = instruction(rng, kind, "heldout").text
            if text not in given:
                given.append(text)
        shown = "\n".join(f"{n}. {text}" for n, text in enumerate(given, 1))
        yield {"id": f"seed-{number:02d}", "kind": kind, "prompt": instruct.PROMPTS[0].format(given=shown)}


def classify_examples(count: int) -> Iterator[Example]:
    """Held-out reviews whose sentiment is asked for, all different."""
    rng = Random(CLASSIFY_SEED)
    made: set[str] = set()
    while len(made) < count:
        example = label.make(rng, "heldout")
        whole = example.completion in label.SENTIMENTS  # neither a topic nor with a reason before it
        if whole and split_of(example.prompt) == "heldout" and example.prompt not in made:
            made.add(example.prompt)
            yield example


def question_rows(count: int) -> Iterator[dict[str, object]]:
    """Held-out questions of all subjects in turn, all different, each with its right answer among its choices."""
    rng = Random(QUESTIONS_SEED)
    asked: set[str] = set()
    for number, subject in zip(range(count), cycle(SUBJECTS), strict=False):
        while (example := instruction(rng, subject, "heldout")).text in asked:
            pass
        asked.add(example.text)
        yield {
            "id": f"question-{number:02d}",
            "subject": subject,
            "question": example.text,
            "choices": choices(rng, subject, example.answer),
            "answer": example.answer,
        }


def choices(rng: Random, subject: str, answer: str) -> list[str]:
    """The labels of a subject, or four answers in random order of which one is right."""
    if subject in ("sentiment", "topic"):
        return list(label.SENTIMENTS if subject == "sentiment" else TOPICS)
    items, found = answer.split(", "), {answer}
    while len(found) < CHOICES:
        other = rng.sample(items, len(items)) if len(items) > 1 else [str(max(0, int(answer) + rng.randint(-3, 3)))]
        found.add(", ".join(other))
    return rng.sample(sorted(found), CHOICES)


def chat_rows(count: int) -> Iterator[dict[str, object]]:
    """Conversations of two questions, the first with its answer; every second one has a system prompt."""
    drawn = generate(CHAT_SEED, 2 * count, "heldout")
    for n, (first, second) in enumerate(zip(drawn[:count], drawn[count:], strict=True)):
        system = SYSTEM[n % len(SYSTEM)]
        messages = [{"role": "system", "content": system}] if system else []
        messages += [
            {"role": "user", "content": first.prompt},
            {"role": "assistant", "content": first.completion},
            {"role": "user", "content": second.prompt},
        ]
        yield {"id": f"chat-{n:03d}", "messages": messages, "answer": second.completion}


def write_all(directory: Path) -> None:
    """Write quickstart.jsonl and evaluate_tiny.jsonl, which share no prompt, and the smaller files."""
    drawn = generate(EVALUATION_SEED, EVALUATION_ROWS + QUICKSTART_ROWS, "heldout")
    write_rows(directory / "evaluate_tiny.jsonl", "eval", drawn[:EVALUATION_ROWS])
    write_rows(directory / "quickstart.jsonl", "quick", drawn[EVALUATION_ROWS:])
    lines = map(json.dumps, extract_rows(EXTRACT_ROWS))
    (directory / "extract.jsonl").write_text("\n".join(lines) + "\n")
    lines = map(json.dumps, seed_rows(SEEDS_ROWS))
    (directory / "self_instruct_seeds.jsonl").write_text("\n".join(lines) + "\n")
    write_rows(directory / "extract_long.jsonl", "long", long_extracts(LONG_ROWS))
    write_rows(directory / "classify.jsonl", "review", classify_examples(CLASSIFY_ROWS))
    lines = map(json.dumps, question_rows(QUESTIONS_ROWS))
    (directory / "evaluate.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "chat.jsonl").write_text("\n".join(map(json.dumps, chat_rows(CHAT_ROWS))) + "\n")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.prompts", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("jobs/data"), help="directory (default %(default)s)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_all(options.out)


if __name__ == "__main__":
    main()
