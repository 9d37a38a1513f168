"""Models of families with recurrent layers, for tests of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from operators.llama.model import LlamaModel
from tests.families.drafted import DRAFTED, opened
from tests.families.test_families import HERE
from tests.sets import often
from tools.models.make_model import quantize_file


@pytest.fixture(scope="module")
def quantised(tmp_path_factory) -> Callable[[str], Path]:
    """A function: the file of a family in Q8_0."""
    folder = tmp_path_factory.mktemp("quantised")

    def made(family: str) -> Path:
        path: Path = folder / f"{family}.gguf"
        if not path.exists():
            quantize_file(HERE / f"{family}.gguf", path, "q8_0")
        return path

    return made


@pytest.fixture(scope="module", params=often(DRAFTED, "lfm2", "qwen3_5"))
def model(request, quantised) -> Iterator[LlamaModel]:
    loaded = opened(quantised(request.param))
    yield loaded
    loaded.close()
