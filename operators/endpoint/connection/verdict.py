"""The meaning of a response: an answer, another try, a reject of its row, or the end of the run."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from operators.endpoint.api.checks import OfRow, Unusable
from pipeline.api.errors import ConfigError, PipelineError
from pipeline.system.redaction import shown_url

LATER = frozenset({202, 408, 409, 421, 424, 425, 429, 498, 499, *range(500, 600)}) - {501}
"""Statuses after which the same request may be answered."""
BUSY = frozenset({429, 498, 502, 503, 504, 529})
"""Those of them that say nothing about the request: the server, or one before it, takes none for now."""
_KEY = "check the key (model.key_env names the environment variable that has it) and what it may use"
_ENDS: Mapping[int, str] = {
    401: _KEY,
    402: "the account has no credit left; the same command goes on when it has",
    403: _KEY,
    404: "check model.url, which ends in /v1 with most servers, and model.name (GET /v1/models lists the models)",
    407: "name the proxy with its user and password (HTTP_PROXY, HTTPS_PROXY), or the server in NO_PROXY",
    405: "check model.url and model.api: the server has no such API",
    501: "check model.api: the server has no such API",
}
_OF_ROW = re.compile(
    r"context.{0,40}(length|window|size|limit)|too (long|large|many tokens)|maximum.{0,20}tokens"
    r"|content.?(filter|policy)",
    re.I,
)
"""What a server says of a row that it has read."""
_MOST_CHARACTERS = 300
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUOTED = 80
"""Characters of a body that is none of an API."""
_SHORTEST_SECRET = 6


class EndpointError(PipelineError):
    """A server gives no answers, for longer than `model.patience_s`, or at all. The same command goes on."""


class Again(Exception):
    """A request is to be sent again.

    Args:
        reason: what went wrong.
        after_s: seconds to wait, as the server says; None: it does not.
        of_server: the request is not at fault.
        busy: the server has too much to do.
        ends: ends the run, if it holds for every request.
    """

    def __init__(
        self,
        reason: str,
        after_s: float | None = None,
        *,
        of_server: bool = False,
        busy: bool = False,
        ends: PipelineError | None = None,
    ):
        super().__init__(reason)
        self.reason, self.after_s, self.of_server, self.busy, self.ends = reason, after_s, of_server, busy, ends


def judge(status: int, headers: Mapping[str, str], body: bytes, where: str, url: str) -> None:
    """Raise what a response means; return if it has an answer.

    Args:
        where: the server, for messages.
        url: the URL that was asked.

    Raises:
        Again: the same request may be answered later, or by another server.
        Unusable: the server takes the request of this row never; OfRow if it has read the row, so that it works.
    """
    if 200 <= status < 300 and status not in LATER:
        return
    if 300 <= status < 400:
        said = f"{where} redirects to {_place(headers.get('Location', ''), url)}, which is not followed"
        raise Again(said, of_server=True, ends=ConfigError(f"{said}; name the server itself with model.url"))
    said = f"{where} says {status}: {message_of(body)}"
    kind = 402 if status == 429 and b"insufficient_quota" in body else status
    if kind in _ENDS:
        remedy = f"{said}; {_ENDS[kind]}"
        ends = EndpointError(remedy) if kind == 402 else ConfigError(remedy)
        raise Again(said, of_server=kind in (402, 407), ends=ends)
    if status in LATER:
        raise Again(said, retry_after(headers), of_server=status in BUSY, busy=status in (429, 498, 503, 529))
    raise OfRow(said) if _OF_ROW.search(said) else Unusable(said)


def message_of(body: bytes) -> str:
    """Return the message of an error's body, of some 300 characters at most."""
    text = body[:65536].decode("utf-8", "replace")
    try:
        message = json.loads(text)
        for key in ("error", "message", "detail"):
            message = message.get(key, message) if isinstance(message, dict) else message
    except (ValueError, RecursionError):
        message = text
    text = " ".join((message if isinstance(message, str) else json.dumps(message)).split())
    return f"{text[:_MOST_CHARACTERS]}..." if len(text) > _MOST_CHARACTERS else text or "nothing"


def quoted(body: bytes) -> str:
    """Return the first characters of a body, in quotes."""
    return repr(" ".join(body[: 4 * _QUOTED].decode("utf-8", "replace").split())[:_QUOTED])


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait; None if it does not.

    `Retry-After` is a number, or a date, which is compared with the server's own clock (`Date`) where it tells that.
    OpenAI says it in milliseconds too, and when each limit that has nothing left is free again (`x-ratelimit-...`).
    """
    wait = headers.get("Retry-After", "").strip()
    if (exact := _number(headers.get("retry-after-ms", ""))) is not None:
        return exact / 1000
    if not wait:
        limits = [name for name in ("requests", "tokens") if headers.get(f"x-ratelimit-remaining-{name}") == "0"]
        resets = [_duration(headers.get(f"x-ratelimit-reset-{name}", "")) for name in limits]
        return max((seconds for seconds in resets if seconds is not None), default=None)
    if (seconds := _number(wait)) is not None:
        return seconds
    then, now = _seconds(wait), _seconds(headers.get("Date", ""))
    return None if then is None else max(0.0, then - (time.time() if now is None else now))


def _number(text: str) -> float | None:
    try:
        return max(0.0, number) if math.isfinite(number := float(text)) else None
    except ValueError:
        return None


def _duration(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it: 6m0s, 1.5s, 20ms; a number alone is in seconds."""
    parts = _PART.findall(text)
    if not text or "".join(number + unit for number, unit in parts) != text:
        return _number(text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def without(text: str, secrets: list[str]) -> str:
    """Return a server's message without the `secrets` (keys, prompts) that it quotes."""
    for secret in sorted(secrets, key=len, reverse=True):
        for form in {secret, json.dumps(secret)[1:-1], " ".join(secret.split())}:
            if len(form) >= _SHORTEST_SECRET:
                text = text.replace(form, "(left out)")
                if len(form) > _MOST_CHARACTERS:  # the message was cut within it
                    at = text.find(form[:40])
                    text = text if at < 0 else f"{text[:at]}(left out)"
    return text


def clean(failure: Any, hidden: list[str]) -> Any:
    """Return an error without what no message may quote."""
    if failure is not None:
        failure.args = (without(str(failure), hidden), *failure.args[1:])
    return failure


def _seconds(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


def _place(location: str, url: str) -> str:
    """Return scheme and host of a redirection; its query may have a signature."""
    try:
        return shown_url(urljoin(url, location)).removesuffix("/...")
    except ValueError:
        return "an address that cannot be read"
