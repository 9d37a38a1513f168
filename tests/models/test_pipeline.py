"""The shipped models: their file, its tokenizer and the F32 one made of it; and through the pipeline, by tokens as
llama-cpp-python has them, or by blocks."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pyarrow.parquet as pq
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llama_cpp import Llama

from models.tiny.card import filled
from models.tiny.dequantise import dequantise
from models.tiny.score import accuracy
from models.tiny.tasks import check, generate
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("runs jobs with the models that ship")

ROOT = Path(__file__).parents[2]
AUTOREGRESSIVE, BLOCKS = (ROOT / f"models/tiny/{name}-q8_0.gguf" for name in ("tiny", "tiny-sdar"))
JOB = ("job=quickstart", "chunk_rows=20", "progress=none", "report=false", "output.completion_ids=true")
BY_BLOCKS = ("model=tiny_sdar", "decode=block_diffusion", "data.limit=42")
MASK = 3


def run(directory: Path, *overrides: str) -> Path:
    """Run the quickstart job; returns its data directory."""
    assert main([*JOB, f"output_dir={directory}", *overrides]) == 0
    return directory / "data"


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("run") / "out", *BY_BLOCKS)


def test_the_card_takes_the_table_of_a_run(expected):
    card = filled("before\n<!-- accuracy -->\nold\n<!-- end -->\nafter\n", expected)
    assert card.startswith("before\n<!-- accuracy -->\n| family | right | of | accuracy |\n")
    assert card.endswith("%|\n<!-- end -->\nafter\n".replace("%|", "% |"))
    assert "old" not in card
    with pytest.raises(ValueError, match="no place for the table"):
        filled("nothing", expected)


def denoise_passes(data: Path) -> float:
    totals: dict[str, float] = json.loads(pq.read_table(data.parent / "metrics/run.parquet")["totals"][0].as_py())
    return totals["denoise_passes"]


def test_it_answers_and_never_with_a_mask(expected):
    table = accuracy(expected)
    right, rows = table.filter(table["family"] == "all").select("right", "rows").row(0)
    assert rows == 42
    assert right > 30
    ids = pq.read_table(expected)["completion_ids"].to_pylist()
    assert MASK not in {token for row in ids for token in row}


@pytest.mark.laws
def test_a_model_that_has_not_learnt_it_answers_nothing(tmp_path):
    table = accuracy(run(tmp_path / "out", *BY_BLOCKS, f"model.path={AUTOREGRESSIVE}", "sampling.max_tokens=32"))
    assert table.filter(table["family"] == "all")["right"].item() < 5


@pytest.mark.laws
def test_where_it_is_sure_it_takes_several_tokens_at_once(expected, tmp_path):
    data = run(tmp_path / "out", *BY_BLOCKS, "decode.remasking=low_confidence_dynamic")
    assert denoise_passes(data) < 0.6 * denoise_passes(expected)


def test_it_has_the_tokenizer_and_the_template_of_the_other_one():
    one, other = ({k: v.contents() for k, v in gguf.GGUFReader(p).fields.items()} for p in (AUTOREGRESSIVE, BLOCKS))
    assert {k for k in one if one[k] != other[k]} <= {"general.name", "general.description"}
    assert one.keys() == other.keys()


SHIPPED = Path(__file__).parents[2] / "models" / "tiny" / "tiny-q8_0.gguf"
LARGEST_BYTES = 8_000_000
ODD_TEXTS = (
    "Hello, wörld! 日本 123 4567",
    "  two  spaces\n\n\nlines\t tab",
    "don't I'LL we've 's",
    "a\r\nb \n c",
    "🙂🙂 ok…",
    " ",
    "12.50€ (x)",
)


def load(path, **options):
    """The model on the CPU, with F32 attention cache."""
    return Llama(str(path), n_ctx=512, n_threads=1, verbose=False, type_k=0, type_v=0, **options)


@pytest.fixture(scope="module")
def fields():
    return {name: field.contents() for name, field in gguf.GGUFReader(SHIPPED).fields.items()}


@pytest.fixture(scope="module")
def vocabulary():
    """The shipped tokenizer alone."""
    model = Llama(str(SHIPPED), vocab_only=True, verbose=False)
    yield model
    model.close()


@pytest.fixture(scope="module")
def f32(tmp_path_factory):
    path = tmp_path_factory.mktemp("f32") / "tiny-f32.gguf"
    dequantise(SHIPPED, path)
    return path


def rendered(fields, prompt, system=None):
    """A user message through the chat template in the file."""
    template = ImmutableSandboxedEnvironment().from_string(fields["tokenizer.chat_template"])
    messages = [{"role": "system", "content": system}] if system else []
    return template.render(messages=[*messages, {"role": "user", "content": prompt}], add_generation_prompt=True)


def test_the_file_is_small():
    assert SHIPPED.stat().st_size < LARGEST_BYTES


def test_metadata(fields):
    tokens = fields["tokenizer.ggml.tokens"]
    assert fields["general.architecture"] == "qwen3"
    assert fields["general.license"] == "mit"
    assert fields["qwen3.context_length"] >= 512
    assert 2000 <= len(tokens) <= 4096
    assert tokens[fields["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    assert tokens[fields["tokenizer.ggml.mask_token_id"]] == "<|MASK|>"
    assert fields["tokenizer.ggml.add_bos_token"] is False


def test_the_chat_template(fields):
    assert rendered(fields, "Hi", "Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(fields, "Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_tokens_give_the_text_back_and_digits_stand_alone(vocabulary):
    for text in (*ODD_TEXTS, *(e.prompt for e in generate(3, 140, "heldout"))):
        ids = vocabulary.tokenize(text.encode(), add_bos=False, special=True)
        assert b"".join(vocabulary.detokenize([i], special=True) for i in ids) == text.encode()
    assert len(vocabulary.tokenize(b"1234567890", add_bos=False)) == 10


def test_llama_cpp_and_tokenizers_agree(fields, vocabulary):
    pytest.importorskip("tokenizers", reason="needs the train extra")
    from models.tiny.chat import CHAT_TEMPLATE, chat_prompt, tokenizer_of

    reference = tokenizer_of(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])
    texts = [chat_prompt(e.prompt) + e.completion for e in generate(3, 1200, "heldout")]
    for text in (*texts, *ODD_TEXTS):
        assert vocabulary.tokenize(text.encode(), add_bos=False, special=True) == reference.encode(text).ids, text
    assert fields["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert chat_prompt("Hi", "Be brief.") == rendered(fields, "Hi", "Be brief.")


def test_the_f32_file_holds_the_dequantised_weights(f32, fields):
    shipped = {tensor.name: tensor for tensor in gguf.GGUFReader(SHIPPED).tensors}
    reader = gguf.GGUFReader(f32)
    assert {tensor.name for tensor in reader.tensors} == set(shipped)
    for tensor in reader.tensors:
        assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
        source = shipped[tensor.name]
        np.testing.assert_array_equal(tensor.data, gguf.quants.dequantize(source.data, source.tensor_type))
    changed = {"general.file_type"}
    for name, value in fields.items():
        if not name.startswith("GGUF.") and name not in changed:
            assert reader.fields[name].contents() == value, name


@pytest.mark.parametrize("quantised", [True, False])
def test_the_model_answers_and_stops(quantised, f32, fields):
    model = load(SHIPPED if quantised else f32)
    chosen = [e for e in generate(21, 70, "heldout") if e.family in ("extract", "label", "lists")]
    right = 0
    for example in chosen:
        reply = model.create_completion(rendered(fields, example.prompt), temperature=0.0, max_tokens=160)["choices"][0]
        right += reply["finish_reason"] == "stop" and check(example.family, example.prompt, reply["text"], example.meta)
    model.close()
    assert right >= 0.85 * len(chosen)
