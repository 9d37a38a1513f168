"""What llama.cpp's own benchmarks print, and what follows from it."""

from __future__ import annotations

import pytest

from operators.bench.llama_tools import (
    batched_bench_command,
    of_batched_bench,
    of_llama_bench,
    sizes,
)
from operators.bench.workload import facts_of
from tests.bench.work import spec

BATCHED = """\
{"n_kv_max": 4096, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 0, "n_gpu_layers": -1, \
"n_threads": 2, "n_threads_batch": 2, "pp": 64, "tg": 16, "pl": 4, "n_kv": 320, "t_pp": 0.512, "speed_pp": 500.0, \
"t_tg": 0.64, "speed_tg": 100.0, "t": 1.152, "speed": 277.777778}

"""
SINGLE = """\
{"model_type": "qwen3 ?B Q8_0", "n_prompt": 64, "n_gen": 0, "n_depth": 0, "avg_ns": 4811121, "avg_ts": 400.0}
{"model_type": "qwen3 ?B Q8_0", "n_prompt": 0, "n_gen": 8, "n_depth": 0, "avg_ns": 1539612, "avg_ts": 40.0}
"""
"""Shortened output of the programs that were built from llama-cpp-python 0.3.36."""

FACTS = facts_of([60, 76] * 8, [90, 110] * 8, 4096, [])


def test_the_ceiling_is_the_tokens_at_the_measured_speeds():
    found = of_batched_bench(BATCHED, FACTS)
    assert found.work_s == pytest.approx(FACTS.prompt_tokens / 500 + FACTS.new_tokens / 100)
    assert found.decode_step_ms == pytest.approx(40)
    assert "4 rows with 64 + 16 tokens" in (found.note or "")


def test_one_row_at_a_time():
    found = of_llama_bench(SINGLE, FACTS)
    assert found.work_s == pytest.approx(FACTS.prompt_tokens / 400 + FACTS.new_tokens / 40)


@pytest.mark.parametrize("read", [of_batched_bench, of_llama_bench])
@pytest.mark.parametrize("output", ["", "{broken\n", '{"n_prompt": 1}\n'])
def test_output_without_results_is_an_error(read, output):
    with pytest.raises(ValueError, match="no results"):
        read(output, FACTS)


@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        facts_of([10] * 4, [3] * 4, 4096, []),
        facts_of([100] * 4, [500] * 4, 4096, []),
        facts_of([1], [1], 64, []),
    ],
)
def test_its_mean_depth_is_the_workloads(facts):
    prompt, steps = sizes(facts)
    assert 8 <= steps <= 64
    if facts.mean_depth > 32:
        assert prompt + (steps - 1) / 2 == pytest.approx(facts.mean_depth, abs=1)


def test_rows_fit_their_context(tmp_path):
    words = batched_bench_command(spec(tmp_path, slots=4), FACTS)
    prompt, steps = sizes(FACTS)
    assert int(words[words.index("--ctx-size") + 1]) >= 4 * (prompt + steps)
    assert words[words.index("-npl") + 1] == "4"
    assert words[words.index("-ntg") + 1] == str(steps)
