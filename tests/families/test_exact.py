"""The logits of every family: as transformers has them, the same to the bit in any company (what runtime.deterministic
promises) and with drafts, and of one row only."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys

from operators.engine.sampling.params import SamplingParams
from operators.llama.header import read_header
from operators.llama.kernels import CLASSES, is_arm
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.model import KERNELS
from operators.settings.runtime import EngineSettings
from tests.families.make import LOGITS_OF, PROMPTS
from tests.families.test_families import FAMILIES, HERE, OFTEN, REFERENCES
from tests.operators.engine.speculative.drafters import Oracle, speculative
from tests.operators.llama.test_cuts import logits_of
from tests.operators.llama.test_decoding import COUNTS, LENGTHS, check_canary, complete, texts
from tests.sets import often
from tools.models.make_model import quantize_file

pytestmark = pytest.mark.slow("decodes with a model of each family")

SHUFFLED = np.random.default_rng(1).permutation(len(LENGTHS)).tolist()
AS_TRANSFORMERS: dict[str, Any] = {"kv_type": "f32", "flash_attention": False}
GELU_BY_TABLE = ("gemma3",)
"""llama.cpp looks GELU up in a table of F16. With that in transformers, too, the largest difference falls from 0.0042
to 0.0010."""
LOOSE = {"qwen3_5": 1e-3}
"""Its gated delta net adds up a state by another algorithm. Transformers in float32 is 2.4e-4 from itself in float64,
and 1.9e-4 from itself token by token."""


def tolerance(family: str) -> float:
    """Of a logit, in F32 with an exact cache."""
    return 0.013 if family in GELU_BY_TABLE else LOOSE.get(family, 1e-4)


@pytest.fixture(scope="module", params=often(FAMILIES, *OFTEN))
def family(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family) -> Iterator[LlamaModel]:
    loaded = LlamaModel(ModelSettings(path=str(HERE / f"{family}.gguf")))
    yield loaded
    loaded.close()


def check_bits(model: LlamaModel) -> None:
    assert model.doubt(EngineSettings()) is None
    params, prompts = SamplingParams(temperature=1.0, top_k=40), texts(len(LENGTHS))
    expected = complete(model, prompts, range(len(LENGTHS)), params, slots=16, threads=2)
    for slots in (3, 1):
        assert complete(model, prompts, SHUFFLED, params, slots=slots, threads=1) == expected
    if not read_header(model._path).recurrent:  # others have no drafts
        drafts = partial(speculative, Oracle(expected[0], 0.8), adaptive=False, draft_tokens=5)
        assert complete(model, prompts, SHUFFLED, params, slots=3, make=drafts) == expected
        assert COUNTS["drafted_tokens"] > COUNTS["accepted_tokens"] > 20


def test_logits_are_the_same_to_the_bit_in_any_company(model):
    check_bits(model)


@pytest.mark.laws
def test_a_canary_does_not_depend_on_slots_and_leaves_them_empty(model):
    check_canary(model)


@pytest.mark.laws
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_bf16_are_the_same_to_the_bit_in_any_company(family, tmp_path):
    quantize_file(HERE / f"{family}.gguf", tmp_path / "model.gguf", "bf16")
    model = LlamaModel(ModelSettings(path=str(tmp_path / "model.gguf")))
    check_bits(model)
    model.close()


@pytest.mark.laws
@pytest.mark.parametrize("file_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_our_kernels_are_the_same_to_the_bit_in_any_company(family, file_type, tmp_path):
    """And as near to those of the weights before they were rounded as llama.cpp's are."""
    path = tmp_path / "model.gguf"
    quantize_file(HERE / f"{family}.gguf", path, file_type)
    model, theirs = (LlamaModel(ModelSettings(path=str(path), kernels=each)) for each in KERNELS)
    assert model.packed.tensors > 0
    check_bits(model)
    prompt = np.frombuffer(PROMPTS[LOGITS_OF].encode(), np.uint8).astype(np.int32)
    exact = LlamaModel(ModelSettings(path=str(HERE / f"{family}.gguf")))
    found, expected, true = (logits(each, [prompt], 1, slots=1)[0][0] for each in (model, theirs, exact))
    assert 0 < np.abs(found - expected).std() < np.abs(expected - true).std()
    assert np.abs(found - true).std() < 1.5 * np.abs(expected - true).std()
    exact.close()
    model.close()
    theirs.close()


@pytest.mark.skipif(is_arm(), reason="no row is alone on arm64")
@pytest.mark.parametrize(("family", "alone"), [("llama", True), ("qwen3moe", False), ("rwkv7", False)])
def test_a_row_is_alone_only_where_no_matrix_is_in_floating_point(family, alone, tmp_path):
    """Routers of experts and small matrices of RWKV stay so in quantised files; the CPU decides if bits show it."""
    quantize_file(HERE / f"{family}.gguf", tmp_path / "model.gguf", "q8_0")
    model = LlamaModel(ModelSettings(path=str(tmp_path / "model.gguf"), kernels="llama.cpp"))
    decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=256))
    assert (decoder.lone_tokens > 0) == alone
    give_back()
    model.close()


