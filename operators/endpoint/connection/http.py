"""Http: requests to servers by aiohttp, with keep-alive, without redirections, with verified certificates."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from operators.endpoint.connection.verdict import Again
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import ConfigError, install
from pipeline.system.redaction import clean_url, shown_url

if TYPE_CHECKING:
    import aiohttp

_CONNECT_S = 10.0
_MOST_BYTES = 256 << 20
_PIECE_BYTES = 1 << 16
_WORDS = 160
"""Characters of an error's own words."""
_CERTIFICATE = (
    "if it is yours, name the file of its authority in the environment variable SSL_CERT_FILE, or model.url of a proxy"
    " that has a valid one"
)
_NO_TLS = dict.fromkeys(
    ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"),
    "it may speak http:// there, and model.url has https://",
)
"""By the reason of an error of TLS the remedy."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: its status, headers and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Again):
    """No connection can be made: nobody listens, or the network is down. With a remedy if that will not change."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason, of_server=True, ends=None if remedy is None else ConfigError(f"{reason}; {remedy}"))


class NoAnswer(Again):
    """There was no answer in time."""


def proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for `url` (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, but for the hosts of
    NO_PROXY); None if it names none. Raises ConfigError if it is no HTTP proxy."""
    parts = urlsplit(url)
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if proxy is None or proxy_bypass(parts.netloc) or proxy_bypass(parts.hostname or ""):  # [::1] and ::1
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigError(
            f"the environment names {shown_url(proxy).removesuffix('/...')} as the proxy for {clean_url(url)}, and only"
            " proxies of http:// can be used; name another (HTTP_PROXY, HTTPS_PROXY), or the server in NO_PROXY"
        )
    return proxy


def require_client() -> None:
    """Raise ConfigError with the remedy unless the package of the extra is installed."""
    try:
        import aiohttp  # noqa: F401 - an extra
    except ImportError as error:
        raise ConfigError(f"model=endpoint needs aiohttp ({error}); {install('endpoint')}") from error


class Http:
    """Sends requests. Made and used in one event loop.

    Args:
        settings: key, headers and time limits.

    Raises:
        ConfigError: the key's variable is not set.
    """

    def __init__(self, settings: EndpointSettings) -> None:
        import aiohttp

        self._aiohttp, self._timeout_s, self._query = aiohttp, settings.timeout_s, settings.query
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {} if (key := settings.key()) is None else {"Authorization": f"Bearer {key}"}
        self._proxies = {url: _through(proxy_of(url), url) for url in settings.urls}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=30),
            headers=headers | (settings.headers or {}),
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=min(_CONNECT_S, settings.timeout_s)),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            max_field_size=65536,
        )

    async def ask(self, url: str, body: bytes | None, where: str) -> Reply:
        """Post `body`, or get `url` if there is none, and return the response.

        Raises:
            Again: the connection broke.
            NoAnswer: there was none in time.
            Unreachable: there is nobody to ask; with `ends` where the certificate is not valid or TLS is not spoken.
        """
        http = self._aiohttp
        by = next(proxy for base, proxy in self._proxies.items() if url.startswith(base)) | {"params": self._query}
        if body is not None:
            by["data"] = http.BytesPayload(body, content_type="application/json")
        try:
            method = "GET" if body is None else "POST"
            async with self._session.request(method, url, allow_redirects=False, **by) as response:
                return Reply(response.status, response.headers, await self._read(response, where))
        except http.ClientConnectorCertificateError as error:
            raise Unreachable(f"{where} has a certificate that is not valid ({_brief(error)})", _CERTIFICATE) from None
        except http.ClientConnectorSSLError as error:
            remedy = _NO_TLS.get(getattr(error.os_error, "reason", ""))
            raise Unreachable(f"{where} cannot be reached ({_brief(error)})", remedy) from None
        except http.ClientConnectorDNSError as error:
            raise Unreachable(f"the host of {where} is not known ({_brief(error)})") from None
        except http.ClientHttpProxyError as error:  # it makes no tunnel
            return Reply(error.status, error.headers or {}, f"the proxy: {error.message}".encode())
        except (http.ClientConnectorError, http.ConnectionTimeoutError) as error:
            raise Unreachable(f"{where} cannot be reached ({_brief(error)})") from None
        except TimeoutError:
            raise NoAnswer(f"{where} gave no answer within model.timeout_s={self._timeout_s:g} s") from None
        except http.ServerDisconnectedError:
            raise Again(f"{where} closed the connection without an answer") from None
        except (http.ClientError, ssl.SSLError, OSError, asyncio.IncompleteReadError) as error:
            raise Again(f"the connection to {where} broke ({_brief(error)})") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _read(self, response: aiohttp.ClientResponse, where: str) -> bytes:
        """Return the body, decompressed, of `_MOST_BYTES` at most, whatever the server says of its length."""
        body = bytearray()
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            body += piece
            if len(body) > _MOST_BYTES:
                response.close()
                raise Again(f"{where} answers with more than {_MOST_BYTES >> 20} MiB")
        return bytes(body)


def _through(proxy: str | None, url: str) -> dict[str, Any]:
    """Return the arguments of a request to `url` through `proxy`: aiohttp's own `trust_env` would send the passwords of
    ~/.netrc, too."""
    if proxy is None:
        return {}
    parts = urlsplit(proxy)
    host = parts.netloc.rpartition("@")[2]
    if parts.username is None:
        return {"proxy": f"{parts.scheme}://{host}"}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    headers = {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    return {"proxy": f"{parts.scheme}://{host}", "headers" if url.startswith("http:") else "proxy_headers": headers}


def _brief(error: BaseException) -> str:
    """Return the kind of an error and its own words, without URLs and headers."""
    inner = getattr(error, "certificate_error", getattr(error, "os_error", error))
    words = (getattr(inner, name, None) for name in ("verify_message", "strerror", "reason", "message"))
    said = next((word for word in words if isinstance(word, str) and word), None)
    return f"{type(error).__name__}: {said.splitlines()[0][:_WORDS]}" if said else type(error).__name__
