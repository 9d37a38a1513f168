"""A model of lm-evaluation-harness that computes GGUF files with this project's Score and Generate.

    python -m tools.lm_eval run --model llama_batch --model_args path=/models/my.gguf --tasks arc_easy,gsm8k

That is lm_eval's own command line, with one model more; it needs the extra `eval`. What a model of the harness has to
do: github.com/EleutherAI/lm-evaluation-harness, lm_eval/api/model.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from operators.engine.backend.loading import load_model
from operators.generate import Generate
from operators.prompts.template_process import shared_process
from operators.score import Score
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings, StoreSettings
from operators.settings.layers import AUTO
from operators.settings.runtime import EngineSettings
from pipeline.api import Batch, ChunkEnd, ConfigError, InputError, ListInbox, Operator, Rejects, Runtime
from pipeline.api.meter import StageMeter
from pipeline.api.runtime import Resources, RunContext

BATCH = 1024
"""Requests that are computed together; what they begin with in common is computed once."""
DEFAULT_MAX_LENGTH = 2048
IDS = pa.list_(pa.int32())
PLAIN = SamplingSettings(top_k=0, top_p=1.0, min_p=0.0, per_row=["max_tokens", "stop", "temperature"])
"""Nothing but what a task asks for: the harness' `hf` model has no truncation by itself either."""
PER_ROW = {"top_k": pa.int64(), "top_p": pa.float64(), "min_p": pa.float64()}
"""Sampling values that a task may give, beside those that every request has."""
HANDLED = {"do_sample", "until", "max_gen_toks", "temperature"}
Tokens = list[int]


