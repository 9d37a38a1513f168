"""The files of a model and the metadata in their headers, read without the weights.

llama.cpp splits NAME.gguf into NAME-00001-of-00003.gguf and so on, and loads them by the first.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import llama_cpp

from operators.engine.backend.attention import Attention
from operators.engine.backend.interface import Head
from operators.engine.backend.limit import ModelWork
from operators.engine.backend.loading import ModelFacts, ModelSizes
from operators.llama.attention import RECURRENT, attention_of
from operators.llama.contexts.recurrent import drafts_change_bits, no_rollback, state_bytes
from operators.llama.gguf_check import check_gguf, tokens_of
from operators.llama.kernels import fits_amx
from operators.llama.library import forget_errors, initialise, last_errors
from operators.llama.limits import work_of
from operators.llama.packed import has_floats, library_path, packed_bytes
from operators.rows.content import content_id
from pipeline.api.errors import InputError

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_DIFFUSION = "is a diffusion model of a kind that is not supported (decode=block_diffusion takes models such as SDAR)"
ENCODERS = (
    *("bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "modern-bert"),
    *("neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder"),
)
"""Architectures that read texts and continue none: for Embed, Rerank and Classify."""
REFUSED = {
    "t5": "has an encoder and a decoder",
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), "only guesses tokens for another model"),
    **dict.fromkeys(("clip", "wavtokenizer-dec"), "makes or reads sounds or images, as a part of another model"),
}
"""Architectures that llama.cpp loads and that nothing here can run, and why; docs/models.md has the same."""
HEAD_TENSORS = frozenset((b"cls.weight", b"cls.output.weight"))
TOOL_USE = b"tool_use"
"""The name of the chat template for conversations with tools, as transformers has it."""
SAMPLING = "general.sampling."
POOLING = {"1": "mean", "2": "cls", "3": "last"}
"""Of llama.cpp's LLAMA_POOLING_TYPE numbers those that make a vector."""
HEADS_OF_PROBABILITIES = ("qwen3", "qwen3vl")
"""Architectures whose classifier head ends in a softmax (llama.cpp, llm_graph_context::build_pooling)."""


@dataclass(frozen=True)
class Header:
    """Facts of a GGUF file; None if it does not say. ModelFacts and ModelSizes explain the numbers."""

    architecture: str | None
    file_type: int | None
    """One of llama.cpp's LLAMA_FTYPE numbers."""
    n_ctx_train: int | None
    n_embd: int | None
    n_vocab: int = 0
    attention: Attention = field(default_factory=Attention)
    recurrent: bool = False
    fits_amx: bool = True
    """Whether llama.cpp's AMX kernels compute it, see kernels.fits_amx."""
    packed: tuple[int, int] = (0, 0)
    """Bytes of matrices, see packed.packed_bytes."""
    floats: bool = True
    """Whether a matrix is in floating point, see packed.has_floats."""
    work: ModelWork = field(default_factory=ModelWork)
    encoder: str | None = None
    outputs: int = 0
    pooling: str | None = None
    template: str | None = None
    """Its chat template."""
    tool_template: str | None = None
    """The one that it has for conversations with tools."""
    sampling: Mapping[str, str] = field(default_factory=dict)
    """Its keys general.sampling.*, without this beginning."""
    state_bytes: int = 0
    drafts_change_bits: str | None = None


def part_names(name: str) -> list[str]:
    """List the names of all parts of the model whose first part is `name`; of a model in one file just `name`. Raises
    InputError if it is a part, and not the first."""
    part = _PART.fullmatch(name)
    if part is None:
        return [name]
    names = [f"{part[1]}-{number:05}-of-{part[3]}.gguf" for number in range(1, int(part[3]) + 1)]
    if name not in names[:1]:
        raise InputError(f"{name} is a part of a split model; give the first: {part[1]}-00001-of-{part[3]}.gguf")
    return names


def parts_of(path: Path) -> list[Path]:
    """List all files of the model whose first part is `path`. Raises InputError if `path` is a part and not the first,
    or another part is missing."""
    parts = [path.with_name(name) for name in part_names(path.name)]
    for part in parts[1:]:
        if not part.is_file():
            raise InputError(f"{part} is missing: {path.name} needs all {len(parts)} parts of its model beside it")
    return parts


def content_of(path: Path) -> str:
    """Return the content id of a model, those of its parts one after the other; cached as `read_header`."""
    states = [(part, part.stat()) for part in parts_of(path)]
    return " ".join(_content_id(part, status.st_size, status.st_mtime_ns) for part, status in states)


@functools.lru_cache(maxsize=256)
def _content_id(path: Path, size: int, changed: int) -> str:
    return content_id(path)


def read_header(path: Path) -> Header:
    """Read the header of a model; cached until the size or modification time of one of its files changes. Raises
    InputError if a file of it is damaged or cut off, or it is of an architecture that llama.cpp does not know or that
    is refused here."""
    states = map(Path.stat, parts_of(path))
    return _read(path, tuple((status.st_size, status.st_mtime_ns) for status in states))


