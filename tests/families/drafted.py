"""Families with recurrent layers, for tests of drafts: which of them llama.cpp keeps states for."""

from __future__ import annotations

from pathlib import Path

from operators.llama.contexts.recurrent import no_rollback
from operators.llama.header import read_header
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from tests.families.test_families import FAMILIES, HERE

RECURRENT = tuple(name for name in FAMILIES if read_header(HERE / f"{name}.gguf").recurrent)
DRAFTED = tuple(name for name in RECURRENT if no_rollback(read_header(HERE / f"{name}.gguf").architecture) is None)
APART = ("lfm2", "qwen3_5")
"""Families that multiply some matrices with the tokens of each row apart."""


def opened(path: Path) -> LlamaModel:
    return LlamaModel(ModelSettings(path=str(path)))
