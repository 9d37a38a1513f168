"""runtime.kv_type: one type for keys and one for values; what llama.cpp cannot do is refused before it is asked, and a
row's bits are its own wherever nothing else is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operators.engine.backend.attention import Attention
from operators.generation.wiring import check_room
from operators.llama.header import read_header
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.long_rows import KV_TYPES
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from pipeline.config.fingerprint import flat
from tests.operators.llama.gguf_files import header_alone
from tests.operators.llama.test_decoding import WARM, complete, compute
from tests.sets import often, often_cases
from tools.models.make_model import write_model
from tools.models.vocabularies import builtin_vocabulary

pytestmark = pytest.mark.slow("decodes with several types of KV cache")

TINY = ModelSettings(path=str(PROJECT / "models/tiny/tiny-q8_0.gguf"))
FAMILIES = Path(__file__).parents[2] / "families"
BOTH: list[Any] = [{"k": "q8_0", "v": "f16"}, {"k": "f16", "v": "q8_0"}, "q8_0"]


def fingerprint(kv_type: object) -> dict[str, object]:
    return dict(flat("runtime", EngineSettings(kv_type=kv_type)))


def test_one_type_for_both_is_the_text_whichever_way_it_is_given():
    """So that a run which was begun with the text goes on."""
    assert fingerprint("q8_0") == fingerprint({"k": "q8_0", "v": "q8_0"})
    assert fingerprint("q8_0")["runtime.kv_type"] == "q8_0"
    assert fingerprint({"k": "q8_0"}) == fingerprint({"v": "f16", "k": "q8_0"}) != fingerprint("q8_0")
    assert EngineSettings(kv_type={"v": "q8_0"}).of_bits != EngineSettings(kv_type={"k": "q8_0"}).of_bits


@pytest.mark.parametrize("given", ["q9", {"k": "q8_0", "w": "f16"}, {"k": None}, ["f16", "f16"], None])
def test_what_is_no_type_is_refused_with_those_there_are(given):
    with pytest.raises(ConfigError, match=r"runtime\.kv_type=.*f16, f32, bf16, q8_0.*\{k: q8_0, v: f16\}"):
        EngineSettings(kv_type=given)


def test_quantised_values_need_flash_attention_which_no_calibration_may_then_switch_off():
    with pytest.raises(ConfigError, match=r"runtime\.flash_attention.*runtime\.kv_type=\{k: q8_0, v: f16\}"):
        EngineSettings(kv_type="q8_0", flash_attention=False)
    assert EngineSettings(kv_type={"k": "q8_0"}, flash_attention=False).kv_types == ("q8_0", "f16")
    left_open = EngineSettings(kv_type="q8_0", flash_attention=None)  # as the fingerprint of an earlier run has it
    assert (left_open.flash_attention, left_open.open_keys()) == (None, [])
    assert left_open.with_defaults().flash_attention is True


@pytest.mark.parametrize(
    ("model", "kv_type", "says"),
    [
        (
            "llama",
            {"k": "q8_0"},
            r"q8_0 \(k\) stores blocks of 32 numbers, and its heads have 16; use f16, bf16 or f32",
        ),
        ("deepseek2", {"k": "q8_0"}, "deepseek2 keeps keys and values as one; name one"),
    ],
)
def test_what_llama_cpp_cannot_keep_is_refused_before_it_is_loaded(model, kv_type, says):
    with pytest.raises(ConfigError, match=says):
        check_room(ModelSettings(path=str(FAMILIES / f"{model}.gguf")), EngineSettings(kv_type=kv_type))


def test_a_model_without_flash_attention_has_no_quantised_values(tmp_path):
    heads = {"attention.key_length": 32, "attention.value_length": 32}
    file = header_alone(tmp_path / "grok.gguf", "grok", builtin_vocabulary().values, **heads)
    attention = read_header(file).attention
    with pytest.raises(ConfigError, match=r"no flash attention for grok.*\{k: q8_0, v: f16\}"):
        attention.check("grok", EngineSettings(kv_type="q8_0"))
    Attention("grok", no_flash=True).check("grok", EngineSettings(kv_type={"k": "q8_0"}))


@pytest.mark.parametrize("kv_type", often([*KV_TYPES, *BOTH[:2]], "f16", "q8_0", BOTH[0]), ids=str)
def test_llama_cpp_takes_each_type_and_computes_nearly_the_same(kv_type):
    model = LlamaModel(TINY)
    logits = []
    for kind in ("f32", kv_type):
        decoder, _ = model.lease(EngineSettings(slots=2, threads=1, max_sequence_tokens=256, kv_type=kind))
        logits.append(compute(decoder, np.arange(60, dtype=np.int32))[0].copy())
    model.close()
    wrong = np.abs(logits[0] - logits[1]).max()
    assert wrong < 2
    # With flash attention llama.cpp makes F16 of F32 before it computes.
    assert (wrong == 0) == (kv_type in ("f32", "f16"))


MIXED, THE_OTHER_WAY, Q8_0 = ({"kv_type": kv_type} for kv_type in BOTH)
WAYS = [MIXED, THE_OTHER_WAY, Q8_0, {"kv_type": "f32"}, MIXED | {"flash_attention": False}]
SHAPES = [("tiny-256", "f32"), ("tiny-llama", "q8_0"), ("tiny-qwen3moe", "q8_0")]
"""Heads of 64 numbers are turned before they are rounded, by matrices in F32; heads of 32 are not."""


@pytest.mark.parametrize("how", often(WAYS, THE_OTHER_WAY, WAYS[-1]), ids=str)
@pytest.mark.parametrize(("shape", "file_type"), often_cases(SHAPES, "tiny-256"))
def test_logits_are_the_same_to_the_bit_in_any_company(shape, file_type, how, tmp_path):
    model = LlamaModel(ModelSettings(path=str(write_model(tmp_path / "m.gguf", shape=shape, file_type=file_type).path)))
    assert model.doubt(EngineSettings(**how)) is None
    random = np.random.default_rng(0)
    prompts = [random.integers(0, 255, n).astype(np.int32) for n in (5, 63, 64, 100, 129, 300, 513)]
    prompts += [np.concatenate([prompts[5], random.integers(0, 255, n).astype(np.int32)]) for n in (2, 70)]
    shuffled = random.permutation(len(prompts)).tolist()
    expected = complete(model, prompts, range(len(prompts)), WARM, 6, slots=9, threads=1, **how)
    for slots, threads in ((3, 1), (1, 2)):
        assert complete(model, prompts, shuffled, WARM, 6, slots=slots, threads=threads, **how) == expected
    model.close()


def test_types_that_no_test_has_compared_are_a_doubt_and_attention_is_said_to_be_theirs(caplog):
    model = LlamaModel(TINY)
    assert model.doubt(EngineSettings()) is None
    assert model.doubt(EngineSettings(kv_type="q4_0")) == "runtime.kv_type={k: q4_0, v: q4_0} is not tested"
    caplog.set_level("INFO")
    model.lease(EngineSettings(slots=2, max_sequence_tokens=256, kv_type={"k": "q8_0"}))
    said = "attention is llama.cpp's with runtime.kv_type={'k': 'q8_0', 'v': 'f16'}" in caplog.text
    assert said == (model.packed.version > 0)
    model.close()
