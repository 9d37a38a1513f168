"""Server: a model's endpoint, as the nodes of a run share it: its id, its dialect, and what identifies its answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, NoReturn

from operators.endpoint.api.checks import Unusable
from operators.endpoint.api.dialects import OPENAI, dialect_of
from operators.endpoint.connection.client import Endpoint
from operators.endpoint.connection.http import proxy_of
from operators.endpoint.connection.request import Request
from operators.endpoint.connection.verdict import EndpointError
from operators.generation.journal import Journal, StoredCompletion
from operators.settings import ModelSettings
from operators.settings.endpoint import AUTO, EndpointSettings
from pipeline.api import ConfigError, Operator, Runtime
from pipeline.system.redaction import clean_url, shown_url

_BEYOND_S = 60.0
"""What the longest wait for a server may take beyond patience and timeout, before the run counts as stalled."""
_OF_MODEL = ("id", "owned_by", "root", "parent", "max_model_len", "meta")
"""Keys of a model's card that stay as they are while the server runs."""
_OF_SERVER = ("max_model_len", "meta.n_ctx")
"""Those of them that change when the same model is served with another context."""
_PROBE_S = 10.0
"""Within how many seconds each of several URLs is to tell its models."""

Card = Mapping[str, Any]
"""What a server says of a model."""


class ModelOrServer(Operator):
    """Base of operators that compute with a model of this process. Where it is a server, the constructor makes an
    `at_server` of the same arguments instead, which need not be one of them."""

    at_server: ClassVar[Callable[..., Operator]]

    def __new__(cls, model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, EndpointSettings):
            return cls.at_server(model, *args, **kwargs)
        return super().__new__(cls)


@dataclass(frozen=True)
class Server:
    """A model at a server.

    Args:
        endpoint: sends the requests.
        settings: with `name` and `dialect` as they were found.
        description: JSON of what the server says of the model.
    """

    endpoint: Endpoint
    settings: EndpointSettings
    description: str

    def identity(self, store: Journal | None, runtime: Runtime) -> str:
        """Return what an answer depends on, besides the request: the description of the model that `store` has noted,
        if the server describes it likewise now; else its present one, which is noted."""
        if store is None:
            return self.description
        model = f"server {self.settings.name} {self.settings.dialect}"
        place = hashlib.blake2b(model.encode(), digest_size=16).digest()
        stored_note = store.find([place]).get(place)
        noted = [] if stored_note is None else _noted(stored_note.text)
        unlike = [list(_unlike(json.loads(description)[2], json.loads(self.description)[2])) for description in noted]
        if [] in unlike:
            return noted[unlike.index([])]
        if stored := store.count(runtime.run_id):
            changed = ", ".join(f"{key} {then}, now {now}" for key, then, now in unlike[-1]) if noted else None
            runtime.log.warning(
                f"{stored:,} answers of this run do not count: the server describes its model otherwise ({changed})"
                if changed
                else f"{stored:,} answers of this run, which a version before this one began, count only if the server"
                " describes its model as it did then, context included"
            )
        store.put({place: StoredCompletion([], json.dumps([*noted, self.description]), "noted")})
        return self.description


def _noted(text: str) -> list[str]:
    """Read the descriptions that a store has noted; none where a version wrote them otherwise."""
    try:
        descriptions = json.loads(text)
        return [description for description in descriptions if isinstance(json.loads(description)[2], dict)]
    except (ValueError, TypeError, IndexError, KeyError):
        return []


def server_of(runtime: Runtime, settings: EndpointSettings) -> Server:
    """Return the server of `settings`: connected for the first node that asks, closed with the run.

    Raises:
        ConfigError: it has several models and none is named, or its URLs have different ones; the key is missing.
        EndpointError: it does not answer.
    """
    key = ("endpoint", repr(settings))
    return runtime.resource(key, lambda: _connected(runtime, settings), lambda made: made.endpoint.close())


def _connected(runtime: Runtime, settings: EndpointSettings) -> Server:
    for url in settings.urls:
        if (proxy := proxy_of(url)) is not None:
            by = shown_url(proxy).removesuffix("/...")
            runtime.log.info("%s is asked through the proxy %s of the environment", clean_url(url), by)
    endpoint = Endpoint(settings, runtime.log)
    runtime.when_stuck(endpoint.cut_off, settings.patience_s + settings.timeout_s + _BEYOND_S)
    runtime.status(endpoint.status)
    try:
        lists = _lists(endpoint, settings, runtime)
        name = settings.name or _only_name(lists)
        cards = {url: card for url, models in lists.items() if (card := _card(models, name, url, settings, runtime))}
        _check_alike(cards, settings, runtime)
    except BaseException:
        endpoint.close()
        raise
    named = replace(settings, name=name)
    card = next(iter(cards.values()), None)
    description_source = card or {"data": [model for models in lists.values() for model in models]}
    dialect = dialect_of(description_source) if settings.dialect == AUTO else settings.dialect
    if dialect is None:
        dialect = OPENAI
        runtime.log.info("the server does not say what it is; model.dialect=%s is assumed", dialect)
    runtime.log.info("model %s at %s, dialect %s", name, ", ".join(map(clean_url, settings.urls)), dialect)
    endpoint.attempts.model = (settings.extra_body or {}).get("model", name)
    description = json.dumps([name, dialect, _kept(card or {})], sort_keys=True, default=str)
    return Server(endpoint, replace(named, dialect=dialect), description)


