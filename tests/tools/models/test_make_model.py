"""Random-weight models: llama.cpp loads and decodes them, and the file depends on its arguments alone; a model with
layers that write nothing predicts what the one it was made of does."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from operators.llama.header import read_header
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from tests.sets import often, often_cases
from tools.models import make_model
from tools.models.deepen import main as deepen
from tools.models.make_model import FILE_TYPES, K_QUANTS, UNIFORM_TYPES, main, write_model
from tools.models.shapes import SHAPES
from tools.models.vocabularies import SPECIAL_TOKENS, builtin_vocabulary, read_vocabulary

pytestmark = pytest.mark.slow("makes models of several types")

TEXT = "Grüße, 世界! 12 + 3 = 15 🙂👩‍🚀\n\tend, of   the line\r\n"


@contextmanager
def opened(path: Path) -> Iterator[LlamaModel]:
    model = LlamaModel(ModelSettings(path=str(path)))
    try:
        yield model
    finally:
        model.close()


def encode(model: LlamaModel, text: str) -> list[int]:
    tokens: list[int] = model.tokenize([text.encode()], special=True)[0].tolist()
    return tokens


def greedy(model: LlamaModel, prompts: list[str], n_new: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids [n_new, rows] of all prompts decoded together, and the last step's logits [rows, n_vocab]."""
    slots = range(len(prompts))
    context, give_back = model.lease(EngineSettings(slots=len(prompts), max_sequence_tokens=256, threads=1))
    rows, batch = [model.tokenize([prompt.encode()], special=True)[0] for prompt in prompts], context.batch
    batch.clear()
    batch.add_spans(rows, [0 for _ in slots], slots, [1 for _ in slots])
    chosen = []
    for step in range(n_new):
        logits = context.decode().copy()
        chosen.append(logits.argmax(axis=1))
        batch.clear()
        batch.add_rows(chosen[-1].tolist(), [len(row) + step for row in rows], slots)
    give_back()
    return np.array(chosen), logits


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf").path


CASES = [
    *(("tiny", name) for name in UNIFORM_TYPES),
    *(("tiny-256", name) for name in K_QUANTS),
    *(
        (shape, name)
        for shape in ("tiny-llama", "tiny-qwen2", "tiny-qwen3moe", "tiny-lfm2")
        for name in ("f32", "q8_0")
    ),
    ("llama-5m", "q4_k_m"),
]


@pytest.mark.parametrize("case", often(CASES, ("tiny", "q8_0"), ("tiny-256", "q4_k_m")), ids="-".join)
def test_llama_decodes_several_sequences_to_varied_tokens(tmp_path: Path, case: tuple[str, str]) -> None:
    shape, file_type = case
    summary = write_model(tmp_path / "model.gguf", shape=shape, file_type=file_type)
    with opened(summary.path) as loaded:
        tokens, logits = greedy(loaded, ["Hello world", "How many people?", "🙂"], n_new=16)
        assert llama_cpp.llama_model_n_params(loaded._model) == summary.n_params
    assert np.isfinite(logits).all()
    assert 2 < logits.std() < 4
    assert len(np.unique(tokens)) > 16  # of 48: neither one token repeated nor one text for all prompts


@pytest.mark.parametrize(("shape", "file_type"), often_cases([("tiny", "q8_0"), ("tiny-256", "q4_k_m")], "tiny"))
def test_bytes_depend_on_the_seed_alone(tmp_path: Path, shape: str, file_type: str) -> None:
    seeds = {"a": 0, "b": 0, "c": 1}
    paths = {name: tmp_path / name for name in seeds}
    for name, seed in seeds.items():
        write_model(paths[name], shape=shape, file_type=file_type, seed=seed)
    assert paths["a"].read_bytes() == paths["b"].read_bytes() != paths["c"].read_bytes()
    assert sorted(tmp_path.iterdir()) == sorted(paths.values()), "nothing temporary is left"


