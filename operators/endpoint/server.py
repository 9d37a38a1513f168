"""Server: a model's endpoint, as the nodes of a run share it: its id, its dialect, and what identifies its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from operators.endpoint.api.answers import Unusable
from operators.endpoint.api.dialects import OPENAI, dialect_of
from operators.endpoint.connection.client import Endpoint
from operators.endpoint.connection.request import Request
from operators.settings import ModelSettings
from operators.settings.endpoint import AUTO, EndpointSettings
from pipeline.api.errors import ConfigError
from pipeline.api.protocols import Runtime
from pipeline.system.redaction import clean_url

_BEYOND_S = 60.0
"""What the longest wait for a server may take beyond patience and timeout, before the run counts as stalled."""
_OF_MODEL = ("id", "owned_by", "root", "parent", "max_model_len", "meta")
"""Keys of a model's card that stay as they are when the server is started again."""


@dataclass(frozen=True)
class Server:
    """A model at a server.

    Args:
        endpoint: sends the requests.
        settings: with `name` and `dialect` as they were found.
        identity: what an answer depends on, besides the request.
    """

    endpoint: Endpoint
    settings: EndpointSettings
    identity: str


def server_of(runtime: Runtime, settings: EndpointSettings) -> Server:
    """Return the server of `settings`: connected for the first node that asks, closed with the run.

    Raises:
        ConfigError: it has no such model, or several and none is named; the key is missing or refused.
        EndpointError: it does not answer.
    """
    key = ("endpoint", repr(settings))
    return runtime.resource(key, lambda: _connected(runtime, settings), lambda made: made.endpoint.close())


def _connected(runtime: Runtime, settings: EndpointSettings) -> Server:
    endpoint = Endpoint(settings, runtime.log)
    runtime.when_stuck(endpoint.cut_off, settings.patience_s + settings.timeout_s + _BEYOND_S)
    runtime.status(endpoint.status)
    try:
        card = _card(endpoint, settings, runtime)
    except BaseException:
        endpoint.close()
        raise
    shown = clean_url(settings.urls[0])
    if settings.name is None and card is None:
        raise ConfigError(f"model.url={shown}: the server does not say which models it has; name one with model.name=")
    found = replace(settings, name=settings.name or (card or {}).get("id"))
    dialect = dialect_of(card or {}) if settings.dialect == AUTO else settings.dialect
    if dialect is None:
        dialect = OPENAI
        runtime.log.info("the server does not say what it is; model.dialect=%s is assumed", dialect)
    runtime.log.info("model %s at %s, dialect %s", found.name, shown, dialect)
    endpoint.model = found.name
    kept = {name: (card or {}).get(name) for name in _OF_MODEL}
    identity = json.dumps([found.name, dialect, kept], sort_keys=True, default=str)
    return Server(endpoint, replace(found, dialect=dialect), identity)


def _card(endpoint: Endpoint, settings: EndpointSettings, runtime: Runtime) -> Mapping[str, Any] | None:
    """Return what the server says of the model; None if it has no list of models."""
    try:
        models = endpoint.ask(Request(settings, "/models", None, _models, optional=True), lambda: runtime.cancelled)
    except Unusable as error:
        if settings.name is None:
            raise ConfigError(f"{error}; name the model with model.name=") from error
        return None
    by_id: dict[str, Mapping[str, Any]] = {model["id"]: model for model in models}
    if settings.name is None and len(by_id) == 1:
        return next(iter(by_id.values()))
    if settings.name is not None and settings.name in by_id:
        return by_id[settings.name]
    listed = ", ".join(list(by_id)[:20]) or "none"
    if settings.name is None:
        raise ConfigError(f"the server has several models; name one with model.name= ({listed})")
    aliases: list[Mapping[str, Any]] = [model for model in models if settings.name in (model.get("aliases") or [])]
    if aliases:
        return aliases[0]
    raise ConfigError(f"model.name={settings.name} is none of the server's models: {listed}")


def _models(body: Any) -> list[dict[str, Any]]:
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list):
        raise Unusable("the server's list of models has no `data`")
    return [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]


def load(settings: ModelSettings) -> NoReturn:
    """Raise ConfigError: the loader of `model=endpoint` has nothing to load, and operators that need a model say so."""
    raise ConfigError(
        "this operator needs a model of this process, and model=endpoint is a server; give this node a model of its own"
        " (model: {path: my.gguf}); docs/endpoints.md has the operators that take a server"
    )


inspect = load
