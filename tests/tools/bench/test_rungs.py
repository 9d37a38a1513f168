"""The rungs and the calls in blocks do the same work."""

from __future__ import annotations

import pytest

from operators.engine.backend.fake import MASK_ID
from tests.tools.bench.work import spec, with_mask
from tools.bench import rungs
from tools.bench.contenders import Function
from tools.bench.scenarios import SCENARIOS

NAMES = sorted(
    {
        each.function.removeprefix("tools.bench.rungs:")
        for plan in SCENARIOS.values()
        for each in plan.contenders
        if isinstance(each, Function) and each.function.startswith("tools.bench.rungs:")
    }
)


@pytest.mark.parametrize("name", NAMES)
def test_each_makes_the_tokens_of_the_workload(tmp_path, name):
    case = spec(tmp_path, slots=4, rows=11)
    found, facts = getattr(rungs, name)(case), case.workload
    assert (found.prompt_tokens, found.new_tokens) == (facts.prompt_tokens, facts.new_tokens)
    assert found.work_s > 0


def test_the_steps_of_the_engine_do_not_depend_on_the_sampler(tmp_path):
    case = spec(tmp_path, slots=4, rows=11)
    assert rungs.engine(case).steps == rungs.sampling(case).steps


def test_a_mask_may_be_given_for_a_model_that_names_none(tmp_path):
    case = with_mask(spec(tmp_path), MASK_ID)
    assert rungs.blocks_reused(case).new_tokens == case.workload.new_tokens