def test_weights_are_the_same_in_every_type(tmp_path: Path, tiny: Path) -> None:
    half = GGUFReader(write_model(tmp_path / "f16.gguf", file_type="f16").path).tensors
    for coarse, exact in zip(half, GGUFReader(tiny).tensors, strict=True):
        np.testing.assert_allclose(coarse.data, exact.data, rtol=1e-3, atol=1e-6)


def test_weights_do_not_depend_on_how_many_are_drawn_at_once(tmp_path: Path, tiny: Path, monkeypatch) -> None:
    monkeypatch.setattr(make_model, "_DRAWN_AT_ONCE", 130)
    assert write_model(tmp_path / "again.gguf").path.read_bytes() == tiny.read_bytes()


def test_builtin_vocabulary_gives_texts_back(tiny: Path) -> None:
    every_character = "".join(chr(i) for i in [*range(1, 0x250), 0x3B1, 0x4E16, 0xFFFD, 0x1F600])
    with opened(tiny) as loaded:
        for text in (TEXT, every_character):
            assert b"".join(loaded.pieces()[token] for token in encode(loaded, text)).decode() == text
        assert len(encode(loaded, " the people of water")) == 4
        first = loaded.n_vocab - len(SPECIAL_TOKENS)
        assert encode(loaded, "".join(SPECIAL_TOKENS)) == list(range(first, loaded.n_vocab))


def test_metadata_names_the_special_tokens_and_the_template(tiny: Path) -> None:
    fields = {name: field.contents() for name, field in GGUFReader(tiny).fields.items()}
    tokens = fields["tokenizer.ggml.tokens"]
    named = {role: tokens[fields[f"tokenizer.ggml.{role}_token_id"]] for role in ("eos", "eot", "bos", "mask")}
    assert named == {"eos": "<|im_end|>", "eot": "<|im_end|>", "bos": "<|endoftext|>", "mask": "<|MASK|>"}
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["general.architecture"] == "qwen3"
    template = ImmutableSandboxedEnvironment().from_string(fields["tokenizer.chat_template"])
    said = template.render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert said == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_vocabulary_of_another_file_is_copied(tmp_path: Path, tiny: Path) -> None:
    assert read_vocabulary(tiny) == _with_bytes(builtin_vocabulary())
    copy = write_model(tmp_path / "copy.gguf", vocab=tiny)
    assert copy.path.read_bytes() == tiny.read_bytes()


def test_vocabulary_copy_keeps_scores_and_odd_tokens_and_adds_a_template(tmp_path: Path) -> None:
    source = tmp_path / "vocab.gguf"
    writer = GGUFWriter(source, "llama")
    writer.add_string("tokenizer.ggml.model", "llama")
    writer.add_key_value("tokenizer.ggml.tokens", [b"a", b"\xff"], GGUFValueType.ARRAY, GGUFValueType.STRING)
    writer.add_array("tokenizer.ggml.scores", [-1.5, 0.25])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    vocabulary = read_vocabulary(source)
    assert vocabulary.n_tokens == 2
    values = {meta.key: meta.value for meta in vocabulary.values}
    assert values["tokenizer.ggml.tokens"] == [b"a", b"\xff"]
    assert values["tokenizer.ggml.scores"] == [-1.5, 0.25]
    assert "im_start" in str(values["tokenizer.chat_template"])


