"""The chat format (ChatML) and the tokenizer of the small model; needs `tokenizers` to build or load one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"
SPECIALS = (END_OF_TEXT, START, END, MASK)
VOCAB_SIZE = 2048

# llama.cpp knows this pre-tokenizer as "qwen2": digits stand alone, so that arithmetic can be learnt.
PRE_TOKENIZER = "qwen2"
PRE_TOKENIZER_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def chat_prompt(prompt: str, system: str | None = None) -> str:
    """The text that the model completes: what CHAT_TEMPLATE renders for one user message."""
    head = f"{START}system\n{system}{END}\n" if system else ""
    return f"{head}{START}user\n{prompt}{END}\n{START}assistant\n"


def byte_level(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, set up to work on bytes."""
    split = pre_tokenizers.Split(Regex(PRE_TOKENIZER_REGEX), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE tokenizer of VOCAB_SIZE tokens, the special ones first."""
    tokenizer = byte_level(Tokenizer(models.BPE()))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json."""
    return Tokenizer.from_file(str(path))


def tokenizer_of(vocabulary: list[str], merges: list[str]) -> Tokenizer:
    """The tokenizer with the tokens, in the order of their ids, and the merges that a GGUF file lists."""
    ids = {token: index for index, token in enumerate(vocabulary)}
    pairs = [(first, second) for first, second in (merge.split(" ") for merge in merges)]
    tokenizer = byte_level(Tokenizer(models.BPE(ids, pairs)))
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer
