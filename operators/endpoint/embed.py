"""Embed for a server: asks it for the vectors of texts."""

from __future__ import annotations

import base64
import hashlib
import json
import queue
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from operators.endpoint.api.vectors import read_vectors
from operators.endpoint.connection.request import Request
from operators.endpoint.metrics import COST, usage_lines
from operators.endpoint.server import server_of
from operators.generation.store import StoredCompletion
from operators.generation.wiring import shared_store
from operators.rows.row_condition import Where, passed_by
from operators.settings import ModelSettings, StoreSettings
from operators.settings.endpoint import EndpointSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import Cancelled, ConfigError
from pipeline.api.protocols import BaseOperator, Runtime
from pipeline.api.records import Batch, Output, add_columns, require_column

Vector = npt.NDArray[np.float32]
TEXTS = 16
"""Texts of a request."""
_TICK_S = 0.1


class EndpointEmbed(BaseOperator):
    """Adds the vectors of texts from a server; operators.embed.Embed has the arguments. The length of the vectors is
    the server's, so the column has lists of any length."""

    title = "Embed"

    def __init__(
        self,
        model: ModelSettings,
        runtime: EngineSettings,
        text_column: str = "text",
        pooling: str | None = None,
        normalize: bool = True,
        truncate: bool = False,
        as_: str | None = None,
        where: str | None = None,
    ) -> None:
        assert isinstance(model, EndpointSettings)
        if model.api != "embeddings":
            raise ConfigError(f"model.api={model.api} gives no vectors; Embed needs model.api=embeddings")
        for key, given in (("pooling", pooling is not None), ("truncate", truncate)):
            if given:
                raise ConfigError(f"{key} is up to the server; leave it out, or give its own keys in model.extra_body")
        self._model = model
        self._text = text_column
        self._normalize = normalize
        self._where = Where(where)
        self._name = f"{as_}_embedding" if as_ else "embedding"

    def plan(self, schema: pa.Schema) -> pa.Schema:
        require_column(schema, self._text, [pa.string()])
        self._where.plan(schema)
        self._schema = add_columns(schema, pa.field(self._name, pa.list_(pa.float32())))
        return self._schema

    def open(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = shared_store(runtime, StoreSettings())
        server = server_of(runtime, self._model)
        self._endpoint, self._settings = server.endpoint, server.settings
        self._tokens = 0
        runtime.totals(self._totals)
        self._base = hashlib.blake2b(
            json.dumps([server.identity, self._model.extra_body], sort_keys=True).encode(), digest_size=16
        )

    def process(self, batch: Batch) -> Iterable[Output]:
        batch, others = self._where.split(batch)
        if others.num_rows:
            yield passed_by(others, others.data.schema.names, self._schema)
        texts = batch.data.column(self._text).to_pylist()
        asked = [i for i, text in enumerate(texts) if text]
        found = self._vectors([texts[i] for i in asked])
        made: dict[int, Vector] = {}
        failed = {i: f"column '{self._text}' is {'null' if texts[i] is None else 'empty'}" for i in range(len(texts))}
        for i, vector in zip(asked, found, strict=True):
            if isinstance(vector, str):
                failed[i] = vector
            else:
                made[i] = self._scaled(vector)
        failed = {i: why for i, why in failed.items() if i not in made}
        if failed:
            yield batch.reject(list(failed), list(failed.values()))
        if made:
            kept = batch.data.take(pa.array(list(made), pa.int64()))
            column = pa.array(list(made.values()), pa.list_(pa.float32()))
            yield batch.with_data(pa.record_batch([*kept.columns, column], schema=self._schema))

    def report(self, directory: Path) -> Iterable[str]:
        return usage_lines(self._runtime.node, directory)

    def _scaled(self, vector: Vector) -> Vector:
        length = float(np.linalg.norm(vector.astype(np.float64))) if self._normalize else 1.0
        scaled: Vector = (vector / (length or 1.0)).astype(np.float32)
        return scaled

    def _vectors(self, texts: Sequence[str]) -> list[Vector | str]:
        """Return the vector of each text, from the store or from the server; or why there is none."""
        keys = [self._key(text) for text in texts]
        found: dict[bytes, Vector | str] = {}
        if self._store is not None:
            stored = self._store.find(keys)
            found |= {key: np.frombuffer(base64.b64decode(one.text), np.float32) for key, one in stored.items()}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        items = list(new.items())
        answered: queue.SimpleQueue[tuple[list[bytes], Request]] = queue.SimpleQueue()
        requests = [self._request(items[at : at + TEXTS], answered) for at in range(0, len(items), TEXTS)]
        self._endpoint.submit(requests)
        left = len(requests)
        try:
            while left:
                of, request = self._next(answered)
                left -= 1
                if request.error is None:
                    vectors = [np.asarray(vector, np.float32) for vector in request.result[0]]
                    self._count(request.result[1])
                    self._keep(of, vectors)
                    found |= dict(zip(of, vectors, strict=True))
                elif len(of) > 1:  # one text may be at fault
                    left += len(of)
                    self._endpoint.submit([self._request([(key, new[key])], answered) for key in of])
                else:
                    found[of[0]] = request.error
        except BaseException:
            self._endpoint.leave(self)
            raise
        return [found[key] for key in keys]

    def _request(
        self, group: list[tuple[bytes, str]], answered: queue.SimpleQueue[tuple[list[bytes], Request]]
    ) -> Request:
        keys, texts = [key for key, _ in group], [text for _, text in group]
        body = {"model": self._settings.name, "input": texts, **(self._settings.extra_body or {})}
        sent = json.dumps({key: value for key, value in body.items() if value is not None}, ensure_ascii=False).encode()
        return Request(
            self,
            "/embeddings",
            sent,
            partial(_read, n=len(texts)),
            lambda request: answered.put((keys, request)),
            tokens=len(sent) // 3,
            secrets=lambda: texts,
        )

    def _next(self, answered: queue.SimpleQueue[tuple[list[bytes], Request]]) -> tuple[list[bytes], Request]:
        while True:
            try:
                found = answered.get(timeout=_TICK_S)
            except queue.Empty:
                if self._runtime.cancelled:
                    raise Cancelled from None
                continue
            self._endpoint.check()
            return found

    def _keep(self, keys: Sequence[bytes], vectors: Sequence[Vector]) -> None:
        if self._store is not None:
            run = self._runtime.run_id
            texts = (base64.b64encode(vector.tobytes()).decode() for vector in vectors)
            self._store.put(
                {key: StoredCompletion([], text, "stop", None, 0, run) for key, text in zip(keys, texts, strict=True)}
            )

    def _count(self, tokens: int) -> None:
        self._runtime.meter.tokens_in += tokens
        self._tokens += tokens
        self._runtime.meter.cost = self._settings.cost(self._tokens, 0, 0)

    def _totals(self) -> dict[str, float]:
        node, cost = self._runtime.node, self._settings.cost(self._tokens, 0, 0)
        found = {f"{node}/paid_prompt_tokens": float(self._tokens)}
        return found if self._settings.price_per_million is None else found | {f"{node}/{COST}": cost, COST: cost}

    def _key(self, text: str) -> bytes:
        digest = self._base.copy()
        digest.update(text.encode())
        return digest.digest()


def _read(body: Any, n: int) -> tuple[list[list[float]], int]:
    """Return the vectors of `n` texts, and how many tokens they have."""
    vectors = read_vectors(body, n)
    usage = body.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return vectors, tokens if isinstance(tokens, int) else 0