def _with_bytes(vocabulary: Any) -> Any:
    """The vocabulary as a copy has it: strings as bytes."""

    def encoded(value: object) -> object:
        if isinstance(value, list):
            return [encoded(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    return vocabulary._replace(values=tuple(meta._replace(value=encoded(meta.value)) for meta in vocabulary.values))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--shape", "huge"], ["'huge'", *SHAPES]),
        (["--type", "q9"], ["'q9'", *FILE_TYPES]),
        (["--type", "q4_k_m"], ["q4_k_m", "256", "n_embd=64", "tiny-256"]),
        (["--n_embed", "64"], ["--n_embed"]),
        (["--n_layer", "two"], ["n_layer", "int", "two"]),
        (["--n_layer", "0"], ["n_layer=0", "positive"]),
        (["--n_head", "3"], ["n_head=3", "n_head_kv=2"]),
        (["--head_dim", "33"], ["head_dim=33", "even"]),
        (["--arch", "rwkv"], ["'rwkv'", "llama", "qwen3"]),
        (["--arch", "qwen2"], ["n_head * head_dim", "128"]),
        (["--arch", "qwen3moe"], ["qwen3moe needs n_expert above 1, found 1"]),
        (["--n_expert", "4"], ["qwen3 needs n_expert 1", "found 4"]),
        (["--arch", "lfm2"], ["lfm2 needs attention_every above 1, found 1"]),
        (["--attention_every", "2"], ["qwen3 needs attention_every 1: every layer", "found 2"]),
        (["--shape", "tiny-qwen3moe", "--n_expert_used", "9"], ["n_expert_used=9", "n_expert=8"]),
        (["--vocab", "missing.gguf"], ["missing.gguf", "does not exist"]),
        (["--seed", "-1"], ["seed=-1"]),
    ],
)
def test_command_line_refuses_nonsense_and_says_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: list[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path / "model.gguf"), *arguments])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert [part for part in told if part not in message] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model, but longer than a header would be", b"GGUF\3\0\0\0\xff"])
def test_a_vocabulary_file_that_is_no_gguf_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"vocab\.gguf"):
        write_model(tmp_path / "model.gguf", vocab=path)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond `size_bytes`: what a full disk looks like."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("shape", "file_type"), often_cases([("tiny", "f32"), ("tiny-256", "q4_k_m")], "tiny"))
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, shape: str, file_type: str) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(b"the old model")
    with file_size_limit(100_000):
        assert main(["--out", str(target), "--shape", shape, "--type", file_type]) == 1
    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(target, b"the old model")]


def test_command_line_writes_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "model.gguf"
    assert main(["--out", str(target), "--type", "Q8_0", "--n_layer", "1", "--no-tied_embeddings"]) == 0
    said = capsys.readouterr().out
    assert "1 layers" in said
    assert "q8_0 (9 Q8_0, 5 F32)" in said
    assert {tensor.name for tensor in GGUFReader(target).tensors} >= {"output.weight", "blk.0.attn_q.weight"}


PROMPTS = ["The quick brown fox jumps over the lazy dog.", "12 + 3 ="]
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"


@pytest.mark.parametrize("kind", often(["q8_0", "f32"], "q8_0"))
def test_the_logits_are_the_same_without_noise_and_near_with_some(tmp_path, kind):
    source = TINY
    if kind == "f32":
        source = tmp_path / "source.gguf"
        write_model(source, file_type=kind)
    deep, noisy = tmp_path / "deep.gguf", tmp_path / "noisy.gguf"
    assert deepen(["--of", str(source), "--layers", "3", "--n_ff", "1024", "--out", str(deep)]) == 0
    assert deepen(["--of", str(source), "--layers", "3", "--noise", "0.5", "--out", str(noisy)]) == 0
    assert (read_header(deep).attention.kv_values or 0) > (read_header(source).attention.kv_values or 0)
    assert deep.stat().st_size > source.stat().st_size
    found = []
    for path in (source, deep, noisy):
        with opened(path) as model:
            found.append(greedy(model, PROMPTS, 4))
    (tokens, logits), (same, near), (_, far) = found
    assert np.array_equal(tokens, same)
    assert np.abs(logits - near).max() < 1e-3
    assert np.abs(logits - far).max() > 1e-2


@pytest.mark.laws
def test_a_width_that_is_less_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        deepen(["--of", str(TINY), "--layers", "1", "--n_ff", "64", "--out", str(tmp_path / "out.gguf")])
    assert "n_ff=64 is less than the 640 of" in capsys.readouterr().err