def _lists(endpoint: Endpoint, settings: EndpointSettings, runtime: Runtime) -> dict[str, list[Card]]:
    """Return the models that each URL lists: none where it has no such list, or does not answer now.

    Raises:
        ConfigError: no URL has a list, and none is named.
        EndpointError: no URL answers.
    """

    def asked(endpoint: Endpoint) -> list[Card]:
        request = Request(settings, "/models", None, _models, optional=True)
        models: list[Card] = endpoint.ask(request, lambda: runtime.cancelled)
        return models

    lists: dict[str, list[Card]] = {}
    silent: dict[str, Exception] = {}
    for url in settings.urls if len(settings.urls) > 1 else []:
        timeout_s = min(settings.timeout_s, _PROBE_S)
        probe = Endpoint(replace(settings, url=url, timeout_s=timeout_s, patience_s=0.0, retries=0), runtime.log)
        try:
            lists[url] = asked(probe)
        except (Unusable, EndpointError, ConfigError) as error:
            silent[url] = error
        finally:
            probe.close()
    if not lists:
        try:
            lists[settings.urls[0]] = asked(endpoint)
        except Unusable as error:
            if settings.name is None:
                raise ConfigError(f"{error}; name the model with model.name=") from error
            runtime.log.warning("%s; model.name=%s is asked for all the same", error, settings.name)
    for url, why in silent.items():
        runtime.log.warning("%s does not say whether it has the same model: %s", clean_url(url), why)
    return lists


def _models(body: Any) -> list[Card]:
    models = body.get("data") if isinstance(body, dict) else None
    if not isinstance(models, list):
        raise Unusable("the server's list of models has no `data`")
    return [model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]


def _only_name(lists: Mapping[str, list[Card]]) -> str:
    """Return the id of the model of the first server that has one only."""
    for models in lists.values():
        if len(models) == 1 and "*" not in models[0]["id"]:
            return str(models[0]["id"])
    listed = ", ".join(list(dict.fromkeys(model["id"] for models in lists.values() for model in models))[:20])
    if listed:
        raise ConfigError(f"the server has several models; name one with model.name= ({listed})")
    raise ConfigError(
        f"model.url={clean_url(next(iter(lists)))}: the server does not say which models it has; name one with"
        " model.name="
    )


def _card(models: list[Card], name: str, url: str, settings: EndpointSettings, runtime: Runtime) -> Card | None:
    """Return what the server at `url` says of the model `name`; None if it does not list it, which is told.

    Raises:
        ConfigError: it does not, and the name is that of the model at another URL.
    """
    for model in sorted(models, key=lambda model: model["id"] != name):
        if name in (model["id"], *(model.get("aliases") or [])):
            return model
    if any("*" in model["id"] and fnmatchcase(name, model["id"]) for model in models):
        return None
    listed = ", ".join([model["id"] for model in models][:20]) or "none"
    if settings.name is None and models:
        raise ConfigError(
            f"model.url has servers with different models: {name} is none of those of {clean_url(url)} ({listed}); name"
            " it with model.name= if they have the same one under different names, else give one URL"
        )
    runtime.log.warning(
        "model %s is none of those that %s lists (%s); it is asked for all the same",
        *(name, clean_url(url), listed),
    )
    return None


def _check_alike(cards: Mapping[str, Card], settings: EndpointSettings, runtime: Runtime) -> None:
    """Compare what the servers say of the model. Raises ConfigError if it is another one, or wants another dialect."""
    for url, card in cards.items():
        first = next(iter(cards))
        for key, value, other in _unlike(_kept(cards[first]), _kept(card)):
            change = f"{key} of {card['id']} is {value} at {clean_url(first)} and {other} at {clean_url(url)}"
            if key.startswith("meta."):
                raise ConfigError(
                    f"model.url has servers with different models: {change}; give those with the same one"
                )
            if key == "owned_by" and settings.dialect == AUTO:
                raise ConfigError(
                    f"model.url has servers of different kinds: {change}; name model.dialect= if one fits all"
                )
            runtime.log.warning("%s: the same model?", change)


def _kept(card: Card) -> dict[str, Any]:
    return {key: card.get(key) for key in _OF_MODEL}


def _unlike(before: Card, now: Card) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys of two cards whose values differ, with these. A key that only one of them has says nothing: a
    router knows `meta` of models that are loaded."""
    for key in sorted(before.keys() & now.keys() - set(_OF_SERVER)):
        one, other = before[key], now[key]
        if isinstance(one, dict) and isinstance(other, dict):
            inner = ({f"{key}.{name}": value for name, value in each.items()} for each in (one, other))
            yield from _unlike(*inner)
        elif one != other and None not in (one, other):
            yield key, one, other


def load(settings: ModelSettings) -> NoReturn:
    """Raise ConfigError: the loader of `model=endpoint` has nothing to load, and operators that need a model say so."""
    raise ConfigError(
        "this operator needs a model of this process, and model=endpoint is a server; give this node a model of its own"
        " (model: {path: my.gguf}); docs/endpoints.md has the operators that take a server"
    )


inspect = load
