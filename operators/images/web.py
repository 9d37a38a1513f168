"""ImageFetcher: fetches the images of rows that are at http(s) URLs, from hosts that the job names.

The rows may be a stranger's, and this machine may reach what a stranger may not: so the address of a host is looked up
here and has to be a public one, unless the job names the address itself, and a redirection leads to hosts of the job.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from urllib.parse import quote, urljoin, urlsplit

from operators.images.read import BadImage
from pipeline.api.errors import SourceError
from pipeline.system.redaction import clean_url

MOST_BYTES = 64 << 20
TIMEOUT_S, MOST_S = 30.0, 300.0
"""Seconds for a connection and for each piece, and for an image."""
PORTS = {"http": 80, "https": 443}
AT_ONCE = 8
PAUSES_S = (0.5, 2.0, 5.0)
"""Before each further try, where the network or the server is at fault."""
MOST_IN_A_ROW = 32
"""Images in a row that cannot be fetched, after all tries: more, and it is the network that is broken."""
_REDIRECTS = {301, 302, 303, 307, 308}
_MOST_REDIRECTS = 5
_PIECE_BYTES = 1 << 16
_AS_IT_IS = "/%:@!$&'()*+,;=~?-._"
"""Characters of a URL that are sent as they are; others are escaped."""
_HEADERS = {"User-Agent": "llama-batch-pipeline", "Accept": "image/*"}


class ImageFetcher:
    """Fetches images, AT_ONCE at a time.

    Args:
        domains: `data.image_domains`: hosts, or host:port.
    """

    def __init__(self, domains: Collection[str]) -> None:
        self._domains = frozenset(domains)
        self._failed_in_a_row = 0

    def fetch_all(self, urls: Sequence[str]) -> list[bytes | BadImage]:
        """Return what is at each of `urls`, or why it is not read.

        Raises:
            SourceError: MOST_IN_A_ROW could not be fetched, by no fault of theirs.
        """
        with ThreadPoolExecutor(min(AT_ONCE, len(urls) or 1), thread_name_prefix="images") as pool:
            found = list(pool.map(self._fetch, urls))
        for each in found:
            self._failed_in_a_row = self._failed_in_a_row + 1 if isinstance(each, _Unreachable) else 0
            if self._failed_in_a_row >= MOST_IN_A_ROW:
                raise SourceError(
                    f"{self._failed_in_a_row} images in a row could not be fetched, at last: {each!s}; what is finished"
                    " is kept, run the same command again"
                )
        return found

    def _fetch(self, url: str) -> bytes | BadImage:
        for pause_s in (*PAUSES_S, None):
            try:
                return self._followed(url)
            except _Unreachable as error:
                if pause_s is None:
                    return error
                time.sleep(pause_s)
            except BadImage as error:
                return error
        raise AssertionError

    def _followed(self, url: str) -> bytes:
        """Return what is at `url`, or where that leads."""
        at = url
        for _ in range(_MOST_REDIRECTS + 1):
            status, location, content = self._asked(at)
            if status not in _REDIRECTS:
                if status == http.client.OK:
                    return content
                kind = _Unreachable if status == http.client.TOO_MANY_REQUESTS or status >= 500 else BadImage
                raise kind(f"{clean_url(url)} answers with status {status}")
            at = urljoin(at, location)
        raise BadImage(f"{clean_url(url)} is redirected more than {_MOST_REDIRECTS} times")

    def _asked(self, url: str) -> tuple[int, str, bytes]:
        """Ask for `url`; return the status, where it leads, and the content."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme not in PORTS or not self._domains & {host, parts.netloc.lower()}:
            raise BadImage(f"it is redirected to {parts.scheme}://{parts.netloc}, which is not in data.image_domains")
        with _explained(url), _connection(url, host) as connection:
            path = quote(parts.path or "/", safe=_AS_IT_IS) + ("?" if parts.query else "")
            connection.request("GET", path + quote(parts.query, safe=_AS_IT_IS), headers=_HEADERS)
            content, ends_s = bytearray(), time.monotonic() + MOST_S
            with connection.getresponse() as answer:
                while piece := answer.read1(_PIECE_BYTES):
                    content += piece
                    if len(content) > MOST_BYTES:
                        raise BadImage(f"{clean_url(url)} has more than {MOST_BYTES >> 20} MiB")
                    if time.monotonic() > ends_s:
                        raise TimeoutError(f"it takes more than {MOST_S:g} s")
            return answer.status, answer.getheader("Location") or "", bytes(content)


@contextmanager
def _connection(url: str, host: str) -> Iterator[http.client.HTTPConnection]:
    """Connect to the host of `url`, at an address that is public, or that the job names."""
    parts = urlsplit(url)
    port = parts.port or PORTS[parts.scheme]
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if private := [each for each in addresses if not ipaddress.ip_address(each).is_global and each != host]:
        raise BadImage(
            f"{clean_url(url)} is at {private[0]}, which is no public address; if it is yours, name the address in URLs"
            " and in data.image_domains"
        )
    with socket.create_connection((addresses[0], port), TIMEOUT_S) as plain:
        secure = parts.scheme == "https"
        sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if secure else plain
        with closing(http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)) as connection:
            connection.sock = sock
            yield connection


class _Unreachable(BadImage):
    """The network or the server is at fault; another try may succeed."""


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn what a connection raises into what is wrong with the image at `url`."""
    try:
        yield
    except BadImage:
        raise
    except (ValueError, http.client.InvalidURL) as error:
        raise BadImage(f"{clean_url(url)} is no URL that can be asked: {error}") from None
    except ssl.SSLCertVerificationError as error:
        raise BadImage(f"{clean_url(url)}: the certificate of the host is not valid ({error.verify_message})") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Unreachable(f"{clean_url(url)} cannot be fetched: {error or type(error).__name__}") from None
