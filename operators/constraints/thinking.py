"""A constraint on the reasoning of a model: a budget of tokens, and another constraint for the answer alone."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from operators.engine.sampling.constraint import Constraint, Costs, Matcher


@dataclass(frozen=True)
class Thinking:
    """Implements operators.engine.sampling.constraint.Constraint.

    Within the reasoning no end-of-generation token is drawn; it ends with its closing tag. After `budget` of its tokens
    that tag is forced.

    Args:
        marked: the bytes of tokens, with those of the control tokens of tags.
        opening, closing: the bytes of the tags.
        opening_ids, closing_ids: their token ids.
        end_ids: end-of-generation tokens.
        n_vocab: tokens of the vocabulary.
        budget: tokens of the reasoning at most; None: any number.
        within: the completion begins with reasoning, since the prompt ends with the opening tag.
        answer: the constraint on what comes behind the closing tag, or on all of a text without reasoning.
    """

    marked: Callable[[Seq[int]], bytes]
    opening: bytes
    closing: bytes
    opening_ids: tuple[int, ...]
    closing_ids: tuple[int, ...]
    end_ids: frozenset[int]
    n_vocab: int
    budget: int | None
    within: bool
    answer: Constraint | None

    @property
    def noun(self) -> str:
        return "text" if self.answer is None else self.answer.noun

    @property
    def skip_forced(self) -> bool:
        return self.answer is None or self.answer.skip_forced

    @property
    def identity(self) -> str:
        tags = (self.opening_ids, self.closing_ids, self.budget, self.within)
        return f"thinking {tags} {None if self.answer is None else self.answer.identity}"

    def check(self, text: str) -> str | None:
        return None if self.answer is None else self.answer.check(text)

    def matcher(self) -> ThinkingMatcher:
        return ThinkingMatcher(self, None if self.answer is None else self.answer.matcher())


@dataclass
class ThinkingMatcher:
    """Implements operators.engine.sampling.constraint.Matcher.

    A text is, one after the other: before its opening tag (`_begun` is what came of it), within the reasoning
    (`_thought` counts its tokens), and in the answer (`_answers`).
    """

    rule: Thinking
    inner: Matcher | None
    costs: Costs = field(init=False)

    def __post_init__(self) -> None:
        self.costs = Costs() if self.inner is None else self.inner.costs
        self._begun: list[int] = []
        self._tail = b""
        self._thought = 0 if self.rule.within else -1
        self._closing: list[int] = []
        self._answers = False
        self._force_if_spent()

    @property
    def complete(self) -> bool:
        return self.inner is None or (not self._reasons and not self._opens and self.inner.complete)

    @property
    def ended(self) -> bool:
        return self.inner is not None and self._answers and self.inner.ended

    @property
    def error(self) -> str | None:
        return None if self.inner is None else self.inner.error

    def allows(self, token: int) -> bool:
        if forced := self._due():
            return token == forced[0]
        if self._reasons:
            return token not in self.rule.end_ids
        if self.inner is None:
            return True
        return self.inner.allows(token) or self._may_open(token)

    def allowed(self) -> npt.NDArray[np.bool_]:
        if forced := self._due():
            allowed = np.zeros(self.rule.n_vocab, np.bool_)
            allowed[forced[0]] = True
        elif self._reasons or self.inner is None:
            allowed = np.ones(self.rule.n_vocab, np.bool_)
            if self._reasons:
                allowed[list(self.rule.end_ids)] = False
        else:
            allowed = self.inner.allowed()
            if self._may_open(self.rule.opening_ids[0]):
                allowed = allowed.copy()
                allowed[self.rule.opening_ids[0]] = True
        return allowed

    def take(self, token: int) -> None:
        self.costs.constrained_tokens += self.inner is None or not self._answers
        if self._reasons:
            self._think(token)
        elif self._answers:
            self._answer(token)
        else:
            self._begin(token)

    def forced(self) -> list[int]:
        if due := self._due():
            return due
        return self.inner.forced() if self.inner is not None and self._answers else []

    @property
    def _reasons(self) -> bool:
        return self._thought >= 0 and not self._answers

    @property
    def _opens(self) -> bool:
        """True if the inner constraint does not know the first tokens: they are a part of the opening tag."""
        return self.inner is not None and bool(self._begun) and self._thought < 0 and not self._answers

    def _due(self) -> list[int]:
        """Return the tokens that must come: the rest of a tag."""
        if self._reasons:
            return self._closing
        return list(self.rule.opening_ids[len(self._begun) :]) if self._opens else []

    def _may_open(self, token: int) -> bool:
        """Return whether `token` begins the opening tag: it is all of the tag, or the answer cannot begin with it."""
        opening = self.rule.opening_ids
        if self._answers or self._begun or token != opening[0] or self.inner is None:
            return False
        return len(opening) == 1 or not self.inner.allows(token)

    def _begin(self, token: int) -> None:
        """Take a token before the opening tag."""
        if self.inner is not None and not self._opens and not self._may_open(token):
            self._answers = True
            self._answer(token)
            return
        self._begun.append(token)
        text, opening = self.rule.marked(self._begun).lstrip(), self.rule.opening
        if text.startswith(opening):
            self._thought = 0
            self._force_if_spent()
        elif not opening.startswith(text):
            self._answers = True

    def _think(self, token: int) -> None:
        """Take a token of the reasoning or of its closing tag."""
        closing = self.rule.closing
        self._thought += 1
        if self._closing:
            self._closing = self._closing[1:]
            self._answers = not self._closing
            return
        self._tail += self.rule.marked([token])
        if closing in self._tail:
            self._answers = True
            return
        self._tail = self._tail[-len(closing) :]
        self._force_if_spent()

    def _force_if_spent(self) -> None:
        if self._reasons and self.rule.budget is not None and self._thought >= self.rule.budget:
            self._closing = list(self.rule.closing_ids)

    def _answer(self, token: int) -> None:
        if self.inner is not None:
            self.inner.take(token)
