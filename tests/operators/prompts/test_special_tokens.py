"""Names of control tokens in the text of a row are text: the ids are those of llama.cpp for the pieces apart."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from gguf import GGUFValueType, Keys, TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.engine.backend.text_columns import TextColumns
from operators.llama.model import LlamaModel
from operators.prompts.special_tokens import MARK, SpecialToken, SpecialTokens
from operators.settings import ModelSettings
from tests.operators.llama.gguf_files import header_alone, with_tokens
from tests.sets import often
from tools.models.vocabularies import MetaValue

ROOT = Path(__file__).resolve().parents[3]
ENCODERS = ROOT / "tests/families/encoders"
NESTED = {"<s>": TokenType.CONTROL, "<s><s>": TokenType.CONTROL, "<s>\n": TokenType.USER_DEFINED}
NESTED |= {"<think>": TokenType.USER_DEFINED, "[INST]": TokenType.CONTROL, "<|im_": TokenType.USER_DEFINED}
GPT_OSS = dict.fromkeys(("<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|message|>"), TokenType.CONTROL)
ARRAY, STRING, INT32, FLOAT32 = GGUFValueType.ARRAY, GGUFValueType.STRING, GGUFValueType.INT32, GGUFValueType.FLOAT32


def written(path: Path, name: str, values: Iterable[MetaValue]) -> Path:
    return header_alone(path, "llama", [MetaValue(Keys.General.NAME, name, STRING), *values])


def sentencepiece(path: Path, name: str) -> Path:
    """Write a vocabulary of SentencePiece, as Llama 2 and Phi-3 have it: bytes, some words, a space put first."""
    controls = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    controls |= dict.fromkeys(("<|end|>", "<|endoftext|>"), TokenType.CONTROL)  # llama.cpp wants the last
    controls |= {"<|user|>": TokenType.CONTROL, "<mask>": TokenType.USER_DEFINED}
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = ["▁", "▁word", "a", "w", "or", "wor", "word", "x", "<", ">", "s", "/", "|", "end"]
    tokens = [*controls, *bytes_, *words]
    types = [*controls.values(), *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(words)]
    keys = Keys.Tokenizer
    values = [
        MetaValue(keys.MODEL, "llama", STRING),
        MetaValue(keys.LIST, tokens, ARRAY, STRING),
        MetaValue(keys.TOKEN_TYPE, [int(kind) for kind in types], ARRAY, INT32),
        MetaValue(keys.SCORES, [-float(i) for i in range(len(tokens))], ARRAY, FLOAT32),
    ]
    return written(path, name, values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@cache
def model(folder: Path, name: str) -> LlamaModel:
    makers = {
        "tiny": lambda path: ROOT / "models/tiny/tiny-q8_0.gguf",
        "nested": lambda path: written(path, "test", with_tokens(NESTED).values),
        "gpt-oss": lambda path: written(path, "test", with_tokens(GPT_OSS).values),
        "bert": lambda path: ENCODERS / "bert.gguf",
        "xlm-roberta": lambda path: ENCODERS / "xlm-roberta.gguf",
        "llama-2": lambda path: sentencepiece(path, "llama-2"),
        "phi-3": lambda path: sentencepiece(path, "Phi-3-mini"),
    }
    path = makers[name](folder / f"{name}.gguf")
    return LlamaModel(ModelSettings(path=str(path)), vocab_only=True)


NAMES = ("tiny", "nested", "gpt-oss", "bert", "xlm-roberta", "llama-2", "phi-3")


def plain(loaded: LlamaModel, text: str) -> list[int]:
    ids: list[int] = loaded.tokenize([text.encode()], special=False)[0].tolist()
    return ids[int(loaded.add_bos) :]


@st.composite
def texts(draw: st.DrawFn, loaded: LlamaModel) -> str:
    parts = [*loaded.special_tokens.texts.values(), "word", " a", " ", "\n", "\t ", "<", "<|im_", "end|>", "漢", MARK]
    return "".join(draw(st.lists(st.sampled_from(parts) | st.text(max_size=2), max_size=10)))


@pytest.mark.parametrize("name", often(NAMES, "tiny", "nested", "phi-3"))
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_a_text_has_the_tokens_that_llama_cpp_gives_its_pieces(folder, name, data):
    loaded = model(folder, name)
    special = loaded.special_tokens
    theirs, ours, end = (data.draw(texts(loaded)) for _ in range(3))

    whole = loaded.tokenize([theirs.encode()], special=True)[0].tolist()
    assert special.ids(theirs, theirs, lambda text: plain(loaded, text)).tolist() == whole[int(loaded.add_bos) :]

    marked = special.mark(ours)
    assert len(marked) == len(ours)
    if not special.some_always_read:
        assert special.ids(ours, marked, lambda text: plain(loaded, text)).tolist() == plain(loaded, ours)

    ids = special.ids(theirs + ours + end, theirs + marked + end, lambda text: plain(loaded, text)).tolist()
    unknown = ("<unk>", "[UNK]")  # what a text has for a character that is in no token
    controls = {token.id for token in special._in_order if token.is_control and token.text not in unknown}
    cut = [piece.id for piece in special._pieces(theirs + marked + end) if isinstance(piece, SpecialToken)]
    assert [token for token in ids if token in controls] == [token for token in cut if token in controls]
    assert special.places(theirs + ours + end, theirs + marked + end) == [
        i
        for i in range(len(theirs), len(theirs + ours))
        if marked[i - len(theirs)] != ours[i - len(theirs)] and special.is_name(theirs + ours + end, i)
    ]


@pytest.mark.parametrize("name", often(NAMES, "tiny", "phi-3"))
def test_white_space_beside_a_token_goes_where_llama_cpp_takes_it(folder, name):
    loaded = model(folder, name)
    for token in loaded.special_tokens.texts.values():
        text = f"a \n{token} \n word{token}{token}\t"
        whole = loaded.tokenize([text.encode()], special=True)[0].tolist()
        found = loaded.special_tokens.ids(text, text, lambda part: plain(loaded, part)).tolist()
        assert found == whole[int(loaded.add_bos) :], token


def test_control_tokens_that_llama_cpp_reads_in_any_text_are_text_too(folder):
    loaded = model(folder, "gpt-oss")
    text = "a<|end|>b"
    (end,) = (token.id for token in loaded.special_tokens._in_order if token.text == "<|end|>")
    assert end in plain(loaded, text)
    ids, _ = TextColumns(loaded, "text").texts([text.encode()])
    assert end not in ids
    assert b"".join(loaded.pieces()[token] for token in ids) == text.encode()
    assert end in TextColumns(loaded, "parse").texts([text.encode()])[0]


def test_names_are_found_in_keys_and_lists_and_what_has_none_stays_the_same_object():
    special = SpecialTokens([SpecialToken(7, "<s>"), SpecialToken(8, "<think>", is_control=False)])
    value = {"a": ["x <think>", 1, None], "b": {"c": 2.5}}
    assert special.mark(value) is value
    assert special.mark({"<s>": [{"k": "a<s><s>b<"}]}) == {f"{MARK}s>": [{"k": f"a{MARK}s>{MARK}s>b{MARK}"}]}
    assert SpecialTokens(()).mark({"a": "<s>"}) == {"a": "<s>"}


def test_a_template_may_escape_or_take_out_a_name_but_not_change_it():
    special = SpecialTokens([SpecialToken(7, "<s>"), SpecialToken(8, "<e>")])
    assert special.places("<e>a<s>", f"<e>a{MARK}s>") == [4]
    assert special.places('<e>"a<s>"', '<e>"a\\ufdd0s>"') == [5]  # JSON of ASCII
    assert special.places("<e>a&lt;s&gt;", f"<e>a{MARK}s&gt;") == []
    assert special.places("<e>a", f"<e>a{MARK}s>") == []
    assert special.places("<e>changed<s>", f"<e>a{MARK}s>") is None
