"""Family `extract`: pull named fields out of a short record as a JSON object."""

from __future__ import annotations

import json
from random import Random

from models.tiny.tasks.example import Example, Meta, Split, marked, parse_object
from models.tiny.tasks.words import CITIES, FIRST_NAMES, JOBS, LAST_NAMES, PRODUCTS

Record = dict[str, str | int]

PROSE = {
    "person": (
        "{name} is {age} years old, lives in {city} and works as a {job}. Email: {email}.",
        "{name} ({age}) is a {job} from {city} who can be reached at {email}.",
        "Our {job} {name}, aged {age}, has moved to {city}. Write to {email}.",
    ),
    "order": (
        "Order {order}: {name} from {city} bought {quantity} {product} for {price} euros.",
        "{name} in {city} ordered {quantity} {product} at {price} euros. The order number is {order}.",
        "On order {order} we ship {quantity} {product} to {name} in {city}. Price: {price} euros.",
    ),
}
REQUESTS = (
    "Extract {fields} as JSON.",
    "Return {fields} as a JSON object.",
    "Give me {fields} from this record as JSON.",
)


def person(rng: Random) -> Record:
    first, last = rng.choice(FIRST_NAMES), rng.choice(LAST_NAMES)
    return {
        "name": f"{first} {last}",
        "age": rng.randint(18, 89),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
        "email": f"{first.lower()}.{last.lower()}@{rng.choice(('example.org', 'mail.test'))}",
    }


def order(rng: Random) -> Record:
    return {
        "order": f"{rng.choice('ABCDEFGH')}{rng.randint(1000, 9999)}",
        "name": f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        "city": rng.choice(CITIES),
        "product": rng.choice(PRODUCTS),
        "quantity": rng.randint(2, 30),
        "price": rng.randint(5, 950),
    }


def laid_out(rng: Random, kind: str, record: Record) -> str:
    """The record as lines, as one line of pairs, or as prose."""
    form = rng.random()
    if form < 0.4:
        return rng.choice(PROSE[kind]).format(**record)
    pairs = list(record.items())
    rng.shuffle(pairs)
    if form < 0.75:
        return "\n".join(f"{key}: {value}" for key, value in pairs)
    return "; ".join(f"{key}={value}" for key, value in pairs)


def listed(fields: list[str]) -> str:
    """Field names as a phrase: "a", "a and b", "a, b and c"."""
    return fields[0] if len(fields) == 1 else ", ".join(fields[:-1]) + " and " + fields[-1]


def make(rng: Random, split: Split) -> Example:
    """A record, the fields asked for, and the object that holds them in that order."""
    del split
    kind = rng.choice(("person", "order"))
    record = person(rng) if kind == "person" else order(rng)
    fields = rng.sample(list(record), rng.randint(1, 4))
    request = rng.choice(REQUESTS).format(fields=listed(fields))
    text = laid_out(rng, kind, record)
    prompt = f"{request}\n{text}" if rng.random() < 0.6 else f"{text}\n{request}"
    answer = {field: record[field] for field in fields}
    think = rng.random() < 0.12
    completion = json.dumps(answer)
    if think:
        found = "\n".join(f"The {field} is {record[field]}." for field in fields)
        completion = f"{found}\n{completion}"
    return Example("extract", marked(rng, prompt, think), completion, {"answer": answer})


def check(prompt: str, completion: str, meta: Meta) -> bool:
    """Whether the last line is a JSON object with exactly the fields and values asked for."""
    del prompt
    lines = completion.strip().splitlines()
    return bool(lines) and parse_object(lines[-1]) == meta["answer"]
