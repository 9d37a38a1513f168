"""Images that are fetched: from hosts of the job alone, whatever they answer or lead to."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import polars as pl
import pytest

from operators.images import web
from operators.images.read import BadImage
from operators.images.web import ImageFetcher
from pipeline.api.errors import SourceError
from pipeline.cli.main import main


class Answers(BaseHTTPRequestHandler):
    """/ok is an image, /STATUS answers so, /to?URL leads there, /later fails once, /short breaks off, /drip never ends
    its headers."""

    asked: list[str] = []  # noqa: RUF012 - of the one server of a test

    def do_GET(self) -> None:
        self.asked.append(self.path)
        name, _, query = self.path[1:].partition("?")
        status = int(name) if name.isdigit() else 503 if name == "later" and self.asked.count(self.path) == 1 else 200
        self.send_response(302 if name == "to" else status)
        self.send_header("Location", unquote(query))
        if name == "short":
            self.send_header("Content-Length", "100")
        with suppress(OSError):
            while name == "drip":
                self.wfile.write(b"X")
                time.sleep(0.02)
            self.end_headers()
            self.wfile.write(b"an image" + b"!" * 100 * (name == "long"))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(web, "PAUSES_S", (0.0, 0.0))
    Answers.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_images_come_in_order_and_each_failure_costs_its_own(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_BYTES", 50)
    cases = {
        "ok": None,
        "later": None,
        "ok?a=b c": None,
        "to?/ok": None,
        "404": "answers with status 404",
        "503": "answers with status 503",
        "long": "has more than 0 MiB",
        "to?http://169.254.169.254/meta": "redirected to http://169.254.169.254, which is not in data.image_domains",
        "to?file:///etc/passwd": "redirected to file://",
        "to?http://[bad": "is no URL that can be asked",
        "short": "cannot be fetched: IncompleteRead(8 bytes read, 92 more expected)",
        "to?/to?/to?/to?/to?/to?/to?/ok": "redirected more than 5 times",
    }
    found = ImageFetcher([host]).fetch_all([f"http://{host}/{name}" for name in cases])
    for name, each in zip(cases, found, strict=True):
        if (says := cases[name]) is None:
            assert each == b"an image", name
        else:
            assert isinstance(each, BadImage)
            assert says in str(each)
    assert Answers.asked.count("/503") == Answers.asked.count("/short") == 3
    assert Answers.asked.count("/404") == 1


def test_a_name_that_leads_to_a_private_address_is_refused(host: str) -> None:
    port = host.partition(":")[2]
    (found,) = ImageFetcher(["LOCALHOST"]).fetch_all([f"http://localhost:{port}/ok"])
    assert "which is no public address; if it is yours, name the address" in str(found)
    assert not Answers.asked


def test_a_server_that_never_ends_has_the_time_of_one_image(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_S", 0.2)
    (found,) = ImageFetcher([host]).fetch_all([f"http://{host}/drip"])
    assert "cannot be fetched: it takes more than 0.2 s" in str(found)
    assert Answers.asked == ["/drip"]


def test_a_host_that_is_gone_costs_its_rows_while_another_answers(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no image of the other has been asked for yet. One that has answered may come back."""
    monkeypatch.setattr(web, "MOST_IN_A_ROW", 3)
    gone = "127.0.0.1:1"
    assert all(isinstance(each, BadImage) for each in ImageFetcher([host, gone]).fetch_all([f"http://{gone}/a"] * 7))
    with pytest.raises(SourceError, match="3 images in a row could not be fetched"):
        ImageFetcher([gone]).fetch_all([f"http://{gone}/a"] * 7)
    fetcher = ImageFetcher([host, gone])
    assert fetcher.fetch_all([f"http://{host}/ok"]) == [b"an image"]
    monkeypatch.setattr(web, "_takes_connections", lambda place: False)
    with pytest.raises(SourceError, match="3 images in a row could not be fetched"):
        fetcher.fetch_all([f"http://{gone}/a"] * 7)


def test_a_network_that_is_broken_ends_the_run(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MOST_IN_A_ROW", 3)
    fetcher = ImageFetcher([host])
    fetcher.fetch_all([f"http://{host}/{name}" for name in ("503", "503", "ok", "503", "503", "404")])
    with pytest.raises(SourceError, match="3 images in a row could not be fetched"):
        fetcher.fetch_all([f"http://{host}/503"] * 3)


def test_a_machine_without_sockets_ends_the_run(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", fails)
    with pytest.raises(OSError, match="Too many open files"):
        ImageFetcher([host]).fetch_all([f"http://{host}/ok"])


def test_a_reject_names_the_column_and_the_url_of_its_image(host: str, tmp_path: Path) -> None:
    """Whether it cannot be fetched or cannot be read; what may be secret in it is left out."""
    (tmp_path / "rows.csv").write_text(f"prompt,photo\nWhat?,http://{host}/404\nWhat?,http://{host}/ok?key=abc\n")
    job = ["job=generate", "model=fake", "model.mmproj=eyes", f"data.path={tmp_path}/rows.csv", "progress=none"]
    data = ["data.image_column=photo", f"data.image_domains=['{host}']", f"output_dir={tmp_path}/out", "report=false"]
    main([*job, *data])
    missing, unread = pl.read_parquet(tmp_path / "out/rejects/*.parquet")["reason"].to_list()
    assert missing == f"column 'photo': http://{host}/404 answers with status 404"
    assert unread.startswith(f"column 'photo': 'http://{host}/ok?(left out)' is no picture in a format")
