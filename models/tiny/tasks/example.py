"""The nouns of the corpus: an example, and which split a prompt belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Split = Literal["train", "heldout"]
Meta = dict[str, Any]

THINK = "/think"
HELDOUT_PARTS = 20  # one prompt of this many is held out


@dataclass(frozen=True)
class Example:
    """One training or evaluation example.

    `meta` is plain JSON: what the family's checker needs to know to judge a completion.
    """

    family: str
    prompt: str
    completion: str
    meta: Meta = field(default_factory=dict)


Maker = Callable[[Random, Split], Example]
Checker = Callable[[str, str, Meta], bool]


def without_think(prompt: str) -> str:
    """The prompt without its `/think` mark: both forms of a question fall into the same split."""
    return prompt.replace(THINK, "").strip()


def split_of(prompt: str) -> Split:
    """The split of a prompt, decided by a hash of its text alone."""
    digest = hashlib.sha256(without_think(prompt).encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") % HELDOUT_PARTS == 0 else "train"


def marked(rng: Random, prompt: str, think: bool) -> str:
    """The prompt with a `/think` mark before or after it, where a worked answer is asked for."""
    if not think:
        return prompt
    return f"{THINK} {prompt}" if rng.random() < 0.3 else f"{prompt} {THINK}"


def last_line(text: str) -> str:
    """The last line of a completion: where a worked answer states its result."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def parse_object(text: str) -> Meta | None:
    """The JSON object that `text` is, or None."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
