"""Choose on real llama.cpp: what llama-cpp-python gives, the same bits in any batch, a question computed once."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pyarrow as pa
import pytest

from operators.choose import Choose
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.runtime import Resources
from tests.families.test_families import FAMILIES, HERE
from tests.operators.flow import Flow, Rows, chain
from tests.operators.llama.test_reading import PLAIN, TINY, process, their_logprobs

__all__ = ["process"]

ASKED = pa.schema([("prompt_text", pa.string()), ("options", pa.list_(pa.string()))])


def asked() -> list[dict[str, Any]]:
    """Questions of 5 to 300 tokens, with 2 to 5 options of 1 to some 70."""
    random = np.random.default_rng(4)
    options = [" yes", " no", " many people", " of the water and the old house", " 7", " the " * 33]
    rows = []
    for words in (1, 25, 30, 60, 130):
        picked = random.permutation(len(options))[: random.integers(2, 6)]
        text = " ".join(random.choice(["hare", "goose", "lost", "They were tired,", "12 plus 30"], words))
        rows.append({"prompt_text": f"Sort this: {text}", "options": [options[i] for i in picked]})
    return rows


def choose(
    directory: Path,
    process: Resources,
    rows: Seq[dict[str, Any]],
    path: Path = TINY,
    schema: pa.Schema = ASKED,
    **settings: Any,
) -> tuple[list[Any], float]:
    """The rows with their choices, and how many tokens were computed."""
    op = Choose(
        ModelSettings(path=str(path), kernels="llama.cpp"), EngineSettings(**settings), "options", schema.names[0]
    )
    flow = Flow(directory, chain(Rows(rows, schema, batch=8), op=op), process)
    out = flow.run()
    totals = flow.context.counted()
    return out, totals["op/decoded_tokens"]


def test_options_are_as_likely_as_llama_cpp_python_finds_them_and_a_question_is_computed_once(tmp_path, process):
    vocabulary = llama_cpp.Llama(str(TINY), vocab_only=True, verbose=False)

    def tokens(text: str, *, begins: bool = False) -> list[int]:
        return vocabulary.tokenize(text.encode(), add_bos=begins, special=True)

    distinct = 0
    rows = asked()
    out, decoded = choose(tmp_path, process, rows, **PLAIN)
    for row in out:
        question = tokens(row["prompt_text"], begins=True)
        distinct += len(question)
        for option, logprob in zip(row["options"], row["choice_logprobs"], strict=True):
            ids = tokens(option)
            distinct += len(ids)
            assert abs(logprob - their_logprobs(TINY, [*question, *ids])[len(question) - 1 :].sum()) < 1e-3
        assert row["choice"] == row["options"][int(np.argmax(row["choice_logprobs"]))]
    assert len(out) == len(rows)
    assert decoded <= 1.1 * distinct
    vocabulary.close()


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
def test_other_architectures_choose_alike_in_any_batch_too(family, tmp_path, process):
    """Also those whose state cannot be truncated, which compute a question again for each option."""
    random = np.random.default_rng(0)
    shots = random.integers(5, 200, 80).tolist()
    parts = [(0, 3), (0, 70), (80, 40), (80, 64), (80, 100), (40, 10)]
    rows = [
        {"ids": shots[:shared] + random.integers(5, 200, own).tolist(), "options": [" a", "b c d e f", "the water"]}
        for shared, own in parts
    ]
    schema = pa.schema([("ids", pa.list_(pa.int32())), ASKED.field("options")])

    def logprobs(name: str, rows: Seq[dict[str, Any]], **settings: Any) -> list[list[float]]:
        path = HERE / f"{family}.gguf"
        out, _ = choose(tmp_path / name, process, rows, path, schema, max_sequence_tokens=256, **settings)
        return [row["choice_logprobs"] for row in out]

    together = logprobs("a", rows, slots=16)
    assert logprobs("b", rows[::-1], slots=3, n_ubatch=128)[::-1] == together
    assert [logprobs("c", [row], slots=1)[0] for row in rows] == together