@register_model("llama_batch")
class LlamaBatch(TemplateLM):
    """A GGUF file as a model of lm-evaluation-harness.

    Args:
        path: the GGUF file; of a split model the first part.
        max_length: tokens of a request at most; what is longer loses its beginning. None: 2048, or what the model was
            trained for if that is less.
        gpu_layers: layers to compute on GPUs: a number, all, or auto: as many as fit.
        batch_size, max_batch_size, device: given by the harness and not needed.
        flash_attention, kv_type, runtime: keys of the config group `runtime`, for example slots=32. Their defaults here
            are exact; flash_attention=True,kv_type=f16 takes half the memory and differs in the second decimal.

    Raises:
        InputError: there is no such model.
        ConfigError: a key cannot work, or the model has neither a BOS nor an EOS.
    """

    def __init__(
        self,
        path: str,
        max_length: int | None = None,
        gpu_layers: int | str = AUTO,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        flash_attention: bool = False,
        kv_type: str = "f32",
        **runtime: Any,
    ) -> None:
        super().__init__()
        room = EngineSettings(
            max_sequence_tokens=max_length or DEFAULT_MAX_LENGTH,
            flash_attention=flash_attention,
            kv_type=kv_type,
            **runtime,
        )
        self._settings = ModelSettings(path=path, gpu_layers=gpu_layers, room=room)
        self._resources = Resources()
        with_model = self._runtime()
        self._model = load_model(with_model, self._settings)
        self.max_length: int = max_length or min(DEFAULT_MAX_LENGTH, self._model.n_ctx_train)
        self._engine = replace(room, max_sequence_tokens=self.max_length)
        if not (self._model.bos_token or self._model.eos_token):
            raise ConfigError(f"{path} names neither a BOS nor an EOS, one of which has to come before the first token")

    @property
    def eot_token_id(self) -> int:
        return self._id_of(self._model.eos_token or self._model.bos_token)

    @property
    def prefix_token_id(self) -> int:
        return self._id_of(self._model.bos_token or self._model.eos_token)

    @property
    def tokenizer_name(self) -> str:
        return self._model.fingerprint()

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> Tokens:
        """Tokenize; `add_special_tokens` puts a BOS first. None: where the model wants one and the text has none."""
        model = self._model
        ids: Tokens = model.tokenize([string.encode()], special=True)[0].tolist()
        if model.add_bos:
            ids = ids[1:]
        has_bos = bool(model.bos_token) and string.startswith(model.bos_token)
        wanted = model.add_bos and not has_bos if add_special_tokens is None else add_special_tokens
        return [self.prefix_token_id, *ids] if wanted else ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self._model.chat_template if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation. Raises ValueError if the model has no chat template, or the task begins
        the answer."""
        if self._model.chat_template is None or not add_generation_prompt:
            raise ValueError(
                "the model has no chat template"
                if self._model.chat_template is None
                else "a task that begins the answer (gen_prefix) cannot be combined with a chat template here"
            )
        special = {"bos_token": self._model.bos_token, "eos_token": self._model.eos_token}
        values = {"messages": chat_history, "add_generation_prompt": True, **special}
        proof = {**values, "messages": [{"role": "user", "content": "x"}]}
        (text,) = shared_process(self._runtime(), self._model.chat_template, None, proof).render_all([values])
        if isinstance(text, Exception):
            raise text
        return text

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows = [(i, window) for i, request in enumerate(requests) for window in self._windows(request.args[0])]
        pairs = [(None, before, text) for _, (before, text) in windows]
        totals = [0.0] * len(requests)
        for (i, _), (logprob, _) in zip(windows, self._loglikelihood_tokens(pairs, disable_tqdm), strict=True):
            totals[i] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        answers = []
        for some in _batches(requests, "generate_until", disable_tqdm):
            rows = [self._generation(*request.args) for request in some]
            fields = {"prompt_ids": IDS, "max_tokens": pa.int64(), "stop": pa.list_(pa.string())}
            schema = pa.schema({**fields, "temperature": pa.float64(), **PER_ROW})
            sampling = SamplingSettings(**{**vars(PLAIN), "per_row": [*PLAIN.per_row, *PER_ROW]})
            op = Generate(self._settings, sampling, DecodeSettings(), self._engine, StoreSettings(enabled=False))
            texts = [row["completion"] for row in self._computed(op, rows, schema)]
            for request, text in zip(some, texts, strict=True):
                self.cache_hook.add_partial("generate_until", request.args, text)
            answers += texts
        return answers

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str] | None, Tokens, Tokens]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        scores = []
        for some in _batches(requests, "loglikelihood", disable_tqdm):
            rows = []
            for _, before, text in some:
                if len(text) >= self.max_length:
                    raise InputError(f"a continuation has {len(text)} tokens, and max_length is {self.max_length}")
                rows.append({"before": before[max(0, len(before) + len(text) - self.max_length) :], "text": text})
            op = Score(
                self._settings,
                self._engine,
                text_column="text",
                given_column="before",
                store=StoreSettings(enabled=False),
            )
            scored = self._computed(op, rows, pa.schema({"before": IDS, "text": IDS}))
            answers = [(row["logprob_sum"], row["is_greedy"]) for row in scored]
            for (key, _, _), answer in zip(some, answers, strict=True):
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, answer)
            scores += answers
        return scores

    def _windows(self, text: str) -> Iterable[tuple[Tokens, Tokens]]:
        ids, first = self.tok_encode(text), self.prefix_token_id
        windows = get_rolling_token_windows(ids, first, max_seq_len=self.max_length - 1, context_len=1)
        return map(make_disjoint_window, windows)

    def _generation(self, prompt: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row for a request: its prompt, and the sampling values that its task asks for."""
        values = normalize_gen_kwargs(dict(kwargs))
        if unknown := sorted(values.keys() - HANDLED - PER_ROW.keys()):
            raise ConfigError(f"generation_kwargs has '{unknown[0]}'; known are {', '.join([*HANDLED, *PER_ROW])}")
        longest = min(values["max_gen_toks"], self.max_length - 1)
        return {
            "prompt_ids": self.tok_encode(prompt)[-(self.max_length - longest) :],
            "max_tokens": longest,
            "stop": [text for text in values["until"] if text],
            "temperature": values.get("temperature", 1.0) if values["do_sample"] else 0.0,
            **{key: values.get(key) for key in PER_ROW},
        }

    def _computed(self, op: Operator, rows: Sequence[dict[str, Any]], schema: pa.Schema) -> list[dict[str, Any]]:
        """Run `op` on `rows`; return its rows in their order. Raises InputError if it rejects one."""
        numbered = pa.schema([pa.field("row", pa.int64(), nullable=False), *schema])
        data = pa.RecordBatch.from_pylist([{"row": i, **row} for i, row in enumerate(rows)], schema=numbered)
        op.plan(data.schema)
        runtime = self._runtime()
        by_row: dict[int, dict[str, Any]] = {}
        try:
            op.open(runtime)
            for item in op.run(_SleepingInbox([Batch(0, data), ChunkEnd(0, len(rows))])):
                if isinstance(item, Rejects):
                    raise InputError(f"a request cannot be computed: {item.rows[0].reason}")
                if isinstance(item, Batch):
                    by_row |= {row["row"]: row for row in item.data.to_pylist()}
        finally:
            op.close()
            runtime.context.resources.close()
        return [by_row[i] for i in range(len(rows))]

    def _runtime(self) -> Runtime:
        """Return the services of a run that writes nothing."""
        context = RunContext(Path(), self._resources, lambda name, schema: _NoTable())
        return Runtime(context, "lm_eval", 0, StageMeter("lm_eval"))

    def _id_of(self, special: str) -> int:
        return int(self._model.tokenize([special.encode()], special=True)[0][-1])


class _SleepingInbox(ListInbox):
    """A list whose reader sleeps while the engine computes, instead of asking again."""

    def __init__(self, items: Iterable[Batch | ChunkEnd]) -> None:
        super().__init__(items)
        self._woken = threading.Event()

    def wait(self, *, idle: bool = True, for_items: bool = True, timeout_s: float | None = None) -> None:
        if self.exhausted or not for_items:
            self._woken.wait(timeout_s)
            self._woken.clear()

    def wake(self) -> None:
        self._woken.set()


class _NoTable:
    def append(self, *values: object) -> None:
        """Forget a row."""

    def extend(self, columns: Sequence[Sequence[object]]) -> None:
        """Forget rows."""


def _batches(requests: Sequence[Any], title: str, disable_tqdm: bool) -> Iterator[Sequence[Any]]:
    with tqdm(total=len(requests), desc=title, disable=disable_tqdm) as bar:
        for start in range(0, len(requests), BATCH):
            some = requests[start : start + BATCH]
            yield some
            bar.update(len(some))


if __name__ == "__main__":
    cli_evaluate()
