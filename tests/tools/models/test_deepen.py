"""A model with layers that write nothing predicts what the one it was made of does."""

from __future__ import annotations

import numpy as np
import pytest

from operators.llama.header import read_header
from pipeline import PROJECT
from tests.tools.models.test_make_model import greedy, opened
from tools.models.deepen import main
from tools.models.make_model import write_model

PROMPTS = ["The quick brown fox jumps over the lazy dog.", "12 + 3 ="]
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"


@pytest.mark.parametrize("kind", ["q8_0", "f32"])
def test_the_logits_are_the_same_without_noise_and_near_with_some(tmp_path, kind):
    source = TINY
    if kind == "f32":
        source = tmp_path / "source.gguf"
        write_model(source, file_type=kind)
    deep, noisy = tmp_path / "deep.gguf", tmp_path / "noisy.gguf"
    assert main(["--of", str(source), "--layers", "3", "--n_ff", "1024", "--out", str(deep)]) == 0
    assert main(["--of", str(source), "--layers", "3", "--noise", "0.5", "--out", str(noisy)]) == 0
    assert (read_header(deep).kv_values or 0) > (read_header(source).kv_values or 0)
    assert deep.stat().st_size > source.stat().st_size
    found = []
    for path in (source, deep, noisy):
        with opened(path) as model:
            found.append(greedy(model, PROMPTS, 4))
    (tokens, logits), (same, near), (_, far) = found
    assert np.array_equal(tokens, same)
    assert np.abs(logits - near).max() < 1e-3
    assert np.abs(logits - far).max() > 1e-2


def test_a_width_that_is_less_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--of", str(TINY), "--layers", "1", "--n_ff", "64", "--out", str(tmp_path / "out.gguf")])
    assert "n_ff=64 is less than the 640 of" in capsys.readouterr().err
