"""Measures what a constraint costs: `python -m tools.bench.bench_structured --vocab FILE.gguf`. Loads no weights.

A text that fits is walked through token by token as a row would go: is the token allowed, take it, is what follows
forced. Then once more with a mask for every token, which is what a sampler that masks first would pay.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from operators.constraints.compiler import Compiler, LlgConstraint
from operators.constraints.grammars import form_of
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.structured import StructuredSettings

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
    },
    "required": ["name", "age", "email"],
    "additionalProperties": False,
}
_PEOPLE: dict[str, Any] = {
    "$defs": {"person": _PERSON},
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "people": {"type": "array", "items": {"$ref": "#/$defs/person"}},
        "mood": {"enum": ["calm", "busy", "sad"]},
    },
    "required": ["title", "people", "mood"],
    "additionalProperties": False,
}
_ANN = {"name": "Ann Lee", "age": 41, "email": "ann.lee@example.org"}
_GROUP = {"title": "Who was there, and how it went", "people": [_ANN] * 5, "mood": "busy"}
CASES: dict[str, tuple[StructuredSettings, str]] = {
    "JSON of 3 fields": (StructuredSettings(json_schema=_PERSON), json.dumps(_ANN)),
    "JSON of 5 such in a list": (StructuredSettings(json_schema=_PEOPLE), json.dumps(_GROUP)),
    "any JSON object": (StructuredSettings(json_schema={"type": "object"}), json.dumps(_GROUP)),
    "regex, prose": (
        StructuredSettings(regex=r"[A-Za-z ,.]{1,400}"),
        "It was late when they came home, and cold. " * 5,
    ),
    "one of 3 choices": (StructuredSettings(choices=["positive", "negative", "neutral"]), "negative"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table of medians."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.bench_structured", description=__doc__)
    parser.add_argument("--vocab", required=True, help="a GGUF file, with or without weights")
    parser.add_argument("--rounds", type=int, default=15, help="how often each case is timed")
    options = parser.parse_args(arguments)
    model = LlamaModel(ModelSettings(path=options.vocab), vocab_only=True)
    began = time.perf_counter()
    compiler = Compiler(model)
    print(f"{model.n_vocab:,} words; reading them: {time.perf_counter() - began:.2f} s, once for each node")
    print()
    print("| constraint | tokens | forced | compile, ms | begin a row, us | a token, us | a token with a mask, us |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, (settings, text) in CASES.items():
        tokens: list[int] = model.tokenize([text.encode()], special=True)[0].tolist()
        print(f"| {name} | " + " | ".join(_measured(compiler, settings, tokens, options.rounds)) + " |")


def _measured(compiler: Compiler, settings: StructuredSettings, tokens: Sequence[int], rounds: int) -> list[str]:
    """Return the cells of a line."""
    form = form_of(settings)
    if form is None:
        raise ValueError(f"{settings} ask for nothing")
    began = time.perf_counter()
    constraint = compiler.constraint(form, skip_forced=True)
    compile_s = time.perf_counter() - began
    begin_s, row_s, masked_s = (
        statistics.median(timeit.repeat(work, number=1, repeat=rounds))
        for work in (constraint.matcher, partial(_walk, constraint, tokens), partial(_walk_masking, constraint, tokens))
    )
    micro = (f"{seconds * 1e6:.0f}" for seconds in (begin_s, row_s / len(tokens), masked_s / len(tokens)))
    return [str(len(tokens)), str(_walk(constraint, tokens)), f"{compile_s * 1000:.1f}", *micro]


def _walk(constraint: LlgConstraint, tokens: Sequence[int]) -> int:
    """Process a row whose tokens all fit; return the number of forced ones."""
    matcher = constraint.matcher()
    place = forced = 0
    while place < len(tokens):
        ahead = matcher.forced()
        if ahead and ahead == list(tokens[place : place + len(ahead)]):
            forced += len(ahead)
        else:
            ahead = [tokens[place]]
            if not matcher.allows(tokens[place]):
                raise ValueError(f"token {place} of the text does not fit")
        for token in ahead:
            matcher.take(token)
        place += len(ahead)
    return forced


def _walk_masking(constraint: LlgConstraint, tokens: Sequence[int]) -> None:
    matcher = constraint.matcher()
    for token in tokens:
        if not np.count_nonzero(matcher.allowed()):
            raise ValueError("nothing is allowed")
        matcher.take(token)


if __name__ == "__main__":
    main()