EXACT = ("gemma3", "gpt-oss", "llama", "olmo2", "phi3", "qwen2", "qwen3", "qwen3moe")
"""Families whose every product and attention is ours. Others have recurrent layers or latent attention."""


def padded(source: Path, target: Path) -> None:
    """Copy a model with a vocabulary of a multiple of 16 tokens, as those of most models are: the last matrix is ours,
    too."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    n_vocab = len(reader.fields[Keys.Tokenizer.LIST].data)
    more = -n_vocab % 16
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            value, kinds = field.contents(), field.types
            if kinds[0] is GGUFValueType.ARRAY and len(value) == n_vocab:
                value += [f"<unused {i}>" for i in range(more)] if isinstance(value[0], str) else [value[-1]] * more
            writer.add_key_value(field.name, value, kinds[0], kinds[1] if kinds[0] is GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        more_rows = more if tensor.shape[-1] == n_vocab else 0
        rows = np.pad(tensor.data, [(0, more_rows), *[(0, 0)] * (tensor.data.ndim - 1)])
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if each == "gemma3" else pytest.mark.laws) for each in FAMILIES]
)
def test_a_family_is_exact_where_all_of_it_is_ours_and_keeps_its_bits_without_rules(family, tmp_path):
    padded(HERE / f"{family}.gguf", tmp_path / "padded.gguf")
    quantize_file(tmp_path / "padded.gguf", tmp_path / "model.gguf", "q8_0")
    model = LlamaModel(ModelSettings(path=str(tmp_path / "model.gguf")))
    decoder, give_back = model.lease(EngineSettings(slots=2, max_sequence_tokens=1024))
    assert decoder.shape.exact == (family in EXACT and model.packed.version > 0)
    if decoder.shape.exact:
        ids = np.random.default_rng(0).integers(0, 256, 600).astype(np.int32)
        whole = logits_of(decoder, ids, [600])
        for cuts in ([599, 1], [1, 1, 598], [37] * 16 + [8], [63, 537]):
            assert logits_of(decoder, ids, cuts) == whole, cuts
    give_back()
    check_bits(model)
    model.close()


def logits(model: LlamaModel, prompts: Seq[np.ndarray], max_tokens: int, **settings: Any) -> list[np.ndarray]:
    """The logits at every token of each greedy completion: float32[max_tokens, n_vocab]."""
    _, bits = complete(model, prompts, range(len(prompts)), SamplingParams(), max_tokens, **settings, **AS_TRANSFORMERS)
    return [
        np.stack([np.frombuffer(bits[row, step], np.float32) for step in range(max_tokens)])
        for row in range(len(prompts))
    ]


@pytest.mark.laws
def test_logits_are_those_of_transformers(family, model):
    prompt = np.frombuffer(PROMPTS[LOGITS_OF].encode(), np.uint8).astype(np.int32)
    found = logits(model, [prompt], 1, slots=1)[0][0]
    assert np.abs(found - REFERENCES[family]["logits"]).max() < tolerance(family)


@pytest.mark.laws
def test_a_row_sees_nothing_of_another_in_a_unified_cache(family, model):
    """Rows that differ in a secret alone, in a cache too small for them: each has the logits that it has alone."""
    random = np.random.default_rng(2)
    head, tail = random.integers(0, 256, 40), random.integers(0, 256, 8)
    prompts = [np.concatenate([head, random.integers(0, 256, 12), tail]).astype(np.int32) for _ in range(10)]
    tight: dict[str, Any] = {"kv": "unified", "deterministic": False, "n_ctx": 256, "admission": "optimistic"}
    alone = [logits(model, [prompt], 8, slots=1)[0] for prompt in prompts]
    nearest = min(float(np.abs(a[0] - b[0]).max()) for i, a in enumerate(alone) for b in alone[:i])
    assert nearest > 30 * tolerance(family), "a secret that changes nothing would not be seen in another row"
    found = logits(model, prompts, 8, slots=4, **tight)
    assert COUNTS["preempted"] > 0
    for ours, theirs in zip(found, alone, strict=True):
        assert np.abs(ours - theirs).max() < tolerance(family)


def test_every_class_has_a_family_here():
    """So that what is promised for a class is tested."""
    found = {CLASSES[str(read_header(HERE / f"{family}.gguf").architecture)] for family in FAMILIES}
    assert found | {"encoder"} == set(CLASSES.values())  # tests/families/test_encoders.py
