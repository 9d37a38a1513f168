"""Vocabularies for GGUF models with random weights: a small built-in one, or a copy from another file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from gguf import GGUFReader, GGUFValueType, GGUFWriter, Keys, ReaderField, TokenType

END_OF_TEXT, IM_START, IM_END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END, MASK)
AROUND_IMAGES = ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>")
"""What Idefics3 and SmolVLM have around an image of one tile."""
_LINE_END = "Ċ"

CHATML_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

# Each word brings the merges that build it up letter by letter, with the space before it. They make texts of the
# built-in vocabulary a mix of one-byte and longer tokens, as texts of real vocabularies are.
_MERGED_WORDS = (
    "the of and to in is you that it he was for on are as with his they I at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who its now find long down day did get come made may part"
)


class MetaValue(NamedTuple):
    """A key of a GGUF file's metadata. Strings may be raw bytes; only arrays have an `item_type`."""

    key: str
    value: object
    value_type: GGUFValueType
    item_type: GGUFValueType | None = None


class Vocabulary(NamedTuple):
    """All `tokenizer.*` metadata of a model, and its number of tokens."""

    n_tokens: int
    values: tuple[MetaValue, ...]

    def with_tokens(self, special: Sequence[str], *, lines: bool = False) -> Vocabulary:
        """Return it with special tokens at its end, before them one for two ends of lines with `lines`, which llama.cpp
        looks up for SmolVLM. Those that it has are left out; a vocabulary without merges (SentencePiece) has that of
        lines."""
        tokens = next(cast("list[str | bytes]", v.value) for v in self.values if v.key == Keys.Tokenizer.LIST)
        known = {token.encode() if isinstance(token, str) else token for token in tokens}
        added = [token for token in special if token.encode() not in known]
        double = [_LINE_END * 2] if lines and (_LINE_END * 2).encode() not in known else []
        more: dict[str, list[Any]] = {
            Keys.Tokenizer.LIST: double + added,
            Keys.Tokenizer.TOKEN_TYPE: [int(TokenType.NORMAL)] * len(double) + [int(TokenType.CONTROL)] * len(added),
            Keys.Tokenizer.MERGES: [f"{_LINE_END} {_LINE_END}"] * len(double),
            Keys.Tokenizer.SCORES: [0.0] * len(double + added),
        }
        values = (
            v._replace(value=[*cast("list[Any]", v.value), *more[v.key]]) if v.key in more else v for v in self.values
        )
        return Vocabulary(self.n_tokens + len(double + added), tuple(values))

    def add_to(self, writer: GGUFWriter) -> None:
        for meta in self.values:
            writer.add_key_value(*meta)


def builtin_vocabulary() -> Vocabulary:
    """Return a byte-level BPE vocabulary: 256 bytes, some English merges, ChatML's special tokens and a mask token.

    Every UTF-8 text tokenizes and comes back unchanged. Ids of the bytes are 0 to 255 in GPT-2's order; special
    tokens come last. A turn ends with `<|im_end|>` (EOS); no BOS is added to a text.
    """
    alphabet = _byte_alphabet()
    merges = _merges(alphabet[ord(" ")])
    tokens = [*alphabet, *(pair.replace(" ", "") for pair in merges), *SPECIAL_TOKENS]
    types = [TokenType.NORMAL] * (len(tokens) - len(SPECIAL_TOKENS)) + [TokenType.CONTROL] * len(SPECIAL_TOKENS)
    keys = Keys.Tokenizer
    ids = {"EOS_ID": IM_END, "EOT_ID": IM_END, "BOS_ID": END_OF_TEXT, "PAD_ID": END_OF_TEXT, "MASK_ID": MASK}
    values = [
        _string(keys.MODEL, "gpt2"),
        _string(keys.PRE, "qwen2"),
        MetaValue(keys.LIST, tokens, GGUFValueType.ARRAY, GGUFValueType.STRING),
        MetaValue(keys.TOKEN_TYPE, [int(kind) for kind in types], GGUFValueType.ARRAY, GGUFValueType.INT32),
        MetaValue(keys.MERGES, merges, GGUFValueType.ARRAY, GGUFValueType.STRING),
        *(MetaValue(getattr(keys, name), tokens.index(token), GGUFValueType.UINT32) for name, token in ids.items()),
        MetaValue(keys.ADD_BOS, False, GGUFValueType.BOOL),
        _string(keys.CHAT_TEMPLATE, CHATML_TEMPLATE),
    ]
    return Vocabulary(len(tokens), tuple(values))


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the `tokenizer.*` metadata of the GGUF file at `path`; adds a ChatML template if there is no template.

    Takes some seconds for 150,000 tokens. Raises ValueError if the file is missing, is no GGUF or holds no tokens.
    """
    if not path.is_file():
        raise ValueError(f"vocabulary file {path} does not exist")
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError) as error:  # IndexError: shorter than a GGUF header
        raise ValueError(f"vocabulary file {path} is not a readable GGUF file: {error}") from error
    fields = {key: field for key, field in reader.fields.items() if key.startswith("tokenizer.")}
    if Keys.Tokenizer.LIST not in fields:
        raise ValueError(f"vocabulary file {path} has no {Keys.Tokenizer.LIST}: it defines no tokens")
    values = [_copy(field) for field in fields.values() if len(field.data)]
    if Keys.Tokenizer.CHAT_TEMPLATE not in fields:
        values.append(_string(Keys.Tokenizer.CHAT_TEMPLATE, CHATML_TEMPLATE))
    return Vocabulary(n_tokens=len(fields[Keys.Tokenizer.LIST].data), values=tuple(values))


def _copy(field: ReaderField) -> MetaValue:
    kind, item = field.types[0], field.types[-1]
    if item is not GGUFValueType.STRING:
        return MetaValue(field.name, field.contents(), kind, item if kind is GGUFValueType.ARRAY else None)
    texts = [field.parts[i].tobytes() for i in field.data]  # bytes: a token need not be valid UTF-8
    return MetaValue(field.name, texts, kind, item) if kind is GGUFValueType.ARRAY else _string(field.name, texts[0])


def _string(key: str, value: str | bytes) -> MetaValue:
    return MetaValue(key, value, GGUFValueType.STRING)


def _byte_alphabet() -> list[str]:
    """Return the character for each byte (GPT-2's `bytes_to_unicode`): printable Latin-1 characters stand for
    themselves, the other bytes for the characters from 256 up."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_ins = iter(range(256, 512))
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _merges(space: str) -> list[str]:
    """Return merge rules "left right" by rank; each joins two tokens that exist by then."""
    rules: dict[str, None] = {}  # an ordered set: words share their beginnings
    for word in _MERGED_WORDS.split():
        spelling = space + word
        rules.update((f"{spelling[:end]} {spelling[end]}", None) for end in range(1, len(spelling)))
    return list(rules)
