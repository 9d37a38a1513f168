"""ImageFetcher: fetches the images of rows that are at http(s) URLs, from hosts that the job names.

The rows may be a stranger's, and this machine may reach what a stranger may not: so the address of a host is looked up
here and has to be a public one, unless the job names the address itself, and a redirection leads to hosts of the job.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from urllib.parse import quote, urljoin, urlsplit

from operators.images.read import BadImage
from pipeline.api.errors import SourceError
from pipeline.api.machine_errors import of_machine
from pipeline.system.redaction import clean_url

MOST_BYTES = 64 << 20
TIMEOUT_S, MOST_S = 30.0, 300.0
"""Seconds for a connection and for each piece, and for an image with all tries."""
_PROBE_S = 5.0
Place = tuple[str, int]
"""A host and its port."""
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
        self._domains = frozenset(domain.lower() for domain in domains)
        self._failed_in_a_row: list[Place] = []
        self._answered: set[Place] = set()
        self._dead: set[Place] = set()
        """Places that have never answered, where others do: what is there is not tried again, nor counted."""

    def fetch_all(self, urls: Sequence[str]) -> list[bytes | BadImage]:
        """Return what is at each of `urls`, or why it is not read.

        Raises:
            SourceError: MOST_IN_A_ROW could not be fetched, by no fault of theirs.
            OSError: the machine has no sockets or memory for it.
        """
        with ThreadPoolExecutor(min(AT_ONCE, len(urls) or 1), thread_name_prefix="images") as pool:
            found = list(pool.map(self._fetch, urls))
        for each in found:
            if not isinstance(each, _Unreachable):
                self._failed_in_a_row.clear()
            elif each.place not in self._dead:
                self._failed_in_a_row.append(each.place)
                self._judge(each)
        return found

    def _judge(self, last: _Unreachable) -> None:
        """Raise SourceError if the network is broken: too much has failed, and not only at places that have never
        answered while others do."""
        failed = self._failed_in_a_row
        silent = set(failed) - self._answered
        if len(failed) >= MOST_IN_A_ROW and silent and self._another_answers(silent):
            self._dead |= silent
            failed[:] = [place for place in failed if place not in silent]
        if len(failed) >= MOST_IN_A_ROW:
            raise SourceError(
                f"{len(failed)} images in a row could not be fetched, at last: {last!s}; what is finished is kept, run"
                " the same command again"
            )

    def _another_answers(self, silent: Collection[Place]) -> bool:
        """Return whether a place of the job that is not one of `silent` takes connections now."""
        named = [urlsplit(f"//{domain}") for domain in sorted(self._domains)]
        of_job = [(each.hostname or "", port) for each in named for port in (each.port or 443, each.port or 80)]
        places = dict.fromkeys(place for place in (*sorted(self._answered), *of_job) if place not in silent)
        return any(map(_takes_connections, list(places)[:AT_ONCE]))

    def _fetch(self, url: str) -> bytes | BadImage:
        ends_s = time.monotonic() + MOST_S
        for pause_s in (*PAUSES_S, None):
            try:
                with _explained(url):
                    return self._followed(url, ends_s)
            except _Unreachable as error:
                if pause_s is None or error.place in self._dead or time.monotonic() + pause_s > ends_s:
                    return error
                time.sleep(pause_s)
            except BadImage as error:
                return error
        raise AssertionError

    def _followed(self, url: str, ends_s: float) -> bytes:
        """Return what is at `url`, or where that leads."""
        at = url
        for _ in range(_MOST_REDIRECTS + 1):
            with _explained(at):
                status, location, content = self._asked(at, ends_s)
            if status not in _REDIRECTS:
                if status == http.client.OK:
                    return content
                why = f"answers with status {status}"
                if status == http.client.TOO_MANY_REQUESTS or status >= 500:
                    raise _Unreachable(at, why)
                raise BadImage(f"{clean_url(url)} {why}")
            at = urljoin(at, location)
        raise BadImage(f"{clean_url(url)} is redirected more than {_MOST_REDIRECTS} times")

    def _asked(self, url: str, ends_s: float) -> tuple[int, str, bytes]:
        """Ask for `url`; return the status, where it leads, and the content. `ends_s`: when it has to be there."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        if parts.scheme not in PORTS or not self._domains & {host, parts.netloc.lower()}:
            raise BadImage(f"it is redirected to {parts.scheme}://{parts.netloc}, which is not in data.image_domains")
        with _connection(url, host, ends_s) as connection:
            path = quote(parts.path or "/", safe=_AS_IT_IS) + ("?" if parts.query else "")
            connection.request("GET", path + quote(parts.query, safe=_AS_IT_IS), headers=_HEADERS)
            content = bytearray()
            with connection.getresponse() as answer:
                self._answered.add(_place(url))
                self._dead.discard(_place(url))
                while piece := answer.read1(_PIECE_BYTES):
                    content += piece
                    if len(content) > MOST_BYTES:
                        raise BadImage(f"{clean_url(url)} has more than {MOST_BYTES >> 20} MiB")
                length = answer.getheader("Content-Length") or ""
                if not answer.chunked and length.isdecimal() and len(content) < int(length):
                    raise http.client.IncompleteRead(bytes(content), int(length) - len(content))
            return answer.status, answer.getheader("Location") or "", bytes(content)


def _place(url: str) -> Place:
    parts = urlsplit(url)
    return (parts.hostname or "").lower(), parts.port or PORTS[parts.scheme]


def _takes_connections(place: Place) -> bool:
    try:
        socket.create_connection(place, _PROBE_S).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _connection(url: str, host: str, ends_s: float) -> Iterator[http.client.HTTPConnection]:
    """Connect to the host of `url`, at an address that is public, or that the job names, until `ends_s`: a server that
    sends a byte now and then would never run into a socket's time limit."""
    _, port = _place(url)
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if private := [each for each in addresses if not ipaddress.ip_address(each).is_global and each != host]:
        raise BadImage(
            f"{clean_url(url)} is at {private[0]}, which is no public address; if it is yours, name the address in URLs"
            " and in data.image_domains"
        )
    with ExitStack() as stack:
        sock: socket.socket = stack.enter_context(socket.create_connection((addresses[0], port), TIMEOUT_S))
        if url.lower().startswith("https:"):
            context = ssl.create_default_context()
            sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            stack.enter_context(sock)
        end = threading.Timer(max(0.0, ends_s - time.monotonic()), _shut, (sock,))
        end.daemon = True
        end.start()
        stack.callback(end.cancel)
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            with closing(http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)) as connection:
                connection.sock = sock
                yield connection
        finally:
            if time.monotonic() >= ends_s:  # what was read until then may look whole
                raise TimeoutError(f"it takes more than {MOST_S:g} s") from None


def _shut(sock: socket.socket) -> None:
    """End what another thread does with `sock`."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # that of TLS would say goodbye first


class _Unreachable(BadImage):
    """The network or the server is at fault; another try may succeed. `place`: of the server."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"{clean_url(url)} {why}")
        self.place = _place(url)


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
        if of_machine(error) and not isinstance(error, ssl.SSLError | socket.gaierror):  # with numbers of their own
            raise
        raise _Unreachable(url, f"cannot be fetched: {error or type(error).__name__}") from None
