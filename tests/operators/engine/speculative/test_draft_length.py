"""The choice of how many tokens a call brings, with costs that are given instead of measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from operators.engine.strategies.speculative.draft_length import (
    EXPLORATION_SHARE,
    OVERHEAD_SHARE,
    DraftingCosts,
    DraftLength,
    RowDraft,
    expected_tokens,
)
from tests.sets import often

pytestmark = pytest.mark.slow("simulates many jobs")

KIND = ("own", 3)


def test_costs_that_change_are_noticed():
    choice, chosen = DraftLength(), []
    for step in range(10_000):
        width = 1 if choice.skips(1, 4) else choice.choose([RowDraft(1, 3, 0.9)], 4)
        choice.note(1, width, width, 4.0 if width > 1 and step < 4000 else 1.0)
        chosen.append(width)
    assert chosen[3000:4000].count(1) > 950
    assert chosen[9000:].count(4) > 950


def test_certain_tokens_are_worth_a_larger_call():
    assert expected_tokens([RowDraft(3, 0, 0.0)], 4) == [0, 1, 2, 3, 3]
    assert expected_tokens([RowDraft(1, 2, 0.5), RowDraft(2, 5, 1.0)], 4) == [0, 2, 3.5, 4.75, 5.75]


def test_nothing_is_drafted_for_a_number_of_rows_whose_usual_step_is_not_known():
    """What 16 rows cost says nothing of 4: a call of 8 tokens of each would look cheap."""
    choice = DraftLength()
    for tokens in (2, 1):
        for _ in range(9):
            choice.note(16, tokens, 20, 0.4 + 0.6 * tokens)
    assert choice.skips(4, 8)
    assert not choice.skips(16, 8)


class Job:
    """Rows that are decoded at given costs, with drafts of a model: `time`, and `tokens` that counted.

    Args:
        call_s: seconds of a call, by its tokens.
        draft_s: seconds of a token of each row in the draft model.
        late_s: seconds that it takes to read what comes at the beginning of a row.
        length: tokens of a row.
        choice_s: seconds that a choice takes.
        change_s: seconds that a call takes longer after one of another size.
        noise: how many times its time a call in ten takes, in which other work runs on the machine; not in `time`.
    """

    def __init__(
        self,
        rows: int,
        call_s: Callable[[int], float],
        draft_s: float,
        late_s: float = 0.0,
        length: int = 100,
        choice_s: float = 0.0,
        change_s: float = 0.0,
        noise: float = 1.0,
    ) -> None:
        self.change_s, self.noise, self._last = change_s, noise, 1
        self.choice, self.random, self.choice_s = DraftLength(), np.random.default_rng(0), choice_s
        self.rows, self.call_s, self.draft_s, self.late_s, self.length = rows, call_s, draft_s, late_s, length
        self.time, self.tokens, self.chosen = 0.0, 0, list[int]()
        self._late, self._made = late_s, 0

    def step(self, right: float, most: int = 8) -> None:
        choice, rows, width, drafting_s = self.choice, self.rows, 1, 0.0
        if not choice.skips(rows, most):
            drafts = [RowDraft(1, most - 1, choice.rate(KIND, None))] * rows
            left = max(1, self.length - self._made) * rows
            width = choice.choose(drafts, most, DraftingCosts((self.draft_s, self.draft_s), self._late, left))
            drafting_s = self.choice_s
            if width == 1:
                choice.skip(rows, self.choice_s)
        counted = rows
        if width > 1:
            drafting_s, self._late = drafting_s + (width - 1) * self.draft_s + self._late, 0.0
            for _ in range(rows):
                hits = int((self.random.random(width - 1) < right).cumprod().sum())
                choice.verified(KIND, None, hits, rejected=hits < width - 1)
                counted += hits
        seconds = self.call_s(rows * width) + self.change_s * (width != self._last)
        self._last = width
        noisy = self.noise if self.noise > 1 and self.random.random() < 0.1 else 1.0
        choice.note(rows, width, counted, noisy * seconds, drafting_s)
        self.time, self.tokens = self.time + seconds + drafting_s, self.tokens + counted
        self._made += counted // rows
        if self._made >= self.length:
            self._made, self._late = 0, self.late_s
        self.chosen.append(width)

    @property
    def gain(self) -> float:
        """Speed over that of one token per step."""
        return self.tokens / self.time / (self.rows / self.call_s(self.rows))


@pytest.mark.parametrize(
    ("rows", "right", "draft_s", "late_s", "least", "likely"),
    [
        (1, 0.9, 0.0, 0.0, 2.0, {6, 8}),
        pytest.param(16, 0.9, 0.0, 0.0, 0.98, {1}, marks=pytest.mark.laws),
        pytest.param(1, 0.9, 0.1, 3.0, 1.8, {6, 8}, marks=pytest.mark.laws),
        (1, 0.7, 0.2, 3.0, 1.2, {3, 4}),
        pytest.param(1, 0.7, 0.9, 0.0, 0.98, {1}, marks=pytest.mark.laws),
        pytest.param(1, 0.1, 0.1, 3.0, 0.98, {1}, marks=pytest.mark.laws),
        (1, 0.9, 0.1, 300.0, 0.98, {1}),
        (16, 0.7, 0.1, 3.0, 0.98, {1}),
    ],
)
def test_drafts_are_made_where_they_pay_with_what_they_cost(rows, right, draft_s, late_s, least, likely):
    """A call of one row costs 1.05, of 16 rows 1.8. Drafts without costs are those of lookup; after 300 s the
    prompts would have taken too long to read."""
    job = Job(rows, lambda n: 1 + 0.05 * n, draft_s, late_s) if rows == 1 else Job(rows, lambda n: 0.1 * n, draft_s)
    for _ in range(6000):
        job.step(right)
    latest = job.chosen[3000:]
    assert max(set(latest), key=latest.count) in likely
    assert job.gain > least


@pytest.mark.laws
@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("phases", [(0.9, 0.0, 0.9), (0.0, 0.9, 0.0)])
def test_a_job_is_never_slower_than_without_drafts_by_two_percent(rows, phases):
    """Whatever becomes of the drafts; and good ones are found out after bad ones."""
    job = Job(rows, lambda n: 1 + 0.02 * n, 0.1, late_s=2.0)
    for right in phases:
        for step in range(3000):
            job.step(right)
            assert step % 100 or job.gain > 0.98
        assert right == 0.0 or sum(job.chosen[-100:]) > 500


@pytest.mark.parametrize("choice_s", often([0.02, 0.2, 2.0], 0.2))
def test_what_choices_cost_does_not_keep_good_drafts_from_being_tried(choice_s):
    """A call costs the same whatever its tokens, and a choice as much as many calls save: they begin all the same."""
    job = Job(1, lambda _: 1.0, 0.0, choice_s=choice_s)
    for _ in range(800):
        job.step(0.85)
    assert max(job.chosen[:400]) > 1
    assert job.chosen[-100:].count(1) < 20 or choice_s > 1
    assert choice_s > 1 or job.gain > 1.5


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("choice_s", often([0.02, 0.2, 2.0], 0.2))
@pytest.mark.parametrize("change_s", often([0.0, 0.5], 0.5))
def test_hopeless_drafts_lose_no_more_than_their_shares_of_the_time(rows, choice_s, change_s):
    """One choice or trial that has begun may go beyond them."""
    job = Job(rows, lambda n: 1 + 0.02 * n, 0.0, choice_s=choice_s, change_s=change_s)
    for step in range(6000):
        job.step(0.25 if step % 200 < 20 else 0.0)  # now and then they look better than they are
        without = job.tokens / rows * job.call_s(rows)
        assert job.time - without < (EXPLORATION_SHARE + OVERHEAD_SHARE) * job.time + choice_s + 1


def test_drafts_that_pay_are_not_given_up_for_a_few_bad_rows():
    """Every tenth row of 60 tokens is drafted badly, and the others well."""
    job = Job(1, lambda n: 0.9 + 0.1 * n, 0.02, length=60)
    while len(job.chosen) < 4000:
        job.step(0.1 if job.tokens // 60 % 10 == 0 else 0.9)
    assert job.chosen[2000:].count(1) < 500
    assert job.gain > 1.5


def test_reading_a_prompt_is_spread_over_the_tokens_that_are_left():
    choice = DraftLength()
    for tokens in (1, 4):
        for _ in range(9):
            choice.note(1, tokens, tokens, 1.0)
    drafts = [RowDraft(1, 3, 0.9)]
    assert choice.choose(drafts, 4, DraftingCosts((0.1, 0.1), prefill_s=10.0, left=50)) == 4
    assert choice.choose(drafts, 4, DraftingCosts((0.1, 0.1), prefill_s=10.0, left=5)) == 1
