"""The config group `model` for `model=endpoint`: a server in place of a model of this process."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from operators.settings.checks import check
from operators.settings.model import ModelSettings
from pipeline.api.errors import ConfigError
from pipeline.api.keys import above_0, at_least, default_of, in_data, maps, not_in_data, one_of, when_given
from pipeline.system.redaction import clean_url

AUTO = "auto"
APIS = ("chat", "completions", "embeddings", "rerank")
DIALECTS = ("openai", "vllm", "sglang", "llama_server", "llama_cpp_python")
"""The servers whose parameters are known, operators/endpoint/api/dialects.py has them."""
PRICES = ("input", "cached", "output")
_LIMIT = above_0("above 0, or null for no limit")


def _are_texts(pair: tuple[object, object]) -> bool:
    return all(isinstance(each, str) and each for each in pair)


def _is_name_or_null(value: str | None) -> bool:
    return value is None or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None


def _is_header(pair: tuple[object, object]) -> bool:
    name, value = pair
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return bool(name) and name.isascii() and name.replace("-", "").isalnum() and value.isprintable()


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _are_prices(prices: object) -> bool:
    if not isinstance(prices, dict) or not {"input", "output"} <= prices.keys() <= set(PRICES):
        return False
    values = prices.values()
    return all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < math.inf for v in values)


@dataclass
class EndpointSettings(ModelSettings):
    """A server as the model (`model=endpoint`). docs/endpoints.md has it at length.

    Of the keys of a local model `system` and `template_kwargs` hold here too.

    Args:
        url: base URL, `http://host:8000/v1`, or a list of them, with the same model behind each.
        name: id of the model at the server; null: the only one that it has.
        api: chat (messages, the server has the template), completions (texts), embeddings, rerank.
        dialect: the server whose parameters it has: openai, vllm, sglang, llama_server, llama_cpp_python; auto: told
            by what it says of itself.
        key_env: the environment variable with the key, which is sent as a bearer token.
        headers: further headers of every request. Their values are never written down.
        query: what stands behind the ? of every request's URL, by name ({api-version: "2024-10-21"}). As headers.
        concurrency: requests in flight; auto: found while running.
        requests_per_minute, tokens_per_minute: limits over all rows and nodes; null: none.
        timeout_s: of one request, the time in the server's queue included.
        retries: how often a request is sent again that failed on its own account, before its row is a reject.
        patience_s: how long to wait for a server that does not answer at all or refuses everything for now.
        refusals_in_a_row: so many requests that were given up, without an answer in between, end the run, and none of
            their rows is written; null: each costs its row, however many there are.
        extra_body: further keys of the body; null takes a key out.
        price_per_million: what a million tokens cost: {input: ..., output: ..., cached: ...}.
    """

    loader: str = in_data("operators.endpoint.server:load", local=False)
    url: Any = not_in_data(None)
    name: str | None = in_data(None)
    api: str = in_data("chat", *one_of(APIS))
    dialect: str = in_data(AUTO, *one_of((AUTO, *DIALECTS)))
    key_env: str | None = not_in_data(
        None, "it is the name of an environment variable, and not the key itself", _is_name_or_null, secret=True
    )
    headers: Any = not_in_data(None, *maps("names of headers to texts of one line", _is_header), secret=True)
    query: Any = not_in_data(None, *maps("names to texts (a number in quotes)", _are_texts), secret=True)
    concurrency: Any = not_in_data(AUTO, "auto, or 1 to 4096 requests", lambda v: v == AUTO or _is_count(v, 4096))
    requests_per_minute: float | None = not_in_data(None, *_LIMIT)
    tokens_per_minute: float | None = not_in_data(None, *_LIMIT)
    timeout_s: float = not_in_data(600.0, *above_0("seconds above 0"))
    retries: int = not_in_data(5, *at_least(0, "0 (none) or more"))
    patience_s: float = not_in_data(600.0, *at_least(0, "0 seconds or more"))
    refusals_in_a_row: int | None = not_in_data(16, *at_least(1, "1 or more, or null for any number"))
    extra_body: Any = when_given(None, *maps("keys of the request's body to values"))
    price_per_million: Any = not_in_data(
        None,
        f"it maps {', '.join(PRICES)} to numbers, input and output at least, or is null",
        lambda v: v is None or _are_prices(v),
    )

    def __post_init__(self) -> None:
        for key in fields(ModelSettings):
            value, usual = getattr(self, key.name), [default_of(key), *key.metadata.get("told", {}).values()]
            if key.metadata["local"] and value not in usual:
                raise ConfigError(
                    f"model.{key.name}={value} is of a model in this process, and model.url names a server"
                )
        urls = self.url if isinstance(self.url, list) else [self.url]
        for url in urls or [None]:
            self._check_url(url)
        super().__post_init__()

    @property
    def urls(self) -> list[str]:
        """The base URLs, without a slash at the end."""
        return [url.rstrip("/") for url in (self.url if isinstance(self.url, list) else [self.url])]

    def key(self) -> str | None:
        """Return the key; None if there is none. Raises ConfigError if its variable is not set, or cannot be sent."""
        if self.key_env is None:
            return None
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            name = self.key_env if self.key_env.isupper() else "..."  # it may be the key itself
            raise ConfigError(f"model.key_env={name}: there is no such environment variable, or it is empty")
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"model.key_env={self.key_env}: its value has characters that no header may have")
        return key

    def secrets(self) -> list[str]:
        """Return what is sent with each request and no message may quote: the key, and values of headers and query."""
        return [*(self.headers or {}).values(), *(self.query or {}).values(), self.key() or ""]

    def cost(self, prompt_tokens: float, cached_tokens: float, completion_tokens: float) -> float:
        """Return what so many tokens cost; `prompt_tokens` counts those that were cached too. 0 without prices."""
        price = self.price_per_million or dict.fromkeys(PRICES, 0.0)
        cached = price.get("cached", price["input"]) * cached_tokens
        return (
            float(price["input"] * (prompt_tokens - cached_tokens) + cached + price["output"] * completion_tokens) / 1e6
        )

    def _check_url(self, url: object) -> None:
        allowed = "the base URL of a server, as http://127.0.0.1:8000/v1, or a list of them"
        check(isinstance(url, str) and bool(url), "model.url", url, allowed)
        assert isinstance(url, str)
        shown = clean_url(url)
        try:
            parts = urlsplit(url)
            port_fits = parts.port != 0
        except ValueError:
            port_fits = False
        fits = port_fits and parts.scheme in ("http", "https") and bool(parts.hostname)
        check(fits, "model.url", shown, allowed)
        if parts.query:
            raise ConfigError(f"model.url={shown}: what stands behind the ? is given as model.query={{NAME: VALUE}}")
        if parts.username or parts.password:
            raise ConfigError(f"model.url={shown} has a user or password in it; give a key with model.key_env=VARIABLE")
        for end in ("/chat/completions", "/completions", "/embeddings", "/rerank", "/models"):
            if parts.path.rstrip("/").endswith(end):
                raise ConfigError(
                    f"model.url={shown} is the address of one API; leave {end} out, model.api= chooses it"
                )