@functools.lru_cache(maxsize=64)
def _read(path: Path, states: tuple[tuple[int, int], ...]) -> Header:
    contents = [check_gguf(part) for part in parts_of(path)]
    initialise()
    forget_errors()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise InputError(f"{path} could not be loaded: {last_errors()}")
    try:
        architecture = _value(model, "general.architecture")
        n_embd = _number(model, f"{architecture}.embedding_length_out")
        if architecture in REFUSED:
            raise InputError(f"{path}: {_why(architecture, REFUSED[architecture])}; docs/models.md has a list")
        n_ctx_train = _number(model, f"{architecture}.context_length")
        has_head = any(HEAD_TENSORS & each.tensors.keys() for each in contents)
        encoder = _encoder(architecture, causal=_value(model, f"{architecture}.attention.causal"))
        recurrent = any(_value(model, f"{architecture}.{key}") is not None for key in RECURRENT)
        labels = contents[0].values.get(f"{architecture}.classifier.output_labels".encode())
        tensors = {name: tensor for each in contents for name, tensor in each.tensors.items()}
        attention = attention_of(
            architecture,
            lambda key: _value(model, f"{architecture}.{key}"),
            tensors,
            rope=llama_cpp.llama_model_rope_type(model) != llama_cpp.LLAMA_ROPE_TYPE_NONE,
        )
        if encoder is not None:
            attention = replace(attention, layer_values=None)  # it keeps no KV cache
        return Header(
            architecture,
            _number(model, "general.file_type"),
            n_ctx_train,
            _number(model, f"{architecture}.embedding_length") if n_embd is None else n_embd,
            llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model)),
            attention,
            recurrent,
            not recurrent and all(fits_amx(each.tensors) for each in contents),
            packed_bytes(tensors),
            has_floats(tensors),
            work_of(contents, architecture, attention.kv_values),
            encoder,
            ((labels and labels.n_items) or 1) if has_head else 0,
            POOLING.get(_value(model, f"{architecture}.pooling_type") or ""),
            template_in(model),
            template_in(model, TOOL_USE),
            {key.removeprefix(SAMPLING): _value(model, key) or "" for key in _keys(model) if key.startswith(SAMPLING)},
            state_bytes(tensors, lambda key: _number(model, f"{architecture}.{key}")),
            drafts_change_bits(architecture, tensors),
        )
    finally:
        llama_cpp.llama_model_free(model)


def facts_of(path: Path, fingerprint: str | None = None, refusal: str | None = None) -> ModelFacts:
    """Return the facts of the model in `path` and its other parts. `fingerprint`: None for that of the content.
    `refusal`: see `refusal_of`."""
    header = read_header(path)
    fingerprint = content_of(path) if fingerprint is None else fingerprint
    size = sum(part.stat().st_size for part in parts_of(path))
    packed = header.packed if library_path().exists() else (0, 0)
    sizes = ModelSizes(size, header.n_vocab, header.recurrent, *packed, header.state_bytes)
    return ModelFacts(
        *(fingerprint, header.n_ctx_train, header.n_embd, sizes, header.encoder, header.outputs, header.template),
        tool_template=header.tool_template,
        sampling=header.sampling,
        refusal=refusal,
        no_rollback=no_rollback(header.architecture) if header.recurrent else None,
        drafts_change_bits=header.drafts_change_bits,
        attention=header.attention,
        tokens=functools.partial(tokens_of, parts_of(path)[0]),
    )


def head_of(model: ctypes.c_void_p, header: Header) -> Head:
    """Return what is known of the classifier head of a loaded model. Between the two texts of a pair stand the tokens
    that llama-server puts there: the one that ends a text, and a separator."""
    vocab = llama_cpp.llama_model_get_vocab(model)
    labels = [llama_cpp.llama_model_cls_label(model, i) for i in range(llama_cpp.llama_model_n_cls_out(model))]
    names = (f"LABEL_{i}" if text is None else text.decode("utf-8", "replace") for i, text in enumerate(labels))
    sep_id: int = llama_cpp.llama_vocab_sep(vocab)
    eos_id: int = llama_cpp.llama_vocab_eos(vocab)
    ends = (sep_id if eos_id < 0 else eos_id,) if llama_cpp.llama_vocab_get_add_eos(vocab) else ()
    separates = (sep_id,) if llama_cpp.llama_vocab_get_add_sep(vocab) else ()
    is_probability = header.architecture in HEADS_OF_PROBABILITIES
    return Head(tuple(names), is_probability, ends + separates, template_in(model, b"rerank"))


def template_in(model: ctypes.c_void_p, name: bytes | None = None) -> str | None:
    """Return the chat template of that name, or the default one, of a loaded model; None if it has none."""
    template = llama_cpp.llama_model_chat_template(model, name)
    return template.decode("utf-8", "replace") if template else None


def _encoder(architecture: str | None, causal: str | None) -> str | None:
    """Return why the model cannot continue texts; None if it can."""
    if architecture in ENCODERS:
        return _why(architecture, "is an encoder")
    looks_ahead = "looks at what comes behind a token, as encoders and diffusion models do"
    return _why(architecture, looks_ahead) if causal == "false" else None


def _why(architecture: str | None, reason: str) -> str:
    return f"a model of the architecture {architecture} {reason}"


def _value(model: ctypes.c_void_p, key: str) -> str | None:
    text = ctypes.create_string_buffer(256)
    count = llama_cpp.llama_model_meta_val_str(model, key.encode(), text, len(text))
    return text.value.decode("utf-8", "replace") if count >= 0 else None


def _keys(model: ctypes.c_void_p) -> Iterator[str]:
    text = ctypes.create_string_buffer(256)
    for i in range(llama_cpp.llama_model_meta_count(model)):
        llama_cpp.llama_model_meta_key_by_index(model, i, text, len(text))
        yield text.value.decode("utf-8", "replace")


def _number(model: ctypes.c_void_p, key: str) -> int | None:
    text = _value(model, key)
    return int(text) if text is not None and text.isdecimal() else None
