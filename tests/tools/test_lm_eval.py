"""The model for lm-evaluation-harness: what llama-cpp-python computes, and the harness' own `hf` model."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from models.tiny.dequantise import dequantise
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, InputError
from tests.operators.llama.test_reading import TINY, their_logprobs

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness, the extra `eval`")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the harness and of what it imports

CONTEXT = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=each, idx=i) for i, each in enumerate(arguments)]


@pytest.fixture(scope="module")
def model():
    from tools.lm_eval import LlamaBatch

    return LlamaBatch(str(TINY), max_length=64, slots=4)


@pytest.fixture(scope="module")
def tokens():
    llama = llama_cpp.Llama(str(TINY), vocab_only=True, verbose=False)
    yield lambda text: llama.tokenize(text.encode(), add_bos=False, special=True)
    llama.close()


def test_a_continuation_is_as_likely_as_llama_cpp_python_finds_it(model, tokens):
    pairs = [("They were ", "tired"), ("They were", " tired, but"), ("", "many people"), ("hare " * 90, "a goose")]
    found = model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
    for (before, text), (logprob, is_greedy) in zip(pairs, found, strict=True):
        begun = tokens(before.rstrip())
        scored = tokens(before + text)[len(begun) :]
        ids = [*(begun or [model.prefix_token_id]), *scored][-64:]
        assert logprob == pytest.approx(their_logprobs(TINY, ids)[-len(scored) :].sum(), abs=1e-3)
        assert not is_greedy


def test_a_long_text_is_scored_in_windows(model, tokens):
    text = "The donkey asked everyone who had lost the compass. " * 16
    ids = tokens(text)
    assert len(ids) > 2 * 63
    expected = 0.0
    for start in range(0, len(ids), 63):
        end = min(start + 63, len(ids))
        # A window has 64 tokens; the last one has more before it than it scores.
        window = [model.prefix_token_id, *ids][max(0, end - 63) if start else 0 : end + 1]
        expected += their_logprobs(TINY, window)[-(end - start) :].sum()
    (total,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,)), disable_tqdm=True)
    assert total == pytest.approx(expected, abs=1e-2)


def test_a_text_is_generated_until_a_stop(model):
    prompt = CONTEXT % "What is 12 plus 30?"
    asked = [{"until": [], "max_gen_toks": 12}, {"until": ["2"], "max_gen_toks": 12}, {"max_gen_toks": 1}]
    warm = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 1.5, "top_k": 5}
    arguments = [(prompt, each) for each in [*asked, *[warm] * 8]]
    whole, stopped, short, *drawn = model.generate_until(requests("generate_until", *arguments), disable_tqdm=True)
    assert "2" in whole
    assert stopped == whole.partition("2")[0]
    assert whole.startswith(short)
    assert short != whole
    assert len(drawn) == 8
    alone = model.generate_until(requests("generate_until", (prompt, asked[0])), disable_tqdm=True)
    assert alone == [whole]


def test_what_cannot_be_computed_is_told(model):
    with pytest.raises(ConfigError, match="num_beams"):
        model.generate_until(requests("generate_until", ("a", {"num_beams": 2})), disable_tqdm=True)
    with pytest.raises(InputError, match="max_length is 64"):
        model.loglikelihood(requests("loglikelihood", ("a", " hare" * 100)), disable_tqdm=True)
    with pytest.raises(ValueError, match="gen_prefix"):
        model.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=False)


def test_a_conversation_is_rendered_by_the_model_s_template(model):
    assert model.apply_chat_template([{"role": "user", "content": "Hi"}]) == CONTEXT % "Hi"


def test_the_harness_finds_the_model_by_its_name():
    from lm_eval.api.registry import get_model

    from tools.lm_eval import LlamaBatch

    assert get_model("llama_batch") is LlamaBatch


def test_the_harness_own_model_gives_the_same(tmp_path: Path):
    """`hf` on the same F32 weights: 1,000 requests, log-likelihoods within 1e-3, `is_greedy` and accuracy equal."""
    for package in ("torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"the reference, lm_eval's `hf` model, needs {package}")
    from lm_eval.models.huggingface import HFLM

    from tests.tools.exported import export
    from tools.lm_eval import LlamaBatch

    path = tmp_path / "gguf" / "tiny-f32.gguf"
    path.parent.mkdir()
    dequantise(TINY, path)
    export(path, tmp_path / "hf")
    asked = requests("loglikelihood", *multiple_choice(250))
    ours = LlamaBatch(str(path), max_length=512).loglikelihood(asked, disable_tqdm=True)
    hf = HFLM(pretrained=str(tmp_path / "hf"), dtype="float32", device="cpu", batch_size=16, max_length=511)
    theirs = hf.loglikelihood(asked, disable_tqdm=True)
    logprobs, expected = (np.array([logprob for logprob, _ in found]).reshape(-1, 4) for found in (ours, theirs))
    assert np.abs(logprobs - expected).max() < 1e-3
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert 100 < sum(greedy for _, greedy in ours) < 900
    assert (logprobs.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert (logprobs.argmax(axis=1) == 0).mean() > 0.9


def multiple_choice(count: int) -> Sequence[tuple[str, str]]:
    """Questions behind which the answer has begun, each with four ends of answers, the right one first."""
    rows = [json.loads(line) for line in (PROJECT / "jobs/data/evaluate_tiny.jsonl").read_text().splitlines()]
    rows = [row for row in rows if " " in row["answer"].strip()]
    ends = [row["answer"].partition(" ")[2] for row in rows]
    choice = random.Random(0)
    return [
        (CONTEXT % row["prompt"] + row["answer"].partition(" ")[0], f" {end}")
        for row, right in list(zip(rows, ends, strict=True))[:count]
        for end in (right, *choice.sample(ends, 3))
    ]
