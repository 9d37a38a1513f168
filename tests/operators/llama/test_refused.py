"""Settings that llama.cpp would ignore, or end the process for, are refused before a model is loaded."""

from __future__ import annotations

import pytest

from operators.llama.model import LlamaModel
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

REFUSED = {
    "an option that the loader ignores": (
        ["+model.options.n_gpu=1"],
        ["model.options has 'n_gpu'", "operators.llama.model:load", "it knows none"],
    ),
    "an option that the fake ignores": (
        ["model=fake", "+model.options.x=1"],
        ["has 'x'", "operators.engine.backend.fake:load"],
    ),
    "layers on a GPU": (["model.gpu_layers=5"], ["model.gpu_layers=5", "python -m pipeline build backend=cuda"]),
    "a thousand threads": (
        ["runtime.threads=999"],
        ["runtime.threads=999", "this machine has", "runtime.threads=null"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_exit_2_with_the_key_and_the_remedy(tmp_path, name, monkeypatch, capsys):
    monkeypatch.setattr("llama_cpp.llama_supports_gpu_offload", lambda: False)
    monkeypatch.delattr(LlamaModel, "__init__")
    settings, parts = REFUSED[name]
    assert main(["job=quickstart", *settings, f"output_dir={tmp_path / 'out'}", "progress=none"]) == ExitCode.CONFIG
    error = capsys.readouterr().err
    assert all(part in error for part in parts), error
