"""Spells words for the small text model: of the tokens that it has learnt to write, the likeliest that make them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import log

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from models.tiny.tasks import generate

EXAMPLES = 3000
"""Completions of the text model's corpus in which tokens are counted."""
NEVER = 100.0
"""What a token costs that is in none of them. Prompts have such tokens, and the model was never asked to write one."""


class Speller:
    """The tokens of texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        counted: Counter[int] = Counter()
        for coded in tokenizer.encode_batch([example.completion for example in generate(1, EXAMPLES)]):
            counted.update(coded.ids)
        total = counted.total()
        self._costs = {
            token: (number, -log(counted[number] / total) if counted[number] else NEVER)
            for token, number in tokenizer.get_vocab().items()
        }
        self._bytes = ByteLevel(add_prefix_space=False, use_regex=False)
        self.spell = cache(self._spell)

    def _spell(self, text: str) -> tuple[int, ...]:
        """Return the token ids that together cost least."""
        ((letters, _),) = self._bytes.pre_tokenize_str(text)
        best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for end in range(1, len(letters) + 1):
            ways = [(begin, self._costs.get(letters[begin:end])) for begin in range(end)]
            best.append(min((best[b][0] + way[1], (*best[b][1], way[0])) for b, way in ways if way is not None))
        return best[-1][1]
