"""The meaning of a response: an answer, another try, a reject of its row, or the end of the run."""

from __future__ import annotations

import email.utils
import json
import time
from collections.abc import Mapping
from urllib.parse import urljoin

from pipeline.api.errors import ConfigError, PipelineError
from pipeline.system.redaction import shown_url

LATER = frozenset({408, 409, 425, 429, 500, 502, 503, 504, *range(520, 530), 529})
"""Statuses after which the same request may be answered."""
BUSY = frozenset({429, 502, 503, 504, 529})
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
_MOST_CHARACTERS = 300
_SHORTEST_SECRET = 6


class EndpointError(PipelineError):
    """A server gives no answers, for longer than `model.patience_s`, or at all. The same command goes on."""


class NoSuchApi(ConfigError):
    """The server has no such API or model, or not for this key."""


class Again(Exception):
    """A request is to be sent again.

    Args:
        reason: what went wrong.
        after_s: seconds to wait, as the server says; None: it does not.
        of_server: the request is not at fault.
        busy: the server has too much to do.
    """

    def __init__(self, reason: str, after_s: float | None = None, *, of_server: bool = False, busy: bool = False):
        super().__init__(reason)
        self.reason, self.after_s, self.of_server, self.busy = reason, after_s, of_server, busy

    def asks_longer_than(self, seconds: float) -> bool:
        """Return whether the server asks for a longer wait than `seconds`."""
        return self.after_s is not None and self.after_s > seconds


class Refused(Exception):
    """The server takes the request of this row never; the message says why."""


def judge(status: int, headers: Mapping[str, str], body: bytes, where: str, url: str) -> None:
    """Raise what a response means; return if it has an answer.

    Args:
        where: the server, for messages.
        url: the URL that was asked.

    Raises:
        Again: the same request may be answered later.
        Refused: not for this row.
        ConfigError: for no row, until the job is changed.
        EndpointError: for no row, for now.
    """
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise ConfigError(
            f"{where} redirects to {_place(headers.get('Location', ''), url)}, which is not followed; name the server"
            " itself with model.url"
        )
    said = f"{where} says {status}: {message_of(body)}"
    if status == 402 or (status == 429 and b"insufficient_quota" in body):
        raise EndpointError(f"{said}; {_ENDS[402]}")
    if status in LATER:
        raise Again(said, retry_after(headers), of_server=status in BUSY, busy=status in (429, 503, 529))
    if status in _ENDS:
        raise NoSuchApi(f"{said}; {_ENDS[status]}")
    raise Refused(said)


def message_of(body: bytes) -> str:
    """Return the message of an error's body, of some 300 characters at most."""
    text = body[:65536].decode("utf-8", "replace")
    try:
        found = json.loads(text)
        for key in ("error", "message", "detail"):
            found = found.get(key, found) if isinstance(found, dict) else found
    except (ValueError, RecursionError):
        found = text
    text = " ".join((found if isinstance(found, str) else json.dumps(found)).split())
    return f"{text[:_MOST_CHARACTERS]}..." if len(text) > _MOST_CHARACTERS else text or "nothing"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that `Retry-After` asks for: as a number, or as a date, which is compared with the server's
    own clock (`Date`) where it tells that; None if there is none."""
    given = headers.get("Retry-After", "").strip()
    if not given:
        return None
    try:
        return max(0.0, float(given))
    except ValueError:
        then, now = _seconds(given), _seconds(headers.get("Date", ""))
    return None if then is None else max(0.0, then - (time.time() if now is None else now))


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
