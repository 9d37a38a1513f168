"""Quantised weights of each family predict the same whether llama.cpp repacks them for its kernels or not.

Where it was compiled with AMX, its kernels give wrong texts for some shapes, and end the process for others.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from operators.llama import convert
from operators.llama import model as llama_model
from operators.llama.model import LlamaModel
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from operators.weights.divergence import Predictions

FILES = sorted(Path(__file__).parent.glob("*.gguf"))
LARGEST_KL = 0.01
"""Of correct kernels that round otherwise: 2e-3 was seen; of wrong ones 0.3 and more."""


@pytest.mark.parametrize("file_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_repacked_weights_predict_what_others_do(
    path: Path, file_type: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tmp_path / path.name
    assert convert.main([str(path), str(made), file_type]) == 0
    settings, engine = ModelSettings(path=str(made)), EngineSettings(slots=4)
    text = np.arange(5, 69, dtype=np.int32)
    with closing(LlamaModel(settings)) as usual, monkeypatch.context() as patched:
        patched.setattr(llama_model, "repacks", lambda *_, **__: False)
        with closing(LlamaModel(settings)) as plain, closing(Predictions(plain, [text], engine, tmp_path)) as theirs:
            found = theirs.compare(usual)
    assert found.mean_kl < LARGEST_KL, found
