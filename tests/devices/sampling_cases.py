"""What a process with fake devices does to show what sampling copies from them (`FakeGpus.call`)."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from operators.engine.loop.engine import Engine
from operators.engine.loop.thread import EngineThread
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.llama.model import LlamaModel
from operators.settings import DecodeSettings, ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError
from pipeline.api.meter import StageMeter
from tests.devices.fake_gpu import Counts
from tests.operators.engine.fixtures import worker_on

WARM: dict[str, Any] = {"temperature": 1.0, "top_k": 40, "top_p": 0.9}
ROWS, TOKENS = 8, 12


def copied() -> int:
    """Return the bytes that this process has had from its devices."""
    numbers = np.fromfile(f"{os.environ['FAKE_GPU_LOG']}.{os.getpid()}", np.int64).reshape(-1, len(fields(Counts)))
    return int(numbers[:, [each.name for each in fields(Counts)].index("down")].sum())


def completed(path: str, gpu_layers: int, ways: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Complete the same prompts with each of `ways`, values of `runtime`, in engines of one model. Return of each the
    tokens, the bytes that were copied, and the counts of its calls; or why it was refused."""
    model = LlamaModel(ModelSettings(path=path, gpu_layers=gpu_layers))
    prompts = [np.arange(3 + i, dtype=np.int32) * (7 + i) % 300 for i in range(ROWS)]
    answers: list[dict[str, Any]] = []
    for way in ways:
        params = [SamplingParams(), SamplingParams(**WARM), SamplingParams(**(WARM | way.pop("sampling", {})))]
        settings = EngineSettings(slots=4, threads=1, max_sequence_tokens=64, **way)
        try:
            decoder, give_back = model.lease(settings)
        except ConfigError as error:
            answers.append({"refused": str(error)})
            continue
        worker = worker_on(decoder, settings, lambda each: Autoregressive(DecodeSettings(), each, model))
        client = Engine(worker, EngineThread()).connect(StageMeter("node"), 1, 100, lambda: None, steps=False)
        client.submit([Sequence(i, text, params[i % 3], i, max_tokens=TOKENS) for i, text in enumerate(prompts)])
        client.end()
        before = copied()
        while worker.scheduler.runnable:
            worker.step()
        counts = [asdict(each) for each in worker.strategy.own_counts()]
        tokens = {str(row.handle): row.tokens for row in client.collect()}
        answers.append({"tokens": tokens, "copied": copied() - before, "counts": counts})
        give_back()
    return answers
